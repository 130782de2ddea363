//! Models whose steps see other steps, as `tests/vectors/make.py` has them in PyTorch. The parameter `model` says which. Each takes token ids
//! and gives a row of `outputs` numbers at each step.

mod cells;
mod graphs;

use cellwright_guest::Cell;
use cellwright_guest::prelude::*;

/// Tokens of a request, at most.
const TOKENS_MAX: u32 = 2048;
/// Heads of attention.
const HEADS: u32 = 2;
/// Steps that the models with attention over a source make.
const READING_STEPS: u32 = 8;
/// Tokens that the decoder writes at most.
const WRITTEN_MAX: u32 = 200;
/// Rows that local attention sees.
const NEAREST: u32 = 16;

enum Attention {
    /// A transformer that writes: its keys and values are its own earlier steps'.
    Decoder([Cell; 3]),
    /// A recurrent reader, and what looks at all its steps from each of its own, in two stages.
    Luong([Cell; 3]),
    Bahdanau([Cell; 3]),
    /// A recurrent reader, and steps that pick one of its rows each. So many symbols at a frame, at most.
    Transducer([Cell; 2], u32),
    Local([Cell; 2]),
    Pooling([Cell; 2]),
}

impl Plugin for Attention {
    fn describe(parameters: &Parameters, _: &Bundle) -> Result<(Self, Description), Refusal> {
        let [hidden, outputs] = parameters.sizes(["hidden", "outputs"])?;
        let name = parameters.text("model")?;
        let mut model = ModelBuilder::new();
        model.input("ids", Int64, &[-1]).output("y", Fp32, &[-1, i64::from(outputs)]);
        let this = match name {
            "decoder" => Self::Decoder(cells::decoder(&mut model, hidden, outputs)),
            "luong" => Self::Luong(cells::luong(&mut model, hidden)),
            "bahdanau" => Self::Bahdanau(cells::bahdanau(&mut model, hidden)),
            "transducer" => {
                let [blank, most] = [parameters.index("blank")?, parameters.positive("most")?];
                Self::Transducer(cells::transducer(&mut model, hidden, outputs, [blank, most]), most)
            }
            "local" => Self::Local(cells::local(&mut model, hidden, outputs)),
            "pooling" => Self::Pooling(cells::pooling(&mut model, hidden, outputs)),
            _ => return Err(Parameters::refusal("model", "is none of those that are here")),
        };
        parameters.refuse_unknown()?;
        Ok((this, model.finish()))
    }

    fn unfold(&self, request: &Request) -> Result<Growth, Refusal> {
        let mut growth = GrowthBuilder::new();
        let ids = request.input("ids")?;
        let y = match self {
            Self::Decoder(cells) => {
                let ids = ids.ints()?;
                let [prompt @ .., last] = &ids[..] else { return Err(Refusal::InvalidInput("there is no token".into())) };
                graphs::decoder(&mut growth, cells, prompt, *last)
            }
            Self::Luong(cells) => graphs::luong(&mut growth, cells, ids.sequence(Int64, &[], TOKENS_MAX)?),
            Self::Bahdanau(cells) => graphs::bahdanau(&mut growth, cells, ids.sequence(Int64, &[], TOKENS_MAX)?),
            Self::Transducer(cells, most) => graphs::transducer(&mut growth, cells, ids.sequence(Int64, &[], TOKENS_MAX)?, *most),
            Self::Local(cells) => graphs::local(&mut growth, cells, ids.sequence(Int64, &[], TOKENS_MAX)?),
            Self::Pooling(cells) => graphs::pooling(&mut growth, cells, ids.sequence(Int64, &[], TOKENS_MAX)?),
        };
        growth.output_all("y", y);
        Ok(growth.finish())
    }
}

export_plugin!(Attention);

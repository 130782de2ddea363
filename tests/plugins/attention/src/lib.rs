//! Models whose steps see other steps, as `tests/vectors/make.py` has them in PyTorch. The parameter `model` says which. Each takes token ids
//! and gives a row of `outputs` numbers at each step. With the parameter `session` the tokens may come in parts.

mod cells;
mod graphs;
mod sessions;

use cellwright_guest::Cell;
use cellwright_guest::prelude::*;

use crate::graphs::{Reading, of};

/// Tokens of a request, at most.
const READ_MAX: u32 = 2048;
/// Heads of attention.
const HEADS: u32 = 2;
/// Steps that the models with attention over a source make.
const READING_STEPS: u32 = 8;
/// Tokens that the decoder writes at most.
const WRITTEN_MAX: u32 = 200;
/// Rows that local attention sees.
const NEAREST: u32 = 16;
/// The largest nodes that a session may hold at once.
const LIVE_MAX: u32 = 3 * READ_MAX;

struct Attention {
    model: Model,
    is_session: bool,
}

enum Model {
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
        let is_session = parameters.truth_or("session", false)?;
        let mut built = ModelBuilder::new();
        built.input("ids", Int64, &[-1]).output("y", Fp32, &[-1, i64::from(outputs)]);
        if is_session {
            built.live_max(LIVE_MAX);
        }
        let model = match name {
            "decoder" => Model::Decoder(cells::decoder(&mut built, hidden, outputs)),
            "luong" => Model::Luong(cells::luong(&mut built, hidden)),
            "bahdanau" => Model::Bahdanau(cells::bahdanau(&mut built, hidden)),
            "transducer" => {
                let [blank, most] = [parameters.index("blank")?, parameters.positive("most")?];
                Model::Transducer(cells::transducer(&mut built, hidden, outputs, [blank, most]), most)
            }
            "local" => Model::Local(cells::local(&mut built, hidden, outputs)),
            "pooling" => Model::Pooling(cells::pooling(&mut built, hidden, outputs)),
            _ => return Err(Parameters::refusal("model", "is none of those that are here")),
        };
        parameters.refuse_unknown()?;
        Ok((Self { model, is_session }, built.finish()))
    }

    fn unfold(&self, request: &Request) -> Result<Growth, Refusal> {
        if self.is_session { self.first_part(request) } else { self.whole(request) }
    }

    fn resume(&self, state: &[u8], event: &Event, request: &Request) -> Result<Reaction, Refusal> {
        self.next(state, event, request)
    }
}

impl Attention {
    /// A request whose tokens are all there.
    fn whole(&self, request: &Request) -> Result<Growth, Refusal> {
        let mut growth = GrowthBuilder::new();
        let input = request.input("ids")?;
        if let Model::Decoder(cells) = &self.model {
            let ids = input.ints()?;
            let [prompt @ .., last] = &ids[..] else { return Err(Refusal::InvalidInput("there is no token".into())) };
            let [embed, middle, _] = cells;
            let read = (!prompt.is_empty()).then(|| graphs::prompt(&mut growth, [embed, middle], (prompt, 0), Reading::Whole));
            let y = graphs::written(&mut growth, cells, read, (*last, prompt.len() as u32));
            growth.output_all("y", y);
            return Ok(growth.finish());
        }
        let ids = input.sequence(Int64, &[], READ_MAX)?;
        let mut read = |reader: &Cell| graphs::read(&mut growth, reader, ids, Reading::Whole);
        let y = match &self.model {
            Model::Luong([reader, step, attend]) => {
                let read = read(reader);
                graphs::luong(&mut growth, step, attend, of(read, 0, reader, "h"))
            }
            Model::Bahdanau([reader, attend, step]) => {
                let read = read(reader);
                graphs::bahdanau(&mut growth, attend, step, ["h", "known"].map(|output| of(read, 0, reader, output)))
            }
            Model::Transducer([reader, step], most) => {
                let read = read(reader);
                graphs::transduced(&mut growth, step, (of(read, 0, reader, "known"), 0..ids.count), *most, None).output("y")
            }
            Model::Pooling([reader, pool]) => {
                let read = read(reader);
                graphs::pooling(&mut growth, pool, of(read, 0, reader, "h"))
            }
            Model::Local(cells) => graphs::local(&mut growth, cells, ids, Reading::Whole),
            Model::Decoder(_) => unreachable!("a prompt is read otherwise"),
        };
        growth.output_all("y", y);
        Ok(growth.finish())
    }
}

export_plugin!(Attention);

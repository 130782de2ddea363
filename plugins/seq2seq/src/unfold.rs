//! A request's graph: a chain that reads, and a chain that writes from where it ended; and tokens to text, as they come.

use cellwright_guest::ChainHandle;
use cellwright_guest::prelude::*;

use crate::model::{Decoder, Seq2seq};
use crate::options::Mode;
use crate::text;

pub(crate) fn unfold(model: &Seq2seq, request: &Request) -> Result<Growth, Refusal> {
    let (count, tokens) = source(model, request)?;
    let mut growth = GrowthBuilder::new();
    let encoder = growth.chain(count).stage(&model.encoder).input("token", tokens).add();
    let token = decode(model, &mut growth, &encoder);
    match model.options.mode {
        Mode::Ids { .. } => growth.output_streamed(&model.options.output, token),
        Mode::Text { .. } => growth.watch_every(1, vec![token]),
    };
    Ok(growth.finish())
}

/// How many tokens there are, and what each step takes.
fn source(model: &Seq2seq, request: &Request) -> Result<(u32, Source), Refusal> {
    let options = &model.options;
    let input = request.input(&options.input)?;
    let Mode::Text { reader, .. } = &options.mode else {
        let tokens = input.sequence(Datatype::Int64, &[], options.max_length)?;
        return Ok((tokens.count, if options.reverse { tokens.backward() } else { tokens.forward() }));
    };
    let text = input.text()?;
    if text::is_longer_than(&text, options.max_length) {
        return Err(input.refusal(format!("has {} bytes, and this model takes at most {} characters", text.len(), options.max_length)));
    }
    let mut tokens = reader.read(&text).map_err(|sentence| input.refusal(sentence))?;
    if tokens.is_empty() {
        return Err(input.refusal("is an empty text: there is nothing to read"));
    }
    let max = options.max_length;
    let count = u32::try_from(tokens.len()).ok().filter(|count| *count <= max);
    let count = count.ok_or_else(|| input.refusal(format!("has {} characters, and this model takes at most {max}", tokens.len())))?;
    if options.reverse {
        tokens.reverse();
    }
    Ok((count, Source::Ints(tokens)))
}

/// The chain that writes; gives its token.
fn decode(model: &Seq2seq, growth: &mut GrowthBuilder, encoder: &ChainHandle) -> OutputRef {
    let options = &model.options;
    let go = Tensor::of_ints("", &[], &[options.go.into()]);
    let (cell, project) = match &model.decoder {
        Decoder::Whole(cell) => (cell, None),
        Decoder::Split { step, project } => (step, Some(project)),
    };
    let mut chain = growth.chain(options.max_steps).stage(cell).input("token", Source::Literal(go));
    for state in options.family.states() {
        chain = chain.input(state, encoder.output(state).last());
    }
    if let Some(project) = project {
        chain = chain.stage(project).sibling("h", 0, "h").feedback((1, "token"), (0, "token"));
    }
    chain.stop("stop").add().output("token")
}

/// The text of tokens that have just been written, each a part of its own, however many of them come at once.
pub(crate) fn render(model: &Seq2seq, event: &Event) -> Result<Reaction, Refusal> {
    let (Mode::Text { target, .. }, Event::Values(values)) = (&model.options.mode, event) else {
        return Err(Refusal::Internal("only a text's tokens are watched here".into()));
    };
    let part = |text: &str| Tensor::of_text(&model.options.output, text);
    let (mut emit, mut ended) = (Vec::new(), false);
    for token in values.iter().map(Tensor::ints).collect::<Result<Vec<_>, _>>()?.concat() {
        match usize::try_from(token).ok().and_then(|token| target.get(token)) {
            Some(character) => emit.push(part(character.encode_utf8(&mut [0; 4]))),
            None if token == i64::from(model.options.eos) => ended = true,
            None => {
                return Err(Refusal::Internal(format!("the model wrote token {token}, which is neither in `target_alphabet` nor `eos`")));
            }
        }
    }
    // The end is told even where no text goes with it, so that a response that says nothing still has its tensor; of any other the host sends
    // no part that adds nothing.
    if ended && emit.is_empty() {
        emit.push(part(""));
    }
    Ok(Reaction { emit, growth: None })
}

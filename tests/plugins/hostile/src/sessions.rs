//! An honest session: `sum` goes on over all chunks, and is sent after each of them.

use crate::cellwright::plugin::request;
use crate::cellwright::plugin::types::{Continuation, Datatype, Event, Growth, Pace, Reaction, Refusal, Rows, Source, Tensor};
use crate::description::WIDTH;
use crate::graphs;

/// An honest session. Its state is this, and how many chains there were before the last.
const HONEST: &str = "session";
/// One that keeps the first chain for ever, though it never looks at it again.
const HOARDING: &str = "hoarding-session";
/// An honest one that waits for the next chunk at once, and answers with the second.
const WAITING: &str = "waiting-session";
const KINDS: [&str; 3] = [HONEST, HOARDING, WAITING];

/// The first growth of a session, over its first chunk; none if it is to be something else.
pub fn first(behaviour: &str, rows: u32) -> Option<Growth> {
    let kind = KINDS.into_iter().find(|kind| *kind == behaviour)?;
    let next = if kind == WAITING { waiting(kind, 0).next } else { Some(watching(kind, 0)) };
    Some(Growth { outputs: vec![], next, ..graphs::honest(rows) })
}

/// What follows; none if the state is not a session's. Chunk n is tensor n and chain n.
pub fn next(state: &[u8], event: &Event) -> Option<Result<Reaction, Refusal>> {
    let (kind, chain) = core::str::from_utf8(state).ok()?.split_once(' ')?;
    let kind = KINDS.into_iter().find(|known| *known == kind)?;
    let chain = chain.parse().ok()?;
    Some(match event {
        Event::Values(values) => Ok(Reaction { emit: vec![last_row(values)], growth: Some(waiting(kind, chain)) }),
        Event::Input(tensor) => over(*tensor, (kind, chain)),
        Event::EndOfInput => Ok(Reaction { emit: vec![], growth: None }),
    })
}

/// Goes on over that tensor from the end of that chain. Earlier tensors were let go, so it is the first that the request still has.
fn over(tensor: u32, (kind, chain): (&str, u32)) -> Result<Reaction, Refusal> {
    let rows = request::tensors().first().and_then(|chunk| chunk.shape.first().copied()).unwrap_or(0);
    let rows = u32::try_from(rows).ok().filter(|rows| *rows > 0);
    let rows = rows.ok_or_else(|| Refusal::InvalidInput("a chunk of a session must have at least one row".into()))?;
    let mut summing = graphs::summing(rows);
    summing.stages[0].inputs = vec![Source::Rows(Rows { tensor, at: graphs::EVERY }), Source::Last(graphs::output(chain))];
    Ok(Reaction {
        emit: vec![],
        growth: Some(Growth { chains: vec![summing], outputs: vec![], cancel: vec![], next: Some(watching(kind, chain + 1)) }),
    })
}

fn last_row(values: &[Tensor]) -> Tensor {
    let data = values.first().map(|values| values.data.as_slice()).unwrap_or_default();
    let row = data.len().saturating_sub(4 * WIDTH as usize);
    Tensor { name: "sum".into(), datatype: Datatype::Fp32, shape: vec![WIDTH.into()], data: data[row..].to_vec() }
}

/// To be shown the sum after that chain.
fn watching(kind: &str, chain: u32) -> Continuation {
    let sum = vec![graphs::output(chain)];
    let first = (kind == HOARDING && chain > 0).then(|| graphs::output(0));
    Continuation {
        watch: sum.clone(),
        pace: Pace::All,
        keep: first.into_iter().chain(sum).collect(),
        keep_tensors_from: chain + 1,
        state: format!("{kind} {chain}").into_bytes(),
    }
}

/// Nothing to run until more input comes.
fn waiting(kind: &str, chain: u32) -> Growth {
    Growth { chains: vec![], outputs: vec![], cancel: vec![], next: Some(Continuation { watch: vec![], ..watching(kind, chain) }) }
}

//! Faults of plugins that ask to be called again.

use crate::cellwright::plugin::types::{Chain, Continuation, Datatype, Growth, Pace, Reaction, Refusal, Source, Tensor};
use crate::{faults, graphs};

/// The first growth of a behaviour that continues; none if it is not one of these. The state names what `next` does.
pub fn first(behaviour: &str, rows: u32) -> Option<Growth> {
    let state = match behaviour {
        "resume-honest"
        | "resume-forever"
        | "resume-trap"
        | "resume-loop"
        | "resume-not-kept"
        | "resume-too-large"
        | "resume-emits-unknown" => behaviour.strip_prefix("resume-")?.as_bytes().to_vec(),
        "resume-large-state" => vec![b'x'; 32 << 20],
        _ => return None,
    };
    let mut growth = Growth { chains: vec![graphs::summing(rows)], ..graphs::honest(rows) };
    growth.outputs.clear();
    growth.next = Some(watch(0, state, behaviour != "resume-not-kept"));
    Some(growth)
}

/// What `resume` answers: the honest one adds a second chain that sums on from where the first ended.
pub fn next(state: &[u8]) -> Result<Reaction, Refusal> {
    let state = core::str::from_utf8(state).unwrap_or_default();
    faults::commit(state);
    let (kind, turn) = state.split_once(' ').unwrap_or((state, "0"));
    let turn: u32 = turn.parse().unwrap_or(0);
    let mut growth = Growth { chains: vec![going_on(turn)], outputs: vec![], cancel: vec![], next: None };
    match kind {
        "honest" | "not-kept" => growth.outputs = vec![graphs::answer(1)],
        "forever" => growth.next = Some(watch(turn + 1, format!("forever {}", turn + 1).into_bytes(), true)),
        "too-large" => growth.chains = (0..1000).map(going_on).collect(),
        "emits-unknown" => {
            let tensor = Tensor { name: "product".into(), datatype: Datatype::Fp32, shape: vec![1], data: vec![0; 4] };
            return Ok(Reaction { emit: vec![tensor], growth: None });
        }
        _ => return Err(Refusal::Internal(format!("there is no state `{kind}`"))),
    }
    Ok(Reaction { emit: vec![], growth: Some(growth) })
}

/// One step over row 0, on top of the last step of that chain.
fn going_on(chain: u32) -> Chain {
    let mut going_on = graphs::summing(1);
    going_on.stages[0].inputs[1] = Source::Last(graphs::output(chain));
    going_on
}

fn watch(chain: u32, state: Vec<u8>, keep: bool) -> Continuation {
    let kept = if keep { vec![graphs::output(chain)] } else { vec![] };
    Continuation { watch: vec![graphs::output(chain)], pace: Pace::All, keep: kept, keep_tensors_from: 0, state }
}

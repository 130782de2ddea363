//! Faults of plugins that ask to be called again.

use crate::cellwright::plugin::types::{
    Chain, Continuation, Datatype, Event, Gathered, Growth, Pace, Reaction, Refusal, ResponseTensor, Source, Tensor,
};
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
        | "resume-emits-unknown"
        | "resume-emits-wrong-shape"
        | "resume-emits-wrong-datatype"
        | "resume-every"
        | "resume-picky"
        | "resume-waits"
        | "resume-overtakes"
        | "resume-overtakes-parts" => behaviour.strip_prefix("resume-")?.as_bytes().to_vec(),
        "resume-large-state" => vec![b'x'; 32 << 20],
        _ => return None,
    };
    let mut growth = Growth { chains: vec![graphs::summing(rows)], ..graphs::honest(rows) };
    growth.outputs.clear();
    let mut next = watch(0, state, behaviour != "resume-not-kept");
    match behaviour {
        "resume-every" => next.pace = Pace::Every(2),
        "resume-waits" => next.watch.clear(),
        // For a description with `sums`. What is watched is there long before the rest.
        "resume-overtakes" | "resume-overtakes-parts" => {
            growth.chains.push(graphs::summing(1));
            growth.outputs = vec![graphs::answer(1), sums(0, behaviour == "resume-overtakes-parts")];
            next = watch(1, next.state, false);
        }
        _ => {}
    }
    growth.next = Some(next);
    Some(growth)
}

/// What `resume` answers: the honest one adds a second chain that sums on from where the first ended.
pub fn next(state: &[u8], event: &Event) -> Result<Reaction, Refusal> {
    let state = core::str::from_utf8(state).unwrap_or_default();
    faults::commit(state);
    let (kind, turn) = state.split_once(' ').unwrap_or((state, "0"));
    let turn: u32 = turn.parse().unwrap_or(0);
    let mut growth = Growth { chains: vec![going_on(turn)], outputs: vec![], cancel: vec![], next: None };
    match kind {
        "picky" if faults::unbearable() => faults::commit("trap"),
        "honest" | "not-kept" | "picky" => growth.outputs = vec![graphs::answer(1)],
        "forever" => growth.next = Some(watch(turn + 1, format!("forever {}", turn + 1).into_bytes(), true)),
        "too-large" => growth.chains = (0..1000).map(going_on).collect(),
        // Honest: two more sums, whatever the first chain has come to; a row of nothing before them, and one after.
        "overtakes" | "overtakes-parts" => {
            let Reaction { emit, .. } = emit("sums", Datatype::Fp32, 1, vec![0; 16])?;
            let emit = emit.into_iter().map(|row| Tensor { shape: vec![1, 4], ..row }).collect();
            growth.chains.clear();
            if turn == 0 {
                growth.chains = vec![graphs::summing(2)];
                growth.outputs = vec![sums(2, kind == "overtakes-parts")];
                growth.next = Some(watch(2, format!("{kind} 1").into_bytes(), false));
            }
            return Ok(Reaction { emit, growth: Some(growth) });
        }
        "emits-unknown" => return emit("product", Datatype::Fp32, 1, vec![0; 4]),
        "emits-wrong-shape" => return emit("sum", Datatype::Fp32, 3, vec![0; 12]),
        "emits-wrong-datatype" => return emit("sum", Datatype::Int32, 4, vec![0; 16]),
        // The last of the sums that are new, if there are any.
        "every" => {
            let Event::Values(values) = event else { return Ok(Reaction { emit: vec![], growth: None }) };
            let sums = values.first().map(|values| values.data.as_slice()).unwrap_or_default();
            let Some(sum) = sums.rchunks(16).next() else { return Ok(Reaction { emit: vec![], growth: None }) };
            return emit("sum", Datatype::Fp32, 4, sum.to_vec());
        }
        // For more input, whatever it is told.
        "waits" => {
            growth.chains.clear();
            growth.next = Some(Continuation { watch: vec![], ..watch(0, b"waits".to_vec(), true) });
        }
        _ => return Err(Refusal::Internal(format!("there is no state `{kind}`"))),
    }
    Ok(Reaction { emit: vec![], growth: Some(growth) })
}

/// Every step of a chain, of a description with `sums`.
fn sums(chain: u32, stream: bool) -> ResponseTensor {
    ResponseTensor { name: "sums".into(), from: Gathered::All(graphs::output(chain)), stream }
}

fn emit(name: &str, datatype: Datatype, extent: u64, data: Vec<u8>) -> Result<Reaction, Refusal> {
    Ok(Reaction { emit: vec![Tensor { name: name.into(), datatype, shape: vec![extent], data }], growth: None })
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

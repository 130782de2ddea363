//! Growths: the honest one, and those that the host must refuse whole.

use crate::cellwright::plugin::types::{
    Affine, Chain, Datatype, Extent, Feedback, Gathered, Growth, Node, Nodes, OutputRef, ResponseTensor, Rows, Sibling, Source, Span,
    SpanOf, Stage, Steps, Tensor,
};
use crate::description::{HEAVY, WIDTH};

/// More nodes than a host takes.
const MANY: u32 = 1 << 21;

/// Steps that take seconds.
const SLOW: u32 = 500_000;

/// 0, 1, 2, …
pub const EVERY: Affine = Affine { first: 0, stride: 1, from_end: false };

/// The growth of that behaviour for so many rows; none if there is no such behaviour.
pub fn of(behaviour: &str, rows: u32) -> Option<Growth> {
    let mut growth = honest(rows);
    let chain = &mut growth.chains[0];
    match behaviour {
        "honest" | "picky" => {}
        // For a description with `sums`.
        "stream-all" => growth.outputs.push(ResponseTensor { name: "sums".into(), from: Gathered::All(output(0)), stream: true }),
        "stream-last" => growth.outputs[0].stream = true,

        // For the description `heavy`: steps that take long, the same of denormal numbers, and much memory for a long time.
        "heavy" => growth.chains.push(heavy(rows, 0.0)),
        "heavy-denormal" => growth.chains.push(heavy(rows, 1e-39)),
        "hold" => {
            let slow = Chain { stages: vec![Stage { cell: 0, inputs: vec![first_row(), Source::Zeros] }], ..summing(SLOW) };
            let read = |chain: u32| Source::Steps(Steps { of: output(chain), at: EVERY });
            growth.chains.extend([slow, one(2, rows, Source::Last(output(1))), one(3, rows, read(2))]);
            growth.outputs[0] = answer(3);
        }

        "many-chains-beside" => growth.chains.extend((0..1000).map(|_| chain_of(1, Source::Zeros))),

        // Cyclic, in every way the ABI's types can spell.
        "cycle-own-step" => {
            chain.feedback.clear();
            chain.stages[0].inputs[1] = nodes(0, rows, |step| step);
        }
        "cycle-later-step" => {
            chain.feedback.clear();
            chain.stages[0].inputs[1] = nodes(0, rows, |step| (step + 1) % rows);
        }
        "cycle-two-chains" => {
            growth.chains.push(chain_of(rows, nodes(0, rows, |step| step)));
            growth.chains[0].stages[0].inputs[1] = nodes(1, rows, |step| step);
            growth.chains[0].feedback.clear();
        }
        "cycle-later-chain" => {
            growth.chains.push(chain_of(rows, Source::Zeros));
            growth.chains[0].stages[0].inputs[1] = Source::Last(output(1));
        }
        "cycle-like" => chain.length = Extent::Like(0),
        "cycle-sibling" => chain.stages[0].inputs[0] = Source::Sibling(Sibling { stage: 0, output: 0 }),

        // Oversized.
        "long-chain" => chain.length = Extent::Fixed(u32::MAX),
        "many-chains" => growth.chains = (0..100_000).map(|_| chain_of(1, Source::Zeros)).collect(),
        "many-long-chains" => growth.chains = (0..64).map(|_| endless_chain()).collect(),
        "many-nodes" => {
            growth.chains.push(chain_of(1, Source::Zeros));
            growth.chains.push(chain_of(MANY, nodes(1, MANY, |_| 0)));
        }
        "large-literal" => chain.stages[0].inputs[1] = literal(vec![1 << 20], 1 << 22),

        // Out of range.
        "no-such-row" => chain.stages[0].inputs[0] = Source::Rows(Rows { tensor: 0, at: Affine { first: 1, ..EVERY } }),
        "row-below-zero" => {
            chain.stages[0].inputs[0] = Source::Rows(Rows { tensor: 0, at: Affine { first: 0, stride: -1, from_end: false } })
        }
        "stride-overflow" => {
            chain.stages[0].inputs[0] = Source::Rows(Rows { tensor: 0, at: Affine { first: i64::MAX, stride: i32::MAX, from_end: false } })
        }
        "frame-too-far" => chain.stages[0].inputs[0] = Source::Frames(Rows { tensor: 0, at: Affine { first: i64::MIN, ..EVERY } }),
        "endless-span" => {
            let span = Span { of: SpanOf::Tensor(0), at: EVERY, every: u32::MAX, count: Some(u32::MAX) };
            chain.stages[0].inputs[0] = Source::Many(vec![span; 1000]);
        }
        "no-such-tensor" => chain.stages[0].inputs[0] = Source::Rows(Rows { tensor: 7, at: EVERY }),
        "no-such-cell" => chain.stages[0].cell = 9,
        "no-such-chain" => chain.stages[0].inputs[1] = Source::Last(output(u32::MAX)),
        "no-such-step" => {
            growth.chains.push(chain_of(1, Source::Steps(Steps { of: output(0), at: Affine { first: rows.into(), ..EVERY } })));
        }
        "no-such-stage" => growth.outputs[0].from = Gathered::Last(OutputRef { chain: 0, stage: 3, output: 0 }),
        "no-such-output" => growth.outputs[0].from = Gathered::Last(OutputRef { chain: 0, stage: 0, output: 5 }),
        "no-such-name" => growth.outputs[0].name = "product".into(),
        "no-such-feedback" => chain.feedback[0].input = 17,
        "feedback-not-carried" => chain.feedback[0].input = 0,
        "cancel-unknown" => growth.cancel = vec![400],

        // Of the wrong form.
        "no-chains" => growth.chains.clear(),
        "no-stages" => chain.stages.clear(),
        "no-steps" => chain.length = Extent::Fixed(0),
        "too-few-inputs" => drop(chain.stages[0].inputs.pop()),
        "wrong-literal" => chain.stages[0].inputs[1] = literal(vec![WIDTH.into()], 3),
        "wrong-shape" => chain.stages[0].inputs[1] = literal(vec![2], 8),
        "integers-for-floats" => chain.stages[0].inputs[1] = Source::Ints(vec![1; rows as usize]),
        "stop-not-bool" => chain.stop = Some(Sibling { stage: 0, output: 0 }),
        "no-answer" => growth.outputs.clear(),
        "answer-twice" => growth.outputs.push(answer(0)),
        _ => return None,
    }
    Some(growth)
}

/// The running sum over all rows.
pub fn honest(rows: u32) -> Growth {
    Growth { chains: vec![summing(rows)], outputs: vec![answer(0)], cancel: vec![], next: None }
}

/// The chain that sums the rows of tensor 0.
pub fn summing(rows: u32) -> Chain {
    Chain {
        stages: vec![Stage { cell: 0, inputs: vec![Source::Rows(Rows { tensor: 0, at: EVERY }), Source::Zeros] }],
        length: Extent::Fixed(rows),
        feedback: vec![Feedback { stage: 0, output: 0, to_stage: 0, input: 1 }],
        stop: None,
        series: None,
    }
}

/// The last step of a chain as the model's answer.
pub fn answer(chain: u32) -> ResponseTensor {
    ResponseTensor { name: "sum".into(), from: Gathered::Last(output(chain)), stream: false }
}

/// The cell's one output, in that chain.
pub fn output(chain: u32) -> OutputRef {
    OutputRef { chain, stage: 0, output: 0 }
}

/// Independent steps over row 0, with that state.
fn chain_of(steps: u32, before: Source) -> Chain {
    Chain {
        stages: vec![Stage { cell: 0, inputs: vec![first_row(), before] }],
        length: Extent::Fixed(steps),
        feedback: vec![],
        stop: None,
        series: None,
    }
}

fn first_row() -> Source {
    Source::Rows(Rows { tensor: 0, at: Affine { stride: 0, ..EVERY } })
}

/// Independent steps of a cell with one input.
fn one(cell: u32, steps: u32, input: Source) -> Chain {
    Chain { stages: vec![Stage { cell, inputs: vec![input] }], length: Extent::Fixed(steps), feedback: vec![], stop: None, series: None }
}

/// Steps of the cell `heavy`, each of the one before, the first of that number everywhere.
fn heavy(steps: u32, first: f32) -> Chain {
    let data = first.to_le_bytes().repeat(HEAVY as usize);
    let first = Tensor { name: String::new(), datatype: Datatype::Fp32, shape: vec![HEAVY.into()], data };
    Chain { feedback: vec![Feedback { input: 0, ..summing(1).feedback[0] }], ..one(1, steps, Source::Literal(first)) }
}

fn endless_chain() -> Chain {
    chain_of(u32::MAX, Source::Zeros)
}

fn nodes(chain: u32, steps: u32, named: impl Fn(u32) -> u32) -> Source {
    Source::Nodes(Nodes { stage: 0, output: 0, of: (0..steps).map(|step| Node { chain, step: named(step) }).collect() })
}

fn literal(shape: Vec<u64>, bytes: usize) -> Source {
    Source::Literal(Tensor { name: String::new(), datatype: Datatype::Fp32, shape, data: vec![0; bytes] })
}

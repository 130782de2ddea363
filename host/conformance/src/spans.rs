//! Cells with ragged inputs: each operation over spans against the 64-bit reference, and each row alone against the same row in company.

use std::collections::BTreeMap;
use std::sync::Arc;

use cellwright_cell_graph::Datatype::{Bool, Fp32, Int64};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Retention, Run, RunOf, Source};
use cellwright_cell_graph::{Datatype, Port, Tensor, TypedCell, UnfoldedGrowth};

use super::cells::Draft;
use super::driver::{Driver, growth_of, independent};
use super::{Make, Scope, Tolerance};
use crate::reference::{Elements, Reference};
use cellwright_backend::CellTypeId;
use cellwright_backend::task::RowError;

/// Rows that spans are taken of: more than two blocks of a running softmax.
const ROWS: u32 = 150;
/// Steps that see them, of which some are nodes,
const STEPS: u32 = 150;
/// and these in any case: blocks of rows begin there.
const BORDERS: [u32; 6] = [1, 2, 63, 64, 65, STEPS - 1];

/// Runs every case with every form of span.
///
/// # Panics
/// If a result is not near enough to the reference's, or has other bits in company.
pub fn run(make: &mut Make<'_>, tolerance: Tolerance, scope: &Scope) {
    for precision in scope.precisions.iter().copied() {
        for (number, draft) in cases().into_iter().enumerate() {
            let exact = draft.clone().resolve();
            let cell = draft.at(precision).resolve();
            if precision == Precision::F32
                || cell.operations.iter().any(|of| matches!(of.compute, cellwright_cell_graph::typed::Compute::Linear { .. }))
            {
                check(make, (&cell, &exact), tolerance, &mut Rng::new(300 + number as u64));
            }
        }
    }
    in_parts(make);
}

fn weight(name: &str, shape: &[usize], salt: u64) -> Tensor {
    let mut rng = Rng::new(salt);
    Tensor::from_f32(name, shape, &(0..shape.iter().product()).map(|_| rng.float()).collect::<Vec<f32>>())
}

/// What cases do: each gives `y`, and some more.
#[must_use]
pub fn cases() -> Vec<Draft> {
    let axis = |draft: Draft, keep: i64| draft.with("axes", &[1_i64][..]).with("keepdims", keep);
    let sum = |draft: Draft, of: &str, shape: &[usize]| axis(draft.operator("ReduceSum", &[of], &["y"]), 0).output("y", Fp32, shape);
    let mut cases = Vec::new();
    for kind in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"] {
        let draft = axis(Draft::new(kind).ragged("r", Fp32, &[37]).operator(kind, &["r"], &["y"]), 0);
        cases.push(draft.output("y", Fp32, &[37]));
    }
    let draft = Draft::new("mean of all").ragged("r", Fp32, &[3, 5]).operator("ReduceMean", &["r"], &["y"]);
    cases.push(draft.with("axes", &[1_i64, 3][..]).output("y", Fp32, &[1, 3, 1]));
    for kind in ["Softmax", "LogSoftmax"] {
        let draft = Draft::new(&format!("{kind} over a span")).ragged("r", Fp32, &[9]).ragged("v", Fp32, &[9]);
        let draft = draft.operator(kind, &["r"], &["s"]).with("axis", 1).operator("Mul", &["s", "v"], &["z"]);
        cases.push(sum(draft, "z", &[9]));
        let draft = Draft::new(&format!("{kind} within rows")).ragged("r", Fp32, &[9]).operator(kind, &["r"], &["s"]);
        cases.push(sum(draft, "s", &[9]));
    }
    let draft = Draft::new("ArgMax").ragged("r", Fp32, &[4]).operator("ArgMax", &["r"], &["y"]).with("axis", 1).with("keepdims", 0);
    let draft = draft.operator("ArgMax", &["r"], &["last"]).with("axis", 1).with("select_last_index", 1);
    cases.push(draft.output("y", Int64, &[4]).output("last", Int64, &[1, 4]));
    for largest in [0, 1] {
        let draft = Draft::new("TopK").ragged("r", Fp32, &[3]).operator("TopK", &["r"], &["y", "at"]).with("axis", 1).with("k", 4);
        cases.push(draft.with("largest", largest).output("y", Fp32, &[4, 3]).output("at", Int64, &[4, 3]));
    }
    // Of some spans there are such rows, of others not.
    for (datatype, shape) in [(Fp32, &[3, 2][..]), (Int64, &[]), (Bool, &[5])] {
        let draft = Draft::new(&format!("rows of {datatype:?} by number")).ragged("r", datatype, shape).known("at", Int64, &[2, 1]);
        let draft = draft.operator("GatherND", &["r", "at"], &["y"]).with("batch_dims", 1);
        cases.push(draft.output("y", datatype, &[&[2], shape].concat()));
    }
    let draft = Draft::new("a row computed, by a number computed").ragged("r", Fp32, &[3]).known("at", Int64, &[1]);
    let draft = draft.operator("Neg", &["at"], &["back"]).operator("Tanh", &["r"], &["z"]);
    let draft = draft.operator("GatherND", &["z", "back"], &["y"]).with("batch_dims", 1);
    cases.push(draft.output("y", Fp32, &[3]));
    for (exclusive, reverse) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let draft = Draft::new("CumSum").ragged("r", Fp32, &[5]).operator("CumSum", &["r"], &["s"]).with("axis", 1);
        let draft = draft.with("exclusive", exclusive).with("reverse", reverse);
        cases.push(sum(draft.operator("Tanh", &["s"], &["z"]), "z", &[5]));
    }
    cases.push(bahdanau());
    cases.push(luong());
    let draft = Draft::new("rows").ragged("r", Fp32, &[12]).ragged("n", Int64, &[]).ragged("on", Bool, &[]).known("q", Fp32, &[1, 12]);
    let draft = draft.weight(weight("table", &[5, 12], 1)).weight(weight("scale", &[12], 2)).weight(weight("bias", &[12], 3));
    let draft = draft.operator("Gather", &["table", "n"], &["t"]).operator("Add", &["r", "t"], &["a"]);
    let draft = draft.operator("LayerNormalization", &["a", "scale", "bias"], &["b"]).operator("Sub", &["b", "q"], &["c"]);
    let draft = draft.operator("Split", &["c"], &["c1", "c2"]).with("axis", 2).operator("Concat", &["c2", "c1"], &["d"]).with("axis", -1);
    let draft = draft.operator("Unsqueeze", &["on"], &["on2"]).with("axes", &[2_i64][..]).operator("Where", &["on2", "d", "r"], &["e"]);
    let draft = draft.operator("Reshape", &["e"], &["f"]).with("shape", &[0_i64, -1, 3, 4][..]);
    cases.push(sum(draft, "f", &[3, 4]));
    for (heads, key_heads, depth, size, queries) in
        [(1, 1, 8, 8, 1), (4, 4, 6, 10, 1), (6, 2, 16, 7, 1), (2, 1, 5, 4, 3), (12, 12, 32, 32, 1), (2, 2, 64, 64, 2)]
    {
        cases.push(attention((heads, key_heads), (depth, size), queries).output("y", Fp32, &[queries, heads * size]));
    }
    let capped = attention((2, 2), (8, 8), 1).with("softcap", 3.0).with("scale", 0.9);
    cases.push(capped.named("capped attention").output("y", Fp32, &[1, 16]));
    let masked = attention_over(Draft::new("masked attention").ragged("m", Fp32, &[2, 1]), &["q", "k", "v", "mask"], (2, 1), (8, 8), 3);
    cases.push(turned(masked, "m").output("y", Fp32, &[3, 16]));
    let chosen = attention_over(Draft::new("attention to some").ragged("m", Bool, &[1, 3]), &["q", "k", "v", "mask"], (2, 2), (8, 8), 3);
    cases.push(turned(chosen, "m").output("y", Fp32, &[3, 16]));
    cases.push(layer());
    for interleaved in [0, 1] {
        cases.push(rotary(interleaved));
    }
    cases.extend(concatenations());
    cases
}

/// Rows of several spans behind one another, and a node's own rows among them.
fn concatenations() -> Vec<Draft> {
    let concat = |draft: Draft, parts: &[&str], y: &str| draft.operator("Concat", parts, &[y]).with("axis", 1);
    let sum = |draft: Draft, of: &str, y: &str| draft.operator("ReduceSum", &[of], &[y]).with("axes", &[1_i64][..]).with("keepdims", 0);
    let mut cases = Vec::new();
    for (datatype, shape) in [(Fp32, &[3, 2][..]), (Int64, &[]), (Bool, &[5])] {
        let draft = Draft::new(&format!("rows of {datatype:?} joined")).ragged("a", datatype, shape).ragged("b", datatype, shape);
        let two = [&[2], shape].concat();
        let draft = draft.known("own", datatype, &two).known("at", Int64, &[2, 1]).operator("Neg", &["at"], &["back"]);
        let draft = concat(draft, &["a", "own", "b"], "all").operator("GatherND", &["all", "at"], &["y"]).with("batch_dims", 1);
        let draft = draft.operator("GatherND", &["all", "back"], &["z"]).with("batch_dims", 1);
        cases.push(draft.output("y", datatype, &two).output("z", datatype, &two));
    }
    // A cache, what is new in it, and a node's own row, with a mask whose ragged axis is the last.
    let draft = Draft::new("attention to a cache").ragged("kc", Fp32, &[16]).ragged("vc", Fp32, &[10]).ragged("mc", Fp32, &[2, 1]);
    let draft = draft.ragged("kn", Fp32, &[16]).ragged("vn", Fp32, &[10]).ragged("mn", Fp32, &[2, 1]);
    let draft = draft.known("q", Fp32, &[3, 16]).known("kq", Fp32, &[1, 16]).known("vq", Fp32, &[1, 10]).known("mq", Fp32, &[2, 1, 1]);
    let draft = concat(concat(draft, &["kc", "kn", "kq"], "k"), &["vc", "vn", "vq"], "v");
    let turn = |draft: Draft, m: &str, y: &str| draft.operator("Transpose", &[m], &[y]).with("perm", &[0_i64, 2, 3, 1][..]);
    let draft = turn(turn(draft, "mc", "ct"), "mn", "nt").operator("Concat", &["ct", "nt", "mq"], &["m"]).with("axis", 3);
    let draft = draft.operator("Attention", &["q", "k", "v", "m"], &["y"]).with("q_num_heads", 2).with("kv_num_heads", 2);
    let draft = draft.operator("Attention", &["q", "k", "v"], &["z"]).with("q_num_heads", 2).with("kv_num_heads", 2);
    cases.push(draft.output("y", Fp32, &[3, 10]).output("z", Fp32, &[3, 10]));
    // What is computed joins what is given, and is computed with.
    let draft = Draft::new("rows joined and computed").ragged("a", Fp32, &[6]).ragged("b", Fp32, &[6]).known("c", Fp32, &[5, 3]);
    let draft = draft.weight(weight("w", &[6, 5], 12)).known("q", Fp32, &[1, 5]).operator("Tanh", &["a"], &["t"]);
    let draft = concat(draft, &["t", "b", "a"], "all").operator("MatMul", &["all", "w"], &["l"]).operator("Add", &["l", "q"], &["z"]);
    let draft = draft.operator("Softmax", &["z"], &["s"]).with("axis", 1).operator("CumSum", &["z"], &["r"]).with("axis", 1);
    let draft = draft.operator("Mul", &["s", "r"], &["p"]).operator("MatMul", &["z", "c"], &["x"]);
    let draft = draft.operator("Transpose", &["s"], &["st"]).with("perm", &[0_i64, 2, 1][..]).operator("MatMul", &["st", "x"], &["mix"]);
    cases.push(sum(draft, "p", "y").output("y", Fp32, &[5]).output("mix", Fp32, &[5, 3]));
    let draft = concat(Draft::new("the best of joined rows").ragged("a", Fp32, &[3]).ragged("b", Fp32, &[3]), &["b", "a"], "all");
    let draft = draft.operator("ArgMax", &["all"], &["at"]).with("axis", 1).operator("TopK", &["all"], &["y"]).with("axis", 1).with("k", 4);
    cases.push(draft.output("at", Int64, &[1, 3]).output("y", Fp32, &[4, 3]));
    let draft = Draft::new("a span twice").ragged("r", Fp32, &[7]).known("own", Fp32, &[2, 7]);
    let draft = concat(concat(concat(draft, &["own", "r"], "o"), &["r", "o"], "x"), &["r", "r", "own"], "z");
    let draft = concat(draft.operator("Mul", &["x", "z"], &["p"]), &["r", "r"], "twice");
    cases.push(sum(sum(draft, "p", "y"), "twice", "z0").output("y", Fp32, &[7]).output("z0", Fp32, &[7]));
    cases
}

/// The mask of the attention in a draft is `m`, of whose rows the ragged axis goes to the end.
fn turned(draft: Draft, m: &str) -> Draft {
    draft.first("Transpose", &[m], &["mask"], "perm", &[0, 2, 3, 1])
}

fn attention(heads: (usize, usize), sizes: (usize, usize), queries: usize) -> Draft {
    attention_over(Draft::new(&format!("attention {heads:?} of {sizes:?}")), &["q", "k", "v"], heads, sizes, queries)
}

fn attention_over(
    draft: Draft,
    inputs: &[&str],
    (heads, key_heads): (usize, usize),
    (depth, size): (usize, usize),
    queries: usize,
) -> Draft {
    let draft = draft.known("q", Fp32, &[queries, heads * depth]);
    let draft = draft.ragged("k", Fp32, &[key_heads * depth]).ragged("v", Fp32, &[key_heads * size]);
    draft.operator("Attention", inputs, &["y"]).with("q_num_heads", heads as i64).with("kv_num_heads", key_heads as i64)
}

/// `softmax(u · tanh(q + W k)) · k` (Bahdanau and others 2015, appendix A.1.2).
fn bahdanau() -> Draft {
    let draft = Draft::new("Bahdanau attention").known("q", Fp32, &[1, 11]).ragged("k", Fp32, &[7]);
    let draft = draft.weight(weight("w", &[7, 11], 4)).weight(weight("u", &[11, 1], 5));
    let draft = draft.operator("MatMul", &["k", "w"], &["wk"]).operator("Add", &["wk", "q"], &["z"]).operator("Tanh", &["z"], &["t"]);
    let draft = draft.operator("MatMul", &["t", "u"], &["e"]).operator("Softmax", &["e"], &["a"]).with("axis", 1);
    let draft = draft.operator("Mul", &["a", "k"], &["ak"]).operator("ReduceSum", &["ak"], &["y"]);
    draft.with("axes", &[1_i64][..]).with("keepdims", 0).output("y", Fp32, &[7])
}

/// The general form of Luong and others (2015, section 3.1), as exporters write it.
fn luong() -> Draft {
    let draft = Draft::new("Luong attention").known("h", Fp32, &[1, 9]).ragged("k", Fp32, &[20]).weight(weight("w", &[9, 20], 6));
    let draft = draft.operator("MatMul", &["h", "w"], &["q"]).operator("Transpose", &["k"], &["kt"]).with("perm", &[0_i64, 2, 1][..]);
    let draft = draft.operator("MatMul", &["q", "kt"], &["s"]).operator("Softmax", &["s"], &["a"]);
    let draft = draft.operator("MatMul", &["a", "k"], &["c"]).operator("Concat", &["c", "h"], &["ch"]).with("axis", 2);
    draft.operator("Tanh", &["ch"], &["y"]).output("y", Fp32, &[1, 29])
}

/// Attention and what follows it in a layer of a transformer.
fn layer() -> Draft {
    let draft = attention((4, 4), (8, 8), 1).named("layer").known("x", Fp32, &[1, 32]);
    let draft = draft.weight(weight("out", &[32, 32], 7)).weight(weight("scale", &[32], 8)).weight(weight("bias", &[32], 9));
    let draft = draft.operator("MatMul", &["y", "out"], &["o"]).operator("Add", &["o", "x"], &["s"]);
    let draft = draft.operator("LayerNormalization", &["s", "scale", "bias"], &["n"]).operator("Gelu", &["n"], &["g"]);
    draft.output("g", Fp32, &[1, 32]).output("y", Fp32, &[1, 32])
}

/// Keys are turned by their positions as they are read.
fn rotary(interleaved: i64) -> Draft {
    let tables = |name: &str, salt| weight(name, &[5, 3], salt);
    let draft = Draft::new("rotary").known("q", Fp32, &[1, 16]).known("at", Int64, &[1]);
    let draft = draft.ragged("k", Fp32, &[16]).ragged("n", Int64, &[]);
    let draft = draft.weight(tables("cosines", 10)).weight(tables("sines", 11));
    let turn = |draft: Draft, of: &str, at: &str, y: &str| {
        let draft = draft.operator("RotaryEmbedding", &[of, "cosines", "sines", at], &[y]).with("num_heads", 2);
        draft.with("interleaved", interleaved).with("rotary_embedding_dim", 6)
    };
    let draft = turn(turn(draft, "q", "at", "qr"), "k", "n", "kr");
    let draft = draft.operator("Attention", &["qr", "kr", "k"], &["y"]).with("q_num_heads", 2).with("kv_num_heads", 2);
    draft.output("y", Fp32, &[1, 16])
}

/// A span at each step: runs of rows of the chain (true) or of tensors.
type Form = Vec<(bool, Affine, u32, u32)>;

fn forms() -> Vec<Form> {
    let line = |first: i64, stride: i32| Affine { first, stride, from_end: false };
    let many = u32::MAX >> 1;
    vec![
        vec![(true, line(0, 0), 1, u32::MAX)],
        // So far.
        vec![(true, line(1 - i64::from(many), 1), 1, many)],
        // The last five, three apart.
        vec![(true, line(-12, 1), 3, 5)],
        // From here on, and before that rows of the request.
        vec![(false, line(140, 0), 2, u32::MAX), (true, line(75, 1), 1, 70)],
        vec![(false, line(0, 1), 1, 65)],
        vec![],
    ]
}

/// Numbers of the rows that a run has.
fn rows_of((_, at, every, count): &(bool, Affine, u32, u32), step: u32) -> Vec<usize> {
    let number = |row: u32| at.first + i64::from(step) * i64::from(at.stride) + i64::from(*every) * i64::from(row);
    // Where it begins before the first row, its first rows are left out, however many they are.
    let skipped = if number(0) < 0 { (number(0).unsigned_abs().div_ceil(u64::from(*every))) as u32 } else { 0 };
    let rows = (skipped..*count).map(number).take_while(|number| *number < i64::from(ROWS));
    rows.map(|number| usize::try_from(number).expect("not before the first")).collect()
}

fn values(port: &Port, rows: u32, rng: &mut Rng) -> Tensor {
    let count: usize = port.shape.iter().map(|extent| *extent as usize).product::<usize>() * rows as usize;
    let shape: Vec<usize> = std::iter::once(rows as usize).chain(port.shape.iter().map(|extent| *extent as usize)).collect();
    match port.datatype {
        // Ties among them.
        Datatype::Fp32 => {
            let one = |at: usize, rng: &mut Rng| if at.is_multiple_of(5) { f32::from(rng.between(0, 2) as u8) } else { rng.float() * 3.0 };
            Tensor::from_f32(&port.name, &shape, &(0..count).map(|at| one(at, rng)).collect::<Vec<_>>())
        }
        Datatype::Int64 => Tensor::from_i64(&port.name, &shape, &(0..count).map(|_| i64::from(rng.between(0, 4))).collect::<Vec<_>>()),
        datatype => {
            let data = (0..count).map(|_| u8::from(rng.one_in(2))).collect();
            Tensor { name: port.name.clone(), datatype, shape, data }
        }
    }
}

/// A cell that gives what it takes: its rows lie in the arena then.
fn giver(cell: &TypedCell) -> Arc<TypedCell> {
    let mut draft = Draft::new("giver");
    for port in cell.inputs.iter().filter(|port| port.ragged) {
        let shape: Vec<usize> = port.shape.iter().map(|extent| *extent as usize).collect();
        draft = draft.known(&port.name, port.datatype, &shape).output(&port.name, port.datatype, &shape);
    }
    draft.resolve()
}

/// What a step delivers, or why it fails.
type Delivered = BTreeMap<u32, Result<Vec<Vec<u8>>, RowError>>;

fn check(make: &mut Make<'_>, (cell, exact): (&Arc<TypedCell>, &Arc<TypedCell>), tolerance: Tolerance, rng: &mut Rng) {
    let giver = giver(cell);
    let ragged: Vec<usize> = (0..cell.inputs.len()).filter(|input| cell.inputs[*input].ragged).collect();
    let tensors: Vec<Arc<Tensor>> =
        cell.inputs.iter().map(|port| Arc::new(values(port, if port.ragged { ROWS } else { STEPS }, rng))).collect();
    let [reference, exact] = [cell, exact].map(|cell| Reference::new(cell));
    let forms = forms();
    for number in 0..forms.len() {
        // Inputs that need not have as many rows have others.
        let form_of = |input: usize| {
            let first = cell.spans[input].expect("a ragged input");
            let before = (0..first).filter(|before| cell.spans[*before as usize] == Some(*before)).count();
            &forms[(number + before) % forms.len()]
        };
        let place = || format!("`{}` in {} over form {number}", cell.name, cell.precision);
        let mut run = |chosen: &[u32], rows_most: usize| -> Delivered {
            let mut driver = Driver::new(make(), &[giver.clone(), cell.clone()]);
            let every = |tensor: usize| Source::Rows { tensor: tensor as u32, at: Affine::EVERY };
            let mut given = independent(0, giver.outputs.len(), ragged.iter().map(|input| every(*input)).collect(), ROWS);
            given.stages[0].retention = Retention::All;
            let source = |input: usize| {
                let Some(output) = ragged.iter().position(|of| *of == input) else { return every(input) };
                let run = |(is_chain, at, every, count): &(bool, Affine, u32, u32)| {
                    let of =
                        if *is_chain { RunOf::Chain { chain: 0, stage: 0, output: output as u32 } } else { RunOf::Tensor(input as u32) };
                    Run { of, at: *at, every: *every, count: *count }
                };
                Source::Span(form_of(input).iter().map(run).collect())
            };
            let sees = independent(1, cell.outputs.len(), (0..cell.inputs.len()).map(source).collect(), STEPS);
            let request = driver.place(Arc::new(growth_of(vec![given, sees])), &tensors, 0, &[]);
            let [rows, lane] = [0, 1].map(|chain| request.lanes[chain][0]);
            let all: Vec<_> = (0..ROWS).map(|step| (rows, step)).collect();
            driver.task(CellTypeId(0), &all, 1);
            let mut delivered = Delivered::new();
            for steps in chosen.chunks(rows_most) {
                // A request dies with its first refused row.
                request.growth.flags.dead.store(false, std::sync::atomic::Ordering::Relaxed);
                let steps: Vec<_> = steps.iter().map(|step| (lane, *step)).collect();
                let completed = driver.task(CellTypeId(1), &steps, 1);
                delivered.extend(completed.refused.into_iter().map(|refused| (refused.step, Err(refused.error))));
            }
            for step in chosen.iter().copied() {
                let outputs = (0..cell.outputs.len() as u32).filter_map(|output| driver.delivered.get(&(lane, output, step)).cloned());
                let outputs: Vec<_> = outputs.collect();
                if outputs.len() == cell.outputs.len() {
                    delivered.entry(step).or_insert(Ok(outputs));
                }
            }
            delivered
        };
        let steps_of = |apart: u32| -> Vec<u32> { (0..STEPS).filter(|step| step % apart == 0 || BORDERS.contains(step)).collect() };
        let (every, some) = (steps_of(3), steps_of(12));
        let (alone, together) = (run(&some, 1), run(&every, every.len()));
        assert_eq!((alone.len(), together.len()), (some.len(), every.len()), "{}", place());
        for (step, got) in alone.iter().map(|(step, got)| (*step, got.clone())).chain(run(&every, 7)) {
            assert!(got == together[&step], "{}: step {step} is not what it is in company of another size", place());
        }
        for step in some {
            let row = |tensor: &Tensor, number: usize| {
                let bytes = tensor.data.len() / tensor.shape[0];
                tensor.data[number * bytes..][..bytes].to_vec()
            };
            let inputs: Vec<Elements> = (0..cell.inputs.len())
                .map(|input| {
                    let numbers = if cell.inputs[input].ragged {
                        form_of(input).iter().flat_map(|run| rows_of(run, step)).collect()
                    } else {
                        vec![step as usize]
                    };
                    let bytes: Vec<u8> = numbers.into_iter().flat_map(|number| row(&tensors[input], number)).collect();
                    Elements::from_bytes(cell.inputs[input].datatype, &bytes)
                })
                .collect();
            match (reference.evaluate(&inputs), &alone[&step]) {
                (Ok(expected), Ok(got)) => {
                    let unrounded = exact.evaluate(&inputs).expect("it is as well given");
                    for (output, (expected, bytes)) in expected.iter().zip(got).enumerate() {
                        let got = Elements::from_bytes(cell.outputs[output].port.datatype, bytes);
                        let place = || format!("{}, step {step}, output {output}", place());
                        // What lies near to a tie may be rounded otherwise.
                        let absolute = tolerance.absolute * 16.0 + 4.0 * farthest(expected, &unrounded[output]);
                        let tolerance = Tolerance { absolute, relative: tolerance.relative * 16.0 };
                        super::operators::compare(expected, &got, tolerance, &place);
                    }
                }
                (expected, got) => assert_eq!(expected.err().as_ref(), got.as_ref().err(), "{}, step {step}", place()),
            }
        }
    }
}

/// Attention to the last rows of a chain that goes on in later growths, whose rows lie in a ring.
fn in_parts(make: &mut Make<'_>) {
    const PLACES: u32 = 16;
    const SEEN: u32 = 10;
    let cell = attention((2, 2), (8, 8), 1).output("y", Fp32, &[1, 16]).resolve();
    let cells = [giver(&cell), cell.clone()];
    let rng = &mut Rng::new(7);
    let all: Vec<Tensor> = cell.inputs.iter().map(|port| values(port, STEPS, rng)).collect();
    // The growths of so many steps each, in tasks of so many.
    let mut run = |parts: &[u32], at_once: u32| -> Vec<Vec<u8>> {
        let mut driver = Driver::new(make(), &cells);
        let (mut earlier, mut done, mut outputs) = (Vec::new(), 0, Vec::new());
        for (part, steps) in (0..).zip(parts.iter().copied()) {
            let (first_chain, first_tensor) = (2 * part, 3 * part);
            let rows_of = |tensor: &Tensor| {
                let (row, shape) = (tensor.data.len() / STEPS as usize, [&[steps as usize], &tensor.shape[1..]].concat());
                let data = tensor.data[done as usize * row..][..steps as usize * row].to_vec();
                Arc::new(Tensor { shape, data, ..tensor.clone() })
            };
            let every = |tensor: u32| Source::Rows { tensor: first_tensor + tensor, at: Affine::EVERY };
            let mut given = independent(0, 2, vec![every(1), every(2)], steps);
            given.stages[0].retention = match parts.len() {
                1 => Retention::All,
                _ => Retention::Ring { places: PLACES, first: done % PLACES, before: done.min(PLACES) },
            };
            given.continues = first_chain.checked_sub(2);
            let last = |output: u32| {
                let of = RunOf::Chain { chain: first_chain, stage: 0, output };
                let at = Affine { first: 1 - i64::from(SEEN), stride: 1, from_end: false };
                Source::Span([Run { of, at, every: 1, count: SEEN }].into())
            };
            let sees = independent(1, 1, vec![every(0), last(0), last(1)], steps);
            let growth = UnfoldedGrowth { first_chain, ..growth_of(vec![given, sees]) };
            let tensors: Vec<_> = all.iter().map(rows_of).collect();
            let placed = driver.place(Arc::new(growth), &tensors, first_tensor, &earlier);
            for first in (0..steps).step_by(at_once as usize) {
                for (chain, cell) in [(0, CellTypeId(0)), (1, CellTypeId(1))] {
                    let rows: Vec<_> = (first..steps.min(first + at_once)).map(|step| (placed.lanes[chain][0], step)).collect();
                    driver.task(cell, &rows, 1);
                }
            }
            outputs.extend((0..steps).map(|step| driver.delivered[&(placed.lanes[1][0], 0, step)].clone()));
            (done, earlier) = (done + steps, [earlier, vec![placed]].concat());
        }
        outputs
    };
    let whole = run(&[STEPS], STEPS);
    for (step, (got, expected)) in run(&[25, 1, 70, STEPS - 96], PLACES - SEEN).into_iter().zip(whole).enumerate() {
        assert!(got == expected, "step {step} of a chain in parts is not what it is in one");
    }
}

/// How far two results are apart.
fn farthest(one: &Elements, other: &Elements) -> f64 {
    let (Elements::Floats(one), Elements::Floats(other)) = (one, other) else { return 0.0 };
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, |most, apart| if apart > most { apart } else { most })
}

//! Scores of which only the best are read, against the same scores written down: the same best, whatever the processor, the threads and the batch.

use std::sync::Arc;

use cellwright_backend::CellTypeId;
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Kernels, Level};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Driver, growth_of, independent};

/// Rows that are run, one of which is NaN and one infinite.
const ROWS: usize = 300;
/// The same of what a softmax is taken of.
const ROWS_OF_SOFTMAX: usize = 90;
/// Depth of the products, and how many columns: more than a stretch of them, and no multiple of one.
const SHAPE: (usize, usize) = (67, 1301);
/// Columns of products that have a screen, and rows that are run.
const SCREENED: usize = 4098;
const ROWS_OF_SCREENED: usize = 130;
/// How many of the best are kept beside the best one.
const KEPT: usize = 7;

/// The best scores of both ends; with the scores themselves as a last output, a worker must write them down.
fn cell(precision: Precision, is_written: bool) -> Arc<TypedCell> {
    let (k, n) = SHAPE;
    let mut rng = Rng::new(31);
    let mut draft = Draft::new("scores").input("x", Datatype::Fp32, &[k]);
    // Every column comes two or three times, so that every best has its like.
    for name in ["u", "v", "w"] {
        let own: Vec<f32> = (0..k * (n / 2)).map(|_| rng.float()).collect();
        let values: Vec<f32> = (0..k).flat_map(|row| own[row * (n / 2)..][..n / 2].iter().cycle().take(n).copied()).collect();
        draft = draft.weight(Tensor::from_f32(name, &[k, n], &values));
    }
    let bias: Vec<f32> = (0..n).map(|column| (column % (n / 2)) as f32 / n as f32).collect();
    draft = draft.weight(Tensor::from_f32("b", &[n], &bias));
    draft = draft.operator("Gemm", &["x", "u", "b"], &["first"]).operator("ArgMax", &["first"], &["best"]).with("axis", 1);
    draft = draft.operator("MatMul", &["x", "v"], &["second"]).operator("ArgMax", &["second"], &["last"]).with("axis", 1);
    draft = draft.with("select_last_index", 1);
    draft = draft.operator("Gemm", &["x", "w", "b"], &["third"]).operator("TopK", &["third"], &["few", "places"]);
    draft = draft.with("axis", 1).with("k", KEPT as i64).with("largest", 0);
    draft = draft.output("best", Datatype::Int64, &[1]).output("last", Datatype::Int64, &[1]);
    draft = draft.output("few", Datatype::Fp32, &[KEPT]).output("places", Datatype::Int64, &[KEPT]);
    if is_written {
        for scores in ["first", "second", "third"] {
            draft = draft.output(scores, Datatype::Fp32, &[n]);
        }
    }
    draft.at(precision).resolve()
}

/// Softmax of four products of `n` columns, of three of them the best; with the scores as last outputs, a worker must write them down.
fn softmax_cell(n: usize, precision: Precision, is_written: bool) -> Arc<TypedCell> {
    let k = SHAPE.0;
    let mut rng = Rng::new(34);
    let mut draft = Draft::new("chances").input("x", Datatype::Fp32, &[k]);
    for name in ["t", "u", "v", "w"] {
        let own: Vec<f32> = (0..k * (n / 2)).map(|_| rng.float()).collect();
        let values: Vec<f32> = (0..k).flat_map(|row| own[row * (n / 2)..][..n / 2].iter().cycle().take(n).copied()).collect();
        draft = draft.weight(Tensor::from_f32(name, &[k, n], &values));
    }
    let bias: Vec<f32> =
        (0..n).map(|column| if column % 5 == 0 { f32::NEG_INFINITY } else { (column % (n / 2)) as f32 / n as f32 }).collect();
    draft = draft.weight(Tensor::from_f32("b", &[n], &bias));
    for (kind, weight, scores, of) in [("Softmax", "t", "first", "p"), ("LogSoftmax", "u", "second", "q"), ("Softmax", "v", "third", "r")] {
        let operands: &[&str] = if kind == "LogSoftmax" { &["x", weight, "b"] } else { &["x", weight] };
        draft = draft.operator("Gemm", operands, &[scores]).operator(kind, &[scores], &[of]).with("axis", 1);
    }
    draft = draft.operator("Gemm", &["x", "w", "b"], &["fourth"]).operator("LogSoftmax", &["fourth"], &["s"]).with("axis", 1);
    draft = draft.operator("TopK", &["p"], &["few", "places"]).with("axis", 1).with("k", KEPT as i64);
    draft = draft.operator("TopK", &["q"], &["least", "least_places"]).with("axis", 1).with("k", 64).with("largest", 0);
    draft = draft.operator("ArgMax", &["r"], &["last"]).with("axis", 1).with("select_last_index", 1);
    draft = draft.output("few", Datatype::Fp32, &[KEPT]).output("places", Datatype::Int64, &[KEPT]);
    draft = draft.output("least", Datatype::Fp32, &[64]).output("least_places", Datatype::Int64, &[64]);
    draft = draft.output("last", Datatype::Int64, &[1]).output("s", Datatype::Fp32, &[n]);
    if is_written {
        for scores in ["first", "second", "third", "fourth"] {
            draft = draft.output(scores, Datatype::Fp32, &[n]);
        }
    }
    draft.at(precision).resolve()
}

/// What scores are made of. Where a softmax is taken, some rows have scores so near to one another that many results are equal, or none, and some so far that most are zero.
fn rows(count: usize, is_for_softmax: bool) -> Arc<Tensor> {
    let mut rng = Rng::new(32);
    let mut values: Vec<f32> = (0..count * SHAPE.0).map(|_| rng.float()).collect();
    values[5 * SHAPE.0] = f32::NAN;
    values[9 * SHAPE.0 + 3] = f32::INFINITY;
    if is_for_softmax {
        for (row, scale) in [(1, 0.0), (20, 1e-7), (21, 3e-8), (40, 1e-6), (41, 1e-3), (60, 100.0), (89, 1e-7)] {
            values[row * SHAPE.0..][..SHAPE.0].iter_mut().for_each(|value| *value *= scale);
        }
    }
    Arc::new(Tensor::from_f32("x", &[count, SHAPE.0], &values))
}

/// What the first so many outputs are of each row, in tasks of so many of them, in that order.
fn found(
    worker: CpuWorker,
    (cell, outputs): (&Arc<TypedCell>, usize),
    rows: &Arc<Tensor>,
    (batch, order): (usize, &[usize]),
) -> Vec<Vec<Vec<u8>>> {
    let mut driver = Driver::new(Box::new(worker), std::slice::from_ref(cell));
    let source = Source::Rows { tensor: 0, at: Affine::EVERY };
    let count = rows.shape[0] as u32;
    let growth = Arc::new(growth_of(vec![independent(0, cell.outputs.len(), vec![source], count)]));
    let lane = driver.place(growth, std::slice::from_ref(rows), 0, &[]).lanes[0][0];
    for rows in order.chunks(batch) {
        let rows: Vec<_> = rows.iter().map(|row| (lane, *row as u32)).collect();
        driver.task(CellTypeId(0), &rows, 1);
    }
    (0..count).map(|row| (0..outputs as u32).map(|output| driver.delivered[&(lane, output, row)].clone()).collect()).collect()
}

fn shuffled(rng: &mut Rng, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        order.swap(at, rng.below(at as u64 + 1) as usize);
    }
    order
}

/// The same outputs of a cell that writes its scores and of one that does not, whatever the processor, the threads and the batches.
fn are_found_all_the_same([written, unwritten]: &[Arc<TypedCell>; 2], rows: &Arc<Tensor>, ways: &[(Option<Level>, Kernels)]) {
    let (outputs, count, mut rng) = (unwritten.outputs.len(), rows.shape[0], Rng::new(33));
    let has = |kernels: Kernels| kernels != Kernels::Tiles || Level::detect() >= Level::Amx;
    for (level, kernels) in ways.iter().filter(|(_, kernels)| has(*kernels)) {
        let worker = |threads| {
            let options = DomainOptions { arena_bytes: Some(64 << 20), level: *level, kernels: *kernels, ..DomainOptions::default() };
            let domain = CpuDomain::new(options).expect("64 MiB are there");
            CpuWorker::new(domain, CpuOptions { threads, ..CpuOptions::default() }).expect("threads start")
        };
        let expected = found(worker(1), (written, outputs), rows, (11, &shuffled(&mut rng, count)));
        assert!(expected.iter().any(|row| *row != expected[0]), "rows differ, or the test would see nothing");
        for (threads, batch) in [(1, 1), (1, 3), (2, 17), (3, 64), (2, 299), (1, count)] {
            let got = found(worker(threads), (unwritten, outputs), rows, (batch, &shuffled(&mut rng, count)));
            for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let output = (0..outputs).find(|output| got[*output] != expected[*output]);
                assert!(
                    output.is_none(),
                    "`{}`, {}, {level:?}, {kernels:?}, {threads} threads, batches of {batch}: row {row} has another output {output:?}",
                    unwritten.name,
                    unwritten.precision
                );
            }
        }
    }
}

/// The largest of scores of many columns, most of which integers can rule out: of the first product two of each are alike but for a bit, of the second one is infinite, or no number, where the row is no zero in one place, and of the third most are
/// so far below the others that none of these matters. The last has the weight of the third and another bias.
fn screened_cell(precision: Precision, is_written: bool) -> Arc<TypedCell> {
    let ((k, _), n) = (SHAPE, SCREENED);
    let mut rng = Rng::new(35);
    let mut draft = Draft::new("screened").input("x", Datatype::Fp32, &[k]);
    for (name, last) in [("u", 1), ("v", 1), ("w", 0)] {
        let mut values: Vec<f32> = (0..k * n).map(|_| rng.float()).collect();
        for row in values.chunks_exact_mut(n) {
            let (first, second) = row.split_at_mut(n / 2);
            second.iter_mut().zip(first).for_each(|(second, first)| *second = *first);
        }
        if name == "u" {
            values[..n / 2].iter_mut().for_each(|value| *value = value.next_up());
        }
        if name == "v" {
            values[3 * n + 100] = f32::INFINITY;
        }
        let bias: Vec<f32> = (0..n)
            .map(|column| match name {
                "v" if column % 3 == 0 => f32::NEG_INFINITY,
                "w" if column % 1000 != 7 => -1e9,
                _ => (column % 11) as f32 / 100.0,
            })
            .collect();
        let (scores, found, bias_name) = (format!("scores_{name}"), format!("best_{name}"), format!("bias_{name}"));
        draft = draft.weight(Tensor::from_f32(name, &[k, n], &values)).weight(Tensor::from_f32(&bias_name, &[n], &bias));
        let operands = if name == "u" { vec!["x", name] } else { vec!["x", name, &bias_name] };
        draft = draft.operator(if name == "u" { "MatMul" } else { "Gemm" }, &operands, &[&scores]);
        draft = draft.operator("ArgMax", &[&scores], &[&found]).with("axis", 1).with("select_last_index", last);
        draft = draft.output(&found, Datatype::Int64, &[1]);
    }
    let falling: Vec<f32> = (0..n).map(|column| 0.1 - column as f32 / 5000.0).collect();
    draft = draft.weight(Tensor::from_f32("falling", &[n], &falling)).operator("Gemm", &["x", "w", "falling"], &["scores_f"]);
    draft = draft.operator("ArgMax", &["scores_f"], &["best_f"]).with("axis", 1).output("best_f", Datatype::Int64, &[1]);
    if is_written {
        for scores in ["scores_u", "scores_v", "scores_w", "scores_f"] {
            draft = draft.output(scores, Datatype::Fp32, &[n]);
        }
    }
    draft.at(precision).resolve()
}

/// Rows of which more and less can be told, or something of all of them.
fn rows_for_screens(is_told: bool) -> Arc<Tensor> {
    let k = SHAPE.0;
    let mut values = rows(ROWS_OF_SCREENED, false).to_f32().expect("floats");
    if is_told {
        values[5 * k] = 0.5;
        values[9 * k + 3] = -0.5;
    }
    for (at, row) in values.chunks_exact_mut(k).enumerate() {
        match at % 12 {
            6 if is_told => {}
            1 => row.iter_mut().for_each(|value| *value *= value.abs() * value.abs()),
            8 | 9 => row[3] = -row[3].abs(),
            2 => row[at % k] = 90.0,
            3 => row.iter_mut().enumerate().filter(|(place, _)| place % 20 != 3).for_each(|(_, value)| *value = 0.0),
            4 => row.fill(0.0),
            5 => row.iter_mut().for_each(|value| *value *= 1e15),
            6 => row.iter_mut().for_each(|value| *value *= 1e-30),
            7 => row.fill(-0.5),
            _ => {}
        }
    }
    Arc::new(Tensor::from_f32("x", &[ROWS_OF_SCREENED, k], &values))
}

const WAYS: [(Option<Level>, Kernels); 7] = [
    (None, Kernels::Best),
    (None, Kernels::Tiles),
    (None, Kernels::Library),
    (Some(Level::Avx512Bf16), Kernels::Best),
    (Some(Level::Avx512), Kernels::Best),
    (Some(Level::Avx2), Kernels::Best),
    (Some(Level::Portable), Kernels::Best),
];

#[test]
fn what_is_not_written_down_is_found_all_the_same() {
    for precision in Precision::ALL {
        are_found_all_the_same(&[true, false].map(|is_written| cell(precision, is_written)), &rows(ROWS, false), &WAYS);
    }
}

#[test]
fn so_is_what_is_left_when_integers_have_ruled_out_the_rest() {
    for precision in Precision::ALL {
        let cells = [true, false].map(|is_written| screened_cell(precision, is_written));
        for is_told in [true, false] {
            are_found_all_the_same(&cells, &rows_for_screens(is_told), &WAYS);
        }
    }
}

#[test]
fn so_is_what_a_softmax_is_taken_of() {
    for (n, precision) in
        [(1301, Precision::F32), (1301, Precision::Int8), (129, Precision::F32), (384, Precision::Bf16), (640, Precision::F32)]
    {
        let cells = [true, false].map(|is_written| softmax_cell(n, precision, is_written));
        are_found_all_the_same(&cells, &rows(ROWS_OF_SOFTMAX, true), &WAYS);
    }
}

//! Scores of which only the best are read, against the same scores written down: the same best, whatever the processor, the threads and the batch.

use std::sync::Arc;

use cellwright_backend::CellIndex;
use cellwright_backend::conformance::cells::Draft;
use cellwright_backend::conformance::driver::{Driver, growth_of, independent};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Kernels, Level};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};

/// Rows that are run, one of which is NaN and one infinite.
const ROWS: usize = 300;
/// Depth of the products, and how many columns: more than a stretch of them, and no multiple of one.
const SHAPE: (usize, usize) = (67, 1301);
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

fn rows() -> Arc<Tensor> {
    let mut rng = Rng::new(32);
    let mut values: Vec<f32> = (0..ROWS * SHAPE.0).map(|_| rng.float()).collect();
    values[5 * SHAPE.0] = f32::NAN;
    values[9 * SHAPE.0 + 3] = f32::INFINITY;
    Arc::new(Tensor::from_f32("x", &[ROWS, SHAPE.0], &values))
}

/// What is found of each row, in tasks of so many of them, in that order.
fn found(worker: CpuWorker, cell: &Arc<TypedCell>, batch: usize, order: &[usize]) -> Vec<Vec<Vec<u8>>> {
    let mut driver = Driver::new(Box::new(worker), std::slice::from_ref(cell));
    let source = Source::Rows { tensor: 0, at: Affine::EVERY };
    let growth = Arc::new(growth_of(vec![independent(0, cell.outputs.len(), vec![source], ROWS as u32)]));
    let lane = driver.place(growth, &[rows()], 0, &[]).lanes[0][0];
    for rows in order.chunks(batch) {
        let rows: Vec<_> = rows.iter().map(|row| (lane, *row as u32)).collect();
        driver.task(CellIndex(0), &rows, 1);
    }
    (0..ROWS as u32).map(|row| (0..4).map(|output| driver.delivered[&(lane, output, row)].clone()).collect()).collect()
}

fn shuffled(rng: &mut Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..ROWS).collect();
    for at in (1..ROWS).rev() {
        order.swap(at, rng.below(at as u64 + 1) as usize);
    }
    order
}

#[test]
fn what_is_not_written_down_is_found_all_the_same() {
    let ways = [
        (None, Kernels::Best),
        (None, Kernels::Library),
        (Some(Level::Avx512Bf16), Kernels::Best),
        (Some(Level::Avx512), Kernels::Best),
        (Some(Level::Avx2), Kernels::Best),
        (Some(Level::Portable), Kernels::Best),
    ];
    let mut rng = Rng::new(33);
    for precision in Precision::ALL {
        let [written, unwritten] = [true, false].map(|is_written| cell(precision, is_written));
        for (level, kernels) in ways {
            let worker = |threads| {
                let options = DomainOptions { arena_bytes: Some(16 << 20), level, kernels, ..DomainOptions::default() };
                let domain = CpuDomain::new(options).expect("16 MiB are there");
                CpuWorker::new(domain, CpuOptions { threads, ..CpuOptions::default() }).expect("threads start")
            };
            let expected = found(worker(1), &written, 11, &shuffled(&mut rng));
            assert!(expected.iter().any(|row| *row != expected[0]), "rows differ, or the test would see nothing");
            for (threads, batch) in [(1, 1), (1, 3), (2, 17), (3, 64), (2, 299), (1, ROWS)] {
                let got = found(worker(threads), &unwritten, batch, &shuffled(&mut rng));
                let row = (0..ROWS).find(|row| got[*row] != expected[*row]);
                assert!(
                    row.is_none(),
                    "{precision}, {level:?}, {kernels:?}, {threads} threads, batches of {batch}: row {row:?} finds something else"
                );
            }
        }
    }
}

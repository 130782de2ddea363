//! Projections of which only the best few sums are read, against the same ones of which everything is: not a bit may differ, at any size of a batch.

use std::sync::Arc;

use cellwright_backend::CellTypeId;
use cellwright_backend_cuda::driver::emulated::{Emulated, Emulation};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::Datatype::{Fp32, Int64};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::ARENA_SLOTS;
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Driver, growth_of, independent};

const ROWS: usize = 131;
const DEPTH: usize = 21;

fn worker(tf32: bool) -> CudaWorker {
    let options = CudaOptions {
        arena_bytes: Some(u64::from(ARENA_SLOTS) * 64),
        frame_bytes: Some(8 << 20),
        ring_bytes: 1 << 20,
        rows_most: 256,
        tf32,
        ..CudaOptions::default()
    };
    CudaWorker::new(Box::new(Emulated::new(&Emulation::default())), options).expect("a device made of threads")
}

/// What is read of the sums, and how many of them.
#[derive(Clone, Copy)]
enum Read {
    Best { last: i64 },
    First { kept: usize, largest: i64 },
}

/// Columns come several times, so that there are ties. `all`: the sums are an output too, behind the others.
fn cell(columns: usize, read: Read, all: bool, precision: Precision) -> Arc<TypedCell> {
    let mut rng = Rng::new(columns as u64);
    let different: Vec<f32> = (0..(columns / 3 + 1) * (DEPTH + 1)).map(|_| rng.float()).collect();
    let of: Vec<usize> = (0..columns).map(|_| rng.below((columns / 3 + 1) as u64) as usize * (DEPTH + 1)).collect();
    let w: Vec<f32> = (0..DEPTH).flat_map(|k| of.iter().map(|of| different[of + k]).collect::<Vec<_>>()).collect();
    let b: Vec<f32> = of.iter().map(|of| different[of + DEPTH]).collect();
    let draft = Draft::new(if all { "all" } else { "best" }).input("x", Fp32, &[DEPTH]);
    let draft = draft.weight(Tensor::from_f32("w", &[DEPTH, columns], &w)).weight(Tensor::from_f32("b", &[columns], &b));
    let draft = draft.operator("Gemm", &["x", "w", "b"], &["y"]);
    let draft = match read {
        Read::Best { last } => {
            let draft = draft.operator("ArgMax", &["y"], &["z"]).with("axis", 1).with("keepdims", 0).with("select_last_index", last);
            draft.output("z", Int64, &[])
        }
        Read::First { kept, largest } => {
            let draft = draft.operator("TopK", &["y"], &["few", "at"]).with("axis", 1).with("k", kept as i64).with("largest", largest);
            draft.output("few", Fp32, &[kept]).output("at", Int64, &[kept])
        }
    };
    let draft = if all { draft.output("y", Fp32, &[columns]) } else { draft };
    draft.at(precision).resolve()
}

fn rows() -> Tensor {
    let mut rng = Rng::new(1);
    let hard = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1e-40];
    let value = |row: usize, rng: &mut Rng| match row % 4 {
        0 | 1 => rng.float(),
        2 if rng.one_in(6) => hard[rng.below(hard.len() as u64) as usize],
        2 => rng.float(),
        _ => 0.0,
    };
    let values: Vec<f32> = (0..ROWS * DEPTH).map(|at| value(at / DEPTH, &mut rng)).collect();
    Tensor::from_f32("x", &[ROWS, DEPTH], &values)
}

/// Without the bits of NaNs: a processor that stands for a device gives whichever of its operands' a loop happens to name first.
fn one_nan(datatype: Datatype, bytes: &[u8]) -> Vec<u8> {
    let canonical = |bytes: &[u8; 4]| if f32::from_le_bytes(*bytes).is_nan() { f32::NAN.to_le_bytes() } else { *bytes };
    if datatype == Fp32 { bytes.as_chunks().0.iter().flat_map(canonical).collect() } else { bytes.to_vec() }
}

fn compare(precision: Precision, tf32: bool) {
    let reads = [
        Read::Best { last: 0 },
        Read::Best { last: 1 },
        Read::First { kept: 1, largest: 1 },
        Read::First { kept: 5, largest: 0 },
        Read::First { kept: 16, largest: 1 },
    ];
    for (number, (columns, read)) in [65, 128, 333].into_iter().flat_map(|columns| reads.map(|read| (columns, read))).enumerate() {
        let cells = [false, true].map(|all| cell(columns, read, all, precision));
        let mut driver = Driver::new(Box::new(worker(tf32)), &cells);
        let tensors = [Arc::new(rows())];
        let lanes = [0, 1].map(|index: u32| {
            let sources = vec![Source::Rows { tensor: 0, at: Affine::EVERY }];
            let growth = growth_of(vec![independent(index, cells[index as usize].outputs.len(), sources, ROWS as u32)]);
            driver.place(Arc::new(growth), &tensors, 0, &[]).lanes[0][0]
        });
        // The best of parts of other sizes than those in which everything is computed.
        let cuts: [&[u32]; 2] = [[&[0, 1, 18, 82, ROWS as u32][..], &[0, ROWS as u32]][number % 2], &[0, 64, ROWS as u32]];
        for (index, (lane, cuts)) in lanes.into_iter().zip(cuts).enumerate() {
            for part in cuts.windows(2) {
                let steps: Vec<_> = (part[0]..part[1]).map(|step| (lane, step)).collect();
                driver.task(CellTypeId(index as u32), &steps, 1);
            }
        }
        for row in 0..ROWS as u32 {
            for output in 0..cells[0].outputs.len() as u32 {
                let datatype = cells[0].outputs[output as usize].port.datatype;
                let [best, all] = lanes.map(|lane| one_nan(datatype, &driver.delivered[&(lane, output, row)]));
                assert_eq!(best, all, "output {output} of row {row}, of {columns} columns in {precision}");
            }
        }
    }
}

#[test]
fn in_f32_the_best_are_the_same_whether_all_are_written_down_or_not() {
    compare(Precision::F32, false);
}

#[test]
fn in_tf32_too() {
    compare(Precision::F32, true);
}

#[test]
fn in_f16_too() {
    compare(Precision::F16, false);
}

#[test]
fn in_bf16_too() {
    compare(Precision::Bf16, false);
}

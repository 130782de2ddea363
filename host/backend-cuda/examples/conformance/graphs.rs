//! Batches as graphs beside the same batches launched one kernel at a time: their bits, and what a step takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_backend::{CellTypeId, LaneId};
use cellwright_backend_cuda::CudaOptions;
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Delivery, Retention, Source};
use cellwright_conformance::driver::{Driver, growth_of, independent};
use cellwright_conformance::{cells, hoisting};
use serde_json::{Map, Value, json};

use super::Where;
use super::figures::microseconds;
use super::parts::{weights, with};

/// Steps of a task: a graph of as many.
const STEPS: u32 = 8;
/// Times that a task is timed, after one that makes its graph.
const ROUNDS: usize = 12;

fn options(graphs: bool) -> CudaOptions {
    CudaOptions { arena_bytes: Some(64 << 20), frame_bytes: Some(64 << 20), ring_bytes: 8 << 20, graphs, ..CudaOptions::default() }
}

/// Every recurrent cell of the suite, in tasks of random rows and steps.
pub(crate) fn bits(place: Where) -> Value {
    for recurrent in [Precision::F32, Precision::Bf16].into_iter().flat_map(hoisting::recurrent_cells) {
        let run = |graphs: bool, most: (u64, u32)| {
            let make = &mut || with(place, options(graphs));
            hoisting::deliveries(make, (&recurrent, hoisting::REQUESTS), most, &mut Rng::new(u64::from(most.1)))
        };
        let direct = run(false, (1, 1));
        for most in [(24, 1), (6, 12), (24, 9)] {
            assert!(
                run(true, most) == direct,
                "`{}`: tasks of up to {most:?} rows and steps give other bits as graphs",
                recurrent.cell.name
            );
        }
    }
    json!({})
}

/// A step of an LSTM in f32, which has no kernels of its own, in tasks of several steps, from their submission to their completion: the least of several.
pub(crate) fn times(place: Where) -> Value {
    let (hidden, batches): (usize, &[usize]) = match place {
        Where::Device(_) => (1024, &[1, 16, 64, 256]),
        Where::Emulated => (32, &[1, 16]),
    };
    let cell = [cells::lstm("lstm", hidden, hidden, &weights(4, hidden)).resolve()];
    let mut figures = Map::new();
    for rows in batches {
        for graphs in [false, true] {
            let mut driver = Driver::new(with(place, options(graphs)), &cell);
            let lanes: Vec<LaneId> = (0..*rows).map(|_| lane(&mut driver)).collect();
            let mut least = Duration::MAX;
            for round in 0..=ROUNDS {
                let rows: Vec<_> = lanes.iter().map(|lane| (*lane, round as u32 * STEPS)).collect();
                let task = driver.prepare(CellTypeId(0), &rows, STEPS);
                let began = Instant::now();
                driver.submit(task);
                driver.complete();
                least = if round == 0 { least } else { least.min(began.elapsed()) };
            }
            let how = if graphs { "graph" } else { "direct" };
            figures.insert(format!("{how}_{rows}_us"), json!(microseconds(least / STEPS)));
        }
    }
    Value::Object(figures)
}

/// A chain that goes on from nothing, and delivers nothing.
fn lane(driver: &mut Driver) -> LaneId {
    let mut chain = independent(0, 2, vec![Source::Zeros, Source::Zeros, Source::Zeros], (ROUNDS as u32 + 1) * STEPS);
    chain.sequential = true;
    let stage = &mut chain.stages[0];
    (stage.inputs[1].feedback, stage.inputs[2].feedback) = (Some((0, 0)), Some((0, 1)));
    stage.retention = Retention::Double;
    stage.delivery = vec![Delivery::None; 2];
    driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]).lanes[0][0]
}

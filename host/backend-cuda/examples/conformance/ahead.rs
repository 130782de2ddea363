//! Steps whose inputs came with their requests, of which what can be is computed ahead on a stream of its own, beside the same steps that are computed as
//! a whole: their bits, and what a step takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_backend::{CellTypeId, LaneId};
use cellwright_backend_cuda::CudaOptions;
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Delivery, Retention, Source};
use cellwright_cell_graph::{Tensor, TypedCell};
use cellwright_conformance::driver::{Driver, growth_of, independent};
use cellwright_conformance::{cells, hoisting};
use serde_json::{Map, Value, json};

use super::Where;
use super::figures::microseconds;
use super::parts::{weights, with};

/// Tasks that an engine has outstanding at most.
const AHEAD: u32 = 5;
/// Steps of a request: of as many its steps are timed.
const STEPS: u32 = 96;
/// Times that all of them are timed; the least counts.
const ROUNDS: usize = 5;

fn options(ahead: bool) -> CudaOptions {
    let options = CudaOptions { arena_bytes: Some(64 << 20), frame_bytes: Some(256 << 20), ring_bytes: 64 << 20, ..CudaOptions::default() };
    if ahead { options } else { CudaOptions { ahead_bytes: Some(0), ..options } }
}

/// Every recurrent cell of the suite, in tasks of random rows and steps.
pub(crate) fn bits(place: Where) -> Value {
    let mut cells = hoisting::recurrent_cells(Precision::Bf16);
    if matches!(place, Where::Device(_)) {
        cells.push(hoisting::Recurrent { cell: lstm(1024), feedback: vec![(0, 1), (1, 2)] });
    }
    for recurrent in cells {
        let run = |ahead: bool, most: (u64, u32)| {
            let make = &mut || with(place, options(ahead));
            hoisting::deliveries(make, (&recurrent, hoisting::REQUESTS), most, &mut Rng::new(u64::from(most.1)))
        };
        let whole = run(false, (1, 1));
        for most in [(1, 1), (24, 1), (24, 3), (6, 2)] {
            let name = &recurrent.cell.name;
            assert!(run(true, most) == whole, "`{name}`: tasks of up to {most:?} rows and steps give other bits with steps computed ahead");
        }
    }
    json!({})
}

/// A step of an LSTM in bf16 over rows of its request, with five tasks outstanding, from the first one's submission to the last one's completion.
pub(crate) fn times(place: Where) -> Value {
    let (hidden, batches): (usize, &[usize]) = match place {
        Where::Device(_) => (1024, &[1, 16, 64, 256, 512]),
        Where::Emulated => (32, &[1, 16]),
    };
    let cell = [lstm(hidden)];
    let values: Vec<f32> = (0..STEPS as usize * hidden).map(|at| (at as f32).sin()).collect();
    let rows_of_request = Arc::new(Tensor::from_f32("x", &[STEPS as usize, hidden], &values));
    let mut figures = Map::new();
    for rows in batches {
        // As many steps as the scheduler gives a task, at least and at most.
        for steps in [1, 3] {
            for ahead in [false, true] {
                let how = if ahead { "ahead" } else { "whole" };
                let least = (0..ROUNDS).map(|_| round(place, &cell, &rows_of_request, (*rows, steps, ahead))).min().unwrap_or_default();
                figures.insert(format!("{how}_{rows}_by_{steps}_us"), json!(microseconds(least / STEPS)));
            }
        }
    }
    Value::Object(figures)
}

fn round(place: Where, cell: &[Arc<TypedCell>], x: &Arc<Tensor>, (rows, steps, ahead): (usize, u32, bool)) -> Duration {
    let mut driver = Driver::new(with(place, options(ahead)), cell);
    // The first request shows the device its kernels and graphs.
    let mut took = Duration::ZERO;
    for _ in 0..2 {
        let lanes: Vec<LaneId> = (0..rows).map(|_| lane(&mut driver, x)).collect();
        let tasks: Vec<_> = (0..STEPS)
            .step_by(steps as usize)
            .map(|step| driver.prepare(CellTypeId(0), &lanes.iter().map(|lane| (*lane, step)).collect::<Vec<_>>(), steps))
            .collect();
        let (began, mut outstanding) = (Instant::now(), 0);
        for task in tasks {
            driver.submit(task);
            outstanding += 1;
            if outstanding == AHEAD {
                let completed = driver.complete();
                driver.backend.recycle(completed);
                outstanding -= 1;
            }
        }
        (0..outstanding).for_each(|_| drop(driver.complete()));
        took = began.elapsed();
    }
    took
}

fn lstm(hidden: usize) -> Arc<TypedCell> {
    cells::lstm("lstm", hidden, hidden, &weights(4, hidden)).at(Precision::Bf16).resolve()
}

/// A chain over the request's rows that delivers nothing.
fn lane(driver: &mut Driver, x: &Arc<Tensor>) -> LaneId {
    let mut chain = independent(0, 2, vec![Source::Rows { tensor: 0, at: Affine::EVERY }, Source::Zeros, Source::Zeros], STEPS);
    chain.sequential = true;
    let stage = &mut chain.stages[0];
    (stage.inputs[1].feedback, stage.inputs[2].feedback) = (Some((0, 0)), Some((0, 1)));
    stage.retention = Retention::Double;
    stage.delivery = vec![Delivery::None; 2];
    driver.place(Arc::new(growth_of(vec![chain])), std::slice::from_ref(x), 0, &[]).lanes[0][0]
}

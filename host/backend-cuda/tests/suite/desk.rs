//! What is small goes to the desk and is left with the host, what is large goes through the rings: that neither disturbs the other, and that tasks are done in
//! their order whichever way each of them goes.

use std::ops::Range;
use std::sync::Arc;

use cellwright_backend::{CellTypeId, LaneId, Progress};
use cellwright_backend_cuda::driver::emulated::{Control, Emulated, Emulation, What};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Datatype, Tensor};
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Deliveries, Driver, growth_of, independent};

const CELL: CellTypeId = CellTypeId(0);
/// Floats of a row: 4 KiB.
const WIDTH: usize = 1024;
/// Steps of a request.
const STEPS: u32 = 11;
/// Rows of a task that is small, and of one whose rows, and what they bring, are more than the desk and the host are left.
const SMALL: usize = 2;
const LARGE: usize = 80;

fn driver(seed: u64, graphs: bool) -> (Driver, Control) {
    let device = Emulated::new(&Emulation { seed, memory_bytes: 256 << 20, ..Emulation::default() });
    let control = device.control();
    let options =
        CudaOptions { arena_bytes: Some(1 << 20), frame_bytes: Some(8 << 20), ring_bytes: 16 << 20, graphs, ..CudaOptions::default() };
    let worker = CudaWorker::new(Box::new(device), options).expect("a device made of threads");
    let cell = Draft::new("wide").input("x", Datatype::Fp32, &[WIDTH]).operator("Neg", &["x"], &["y"]);
    let cell = cell.output("y", Datatype::Fp32, &[WIDTH]).resolve();
    (Driver::new(Box::new(worker), &[cell]), control)
}

/// Requests whose rows are numbers of their own.
fn place(driver: &mut Driver, requests: usize) -> Vec<LaneId> {
    let one = |request: usize| {
        let values: Vec<f32> = (0..STEPS as usize * WIDTH).map(|at| (request * STEPS as usize * WIDTH + at) as f32).collect();
        let chain = independent(0, 1, vec![Source::Rows { tensor: 0, at: Affine::EVERY }], STEPS);
        let x = Tensor::from_f32("x", &[STEPS as usize, WIDTH], &values);
        driver.place(Arc::new(growth_of(vec![chain])), &[Arc::new(x)], 0, &[]).lanes[0][0]
    };
    (0..requests).map(one).collect()
}

fn submit(driver: &mut Driver, lanes: &[LaneId], (step, steps): (u32, u32)) {
    let rows: Vec<_> = lanes.iter().map(|lane| (*lane, step)).collect();
    let task = driver.prepare(CELL, &rows, steps);
    driver.submit(task);
}

/// Every row of these requests, which are numbered from `first` on, is what it was with the other sign.
fn assert_right(delivered: &Deliveries, (first, lanes): (usize, &[LaneId]), steps: Range<u32>) {
    for (request, lane) in (first..).zip(lanes) {
        for step in steps.clone() {
            let got = &delivered[&(*lane, 0, step)];
            let from = (request * STEPS as usize + step as usize) * WIDTH;
            let right = got.as_chunks().0.iter().zip(from..).all(|(bytes, at)| f32::from_le_bytes(*bytes) == -(at as f32));
            assert!(right && got.len() == WIDTH * 4, "request {request}, step {step}");
        }
    }
}

#[test]
fn small_and_large_tasks_do_not_disturb_each_other() {
    for (seed, graphs) in [(1, true), (2, true), (3, false)] {
        let (mut driver, control) = driver(seed, graphs);
        let lanes = place(&mut driver, SMALL + LARGE);
        let (small, large) = lanes.split_at(SMALL);
        let _ = control.take_log();
        // All at once, by turns: the desk is written again and again before anything has run.
        control.hold();
        submit(&mut driver, small, (0, 1));
        submit(&mut driver, large, (0, 2));
        submit(&mut driver, small, (1, 7));
        submit(&mut driver, large, (2, 1));
        submit(&mut driver, small, (8, 3));
        control.release();
        (0..5).for_each(|_| drop(driver.complete()));
        let log = control.take_log();
        let downloads = log.iter().filter(|ran| matches!(ran.what, What::Download { .. })).count();
        assert_eq!(downloads, 3, "of each large batch, and of no other");
        let cut: Vec<usize> =
            log.iter().filter_map(|ran| if let What::Graph { launches } = ran.what { Some(launches / 3) } else { None }).collect();
        assert_eq!(cut, if graphs { vec![1, 2, 4, 2, 1, 1, 2, 1] } else { vec![] }, "steps of each graph");
        assert_right(&driver.delivered, (0, small), 0..STEPS);
        assert_right(&driver.delivered, (SMALL, large), 0..3);
    }
}

/// A large task's signal waits for its download; that of a small one behind it comes later, on the stream of the steps, and so do all that follow.
#[test]
fn tasks_are_done_in_their_order_whichever_way_they_bring_what_they_leave() {
    let (mut driver, control) = driver(4, true);
    let lanes = place(&mut driver, LARGE);
    submit(&mut driver, &lanes, (0, 1));
    driver.complete();
    let log = control.take_log();
    let stream_of = |found: &dyn Fn(&What) -> bool| log.iter().find(|ran| found(&ran.what)).map(|ran| ran.stream);
    let downloads = stream_of(&|what| matches!(what, What::Download { .. })).expect("it is large");
    let own = stream_of(&|what| matches!(what, What::Launch { kernel: "finish", .. })).expect("every batch has one");
    control.hold_stream(downloads);
    submit(&mut driver, &lanes, (1, 1));
    submit(&mut driver, &lanes[..SMALL], (2, 1));
    submit(&mut driver, &lanes[..SMALL], (3, 1));
    control.settle();
    assert_ne!(driver.backend.progress(), Ok(Progress::Complete), "what the first one brings is not there");
    control.release();
    (0..3).for_each(|_| drop(driver.complete()));
    assert_right(&driver.delivered, (0, &lanes), 0..2);
    assert_right(&driver.delivered, (0, &lanes[..SMALL]), 2..4);
    let signals: Vec<_> = control.take_log().iter().filter(|ran| matches!(ran.what, What::Signal { .. })).map(|ran| ran.stream).collect();
    assert_eq!(signals, [downloads, own, own], "only a large task's is beside the steps");
}

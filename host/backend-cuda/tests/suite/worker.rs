//! What is the CUDA worker's own: work queued ahead of what it depends on, memory that is used again, room that runs out, devices that are lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cellwright_backend::{Backend, CellTypeId, LoadError, Progress, SLOT_BYTES, Slot, Stopped, TIMED_SPAN_ROWS, Task};
use cellwright_backend_cuda::driver::emulated::{Control, Emulated, Emulation, Injection, Ran, What};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Delivery, Length, Retention, Source, UnfoldedChain};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell, UnfoldedGrowth};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Deliveries, Driver, Placed, growth_of, independent};
use cellwright_conformance::spans;

const CELL: CellTypeId = CellTypeId(0);

/// Tasks that an engine has outstanding at most.
const AHEAD: usize = 5;

fn options() -> CudaOptions {
    CudaOptions {
        arena_bytes: Some(4 << 20),
        frame_bytes: Some(4 << 20),
        ring_bytes: 1 << 20,
        spin: Duration::ZERO,
        ..CudaOptions::default()
    }
}

fn worker(seed: u64, options: CudaOptions) -> (CudaWorker, Control) {
    let device = Emulated::new(&Emulation { seed, memory_bytes: 64 << 20, ..Emulation::default() });
    let control = device.control();
    (CudaWorker::new(Box::new(device), options).expect("a device made of threads"), control)
}

fn driver(seed: u64, options: CudaOptions, cells: &[Arc<TypedCell>]) -> (Driver, Control) {
    let (worker, control) = worker(seed, options);
    (Driver::new(Box::new(worker), cells), control)
}

fn random(name: &str, shape: &[usize], seed: u64) -> Tensor {
    let mut rng = Rng::new(seed);
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * 0.5).collect();
    Tensor::from_f32(name, shape, &values)
}

/// h' = tanh(x·w + h·u).
fn recurrent(precision: Precision) -> Arc<TypedCell> {
    let draft = Draft::new("recurrent").input("x", Datatype::Fp32, &[20]).input("h", Datatype::Fp32, &[9]);
    let draft = draft.weight(random("w", &[20, 9], 1)).weight(random("u", &[9, 9], 2));
    let draft = draft.operator("MatMul", &["x", "w"], &["of_x"]).operator("MatMul", &["h", "u"], &["of_h"]);
    let draft = draft.operator("Add", &["of_x", "of_h"], &["sum"]).operator("Tanh", &["sum"], &["next"]);
    draft.output("next", Datatype::Fp32, &[9]).at(precision).resolve()
}

/// A chain over the rows of a tensor, its state in two places by turns.
fn over_rows(steps: u32, seed: u64) -> (Arc<UnfoldedGrowth>, Vec<Arc<Tensor>>) {
    let mut chain = independent(0, 1, vec![Source::Rows { tensor: 0, at: Affine::EVERY }, Source::Zeros], steps);
    chain.sequential = true;
    chain.stages[0].inputs[1].feedback = Some((0, 0));
    chain.stages[0].retention = Retention::Double;
    (Arc::new(growth_of(vec![chain])), vec![Arc::new(random("x", &[steps as usize, 20], seed))])
}

/// A chain that counts down from `from`, at most so many steps.
fn counting(from: i64, bound: u32) -> UnfoldedChain {
    let mut chain = independent(0, 3, vec![Source::Ints(vec![from])], bound);
    chain.sequential = true;
    chain.stop = Some((0, 2));
    chain.stages[0].inputs[0].feedback = Some((0, 0));
    chain.stages[0].retention = Retention::Double;
    chain
}

/// Enough for a question whether the device is there.
const LOOKS: u32 = 1000;

#[test]
fn five_tasks_are_queued_while_the_device_does_nothing() {
    let steps = 15;
    let run = |at_once: usize, held: bool| {
        let (mut driver, control) = driver(3, options(), &[recurrent(Precision::F32)]);
        let (growth, tensors) = over_rows(steps, 7);
        let request = driver.place(growth, &tensors, 0, &[]);
        for first in (0..steps).step_by(at_once) {
            if held {
                control.hold();
            }
            for step in first..(first + at_once as u32).min(steps) {
                let task = driver.prepare(CELL, &[(request.lanes[0][0], step)], 1);
                driver.submit(task);
            }
            // Whoever looks is not held up, at first nor when it has lasted.
            for _ in 0..if held { LOOKS } else { 0 } {
                assert_ne!(driver.backend.progress(), Ok(Progress::Complete));
            }
            control.release();
            for _ in first..(first + at_once as u32).min(steps) {
                while driver.backend.progress() != Ok(Progress::Complete) {}
                driver.complete();
            }
        }
        assert_eq!(driver.backend.progress(), Ok(Progress::Complete), "there is nothing to wait for");
        assert!(matches!(driver.backend.complete(), Ok(None)));
        driver.delivered
    };
    let alone = run(1, false);
    assert_eq!(alone.len(), steps as usize);
    assert_eq!(run(AHEAD, true), alone, "a task needs nothing of those before it but their place in the stream");
}

#[test]
fn what_is_queued_beyond_a_stop_leaves_nothing_on_the_device() {
    let (mut driver, control) = driver(1, options(), &[cells::countdown(8).resolve()]);
    // The second chain has the first one's length, and no stop of its own.
    let mut follower = counting(8, 8);
    (follower.stop, follower.length) = (None, Length { bound: 8, like: Some(0) });
    let request = driver.place(Arc::new(growth_of(vec![counting(3, 8), follower])), &[], 0, &[]);
    let lanes = [request.lanes[0][0], request.lanes[1][0]];
    control.hold();
    for step in [0, 1, 2, 4] {
        let task = driver.prepare(CELL, &[(lanes[0], step), (lanes[1], step)], if step == 2 { 2 } else { 1 });
        driver.submit(task);
    }
    let task = driver.prepare(CELL, &[(lanes[0], 5), (lanes[1], 5)], 3);
    driver.submit(task);
    control.release();
    let stopped: Vec<Stopped> = (0..AHEAD).flat_map(|_| driver.complete().stopped).collect();
    assert_eq!(stopped, [Stopped { lane: lanes[0], step: 2 }]);
    for (lane, from) in [(lanes[0], 3_i64), (lanes[1], 8)] {
        let steps: Vec<u32> = driver.delivered.range((lane, 0, 0)..=(lane, 0, u32::MAX)).map(|((_, _, step), _)| *step).collect();
        assert_eq!(steps, [0, 1, 2], "the stopping step is the last, also of a chain that follows");
        let slot = request.growth.slots[lane.index()][0];
        let nodes = driver.backend.read(slot, 6).expect("the device is there");
        for (place, step) in [(0, 2), (1, 1)] {
            let left = i64::from_le_bytes(nodes[place * 3 * SLOT_BYTES..][..8].try_into().expect("eight bytes"));
            assert_eq!(left, from - 1 - step, "what step {step} left in place {place}");
        }
    }
    let executed: Vec<u32> = request.growth.executed.iter().map(|executed| executed.load(Ordering::Acquire)).collect();
    assert_eq!(executed, [3, 3]);
}

#[test]
fn what_is_queued_beyond_a_refusal_leaves_nothing_on_the_device() {
    let (mut driver, control) = driver(2, options(), &[cells::countdown(8).resolve()]);
    // It looks up 9, which is in no table, at once.
    let request = driver.place(Arc::new(growth_of(vec![counting(10, 8)])), &[], 0, &[]);
    let lane = request.lanes[0][0];
    control.hold();
    for step in 0..AHEAD as u32 {
        let task = driver.prepare(CELL, &[(lane, step)], 1);
        driver.submit(task);
    }
    control.release();
    let refused: Vec<u32> = (0..AHEAD).flat_map(|_| driver.complete().refused).map(|refused| refused.step).collect();
    assert_eq!(refused, [0], "each row is refused once, and its successors are not run");
    assert!(driver.delivered.is_empty());
    let nodes = driver.backend.read(request.growth.slots[0][0], 6).expect("the device is there");
    assert!(nodes.iter().all(|byte| *byte == 0));
}

/// Many requests, tasks of random rows and steps, several ahead of what is complete.
fn under_load(driver: &mut Driver, ahead: usize, seed: u64) -> Deliveries {
    let mut rng = Rng::new(seed);
    let placed: Vec<Placed> = (0..12)
        .map(|request| {
            let (growth, tensors) = over_rows(11, 100 + request);
            driver.place(growth, &tensors, 0, &[])
        })
        .collect();
    let mut left: Vec<_> = placed.iter().map(|request| (request.lanes[0][0], 0)).collect();
    let mut outstanding = 0;
    while !left.is_empty() {
        for at in (1..left.len()).rev() {
            left.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let rows = rng.between(1, left.len() as u32) as usize;
        let steps = rng.between(1, 4);
        let task = driver.prepare(CELL, &left[..rows], steps);
        driver.submit(task);
        outstanding += 1;
        left[..rows].iter_mut().for_each(|(_, step)| *step += steps);
        left.retain(|(_, step)| *step < 11);
        while outstanding > if left.is_empty() { 0 } else { ahead - 1 } {
            let completed = driver.complete();
            driver.backend.recycle(completed);
            outstanding -= 1;
        }
    }
    std::mem::take(&mut driver.delivered)
}

#[test]
fn rings_wrap_around_and_large_tasks_are_cut_without_a_bit_changing() {
    for precision in [Precision::F32, Precision::Bf16] {
        let cell = [recurrent(precision)];
        let expected = under_load(&mut driver(0, options(), &cell).0, 1, 5);
        assert_eq!(expected.len(), 12 * 11);
        for seed in 1..6 {
            // A ring holds few rows, so that a task is several segments that wait for one another.
            let small = CudaOptions { ring_bytes: 4096, rows_most: 5, ..options() };
            for (ahead, options) in [(AHEAD, options()), (AHEAD, small), (1, small)] {
                let (mut driver, _control) = driver(seed, options, &cell);
                for _ in 0..3 {
                    let got = under_load(&mut driver, ahead, seed);
                    let bytes = |deliveries: &Deliveries| deliveries.values().cloned().collect::<Vec<_>>();
                    assert!(bytes(&got) == bytes(&expected), "{precision}, seed {seed}, {ahead} ahead");
                }
            }
        }
    }
}

#[test]
fn a_batch_larger_than_the_frame_is_run_in_parts_of_equal_size() {
    let (mut driver, control) = driver(4, CudaOptions { rows_most: 8, graphs: false, ..options() }, &[recurrent(Precision::F32)]);
    let requests: Vec<Placed> = (0..20)
        .map(|seed| {
            let (growth, tensors) = over_rows(1, seed);
            driver.place(growth, &tensors, 0, &[])
        })
        .collect();
    let rows: Vec<_> = requests.iter().map(|request| (request.lanes[0][0], 0)).collect();
    let _ = control.take_log();
    driver.task(CELL, &rows, 1);
    let grids: Vec<u32> = control
        .take_log()
        .into_iter()
        .filter_map(|ran| match ran.what {
            What::Launch { kernel: "gather", grid, .. } => Some(grid[0]),
            _ => None,
        })
        .collect();
    assert_eq!(grids, [7, 7, 6]);
    assert_eq!(driver.delivered.len(), 20);
}

#[test]
fn slots_and_lanes_are_handed_on_while_their_tasks_are_on_their_way() {
    let cell = [recurrent(Precision::F32)];
    let expected = under_load(&mut driver(0, options(), &cell).0, 1, 5);
    let (mut worker, _control) = worker(9, options());
    worker.load(CELL, &cell[0]).expect("it fits");
    // One after the other in the same lane and the same slots, five at a time.
    let requests = (0..12).map(|request| over_rows(11, 100 + request)).enumerate();
    let mut got = Vec::new();
    let take = |worker: &mut CudaWorker, got: &mut Vec<Vec<u8>>| {
        let completed = worker.complete().expect("the device is there").expect("a task is outstanding");
        let ends = completed.delivered.iter().skip(1).map(|next| next.offset as usize).chain([completed.bytes.len()]);
        got.extend(completed.delivered.iter().zip(ends).map(|(delivered, end)| completed.bytes[delivered.offset as usize..end].to_vec()));
    };
    for (number, (growth, tensors)) in requests {
        let placed = cellwright_backend::PlacedGrowth {
            cells: [CELL].into(),
            slots: [vec![Slot(64)]].into(),
            executed: [std::sync::atomic::AtomicU32::new(11)].into(),
            earlier: Vec::new(),
            tensors,
            first_tensor: 0,
            flags: Arc::default(),
            growth,
        };
        let lane = cellwright_backend::LaneId(5);
        let task = Task {
            seq: number as u64,
            cell: CELL,
            steps: 11,
            rows: vec![cellwright_backend::Row { lane, step: 0 }],
            joins: vec![(lane, Arc::new(cellwright_backend::Lane { growth: Arc::new(placed), chain: 0, stage: 0 }))],
            leaves: if number > 0 { vec![lane] } else { Vec::new() },
            scrub: vec![(Slot(64), 2)],
            slice: None,
        };
        worker.submit(task).expect("the device is there");
        if number >= AHEAD {
            take(&mut worker, &mut got);
        }
    }
    (0..AHEAD).for_each(|_| take(&mut worker, &mut got));
    assert!(got.iter().eq(expected.values()), "who comes after finds nothing of who was before");
}

#[test]
fn a_chain_is_not_told_where_another_one_ended() {
    let (mut driver, _control) = driver(7, options(), &[cells::countdown(8).resolve()]);
    // Those that come later are longer, and take the place of one that has stopped.
    for (number, from) in [2, 4, 7].into_iter().enumerate() {
        let request = driver.place(Arc::new(growth_of(vec![counting(from, 8)])), &[], 0, &[]);
        let lane = request.lanes[0][0];
        let mut task = driver.prepare(CELL, &[(lane, 0)], 8);
        task.leaves = number.checked_sub(1).map(|before| cellwright_backend::LaneId(before as u32)).into_iter().collect();
        driver.submit(task);
        assert_eq!(driver.complete().stopped, [Stopped { lane, step: from as u32 - 1 }]);
    }
}

#[test]
fn more_chains_than_there_was_room_for() {
    let (mut driver, _control) =
        driver(6, CudaOptions { arena_bytes: Some(32 << 20), chains: 4096, ..options() }, &[cells::countdown(8).resolve()]);
    let requests: Vec<Placed> =
        (0..5000).map(|request| driver.place(Arc::new(growth_of(vec![counting(2 + request % 3, 8)])), &[], 0, &[])).collect();
    let rows = |step| requests.iter().map(|request| (request.lanes[0][0], step)).collect::<Vec<_>>();
    let tasks: Vec<Task> = (0..4).map(|step| driver.prepare(CELL, &rows(step), 1)).collect();
    tasks.into_iter().for_each(|task| driver.submit(task));
    let stopped: usize = (0..4).map(|_| driver.complete().stopped.len()).sum();
    assert_eq!(stopped, 5000);
    for (number, request) in requests.iter().enumerate() {
        assert_eq!(request.growth.executed[0].load(Ordering::Acquire), 2 + number as u32 % 3);
    }
}

#[test]
fn the_last_output_of_a_chain_that_stops_is_found_among_those_queued_ahead() {
    let (mut driver, control) = driver(8, options(), &[cells::countdown(8).resolve()]);
    let mut growth = growth_of(vec![counting(3, 8)]);
    growth.chains[0].stages[0].delivery = vec![Delivery::None, Delivery::Last, Delivery::None];
    let request = driver.place(Arc::new(growth), &[], 0, &[]);
    control.hold();
    for step in 0..AHEAD as u32 {
        let task = driver.prepare(CELL, &[(request.lanes[0][0], step)], 1);
        driver.submit(task);
    }
    control.release();
    (0..AHEAD).for_each(|_| drop(driver.complete()));
    assert_eq!(driver.delivered.keys().collect::<Vec<_>>(), [&(request.lanes[0][0], 1, 2)]);
}

#[test]
fn cells_of_one_key_share_their_weights_until_the_last_is_forgotten() {
    let (mut worker, control) = worker(0, options());
    let cell = recurrent(Precision::Bf16);
    worker.load(CellTypeId(9), &cells::countdown(8).resolve()).expect("it fits");
    worker.load(CELL, &cell).expect("it fits");
    let before = control.allocated_bytes();
    worker.load(CellTypeId(1), &cell).expect("it is there already");
    worker.load(CELL, &cell).expect("it is there already");
    assert_eq!(control.allocated_bytes(), before);
    worker.unload(CELL);
    assert_eq!(control.allocated_bytes(), before);
    worker.unload(CellTypeId(1));
    assert!(control.allocated_bytes() < before, "nobody names it any more");
}

#[test]
fn what_does_not_fit_is_refused_with_figures() {
    let cell = recurrent(Precision::F32);
    let load = |options| worker(0, options).0.load(CELL, &cell);
    let too_large = |result| match result {
        Err(LoadError::OutOfMemory { needed, available, .. }) => (needed, available),
        other => panic!("{other:?}"),
    };
    let (needed, available) = too_large(load(CudaOptions { weight_bytes: Some(500), ..options() }));
    assert_eq!((needed, available), (cell.weight_bytes, 500));
    // As packed it takes more than in the bundle.
    let (needed, available) = too_large(load(CudaOptions { weight_bytes: Some(5000), ..options() }));
    assert!(needed > 5000 && available == 5000, "{needed}");
    let (needed, available) = too_large(load(CudaOptions { frame_bytes: Some(64), ..options() }));
    assert!(needed > 64 && available == 64, "{needed}");
    let (mut worker, control) = worker(0, options());
    control.inject(Injection::OutOfMemory { after_allocations: 0 });
    too_large(worker.load(CELL, &cell));
    worker.load(CELL, &cell).expect("the device goes on");
    assert!(CudaWorker::new(Box::new(Emulated::new(&Emulation { memory_bytes: 1 << 20, ..Emulation::default() })), options()).is_err());
}

/// Whatever allocation of a load fails: the device goes on, with rings of one size, and so do its cells.
#[test]
fn a_load_that_fails_half_way_leaves_everything_as_it_was() {
    let cell = [recurrent(Precision::F32)];
    let wide = wide(3000);
    let small = CudaOptions { ring_bytes: 4096, ..options() };
    let expected = under_load(&mut driver(0, small, &cell).0, 1, 5);
    let mut failed = 0;
    for before in 0..8 {
        let (mut driver, control) = driver(0, small, &cell);
        control.inject(Injection::OutOfMemory { after_allocations: before });
        let loaded = driver.backend.load(CellTypeId(1), &wide);
        let got = under_load(&mut driver, AHEAD, 5);
        assert!(got.into_values().eq(expected.values().cloned()), "{before} allocations were made");
        // More rows than a small ring holds: they go through it in parts.
        let many = (0..100).map(|seed| {
            let (growth, tensors) = over_rows(2, seed);
            driver.place(growth, &tensors, 0, &[])
        });
        let rows: Vec<_> = many.collect::<Vec<_>>().iter().map(|request| (request.lanes[0][0], 0)).collect();
        driver.task(CELL, &rows, 1);
        if let Err(error) = loaded {
            assert!(matches!(error, LoadError::OutOfMemory { .. }), "{error}");
            failed += 1;
        }
    }
    // The plan and both rings; with a smaller frame it runs as well.
    assert!(failed >= 3, "{failed} allocations failed");
}

fn wide(values: usize) -> Arc<TypedCell> {
    let draft = Draft::new("wide").input("x", Datatype::Fp32, &[values]).operator("Neg", &["x"], &["y"]);
    draft.output("y", Datatype::Fp32, &[values]).resolve()
}

/// The frame may take what the device has not got twice.
#[test]
fn a_frame_grows_where_there_is_no_room_beside_the_old_one() {
    let cell = [recurrent(Precision::F32)];
    let expected = under_load(&mut driver(0, options(), &cell).0, 1, 5);
    // One row of the wide cell is more than the old frame holds, or less.
    for rows_most in [24, 4096] {
        let load = |fault: Option<Injection>| {
            let (mut driver, control) = driver(0, CudaOptions { rows_most, ..options() }, &cell);
            fault.into_iter().for_each(|fault| control.inject(fault));
            driver.backend.load(CellTypeId(1), &wide(3000)).expect("it fits");
            assert!(under_load(&mut driver, AHEAD, 5).into_values().eq(expected.values().cloned()), "{rows_most} rows");
            control.allocated_bytes()
        };
        // The cell's plan is allocated first.
        assert_eq!(load(Some(Injection::OutOfMemory { after_allocations: 1 })), load(None), "{rows_most} rows");
    }
}

/// Neither is there room without the old one, whose size is kept.
#[test]
fn a_frame_that_cannot_grow_stays_as_it_is() {
    let cell = [recurrent(Precision::F32)];
    let expected = under_load(&mut driver(0, options(), &cell).0, 1, 5);
    for (rows_most, values) in [(4096, 3000), (24, 1 << 20)] {
        let (mut driver, control) = driver(0, CudaOptions { rows_most, frame_bytes: Some(100 << 20), ..options() }, &cell);
        let before = control.allocated_bytes();
        match driver.backend.load(CellTypeId(1), &wide(values)) {
            Ok(()) => assert_eq!(values, 3000, "one row of it fits the old frame"),
            Err(LoadError::OutOfMemory { .. }) => assert_eq!((values, control.allocated_bytes()), (1 << 20, before)),
            Err(error) => panic!("{error}"),
        }
        assert!(under_load(&mut driver, AHEAD, 5).into_values().eq(expected.values().cloned()), "{rows_most} rows");
    }
}

#[test]
fn products_in_int8_are_refused_in_one_sentence() {
    let said = worker(0, options()).0.load(CELL, &recurrent(Precision::Int8)).expect_err("there is no such kernel").to_string();
    assert_eq!(said, "cell `recurrent`: the CUDA worker cannot run products in int8: load the model in bf16");
}

#[test]
fn a_device_that_is_lost_says_so_and_nothing_hangs() {
    let faults = [Injection::IllegalAccess { after_launches: 9 }, Injection::DeviceLost { after_work: 23 }];
    for (seed, fault) in faults.into_iter().enumerate() {
        let (mut driver, control) = driver(seed as u64, options(), &[recurrent(Precision::F32)]);
        let (growth, tensors) = over_rows(40, 7);
        let request = driver.place(growth, &tensors, 0, &[]);
        control.inject(fault);
        let mut lost = None;
        for step in 0..40 {
            let task = driver.prepare(CELL, &[(request.lanes[0][0], step)], 1);
            let done = driver.backend.submit(task).and_then(|()| if step % 2 == 0 { driver.backend.complete().map(drop) } else { Ok(()) });
            if let Err(error) = done {
                lost = Some(error);
                break;
            }
        }
        let lost = lost.expect("the fault surfaces");
        assert!(lost.device.contains("emulated") && !lost.cause.is_empty(), "{lost}");
        let again = driver.prepare(CELL, &[(request.lanes[0][0], 39)], 1);
        assert_eq!(driver.backend.submit(again), Err(lost), "and goes on saying so");
        assert!(driver.backend.complete().is_err() && driver.backend.read(Slot(0), 1).is_err());
        assert!(driver.backend.time_batch(CELL, 1).is_err());
    }
}

#[test]
fn timing_takes_nothing_from_tasks_on_their_way() {
    let (mut driver, _control) = driver(5, CudaOptions { rows_most: 8, ..options() }, &[recurrent(Precision::F32)]);
    let (growth, tensors) = over_rows(4, 7);
    let request = driver.place(growth, &tensors, 0, &[]);
    let tasks: Vec<Task> = (0..4).map(|step| driver.prepare(CELL, &[(request.lanes[0][0], step)], 1)).collect();
    tasks.into_iter().for_each(|task| driver.submit(task));
    assert!(driver.backend.time_batch(CELL, 20).expect("the device is there") > Duration::ZERO);
    (0..4).for_each(|_| drop(driver.complete()));
    assert_eq!(driver.delivered.len(), 4);
}

#[test]
fn the_first_bad_index_in_order_is_the_one_that_is_told() {
    let table = |rows| random("table", &[rows, 2], 3);
    let draft = Draft::new("two tables").input("at", Datatype::Int64, &[70]).input("also", Datatype::Int32, &[2, 2]);
    let draft = draft.weight(Tensor { name: "large".to_owned(), ..table(50) }).weight(Tensor { name: "small".to_owned(), ..table(9) });
    let draft = draft.operator("Gather", &["large", "at"], &["a"]).operator("Gather", &["small", "also"], &["b"]);
    let cell = draft.output("a", Datatype::Fp32, &[70, 2]).output("b", Datatype::Fp32, &[2, 2, 2]).resolve();
    for seed in 0..8 {
        let (mut driver, _control) = driver(seed, options(), std::slice::from_ref(&cell));
        let tell = |driver: &mut Driver, large: &[(usize, i64)], small: &[(usize, i32)]| {
            let (mut at, mut also) = ([0_i64; 70], [0_i32; 4]);
            large.iter().for_each(|(place, index)| at[*place] = *index);
            small.iter().for_each(|(place, index)| also[*place] = *index);
            let bytes: [Vec<u8>; 2] =
                [at.iter().flat_map(|at| at.to_le_bytes()).collect(), also.iter().flat_map(|at| at.to_le_bytes()).collect()];
            let chain = independent(0, 2, bytes.map(|bytes| Source::Literal(bytes.into_boxed_slice())).to_vec(), 1);
            let request = driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]);
            driver.task(CELL, &[(request.lanes[0][0], 0)], 1).refused.iter().map(|refused| refused.error.to_string()).collect::<Vec<_>>()
        };
        let told = tell(&mut driver, &[(69, 77), (33, -51), (34, 50)], &[(0, 9)]);
        assert_eq!(told, ["index -51 is out of range for a table of 50 rows (operator Gather, cell `two tables`)"]);
        let told = tell(&mut driver, &[(1, -50), (69, 49)], &[(3, i32::MIN), (2, 9)]);
        assert_eq!(told, ["index 9 is out of range for a table of 9 rows (operator Gather, cell `two tables`)"]);
        assert!(tell(&mut driver, &[(0, 49)], &[(3, -9)]).is_empty());
    }
}

#[test]
fn cells_with_ragged_inputs_are_timed_with_rows_of_spans() {
    let draft = spans::cases().into_iter().find(|draft| draft.clone().resolve().name == "Bahdanau attention").expect("a case");
    let (mut driver, control) = driver(5, options(), &[draft.resolve()]);
    let launched = |control: &Control| {
        let blocks = |ran: &Ran| if let What::Launch { kernel: "gather", grid, .. } = ran.what { Some(grid[0]) } else { None };
        control.take_log().iter().filter_map(blocks).max()
    };
    launched(&control);
    for rows in [1, 3] {
        driver.backend.time_batch(CELL, rows).expect("the device is there");
        assert_eq!(launched(&control), Some(rows * TIMED_SPAN_ROWS), "all rows of all spans are computed");
    }
}

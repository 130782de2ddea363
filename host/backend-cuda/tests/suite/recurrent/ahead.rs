//! What is computed ahead of its step on a stream of its own: that no bit depends on it, that nobody reads what is not there yet or writes to what is
//! still read, and that it takes no more than it may.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::{Backend, CellTypeId, Lane, LaneId, PlacedGrowth, Progress, Row, Slot, Stopped, Task};
use cellwright_backend_cuda::CudaOptions;
use cellwright_backend_cuda::driver::Stream;
use cellwright_backend_cuda::driver::emulated::{Control, Injection, Ran, What};
use cellwright_cell_graph::Datatype::Fp32;
use cellwright_cell_graph::TypedCell;
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Delivery, Length, Retention, Source, UnfoldedChain};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Deliveries, Driver, Placed, delivering_everything, growth_of, independent};

use crate::recurrent::{AHEAD, CELL, UNITS, lstm, lstm_of_tokens, options, over_rows, place, random, weights};

fn driver(seed: u64, options: CudaOptions, cells: &[Arc<TypedCell>]) -> (Driver, Control) {
    let (worker, control) = crate::recurrent::with(seed, (9, 0), options);
    (Driver::new(Box::new(worker), cells), control)
}

/// With so many bytes for what is computed ahead.
fn ahead(bytes: u64) -> CudaOptions {
    CudaOptions { ahead_bytes: Some(bytes), ..options() }
}

/// A ring of what is computed ahead, as [`options`] has it, takes so much of that.
const RING: u64 = 1 << 18;

/// What ran, as far as it matters here.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    /// Products beside the steps, and rows that were gathered for them.
    ahead: usize,
    rows: u32,
    /// Products in the stream of the steps.
    within: usize,
    /// Batches.
    batches: usize,
}

fn seen(control: &Control) -> Seen {
    let log = control.take_log();
    let launches: Vec<(Stream, &str, u32)> = log
        .into_iter()
        .filter_map(|ran| match ran.what {
            What::Launch { kernel, grid, .. } => Some((ran.stream, kernel, grid[0])),
            _ => None,
        })
        .collect();
    let own = launches.iter().find(|(_, kernel, _)| *kernel == "finish").map(|(stream, ..)| *stream);
    let mut seen = Seen::default();
    for (stream, kernel, grid) in launches {
        match (kernel, Some(stream) == own) {
            ("gather", false) => seen.rows += grid,
            ("lstm_rows" | "lstm_gather", true) => seen.batches += 1,
            ("lstm_rows" | "lstm_gather" | "finish", false) => panic!("{kernel} runs beside the steps"),
            (kernel, is_own) if kernel.starts_with("wide_") => *(if is_own { &mut seen.within } else { &mut seen.ahead }) += 1,
            _ => {}
        }
    }
    seen
}

/// Requests of many lengths that join and leave, in tasks of random rows of a few steps, five of which are queued while the device does nothing.
fn under_load(driver: &mut Driver, control: &Control, at_once: usize, seed: u64) -> Deliveries {
    let lengths: Vec<u32> = (0..14).map(|number| 1 + (number * 7) % 23).collect();
    let placed: Vec<Placed> = lengths.iter().zip(0..).map(|(steps, seed)| place(driver, over_rows(1, *steps), seed)).collect();
    let mut rng = Rng::new(seed);
    let mut left: Vec<(LaneId, u32, u32)> = placed.iter().zip(&lengths).map(|(one, steps)| (one.lanes[0][0], 0, *steps)).collect();
    let (mut active, mut gone, mut outstanding) = (Vec::new(), Vec::new(), 0);
    while !(left.is_empty() && active.is_empty()) {
        let joining = left.len().min(rng.below(3) as usize + usize::from(active.is_empty()));
        active.extend(left.drain(..joining));
        if outstanding == 0 && at_once > 1 {
            control.hold();
        }
        for at in (1..active.len()).rev() {
            active.swap(at, rng.below(at as u64 + 1) as usize);
        }
        // Mostly all of them, as an engine does it.
        let rows = if rng.below(3) == 0 { rng.between(1, active.len() as u32) as usize } else { active.len() };
        let steps = if at_once == 1 { 1 } else { rng.between(1, 3) };
        let chosen: Vec<(LaneId, u32)> = active[..rows].iter().map(|(lane, step, _)| (*lane, *step)).collect();
        let mut task = driver.prepare(CELL, &chosen, steps);
        task.leaves = std::mem::take(&mut gone);
        driver.submit(task);
        outstanding += 1;
        active[..rows].iter_mut().for_each(|(_, step, _)| *step += steps);
        gone.extend(active.iter().filter(|(_, step, end)| step >= end).map(|(lane, ..)| *lane));
        active.retain(|(_, step, end)| step < end);
        if outstanding == at_once || active.is_empty() {
            control.release();
            for _ in 0..std::mem::take(&mut outstanding) {
                let completed = driver.complete();
                driver.backend.recycle(completed);
            }
        }
    }
    std::mem::take(&mut driver.delivered)
}

fn gru(x: usize, units: usize) -> Arc<TypedCell> {
    let weights = move |name: &str| match name {
        "weight_ih" => random(name, &[3 * units, x], 1),
        "weight_hh" => random(name, &[3 * units, units], 2),
        _ => random(name, &[3 * units], 4),
    };
    cells::gru("gru", x, units, &weights).at(Precision::Bf16).resolve()
}

/// Room for all, for three blocks of sixteen rows, and for none.
#[test]
fn no_bit_depends_on_what_was_computed_ahead() {
    // Of 45 units rows are padded, which is a group of its own behind the product.
    for units in [UNITS, 45] {
        let cell = [lstm(5, units)];
        let (mut driver_alone, control) = driver(1, ahead(0), &cell);
        let alone = under_load(&mut driver_alone, &control, 1, 1);
        assert_eq!(seen(&control).ahead, 0, "there is no room");
        for seed in 0..3 {
            for (bytes, graphs) in [(4 << 20, true), (4 << 20, false), (RING + 2 * 48 * 1600, false)] {
                let (mut driver, control) = driver(seed, CudaOptions { graphs, ..ahead(bytes) }, &cell);
                let got = under_load(&mut driver, &control, AHEAD, seed);
                assert!(got == alone, "{units} units, seed {seed}, {bytes} bytes, graphs: {graphs}");
                let seen = seen(&control);
                assert!(seen.ahead > 0 && seen.within < seen.batches, "{seen:?}");
            }
        }
    }
}

#[test]
fn a_gru_is_computed_ahead_as_well() {
    let cell = [gru(5, UNITS)];
    let run = |bytes, at_once| {
        // And beside it nobody leaves its memory.
        let (mut driver, control) = driver(2, CudaOptions { debug: bytes > 0, ..ahead(bytes) }, &cell);
        (0..3).map(|_| under_load(&mut driver, &control, at_once, 3).into_values().collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    assert!(run(0, 1) == run(4 << 20, AHEAD));
}

/// Two requests of so many steps, and the streams of the steps and of what is computed ahead, as a third request shows them.
fn two_requests(seed: u64, options: CudaOptions, steps: u32) -> (Driver, Control, [LaneId; 2], [Stream; 2]) {
    let (mut driver, control) = driver(seed, CudaOptions { graphs: false, ..options }, &[lstm(5, UNITS)]);
    let lanes = [3, 4, 5].map(|seed| place(&mut driver, over_rows(1, steps), seed).lanes[0][0]);
    (0..steps).step_by(3).for_each(|step| drop(driver.task(CELL, &[(lanes[2], step)], 3)));
    let mut last = driver.prepare(CELL, &[], 1);
    last.leaves = vec![lanes[2]];
    driver.submit(last);
    driver.complete();
    let log = control.take_log();
    let stream_of =
        |own: &str| log.iter().find(|ran| matches!(ran.what, What::Launch { kernel, .. } if kernel == own)).map(|ran| ran.stream);
    let own = stream_of("finish").expect("every batch has one");
    let beside = |ran: &&Ran| ran.stream != own && matches!(ran.what, What::Launch { .. });
    let beside = log.iter().find(beside).expect("the third request was computed ahead").stream;
    (driver, control, [lanes[0], lanes[1]], [own, beside])
}

fn queue(driver: &mut Driver, rows: &[(LaneId, u32)], steps: u32) {
    let task = driver.prepare(CELL, rows, steps);
    driver.submit(task);
}

/// What both requests deliver if nothing is computed ahead.
fn alone(steps: u32) -> Deliveries {
    let (mut driver, _control) = driver(0, ahead(0), &[lstm(5, UNITS)]);
    let lanes = [3, 4, 5].map(|seed| place(&mut driver, over_rows(1, steps), seed).lanes[0][0]);
    lanes.iter().for_each(|lane| drop(driver.task(CELL, &[(*lane, 0)], steps)));
    driver.delivered
}

/// A batch that reads what is computed beside it waits for that, and one that does not, does not.
#[test]
fn a_batch_waits_for_what_it_reads() {
    let steps = 12;
    let (mut driver, control, [one, other], [_, beside]) = two_requests(1, options(), steps);
    control.hold_stream(beside);
    queue(&mut driver, &[(one, 0)], 3);
    driver.complete();
    queue(&mut driver, &[(one, 3)], 1);
    control.settle();
    assert_ne!(driver.backend.progress(), Ok(Progress::Complete), "it reads what is not there yet");
    // A lane that joins is computed for, since the other one is: that waits as well.
    queue(&mut driver, &[(one, 4), (other, 0)], 3);
    control.settle();
    let read =
        |ran: &Ran| matches!(&ran.what, What::Launch { kernel: "lstm_rows" | "lstm_gather", arguments, .. } if arguments[32..40] != [0; 8]);
    assert!(!control.take_log().iter().any(read), "nothing was read before it was there");
    control.release();
    (0..2).for_each(|_| drop(driver.complete()));
    driver.task(CELL, &[(one, 7), (other, 3)], 9);
    assert_eq!(control.take_log().iter().filter(|ran| read(ran)).count(), 3, "every batch but the first reads what was computed ahead");
    assert!(driver.delivered.iter().eq(alone(steps).iter().filter(|((lane, ..), _)| driver.delivered.contains_key(&(*lane, 0, 0)))));
}

/// Where the rows of one request are all there are, another one's next steps are not computed until the first one's have been read.
#[test]
fn what_is_read_is_not_written_to() {
    let steps = 12;
    // A block of sixteen rows, and not two.
    let (mut driver, control, [one, other], [own, _]) = two_requests(2, ahead(RING + (1 << 15)), steps);
    queue(&mut driver, &[(one, 0)], 3);
    driver.complete();
    control.settle();
    control.hold_stream(own);
    // All that is kept is somebody's now, and was not read.
    (3..steps).step_by(3).for_each(|step| queue(&mut driver, &[(one, step)], 3));
    queue(&mut driver, &[(other, 0)], 3);
    control.settle();
    control.release();
    (0..4).for_each(|_| drop(driver.complete()));
    assert_eq!(seen(&control).ahead, 1, "there is no room for the other one");
    (3..steps).step_by(3).for_each(|step| drop(driver.task(CELL, &[(other, step)], 3)));
    let seen = seen(&control);
    assert_eq!((seen.ahead, seen.within, seen.batches), (1, 1, 3), "what was read is room again");
    assert!(driver.delivered == alone(steps));
}

#[test]
fn it_takes_no_more_than_it_may_and_goes_with_its_cell() {
    let with = |bytes: u64| {
        let (mut worker, control) = crate::recurrent::with(0, (9, 0), ahead(bytes));
        let mut taken = Vec::new();
        for _ in 0..2 {
            for (index, cell) in [lstm(5, UNITS), gru(5, UNITS)].iter().enumerate() {
                worker.load(CellTypeId(index as u32), cell).expect("it fits");
                taken.push(control.allocated_bytes());
            }
            (0..2).for_each(|index| worker.unload(CellTypeId(index)));
            taken.push(control.allocated_bytes());
        }
        assert_eq!(taken[..3], taken[3..], "what is unloaded leaves nothing but the ring");
        (taken[0], taken[1], taken[2])
    };
    let none = with(0);
    for (bytes, is_enough) in
        [(1 << 10, false), (RING, false), (RING + (1 << 12), false), (1 << 19, true), (1 << 20, true), (4 << 20, true)]
    {
        let some = with(bytes);
        let more = (some.0 - none.0, some.1 - none.1);
        assert!(more.0 <= bytes && more.1 <= bytes, "{more:?} of {bytes}");
        assert_eq!([more.0 > 0, more.1 > more.0], [is_enough; 2], "{more:?} of {bytes}");
        assert_eq!(some.2 - none.2, if more.0 > 0 { RING } else { 0 }, "the ring stays");
    }
}

/// Neither the device's memory nor the host's can be had for it: cells are loaded all the same, leave nothing behind, and give the same bits.
#[test]
fn a_cell_that_gets_no_room_ahead_is_loaded_without_it() {
    let cell = [lstm(5, UNITS)];
    let run = |bytes: u64, fault: Option<Injection>| {
        let (mut worker, control) = crate::recurrent::with(3, (9, 0), ahead(bytes));
        fault.into_iter().for_each(|fault| control.inject(fault));
        worker.load(CELL, &cell[0]).expect("what is computed ahead is not needed");
        let taken = control.allocated_bytes();
        let mut driver = Driver::new(Box::new(worker), &cell);
        let delivered = under_load(&mut driver, &control, AHEAD, 4);
        (taken, delivered, seen(&control).ahead)
    };
    let (without, expected, _) = run(0, None);
    let (with, got, some) = run(4 << 20, None);
    assert!(with > without && some > 0 && got == expected);
    // The plan and the frame are allocated first; all that a load pins is a ring for this, and a word.
    let faults = [0, 1].map(|after_ranges| Injection::NoPinned { after_ranges });
    let faults = faults.into_iter().chain([2, 3].map(|after_allocations| Injection::OutOfMemory { after_allocations }));
    for (number, fault) in faults.enumerate() {
        let (taken, got, none) = run(4 << 20, Some(fault));
        // The ring stays for the next cell where only the rows had no room.
        assert_eq!((taken - without, none), (if number == 3 { RING } else { 0 }, 0), "{fault:?}");
        assert!(got == expected, "{fault:?}");
    }
}

/// Between what is computed ahead and the step that would read it the request dies, and another one has its lane, its slots and other rows.
#[test]
fn a_lane_is_handed_on_while_its_steps_are_computed() {
    let cell = lstm(5, UNITS);
    let steps = 12;
    let run = |seed, bytes| {
        let (mut worker, control) = crate::recurrent::with(seed, (9, 0), ahead(bytes));
        worker.load(CELL, &cell).expect("it fits");
        let lane = LaneId(5);
        let mut got = Vec::new();
        let _ = control.take_log();
        for request in 0..12_u64 {
            let placed = PlacedGrowth {
                cells: [CELL].into(),
                slots: [vec![Slot(64)]].into(),
                executed: [std::sync::atomic::AtomicU32::new(steps)].into(),
                earlier: Vec::new(),
                tensors: vec![Arc::new(random("x", &[steps as usize, 5], 100 + request))],
                first_tensor: 0,
                flags: Arc::default(),
                growth: delivering_everything(&growth_of(vec![over_rows(1, steps)])),
            };
            let placed = Arc::new(placed);
            control.hold();
            // The first task computes ahead for those behind it, of which some never come.
            let last = [2, steps - 2, 4][request as usize % 3];
            for step in (0..last).step_by(2) {
                let seq = request * 100 + u64::from(step);
                let mut task = Task { seq, cell: CELL, steps: 2, rows: vec![Row { lane, step }], ..Task::default() };
                if step == 0 {
                    task.joins = vec![(lane, Arc::new(Lane { growth: Arc::clone(&placed), chain: 0, stage: 0 }))];
                    task.leaves = if request > 0 { vec![lane] } else { Vec::new() };
                    task.scrub = vec![(Slot(64), 8)];
                }
                worker.submit(task).expect("the device is there");
            }
            if request % 2 == 0 {
                placed.flags.dead.store(true, Ordering::Relaxed);
            }
            control.release();
            for _ in (0..last).step_by(2) {
                let completed = worker.complete().expect("the device is there").expect("a task is outstanding");
                got.push(completed.bytes);
            }
        }
        (got, seen(&control).ahead)
    };
    let (expected, none) = run(0, 0);
    assert!(none == 0 && expected.iter().any(|bytes| !bytes.is_empty()));
    for seed in 0..6 {
        let (got, some) = run(seed, 4 << 20);
        assert!(got == expected && some > 0, "seed {seed}");
    }
}

/// Words that say where a chain ends change while what lies beyond was computed.
#[test]
fn a_chain_that_ends_leaves_nothing_of_what_was_computed_beyond() {
    let cells = [lstm(5, UNITS), cells::countdown(8).resolve()];
    let run = |seed, bytes, ends_after: u32| {
        let (mut driver, control) = driver(seed, ahead(bytes), &cells);
        let mut counting = independent(1, 3, vec![Source::Ints(vec![i64::from(ends_after)])], 8);
        counting.sequential = true;
        counting.stop = Some((0, 2));
        counting.stages[0].inputs[0].feedback = Some((0, 0));
        counting.stages[0].retention = Retention::Double;
        let mut like = over_rows(1, 8);
        like.length = Length { bound: 8, like: Some(0) };
        let growth = growth_of(vec![counting, like, over_rows(1, 8)]);
        let request = driver.place(delivering_everything(&growth), &[Arc::new(random("x", &[8, 5], 3))], 0, &[]);
        let [counting, like, free] = [0, 1, 2].map(|chain| request.lanes[chain][0]);
        let _ = control.take_log();
        control.hold();
        let mut stopped = Vec::new();
        for step in (0..8).step_by(2) {
            let task = driver.prepare(CellTypeId(1), &[(counting, step)], 2);
            driver.submit(task);
            queue(&mut driver, &[(like, step), (free, step)], 2);
        }
        control.release();
        (0..8).for_each(|_| stopped.extend(driver.complete().stopped));
        assert_eq!(stopped, [Stopped { lane: counting, step: ends_after - 1 }]);
        let steps = |lane| driver.delivered.range((lane, 0, 0)..=(lane, 0, u32::MAX)).count() as u32;
        assert_eq!([like, free].map(steps), [ends_after, 8]);
        (driver.delivered, seen(&control).ahead)
    };
    for ends_after in 1..=7 {
        let (expected, none) = run(0, 0, ends_after);
        let (got, some) = run(u64::from(ends_after), 4 << 20, ends_after);
        assert!(none == 0 && some > 0 && got == expected, "it ends after {ends_after}");
    }
}

/// Whatever of it a fault meets, the worker says so, and nothing hangs.
#[test]
fn a_device_that_is_lost_beside_the_steps_is_lost() {
    for launches in 0..24 {
        let (mut driver, control) = driver(launches, CudaOptions { graphs: false, ..options() }, &[lstm(5, UNITS)]);
        let lanes = [3, 4].map(|seed| place(&mut driver, over_rows(1, 30), seed).lanes[0][0]);
        control.inject(Injection::IllegalAccess { after_launches: launches });
        let lost = (0..30).step_by(3).find_map(|step| {
            let task = driver.prepare(CELL, &lanes.map(|lane| (lane, step)), 3);
            driver.backend.submit(task).and_then(|()| driver.backend.complete().map(drop)).err()
        });
        let lost = lost.expect("the fault surfaces");
        assert!(lost.cause.starts_with("an illegal memory access"), "{lost}");
        let again = driver.prepare(CELL, &[(lanes[0], 3)], 1);
        assert_eq!(driver.backend.submit(again), Err(lost), "and goes on saying so");
        driver.backend.unload(CELL);
    }
}

/// Inputs that are another node's, tokens that are looked up, sums that somebody else reads: these are computed where they were.
#[test]
fn what_is_not_known_ahead_goes_on_as_it_does() {
    let run = |cell: &Arc<TypedCell>, options: CudaOptions, change: &dyn Fn(&mut UnfoldedChain)| {
        let (mut driver, control) = driver(5, options, std::slice::from_ref(cell));
        let mut chain = over_rows(1, 8);
        chain.stages[0].delivery = vec![Delivery::All; cell.outputs.len()];
        change(&mut chain);
        let width = cell.inputs[0].shape.first().map_or(1, |extent| *extent as usize);
        let lane = driver.place(Arc::new(growth_of(vec![chain])), &[Arc::new(random("x", &[8, width], 3))], 0, &[]).lanes[0][0];
        let _ = control.take_log();
        (0..8).step_by(2).for_each(|step| drop(driver.task(CELL, &[(lane, step)], 2)));
        control.settle();
        let Seen { ahead, within, rows, .. } = seen(&control);
        (ahead, within, rows)
    };
    let plain = lstm(UNITS, UNITS);
    assert_eq!(run(&plain, options(), &|_| ()), (1, 1, 6), "the first task's two steps are computed with it, all others at once");
    assert_eq!(run(&plain, ahead(0), &|_| ()), (0, 4, 0));
    let fed = |chain: &mut UnfoldedChain| chain.stages[0].inputs[0].feedback = Some((0, 0));
    assert_eq!(run(&plain, options(), &fed), (0, 8, 0), "an input that is fed back");
    let tokens = |chain: &mut UnfoldedChain| chain.stages[0].inputs[0].source = Source::Ints(vec![3; 8]);
    let few = CudaOptions { weight_bytes: Some(crate::recurrent::table::least_budget(&lstm_of_tokens(UNITS))), ..options() };
    assert_eq!(run(&lstm_of_tokens(UNITS), options(), &tokens), (0, 0, 0), "a table has all of it");
    assert_eq!(run(&lstm_of_tokens(UNITS), few, &tokens), (0, 4, 0), "a token may be refused, which is told where its step runs");
    let read = cells::lstm("lstm", UNITS, UNITS, &weights(UNITS, UNITS)).weight(random("v", &[UNITS, UNITS], 9));
    let beside = |draft: Draft, of: &str| draft.operator("MatMul", &[of, "v"], &["beside"]).output("beside", Fp32, &[UNITS]);
    let both = beside(read, "x").at(Precision::Bf16).resolve();
    assert_eq!(run(&both, options(), &|_| ()), (0, 8, 0), "an output that is computed before the step is the step's");
}

/// What follows the step may read the same input.
#[test]
fn an_input_that_is_read_again_is_gathered_again() {
    let draft = cells::lstm("residual", UNITS, UNITS, &weights(UNITS, UNITS));
    let first = draft.resolve().outputs[0].port.name.clone();
    let draft = cells::lstm("residual", UNITS, UNITS, &weights(UNITS, UNITS)).operator("Add", &["x", &first], &["sum"]);
    let cell = [draft.output("sum", Fp32, &[UNITS]).at(Precision::Bf16).resolve()];
    let run = |bytes, steps: u32| {
        let (mut driver, control) = driver(6, ahead(bytes), &cell);
        let growth = delivering_everything(&growth_of(vec![{
            let mut chain = over_rows(1, 9);
            chain.stages[0].delivery = vec![Delivery::All; 3];
            chain
        }]));
        let lane = driver.place(growth, &[Arc::new(random("x", &[9, UNITS], 3))], 0, &[]).lanes[0][0];
        (0..9).step_by(steps as usize).for_each(|step| drop(driver.task(CELL, &[(lane, step)], steps)));
        (driver.delivered, seen(&control).ahead)
    };
    let (expected, none) = run(0, 9);
    let (got, some) = run(4 << 20, 1);
    assert!(none == 0 && some > 0 && expected.len() == 27 && got == expected);
}

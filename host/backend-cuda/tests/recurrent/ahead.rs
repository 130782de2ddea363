//! What is computed ahead of its step on a stream of its own: that no bit depends on it, that nobody reads what is not there yet or writes to what is
//! still read, and that it takes no more than it may.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::conformance::cells::{self, Draft};
use cellwright_backend::conformance::driver::{Deliveries, Driver, Placed, delivering_everything, growth_of, independent};
use cellwright_backend::{Backend, Lane, LaneIndex, PlacedGrowth, Row, Slot, Stopped, Task};
use cellwright_backend_cuda::CudaOptions;
use cellwright_backend_cuda::driver::Stream;
use cellwright_backend_cuda::driver::emulated::{Control, Injection, What};
use cellwright_cell_graph::Datatype::{Fp32, Int64};
use cellwright_cell_graph::TypedCell;
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Length, Retention, Source, UnfoldedChain};

use crate::{AHEAD, CELL, UNITS, lstm, lstm_of_tokens, options, over_rows, place, random, state, weights};

fn driver(seed: u64, options: CudaOptions, cells: &[Arc<TypedCell>]) -> (Driver, Control) {
    let (worker, control) = crate::with(seed, (9, 0), options);
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
            ("lstm_rows", true) => seen.batches += 1,
            ("lstm_rows" | "finish", false) => panic!("{kernel} runs beside the steps"),
            (kernel, is_own) if kernel.starts_with("product") => *(if is_own { &mut seen.within } else { &mut seen.ahead }) += 1,
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
    let mut left: Vec<(LaneIndex, u32, u32)> = placed.iter().zip(&lengths).map(|(one, steps)| (one.lanes[0][0], 0, *steps)).collect();
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
        let chosen: Vec<(LaneIndex, u32)> = active[..rows].iter().map(|(lane, step, _)| (*lane, *step)).collect();
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
        for seed in 0..6 {
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
        let (mut driver, control) = driver(2, ahead(bytes), &cell);
        (0..3).map(|_| under_load(&mut driver, &control, at_once, 3).into_values().collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    assert!(run(0, 1) == run(4 << 20, AHEAD));
}

/// A stream of its own runs when it likes: a batch that reads of it waits, and the others do not.
#[test]
fn a_batch_waits_for_what_it_reads() {
    for seed in 0..16 {
        let (mut driver, control) = driver(seed, CudaOptions { graphs: false, ..options() }, &[lstm(5, UNITS)]);
        let request = place(&mut driver, over_rows(1, 40), 3);
        let lane = request.lanes[0][0];
        driver.task(CELL, &[(lane, 0)], 1);
        let _ = control.take_log();
        control.hold();
        for step in 1..=AHEAD as u32 {
            let task = driver.prepare(CELL, &[(lane, step)], 1);
            driver.submit(task);
        }
        control.release();
        (0..AHEAD).for_each(|_| drop(driver.complete()));
        let (mut is_there, mut batches) = (16, 1);
        for ran in control.take_log() {
            let What::Launch { kernel, grid, arguments } = ran.what else { continue };
            let word = |at: usize| u64::from_le_bytes(arguments[8 * at..][..8].try_into().expect("eight bytes"));
            match kernel {
                kernel if kernel.starts_with("product") => is_there += grid[1] * 8,
                "lstm_rows" => {
                    assert_ne!(word(4), 0, "every batch reads what was computed ahead");
                    batches += 1;
                    assert!(batches <= is_there, "seed {seed}: step {batches} runs before what it reads");
                }
                _ => {}
            }
        }
        assert_eq!(batches, 1 + AHEAD as u32);
    }
}

/// The rows of the tasks of one request are those of the next: what is still read is not written to.
#[test]
fn what_is_read_is_not_written_to() {
    let cell = [lstm(5, UNITS)];
    let requests = |driver: &mut Driver| (0..40).map(|seed| place(driver, over_rows(1, 12), seed)).collect::<Vec<_>>();
    let (mut alone, _control) = driver(0, ahead(0), &cell);
    for request in requests(&mut alone) {
        alone.task(CELL, &[(request.lanes[0][0], 0)], 12);
    }
    for seed in 0..6 {
        // Two blocks.
        let (mut driver, control) = driver(seed, ahead(RING + 2 * 32 * 840), &cell);
        let requests = requests(&mut driver);
        for two in requests.chunks(2) {
            control.hold();
            let lanes = [&two[0], &two[1]].map(|request| request.lanes[0][0]);
            // Two by turns: one takes what it has while the other one has its next steps computed, as far as there is room.
            for at in 0..6 {
                let (lane, step) = (lanes[at % 2], at as u32 / 2 * 2);
                let task = driver.prepare(CELL, &[(lane, step)], 2);
                driver.submit(task);
            }
            control.release();
            (0..6).for_each(|_| drop(driver.complete()));
            let mut task = driver.prepare(CELL, &lanes.map(|lane| (lane, 6)), 3);
            driver.submit(task);
            drop(driver.complete());
            task = driver.prepare(CELL, &lanes.map(|lane| (lane, 9)), 3);
            driver.submit(task);
            drop(driver.complete());
            task = driver.prepare(CELL, &[], 1);
            task.leaves = lanes.to_vec();
            driver.submit(task);
            drop(driver.complete());
        }
        assert!(seen(&control).ahead > 0);
        assert!(driver.delivered == alone.delivered, "seed {seed}");
    }
}

#[test]
fn it_takes_no_more_than_it_may_and_goes_with_its_cell() {
    let with = |bytes: u64| {
        let (mut worker, control) = crate::with(0, (9, 0), ahead(bytes));
        let mut taken = Vec::new();
        for _ in 0..2 {
            for (index, cell) in [lstm(5, UNITS), gru(5, UNITS)].iter().enumerate() {
                worker.load(cellwright_backend::CellIndex(index as u32), cell).expect("it fits");
                taken.push(control.allocated_bytes());
            }
            (0..2).for_each(|index| worker.unload(cellwright_backend::CellIndex(index)));
            taken.push(control.allocated_bytes());
        }
        assert_eq!(taken[..3], taken[3..], "what is unloaded leaves nothing but the ring");
        (taken[0], taken[1], taken[2])
    };
    let none = with(0);
    for bytes in [1 << 10, RING, RING + (1 << 15), 1 << 19, 1 << 20, 4 << 20] {
        let some = with(bytes);
        let more = (some.0 - none.0, some.1 - none.1);
        assert!(more.0 <= bytes && more.1 <= bytes, "{more:?} of {bytes}");
        assert_eq!(more.0 > 0, bytes > RING + (1 << 15), "{more:?} of {bytes}");
        assert_eq!(some.2 - none.2, if more.0 > 0 { RING } else { 0 }, "the ring stays");
    }
}

/// Between what is computed ahead and the step that would read it the request dies, and another one has its lane, its slots and other rows.
#[test]
fn a_lane_is_handed_on_while_its_steps_are_computed() {
    let cell = lstm(5, UNITS);
    let steps = 12;
    let run = |seed, bytes| {
        let (mut worker, control) = crate::with(seed, (9, 0), ahead(bytes));
        worker.load(CELL, &cell).expect("it fits");
        let lane = LaneIndex(5);
        let mut got = Vec::new();
        let _ = control.take_log();
        for request in 0..12_u64 {
            let placed = PlacedGrowth {
                cells: [CELL].into(),
                slots: vec![vec![Slot(64)]],
                executed: [std::sync::atomic::AtomicU32::new(steps)].into(),
                earlier: Vec::new(),
                tensors: vec![Arc::new(random("x", &[steps as usize, 5], 100 + request))],
                first_tensor: 0,
                flags: Arc::default(),
                growth: delivering_everything(&growth_of(vec![over_rows(1, steps)])),
            };
            let flags = Arc::clone(&placed.flags);
            control.hold();
            // The first task computes ahead for those behind it, of which some never come.
            let last = [2, steps - 2, 4][request as usize % 3];
            for step in (0..last).step_by(2) {
                let task = Task {
                    seq: request * 100 + u64::from(step),
                    cell: CELL,
                    steps: 2,
                    rows: vec![Row { lane, step }],
                    joins: Vec::new(),
                    leaves: Vec::new(),
                    scrub: Vec::new(),
                };
                let first = step == 0;
                let joins = if first { vec![(lane, Arc::new(Lane { growth: Arc::new(clone(&placed)), chain: 0, stage: 0 }))] } else { Vec::new() };
                let leaves = if first && request > 0 { vec![lane] } else { Vec::new() };
                let scrub = if first { vec![(Slot(64), 8)] } else { Vec::new() };
                worker.submit(Task { joins, leaves, scrub, ..task }).expect("the device is there");
            }
            if request % 2 == 0 {
                flags.dead.store(true, Ordering::Relaxed);
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

/// The same request, whose flags are the same.
fn clone(of: &PlacedGrowth) -> PlacedGrowth {
    PlacedGrowth {
        cells: of.cells.clone(),
        slots: of.slots.clone(),
        executed: [std::sync::atomic::AtomicU32::new(of.executed[0].load(Ordering::Relaxed))].into(),
        earlier: Vec::new(),
        tensors: of.tensors.clone(),
        first_tensor: of.first_tensor,
        flags: Arc::clone(&of.flags),
        growth: Arc::clone(&of.growth),
    }
}

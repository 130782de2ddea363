//! States that pass by the frame, where everything else of a step is looked up and what is brought to the host is the last step's, or nothing: they leave what
//! they leave step by step through the frame, whatever ends, is refused or is queued beyond.

use std::sync::Arc;

use cellwright_backend::{CellTypeId, LaneId, Stopped};
use cellwright_backend_cuda::driver::emulated::Control;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Delivery, Length, Retention, Run, RunOf, Source, UnfoldedChain};
use cellwright_cell_graph::{Datatype, TypedCell};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Deliveries, Driver, Placed, delivering_everything, growth_of, independent};

use crate::recurrent::{
    CELL, UNITS, are_together, count, counting, driver, held, launched, lstm, lstm_of_tokens, over_rows, random, state, weights,
};

const LONGEST: u32 = 9;

/// A chain over tokens, one of which may be in no table.
fn over_tokens(steps: u32, bad: Option<u32>) -> UnfoldedChain {
    let mut chain = over_rows(1, steps);
    let token = |step: u32| if Some(step) == bad { 11 } else { i64::from((step * 5 + steps) % 7) };
    chain.stages[0].inputs[0].source = Source::Ints((0..steps).map(token).collect());
    chain
}

fn bringing(mut chain: UnfoldedChain, delivery: &Delivery, retention: Retention) -> UnfoldedChain {
    chain.stages[0].delivery = vec![delivery.clone(); 2];
    chain.stages[0].retention = retention;
    chain
}

fn place(driver: &mut Driver, chain: UnfoldedChain) -> Placed {
    let rows = chain.length.bound as usize;
    driver.place(Arc::new(growth_of(vec![chain])), &[Arc::new(random("x", &[rows, 5], 3))], 0, &[])
}

/// Runs requests of many lengths in tasks of so many steps, `at_once` of which are queued while the device does nothing.
fn run(driver: &mut Driver, control: &Control, lanes: &[(LaneId, u32)], (steps, at_once): (u32, u32)) {
    for first in (0..LONGEST).step_by((steps * at_once) as usize) {
        control.hold();
        let mut queued = 0;
        for step in (first..LONGEST).step_by(steps as usize).take(at_once as usize) {
            let rows: Vec<_> = lanes.iter().filter(|(_, length)| step < *length).map(|(lane, _)| (*lane, step)).collect();
            let task = driver.prepare(CELL, &rows, steps);
            driver.submit(task);
            queued += 1;
        }
        control.release();
        (0..queued).for_each(|_| drop(driver.complete()));
    }
}

/// What every step of every length leaves, one after the other, through the frame where several are a batch.
fn reference(of: &dyn Fn(u32) -> UnfoldedChain, cell: &Arc<TypedCell>) -> (Deliveries, Vec<LaneId>) {
    let (mut driver, control) = driver(1, std::slice::from_ref(cell));
    let requests: Vec<Placed> =
        (1..=LONGEST).map(|steps| place(&mut driver, bringing(of(steps), &Delivery::All, Retention::Double))).collect();
    let lanes: Vec<(LaneId, u32)> = requests.iter().zip(1..).map(|(request, steps)| (request.lanes[0][0], steps)).collect();
    run(&mut driver, &control, &lanes, (LONGEST, 1));
    assert_eq!(count(&launched(&control), "lstm_gather"), 0, "what each step brings would be written over");
    (driver.delivered, lanes.into_iter().map(|(lane, _)| lane).collect())
}

fn is_the_same_past_the_frame(of: &dyn Fn(u32) -> UnfoldedChain, cell: &Arc<TypedCell>, is_known_at_once: bool) {
    let (wanted, named) = reference(of, cell);
    for (seed, delivery) in (2..).zip([Delivery::Last, Delivery::None]) {
        for retention in [Retention::Double, Retention::All] {
            for (steps, at_once) in [(1, 1), (4, 1), (3, 3), (LONGEST, 1)] {
                let (mut driver, control) = driver(seed, std::slice::from_ref(cell));
                let requests: Vec<Placed> =
                    (1..=LONGEST).map(|steps| place(&mut driver, bringing(of(steps), &delivery, retention))).collect();
                let lanes: Vec<(LaneId, u32)> = requests.iter().zip(1..).map(|(request, steps)| (request.lanes[0][0], steps)).collect();
                let _ = control.take_log();
                run(&mut driver, &control, &lanes, (steps, at_once));
                let ran = launched(&control);
                // Of a request's first task nothing was computed ahead.
                assert!(
                    count(&ran, "lstm_gather") > 0 || (!is_known_at_once && steps == LONGEST),
                    "{delivery:?}, {retention:?}, {steps} steps: {ran:?}"
                );
                assert_eq!(are_together(&ran), steps > 1);
                for ((request, (lane, length)), name) in requests.iter().zip(&lanes).zip(&named) {
                    let last = state(&wanted, *name, length - 1);
                    if delivery == Delivery::Last {
                        assert_eq!(state(&driver.delivered, *lane, length - 1), last, "{length} steps, {steps} of a task");
                    }
                    let held_steps = if retention == Retention::All { 0..*length } else { length.saturating_sub(2)..*length };
                    for step in held_steps {
                        let there = held(&mut driver, request, (0, retention.place(step)), UNITS);
                        assert_eq!(there, state(&wanted, *name, step), "{length} steps, {steps} of a task, step {step} is held");
                    }
                }
                assert_eq!(driver.delivered.len(), if delivery == Delivery::Last { 2 * lanes.len() } else { 0 });
            }
        }
    }
}

#[test]
fn states_by_a_table_are_what_they_are_through_the_frame() {
    is_the_same_past_the_frame(&|steps| over_tokens(steps, None), &lstm_of_tokens(UNITS), true);
}

#[test]
fn states_on_what_was_computed_ahead_are_what_they_are_through_the_frame() {
    is_the_same_past_the_frame(&|steps| over_rows(1, steps), &lstm(5, UNITS), false);
}

/// The kernel that lets states pass by the frame reads a token where it lies, and knows nothing of rows in pieces.
#[test]
fn a_token_that_a_window_sees_goes_through_the_frame() {
    const STEPS: u32 = 5;
    let weight = weights(8, UNITS);
    let draft = Draft::new("lstm of a window").known("token", Datatype::Int64, &[1, 1]).weight(weight("emb.weight"));
    let embedded = draft.operator("Gather", &["emb.weight", "token"], &["e"]).operator("Flatten", &["e"], &["x"]);
    let seeing = cells::lstm_over(embedded, "x", UNITS, &weight).at(Precision::Bf16).resolve();
    let twice = Draft::new("twice").input("n", Datatype::Int64, &[1]).operator("Add", &["n", "n"], &["y"]);
    let (mut driver, control) = driver(4, &[seeing, twice.output("y", Datatype::Int64, &[1]).resolve()]);
    let numbers = |times: i64| Source::Ints((0..i64::from(STEPS)).map(|step| times * (step * 2 % 3)).collect());
    let mut given = independent(1, 1, vec![numbers(1)], STEPS);
    given.stages[0].retention = Retention::All;
    let mut chain = over_rows(1, STEPS);
    let run = Run { of: RunOf::Chain { chain: 0, stage: 0, output: 0 }, at: Affine::EVERY, every: 1, count: 1 };
    chain.stages[0].inputs[0].source = Source::Window([run].into());
    let request = driver.place(delivering_everything(&growth_of(vec![given, chain])), &[], 0, &[]);
    let [tokens, lane] = [0, 1].map(|chain| request.lanes[chain][0]);
    driver.task(CellTypeId(1), &(0..STEPS).map(|step| (tokens, step)).collect::<Vec<_>>(), 1);
    let _ = control.take_log();
    (0..STEPS).for_each(|step| drop(driver.task(CELL, &[(lane, step)], 1)));
    assert_eq!(count(&launched(&control), "lstm_gather"), 0);
    let (mut plain, _) = self::driver(4, &[lstm_of_tokens(UNITS)]);
    let mut chain = over_rows(1, STEPS);
    chain.stages[0].inputs[0].source = numbers(2);
    let wanted = plain.place(delivering_everything(&growth_of(vec![chain])), &[], 0, &[]).lanes[0][0];
    (0..STEPS).for_each(|step| drop(plain.task(CELL, &[(wanted, step)], 1)));
    for step in 0..STEPS {
        assert_eq!(state(&driver.delivered, lane, step), state(&plain.delivered, wanted, step), "step {step}");
    }
}

/// A row that is refused, and those behind it in the same batch, leave what was there; in later batches they may not, for a request that is dead.
#[test]
fn what_follows_a_bad_token_leaves_what_was_held_and_brings_nothing() {
    let steps = 6;
    for bad_step in 0..steps {
        let (mut driver, control) = driver(u64::from(bad_step), &[lstm_of_tokens(UNITS)]);
        let mut place = |bad, delivery: Delivery| place(&mut driver, bringing(over_tokens(steps, bad), &delivery, Retention::Double));
        let [bad, good, every] =
            [(Some(bad_step), Delivery::Last), (None, Delivery::Last), (None, Delivery::All)].map(|(bad, delivery)| place(bad, delivery));
        let [bad_lane, good_lane, every_lane] = [&bad, &good, &every].map(|request| request.lanes[0][0]);
        driver.task(CELL, &[(every_lane, 0)], steps);
        let _ = control.take_log();
        let completed = driver.task(CELL, &[(bad_lane, 0), (good_lane, 0)], steps);
        let ran = launched(&control);
        assert_eq!((count(&ran, "lstm_gather"), count(&ran, "lstm_step")), (1, steps as usize), "{ran:?}");
        let refused: Vec<_> = completed.refused.iter().map(|refused| (refused.lane, refused.step)).collect();
        assert_eq!(refused, [(bad_lane, bad_step)]);
        assert!(driver.delivered.keys().all(|(lane, ..)| *lane != bad_lane));
        assert_eq!(state(&driver.delivered, good_lane, steps - 1), state(&driver.delivered, every_lane, steps - 1));
        for place in 0..2 {
            let newest = (0..bad_step).rev().find(|step| step % 2 == place);
            let wanted = newest.map_or_else(|| [0, 1].map(|_| vec![0; UNITS * 4]), |step| state(&driver.delivered, every_lane, step));
            assert_eq!(held(&mut driver, &bad, (0, place), UNITS), wanted, "bad step {bad_step}, place {place}");
        }
    }
}

/// Steps of a chain that cannot stop which were queued beyond a refusal run, but nobody hears of them, and nobody else is disturbed.
#[test]
fn what_was_queued_beyond_a_refusal_is_told_to_nobody() {
    let (mut driver, control) = driver(5, &[lstm_of_tokens(UNITS)]);
    let [bad, good, alone] =
        [Some(1), None, None].map(|bad| place(&mut driver, bringing(over_tokens(5, bad), &Delivery::Last, Retention::Double)));
    let [bad_lane, good_lane, alone_lane] = [&bad, &good, &alone].map(|request| request.lanes[0][0]);
    control.hold();
    for step in 0..5 {
        let task = driver.prepare(CELL, &[(bad_lane, step), (good_lane, step)], 1);
        driver.submit(task);
    }
    control.release();
    let refused: Vec<_> = (0..5).flat_map(|_| driver.complete().refused).map(|refused| (refused.lane, refused.step)).collect();
    assert_eq!(refused, [(bad_lane, 1)]);
    driver.task(CELL, &[(alone_lane, 0)], 5);
    assert!(driver.delivered.keys().all(|(lane, ..)| *lane != bad_lane));
    assert_eq!(state(&driver.delivered, good_lane, 4), state(&driver.delivered, alone_lane, 4));
}

/// A chain that follows another one ends where that does, within a batch: what is held is what its last steps left.
#[test]
fn a_follower_that_ends_within_a_batch_holds_its_last_steps() {
    let cells = [lstm_of_tokens(UNITS), cells::countdown(8).resolve()];
    for ends_after in 1..=7_u32 {
        let (mut driver, control) = driver(u64::from(ends_after), &cells);
        let mut like = bringing(over_tokens(7, None), &Delivery::None, Retention::Double);
        like.length = Length { bound: 7, like: Some(0) };
        let request = driver.place(Arc::new(growth_of(vec![counting(ends_after), like])), &[], 0, &[]);
        let every = place(&mut driver, bringing(over_tokens(7, None), &Delivery::All, Retention::Double));
        let (counting, like, every) = (request.lanes[0][0], request.lanes[1][0], every.lanes[0][0]);
        driver.task(CELL, &[(every, 0)], 7);
        let _ = control.take_log();
        control.hold();
        let task = driver.prepare(cellwright_backend::CellTypeId(1), &[(counting, 0)], 7);
        driver.submit(task);
        let task = driver.prepare(CELL, &[(like, 0)], 7);
        driver.submit(task);
        control.release();
        assert_eq!(driver.complete().stopped, [Stopped { lane: counting, step: ends_after - 1 }]);
        drop(driver.complete());
        assert_eq!(count(&launched(&control), "lstm_gather"), 1);
        for step in ends_after.saturating_sub(2)..ends_after {
            let wanted = state(&driver.delivered, every, step);
            assert_eq!(held(&mut driver, &request, (1, step % 2), UNITS), wanted, "ends after {ends_after}, step {step} is held");
        }
    }
}

//! LSTMs, GRUs and trees by kernels of their own: that no bit depends on how many rows and steps a task has, and that what ends, is refused or is
//! cancelled within a task leaves what it would leave step by step.

mod ahead;
mod direct;
mod forms;
mod gru;
mod refused;
mod rows;
mod table;
mod tree;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cellwright_backend::{Backend, CellTypeId, Lane, LaneId, SLOT_BYTES, Stopped};
use cellwright_backend_cuda::driver::emulated::{Control, Emulated, Emulation, What};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::Datatype::{Bool, Int64};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Delivery, Length, Retention, Source, UnfoldedChain};
use cellwright_cell_graph::{Tensor, TypedCell};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Deliveries, Driver, Placed, delivering_everything, growth_of, independent};
use cellwright_conformance::hoisting::{self, Recurrent};

const CELL: CellTypeId = CellTypeId(0);

/// Tasks that an engine has outstanding at most.
const AHEAD: usize = 5;

fn options() -> CudaOptions {
    CudaOptions {
        arena_bytes: Some(4 << 20),
        frame_bytes: Some(8 << 20),
        ring_bytes: 1 << 20,
        spin: Duration::ZERO,
        ..CudaOptions::default()
    }
}

/// The same for a worker that makes no graphs, so that steps that go together are a launch of kernels that stay.
fn staying() -> CudaOptions {
    CudaOptions { graphs: false, ..options() }
}

fn worker(seed: u64, capability: (u32, u32)) -> (CudaWorker, Control) {
    with(seed, capability, options())
}

fn with(seed: u64, capability: (u32, u32), options: CudaOptions) -> (CudaWorker, Control) {
    let device = Emulated::new(&Emulation { seed, capability, memory_bytes: 128 << 20, ..Emulation::default() });
    let control = device.control();
    (CudaWorker::new(Box::new(device), options).expect("a device made of threads"), control)
}

fn driver(seed: u64, cells: &[Arc<TypedCell>]) -> (Driver, Control) {
    driver_with(seed, cells, options())
}

fn driver_with(seed: u64, cells: &[Arc<TypedCell>], options: CudaOptions) -> (Driver, Control) {
    let (worker, control) = with(seed, (9, 0), options);
    (Driver::new(Box::new(worker), cells), control)
}

/// The kernels that ran since the last time, and the first direction of their grids.
fn launched(control: &Control) -> Vec<(&'static str, u32)> {
    let of = |what| match what {
        What::Launch { kernel, grid, .. } => Some((kernel, grid[0])),
        _ => None,
    };
    control.take_log().into_iter().filter_map(|ran| of(ran.what)).collect()
}

fn count(launched: &[(&'static str, u32)], of: &str) -> usize {
    launched.iter().filter(|(kernel, _)| kernel.starts_with(of)).count()
}

/// Whether steps were one batch: lists of several, each by a launch or all by one that stays.
fn are_together(launched: &[(&'static str, u32)]) -> bool {
    let count = |of: &str| count(launched, of);
    let steps = ["lstm_step", "lstm_f16_step", "gru_step", "gru_f16_step"].map(count).iter().sum::<usize>();
    steps > count("lstm_rows") + count("lstm_gather")
        || launched.iter().any(|(kernel, _)| kernel.contains("_resident_") || kernel.contains("_queue_"))
}

fn random(name: &str, shape: &[usize], seed: u64) -> Tensor {
    let mut rng = Rng::new(seed);
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * 0.5).collect();
    Tensor::from_f32(name, shape, &values)
}

/// PyTorch's weights of an LSTM over so much.
fn weights(x: usize, units: usize) -> impl Fn(&str) -> Tensor {
    move |name| match name {
        "weight_ih" => random(name, &[4 * units, x], 1),
        "weight_hh" => random(name, &[4 * units, units], 2),
        "emb.weight" => random(name, &[TOKENS, x], 3),
        _ => random(name, &[4 * units], 4),
    }
}

/// Rows of a table of tokens here and in the suite.
const TOKENS: usize = hoisting::TOKENS;

fn lstm(x: usize, units: usize) -> Arc<TypedCell> {
    lstm_at(Precision::Bf16, x, units)
}

fn lstm_at(precision: Precision, x: usize, units: usize) -> Arc<TypedCell> {
    cells::lstm("lstm", x, units, &weights(x, units)).at(precision).resolve()
}

fn lstm_of_tokens(units: usize) -> Arc<TypedCell> {
    let token = Draft::new("lstm of tokens").known("token", Int64, &[]);
    cells::lstm_of_tokens(token, units, &weights(8, units)).at(Precision::Bf16).resolve()
}

const UNITS: usize = 16;

#[test]
fn devices_whose_bits_differ_say_so() {
    let class = |capability| worker(0, capability).0.info().numeric_class;
    assert_eq!([class((9, 0)), class((8, 0))], ["cuda-sm90a", "cuda-sm80"]);
}

/// Many steps in one graph, or in one launch, of cells whose weights stay in the blocks, and of one whose do not.
#[test]
fn no_bit_depends_on_how_many_rows_and_steps_a_task_has() {
    use Precision::{Bf16, F16};
    for (precision, units, kernel) in [
        (Bf16, 16, "lstm_resident_64x8"),
        (Bf16, 45, "lstm_resident_64x8"),
        (Bf16, 104, "lstm_resident_64x16"),
        (Bf16, 256, "lstm_queue_64x32"),
        (F16, 45, "lstm_f16_resident_64x8"),
        (F16, 104, "lstm_f16_resident_64x16"),
        (F16, 256, "lstm_f16_queue_64x32"),
    ] {
        let step = if precision == F16 { "lstm_f16_step_" } else { "lstm_step_" };
        let recurrent = Recurrent { cell: lstm_at(precision, 5, units), feedback: vec![(0, 1), (1, 2)] };
        let mut rng = Rng::new(units as u64);
        let mut seed = 0;
        let mut run = |most, options| {
            seed += 1;
            let (worker, control) = with(seed, (9, 0), options);
            let mut worker: Option<Box<dyn Backend>> = Some(Box::new(worker));
            let got = hoisting::deliveries(&mut || worker.take().expect("one worker"), (&recurrent, hoisting::REQUESTS), most, &mut rng);
            (got, launched(&control))
        };
        let (alone, of_steps) = run((1, 1), options());
        assert!(
            count(&of_steps, step) == alone.len() / 2 && count(&of_steps, "lstm") == alone.len(),
            "one list and one step for each: {of_steps:?}"
        );
        for (most, options) in [((24, 9), staying()), ((5, 4), staying()), ((24, 9), options()), ((5, 4), options())] {
            let stays = !options.graphs;
            let (got, together) = run(most, options);
            assert!(got == alone, "{units} units, tasks of up to {most:?} rows and steps");
            assert!(are_together(&together) && (count(&together, kernel) > 0 || !stays), "{units} units: {together:?}");
            assert!(count(&together, "gather") < of_steps.len(), "rows of several steps are one batch");
        }
    }
}

/// A chain over the rows of tensor 0, its states fed back.
fn over_rows(inputs: usize, steps: u32) -> UnfoldedChain {
    let first = vec![Source::Rows { tensor: 0, at: Affine::EVERY }; inputs];
    let mut chain = independent(0, 2, [first, vec![Source::Zeros; 2]].concat(), steps);
    chain.sequential = true;
    for state in 0..2 {
        chain.stages[0].inputs[inputs + state].feedback = Some((0, state as u32));
    }
    chain.stages[0].retention = Retention::Double;
    chain
}

fn place(driver: &mut Driver, chain: UnfoldedChain, seed: u64) -> Placed {
    let rows = chain.length.bound as usize;
    driver.place(delivering_everything(&growth_of(vec![chain])), &[Arc::new(random("x", &[rows, 5], seed))], 0, &[])
}

/// A chain of the second cell, a countdown, that stops after so many steps, of seven at most.
fn counting(ends_after: u32) -> UnfoldedChain {
    let mut counting = independent(1, 3, vec![Source::Ints(vec![i64::from(ends_after)])], 7);
    counting.sequential = true;
    counting.stop = Some((0, 2));
    counting.stages[0].inputs[0].feedback = Some((0, 0));
    counting.stages[0].retention = Retention::Double;
    counting
}

/// Both states of a step, as they were delivered.
fn state(of: &Deliveries, lane: LaneId, step: u32) -> [Vec<u8>; 2] {
    [0, 1].map(|output| of[&(lane, output, step)].clone())
}

/// What a lane's node at a place holds.
fn held(driver: &mut Driver, request: &Placed, (chain, place): (usize, u32), units: usize) -> [Vec<u8>; 2] {
    let bytes = units * 4;
    let slots = bytes.div_ceil(SLOT_BYTES) as u32;
    let first = request.growth.slots[chain][0];
    [0, 1].map(|output| {
        let slot = cellwright_backend::Slot(first.0 + (2 * place + output) * slots);
        let node = driver.backend.read(slot, slots).expect("the device is there");
        node[..bytes].to_vec()
    })
}

#[test]
fn five_tasks_of_several_steps_are_queued_while_the_device_does_nothing() {
    let run = |at_once: u32, steps: u32| {
        let (mut driver, control) = driver(3, &[lstm(5, UNITS)]);
        let requests: Vec<Placed> = (0..3).map(|seed| place(&mut driver, over_rows(1, 20), seed)).collect();
        let lanes: Vec<LaneId> = requests.iter().map(|request| request.lanes[0][0]).collect();
        for first in (0..20).step_by((at_once * steps) as usize) {
            control.hold();
            for task in 0..at_once {
                let rows: Vec<_> = lanes.iter().map(|lane| (*lane, first + task * steps)).collect();
                let task = driver.prepare(CELL, &rows, steps);
                driver.submit(task);
            }
            control.release();
            (0..at_once).for_each(|_| drop(driver.complete()));
        }
        for request in &requests {
            for step in [18, 19] {
                let wanted = state(&driver.delivered, request.lanes[0][0], step);
                assert_eq!(held(&mut driver, request, (0, step % 2), UNITS), wanted, "the last two steps are held");
            }
        }
        driver.delivered
    };
    let alone = run(1, 1);
    assert_eq!(alone.len(), 3 * 2 * 20);
    assert!(run(AHEAD as u32, 4) == alone);
    assert!(run(2, 10) == alone);
}

/// The device knows where a chain ends before the host does: what was queued beyond leaves nothing, and what is held is what the last steps leave.
#[test]
fn a_chain_that_ends_within_a_batch_leaves_what_it_leaves_step_by_step() {
    let cells = [lstm(5, UNITS), cells::countdown(8).resolve()];
    for (ends_after, options) in (1..=7_u32).flat_map(|ends_after| [(ends_after, options()), (ends_after, staying())]) {
        let (mut driver, control) = driver_with(u64::from(ends_after), &cells, options);
        let mut like = over_rows(1, 7);
        like.length = Length { bound: 7, like: Some(0) };
        like.stages[0].delivery = vec![Delivery::All; 2];
        let request = driver.place(Arc::new(growth_of(vec![counting(ends_after), like])), &[Arc::new(random("x", &[7, 5], 3))], 0, &[]);
        let free = place(&mut driver, over_rows(1, 7), 3);
        let (counting, like) = (request.lanes[0][0], request.lanes[1][0]);
        let _ = control.take_log();
        control.hold();
        let task = driver.prepare(CellTypeId(1), &[(counting, 0)], 7);
        driver.submit(task);
        let task = driver.prepare(CELL, &[(like, 0), (free.lanes[0][0], 0)], 7);
        driver.submit(task);
        control.release();
        assert_eq!(driver.complete().stopped, [Stopped { lane: counting, step: ends_after - 1 }]);
        drop(driver.complete());
        let launched = launched(&control);
        assert!(are_together(&launched) && count(&launched, "lstm_rows") == 1, "all steps are one batch: {launched:?}");
        let steps: Vec<u32> = driver.delivered.range((like, 0, 0)..=(like, 0, u32::MAX)).map(|((_, _, step), _)| *step).collect();
        assert_eq!(steps, (0..ends_after).collect::<Vec<_>>());
        for step in 0..ends_after {
            assert_eq!(state(&driver.delivered, like, step), state(&driver.delivered, free.lanes[0][0], step), "step {step}");
        }
        for step in ends_after.saturating_sub(2)..ends_after {
            let wanted = state(&driver.delivered, like, step);
            assert_eq!(held(&mut driver, &request, (1, step % 2), UNITS), wanted, "ends after {ends_after}, step {step} is held");
        }
    }
}

#[test]
fn what_follows_a_bad_token_in_a_batch_leaves_nothing() {
    for bad_step in 0..5_u32 {
        let (mut driver, control) = driver(u64::from(bad_step), &[lstm_of_tokens(UNITS)]);
        let mut place = |bad: Option<u32>| {
            let mut chain = over_rows(1, 5);
            chain.stages[0].inputs[0].source = Source::Ints((0..5).map(|step| if Some(step) == bad { 11 } else { 2 }).collect());
            driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[])
        };
        let (bad, good) = (place(Some(bad_step)), place(None));
        let lanes = [&bad, &good].map(|request| request.lanes[0][0]);
        let _ = control.take_log();
        let completed = driver.task(CELL, &lanes.map(|lane| (lane, 0)), 5);
        assert_eq!(count(&launched(&control), "lstm_resident"), 1, "all steps are one launch");
        let refused: Vec<_> = completed.refused.iter().map(|refused| (refused.lane, refused.step, refused.error.to_string())).collect();
        let [(lane, step, said)] = &refused[..] else { panic!("one row is refused: {refused:?}") };
        assert_eq!((*lane, *step), (lanes[0], bad_step));
        assert!(said.starts_with("index 11 is out of range for a table of 11 rows"), "{said}");
        let steps = |lane| driver.delivered.range((lane, 0, 0)..=(lane, 0, u32::MAX)).count();
        assert_eq!(lanes.map(steps), [bad_step as usize, 5]);
        for place in 0..2 {
            // The newest step before the bad one that is held there, or nothing.
            let newest = (0..bad_step).rev().find(|step| step % 2 == place);
            let wanted = newest.map_or_else(|| [0, 1].map(|_| vec![0; UNITS * 4]), |step| state(&driver.delivered, lanes[1], step));
            assert_eq!(held(&mut driver, &bad, (0, place), UNITS), wanted, "bad step {bad_step}, place {place}");
        }
    }
}

#[test]
fn cancelled_requests_do_not_disturb_their_batch() {
    let run = |cancelled: Option<bool>, options: CudaOptions| {
        let (mut driver, control) = driver_with(4, &[lstm(5, UNITS)], options);
        let requests: Vec<Placed> = (0..3).map(|seed| place(&mut driver, over_rows(1, 6), seed)).collect();
        let lanes: Vec<LaneId> = requests.iter().map(|request| request.lanes[0][0]).collect();
        let cancel = || requests[1].growth.flags.dead.store(true, Ordering::Relaxed);
        if cancelled == Some(true) {
            cancel();
        }
        let _ = control.take_log();
        control.hold();
        let task = driver.prepare(CELL, &lanes.iter().map(|lane| (*lane, 0)).collect::<Vec<_>>(), 6);
        driver.submit(task);
        if cancelled == Some(false) {
            cancel();
        }
        control.release();
        drop(driver.complete());
        let rows = launched(&control).iter().find(|(kernel, _)| *kernel == "lstm_rows").map(|(_, rows)| *rows);
        (driver.delivered, lanes, rows)
    };
    // A graph has room for four rows a step where there are three.
    let (all, lanes, rows) = run(None, options());
    assert_eq!((rows, run(None, staying()).2), (Some(24), Some(18)));
    for (before, options) in [(true, options()), (false, options()), (true, staying()), (false, staying())] {
        let wanted = if before {
            12
        } else if options.graphs {
            24
        } else {
            18
        };
        let (got, _, rows) = run(Some(before), options);
        assert_eq!(rows, Some(wanted), "what is cancelled before is not run");
        let kept: Deliveries = all.iter().filter(|((lane, ..), _)| *lane != lanes[1]).map(|(key, bytes)| (*key, bytes.clone())).collect();
        assert!(got == kept, "cancelled before it was queued: {before}");
    }
}

/// A request that is cancelled leaves its lane to another one while a step of it is on its way: what that step was refused for is its own.
#[test]
fn a_refused_row_is_its_requests_whoever_has_its_lane_by_then() {
    let (mut driver, control) = driver(4, &[lstm_of_tokens(UNITS)]);
    let mut place = |token: i64| {
        let mut chain = over_rows(1, 6);
        chain.stages[0].delivery = vec![Delivery::Last, Delivery::None];
        chain.stages[0].inputs[0].source = Source::Ints(vec![token; 6]);
        driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[])
    };
    let requests = [11, 11, 2].map(&mut place);
    let lanes = requests.each_ref().map(|request| request.lanes[0][0]);
    control.hold();
    let first = driver.prepare(CELL, &lanes[..2].iter().map(|lane| (*lane, 0)).collect::<Vec<_>>(), 1);
    driver.submit(first);
    let mut second = driver.prepare(CELL, &[(lanes[2], 0)], 1);
    let lane = Arc::new(Lane { growth: Arc::clone(&requests[2].growth), chain: 0, stage: 0 });
    (second.leaves, second.joins, second.rows[0].lane) = (vec![lanes[0]], vec![(lanes[0], lane)], lanes[0]);
    driver.submit(second);
    control.release();
    let refused = [driver.complete(), driver.complete()].map(|completed| completed.refused.len());
    assert_eq!(refused, [2, 0]);
    assert_eq!(requests.map(|request| request.growth.flags.dead.load(Ordering::Relaxed)), [true, true, false]);
}

/// Where a step needs more of the one before than its states, it is run when that is done.
#[test]
fn steps_that_need_one_another_are_run_one_after_the_other() {
    let cell = forms::projected(cells::lstm_of_tokens(Draft::new("decoder").input("token", Int64, &[]), UNITS, &weights(8, UNITS)));
    // The projection has more classes than there are tokens: what is fed back is the best of those.
    let cell = cell.at(Precision::Bf16).resolve();
    let run = |change: &dyn Fn(&mut UnfoldedChain)| {
        let (mut driver, control) = driver(5, std::slice::from_ref(&cell));
        let mut chain = over_rows(1, 4);
        chain.stages[0].delivery = vec![Delivery::All; 3];
        chain.stages[0].inputs[0].source = Source::Ints(vec![3; 4]);
        change(&mut chain);
        let lane = driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]).lanes[0][0];
        let _ = control.take_log();
        driver.task(CELL, &[(lane, 0)], 4);
        let launched = launched(&control);
        ["gather", "lstm_step", "lstm_resident"].map(|kernel| count(&launched, kernel))
    };
    assert_eq!(run(&|_| ()), [1, 4, 0], "tokens that are given are known");
    assert_eq!(run(&|chain| chain.stages[0].inputs[0].feedback = Some((0, 2))), [4, 4, 0], "a token that is fed back is not");
    assert_eq!(
        run(&|chain| chain.stages[0].inputs[1].feedback = None),
        [4, 4, 0],
        "a state that is given is not the one of the step before"
    );
    assert_eq!(run(&|chain| chain.stages[0].inputs[2].feedback = Some((0, 0))), [4, 4, 0], "c is not what h was");
}

/// A chain that its own step may end: the steps behind it wait for that.
#[test]
fn a_chain_that_stops_itself_leaves_nothing_behind_its_stop() {
    let draft = cells::lstm_of_tokens(Draft::new("stopping").known("token", Int64, &[]), UNITS, &weights(8, UNITS));
    let draft = draft.weight(Tensor::from_i64("last", &[], &[7])).operator("Equal", &["token", "last"], &["stop"]);
    let cell = draft.output("stop", Bool, &[]).at(Precision::Bf16).resolve();
    let (mut driver, control) = driver(8, &[cell]);
    let mut chain = over_rows(1, 6);
    chain.stop = Some((0, 2));
    chain.stages[0].delivery = vec![Delivery::All; 3];
    chain.stages[0].inputs[0].source = Source::Ints(vec![1, 2, 7, 3, 4, 5]);
    let request = driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]);
    let lane = request.lanes[0][0];
    let completed = driver.task(CELL, &[(lane, 0)], 6);
    assert_eq!(completed.stopped, [Stopped { lane, step: 2 }]);
    assert_eq!(count(&launched(&control), "lstm_step"), 6);
    assert_eq!(driver.delivered.len(), 3 * 3);
    for step in [1, 2] {
        let slots = UNITS as u32 * 4 / SLOT_BYTES as u32;
        let node = driver.backend.read(cellwright_backend::Slot(request.growth.slots[0][0].0 + (step % 2) * (2 * slots + 1)), slots);
        assert_eq!(node.expect("the device is there"), state(&driver.delivered, lane, step)[0], "step {step}");
    }
}

/// A layer over another one of the same cell, at different steps in one task: what it reads may be what the task is about to compute.
#[test]
fn layers_of_one_cell_are_not_batched_over_steps() {
    let (mut driver, control) = driver(6, &[lstm(UNITS, UNITS)]);
    let mut lower = over_rows(1, 6);
    lower.stages[0].inputs[0].source = Source::Literal(vec![0x3e; UNITS * 4].into());
    lower.stages[0].retention = Retention::All;
    let mut upper = over_rows(1, 6);
    upper.stages[0].inputs[0].source = Source::Steps { chain: 0, stage: 0, output: 0, at: Affine::EVERY };
    let request = driver.place(delivering_everything(&growth_of(vec![lower, upper])), &[], 0, &[]);
    let [lower, upper] = [request.lanes[0][0], request.lanes[1][0]];
    driver.task(CELL, &[(lower, 0)], 1);
    let _ = control.take_log();
    driver.task(CELL, &[(lower, 1), (upper, 0)], 5);
    let launched = launched(&control);
    assert_eq!((count(&launched, "gather"), count(&launched, "lstm_resident")), (5, 0));
    let together = std::mem::take(&mut driver.delivered);
    for step in 0..6 {
        driver.task(CELL, &[(lower, step)], 1);
        if step < 5 {
            driver.task(CELL, &[(upper, step)], 1);
        }
    }
    assert!(together.iter().all(|(key, bytes)| driver.delivered[key] == *bytes));
}

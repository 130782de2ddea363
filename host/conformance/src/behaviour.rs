//! What tasks, lanes and slots promise, apart from numbers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_cell_graph::generate::{self, Family, Rng};
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::{Delivery, Retention, Run, RunOf, Source, UnfoldedChain};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell, UnfoldedGrowth};

use super::cells::{self, Draft};
use super::driver::{Driver, Placed, delivering_everything, growth_of, independent};
use super::{ARENA_SLOTS, Make};
use cellwright_backend::{CellTypeId, RowError, SLOT_BYTES, Stopped};

/// Everything below.
///
/// # Panics
/// If the backend does not do it.
pub fn run(make: &mut Make<'_>) {
    says_what_it_is(make);
    completes_in_order(make);
    stops_and_says_so(make);
    refuses_one_row_alone(make);
    several_steps_are_single_steps(make);
    padding_leaves_nothing(make);
    padding_is_never_refused(make);
    the_dead_leave_nothing(make);
    scrubs_and_hands_over_slots(make);
    state_alternates_between_two_places(make);
    the_last_step_is_delivered_alone(make);
    windows_see_rows_and_zeros_beyond_either_end(make);
    growths_refer_to_earlier_ones(make);
    lanes_are_used_again(make);
    times_batches(make);
    what_timing_refuses_is_nobodys(make);
}

const CELL: CellTypeId = CellTypeId(0);

/// An accumulator: sum' = sum + x, exact in small integers.
fn adder() -> Arc<TypedCell> {
    Draft::new("adder")
        .input("x", Datatype::Fp32, &[2])
        .input("sum", Datatype::Fp32, &[2])
        .operator("Add", &["sum", "x"], &["next"])
        .output("next", Datatype::Fp32, &[2])
        .resolve()
}

/// A chain of adders over numbers that tell steps apart, its sum fed back.
fn adding(steps: u32, retention: Retention) -> (UnfoldedGrowth, Vec<Arc<Tensor>>) {
    let rows: Vec<f32> = (0..steps).flat_map(|step| [(1 << step) as f32, step as f32]).collect();
    let at = cellwright_cell_graph::graph::Affine::EVERY;
    let mut chain = independent(0, 1, vec![Source::Rows { tensor: 0, at }, Source::Zeros], steps);
    chain.sequential = true;
    chain.stages[0].inputs[1].feedback = Some((0, 0));
    chain.stages[0].retention = retention;
    (growth_of(vec![chain]), vec![Arc::new(Tensor::from_f32("x", &[steps as usize, 2], &rows))])
}

fn sums(steps: u32) -> Vec<f32> {
    vec![((1_u32 << steps) - 1) as f32, (steps * (steps - 1) / 2) as f32]
}

fn says_what_it_is(make: &mut Make<'_>) {
    let info = make().info();
    assert!(!info.name.is_empty() && !info.numeric_class.is_empty() && !info.domain.is_empty());
    assert!(info.arena_slots >= ARENA_SLOTS, "the suite needs {ARENA_SLOTS} slots");
    assert_eq!(make().info().numeric_class, info.numeric_class);
}

fn completes_in_order(make: &mut Make<'_>) {
    let mut driver = Driver::new(make(), &[adder()]);
    let (growth, tensors) = adding(5, Retention::Double);
    let request = driver.place(Arc::new(growth), &tensors, 0, &[]);
    let lane = request.lanes[0][0];
    let tasks: Vec<_> = (0..5).map(|step| driver.prepare(CELL, &[(lane, step)], 1)).collect();
    let sequence: Vec<u64> = tasks.iter().map(|task| task.seq).collect();
    tasks.into_iter().for_each(|task| driver.submit(task));
    let completed: Vec<u64> = sequence.iter().map(|_| driver.complete().seq).collect();
    assert_eq!(completed, sequence, "tasks complete in the order in which they were submitted");
    assert!(matches!(driver.backend.complete(), Ok(None)), "nothing is outstanding any more");
    assert_eq!(driver.floats(lane, 0, 4), sums(5));
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

fn stops_and_says_so(make: &mut Make<'_>) {
    let mut driver = Driver::new(make(), &[cells::countdown(8).resolve()]);
    // The first stops in its third step, the second never does and reaches its bound in the fourth.
    let growth = Arc::new(growth_of(vec![counting(3, 6), counting(8, 4)]));
    let request = driver.place(growth, &[], 0, &[]);
    let lanes = [request.lanes[0][0], request.lanes[1][0]];
    let mut stopped = Vec::new();
    // Steps are queued ahead of the stop.
    for step in 0..4 {
        let task = driver.prepare(CELL, &[(lanes[0], step), (lanes[1], step)], 1);
        driver.submit(task);
    }
    (0..4).for_each(|_| stopped.extend(driver.complete().stopped));
    assert_eq!(stopped, [Stopped { lane: lanes[0], step: 2 }, Stopped { lane: lanes[1], step: 3 }]);
    let executed = request.growth.executed.iter().map(|executed| executed.load(Ordering::Acquire)).collect::<Vec<_>>();
    assert_eq!(executed, [3, 4]);
    assert!(driver.delivered.contains_key(&(lanes[0], 1, 2)), "the stopping step is included");
    assert!(!driver.delivered.contains_key(&(lanes[0], 1, 3)), "what is queued beyond a stop is never seen");
    assert_eq!(driver.floats(lanes[0], 1, 2), [-1.0, -0.75, -0.5]);
}

fn refuses_one_row_alone(make: &mut Make<'_>) {
    for batch in [2, 5, 40, 400] {
        let mut driver = Driver::new(make(), &[cells::countdown(8).resolve()]);
        // Left after counting down: the index. 8 is one too many, -9 one too few; -8 is the first row.
        let bad = |request: usize| match request {
            1 | 390 => 9,
            3 => -8,
            _ => 1 + (request as i64 % 8),
        };
        let place = |driver: &mut Driver, from| driver.place(Arc::new(growth_of(vec![counting(from, 1)])), &[], 0, &[]);
        let requests: Vec<Placed> = (0..batch).map(|request| place(&mut driver, bad(request))).collect();
        let rows: Vec<_> = requests.iter().map(|request| (request.lanes[0][0], 0)).collect();
        let completed = driver.task(CELL, &rows, 1);
        let refused: Vec<_> = completed.refused.iter().map(|refused| (refused.lane, refused.error.clone())).collect();
        let error = |index| RowError::Index { index, rows: 8, cell: "countdown".to_owned() };
        let expected: Vec<_> = [(1, 8), (3, -9), (390, 8)]
            .into_iter()
            .filter(|(number, _)| *number < batch)
            .map(|(number, index)| (requests[number].lanes[0][0], error(index)))
            .collect();
        assert_eq!(refused, expected);
        for (number, request) in requests.iter().enumerate() {
            let is_bad = [1, 3, 390].contains(&number);
            assert_eq!(request.growth.flags.dead.load(Ordering::Acquire), is_bad, "a refused row's request, and no other, is dead");
            assert_eq!(driver.delivered.contains_key(&(request.lanes[0][0], 1, 0)), !is_bad);
            if !is_bad {
                let row = (bad(number) - 1) as f32 * 3.0;
                assert_eq!(driver.floats(request.lanes[0][0], 1, 0), [0.0, 1.0, 2.0].map(|at| (row + at) * 0.25 - 1.0));
            }
        }
    }
}

fn several_steps_are_single_steps(make: &mut Make<'_>) {
    let model = generate::model(5);
    let mut rng = Rng::new(5);
    let (growth, tensors) = generate::growth_of(&model, Family::Lstm, 9, &mut rng);
    let growth = delivering_everything(&generate::unfold(&model, growth, &tensors));
    let steps = growth.chains[0].length.bound;
    let cell = CellTypeId(growth.chains[0].stages[0].cell);
    let run = |driver: &mut Driver, at_once: u32| {
        let request = driver.place(growth.clone(), &tensors, 0, &[]);
        let lane = request.lanes[0][0];
        // Also with steps left over that are beyond the end.
        (0..steps.div_ceil(at_once)).for_each(|task| drop(driver.task(cell, &[(lane, task * at_once)], at_once)));
        (0..steps).map(|step| driver.delivered[&(lane, 0, step)].clone()).collect::<Vec<_>>()
    };
    let mut driver = Driver::new(make(), &model.cells);
    let single = run(&mut driver, 1);
    for at_once in [2, 3, steps, steps + 3] {
        assert!(run(&mut driver, at_once) == single, "{at_once} steps at once");
    }
    // A chain that stops within a task.
    let mut driver = Driver::new(make(), &[cells::countdown(8).resolve()]);
    let request = driver.place(Arc::new(growth_of(vec![counting(3, 8)])), &[], 0, &[]);
    let lane = request.lanes[0][0];
    let completed = driver.task(CELL, &[(lane, 0)], 5);
    assert_eq!(completed.stopped, [Stopped { lane, step: 2 }]);
    assert_eq!(driver.delivered.keys().map(|(_, _, step)| *step).max(), Some(2));
}

fn padding_leaves_nothing(make: &mut Make<'_>) {
    let mut driver = Driver::new(make(), &[adder()]);
    let (growth, tensors) = adding(3, Retention::All);
    let [short, long] =
        [adding(2, Retention::All), (growth, tensors)].map(|(growth, tensors)| driver.place(Arc::new(growth), &tensors, 0, &[]));
    let behind = driver.slots(4);
    let mark = vec![7_u8; 4 * SLOT_BYTES];
    driver.backend.write(behind, &mark).expect("the device is there");
    let lanes = [short.lanes[0][0], long.lanes[0][0]];
    for step in 0..6 {
        let completed = driver.task(CELL, &[(lanes[0], step), (lanes[1], step)], 1);
        let expected = usize::from(step < 2) + usize::from(step < 3);
        assert_eq!(completed.delivered.len(), expected, "a step beyond the end delivers nothing");
        assert!(completed.stopped.is_empty());
    }
    assert_eq!(driver.floats(lanes[1], 0, 2), sums(3), "a neighbour of padding is right");
    assert_eq!(driver.backend.read(behind, 4), Ok(mark), "padding writes no slot");
}

fn padding_is_never_refused(make: &mut Make<'_>) {
    let mut driver = Driver::new(make(), &[cells::moved_lookup(2, 5).resolve()]);
    // On zeros, as padding is computed, the cell asks for row 5 of 2.
    let place = |driver: &mut Driver, steps: &[i64]| {
        let chain = independent(0, 1, vec![Source::Ints(steps.to_vec())], steps.len() as u32);
        driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[])
    };
    let [short, long] = [&[-5][..], &[-4, -5, -6]].map(|steps| place(&mut driver, steps));
    let lanes = [short.lanes[0][0], long.lanes[0][0]];
    for step in 0..3 {
        let completed = driver.task(CELL, &[(lanes[0], step), (lanes[1], step)], 1);
        assert!(completed.refused.is_empty(), "padding was refused: {:?}", completed.refused);
    }
    assert!(!short.growth.flags.dead.load(Ordering::Acquire), "padding ended its own request");
    assert_eq!(driver.floats(lanes[0], 0, 0), [-1.0, -0.75, -0.5]);
    assert_eq!(driver.floats(lanes[1], 0, 2), [-0.25, 0.0, 0.25], "-1 is the last row");
}

fn the_dead_leave_nothing(make: &mut Make<'_>) {
    let mut driver = Driver::new(make(), &[adder()]);
    let requests = [(); 2].map(|()| {
        let (growth, tensors) = adding(4, Retention::Double);
        driver.place(Arc::new(growth), &tensors, 0, &[])
    });
    let lanes = [requests[0].lanes[0][0], requests[1].lanes[0][0]];
    driver.task(CELL, &[(lanes[0], 0), (lanes[1], 0)], 1);
    requests[0].growth.flags.dead.store(true, Ordering::Release);
    for step in 1..4 {
        driver.task(CELL, &[(lanes[0], step), (lanes[1], step)], 1);
    }
    assert!((1..4).all(|step| !driver.delivered.contains_key(&(lanes[0], 0, step))));
    assert_eq!(driver.floats(lanes[1], 0, 3), sums(4));
    // Also when nobody is left.
    requests[1].growth.flags.dead.store(true, Ordering::Release);
    let completed = driver.task(CELL, &[(lanes[0], 3), (lanes[1], 3)], 1);
    assert!(completed.delivered.is_empty() && completed.refused.is_empty());
}

fn scrubs_and_hands_over_slots(make: &mut Make<'_>) {
    let mut driver = Driver::new(make(), &[adder()]);
    let first = driver.slots(5);
    let bytes: Vec<u8> = (0..5 * SLOT_BYTES).map(|at| at as u8 | 1).collect();
    driver.backend.write(first, &bytes).expect("the device is there");
    assert_eq!(driver.backend.read(first, 5).as_deref(), Ok(bytes.as_slice()), "what is written is read");
    let (growth, tensors) = adding(1, Retention::None);
    let request = driver.place(Arc::new(growth), &tensors, 0, &[]);
    let mut task = driver.prepare(CELL, &[(request.lanes[0][0], 0)], 1);
    task.scrub = vec![(cellwright_backend::Slot(first.0 + 1), 2), (cellwright_backend::Slot(first.0 + 4), 1)];
    driver.submit(task);
    driver.complete();
    let now = driver.backend.read(first, 5).expect("the device is there");
    for (slot, (before, now)) in bytes.chunks(SLOT_BYTES).zip(now.chunks(SLOT_BYTES)).enumerate() {
        let is_scrubbed = [1, 2, 4].contains(&slot);
        assert!(if is_scrubbed { now.iter().all(|byte| *byte == 0) } else { now == before }, "slot {slot}");
    }
}

fn state_alternates_between_two_places(make: &mut Make<'_>) {
    let mut driver = Driver::new(make(), &[adder()]);
    let (growth, tensors) = adding(4, Retention::Double);
    let request = driver.place(Arc::new(growth), &tensors, 0, &[]);
    let slot = request.growth.slots[0][0];
    for step in 0..4 {
        driver.task(CELL, &[(request.lanes[0][0], step)], 1);
        let bytes = driver.backend.read(slot, 2).expect("the device is there");
        for (place, steps) in [(step & 1, step + 1), (1 - (step & 1), step)] {
            let held: Vec<f32> =
                bytes[place as usize * SLOT_BYTES..][..8].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            assert!(steps == 0 || held == sums(steps), "after step {step}, place {place} holds {held:?}");
        }
    }
}

fn the_last_step_is_delivered_alone(make: &mut Make<'_>) {
    let mut driver = Driver::new(make(), &[cells::countdown(8).resolve()]);
    let growth = |from, bound| {
        let mut growth = growth_of(vec![counting(from, bound)]);
        growth.chains[0].stages[0].delivery = vec![Delivery::None, Delivery::Last, Delivery::None];
        Arc::new(growth)
    };
    let [stops, ends] = [growth(3, 8), growth(8, 5)].map(|growth| driver.place(growth, &[], 0, &[]));
    for step in 0..8 {
        driver.task(CELL, &[(stops.lanes[0][0], step), (ends.lanes[0][0], step)], 1);
    }
    let delivered: Vec<_> = driver.delivered.keys().copied().collect();
    assert_eq!(delivered, [(stops.lanes[0][0], 1, 2), (ends.lanes[0][0], 1, 4)]);
}

fn windows_see_rows_and_zeros_beyond_either_end(make: &mut Make<'_>) {
    const STEPS: u32 = 5;
    let window = Draft::new("window")
        .input("rows", Datatype::Fp32, &[4, 2])
        .input("frame", Datatype::Fp32, &[3])
        .input("given", Datatype::Fp32, &[2, 2])
        .operator("Flatten", &["rows"], &["flat"])
        .operator("Flatten", &["given"], &["flat_given"])
        .operator("Relu", &["frame"], &["positive"])
        .output("flat", Datatype::Fp32, &[8])
        .output("positive", Datatype::Fp32, &[3])
        .output("flat_given", Datatype::Fp32, &[4])
        .resolve();
    let mut driver = Driver::new(make(), &[adder(), window]);
    let (mut growth, mut tensors) = adding(STEPS, Retention::All);
    tensors.push(Arc::new(Tensor::from_f32("audio", &[7], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])));
    let line = |first, stride| Affine { first, stride, from_end: false };
    let (chain, rows) = (RunOf::Chain { chain: 0, stage: 0, output: 0 }, RunOf::Tensor(0));
    // Two rows of the chain two apart, of which the first is the step before the reader's, then one of the tensor from behind, and the chain's second.
    let runs = [
        Run { of: chain, at: line(-1, 1), every: 2, count: 2 },
        Run { of: rows, at: line(5, -2), every: 1, count: 1 },
        Run { of: chain, at: line(1, 0), every: 1, count: 1 },
    ];
    let given = [Run { of: rows, at: line(-1, 3), every: 1, count: 2 }];
    let sources = vec![Source::Window(runs.into()), Source::Frames { tensor: 1, at: line(-2, 3) }, Source::Window(given.into())];
    growth.chains.push(independent(1, 3, sources, STEPS));
    growth.nodes += u64::from(STEPS);
    let request = driver.place(delivering_everything(&growth), &tensors, 0, &[]);
    let [sum, seen] = [0, 1].map(|chain| request.lanes[chain][0]);
    driver.task(CELL, &[(sum, 0)], STEPS);
    let steps: Vec<_> = (0..STEPS).map(|step| (seen, step)).collect();
    driver.task(CellTypeId(1), &steps, 1);
    let within = |number: i64, count: u32| u32::try_from(number).ok().filter(|number| *number < count);
    let sum_at = |number: i64| within(number, STEPS).map_or_else(|| vec![0.0; 2], |step| sums(step + 1));
    let row_at = |number: i64| within(number, STEPS).map_or_else(|| vec![0.0; 2], |row| vec![(1_u32 << row) as f32, row as f32]);
    for step in 0..STEPS {
        let at = i64::from(step);
        let rows = [sum_at(at - 1), sum_at(at + 1), row_at(5 - 2 * at), sum_at(1)].concat();
        assert_eq!(driver.floats(seen, 0, step), rows, "step {step}");
        let frame: Vec<f32> = (0..3).map(|element| within(3 * at - 2 + element, 7).map_or(0.0, |element| element as f32 + 1.0)).collect();
        assert_eq!(driver.floats(seen, 1, step), frame, "step {step}");
        assert_eq!(driver.floats(seen, 2, step), [row_at(3 * at - 1), row_at(3 * at)].concat(), "step {step}");
    }
}

fn growths_refer_to_earlier_ones(make: &mut Make<'_>) {
    let model = generate::model(9);
    let chunks = generate::session(&model, 4, &mut Rng::new(9));
    let run = |driver: &mut Driver, rng: &mut Rng| {
        let mut unfolding = cellwright_cell_graph::Unfolding::new(model.clone(), cellwright_cell_graph::GraphLimits::default());
        let mut placed: Vec<Placed> = Vec::new();
        for chunk in &chunks {
            let unfolded = match unfolding.grow(chunk.growth.clone(), chunk.first_tensor, &chunk.tensors) {
                Ok(unfolded) => delivering_everything(&unfolded),
                Err(error) => panic!("{error}"),
            };
            let next = driver.place(unfolded, &chunk.tensors, chunk.first_tensor, &placed);
            driver.run_all(std::slice::from_ref(&next), rng, 1);
            placed.push(next);
        }
        placed
    };
    // In pieces, and as one chain whose rows are all the pieces' rows.
    let mut driver = Driver::new(make(), &model.cells);
    let placed = run(&mut driver, &mut Rng::new(1));
    let own = |chunk: &generate::Chunk| chunk.tensors[chunk.tensors.len() - 2].clone();
    let rows: Vec<u8> = chunks.iter().flat_map(|chunk| own(chunk).data.clone()).collect();
    let steps: usize = chunks.iter().map(|chunk| own(chunk).shape[0]).sum();
    let mut whole = (*own(&chunks[0])).clone();
    (whole.data, whole.shape[0]) = (rows, steps);
    let mut chains = placed[0].growth.growth.chains.clone();
    for chain in &mut chains {
        chain.length.bound = steps as u32;
        chain.stages[0].retention = Retention::All;
    }
    let tensors = [Arc::new(whole), chunks[0].tensors[1].clone()];
    let one = driver.place(Arc::new(growth_of(chains)), &tensors, 0, &[]);
    driver.run_all(std::slice::from_ref(&one), &mut Rng::new(2), 1);
    let mut number = 0;
    for piece in &placed {
        for step in 0..piece.growth.growth.chains[0].length.bound {
            for (chain, of) in ["state", "window"].into_iter().enumerate() {
                let [piece, one] = [(piece, step), (&one, number)].map(|(placed, step)| driver.floats(placed.lanes[chain][0], 0, step));
                assert_eq!(piece, one, "{of} of step {number} of a session");
            }
            number += 1;
        }
    }
}

fn lanes_are_used_again(make: &mut Make<'_>) {
    let mut driver = Driver::new(make(), &[adder()]);
    for steps in [2, 5, 3] {
        let (growth, tensors) = adding(steps, Retention::Double);
        let request = driver.place(Arc::new(growth), &tensors, 0, &[]);
        let lane = request.lanes[0][0];
        // The joining lane takes number 0, which left just before.
        let own = |task: &mut cellwright_backend::Task| {
            task.joins.iter_mut().for_each(|(index, _)| *index = cellwright_backend::LaneId(0));
            task.rows.iter_mut().for_each(|row| row.lane = cellwright_backend::LaneId(0));
        };
        let mut task = driver.prepare(CELL, &[(lane, 0)], steps);
        own(&mut task);
        task.leaves = vec![cellwright_backend::LaneId(0)];
        driver.delivered.clear();
        driver.submit(task);
        driver.complete();
        assert_eq!(driver.floats(cellwright_backend::LaneId(0), 0, steps - 1), sums(steps));
    }
}

fn times_batches(make: &mut Make<'_>) {
    let mut driver = Driver::new(make(), &[cells::countdown(8).resolve(), adder()]);
    for rows in [1, 3, 64] {
        for cell in 0..2 {
            let time = driver.backend.time_batch(CellTypeId(cell), rows).expect("the device is there");
            assert!(time < std::time::Duration::from_secs(1), "a tiny step takes {time:?}");
        }
    }
    driver.backend.unload(CellTypeId(1));
    driver.backend.load(CellTypeId(1), &adder()).expect("it was loaded before");
    let (growth, tensors) = adding(2, Retention::Double);
    let mut growth = growth;
    growth.chains[0].stages[0].cell = 1;
    let request = driver.place(Arc::new(growth), &tensors, 0, &[]);
    driver.task(CellTypeId(1), &[(request.lanes[0][0], 0)], 2);
    assert_eq!(driver.floats(request.lanes[0][0], 0, 1), sums(2), "a timed and reloaded cell still computes");
}

/// Timing runs on scratch data, which a cell may refuse: that concerns no task that follows.
fn what_timing_refuses_is_nobodys(make: &mut Make<'_>) {
    let mut driver = Driver::new(make(), &[cells::moved_lookup(2, 5).resolve(), adder()]);
    let (growth, tensors) = adding(2, Retention::Double);
    let mut growth = growth;
    growth.chains[0].stages[0].cell = 1;
    let sum = driver.place(Arc::new(growth), &tensors, 0, &[]);
    let chain = independent(0, 1, vec![Source::Ints(vec![-5])], 1);
    let found = driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]);
    driver.backend.time_batch(CELL, 64).expect("the device is there");
    let completed = driver.task(CellTypeId(1), &[(sum.lanes[0][0], 0)], 2);
    assert!(completed.refused.is_empty(), "another cell's timing was refused: {:?}", completed.refused);
    assert_eq!(driver.floats(sum.lanes[0][0], 0, 1), sums(2));
    driver.backend.time_batch(CELL, 64).expect("the device is there");
    let completed = driver.task(CELL, &[(found.lanes[0][0], 0)], 1);
    assert!(completed.refused.is_empty(), "its own timing was refused: {:?}", completed.refused);
    assert_eq!(driver.floats(found.lanes[0][0], 0, 0), [-1.0, -0.75, -0.5]);
}

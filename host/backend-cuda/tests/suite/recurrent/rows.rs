//! Tasks of several steps of more rows than the worker writes down at once (32): every row finds its states, its token and its place in what is delivered,
//! whichever of these blocks and of the steps it is in.

use super::*;

/// So many chains, of three lengths; each third delivers its last step alone, the others all.
const CHAINS: u32 = 70;

fn length(chain: u32) -> u32 {
    4 + chain % 3
}

/// What all of them deliver in tasks of so many chains and steps.
fn run(cell: &Arc<TypedCell>, options: CudaOptions, (rows, steps): (usize, u32)) -> (Deliveries, Vec<(&'static str, u32)>) {
    let (mut driver, control) = driver_with(7, std::slice::from_ref(cell), options);
    let placed: Vec<Placed> = (0..CHAINS)
        .map(|number| {
            let mut growth = growth_of(vec![over_rows(1, length(number))]);
            let tensors = [Arc::new(random("x", &[length(number) as usize, 5], u64::from(number)))];
            let growth = if number % 3 == 0 {
                growth.chains[0].stages[0].delivery = vec![Delivery::Last; 2];
                Arc::new(growth)
            } else {
                delivering_everything(&growth)
            };
            driver.place(growth, &tensors, 0, &[])
        })
        .collect();
    let lanes: Vec<LaneId> = placed.iter().map(|placed| placed.lanes[0][0]).collect();
    for some in lanes.chunks(rows) {
        for first in (0..7).step_by(steps as usize) {
            // Chains that end on the way stay in the task.
            let there = some.iter().filter(|lane| first < length(lane.0));
            let rows: Vec<_> = there.map(|lane| (*lane, first)).collect();
            if !rows.is_empty() {
                let completed = driver.task(CELL, &rows, steps);
                driver.backend.recycle(completed);
            }
        }
    }
    let launched = launched(&control);
    (driver.delivered, launched)
}

#[test]
fn no_bit_depends_on_how_many_rows_are_written_at_once() {
    let cell = lstm(5, UNITS);
    let (alone, _) = run(&cell, options(), (1, 1));
    let all = (0..CHAINS).map(|chain| if chain % 3 == 0 { 1 } else { length(chain) as usize }).sum::<usize>();
    assert_eq!(alone.len(), 2 * all);
    let small = CudaOptions { ring_bytes: 96 << 10, ..options() };
    for (what, options) in [("as it is", options()), ("without graphs", staying()), ("in a small ring", small)] {
        for most in [(33, 3), (64, 2), (70, 1), (70, 3), (70, 7)] {
            let (got, launched) = run(&cell, options, most);
            assert!(got == alone, "{what}, {most:?} rows and steps");
            assert!(most.1 == 1 || are_together(&launched), "{what}: steps are one batch: {launched:?}");
        }
    }
}

/// What rows of 40 chains bring is more than the ring has for a batch, which two steps of them before that are not.
#[test]
fn steps_that_bring_nothing_go_together_whatever_they_might_bring() {
    const STEPS: u32 = 6;
    let cell = lstm(5, 256);
    let run = |options: CudaOptions, steps: u32| {
        let (mut driver, control) = driver_with(11, std::slice::from_ref(&cell), options);
        let place = |number: u64| {
            let mut growth = growth_of(vec![over_rows(1, STEPS)]);
            growth.chains[0].stages[0].delivery = vec![Delivery::Last; 2];
            let x = Arc::new(random("x", &[STEPS as usize, 5], number));
            driver.place(Arc::new(growth), &[x], 0, &[]).lanes[0][0]
        };
        let lanes: Vec<LaneId> = (0..40).map(place).collect();
        let mut launched_by_task = Vec::new();
        for first in (0..STEPS).step_by(steps as usize) {
            let rows: Vec<_> = lanes.iter().map(|lane| (*lane, first)).collect();
            let completed = driver.task(CELL, &rows, steps);
            driver.backend.recycle(completed);
            launched_by_task.push(launched(&control));
        }
        (driver.delivered, launched_by_task)
    };
    let (alone, _) = run(options(), 1);
    assert_eq!(alone.len(), 80);
    let ring_bytes = 256 << 10;
    let (got, tasks) = run(CudaOptions { ring_bytes, ..staying() }, 3);
    assert!(got == alone);
    let counts = tasks.iter().map(|launched| (count(launched, "lstm_queue_"), count(launched, "lstm_step_")));
    assert_eq!(counts.collect::<Vec<_>>(), [(1, 0), (1, 2)], "{tasks:?}");
}

//! Batches as graphs: the same bits as without them, whatever they are composed of and whatever happens to them; and which graphs there are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cellwright_backend::{Backend, CellTypeId, LaneId};
use cellwright_backend_cuda::driver::emulated::{Control, Emulated, Emulation, Injection, Ran, What};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Retention, Source};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Driver, Placed, growth_of, independent};

const CELL: CellTypeId = CellTypeId(0);

/// Tasks that an engine has outstanding at most.
const AHEAD: usize = 5;

/// Steps of a chain.
const STEPS: u32 = 11;

/// Values of x.
const WIDTH: usize = 20;

fn options(graphs: bool) -> CudaOptions {
    CudaOptions {
        arena_bytes: Some(4 << 20),
        frame_bytes: Some(1 << 20),
        ring_bytes: 1 << 18,
        rows_most: 24,
        spin: Duration::ZERO,
        graphs,
        ..CudaOptions::default()
    }
}

fn worker(emulation: &Emulation, options: CudaOptions) -> (Box<dyn Backend>, Control) {
    let device = Emulated::new(&Emulation { memory_bytes: 64 << 20, lag: Duration::from_micros(50), ..emulation.clone() });
    let control = device.control();
    (Box::new(CudaWorker::new(Box::new(device), options).expect("a device made of threads")), control)
}

fn driver(emulation: &Emulation, options: CudaOptions, cells: &[Arc<TypedCell>]) -> (Driver, Control) {
    let (worker, control) = worker(emulation, options);
    (Driver::new(worker, cells), control)
}

fn seeded(seed: u64) -> Emulation {
    Emulation { seed, ..Emulation::default() }
}

fn random(name: &str, shape: &[usize]) -> Tensor {
    let mut rng = Rng::new(name.len() as u64 + shape[0] as u64);
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * 0.5).collect();
    Tensor::from_f32(name, shape, &values)
}

/// h' = tanh(x·w + h·u), its softmax, and the place of the best of its scores: everything that a plan is made of.
fn recurrent(name: &str, precision: Precision) -> Arc<TypedCell> {
    let draft = Draft::new(name).input("x", Datatype::Fp32, &[WIDTH]).input("h", Datatype::Fp32, &[9]);
    let draft = draft.weight(random("w", &[WIDTH, 9])).weight(random("u", &[9, 9])).weight(random("scores", &[9, 70]));
    let draft = draft.operator("MatMul", &["x", "w"], &["of_x"]).operator("MatMul", &["h", "u"], &["of_h"]);
    let draft = draft.operator("Add", &["of_x", "of_h"], &["sum"]).operator("Tanh", &["sum"], &["next"]);
    let draft = draft.operator("MatMul", &["next", "scores"], &["logits"]).operator("ArgMax", &["logits"], &["best"]).with("axis", -1);
    let draft = draft.with("keepdims", 0).operator("Softmax", &["next"], &["soft"]).output("next", Datatype::Fp32, &[9]);
    draft.output("soft", Datatype::Fp32, &[9]).output("best", Datatype::Int64, &[]).at(precision).resolve()
}

/// An LSTM over rows as wide.
fn lstm() -> Arc<TypedCell> {
    let weight = |name: &str| random(name, &if name.starts_with("bias") { vec![4 * WIDTH] } else { vec![4 * WIDTH, WIDTH] });
    cells::lstm("lstm", WIDTH, WIDTH, &weight).at(Precision::Bf16).resolve()
}

/// Chains over the rows of a tensor each, of these outputs and feedback.
fn place(driver: &mut Driver, requests: u64, outputs: usize, feedback: &[(usize, u32)]) -> Vec<Placed> {
    place_in(driver, (0, outputs, feedback), requests)
}

/// The same of that cell.
fn place_in(driver: &mut Driver, (cell, outputs, feedback): (u32, usize, &[(usize, u32)]), requests: u64) -> Vec<Placed> {
    let one = |driver: &mut Driver, seed: u64| {
        let mut sources = vec![Source::Rows { tensor: 0, at: Affine::EVERY }];
        sources.extend(feedback.iter().map(|_| Source::Zeros));
        let mut chain = independent(cell, outputs, sources, STEPS);
        chain.sequential = true;
        for (input, output) in feedback {
            chain.stages[0].inputs[*input].feedback = Some((0, *output));
        }
        chain.stages[0].retention = Retention::Double;
        let mut rng = Rng::new(seed);
        let values: Vec<f32> = (0..STEPS as usize * WIDTH).map(|_| rng.float()).collect();
        driver.place(Arc::new(growth_of(vec![chain])), &[Arc::new(Tensor::from_f32("x", &[STEPS as usize, WIDTH], &values))], 0, &[])
    };
    (0..requests).map(|request| one(driver, 100 + request)).collect()
}

/// What was delivered, by the request's number.
type Outputs = BTreeMap<(u32, u32, u32), Vec<u8>>;

/// Runs requests by tasks of random rows and up to so many steps, some ahead of what is complete.
fn under_load(driver: &mut Driver, placed: &[Placed], (ahead, steps_most): (usize, u32), seed: u64) -> Outputs {
    let mut rng = Rng::new(seed);
    let lanes: Vec<LaneId> = placed.iter().map(|request| request.lanes[0][0]).collect();
    let mut left: Vec<_> = lanes.iter().map(|lane| (*lane, 0)).collect();
    let mut outstanding = 0;
    while !left.is_empty() {
        for at in (1..left.len()).rev() {
            left.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let rows = rng.between(1, left.len() as u32) as usize;
        // Some of the rows end before the others: they are padding from then on.
        let steps = rng.between(1, steps_most);
        let task = driver.prepare(CELL, &left[..rows], steps);
        driver.submit(task);
        outstanding += 1;
        left[..rows].iter_mut().for_each(|(_, step)| *step += steps);
        left.retain(|(_, step)| *step < STEPS);
        while outstanding > if left.is_empty() { 0 } else { ahead - 1 } {
            let completed = driver.complete();
            driver.backend.recycle(completed);
            outstanding -= 1;
        }
    }
    let number = |lane: LaneId| lanes.iter().position(|known| *known == lane).expect("a request's lane") as u32;
    std::mem::take(&mut driver.delivered).into_iter().map(|((lane, output, step), bytes)| ((number(lane), output, step), bytes)).collect()
}

/// Launches of graphs, by how many launches each has.
fn graphs(log: &[Ran]) -> Vec<usize> {
    log.iter()
        .filter_map(|ran| match ran.what {
            What::Graph { launches } => Some(launches),
            _ => None,
        })
        .collect()
}

/// A cell, its outputs, and which of them go on into which inputs.
type Case = (Arc<TypedCell>, usize, Vec<(usize, u32)>);

#[test]
fn no_bit_depends_on_whether_batches_are_graphs() {
    let own: fn() -> Case = || (lstm(), 2, vec![(1, 0), (2, 1)]);
    let cases: [(Case, bool); 4] = [
        ((recurrent("plain", Precision::F32), 3, vec![(1, 0)]), false),
        ((recurrent("plain", Precision::Bf16), 3, vec![(1, 0)]), true),
        (own(), false),
        (own(), true),
    ];
    for (number, ((cell, outputs, feedback), compiles)) in cases.into_iter().enumerate() {
        let cell = [cell];
        let run = |seed: u64, options: CudaOptions, how: (usize, u32)| {
            let (mut driver, control) = driver(&Emulation { compiles, ..seeded(seed) }, options, &cell);
            let placed = place(&mut driver, 21, outputs, &feedback);
            (under_load(&mut driver, &placed, how, seed), control.take_log())
        };
        let (expected, log) = run(1, options(false), (1, 1));
        assert!(expected.len() == 21 * outputs * STEPS as usize && graphs(&log).is_empty());
        for seed in 2..6 {
            // An LSTM's steps are one batch where a task has several: it has graphs only where it has one.
            let steps_most = if number < 2 || seed % 2 == 0 { 11 } else { 1 };
            // The ring is small enough for tasks of several segments.
            for ring_bytes in [1 << 18, 1 << 14] {
                let (got, log) = run(seed, CudaOptions { ring_bytes, ..options(true) }, (AHEAD, steps_most));
                assert!(got == expected, "case {number}, seed {seed}");
                let launched: BTreeSet<usize> = graphs(&log).into_iter().collect();
                assert!(number >= 2 && steps_most > 1 || !launched.is_empty(), "case {number}, seed {seed}: nothing ran as a graph");
                assert!(number >= 2 || launched.len() >= 3, "of several numbers of steps: {launched:?}");
                let has = |name: &str| log.iter().any(|ran| matches!(ran.what, What::Launch { kernel, .. } if kernel.starts_with(name)));
                assert_eq!(has("lstm_step_") || has("lstm_resident_"), number >= 2);
                assert_eq!(has("compiled_group"), compiles);
            }
        }
    }
}

/// Sizes of one bucket have one graph, and as many steps as there are; direct launches have as many blocks as rows.
#[test]
fn a_graph_is_for_a_bucket_of_rows_and_a_number_of_steps() {
    let (mut driver, control) = driver(&seeded(0), options(true), &[recurrent("plain", Precision::F32)]);
    let mut run = |rows: u64, steps: u32| {
        let placed = place(&mut driver, rows, 3, &[(1, 0)]);
        let _ = control.take_log();
        let rows: Vec<_> = placed.iter().map(|request| (request.lanes[0][0], 0)).collect();
        driver.task(CELL, &rows, steps);
        let log = control.take_log();
        let grid = log.iter().find_map(|ran| match ran.what {
            What::Launch { kernel: "gather", grid, .. } => Some(grid[0]),
            _ => None,
        });
        (graphs(&log).len(), grid.expect("rows are gathered"))
    };
    assert_eq!(run(5, 1), (1, 8));
    assert_eq!(run(3, 1), (1, 4));
    assert_eq!(run(17, 1), (1, 24), "the last bucket is as large as a batch may be");
    assert_eq!(run(1, 7), (3, 1), "four steps, two and one");
    // The next graph that is new is refused.
    control.inject(Injection::NoGraph { after_graphs: 0 });
    assert_eq!([run(8, 1), run(6, 1)], [(1, 8); 2], "it is there");
    assert_eq!(run(24, 1), (1, 24));
    assert_eq!(run(2, 1), (0, 2), "a graph that is refused is launched directly");
    assert_eq!(run(2, 1), (0, 2), "and not asked for again");
    assert_eq!(run(16, 1), (1, 16), "others are");
}

#[test]
fn a_batch_of_three_launches_is_a_graph() {
    let cell = Draft::new("short").input("x", Datatype::Fp32, &[8]).operator("Tanh", &["x"], &["y"]).output("y", Datatype::Fp32, &[8]);
    let (mut driver, control) = driver(&seeded(0), options(true), &[cell.resolve()]);
    let request = driver.place(Arc::new(growth_of(vec![independent(0, 1, vec![Source::Zeros], 2)])), &[], 0, &[]);
    driver.task(CELL, &[(request.lanes[0][0], 0)], 1);
    assert_eq!(graphs(&control.take_log()), [3]);
    driver.task(CELL, &[(request.lanes[0][0], 0)], 2);
    assert_eq!(graphs(&control.take_log()), [6]);
}

/// Memory that graphs were made for goes when the frame moves, and so do they.
#[test]
fn graphs_are_made_anew_when_the_frame_moves() {
    let cell = recurrent("plain", Precision::F32);
    let (mut expected, _control) = driver(&seeded(0), options(false), std::slice::from_ref(&cell));
    let placed = place(&mut expected, 9, 3, &[(1, 0)]);
    let expected = under_load(&mut expected, &placed, (1, 1), 3);
    let (mut driver, control) = driver(&seeded(1), options(true), &[cell]);
    for round in 0..3 {
        let placed = place(&mut driver, 9, 3, &[(1, 0)]);
        assert!(under_load(&mut driver, &placed, (AHEAD, 5), round) == expected, "round {round}");
        assert!(!graphs(&control.take_log()).is_empty());
        // Each needs a larger frame than the one before, and rows that lie elsewhere.
        let width = 200 << round;
        let wide = Draft::new("wide").input("x", Datatype::Fp32, &[width]).operator("Neg", &["x"], &["y"]);
        driver.backend.load(CellTypeId(1 + round as u32), &wide.output("y", Datatype::Fp32, &[width]).resolve()).expect("it fits");
    }
}

/// A cell is unloaded while its tasks are on their way, which end as they would have; then its memory and its graphs go, and the next cell may lie where
/// it was.
#[test]
fn a_cell_goes_while_its_graphs_are_queued() {
    let cell = recurrent("first", Precision::F32);
    let (mut driver, control) = driver(&seeded(4), options(true), std::slice::from_ref(&cell));
    let before = control.allocated_bytes();
    let expected = {
        let placed = place(&mut driver, 9, 3, &[(1, 0)]);
        under_load(&mut driver, &placed, (1, 3), 8)
    };
    for round in 0..4 {
        let placed = place(&mut driver, 9, 3, &[(1, 0)]);
        let rows: Vec<_> = placed.iter().map(|request| (request.lanes[0][0], 0)).collect();
        let tasks: Vec<_> = (0..STEPS).step_by(4).map(|step| rows.iter().map(|(lane, _)| (*lane, step)).collect::<Vec<_>>()).collect();
        let tasks: Vec<_> = tasks.iter().map(|rows| driver.prepare(CELL, rows, 4)).collect();
        let count = tasks.len();
        control.hold();
        tasks.into_iter().for_each(|task| driver.submit(task));
        control.release();
        driver.backend.unload(CELL);
        (0..count).for_each(|_| drop(driver.complete()));
        let got: Vec<_> = std::mem::take(&mut driver.delivered).into_values().collect();
        assert!(got.iter().eq(expected.values()), "round {round}");
        // A sweep finds what nobody names.
        driver.backend.unload(CELL);
        assert!(control.allocated_bytes() < before && control.graphs() == 0);
        driver.backend.load(CELL, &cell).expect("it fits");
        assert_eq!(control.allocated_bytes(), before);
    }
}

#[test]
fn a_fault_within_a_graph_loses_the_device() {
    for fault in [Injection::IllegalAccess { after_launches: 7 }, Injection::DeviceLost { after_work: 12 }] {
        let (mut driver, control) = driver(&seeded(5), options(true), &[recurrent("plain", Precision::F32)]);
        let placed = place(&mut driver, 9, 3, &[(1, 0)]);
        let rows: Vec<_> = placed.iter().map(|request| (request.lanes[0][0], 0)).collect();
        let task = driver.prepare(CELL, &rows, 8);
        control.inject(fault);
        // So that all of it is queued when the first of it runs.
        control.hold();
        driver.submit(task);
        control.release();
        let lost = driver.backend.complete().expect_err("the fault surfaces");
        assert_eq!(graphs(&control.take_log()).len(), 1, "it ran as a graph");
        let again = driver.prepare(CELL, &rows, 1);
        assert_eq!(driver.backend.submit(again), Err(lost), "and goes on saying so");
        driver.backend.unload(CELL);
    }
}

/// Whatever sizes come, and in whatever numbers of steps.
#[test]
fn there_are_so_many_graphs_and_no_more() {
    let cell = [recurrent("plain", Precision::F32)];
    let (mut driver, control) = driver(&seeded(6), CudaOptions { arena_bytes: Some(16 << 20), ..options(true) }, &cell);
    for rows in 1..=24 {
        for steps in 1..=STEPS {
            let placed = place(&mut driver, rows, 3, &[(1, 0)]);
            let rows: Vec<_> = placed.iter().map(|request| (request.lanes[0][0], 0)).collect();
            driver.task(CELL, &rows, steps);
        }
    }
    // Up to 1, 2, 4, 8, 16 and 24 rows, by 1, 2, 4 and 8 steps.
    assert_eq!(control.graphs(), 6 * 4);
    driver.backend.unload(CELL);
    assert_eq!(control.graphs(), 0, "they go with their cell");
}

/// Steps of an LSTM that are one batch are one graph where the frame has room for a bucket of rows for each of them, and are at most eight.
#[test]
fn steps_that_go_together_are_a_graph() {
    let cell = [lstm()];
    let (mut driver, control) = driver(&seeded(6), CudaOptions { arena_bytes: Some(16 << 20), ..options(true) }, &cell);
    let stays = |ran: &Ran| matches!(ran.what, What::Launch { kernel, .. } if kernel.starts_with("lstm_resident"));
    for rows in 1..=24_u32 {
        for steps in 2..=STEPS {
            let placed = place(&mut driver, u64::from(rows), 2, &[(1, 0), (2, 1)]);
            let lanes: Vec<_> = placed.iter().map(|request| (request.lanes[0][0], 0)).collect();
            let _ = control.take_log();
            driver.task(CELL, &lanes, steps);
            let log = control.take_log();
            let is_one = rows.next_power_of_two() * steps <= 24 && steps <= 8;
            assert!(!is_one || (graphs(&log).len() == 1 && !log.iter().any(stays)), "{steps} steps of {rows} rows: {:?}", graphs(&log));
            let listed = |ran: &Ran| matches!(ran.what, What::Launch { kernel: "lstm_rows", grid, .. } if grid[0] > 24);
            assert!(!log.iter().any(listed), "{steps} steps of {rows} rows are more than the frame has");
            assert!(steps <= 8 || rows > 1 || (graphs(&log).is_empty() && log.iter().any(stays)), "{steps} steps of a row");
        }
    }
    assert!(control.graphs() <= 512, "{} graphs", control.graphs());
    driver.backend.unload(CELL);
    assert_eq!(control.graphs(), 0, "they go with their cell");
}

/// How many graphs a task of one step of so many rows is.
fn graphs_of_a_task(driver: &mut Driver, control: &Control, rows: u64) -> usize {
    let placed = place(driver, rows, 3, &[(1, 0)]);
    let _ = control.take_log();
    let rows: Vec<_> = placed.iter().map(|request| (request.lanes[0][0], 0)).collect();
    driver.task(CELL, &rows, 1);
    graphs(&control.take_log()).len()
}

/// The device has no room to launch one: its launches run directly, others go on as graphs, and nothing is lost.
#[test]
fn a_graph_that_is_not_launched_is_given_up() {
    let cell = [recurrent("plain", Precision::F32)];
    let expected = {
        let (mut driver, _control) = driver(&seeded(0), options(false), &cell);
        let placed = place(&mut driver, 21, 3, &[(1, 0)]);
        under_load(&mut driver, &placed, (1, 1), 1)
    };
    let (mut driver, control) = driver(&seeded(7), options(true), &cell);
    for after_launches in [0, 3, 20] {
        control.inject(Injection::NoLaunchOfGraph { after_launches });
        let placed = place(&mut driver, 21, 3, &[(1, 0)]);
        assert!(under_load(&mut driver, &placed, (AHEAD, 11), 2 + after_launches) == expected, "refused after {after_launches} launches");
    }
    driver.backend.unload(CELL);
    assert_eq!((control.graphs(), control.graph_bytes()), (0, 0), "what was given up goes with its cell");
    driver.backend.load(CELL, &cell[0]).expect("it fits");
    let mut run = |rows: u64| graphs_of_a_task(&mut driver, &control, rows);
    assert_eq!(run(7), 1);
    control.inject(Injection::NoLaunchOfGraph { after_launches: 0 });
    assert_eq!([run(7), run(6)], [0; 2], "it is not asked for again");
    assert_eq!(run(3), 1, "others are");
}

/// What a graph takes of the memory is not told, before it is made or behind it: its batches are launched directly, others are graphs, and nothing is lost.
#[test]
fn a_graph_of_which_nobody_knows_what_it_takes_is_not_launched() {
    let cell = [recurrent("plain", Precision::F32)];
    for (after_figures, made) in [(0, 0), (1, 1)] {
        let (mut driver, control) = driver(&seeded(10), options(true), &cell);
        let mut run = |rows: u64| graphs_of_a_task(&mut driver, &control, rows);
        control.inject(Injection::NoMemoryFigure { after_figures });
        assert_eq!([run(7), run(6)], [0; 2], "it is not asked for again");
        assert_eq!(control.graphs(), made);
        assert_eq!(run(3), 1, "others are");
        driver.backend.unload(CELL);
        assert_eq!((control.graphs(), control.graph_bytes()), (0, 0), "it goes with its cell");
    }
}

/// Graphs are made until they take what they may, and more when others have gone.
#[test]
fn what_graphs_take_is_bounded() {
    let cells = [Precision::F32, Precision::Bf16].map(|precision| recurrent("plain", precision));
    let bytes_most = 100 << 10;
    let (mut driver, control) = driver(&seeded(8), CudaOptions { graph_bytes: Some(bytes_most), ..options(true) }, &cells);
    let run = |driver: &mut Driver, cell: u32, (rows, steps): (u64, u32)| {
        let placed = place_in(driver, (cell, 3, &[(1, 0)]), rows);
        let _ = control.take_log();
        let rows: Vec<_> = placed.iter().map(|request| (request.lanes[0][0], 0)).collect();
        driver.task(CellTypeId(cell), &rows, steps);
        graphs(&control.take_log()).len()
    };
    let sizes = [1, 2, 4, 8, 16, 24].into_iter().flat_map(|rows| [1, 2, 4, 8].map(|steps| (rows, steps)));
    let launched: Vec<usize> = sizes.map(|size| run(&mut driver, 0, size)).collect();
    let largest = (8 * 8) << 10;
    assert!((bytes_most..bytes_most + largest).contains(&control.graph_bytes()), "{} bytes", control.graph_bytes());
    let made = control.graphs();
    assert!(made < launched.len() && launched.iter().filter(|graphs| **graphs == 1).count() >= made, "{made} graphs: {launched:?}");
    assert_eq!([run(&mut driver, 1, (5, 1)), run(&mut driver, 1, (5, 1))], [0; 2], "there is no room");
    driver.backend.unload(CELL);
    assert_eq!(control.graphs(), 0);
    assert_eq!([run(&mut driver, 1, (5, 1)), run(&mut driver, 1, (6, 1))], [1; 2], "there is");
    assert_eq!(control.graphs(), 1);
}

/// What is timed is what runs.
#[test]
fn batches_are_timed_as_they_are_launched() {
    let (mut driver, control) = driver(&seeded(9), options(true), &[recurrent("plain", Precision::F32)]);
    let mut timed = |rows: u32| {
        let _ = control.take_log();
        assert!(driver.backend.time_batch(CELL, rows).expect("the device is there") > Duration::ZERO);
        assert_eq!(control.graphs(), 0, "they are given back");
        let log = control.take_log();
        let grids = log.iter().filter_map(|ran| match ran.what {
            What::Launch { kernel: "group", grid, .. } => Some(grid[0]),
            _ => None,
        });
        (graphs(&log), grids.collect::<BTreeSet<u32>>())
    };
    let (of_five, grids) = timed(5);
    assert!(!of_five.is_empty() && of_five.iter().all(|launches| *launches == of_five[0]), "{of_five:?}");
    assert_eq!(grids, BTreeSet::from([8]), "as for tasks, a bucket's");
    let (in_parts, grids) = timed(43);
    assert!(in_parts.len() % 2 == 0 && in_parts[0] == of_five[0], "{in_parts:?}");
    assert_eq!(grids, BTreeSet::from([24]));
    control.inject(Injection::NoLaunchOfGraph { after_launches: 0 });
    assert!(timed(5).1.contains(&5), "what is refused is launched directly");
    control.inject(Injection::NoGraph { after_graphs: 0 });
    assert_eq!(timed(5), (vec![], BTreeSet::from([5])));
    let cell = Draft::new("short").input("x", Datatype::Fp32, &[8]).operator("Tanh", &["x"], &["y"]).output("y", Datatype::Fp32, &[8]);
    driver.backend.load(CELL, &cell.resolve()).expect("it fits");
    let _ = control.take_log();
    driver.backend.time_batch(CELL, 5).expect("the device is there");
    assert!(!graphs(&control.take_log()).is_empty(), "as tasks of it are");
}

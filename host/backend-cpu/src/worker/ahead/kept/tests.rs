//! A worker that keeps beside one that computes every cell as a whole: the same bits, whoever has the lanes, and rows are kept as long as they are of use.

use std::sync::Arc;

use cellwright_backend::{Backend, CellTypeId, Lane, LaneId, Row, Task};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::{Delivery, Retention, Source, UnfoldedChain};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Driver, growth_of, independent};

use super::super::Ahead;
use super::PLACES;
use crate::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};

const HIDDEN: usize = 24;
const CELLS: [CellTypeId; 2] = [CellTypeId(0), CellTypeId(1)];
/// A task's.
const STEPS: u32 = 5;

fn random(name: &str, shape: &[usize], rng: &mut Rng) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * 0.5).collect();
    Tensor::from_f32(name, shape, &values)
}

fn cell(seed: u64) -> Arc<TypedCell> {
    let weight = |name: &str| {
        let shape: &[usize] = if name.starts_with("bias") { &[4 * HIDDEN] } else { &[4 * HIDDEN, HIDDEN] };
        random(name, shape, &mut Rng::new(seed + name.len() as u64))
    };
    cells::lstm("lstm", HIDDEN, HIDDEN, &weight).resolve()
}

fn worker(ahead_weights_least: u64, threads: usize) -> CpuWorker {
    let options = DomainOptions { arena_bytes: Some(8 << 20), ahead_weights_least: Some(ahead_weights_least), ..DomainOptions::default() };
    let domain = CpuDomain::new(options).expect("8 MiB are there");
    CpuWorker::new(domain, CpuOptions { threads, ..CpuOptions::default() }).expect("threads start")
}

/// Both workers, and what places requests.
struct Both {
    keeps: CpuWorker,
    whole: CpuWorker,
    places: Driver,
    rng: Rng,
}

impl Both {
    fn new(threads: usize) -> Self {
        let cells = [cell(1), cell(2)];
        let [mut keeps, mut whole, places] = [(0, threads), (u64::MAX, 1), (u64::MAX, 1)].map(|(least, threads)| worker(least, threads));
        for (index, cell) in CELLS.iter().zip(&cells) {
            keeps.load(*index, cell).expect("it can be run");
            whole.load(*index, cell).expect("it can be run");
        }
        Self { keeps, whole, places: Driver::new(Box::new(places), &cells), rng: Rng::new(3) }
    }

    /// The lanes of a request's one chain.
    fn place(&mut self, chain: UnfoldedChain) -> Vec<Arc<Lane>> {
        let (steps, stages) = (chain.length.bound, chain.stages.len() as u32);
        let x = Arc::new(random("x", &[steps as usize, HIDDEN], &mut self.rng));
        let growth = self.places.place(Arc::new(growth_of(vec![chain])), &[x], 0, &[]).growth;
        (0..stages).map(|stage| Arc::new(Lane { growth: growth.clone(), chain: 0, stage })).collect()
    }

    /// A request for so many steps.
    fn request(&mut self, cell: CellTypeId, steps: u32) -> Arc<Lane> {
        self.place(chain(cell, steps)).remove(0)
    }

    fn run(&mut self, cell: CellTypeId, rows: &[(u32, u32)], joins: &[(u32, &Arc<Lane>)], leaves: &[u32]) {
        let task = || Task {
            cell,
            steps: STEPS,
            rows: rows.iter().map(|(lane, step)| Row { lane: LaneId(*lane), step: *step }).collect(),
            joins: joins.iter().map(|(index, lane)| (LaneId(*index), Arc::clone(lane))).collect(),
            leaves: leaves.iter().copied().map(LaneId).collect(),
            ..Task::default()
        };
        let [kept, whole] = [&mut self.keeps, &mut self.whole].map(|worker| {
            worker.submit(task()).expect("it is there");
            worker.complete().expect("it is there").expect("a task was submitted")
        });
        assert_eq!(kept.delivered, whole.delivered);
        assert!(kept.bytes == whole.bytes, "{rows:?} of cell {}", cell.0);
    }

    /// How many rows are kept of a cell.
    fn kept(&self, cell: CellTypeId) -> usize {
        let Some(kept) = self.keeps.ahead.kept.get(cell.index()) else { return 0 };
        assert_eq!(kept.used, kept.keys.iter().flatten().count());
        kept.used
    }
}

/// An LSTM over the request's rows.
fn chain(cell: CellTypeId, steps: u32) -> UnfoldedChain {
    let rows = Source::Rows { tensor: 0, at: Affine::EVERY };
    let mut chain = independent(cell.0, 2, vec![rows, Source::Zeros, Source::Zeros], steps);
    let stage = &mut chain.stages[0];
    stage.retention = Retention::Double;
    (stage.inputs[1].feedback, stage.inputs[2].feedback) = (Some((0, 0)), Some((0, 1)));
    chain
}

#[test]
fn a_request_alone_is_computed_ahead_to_its_end() {
    for threads in [1, 3] {
        let mut both = Both::new(threads);
        let lane = both.request(CELLS[0], 23);
        let mut kept = Vec::new();
        for step in (0..23).step_by(STEPS as usize) {
            let joins = [(0, &lane)];
            both.run(CELLS[0], &[(0, step)], &joins[..usize::from(step == 0)], &[]);
            kept.push(both.kept(CELLS[0]));
        }
        assert_eq!(kept, [18, 13, 8, 3, 0], "{threads} threads");
    }
}

#[test]
fn nothing_is_kept_for_a_lane_that_is_anothers() {
    let mut both = Both::new(1);
    let requests: Vec<_> = (0..4).map(|_| both.request(CELLS[0], 40)).collect();
    both.run(CELLS[0], &[(0, 0)], &[(0, &requests[0])], &[]);
    both.run(CELLS[0], &[(0, STEPS)], &[(0, &requests[1])], &[]);
    both.run(CELLS[0], &[(0, 0)], &[(0, &requests[2])], &[0]);
    both.run(CELLS[0], &[(0, STEPS), (1, 0)], &[(1, &requests[1])], &[]);
    assert_eq!(both.kept(CELLS[0]), 30 + 27, "as far as two lanes are computed at once, and what was there before");
    both.run(CELLS[0], &[(1, STEPS)], &[], &[0]);
    assert_eq!(both.kept(CELLS[0]), 22, "its own");
    both.run(CELLS[0], &[(0, 2 * STEPS), (1, 2 * STEPS)], &[(0, &requests[3])], &[]);
}

#[test]
fn each_cell_has_its_own_and_loses_it_with_its_index() {
    let mut both = Both::new(2);
    let requests = CELLS.map(|cell| both.request(cell, 30));
    both.run(CELLS[0], &[(0, 0)], &[(0, &requests[0]), (1, &requests[1])], &[]);
    both.run(CELLS[1], &[(1, 0)], &[], &[]);
    both.run(CELLS[0], &[(0, STEPS)], &[], &[]);
    both.run(CELLS[1], &[(1, STEPS)], &[], &[]);
    assert_eq!(CELLS.map(|cell| both.kept(cell)), [20; 2]);
    let other = cell(7);
    both.keeps.load(CELLS[0], &other).expect("it can be run");
    both.whole.load(CELLS[0], &other).expect("it can be run");
    assert_eq!(both.kept(CELLS[0]), 0);
    both.run(CELLS[0], &[(0, 2 * STEPS)], &[], &[]);
    both.keeps.unload(CELLS[1]);
    assert_eq!(CELLS.map(|cell| both.kept(cell)), [15, 0]);
}

/// Layers: the second reads what the first left in its slots, of which there are two.
#[test]
fn what_a_node_gives_is_not_read_before_its_task() {
    let mut both = Both::new(1);
    let mut layers = chain(CELLS[0], 30);
    let mut second = chain(CELLS[1], 30).stages.remove(0);
    second.inputs[0].source = Source::Sibling { stage: 0, output: 0 };
    (second.inputs[1].feedback, second.inputs[2].feedback) = (Some((1, 0)), Some((1, 1)));
    layers.stages[0].retention = Retention::All;
    layers.stages[0].delivery = vec![Delivery::None; 2];
    layers.stages.push(second);
    let lanes = both.place(layers);
    for step in (0..30).step_by(STEPS as usize) {
        let joins = [(0, &lanes[0]), (1, &lanes[1])];
        both.run(CELLS[0], &[(0, step)], if step == 0 { &joins } else { &[] }, &[]);
        both.run(CELLS[1], &[(1, step)], &[], &[]);
        assert_eq!(both.kept(CELLS[1]), 0);
    }
}

#[test]
fn what_does_not_fit_runs_as_it_comes() {
    let mut both = Both::new(1);
    let requests: Vec<_> = (0..40).map(|_| both.request(CELLS[0], 90)).collect();
    let joins: Vec<_> = (0..).zip(&requests).collect();
    both.run(CELLS[0], &[(0, 0)], &joins, &[]);
    both.run(CELLS[0], &[(1, 0)], &[], &[]);
    assert_eq!(both.kept(CELLS[0]), 118);
    both.run(CELLS[0], &[(2, 0)], &[], &[]);
    assert_eq!(both.kept(CELLS[0]), 118, "what others are about to take does not make room");
    let many: Vec<_> = (3..40).map(|lane| (lane, 0)).chain([(1, STEPS)]).collect();
    both.run(CELLS[0], &many, &[], &[]);
    assert_eq!(both.kept(CELLS[0]), 113, "rows that are many run as a whole, and what was kept of them goes");
    both.run(CELLS[0], &[(2, STEPS)], &[], &[0]);
    assert_eq!(both.kept(CELLS[0]), 113, "59 have gone, and as many have come");
    for step in (2 * STEPS..90).step_by(STEPS as usize) {
        both.run(CELLS[0], &[(1, step), (2, step), (3, step - STEPS)], &[], &[]);
        assert!((1..=PLACES).contains(&both.kept(CELLS[0])) || step + STEPS >= 90, "{step}");
    }
}

#[test]
fn what_may_stop_is_not_computed_beyond_its_task() {
    let mut both = Both::new(1);
    let mut stops = chain(CELLS[0], 40);
    stops.stop = Some((0, 0));
    let lane = both.place(stops).remove(0);
    both.run(CELLS[0], &[(0, 0)], &[(0, &lane)], &[]);
    assert_eq!(both.kept(CELLS[0]), 0);
}

#[test]
fn steps_that_ran_elsewhere_are_not_kept_for_ever() {
    let mut both = Both::new(1);
    let lane = both.request(CELLS[0], 40);
    both.run(CELLS[0], &[(0, 0)], &[(0, &lane)], &[]);
    assert_eq!(both.kept(CELLS[0]), 40 - 5);
    both.run(CELLS[0], &[(0, 20)], &[], &[]);
    assert_eq!(both.kept(CELLS[0]), 40 - 25);
}

/// A first half whose rows take all the room there is.
#[test]
fn a_cell_that_keeps_nothing_leaves_its_room_to_others() {
    let wide = super::BYTES / PLACES / size_of::<f32>();
    let cell = Draft::new("wide")
        .known("x", Datatype::Fp32, &[2])
        .input("h", Datatype::Fp32, &[wide])
        .weight(random("v", &[2, wide], &mut Rng::new(5)))
        .operator("MatMul", &["x", "v"], &["of_x"])
        .operator("Add", &["of_x", "h"], &["next"])
        .output("next", Datatype::Fp32, &[wide])
        .resolve();
    let mut worker = worker(0, 1);
    worker.load(CELLS[0], &cell).expect("it can be run");
    let loaded = worker.cells[0].as_ref().expect("it is loaded");
    let pre = &loaded.plan.ahead().expect("it has two halves").pre;
    let mut ahead = Ahead::default();
    assert_eq!(ahead.open(CELLS[0], pre).free(), PLACES);
    assert_eq!(ahead.open(CELLS[1], pre).free(), PLACES, "the other keeps nothing");
    ahead.open(CELLS[1], pre).reserve(Row { lane: LaneId(0), step: 0 }).expect("there is room");
    assert_eq!(ahead.open(CELLS[0], pre).free(), 0, "the other keeps a row");
    ahead.forget_lane(LaneId(0));
    assert_eq!(ahead.open(CELLS[0], pre).free(), PLACES);
}

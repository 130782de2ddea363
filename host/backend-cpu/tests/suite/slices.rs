//! Tasks that run in slices: wherever they are paused and whatever runs meanwhile, no bit changes.

use std::sync::Arc;
use std::time::Duration;

use cellwright_backend::{Backend, CellTypeId, Completed, LaneId, Task};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Deliveries, Driver, growth_of, independent};
use cellwright_conformance::invariance::family_cells;

/// A task is paused wherever it may be.
const AT_ONCE: Duration = Duration::from_nanos(1);

fn worker(table_bytes: u64, threads: usize) -> Box<dyn Backend> {
    let options = DomainOptions { arena_bytes: Some(16 << 20), table_bytes: Some(table_bytes), ..DomainOptions::default() };
    let domain = CpuDomain::new(options).expect("16 MiB are there");
    Box::new(CpuWorker::new(domain, CpuOptions { threads, ..CpuOptions::default() }).expect("threads start"))
}

fn tensor(name: &str, shape: &[usize], scale: f32) -> Tensor {
    let mut rng = Rng::new(name.len() as u64);
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * scale).collect();
    Tensor::from_f32(name, shape, &values)
}

/// A cell of a few long steps: products, and a group of operations over a wide row.
fn long(precision: Precision, width: usize) -> Arc<TypedCell> {
    let mut draft = Draft::new("long").input("x", Datatype::Fp32, &[700]).weight(tensor("w", &[700, 700], 0.04));
    for (at, from) in ["x", "p0", "p1"].into_iter().enumerate() {
        draft = draft.operator("MatMul", &[from, "w"], &[&format!("p{at}")]);
    }
    draft = draft.weight(tensor("wide", &[700, width], 0.04)).operator("MatMul", &["p2", "wide"], &["y0"]);
    for at in 0..60 {
        let kind = ["Tanh", "Sigmoid", "Neg"][at % 3];
        draft = draft.operator(kind, &[&format!("y{at}")], &[&format!("y{}", at + 1)]);
    }
    draft.output("y60", Datatype::Fp32, &[width]).output("p1", Datatype::Fp32, &[700]).at(precision).resolve()
}

fn place(driver: &mut Driver, cell: &TypedCell, rows: usize) -> Vec<LaneId> {
    let mut rng = Rng::new(9);
    let mut sources = |cell: &TypedCell| -> Vec<Source> {
        let literal = |port: &cellwright_cell_graph::Port, rng: &mut Rng| {
            let count = port.shape.iter().map(|extent| *extent as usize).product::<usize>();
            let bytes = (0..count).flat_map(|_| match port.datatype {
                Datatype::Fp32 => rng.float().to_le_bytes().to_vec(),
                Datatype::Int64 => i64::from(rng.between(0, 3)).to_le_bytes().to_vec(),
                Datatype::Int32 => rng.between(0, 3).to_le_bytes().to_vec(),
                _ => vec![u8::from(rng.one_in(2))],
            });
            Source::Literal(bytes.collect())
        };
        cell.inputs.iter().map(|port| literal(port, &mut rng)).collect()
    };
    let chains = (0..rows).map(|_| independent(0, cell.outputs.len(), sources(cell), 1)).collect::<Vec<_>>();
    chains.into_iter().map(|chain| driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]).lanes[0][0]).collect()
}

fn complete(driver: &mut Driver, task: Task) -> Completed {
    driver.submit(task);
    driver.complete()
}

/// Both halves of the rows as tasks in slices, by turns, with a row by itself in between; how often they were paused.
fn in_slices(driver: &mut Driver, lanes: &[LaneId]) -> usize {
    let rows: Vec<(LaneId, u32)> = lanes.iter().map(|lane| (*lane, 0)).collect();
    let (one, other) = rows.split_at(rows.len() / 2);
    let mut paused: Vec<u64> = Vec::new();
    for part in [one, other] {
        let task = Task { slice: Some(AT_ONCE), ..driver.prepare(CellTypeId(0), part, 1) };
        let completed = complete(driver, task);
        paused.extend(completed.paused.then_some(completed.seq));
    }
    let mut pauses = paused.len();
    for seq in 1000.. {
        if paused.is_empty() {
            return pauses;
        }
        let before = paused.remove(0);
        driver.backend.resume(before, seq).expect("it was paused");
        let completed = driver.complete();
        assert_eq!(completed.seq, seq);
        pauses += usize::from(completed.paused);
        paused.extend(completed.paused.then_some(seq));
        let alone = driver.task(CellTypeId(0), &rows[..1], 1);
        assert!(!alone.paused, "nobody said that this one may be");
    }
    unreachable!("tasks end")
}

fn outputs(cell: &Arc<TypedCell>, (table_bytes, threads, sliced): (u64, usize, bool)) -> (Deliveries, usize) {
    let mut driver = Driver::new(worker(table_bytes, threads), std::slice::from_ref(cell));
    let lanes = place(&mut driver, cell, 9);
    let pauses = if sliced {
        in_slices(&mut driver, &lanes)
    } else {
        lanes.iter().for_each(|lane| drop(driver.task(CellTypeId(0), &[(*lane, 0)], 1)));
        0
    };
    (driver.delivered, pauses)
}

#[test]
fn pauses_change_no_bit() {
    for precision in Precision::ALL {
        let cells = family_cells(precision).into_iter().chain([long(precision, 9000)]);
        for cell in cells {
            let (whole, _) = outputs(&cell, (0, 1, false));
            for how in [(0, 1, true), (1 << 20, 1, true), (0, 3, true)] {
                let (sliced, pauses) = outputs(&cell, how);
                assert!(sliced == whole, "`{}` in {precision}, {how:?}", cell.name);
                assert!(pauses > 0 || cell.name != "long", "{precision} is never paused");
            }
        }
    }
}

#[test]
fn long_steps_are_cut() {
    // Of two tasks of five steps each the last product takes several milliseconds, and so do the operations behind it.
    let cell = long(Precision::F32, 40_000);
    let (whole, _) = outputs(&cell, (0, 1, false));
    let (sliced, pauses) = outputs(&cell, (0, 1, true));
    assert!(pauses > 2 * 5, "{pauses} pauses of two tasks");
    assert!(sliced == whole);
}

/// Products that are read by `ArgMax`, by `Softmax`, or by both.
#[test]
fn long_projections_are_cut() {
    const COLUMNS: usize = 20_000;
    let draft = |name: &str| {
        let draft = Draft::new(name).input("x", Datatype::Fp32, &[700]).weight(tensor("w", &[700, COLUMNS], 0.04));
        draft.operator("MatMul", &["x", "w"], &["y"])
    };
    let softmax = |name: &str| draft(name).operator("Softmax", &["y"], &["p"]).with("axis", -1);
    let best = |draft: Draft, from: &str| {
        draft.operator("ArgMax", &[from], &["best"]).with("axis", -1).with("keepdims", 0).output("best", Datatype::Int64, &[])
    };
    for cell in
        [best(draft("best"), "y"), softmax("softmax").output("p", Datatype::Fp32, &[COLUMNS]), best(softmax("best of softmax"), "p")]
    {
        let cell = cell.at(Precision::F32).resolve();
        let (whole, _) = outputs(&cell, (0, 1, false));
        let (sliced, pauses) = outputs(&cell, (0, 1, true));
        assert!(pauses > 2 * 20, "`{}`: {pauses} pauses of two tasks", cell.name);
        assert!(sliced == whole, "`{}`", cell.name);
    }
}

#[test]
fn a_worker_may_go_while_a_task_is_paused() {
    let cell = long(Precision::F32, 40_000);
    let mut driver = Driver::new(worker(0, 2), std::slice::from_ref(&cell));
    let lanes = place(&mut driver, &cell, 1);
    let task = Task { slice: Some(AT_ONCE), ..driver.prepare(CellTypeId(0), &[(lanes[0], 0)], 1) };
    assert!(complete(&mut driver, task).paused);
    drop(driver);
}

#[test]
fn what_was_never_paused_cannot_go_on() {
    let mut worker = worker(0, 1);
    worker.resume(7, 8).expect("it is looked at when it is its turn");
    let lost = worker.complete().expect_err("there is no such task").to_string();
    assert!(lost.contains("the task 7 is to go on, but is not paused"), "{lost}");
}

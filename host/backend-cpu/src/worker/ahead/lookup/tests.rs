//! A first half as wide as one likes, of which the second sees one number: what is looked up takes neither memory nor time without bounds while the table fills.

use std::sync::Arc;
use std::time::Duration;

use cellwright_backend::{Backend, CellTypeId, Lane, LaneId, Row, Task};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Driver, delivering_everything, growth_of, independent};

use super::super::BYTES;
use crate::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};

const CELL: CellTypeId = CellTypeId(0);
const TOKENS: usize = 50;
/// 4 MiB for each row.
const WIDE: usize = 1 << 20;

/// The largest element of e(token)·w.
fn cell() -> Arc<TypedCell> {
    let mut rng = Rng::new(1);
    let mut weight = |name: &str, shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float()).collect();
        Tensor::from_f32(name, shape, &values)
    };
    Draft::new("largest")
        .known("token", Datatype::Int64, &[])
        .weight(weight("e", &[TOKENS, 2]))
        .weight(weight("w", &[2, WIDE]))
        .operator("Gather", &["e", "token"], &["embedded"])
        .operator("MatMul", &["embedded", "w"], &["wide"])
        .operator("ReduceMax", &["wide"], &["largest"])
        .with("axes", &[1_i64][..])
        .with("keepdims", 0_i64)
        .output("largest", Datatype::Fp32, &[])
        .resolve()
}

fn worker(table_bytes: u64) -> CpuWorker {
    let options = DomainOptions { arena_bytes: Some(8 << 20), table_bytes: Some(table_bytes), ..DomainOptions::default() };
    let domain = CpuDomain::new(options).expect("8 MiB are there");
    CpuWorker::new(domain, CpuOptions { threads: 1, ..CpuOptions::default() }).expect("threads start")
}

/// What a task of all those tokens gives.
fn run(worker: &mut CpuWorker, lane: &Arc<Lane>, steps: u32) -> Vec<u8> {
    let rows = (0..steps).map(|step| Row { lane: LaneId(0), step }).collect();
    let task = Task { cell: CELL, steps: 1, rows, joins: vec![(LaneId(0), Arc::clone(lane))], ..Task::default() };
    worker.submit(task).expect("it is there");
    worker.complete().expect("it is there").expect("a task was submitted").bytes
}

#[test]
fn a_batch_of_missing_tokens_takes_no_more_memory_than_some_of_them() {
    let tokens: Vec<i64> = (0..40).map(|at| at * 7 % TOKENS as i64).collect();
    let mut places = Driver::new(Box::new(worker(0)), &[cell()]);
    let growth = growth_of(vec![independent(CELL.0, 1, vec![Source::Ints(tokens.clone())], 40)]);
    let growth = places.place(delivering_everything(&growth), &[], 0, &[]).growth;
    let lane = Arc::new(Lane { growth, chain: 0, stage: 0 });
    let [mut looks_up, mut whole] = [1 << 20, 0].map(worker);
    for worker in [&mut looks_up, &mut whole] {
        worker.load(CELL, &cell()).expect("it can be run");
    }
    assert!(looks_up.table(CELL).is_some() && whole.table(CELL).is_none());
    let expected = run(&mut whole, &lane, 40);
    assert_eq!(expected.len(), 40 * size_of::<f32>());
    for _ in 0..2 {
        assert!(run(&mut looks_up, &lane, 40) == expected);
        assert!(looks_up.ahead.frame.bytes() <= BYTES + BYTES / 8, "{} bytes", looks_up.ahead.frame.bytes());
    }
    assert_eq!(looks_up.table(CELL).expect("it has one").filled.load(std::sync::atomic::Ordering::Relaxed), 40);
    looks_up.unload(CELL);
    whole.unload(CELL);
    assert!(whole.frame.bytes() < 64 << 20 && looks_up.frame.bytes() < 64 << 20, "long rows left nothing behind");
}

#[test]
fn a_full_table_has_nothing_computed_for_later_steps() {
    // Room for 14 of the 50 rows, in half of it.
    let (room, steps) = (14, 40);
    let tokens: Vec<i64> = (0..i64::from(steps)).map(|at| at * 7 % TOKENS as i64).collect();
    let mut places = Driver::new(Box::new(worker(0)), &[cell()]);
    let growth = growth_of(vec![independent(CELL.0, 1, vec![Source::Ints(tokens)], steps)]);
    let growth = places.place(delivering_everything(&growth), &[], 0, &[]).growth;
    let lane = Arc::new(Lane { growth, chain: 0, stage: 0 });
    let [mut looks_up, mut whole] = [2 * (TOKENS as u64 * 4 + room * 64), 0].map(worker);
    for worker in [&mut looks_up, &mut whole] {
        worker.load(CELL, &cell()).expect("it can be run");
    }
    let filled = |worker: &CpuWorker| worker.table(CELL).expect("it has one").filled.load(std::sync::atomic::Ordering::Relaxed);
    let (mut later, mut delivered) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let was_full = filled(&looks_up) == room;
        let task = Task { cell: CELL, steps: 1, rows: vec![Row { lane: LaneId(0), step }], ..Task::default() };
        let task = Task { joins: vec![(LaneId(0), Arc::clone(&lane))], ..task };
        looks_up.submit(task).expect("it is there");
        delivered.extend(looks_up.complete().expect("it is there").expect("a task was submitted").bytes);
        later.push((was_full, looks_up.ahead.misses.tokens.len()));
    }
    assert!(later.iter().any(|(was_full, computed)| !was_full && *computed > 1), "{later:?}");
    assert!(later.iter().all(|(was_full, computed)| !was_full || *computed <= 1), "{later:?}");
    assert_eq!(filled(&looks_up), room);
    assert!(delivered == run(&mut whole, &lane, steps));
}

#[test]
fn a_batch_is_not_said_to_take_what_it_takes_once_the_table_is_full_alone() {
    let mut looks_up = worker(1 << 20);
    looks_up.load(CELL, &cell()).expect("it can be run");
    // 17 billion multiplications, which take a thread some tenths of a second.
    assert!(looks_up.time_batch(CELL, 8192).expect("it is there") > Duration::from_millis(10));
}

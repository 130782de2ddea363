//! Batches that are timed in slices: pauses do not count, and nobody waits for what is not gone on with.

use std::sync::Arc;
use std::time::Duration;

use cellwright_backend::{Backend, CellTypeId, TimedBatch};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::cells::Draft;

const CELL: CellTypeId = CellTypeId(0);
const PAUSE: Duration = Duration::from_millis(5);

fn worker(threads: usize) -> CpuWorker {
    let domain = CpuDomain::new(DomainOptions { arena_bytes: Some(16 << 20), ..DomainOptions::default() }).expect("16 MiB are there");
    let mut worker = CpuWorker::new(domain, CpuOptions { threads, ..CpuOptions::default() }).expect("threads start");
    worker.load(CELL, &long()).expect("it can be run");
    worker
}

/// Ten products, one after the other.
fn long() -> Arc<TypedCell> {
    let draft = Draft::new("long").input("y0", Datatype::Fp32, &[300]).weight(Tensor::from_f32("w", &[300, 300], &[0.01; 300 * 300]));
    let step = |draft: Draft, at: usize| draft.operator("MatMul", &[&format!("y{at}"), "w"], &[&format!("y{}", at + 1)]);
    (0..10).fold(draft, step).output("y10", Datatype::Fp32, &[300]).resolve()
}

fn batch(is_long: bool, goes_on: bool) -> TimedBatch {
    TimedBatch { rows: 1, lent: false, is_long, slice: Duration::from_nanos(1), goes_on }
}

#[test]
fn pauses_do_not_count() {
    for (threads, is_long) in [(1, true), (1, false), (2, true), (2, false)] {
        let mut worker = worker(threads);
        let (mut pauses, mut goes_on) = (0, false);
        let took = loop {
            if let Some(took) = worker.time_slice(CELL, batch(is_long, goes_on)).expect("the cell is there") {
                break took;
            }
            goes_on = true;
            pauses += 1;
            std::thread::sleep(PAUSE);
        };
        assert!(pauses >= 10, "it has ten steps, and was paused {pauses} times");
        assert!(took > Duration::ZERO && took < 9 * PAUSE, "{took:?} of at least ten pauses");
    }
}

#[test]
fn what_nobody_goes_on_with_ends() {
    let mut worker = worker(2);
    let begin = |worker: &mut CpuWorker| worker.time_slice(CELL, batch(true, false)).expect("the cell is there");
    assert_eq!((begin(&mut worker), begin(&mut worker)), (None, None), "each begins anew");
    worker.time_batch(CELL, 3).expect("the cell is there");
    let whole = TimedBatch { slice: Duration::from_secs(600), ..batch(true, false) };
    assert!(worker.time_slice(CELL, whole).expect("the cell is there").is_some());
    assert_eq!(begin(&mut worker), None);
    worker.unload(CELL);
    assert!(worker.time_slice(CELL, batch(true, false)).is_err(), "the cell is gone");
    worker.load(CELL, &long()).expect("it can be run");
    assert_eq!(begin(&mut worker), None);
    drop(worker);
}

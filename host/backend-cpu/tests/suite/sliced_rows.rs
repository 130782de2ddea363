//! Steps that are neither products nor element by element: a task of many rows pauses between rows.

use std::sync::Arc;
use std::time::Duration;

use cellwright_backend::{CellTypeId, LaneId, Task};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Deliveries, Driver, growth_of, independent};

const CELL: CellTypeId = CellTypeId(0);
const ROWS: usize = 32;
const WIDTH: usize = 100_000;

fn cell() -> Arc<TypedCell> {
    let table: Vec<f32> = (0..3 * WIDTH).map(|at| (at % 97) as f32).collect();
    Draft::new("rows")
        .input("at", Datatype::Int64, &[1])
        .weight(Tensor::from_f32("table", &[3, WIDTH], &table))
        .operator("Gather", &["table", "at"], &["x"])
        .operator("Softmax", &["x"], &["y"])
        .output("y", Datatype::Fp32, &[1, WIDTH])
        .resolve()
}

/// All rows as one task; and how often it was paused.
fn outputs(cell: &Arc<TypedCell>, threads: usize, slice: Option<Duration>) -> (Deliveries, usize) {
    let domain = CpuDomain::new(DomainOptions { arena_bytes: Some(64 << 20), ..DomainOptions::default() }).expect("64 MiB are there");
    let worker = CpuWorker::new(domain, CpuOptions { threads, ..CpuOptions::default() }).expect("threads start");
    let mut driver = Driver::new(Box::new(worker), std::slice::from_ref(cell));
    let mut place = |row: usize| {
        let chain = independent(0, 1, vec![Source::Ints(vec![row as i64 % 3])], 1);
        (driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]).lanes[0][0], 0)
    };
    let rows: Vec<(LaneId, u32)> = (0..ROWS).map(&mut place).collect();
    let task = Task { slice, ..driver.prepare(CELL, &rows, 1) };
    driver.submit(task);
    let (mut completed, mut pauses) = (driver.complete(), 0);
    while completed.paused {
        pauses += 1;
        driver.backend.resume(completed.seq, 1000 + pauses).expect("it was paused");
        completed = driver.complete();
    }
    (driver.delivered, pauses as usize)
}

#[test]
fn rows_are_cut_from_one_another() {
    let cell = cell();
    for threads in [1, 2] {
        let (whole, none) = outputs(&cell, threads, None);
        let (sliced, pauses) = outputs(&cell, threads, Some(Duration::from_nanos(1)));
        assert_eq!(none, 0);
        assert!(pauses > 4, "two steps, and {pauses} pauses");
        assert!(sliced == whole);
    }
}

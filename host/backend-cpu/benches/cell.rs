//! One step of an LSTM, gathered from slots and scattered to them: time, GFLOP/s and where the time goes.
//!
//! `cargo bench -p cellwright-backend-cpu --bench cell -- 1024 128 16`: the arguments are hidden sizes, after an `x` batches, and precisions:
//! `1024 x16 x64 f32 bf16`, numbers of threads after a `t`, and `own` leaves the library out.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cellwright_backend::{CellTypeId, LaneId, Row, Task};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Kernels, Shares};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Delivery, Retention, Source};
use cellwright_cell_graph::{Tensor, TypedCell};
use cellwright_conformance::cells;
use cellwright_conformance::driver::{Driver, growth_of, independent};

/// How long each figure is measured.
const BUDGET: Duration = Duration::from_millis(700);

/// The LSTM whose states are as wide as its input.
fn lstm(hidden: usize, precision: Precision) -> Arc<TypedCell> {
    let weight = |name: &str| {
        let shape = if name.starts_with("bias") { vec![4 * hidden] } else { vec![4 * hidden, hidden] };
        let mut rng = Rng::new(name.len() as u64 + u64::from(name.ends_with("hh")));
        let scale = 1.0 / (hidden as f32).sqrt();
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * scale).collect();
        Tensor::from_f32(name, &shape, &values)
    };
    cells::lstm(&format!("lstm {hidden}"), hidden, hidden, &weight).at(precision).resolve()
}

/// So many endless chains on a fresh worker.
fn lanes(worker: CpuWorker, cell: &Arc<TypedCell>, count: usize) -> (Driver, Vec<LaneId>) {
    let mut driver = Driver::new(Box::new(worker), std::slice::from_ref(cell));
    let width = cell.inputs[0].shape[0] as usize;
    let mut rng = Rng::new(5);
    let lanes = (0..count).map(|_| {
        let row: Vec<f32> = (0..width).map(|_| rng.float()).collect();
        let at = Affine { first: 0, stride: 0, from_end: false };
        let mut chain = independent(0, 2, vec![Source::Rows { tensor: 0, at }, Source::Zeros, Source::Zeros], u32::MAX - 1);
        chain.sequential = true;
        let stage = &mut chain.stages[0];
        stage.inputs[1].feedback = Some((0, 0));
        stage.inputs[2].feedback = Some((0, 1));
        stage.retention = Retention::Double;
        stage.delivery = vec![Delivery::Last, Delivery::None];
        driver.place(Arc::new(growth_of(vec![chain])), &[Arc::new(Tensor::from_f32("x", &[1, width], &row))], 0, &[]).lanes[0][0]
    });
    let lanes = lanes.collect();
    (driver, lanes)
}

/// Microseconds of a task of one step, from submission to completion: the median, and the best, which a busy machine disturbs less.
fn measure(driver: &mut Driver, lanes: &[LaneId]) -> (f64, f64) {
    let rows: Vec<(LaneId, u32)> = lanes.iter().map(|lane| (*lane, 0)).collect();
    let first = driver.task(CellTypeId(0), &rows, 1);
    let (mut rows, mut step, mut seq, mut times) = (first.rows, 1, first.seq, Vec::new());
    let began = Instant::now();
    while began.elapsed() < BUDGET {
        rows.clear();
        rows.extend(lanes.iter().map(|lane| Row { lane: *lane, step }));
        seq += 1;
        let submitted = Instant::now();
        driver.submit(Task { seq, cell: CellTypeId(0), steps: 1, rows: std::mem::take(&mut rows), ..Task::default() });
        if let Ok(Some(mut completed)) = driver.backend.complete() {
            times.push(submitted.elapsed());
            rows = std::mem::take(&mut completed.rows);
            driver.backend.recycle(completed);
        }
        step += 1;
    }
    times.sort_unstable();
    (times[times.len() / 2].as_secs_f64() * 1e6, times[0].as_secs_f64() * 1e6)
}

fn worker(kernels: Kernels, threads: usize) -> CpuWorker {
    // Whole steps: rows that stay the same would be multiplied ahead for many of them.
    let domain =
        CpuDomain::new(DomainOptions { kernels, ahead_weights_least: Some(u64::MAX), ..DomainOptions::default() }).expect("an arena");
    CpuWorker::new(domain, CpuOptions { threads, ..CpuOptions::default() }).expect("threads")
}

#[expect(clippy::print_stdout, reason = "a bench prints")]
fn main() {
    let sizes: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let after = |letter| move |argument: String| argument.strip_prefix(letter)?.parse().ok();
    let batches: Vec<usize> = std::env::args().filter_map(after('x')).collect();
    let threads_of: Vec<usize> = std::env::args().filter_map(after('t')).collect();
    let threads_of = if threads_of.is_empty() { vec![1, 2] } else { threads_of };
    let kernels_of: &[Kernels] =
        if std::env::args().any(|argument| argument == "own") { &[Kernels::Best] } else { &[Kernels::Best, Kernels::Library] };
    let batches = if batches.is_empty() { vec![1, 4, 16, 64, 512] } else { batches };
    let sizes = if sizes.is_empty() { vec![1024, 128, 16] } else { sizes };
    let precisions: Vec<Precision> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let precisions = if precisions.is_empty() { vec![Precision::F32] } else { precisions };
    println!(
        "kernels\tprecision  threads  hidden  batch  median µs   best µs  GFLOP/s (median, best)  best ns/row | products  others  transfer %"
    );
    for threads in threads_of {
        for hidden in &sizes {
            for batch in &batches {
                for precision in &precisions {
                    for kernels in kernels_of {
                        line(*kernels, threads, &lstm(*hidden, *precision), (*hidden, *batch));
                    }
                }
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "a bench prints")]
fn line(kernels: Kernels, threads: usize, cell: &Arc<TypedCell>, (hidden, batch): (usize, usize)) {
    let (mut driver, lanes_of) = lanes(worker(kernels, threads), cell, batch);
    let (median, best) = measure(&mut driver, &lanes_of);
    let shares = shares(kernels, threads, cell, batch);
    let flops = (16 * hidden * hidden * batch) as f64 / 1e3;
    println!(
        "{kernels:?}\t{:>9} {threads:>8} {hidden:>7} {batch:>6} {median:>10.2} {best:>9.2} {:>10.1} {:>9.1} {:>15.0} | {:>8.1} {:>7.1} {:>9.1}",
        cell.precision.name(),
        flops / median,
        flops / best,
        best * 1e3 / batch as f64,
        shares[0],
        shares[1],
        shares[2],
    );
}

/// Percent of the worker's time in products, in the rest of the plan, and in gathering and scattering.
fn shares(kernels: Kernels, threads: usize, cell: &Arc<TypedCell>, batch: usize) -> [f64; 3] {
    let account = Arc::new(Mutex::new(Shares::default()));
    let (mut driver, lanes_of) = lanes(worker(kernels, threads).accounting(account.clone()), cell, batch);
    measure(&mut driver, &lanes_of);
    let Shares { products, others, transfer } = *account.lock().expect("the worker did not panic");
    let whole = (products + others + transfer).as_secs_f64();
    [products, others, transfer].map(|part| 100.0 * part.as_secs_f64() / whole)
}

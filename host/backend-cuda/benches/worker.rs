//! What a CUDA worker itself takes of the processor for a task, on a device that computes nothing: an LSTM of 1024 in bf16 over tokens, looked up in a table,
//! of which each request has 24 steps; joining, leaving and the answer included. Requests begin and end one after the other, as they do in an engine.
//!
//! `cargo bench -p cellwright-backend-cuda --bench worker -- x1 x64 x512 s1 s3`: the arguments are rows of a task after an `x`, and its steps after an `s`.
//! With `apart` tasks and requests are made on another processor, as an engine makes them, so that what the worker reads of them comes from there.
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::{Duration, Instant};

use cellwright_backend::{Backend, CellTypeId, Lane, LaneId, NodeLayout, PlacedGrowth, Row, Slot, Task};
use cellwright_backend_cuda::driver::idle::Idle;
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Delivery, Retention, Source};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell, UnfoldedGrowth};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{growth_of, independent};

/// As in the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CELL: CellTypeId = CellTypeId(0);
const HIDDEN: usize = 1024;
/// Steps of a request.
const LENGTH: u32 = 24;
/// How long each figure is measured.
const BUDGET: Duration = Duration::from_secs(1);
/// Tasks that are queued at once.
const AHEAD: usize = 3;

fn lstm() -> Arc<TypedCell> {
    let weight = |name: &str| {
        let shape = if name.starts_with("bias") { vec![4 * HIDDEN] } else { vec![4 * HIDDEN, HIDDEN] };
        Tensor::from_f32(name, &shape, &vec![0.01; shape.iter().product()])
    };
    cells::lstm_of_tokens(Draft::new("lstm").input("token", Datatype::Int64, &[]), HIDDEN, &weight).at(Precision::Bf16).resolve()
}

/// What all requests are: a chain whose last h is the answer.
fn growth() -> Arc<UnfoldedGrowth> {
    let mut chain = independent(0, 2, vec![Source::Rows { tensor: 0, at: Affine::EVERY }, Source::Zeros, Source::Zeros], LENGTH);
    chain.sequential = true;
    let stage = &mut chain.stages[0];
    (stage.inputs[1].feedback, stage.inputs[2].feedback) = (Some((0, 0)), Some((0, 1)));
    stage.retention = Retention::Double;
    stage.delivery = vec![Delivery::Last, Delivery::None];
    Arc::new(growth_of(vec![chain]))
}

/// A request that begins, whose states lie from that slot on.
fn lane(growth: &Arc<UnfoldedGrowth>, slot: Slot) -> Arc<Lane> {
    let tokens: Vec<i64> = (0..i64::from(LENGTH)).collect();
    let placed = PlacedGrowth {
        growth: Arc::clone(growth),
        cells: [CELL].into(),
        slots: [vec![slot]].into(),
        executed: [AtomicU32::new(LENGTH)].into(),
        earlier: Vec::new(),
        tensors: vec![Arc::new(Tensor::from_i64("x", &[tokens.len()], &tokens))],
        first_tensor: 0,
        flags: Arc::default(),
    };
    Arc::new(Lane { growth: Arc::new(placed), chain: 0, stage: 0 })
}

fn complete(worker: &mut CudaWorker) {
    let completed = worker.complete().unwrap_or_else(|lost| panic!("{lost}"));
    worker.recycle(completed.unwrap_or_default());
}

/// As many tasks of so many steps as a request has: of each some requests begin, in the lanes of those that have ended.
fn tasks(growth: &Arc<UnfoldedGrowth>, (rows, steps): (u32, u32), slots: u32, seq: &mut u64) -> Vec<Task> {
    let of_step = |at: u32, row: u32| (at + row * steps) % LENGTH;
    let begun = |at: u32| (0..rows).filter(move |row| of_step(at, *row) == 0);
    let task = |at: u32| {
        *seq += 1;
        Task {
            seq: *seq,
            cell: CELL,
            steps,
            rows: (0..rows).map(|row| Row { lane: LaneId(row), step: of_step(at, row) }).collect(),
            leaves: begun(at).map(LaneId).collect(),
            joins: begun(at).map(|row| (LaneId(row), lane(growth, Slot(row * slots)))).collect(),
            ..Task::default()
        }
    };
    (0..LENGTH).step_by(steps as usize).map(task).collect()
}

/// What is made on another processor: this one is busy meanwhile.
fn made_apart<T: Send>(make: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let maker = scope.spawn(make);
        while !maker.is_finished() {
            std::hint::spin_loop();
        }
        maker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Nanoseconds of a row and step, from submitting its task to completing it.
fn measure(cell: &Arc<TypedCell>, (rows, steps): (u32, u32), is_apart: bool) -> f64 {
    let options = CudaOptions { arena_bytes: Some(64 << 20), frame_bytes: Some(1 << 30), ring_bytes: 32 << 20, ..CudaOptions::default() };
    let mut worker = CudaWorker::new(Box::new(Idle::new(64 << 30)), options).unwrap_or_else(|fault| panic!("no worker: {fault}"));
    worker.load(CELL, cell).unwrap_or_else(|error| panic!("{error}"));
    let (growth, slots) = (growth(), Retention::Double.places(LENGTH) * NodeLayout::of(cell).slots);
    let (began, mut taken, mut counted, mut seq) = (Instant::now(), Duration::ZERO, 0_u64, 0);
    let mut round = 0;
    // As an engine frees what requests had: not the worker, and when it has forgotten them.
    let mut held = [Vec::new(), Vec::new()];
    while began.elapsed() < BUDGET {
        let mut make = || tasks(&growth, (rows, steps), slots, &mut seq);
        let mut tasks = if is_apart { made_apart(make) } else { make() };
        if round == 0 {
            // Those that are under way when it begins.
            tasks[0].joins = (0..rows).map(|row| (LaneId(row), lane(&growth, Slot(row * slots)))).collect();
        }
        held.swap(0, 1);
        held[0] = tasks.iter().flat_map(|task| &task.joins).map(|(_, lane)| Arc::clone(lane)).collect::<Vec<_>>();
        let (submitted, mut outstanding) = (Instant::now(), 0);
        for task in tasks {
            worker.submit(task).unwrap_or_else(|lost| panic!("{lost}"));
            outstanding += 1;
            if outstanding == AHEAD {
                complete(&mut worker);
                outstanding -= 1;
            }
        }
        (0..outstanding).for_each(|_| complete(&mut worker));
        // The first round makes graphs.
        if round > 0 {
            taken += submitted.elapsed();
            counted += u64::from(rows) * u64::from(LENGTH);
        }
        round += 1;
    }
    taken.as_secs_f64() * 1e9 / counted.max(1) as f64
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let numbers = |letter: char, default: &[u32]| -> Vec<u32> {
        let given: Vec<u32> = arguments.iter().filter_map(|argument| argument.strip_prefix(letter)?.parse().ok()).collect();
        if given.is_empty() { default.to_vec() } else { given }
    };
    let is_apart = arguments.iter().any(|argument| argument == "apart");
    let cell = lstm();
    println!("{:>6} {:>6} {:>14} {:>14}", "rows", "steps", "ns a row", "us a task");
    for rows in numbers('x', &[1, 64, 512]) {
        for steps in numbers('s', &[1, 3]) {
            let row = measure(&cell, (rows, steps), is_apart);
            println!("{rows:>6} {steps:>6} {row:>14.1} {:>14.2}", row * f64::from(rows * steps) / 1e3);
        }
    }
}

//! A worker that has seen its batches before runs them again without asking the allocator for anything.
//!
//! Alone in its program, because it counts what any thread allocates.
#![expect(unsafe_code, reason = "an allocator that counts is one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cellwright_backend::{Backend, CellTypeId, Completed, DeviceInfo, DeviceLost, LoadError, Prepare, Prepared, Slot, Task};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Retention, Source};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::driver::{Driver, growth_of, independent};
use cellwright_conformance::{cells, trees};

const HIDDEN: usize = 128;
const WORDS: usize = 2100;
const ROWS: usize = 24;
const STEPS: u32 = 40;
/// A task's.
const STEPS_AT_ONCE: u32 = 2;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Whether a worker is at it.
static COUNTS: AtomicBool = AtomicBool::new(false);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is handed on as it is; counting neither allocates nor unwinds. What is not overridden allocates by `alloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // The program's first thread, which waits for the test and says so, may do that at any time.
        let is_first = || rustix::thread::gettid() == rustix::process::getpid();
        if COUNTS.load(Ordering::SeqCst) && !is_first() {
            ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// A worker whose tasks' allocations are counted, on whatever thread.
struct Counted(CpuWorker);

fn counted<T>(work: impl FnOnce() -> T) -> T {
    COUNTS.store(true, Ordering::SeqCst);
    let result = work();
    COUNTS.store(false, Ordering::SeqCst);
    result
}

impl Backend for Counted {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn preparer(&self) -> Arc<dyn Prepare> {
        self.0.preparer()
    }

    fn install(&mut self, index: CellTypeId, cell: &Arc<TypedCell>, prepared: Prepared) -> Result<(), LoadError> {
        self.0.install(index, cell, prepared)
    }

    fn unload(&mut self, index: CellTypeId) {
        self.0.unload(index);
    }

    fn submit(&mut self, task: Task) -> Result<(), DeviceLost> {
        counted(|| self.0.submit(task))
    }

    fn complete(&mut self) -> Result<Option<Completed>, DeviceLost> {
        counted(|| self.0.complete())
    }

    fn read(&mut self, first: Slot, count: u32) -> Result<Vec<u8>, DeviceLost> {
        self.0.read(first, count)
    }

    fn write(&mut self, first: Slot, bytes: &[u8]) -> Result<(), DeviceLost> {
        self.0.write(first, bytes)
    }

    fn recycle(&mut self, completed: Completed) {
        counted(|| self.0.recycle(completed));
    }

    fn time_batch(&mut self, index: CellTypeId, rows: u32) -> Result<Duration, DeviceLost> {
        self.0.time_batch(index, rows)
    }
}

/// The same inputs and states, and of a projection of the hidden state the largest element, which a screen may find.
fn decoder() -> Arc<TypedCell> {
    let mut rng = Rng::new(3);
    let weight = |name: &str| {
        let shape: &[usize] = if name.starts_with("bias") { &[4 * HIDDEN] } else { &[4 * HIDDEN, HIDDEN] };
        Tensor::from_f32(name, shape, &vec![0.01; shape.iter().product()])
    };
    let words: Vec<f32> = (0..HIDDEN * WORDS).map(|_| rng.float()).collect();
    let draft = cells::lstm("decoder", HIDDEN, HIDDEN, &weight).weight(Tensor::from_f32("words", &[HIDDEN, WORDS], &words));
    let draft = draft.operator("MatMul", &["h_next", "words"], &["scores"]).operator("ArgMax", &["scores"], &["word"]).with("axis", 1);
    draft.output("word", Datatype::Int64, &[1]).resolve()
}

fn counted_driver(cells: &[Arc<TypedCell>], threads: usize) -> Driver {
    let options = DomainOptions { arena_bytes: Some(16 << 20), ahead_weights_least: Some(0), ..DomainOptions::default() };
    let domain = CpuDomain::new(options).expect("16 MiB are there");
    let worker = CpuWorker::new(domain, CpuOptions { threads, ..CpuOptions::default() }).expect("threads start");
    Driver::new(Box::new(Counted(worker)), cells)
}

/// Allocations of each of the tasks that take chains of that cell to their ends.
fn allocations(cell: &Arc<TypedCell>, input: &Arc<Tensor>, threads: usize) -> Vec<u64> {
    let mut driver = counted_driver(std::slice::from_ref(cell), threads);
    let place = |_| {
        let rows = Source::Rows { tensor: 0, at: Affine::EVERY };
        let mut chain = independent(0, cell.outputs.len(), vec![rows, Source::Zeros, Source::Zeros], STEPS);
        chain.stages[0].retention = Retention::Double;
        (chain.stages[0].inputs[1].feedback, chain.stages[0].inputs[2].feedback) = (Some((0, 0)), Some((0, 1)));
        driver.place(Arc::new(growth_of(vec![chain])), std::slice::from_ref(input), 0, &[]).lanes[0][0]
    };
    let lanes: Vec<_> = (0..ROWS).map(place).collect();
    let task = |first: u32| {
        let rows: Vec<_> = lanes.iter().map(|lane| (*lane, first)).collect();
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        let completed = driver.task(CellTypeId(0), &rows, STEPS_AT_ONCE);
        driver.backend.recycle(completed);
        ALLOCATIONS.load(Ordering::SeqCst) - before
    };
    (0..STEPS).step_by(STEPS_AT_ONCE as usize).map(task).collect()
}

/// Allocations of each of the tasks that take trees, of which each node has a leaf on its left, to their roots.
fn tree_allocations(threads: usize) -> Vec<u64> {
    let mut driver = counted_driver(&trees::tree_cells(Precision::F32, 1), threads);
    let leaves = trees::TOKENS;
    let children = (1..leaves).map(|leaf| [leaf, if leaf == 1 { 0 } else { leaves + leaf - 2 }]).collect();
    let tree = trees::Tree { tokens: (0..leaves as i64).collect(), children };
    let placed = trees::place(&mut driver, &vec![tree; ROWS]);
    for step in 0..leaves as u32 {
        let rows: Vec<_> = placed.iter().map(|placed| (placed.lanes[0][0], step)).collect();
        driver.task(CellTypeId(0), &rows, 1);
    }
    let task = |step: u32| {
        let rows: Vec<_> = placed.iter().map(|placed| (placed.lanes[1][0], step)).collect();
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        let completed = driver.task(CellTypeId(1), &rows, 1);
        driver.backend.recycle(completed);
        ALLOCATIONS.load(Ordering::SeqCst) - before
    };
    (0..leaves as u32 - 1).map(task).collect()
}

#[test]
fn a_task_like_those_before_it_allocates_nothing() {
    let weight = |name: &str| {
        let shape: &[usize] = match name {
            "emb.weight" => &[STEPS as usize, HIDDEN],
            _ if name.starts_with("bias") || name.ends_with("bias") => &[4 * HIDDEN],
            _ => &[4 * HIDDEN, HIDDEN],
        };
        Tensor::from_f32(name, shape, &vec![0.01; shape.iter().product()])
    };
    let cell = cells::lstm("lstm", HIDDEN, HIDDEN, &weight).resolve();
    let rows = Arc::new(Tensor::from_f32("x", &[STEPS as usize, HIDDEN], &vec![0.5; STEPS as usize * HIDDEN]));
    let chains = [(&cell, 1), (&cell, 3), (&decoder(), 1), (&decoder(), 3)];
    let chains = chains.map(|(cell, threads)| (threads, allocations(cell, &rows, threads)));
    for (threads, tasks) in chains.into_iter().chain([1, 3].map(|threads| (threads, tree_allocations(threads)))) {
        // The first make room, which those that follow use.
        assert!(tasks[0] > 0, "nothing is counted");
        // So does each helper with the first part that it begins: before, the worker's own thread may have done its parts.
        let helpers = threads as u64 - 1;
        assert!(tasks[2..].iter().sum::<u64>() <= helpers, "{threads} threads: {tasks:?}");
    }
}

//! `--trace`: which cells ran in which batch, printed while they run.
//!
//! The engine's thread only leaves what it hands to a worker here; a thread of the tracer's own prints. Should that be too slow, tasks go
//! unseen, and how many is said at the end: a trace never holds the engine up.

mod roll;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{BufWriter, Write, stderr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::Context;
use cellwright_engine::options::TraceFn;
use cellwright_engine::{TaskTrace, TraceRow};
use cellwright_serving::ServedModel;
use serde_json::json;

pub(crate) use roll::Roll;

/// Tasks and rows that wait to be printed; those beyond are counted only.
const TASKS_MAX: usize = 100_000;
const ROWS_MAX: usize = 2_000_000;
/// Rows of a task that the table for people shows.
const ROWS_SHOWN: usize = 8;

/// Sees tasks and prints them.
#[derive(Clone, Default)]
pub(crate) struct Tracer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    tasks: VecDeque<Task>,
    rows: usize,
    unseen: u64,
    over: bool,
}

struct Task {
    worker: u32,
    cell_type: u32,
    seq: u64,
    steps: u32,
    rows: Vec<TraceRow>,
}

impl Tracer {
    /// What the engine calls.
    pub(crate) fn hook(&self) -> TraceFn {
        let tracer = self.clone();
        Box::new(move |task| tracer.see(task))
    }

    /// Prints what runs during `work` to standard error: a table for people, or a JSON line for each task. `work` enters requests as it hands them over.
    pub(crate) fn beside<T>(&self, model: &ServedModel, json: bool, work: impl FnOnce(&Roll) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let roll = Roll::default();
        let cells = model.loaded().cells.iter().map(|cell| (cell.cell_type.0, cell.cell.name.as_str())).collect();
        // Unlocked, so that others may write their lines between these.
        let mut printer = Printer { out: BufWriter::new(stderr()), cells, roll: &roll, json };
        thread::scope(|scope| {
            let printing = scope.spawn(|| printer.print(self));
            let over = Over(self);
            let worked = work(&roll);
            drop(over);
            let printed = printing.join().unwrap_or(Ok(()));
            let done = worked?;
            printed.context("the trace cannot be written")?;
            Ok(done)
        })
    }

    fn see(&self, task: &TaskTrace<'_>) {
        let mut waiting = self.lock();
        if waiting.tasks.len() >= TASKS_MAX || waiting.rows.saturating_add(task.rows.len()) > ROWS_MAX {
            waiting.unseen += 1;
            return;
        }
        waiting.rows += task.rows.len();
        let (worker, cell_type) = (task.worker.0, task.cell_type.0);
        waiting.tasks.push_back(Task { worker, cell_type, seq: task.seq, steps: task.steps, rows: task.rows.to_vec() });
        drop(waiting);
        self.0.changed.notify_one();
    }

    /// What was seen since the last call, waiting for something; none when it is over.
    fn seen(&self) -> Option<VecDeque<Task>> {
        let mut waiting = self.lock();
        loop {
            if !waiting.tasks.is_empty() {
                waiting.rows = 0;
                return Some(std::mem::take(&mut waiting.tasks));
            }
            if waiting.over {
                return None;
            }
            waiting = self.0.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the printing, however the work ends.
struct Over<'a>(&'a Tracer);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.lock().over = true;
        self.0.0.changed.notify_one();
    }
}

struct Printer<'a, W> {
    out: W,
    /// Names, by cell type.
    cells: BTreeMap<u32, &'a str>,
    roll: &'a Roll,
    json: bool,
}

impl<W: Write> Printer<'_, W> {
    fn print(&mut self, tracer: &Tracer) -> std::io::Result<()> {
        let width = self.cells.values().map(|name| name.len()).max().unwrap_or(0).max("cell".len());
        if !self.json {
            writeln!(
                self.out,
                "{:>6} {:>8}  {:width$}  {:>5} {:>5}  rows (request:chain.step)",
                "worker", "task", "cell", "batch", "steps"
            )?;
        }
        while let Some(tasks) = tracer.seen() {
            for task in &tasks {
                if self.json { self.json_line(task)? } else { self.table_line(task, width)? }
            }
            self.out.flush()?;
        }
        match (tracer.lock().unseen, self.json) {
            (0, _) => {}
            (unseen, true) => writeln!(self.out, "{}", json!({ "tasks_not_shown": unseen }))?,
            (unseen, false) => writeln!(self.out, "{unseen} more tasks came too fast to be printed")?,
        }
        self.out.flush()
    }

    fn json_line(&mut self, task: &Task) -> std::io::Result<()> {
        let rows: Vec<String> = task.rows.iter().map(|row| self.row(row)).collect();
        let (cell, batch) = (self.cell(task), rows.len());
        let line = json!({ "task": task.seq, "worker": task.worker, "cell": cell, "batch": batch, "steps": task.steps, "rows": rows });
        writeln!(self.out, "{line}")
    }

    fn table_line(&mut self, task: &Task, width: usize) -> std::io::Result<()> {
        let mut rows: String = task.rows.iter().take(ROWS_SHOWN).map(|row| self.row(row) + " ").collect();
        if task.rows.len() > ROWS_SHOWN {
            let _ = write!(rows, "… {} more", task.rows.len() - ROWS_SHOWN);
        }
        let (cell, batch, rows) = (self.cell(task), task.rows.len(), rows.trim_end());
        writeln!(self.out, "{:>6} {:>8}  {cell:width$}  {batch:>5} {:>5}  {rows}", task.worker, task.seq, task.steps)
    }

    fn cell(&self, task: &Task) -> String {
        self.cells.get(&task.cell_type).copied().unwrap_or("?").to_owned()
    }

    fn row(&self, row: &TraceRow) -> String {
        let stage = if row.stage == 0 { String::new() } else { format!("/{}", row.stage) };
        format!("{}:{}{stage}.{}", self.roll.name(row.request), row.chain, row.step)
    }
}

//! `--trace`: which cells ran in which batch.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use cellwright_engine::options::TraceFn;
use cellwright_engine::{TaskTrace, TraceRow};
use cellwright_serving::ServedModel;
use serde_json::json;

/// Tasks and rows kept; later ones are counted only.
const TASKS_MAX: usize = 100_000;
const ROWS_MAX: usize = 2_000_000;
/// Rows of a task that the table for people shows.
const ROWS_SHOWN: usize = 8;

/// What was seen so far.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Recording>>);

#[derive(Default)]
struct Recording {
    tasks: Vec<Task>,
    rows: usize,
    dropped: u64,
}

struct Task {
    worker: u32,
    cell_type: u32,
    seq: u64,
    steps: u32,
    rows: Vec<TraceRow>,
}

impl Recorder {
    /// What the engine calls.
    pub(crate) fn hook(&self) -> TraceFn {
        let recorder = self.clone();
        Box::new(move |task| recorder.record(task))
    }

    fn record(&self, task: &TaskTrace<'_>) {
        let mut recording = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if recording.tasks.len() >= TASKS_MAX || recording.rows.saturating_add(task.rows.len()) > ROWS_MAX {
            recording.dropped += 1;
            return;
        }
        recording.rows += task.rows.len();
        recording.tasks.push(Task {
            worker: task.worker.0,
            cell_type: task.cell_type.0,
            seq: task.seq,
            steps: task.steps,
            rows: task.rows.to_vec(),
        });
    }

    /// Writes everything seen: a table for people, or a JSON line for each task. `requests` are the ids in the order in which the engine took them.
    pub(crate) fn print(&self, out: &mut impl Write, model: &ServedModel, requests: &[String], json: bool) -> std::io::Result<()> {
        let recording = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cells: BTreeMap<u32, &str> = model.loaded().cells.iter().map(|cell| (cell.cell_type.0, cell.cell.name.as_str())).collect();
        let name = |task: &Task| cells.get(&task.cell_type).copied().unwrap_or("?").to_owned();
        let row = |row: &TraceRow| row_text(row, requests);
        if json {
            for task in &recording.tasks {
                let rows: Vec<String> = task.rows.iter().map(row).collect();
                let (cell, batch) = (name(task), rows.len());
                let line =
                    json!({ "task": task.seq, "worker": task.worker, "cell": cell, "batch": batch, "steps": task.steps, "rows": rows });
                writeln!(out, "{line}")?;
            }
        } else {
            let width = cells.values().map(|name| name.len()).max().unwrap_or(0).max("cell".len());
            writeln!(out, "{:>6} {:>8}  {:width$}  {:>5} {:>5}  rows (request:chain.step)", "worker", "task", "cell", "batch", "steps")?;
            for task in &recording.tasks {
                let mut rows: String = task.rows.iter().take(ROWS_SHOWN).map(|shown| row(shown) + " ").collect();
                if task.rows.len() > ROWS_SHOWN {
                    let _ = write!(rows, "… {} more", task.rows.len() - ROWS_SHOWN);
                }
                let (cell, batch) = (name(task), task.rows.len());
                writeln!(out, "{:>6} {:>8}  {cell:width$}  {batch:>5} {:>5}  {}", task.worker, task.seq, task.steps, rows.trim_end())?;
            }
        }
        match (recording.dropped, json) {
            (0, _) => Ok(()),
            (dropped, true) => writeln!(out, "{}", json!({ "tasks_not_shown": dropped })),
            (dropped, false) => writeln!(out, "and {dropped} more tasks, of which no trace was kept"),
        }
    }
}

fn row_text(row: &TraceRow, requests: &[String]) -> String {
    let known = usize::try_from(row.request).ok().and_then(|number| requests.get(number));
    let request = known.cloned().unwrap_or_else(|| format!("#{}", row.request));
    let stage = if row.stage == 0 { String::new() } else { format!("/{}", row.stage) };
    format!("{request}:{}{stage}.{}", row.chain, row.step)
}

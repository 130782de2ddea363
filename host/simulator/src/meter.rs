//! Measures what tasks cost a running host, as the device that [`crate::run()`] takes.
//!
//! It sees what the scheduler is told and what it decides, while somebody else makes load at every batch size. So it measures what a task takes while
//! other workers are busy, with gathering and scattering, and not what a batch takes alone; what one takes that begins while they have had nothing to do for
//! a while, whose threads may be lent to it; and what passes after a task until its end is heard of, which is long where whoever has to hear of it waits for
//! a processor that a worker has.

use std::collections::VecDeque;
use std::fmt::Write;

use cellwright_scheduler::{CellTypeId, Commands, CostTable, Event, Knot, Launch, TaskSeq, Time};

use crate::costs::Samples;
use crate::device::{CellCosts, Curve, Handover, QUIET_NS};

/// Tasks one after the other of which it is reckoned when they ended: what passes between two of them is not seen, and is taken to be the mean.
const RECKONED_MAX: u32 = 2;

/// Tasks in flight.
#[derive(Clone, Copy, Debug)]
struct Task {
    seq: TaskSeq,
    cell_type: CellTypeId,
    rows: u32,
    steps: u32,
    launched_ns: u64,
    /// Whether its worker had nothing else to do.
    alone: bool,
    /// Whether no other worker had had anything to do for a while when it began, once it has.
    quiet: Option<bool>,
}

/// A worker, as far as it can be seen.
#[derive(Debug, Default)]
struct Worker {
    flying: VecDeque<Task>,
    /// When its last task ended, reckoned from when it had nothing to do and how long its tasks took since.
    ended_ns: u64,
    /// Tasks since then.
    reckoned: u32,
    /// When its last task's end was heard of, and how long that took.
    heard: Option<(u64, u64)>,
}

/// Whether all of them but that one have had nothing to do for a while.
fn is_quiet(workers: &[Worker], but: usize, now_ns: u64) -> bool {
    let is_idle = |worker: &Worker| worker.flying.is_empty() && worker.heard.is_none_or(|(heard_ns, _)| heard_ns + QUIET_NS <= now_ns);
    workers.len() > 1 && workers.iter().enumerate().all(|(other, worker)| other == but || is_idle(worker))
}

impl Worker {
    /// Tasks are done that took so long together; when the last of them ended, as far as that can be reckoned.
    fn done(&mut self, tasks: &[Task], busy_ns: u64) -> Option<u64> {
        let first = tasks.first()?;
        self.reckoned = if first.alone { 0 } else { self.reckoned.saturating_add(1) };
        self.ended_ns = self.ended_ns.max(first.launched_ns).saturating_add(busy_ns);
        Some(self.ended_ns)
    }

    /// What passed on it before a task that waited for the one before, if one did: what the two ends' news are late by cancels out over many tasks.
    fn between(&mut self, tasks: &[Task], (now_ns, busy_ns): (u64, u64)) -> Option<i64> {
        let (heard_ns, before_ns) = self.heard.replace((now_ns, busy_ns))?;
        // Whoever was handed over before half of that time had passed was there when it ended.
        let waited = tasks.first().is_some_and(|first| !first.alone && first.launched_ns + before_ns / 2 <= heard_ns);
        waited.then_some(now_ns as i64 - heard_ns as i64 - busy_ns as i64)
    }
}

/// A task that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) cell_type: CellTypeId,
    pub(crate) rows: u32,
    pub(crate) steps: u32,
    pub(crate) quiet: bool,
}

/// What was seen of a host's tasks.
#[derive(Debug, Default)]
pub struct Meter {
    now: Time,
    workers: Vec<Worker>,
    samples: Samples,
}

impl Meter {
    /// The scheduler is told this, at that time.
    pub fn told(&mut self, now: Time, events: &[Event]) {
        self.told_and(now, events, |_, _| ());
    }

    /// The same; `ended` is shown which tasks ended together and how long they took.
    pub(crate) fn told_and(&mut self, now: Time, events: &[Event], mut ended: impl FnMut(&[Ended], u64)) {
        self.now = now;
        // The first of these ends is the one that the engine's thread was waiting to hear of; what came meanwhile did not wait as long, and whoever has
        // nothing to do by now may have it because of that wait. At that end all were at work that had not ended yet.
        let were_at_work = self.workers.iter().all(|worker| !worker.flying.is_empty());
        let mut first: Option<(u64, u32, bool)> = None;
        for event in events {
            if let Event::WorkerUp { worker, .. } = event {
                self.know(worker.index());
            }
            let Event::Done { worker, up_to, busy_ns, .. } = event else { continue };
            let Some(seen) = self.workers.get_mut(worker.index()) else { continue };
            let count = seen.flying.iter().take_while(|task| task.seq <= *up_to).count();
            let tasks: Vec<Task> = seen.flying.drain(..count).collect();
            if let Some(ended_ns) = seen.done(&tasks, *busy_ns) {
                let end = (ended_ns, seen.reckoned, were_at_work && !seen.flying.is_empty());
                first = Some(first.map_or(end, |first| first.min(end)));
            }
            if let Some(between_ns) = seen.between(&tasks, (now.0, *busy_ns)) {
                self.samples.add_between(between_ns);
            }
            // Which begins while the one before still runs begins beside the same others.
            let quiet = tasks.first().and_then(|first| first.quiet).unwrap_or(false);
            let all = tasks.iter().map(|&Task { cell_type, rows, steps, .. }| Ended { cell_type, rows, steps, quiet });
            ended(&all.collect::<Vec<_>>(), *busy_ns);
            // Of several tasks together it is not known how long each took.
            if let [task] = tasks[..] {
                // Of one that began and ended between two decisions it is not known beside whom it ran.
                if let Some(quiet) = task.quiet {
                    self.samples.add(task.cell_type, task.rows, busy_ns / u64::from(task.steps.max(1)), quiet);
                }
            }
        }
        if let Some((ended_ns, reckoned, busy)) = first.filter(|(_, reckoned, _)| *reckoned < RECKONED_MAX) {
            self.samples.add_handover(now.0.saturating_sub(ended_ns), reckoned, busy);
        }
    }

    /// It decided this.
    pub fn decided(&mut self, commands: &Commands) {
        for launch in &commands.launches {
            let worker = launch.worker.index();
            self.know(worker);
            let rows = launch.rows.len() as u32;
            let flying = &mut self.workers[worker].flying;
            let (launched_ns, alone) = (self.now.0, flying.is_empty());
            let Launch { seq, cell_type, steps, .. } = *launch;
            flying.push_back(Task { seq, cell_type, rows, steps, launched_ns, alone, quiet: None });
        }
        // Not before all has been decided: who has ended a task has the next one by now, if there is one.
        for worker in 0..self.workers.len() {
            if self.workers[worker].flying.front().is_some_and(|first| first.quiet.is_none()) {
                let quiet = is_quiet(&self.workers, worker, self.now.0);
                self.workers[worker].flying[0].quiet = Some(quiet);
            }
        }
    }

    /// What tasks of a cell type cost, which was calibrated so.
    pub(crate) fn costs(&self, cell_type: CellTypeId, calibrated: &CostTable) -> CellCosts {
        let quiet = self.quiet_knots(cell_type);
        CellCosts {
            compute: Curve::of_table(&self.samples.table(cell_type, calibrated)),
            compute_quiet: (!quiet.is_empty()).then(|| Curve::of_table(&CostTable::measured(quiet))),
            ..CellCosts::default()
        }
    }

    /// What passed until ends of tasks were heard of, and between tasks, since the last time that this was asked, if any was seen.
    pub(crate) fn cut(&mut self) -> (Option<Handover>, Option<u64>) {
        let [idle, busy] = [false, true].map(|busy| Some(self.handovers_ns(busy)).filter(|times| !times.is_empty()));
        let handover = (idle.is_some() || busy.is_some()).then(|| Handover::new(idle, busy));
        (handover, self.samples.begin_anew())
    }

    fn know(&mut self, worker: usize) {
        if worker >= self.workers.len() {
            self.workers.resize_with(worker + 1, Worker::default);
        }
    }

    /// Mean times of a cell type by batch size, so that none is below that of a smaller batch: of tasks that began while other workers were at work, where
    /// there were such.
    #[must_use]
    pub fn knots(&self, cell_type: CellTypeId) -> Vec<Knot> {
        CostTable::measured(self.samples.usual(cell_type)).knots().to_vec()
    }

    /// The same of tasks that began while no other worker had had anything to do for a while.
    #[must_use]
    pub fn quiet_knots(&self, cell_type: CellTypeId) -> Vec<Knot> {
        CostTable::measured(self.samples.seen_while(cell_type, true)).knots().to_vec()
    }

    /// What passes from a task's end until it is heard of, while every worker has something to do or not, as times that are equally likely; of a task that
    /// was alone on its worker with what passed from its launch until it began.
    #[must_use]
    pub fn handovers_ns(&self, busy: bool) -> Vec<u64> {
        self.samples.handovers_ns(busy)
    }

    /// What passes on average on a worker from a task's end until the next one begins that is there already: others have its processor then.
    #[must_use]
    pub fn between_ns(&self) -> u64 {
        self.samples.between_ns()
    }
}

/// A cell with its times.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct CellTimes {
    pub name: String,
    /// While others are at work, as [`Meter::knots`].
    pub busy: Vec<Knot>,
    /// As [`Meter::quiet_knots`]; none, if no task began so.
    pub quiet: Vec<Knot>,
    /// As [`cellwright_scheduler::CellInfo::fill_first`].
    pub fill_first: bool,
}

/// A table in TOML of a device like a CPU's workers, which share their memory: how long it takes until ends of tasks are heard of (and, it is assumed,
/// requests, by the same thread), as times that are equally likely, what passes between tasks, and its cells with their times.
/// What a cell that it does not name costs is what the last one does.
#[must_use]
pub fn table(name: &str, meter: &Meter, cells: &[CellTimes]) -> String {
    let between_us = meter.between_ns() as f64 / 1e3;
    let mut text = format!("name = {}\nshares_memory = true\nbetween_us = {between_us}\n", quoted(name));
    for (field, busy) in [("handover_us", false), ("handover_busy_us", true)] {
        let times_us: Vec<f64> = meter.handovers_ns(busy).into_iter().map(|ns| ns as f64 / 1e3).collect();
        if !times_us.is_empty() {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{field} = {times_us:?}");
        }
    }
    let mut cell = |head: String, cell: &CellTimes| {
        let _ = write!(text, "\n[{head}]\n");
        for (field, knots) in [("compute_us", &cell.busy), ("compute_quiet_us", &cell.quiet)] {
            if !knots.is_empty() {
                let knots: Vec<String> = knots.iter().map(|knot| format!("[{}, {}]", knot.rows, knot.nanoseconds as f64 / 1e3)).collect();
                let _ = writeln!(text, "{field} = [{}]", knots.join(", "));
            }
        }
        if cell.fill_first {
            let _ = writeln!(text, "fill_first = true");
        }
    };
    if let Some(last) = cells.last() {
        cell("default".to_owned(), last);
    }
    for measured in cells {
        cell(format!("cells.{}", quoted(&measured.name)), measured);
    }
    text
}

/// A text as TOML writes it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(character))),
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests;

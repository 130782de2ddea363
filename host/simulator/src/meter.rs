//! Measures what tasks cost a running host, as the device that [`crate::run()`] takes.
//!
//! It sees what the scheduler is told and what it decides, and when tasks ended, while somebody else makes load at every batch size. So it measures what a
//! task takes while other workers are busy, with gathering and scattering, and not what a batch takes alone; what one takes that begins while they have had
//! nothing to do for a while, whose threads may be lent to it; and what passes beside tasks: until an end is heard of, which is long where whoever has to
//! hear of it waits for a processor that a worker has, until a worker wakes up that had nothing to do, and between two tasks.

use std::collections::VecDeque;
use std::fmt::Write;

use cellwright_scheduler::{CellTypeId, Commands, CostTable, Event, Knot, Launch, RequestId, TaskSeq, Time};

use crate::costs::{Mean, Passed, Samples};
use crate::device::{CellCosts, Curve, Delays, Handover, QUIET_NS};

/// Tasks in flight.
#[derive(Clone, Copy, Debug)]
struct Task {
    seq: TaskSeq,
    cell_type: CellTypeId,
    rows: u32,
    steps: u32,
    launched_ns: u64,
    /// Whether its worker had had nothing to do until then.
    wakes: bool,
    /// Whether no other worker had had anything to do for a while when it began, once it has.
    quiet: Option<bool>,
}

/// A worker, as far as it can be seen.
#[derive(Debug, Default)]
struct Worker {
    flying: VecDeque<Task>,
    /// When its last task ended.
    ended_ns: u64,
    /// When that was heard of.
    heard_ns: Option<u64>,
}

/// Whether all of them but that one have had nothing to do for a while.
fn is_quiet(workers: &[Worker], but: usize, now_ns: u64) -> bool {
    let is_idle = |worker: &Worker| worker.flying.is_empty() && worker.heard_ns.is_none_or(|heard_ns| heard_ns + QUIET_NS <= now_ns);
    workers.len() > 1 && workers.iter().enumerate().all(|(other, worker)| other == but || is_idle(worker))
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
    passed: Passed,
    /// When requests in flight were heard of, by number.
    submitted_ns: Vec<u64>,
    /// What they took from then to their ends.
    requests: Mean,
}

impl Meter {
    /// The scheduler is told this, at that time; when the tasks of which [`Event::Done`] tells ended, in their order.
    pub fn told(&mut self, now: Time, events: &[Event], ended: &[Time]) {
        self.told_and(now, events, ended, |_, _| ());
    }

    /// The same; `seen` is shown which tasks ended together and how long they took.
    pub(crate) fn told_and(&mut self, now: Time, events: &[Event], ended: &[Time], mut seen: impl FnMut(&[Ended], u64)) {
        self.now = now;
        // The first of these ends is the one that somebody was waiting to hear of; what came meanwhile did not wait as long, and whoever has
        // nothing to do by now may have it because of that wait. At that end all were at work that had not ended yet.
        let were_at_work = self.workers.iter().all(|worker| !worker.flying.is_empty());
        let mut first: Option<(u64, bool)> = None;
        let mut ends = ended.iter();
        for event in events {
            match event {
                Event::WorkerUp { worker, .. } => self.know(worker.index()),
                Event::Submit(submission) => self.submitted(submission.request),
                Event::Done { worker, up_to, busy_ns, .. } | Event::Paused { worker, seq: up_to, busy_ns } => {
                    let ended_ns = ends.next().map_or(now.0, |ended| ended.0);
                    let Some(tasks) = self.done(worker.index(), *up_to, ended_ns, *busy_ns) else { continue };
                    let end = (ended_ns, were_at_work && !self.workers[worker.index()].flying.is_empty());
                    first = Some(first.map_or(end, |first| first.min(end)));
                    seen(&tasks, *busy_ns);
                }
                _ => {}
            }
        }
        if let Some((ended_ns, busy)) = first {
            self.passed.handovers[usize::from(busy)].add(now.0.saturating_sub(ended_ns));
        }
    }

    /// Tasks of a worker are done, the last of them since then, which took so long together.
    fn done(&mut self, worker: usize, up_to: TaskSeq, ended_ns: u64, busy_ns: u64) -> Option<Vec<Ended>> {
        let worker = self.workers.get_mut(worker)?;
        let count = worker.flying.iter().take_while(|task| task.seq <= up_to).count();
        let tasks: Vec<Task> = worker.flying.drain(..count).collect();
        let first = tasks.first()?;
        let began_ns = ended_ns.saturating_sub(busy_ns);
        let delay_ns = began_ns.saturating_sub(first.launched_ns.max(worker.ended_ns));
        (worker.ended_ns, worker.heard_ns) = (ended_ns, Some(self.now.0));
        if first.wakes {
            self.passed.wakes.add(delay_ns);
        } else {
            self.passed.between.add(delay_ns);
        }
        // Of several tasks together it is not known how long each took, and of one that began and ended between two decisions beside whom it ran.
        if let [task @ Task { quiet: Some(quiet), .. }] = tasks[..] {
            self.samples.add(task.cell_type, task.rows, busy_ns / u64::from(task.steps.max(1)), quiet);
        }
        // Which begins while the one before still runs begins beside the same others.
        let quiet = first.quiet.unwrap_or(false);
        Some(tasks.iter().map(|&Task { cell_type, rows, steps, .. }| Ended { cell_type, rows, steps, quiet }).collect())
    }

    fn submitted(&mut self, request: RequestId) {
        if request.index() >= self.submitted_ns.len() {
            self.submitted_ns.resize(request.index() + 1, 0);
        }
        self.submitted_ns[request.index()] = self.now.0;
    }

    /// It decided this.
    pub fn decided(&mut self, commands: &Commands) {
        for launch in &commands.launches {
            let worker = launch.worker.index();
            self.know(worker);
            let Worker { flying, heard_ns, .. } = &mut self.workers[worker];
            let Launch { seq, cell_type, steps, .. } = *launch;
            let rows = launch.step_rows() as u32;
            let wakes = flying.is_empty() && heard_ns.is_none_or(|heard_ns| heard_ns < self.now.0);
            flying.push_back(Task { seq, cell_type, rows, steps, launched_ns: self.now.0, wakes, quiet: None });
        }
        // Not before all has been decided: who has ended a task has the next one by now, if there is one.
        for worker in 0..self.workers.len() {
            if self.workers[worker].flying.front().is_some_and(|first| first.quiet.is_none()) {
                let quiet = is_quiet(&self.workers, worker, self.now.0);
                self.workers[worker].flying[0].quiet = Some(quiet);
            }
        }
        for request in &commands.finished {
            if let Some(submitted_ns) = self.submitted_ns.get(request.index()) {
                self.requests.add(self.now.0.saturating_sub(*submitted_ns));
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

    /// What passed beside tasks since the last time that this was asked.
    pub(crate) fn cut(&mut self) -> Passed {
        std::mem::take(&mut self.passed)
    }

    /// How many requests ended since the last time that this was asked, and what they took on average, in nanoseconds, from when they were heard of.
    pub fn cut_requests(&mut self) -> (u64, u64) {
        let requests = std::mem::take(&mut self.requests);
        (requests.count(), requests.mean())
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

    /// What passes beside tasks: of each kind times that are equally likely, or their mean.
    #[must_use]
    pub fn delays(&self) -> Delays {
        let mut delays = Delays::default();
        self.passed.update(&mut delays);
        delays
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

/// A table in TOML of a device like a CPU's workers, which share their memory: what passes beside its tasks, what requests take on their ways to the
/// scheduler and back (nanoseconds, if that is known), and its cells with their times. What a cell that it does not name costs is what the last one does.
#[must_use]
pub fn table(name: &str, delays: &Delays, request_ns: Option<u64>, cells: &[CellTimes]) -> String {
    let us = |ns: u64| ns as f64 / 1e3;
    let mut text = format!("name = {}\nshares_memory = true\nbetween_us = {}\n", quoted(name), us(delays.between_ns));
    let Delays { handover: Handover { idle, busy }, wake, .. } = delays;
    // Writing to a String does not fail.
    if let Some(ns) = request_ns {
        let _ = writeln!(text, "request_us = {}", us(ns));
    }
    for (field, times) in [("wake_us", wake), ("handover_us", idle), ("handover_busy_us", busy)] {
        let times_us: Vec<f64> = times.nanoseconds().iter().copied().map(us).collect();
        if !times_us.is_empty() {
            let _ = writeln!(text, "{field} = {times_us:?}");
        }
    }
    let mut cell = |head: String, cell: &CellTimes| {
        let _ = write!(text, "\n[{head}]\n");
        for (field, knots) in [("compute_us", &cell.busy), ("compute_quiet_us", &cell.quiet)] {
            if !knots.is_empty() {
                let knots: Vec<String> = knots.iter().map(|knot| format!("[{}, {}]", knot.rows, us(knot.nanoseconds))).collect();
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

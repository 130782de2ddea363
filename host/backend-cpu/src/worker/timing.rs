//! How long batches take (for calibration), and where a worker's time goes.
//!
//! A cell with a table is timed as if every token were in it, because most steps find theirs. A
//! batch of new tokens may take longer: the time counts as at least a fifth of that. A cell that is
//! taken input by input is timed as if half of what its inputs add were computed. A batch is timed
//! on zeros, so a screened projection, whose rows then need no closer look, is timed somewhat too
//! short.
//!
//! The processor time of other threads does not count, nor do pauses ([`Watch`]). A load times its
//! cells in slices, and the worker takes tasks between them ([`super::sliced`]).

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cellwright_backend::{CellTypeId, DeviceLost, TIMED_SPAN_ROWS};

use super::ahead::Nodes;
use super::{CpuWorker, Shares, transfer};
use crate::plan::{Memory, Plan, RefusedRow};
use crate::slices;
use crate::team::Team;

/// Repetitions of a timed step, and how long they may take once there is one.
const TIMED_RUNS: usize = 15;
const TIMED_BUDGET: Duration = Duration::from_millis(30);
/// How many times as long as it may take a batch takes at most while a table fills.
const FILLING: u32 = 5;
/// Half of the edges of a binary tree lead to leaves.
const LOOKED_UP: usize = 2;

impl CpuWorker {
    /// How long a batch takes on the threads that are there, from gathered inputs on. Of a cell that has a table: the rest of the cell, as if every token were in it already,
    /// unless one of which no token is there takes [`FILLING`] times as long. Of a cell that is taken input by input: as if one in [`LOOKED_UP`] of what its inputs add were computed, unless there are no tables.
    pub(super) fn timed(&mut self, index: CellTypeId, rows: u32) -> Result<Duration, DeviceLost> {
        let Some(loaded) = self.cells.get(index.index()).cloned().flatten() else { return Err(self.not_there(index)) };
        let rows = rows.max(1) as usize;
        let plan = &loaded.plan.one_step().plan;
        let missing_row = loaded.plan.table().map_or(Duration::ZERO, |(pre, _)| {
            let known = loaded.missing_row.get().copied().unwrap_or_else(|| self.time_missing(pre));
            *loaded.missing_row.get_or_init(|| known)
        });
        let most = self.team.guests();
        let part_rows = rows.div_ceil(plan.parts(rows, self.team.size()));
        let memory = self.frame.prepare(plan, part_rows, self.team.size());
        transfer::zero_inputs(plan, memory, part_rows);
        let budget = Watch::start();
        let mut least = Duration::MAX;
        for run in 0..TIMED_RUNS {
            if run > 0 && budget.passed() >= TIMED_BUDGET {
                break;
            }
            slices::point();
            if slices::are_taken() {
                self.team.set_guests(slices::guests().min(most));
            }
            let watch = Watch::start();
            if let Some(parts) = loaded.plan.parts() {
                let computed = if parts.may_have_tables() { rows.div_ceil(LOOKED_UP) } else { rows };
                self.ahead.run_parts_on_zeros(parts, computed, &mut self.team);
            }
            if let Some(spans) = loaded.plan.spans() {
                self.ahead.run_spans(spans, &mut Nodes::Zeros(rows, TIMED_SPAN_ROWS as usize), &mut self.team, &mut Clock::start(None));
            }
            for part in (0..rows).step_by(part_rows) {
                let memory = memory.running(loaded.backwards.fetch_not(Ordering::Relaxed));
                plan.run(memory, part_rows.min(rows - part), &mut self.team, &self.refused);
                slices::point();
                // A cell may refuse zeros. They are nobody's, and must not meet the rows of the task that comes next.
                self.refused.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
            }
            least = least.min(watch.elapsed());
        }
        Ok(least.max(missing_row.saturating_mul(rows as u32) / FILLING))
    }
}

/// Times work on the calling thread, without the pauses between slices. It counts the thread's
/// processor time if that is less than the elapsed time. A thread that polls for its helpers counts as
/// at work, so only a helper without a processor still adds to a time.
pub(super) struct Watch {
    began: Instant,
    paused: Duration,
    worked: Option<Duration>,
}

impl Watch {
    pub(super) fn start() -> Self {
        Self { paused: slices::paused(), worked: worked(), began: Instant::now() }
    }

    /// The elapsed time, without pauses.
    fn passed(&self) -> Duration {
        self.began.elapsed().saturating_sub(slices::paused().saturating_sub(self.paused))
    }

    pub(super) fn elapsed(&self) -> Duration {
        let passed = self.passed();
        let worked = worked().zip(self.worked).map(|(now, before)| now.saturating_sub(before));
        worked.map_or(passed, |worked| passed.min(worked))
    }
}

/// Processor time of this thread, where the system says so.
fn worked() -> Option<Duration> {
    #[cfg(unix)]
    {
        Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)).ok()
    }
    #[cfg(not(unix))]
    None
}

/// Adds times to an account, if there is one.
pub(super) struct Clock<'a> {
    account: Option<(&'a Mutex<Shares>, Instant)>,
}

impl<'a> Clock<'a> {
    pub(super) fn start(account: Option<&'a Mutex<Shares>>) -> Self {
        Self { account: account.map(|account| (account, Instant::now())) }
    }

    /// What passed since the last time was spent on transfer.
    pub(super) fn transferred(&mut self) {
        if let Some((account, began)) = &mut self.account {
            account.lock().unwrap_or_else(PoisonError::into_inner).transfer += began.elapsed();
            *began = Instant::now();
        }
    }

    /// Runs a plan over so many rows. What passed before was spent on transfer.
    pub(super) fn run(&mut self, plan: &Plan, (memory, rows): (Memory<'_>, usize), team: &mut Team, refused: &Mutex<Vec<RefusedRow>>) {
        self.transferred();
        let Some((account, began)) = &mut self.account else { return plan.run(memory, rows, team, refused) };
        let (products, others) = plan.run_timed(memory, rows, team, refused);
        let mut shares = account.lock().unwrap_or_else(PoisonError::into_inner);
        shares.products += products;
        shares.others += others;
        *began = Instant::now();
    }
}

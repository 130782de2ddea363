//! Threads that the workers of a domain lend each other while they have no task.
//!
//! The scheduler gives each request to one worker and knows nothing of threads. So an idle worker's
//! share of the machine is lent to the others. No thread changes hands. The domain counts the
//! threads of workers without a task, and a busy worker uses as many spare helpers of its own
//! (guests), for one step at a time. When their workers get tasks the count falls below zero, and
//! guests leave before the next step.
//!
//! Threads are lent once the other workers have neither begun nor ended a task for 0.3 ms. A busy
//! worker has shorter pauses between tasks, and threads lent in those would be missing at once. A
//! worker that gets a task first waits up to 1 ms for its threads. Taking them at once would only
//! hold up a step that is half done on them.
//!
//! So two workers of one thread answer a lone request about as fast as one worker of two threads
//! does. The order of a sum does not depend on who computes it.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::team::{GUESTS_MAX, Team};

/// How long a worker waits for its threads. Most steps are shorter; it waits no more than once for a longer one.
const PATIENCE: Duration = Duration::from_millis(1);

/// For how long no other worker has begun or ended a task before threads are lent: what passes between two tasks of a busy worker is less.
const QUIET: Duration = Duration::from_micros(300);

/// Threads of a domain's workers that have nothing to do.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    /// How many, less those that others have taken for theirs. Below zero, some of these are to be given back.
    idle: AtomicI32,
    /// Beginnings and ends of tasks.
    changes: AtomicU32,
}

/// What a worker has to do with its domain's threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Borrower {
    /// It works on a task.
    busy: bool,
    /// Beginnings and ends that were its own, and how many others there were when it looked last.
    own: u32,
    others: u32,
    /// Since when it has seen no more of them.
    quiet_since: Option<Instant>,
    /// It has waited in vain for threads that have not been given back since.
    gave_up: bool,
}

impl Lending {
    /// A worker has come with a team, and has nothing to do.
    pub(crate) fn join(&self, team: &Team) {
        self.change(team.own() as i32);
    }

    /// A worker leaves, perhaps in the middle of a task.
    pub(crate) fn leave(&self, team: &mut Team) {
        if team.borrower.busy {
            self.end(team);
        }
        self.change(-(team.own() as i32));
    }

    /// A worker begins a task, as soon as others have given back its threads: what they run on them is half done, and would only be held up.
    pub(crate) fn begin(&self, team: &mut Team) {
        self.note(team, true);
        self.change(-(team.own() as i32));
        if self.idle() < 0 && !team.borrower.gave_up {
            let began = Instant::now();
            while self.idle() < 0 && began.elapsed() < PATIENCE {
                std::thread::yield_now();
            }
        }
        team.borrower.gave_up = self.idle() < 0;
    }

    /// A worker has ended its task: guests leave.
    pub(crate) fn end(&self, team: &mut Team) {
        self.change(team.size() as i32);
        self.note(team, false);
        team.set_guests(0);
    }

    /// Between two steps of a task: guests leave whose workers need their threads, and others come, if it has been quiet for a while. Nobody comes to a
    /// team that has begun no task here.
    pub(crate) fn settle(&self, team: &mut Team) {
        let (idle, before) = (self.idle(), team.guests());
        if !team.borrower.busy || idle == 0 || (idle > 0 && !self.is_quiet(&mut team.borrower)) {
            return;
        }
        self.set_guests(team, before, idle);
    }

    /// Whether a worker waits for threads that others have.
    pub(crate) fn are_wanted_back(&self) -> bool {
        self.idle() < 0
    }

    /// All that is idle is a team's for now, however short a time it has been so.
    pub(crate) fn take_idle(&self, team: &mut Team) {
        self.set_guests(team, team.guests(), self.idle());
    }

    fn set_guests(&self, team: &mut Team, before: usize, idle: i32) {
        // Where several take the same ones, the count is below zero, and each gives some back before its next step.
        team.set_guests((before as i32).saturating_add(idle).clamp(0, GUESTS_MAX as i32) as usize);
        self.change(before as i32 - team.guests() as i32);
    }

    fn is_quiet(&self, borrower: &mut Borrower) -> bool {
        let others = self.changes.load(Ordering::Relaxed).wrapping_sub(borrower.own);
        let same = std::mem::replace(&mut borrower.others, others) == others;
        let since = borrower.quiet_since.filter(|_| same);
        borrower.quiet_since = since.or_else(|| Some(Instant::now()));
        since.is_some_and(|since| since.elapsed() >= QUIET)
    }

    fn note(&self, team: &mut Team, busy: bool) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        (team.borrower.busy, team.borrower.own) = (busy, team.borrower.own.wrapping_add(1));
    }

    fn idle(&self) -> i32 {
        self.idle.load(Ordering::Relaxed)
    }

    fn change(&self, by: i32) {
        self.idle.fetch_add(by, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(threads: usize) -> Team {
        let mut team = Team::new(threads, Duration::ZERO, None).unwrap();
        team.guests_most = GUESTS_MAX;
        team
    }

    /// Settles, sees that nobody else begins or ends anything, and settles again.
    fn settle_quietly(lending: &Lending, team: &mut Team) {
        lending.settle(team);
        std::thread::sleep(2 * QUIET);
        lending.settle(team);
    }

    #[test]
    fn who_has_nothing_to_do_lends_its_threads() {
        let lending = Lending::default();
        let [mut one, mut other, mut third] = [team(1), team(2), team(1)];
        [&one, &other, &third].into_iter().for_each(|team| lending.join(team));
        lending.begin(&mut one);
        settle_quietly(&lending, &mut one);
        assert_eq!(one.size(), 4, "all that there are");
        lending.begin(&mut other);
        settle_quietly(&lending, &mut other);
        assert_eq!(other.size(), 2, "nobody has any left");
        lending.settle(&mut one);
        assert_eq!(one.size(), 2, "those of the third alone");
        lending.end(&mut one);
        settle_quietly(&lending, &mut other);
        assert_eq!((one.size(), other.size()), (1, 4));
        lending.begin(&mut third);
        lending.settle(&mut other);
        assert_eq!(other.size(), 3, "one of them runs itself now");
    }

    #[test]
    fn who_is_between_two_tasks_lends_nothing() {
        let lending = Lending::default();
        let [mut one, mut other] = [team(1), team(1)];
        [&one, &other].into_iter().for_each(|team| lending.join(team));
        lending.begin(&mut one);
        for _ in 0..3 {
            lending.begin(&mut other);
            std::thread::sleep(2 * QUIET);
            lending.end(&mut other);
            lending.settle(&mut one);
            assert_eq!(one.size(), 1);
        }
        std::thread::sleep(2 * QUIET);
        lending.settle(&mut one);
        assert_eq!(one.size(), 2);
        lending.end(&mut one);
        lending.begin(&mut one);
        lending.settle(&mut one);
        assert_eq!(one.size(), 2, "nothing has changed but for its own tasks");
    }

    #[test]
    fn who_leaves_takes_its_own_threads_along() {
        let lending = Lending::default();
        let [mut one, mut other] = [team(1), team(1)];
        [&one, &other].into_iter().for_each(|team| lending.join(team));
        lending.begin(&mut one);
        settle_quietly(&lending, &mut one);
        assert_eq!(one.size(), 2);
        lending.leave(&mut one);
        lending.begin(&mut other);
        settle_quietly(&lending, &mut other);
        assert_eq!(other.size(), 1);
        lending.end(&mut other);
        lending.leave(&mut other);
        assert_eq!(lending.idle(), 0);
    }
}

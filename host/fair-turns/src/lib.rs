//! Turns by tenant, for work that only a few may do at once and that takes long: compiling plugins,
//! measuring cells.
//!
//! The tenant that has had the least time is next. A tenant has one turn at a time, however many
//! threads of it wait. Whoever keeps a turn for long asks for it again now and then, and so lets
//! others go first.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time by which a turn's tenant may be ahead of one that waits.
const QUANTUM: Duration = Duration::from_millis(100);
/// Time that a tenant which had no turn lately is behind the others: a short load goes before long ones.
const CREDIT: Duration = Duration::from_secs(2);
/// How often whoever waits looks whether that was cancelled.
const LOOK: Duration = Duration::from_millis(20);
/// Tenants without a turn of which it is kept what they have had.
const KEPT_MAX: usize = 1024;

/// Whoever waited for a turn gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it was cancelled")]
pub struct Cancelled;

/// The turns at one thing.
#[derive(Debug)]
pub struct FairTurns {
    state: Mutex<Turns>,
    changed: Condvar,
}

/// A tenant's turn, or its wish to have one. Given back when dropped.
#[derive(Debug)]
pub struct FairTurn<'a> {
    turns: &'a FairTurns,
    tenant: u32,
    /// Since when it has not been charged; none: it has no turn.
    began: Option<Instant>,
}

#[derive(Debug)]
struct Turns {
    free: usize,
    /// Tenants that have a turn, wait for one, or have had more than [`Turns::least`].
    tenants: BTreeMap<u32, TenantTurns>,
    /// What the tenant whose turn began last had had by then.
    level: Duration,
}

#[derive(Debug)]
struct TenantTurns {
    used: Duration,
    waiting: u32,
    has_turn: bool,
}

impl FairTurns {
    /// So many tenants have a turn at once.
    #[must_use]
    pub const fn new(at_once: usize) -> Self {
        let state = Turns { free: at_once, tenants: BTreeMap::new(), level: CREDIT };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A turn of that tenant, which begins when it is [taken](FairTurn::take).
    #[must_use]
    pub const fn of(&self, tenant: u32) -> FairTurn<'_> {
        FairTurn { turns: self, tenant, began: None }
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FairTurn<'_> {
    /// Waits for the turn. If it has begun, it goes on, or it ends and is waited for again because
    /// others have had less.
    ///
    /// # Errors
    /// If it was cancelled before the turn began.
    pub fn take(&mut self, is_cancelled: &dyn Fn() -> bool) -> Result<(), Cancelled> {
        let mut turns = self.turns.lock();
        if let Some(began) = self.began.replace(Instant::now()) {
            if turns.goes_on(self.tenant, began.elapsed()) {
                return if is_cancelled() { Err(Cancelled) } else { Ok(()) };
            }
            self.began = None;
            turns.end(self.tenant, Duration::ZERO);
            self.turns.changed.notify_all();
        }
        turns.wait(self.tenant);
        while !turns.begins(self.tenant) {
            if is_cancelled() {
                turns.leave(self.tenant);
                self.turns.changed.notify_all();
                return Err(Cancelled);
            }
            turns = self.turns.changed.wait_timeout(turns, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.began = Some(Instant::now());
        Ok(())
    }
}

impl Drop for FairTurn<'_> {
    fn drop(&mut self) {
        if let Some(began) = self.began {
            self.turns.lock().end(self.tenant, began.elapsed());
            self.turns.changed.notify_all();
        }
    }
}

impl Turns {
    /// What a tenant has had at least that comes now.
    fn least(&self) -> Duration {
        self.level.saturating_sub(CREDIT)
    }

    fn wait(&mut self, tenant: u32) {
        let least = self.least();
        let own = self.tenants.entry(tenant).or_insert(TenantTurns { used: least, waiting: 0, has_turn: false });
        own.waiting += 1;
        if !own.has_turn {
            own.used = own.used.max(least);
        }
    }

    fn leave(&mut self, tenant: u32) {
        if let Some(own) = self.tenants.get_mut(&tenant) {
            own.waiting -= 1;
        }
        self.forget();
    }

    /// The tenant that is next, and what it has had.
    fn next(&self) -> Option<(Duration, u32)> {
        let waiting = self.tenants.iter().filter(|(_, of)| of.waiting > 0 && !of.has_turn);
        waiting.map(|(tenant, of)| (of.used, *tenant)).min()
    }

    /// Begins a turn of a tenant that waits, if it is next.
    fn begins(&mut self, tenant: u32) -> bool {
        let is_next = self.free > 0 && self.next().is_some_and(|(_, next)| next == tenant);
        if is_next && let Some(own) = self.tenants.get_mut(&tenant) {
            own.waiting -= 1;
            own.has_turn = true;
            self.free -= 1;
            self.level = self.level.max(own.used);
        }
        is_next
    }

    /// Charges a tenant that has a turn. Whether it may go on.
    fn goes_on(&mut self, tenant: u32, took: Duration) -> bool {
        let Some(own) = self.tenants.get_mut(&tenant) else { return false };
        own.used += took;
        let used = own.used;
        let goes_on = self.free > 0 || self.next().is_none_or(|(next, _)| used < next + QUANTUM);
        if goes_on {
            self.level = self.level.max(used);
        }
        goes_on
    }

    fn end(&mut self, tenant: u32, took: Duration) {
        if let Some(own) = self.tenants.get_mut(&tenant) {
            own.used += took;
            own.has_turn = false;
            self.free += 1;
        }
        self.forget();
    }

    /// Forgets tenants that are as new ones, or nearly so where too many are kept.
    fn forget(&mut self) {
        let least = self.least();
        let is_idle = |of: &TenantTurns| of.waiting == 0 && !of.has_turn;
        self.tenants.retain(|_, of| !is_idle(of) || of.used > least);
        if self.tenants.len() > KEPT_MAX {
            let idle = self.tenants.iter().filter(|(_, of)| is_idle(of)).min_by_key(|(_, of)| of.used);
            idle.map(|(tenant, _)| *tenant).map(|tenant| self.tenants.remove(&tenant));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Who goes first, and how often each begins, of tenants that wait all the time and use so many milliseconds each time.
    fn order(turns: &mut Turns, tenants: &[(u32, u32)], count: usize) -> Vec<u32> {
        tenants.iter().for_each(|(tenant, _)| turns.wait(*tenant));
        let mut order = Vec::new();
        for _ in 0..count {
            let (tenant, ms) = *tenants.iter().find(|(tenant, _)| turns.begins(*tenant)).expect("somebody is next");
            order.push(tenant);
            turns.end(tenant, ms * MS);
            turns.wait(tenant);
        }
        tenants.iter().for_each(|(tenant, _)| turns.leave(*tenant));
        order
    }

    fn turns(at_once: usize) -> Turns {
        FairTurns::new(at_once).state.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn tenants_have_equal_time() {
        assert_eq!(order(&mut turns(1), &[(1, 30), (2, 10)], 8), [1, 2, 2, 2, 1, 2, 2, 2]);
    }

    /// The long load of another tenant had the devices alone for a minute, and for weeks before.
    #[test]
    fn who_comes_has_some_turns_first_and_then_as_many_as_others() {
        let mut turns = turns(1);
        order(&mut turns, &[(1, 500)], 100);
        let ordered = order(&mut turns, &[(1, 500), (2, 500)], 12);
        assert_eq!(ordered, [2, 2, 2, 2, 2, 1, 2, 1, 2, 1, 2, 1]);
        // Nor does it get that again by going and coming back.
        let ordered = order(&mut turns, &[(1, 500), (2, 500)], 6);
        assert_eq!(ordered.iter().filter(|tenant| **tenant == 2).count(), 3, "{ordered:?}");
    }

    #[test]
    fn a_turn_goes_on_until_somebody_waits_who_had_less() {
        let mut turns = turns(1);
        turns.wait(1);
        assert!(turns.begins(1));
        assert!(turns.goes_on(1, 5000 * MS), "nobody waits");
        turns.wait(2);
        assert!(!turns.begins(2) && !turns.goes_on(1, MS));
        turns.end(1, Duration::ZERO);
        turns.wait(1);
        assert!(!turns.begins(1) && turns.begins(2));
        assert!(turns.goes_on(2, MS), "it had less");
        assert!(!turns.goes_on(2, 3000 * MS));
    }

    #[test]
    fn a_tenant_has_one_turn_at_a_time() {
        let mut turns = turns(2);
        (0..3).for_each(|_| turns.wait(1));
        assert!(turns.begins(1) && !turns.begins(1));
        turns.wait(2);
        assert!(turns.begins(2), "another tenant has the other one");
        turns.wait(3);
        assert!(!turns.begins(3), "there are two");
        turns.end(1, MS);
        assert!(!turns.begins(1) && turns.begins(3));
    }

    #[test]
    fn tenants_without_a_turn_are_not_kept_for_ever() {
        let mut turns = turns(1);
        for tenant in 0..2000 {
            order(&mut turns, &[(tenant, 100)], 1);
        }
        assert_eq!(turns.tenants.len(), KEPT_MAX);
        order(&mut turns, &[(0, 1000)], 6);
        assert_eq!(turns.tenants.len(), 1, "the others are as new ones");
    }

    #[test]
    fn who_waits_may_give_up() {
        let turns = FairTurns::new(1);
        let mut first = turns.of(1);
        assert_eq!(first.take(&|| false), Ok(()));
        assert_eq!(turns.of(2).take(&|| true), Err(Cancelled));
        assert_eq!(first.take(&|| false), Ok(()), "nobody waits any more");
        drop(first);
        assert_eq!(turns.of(2).take(&|| true), Ok(()), "it need not wait");
    }

    #[test]
    fn whoever_waits_hears_that_a_turn_is_over() {
        let turns = FairTurns::new(1);
        let mut first = turns.of(1);
        assert_eq!(first.take(&|| false), Ok(()));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| turns.of(2).take(&|| false));
            while turns.lock().next().is_none() {
                std::thread::yield_now();
            }
            drop(first);
            assert_eq!(second.join().expect("it does not panic"), Ok(()));
        });
    }
}

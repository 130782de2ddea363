//! Limits of a tenant, or of one of its models: calls in flight, calls that wait, share of device
//! time.
//!
//! Only the limits and the share's account are here; `calls` and `queue` count. The share is
//! charged with the device time of tasks that have ended and the processor time of plugin calls.
//! Tasks in flight are charged when they end, so a user may be a tenth of a second ahead of its
//! share.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cellwright_serving::CallBounds;

use crate::limits::{Limit, LimitReached};

/// How far ahead of its share a tenant or model may be: tasks in flight are charged when they end,
/// so it cannot be zero.
const AHEAD: Duration = Duration::from_millis(100);

/// Bounds that may be set anew at any time.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    in_flight_max: AtomicU32,
    queued_max: AtomicU32,
    /// In millionths; 0: no bound.
    device_share: AtomicU64,
    used: Mutex<ShareAccount>,
}

/// What was used of the devices beyond a share: a bucket that leaks at the rate at which they may
/// be used.
#[derive(Debug, Default)]
struct ShareAccount {
    last: Option<(Instant, u64)>,
    over_ns: u64,
}

/// A share of the devices is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareUsed {
    /// How long until they may be used again, if nothing runs meanwhile.
    pub(crate) wait: Duration,
    percent: u32,
}

impl ShareUsed {
    /// The refusal of a call that may not wait for it.
    pub(crate) const fn of(self, limit: Limit) -> LimitReached {
        limit.reached(self.percent as u64)
    }
}

impl Bounds {
    pub(crate) fn set(&self, settings: &CallBounds) {
        // In the order in which `calls` and `queue` read their counters.
        self.in_flight_max.store(settings.in_flight_max, Ordering::SeqCst);
        self.queued_max.store(settings.queued_max, Ordering::Relaxed);
        let millionths = settings.device_share.map_or(0.0, |share| (share * 1e6).clamp(1.0, 1e6));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a million")]
        let before = self.device_share.swap(millionths as u64, Ordering::Relaxed);
        if before == 0 || millionths == 0.0 {
            // What is used without a bound is not held against the next one.
            self.used.lock().unwrap_or_else(PoisonError::into_inner).last = None;
        }
    }

    pub(crate) fn in_flight_max(&self) -> u32 {
        self.in_flight_max.load(Ordering::SeqCst)
    }

    pub(crate) fn queued_max(&self) -> u32 {
        self.queued_max.load(Ordering::Relaxed)
    }

    /// Whether the devices may be used, of which there are so many and which have been used for so
    /// long (`used_ns`: asked only if there is a bound).
    pub(crate) fn check_share(&self, now: Instant, devices: u64, used_ns: impl FnOnce() -> u64) -> Result<(), ShareUsed> {
        let millionths = self.device_share.load(Ordering::Relaxed);
        if millionths == 0 {
            return Ok(());
        }
        let mut account = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = account.room_in(now, used_ns(), millionths.saturating_mul(devices));
        if wait.is_zero() {
            return Ok(());
        }
        Err(ShareUsed { wait, percent: u32::try_from(millionths.div_ceil(10_000)).unwrap_or(u32::MAX) })
    }
}

impl ShareAccount {
    /// How long until there is room; nothing if there is. `used`: time so far, in nanoseconds, of
    /// which it never becomes less. `millionths`: of one device, at least 1.
    fn room_in(&mut self, now: Instant, used: u64, millionths: u64) -> Duration {
        let may_use = |time: Duration| time.as_nanos().saturating_mul(u128::from(millionths)) / 1_000_000;
        if let Some((then, before)) = self.last {
            let used = u128::from(self.over_ns) + u128::from(used.saturating_sub(before));
            let over = used.saturating_sub(may_use(now.saturating_duration_since(then)));
            self.over_ns = u64::try_from(over).unwrap_or(u64::MAX);
        }
        self.last = Some((now, used));
        let beyond = u128::from(self.over_ns).saturating_sub(may_use(AHEAD));
        Duration::from_nanos(u64::try_from(beyond.saturating_mul(1_000_000).div_ceil(u128::from(millionths))).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_devices_leaks_away_at_its_rate() {
        let mut account = ShareAccount::default();
        let (start, half) = (Instant::now(), 500_000);
        let at = |ms: u64| start + Duration::from_millis(ms);
        let ns = |ms: u64| ms * 1_000_000;
        let mut room_in = |now: u64, used: u64| account.room_in(at(now), ns(used), half);
        assert_eq!(room_in(0, 7), Duration::ZERO);
        // A second at half a device is 500 ms; 50 more may be ahead.
        assert_eq!(room_in(1000, 7 + 550), Duration::ZERO);
        assert_eq!(room_in(1000, 7 + 551), Duration::from_millis(2));
        assert_eq!(room_in(1002, 7 + 551), Duration::ZERO);
        // A new version counts from nothing.
        assert_eq!(room_in(1100, 0), Duration::ZERO);
        assert!(!room_in(1100, 200).is_zero());
    }

    #[test]
    fn without_a_share_nothing_is_reckoned() {
        let bounds = Bounds::default();
        let check = |used: u64| bounds.check_share(Instant::now(), 1, || used);
        assert_eq!(bounds.check_share(Instant::now(), 1, || unreachable!("nobody asks")), Ok(()));
        bounds.set(&CallBounds { in_flight_max: 1, queued_max: 0, device_share: Some(0.015) });
        assert_eq!(check(0), Ok(()));
        assert!(matches!(check(1 << 40), Err(ShareUsed { percent: 2, .. })));
    }

    #[test]
    fn what_is_used_without_a_bound_is_not_held_against_the_next() {
        let bounds = Bounds::default();
        let share = |device_share| bounds.set(&CallBounds { in_flight_max: 1, queued_max: 0, device_share });
        let check = |used: u64| bounds.check_share(Instant::now(), 1, || used);
        share(Some(0.5));
        assert_eq!(check(0), Ok(()));
        share(None);
        share(Some(0.5));
        assert_eq!(check(1 << 40), Ok(()));
        assert!(check(2 << 40).is_err());
    }
}

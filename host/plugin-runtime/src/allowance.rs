//! How long one call may run, counted in the processor time of its thread.
//!
//! On a busy machine an honest call may wait for longer than it may run, and waiting is not its
//! fault. Real time bounds a call too, at twenty times its processor time, so nothing runs for
//! ever. The clocks are read when a call meets the engine's tick, never when it begins. So a call
//! that ends before its first tick pays nothing, and its time before that tick is free.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::error::LimitReached;

/// A call may take this many times its limit in real time, whatever of that it ran.
const REAL_TIME_FACTOR: u32 = 20;

/// What a call may use, and from when that is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    limit: Duration,
    begin: Option<Reading>,
}

/// What the clocks show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Processor time of this thread.
    processor: Duration,
    real: Duration,
}

impl Reading {
    pub(crate) fn now() -> Self {
        Self { processor: processor_time(), real: Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default() }
    }
}

/// Processor time that the calling thread has used, counted from when it pleases: for what several calls of a plugin take together.
#[must_use]
pub fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

impl Allowance {
    /// For a call that begins.
    pub(crate) const fn new(limit: Duration) -> Self {
        Self { limit, begin: None }
    }

    /// How much longer the call may certainly run; the first time that this is asked, all of it.
    ///
    /// # Errors
    ///
    /// It has run, or been waiting to run, for as long as it may.
    pub(crate) fn left(&mut self, now: Reading) -> Result<Duration, LimitReached> {
        let begin = *self.begin.get_or_insert(now);
        let (used, took) = (now.processor.saturating_sub(begin.processor), now.real.saturating_sub(begin.real));
        let real_max = self.limit.saturating_mul(REAL_TIME_FACTOR);
        if used >= self.limit {
            return Err(LimitReached::Time(self.limit));
        }
        if took >= real_max {
            return Err(LimitReached::RealTime(real_max));
        }
        // A thread runs no faster than real time passes, so that asking sooner would be in vain.
        Ok((self.limit - used).min(real_max - took))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    fn at(processor_ms: u64, real_ms: u64) -> Reading {
        Reading { processor: Duration::from_millis(processor_ms), real: Duration::from_millis(real_ms) }
    }

    /// What a call is told at each of these readings, in milliseconds left.
    fn told(readings: &[(u64, u64)]) -> Vec<Result<u128, LimitReached>> {
        let mut allowance = Allowance::new(LIMIT);
        readings.iter().map(|(processor, real)| allowance.left(at(*processor, *real)).map(|left| left.as_millis())).collect()
    }

    #[test]
    fn only_what_the_thread_ran_counts() {
        let busy = [(5000, 70_000), (5040, 70_100), (5099, 71_000), (5100, 71_100)];
        assert_eq!(told(&busy), [Ok(100), Ok(60), Ok(1), Err(LimitReached::Time(LIMIT))]);
    }

    #[test]
    fn real_time_ends_what_hardly_ran() {
        let starved = [(7, 1000), (8, 2950), (9, 2999), (9, 3000)];
        assert_eq!(told(&starved), [Ok(100), Ok(50), Ok(1), Err(LimitReached::RealTime(20 * LIMIT))]);
    }

    #[test]
    fn clocks_that_go_backwards_and_limits_without_end_do_no_harm() {
        assert_eq!(told(&[(50, 50), (40, 30)]), [Ok(100), Ok(100)]);
        assert_eq!(Allowance::new(Duration::MAX).left(at(1, 1)), Ok(Duration::MAX));
        assert_eq!(Allowance::new(Duration::ZERO).left(at(1, 1)), Err(LimitReached::Time(Duration::ZERO)));
    }

    #[test]
    fn the_clock_of_a_thread_counts_what_it_does() {
        let begin = Reading::now();
        while Reading::now().processor < begin.processor + Duration::from_millis(1) {}
        // The two clocks do not tick at exactly the same rate.
        assert!(Reading::now().real >= begin.real + Duration::from_micros(900));
    }
}

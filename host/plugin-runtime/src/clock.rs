//! The clock that ends calls which take too long.
//!
//! A thread advances the engine's epoch while guests run and sleeps while none does, so that an
//! idle host sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

/// How often running guests are looked at; limits on time are as fine as this.
const TICK: Duration = Duration::from_millis(2);

/// Ticks without a call after which the thread sleeps until there is one. Waking it takes a call longer than finding it awake, so that calls which come one
/// after the other hardly ever have to.
const QUIET_TICKS: u32 = 50;

/// Ticks as long as calls run.
pub(crate) struct Clock {
    calls: Arc<Calls>,
    thread: Thread,
}

#[derive(Default)]
struct Calls {
    running: AtomicUsize,
    /// Whether one began since the last tick.
    began: AtomicBool,
    /// Whether the thread has to be woken.
    asleep: AtomicBool,
    ended: AtomicBool,
}

/// A call, as long as it runs.
pub(crate) struct Running<'a>(&'a Calls);

impl Clock {
    /// Starts the thread, which does `tick` each time and ends when the clock is dropped.
    ///
    /// # Errors
    ///
    /// The system starts no thread.
    pub(crate) fn start(tick: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let calls = Arc::new(Calls::default());
        let told = Arc::clone(&calls);
        let spawned = thread::Builder::new().name("plugin-epoch".to_owned()).spawn(move || told.tick(tick))?;
        Ok(Self { calls, thread: spawned.thread().clone() })
    }

    /// A call begins, and ends when what this returns is dropped.
    pub(crate) fn run(&self) -> Running<'_> {
        self.calls.began.store(true, Ordering::Relaxed);
        // Either this thread sees that the other sleeps, or that one sees the call before it does.
        self.calls.running.fetch_add(1, Ordering::SeqCst);
        if self.calls.asleep.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        Running(&self.calls)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.calls.ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Calls {
    fn tick(&self, tick: impl Fn()) {
        let mut quiet = 0;
        while !self.ended.load(Ordering::SeqCst) {
            tick();
            let had_any = self.began.swap(false, Ordering::Relaxed) || self.running.load(Ordering::Relaxed) > 0;
            quiet = if had_any { 0 } else { quiet + 1 };
            if quiet < QUIET_TICKS {
                thread::sleep(TICK);
            } else {
                self.sleep();
                quiet = 0;
            }
        }
    }

    /// Sleeps until a call begins.
    fn sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        while self.running.load(Ordering::SeqCst) == 0 && !self.began.load(Ordering::Relaxed) && !self.ended.load(Ordering::SeqCst) {
            thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// The ticks after which that time has certainly passed.
pub(crate) fn ticks(time: Duration) -> u64 {
    let ticks = time.as_nanos().div_ceil(TICK.as_nanos()).saturating_add(1);
    // Far below what would overflow when the engine adds it to the present epoch.
    u64::try_from(ticks).unwrap_or(u64::MAX).min(1 << 40)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    /// A clock and what counts its ticks.
    fn counted() -> (Clock, Arc<AtomicU64>) {
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        (Clock::start(move || _ = counted.fetch_add(1, Ordering::SeqCst)).unwrap(), count)
    }

    /// Whether that comes true before anybody would have given up.
    fn comes_true(it: impl Fn() -> bool) -> bool {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(20) {
            if it() {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
        false
    }

    fn is_asleep(clock: &Clock) -> bool {
        clock.calls.asleep.load(Ordering::SeqCst)
    }

    #[test]
    fn it_sleeps_where_nothing_runs_and_ticks_again_for_whoever_does() {
        let (clock, count) = counted();
        for _ in 0..3 {
            assert!(comes_true(|| is_asleep(&clock)), "nothing runs, and it ticks");
            let slept_at = count.load(Ordering::SeqCst);
            thread::sleep(4 * TICK);
            assert_eq!(count.load(Ordering::SeqCst), slept_at, "it ticks in its sleep");
            let running = clock.run();
            assert!(comes_true(|| count.load(Ordering::SeqCst) > slept_at + 2 * u64::from(QUIET_TICKS)), "a call runs, and it sleeps");
            assert!(!is_asleep(&clock));
            drop(running);
        }
    }

    #[test]
    fn calls_that_begin_as_it_falls_asleep_are_seen() {
        let (clock, count) = counted();
        for _ in 0..20 {
            assert!(comes_true(|| is_asleep(&clock)));
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| drop(clock.run()));
                }
            });
            let before = count.load(Ordering::SeqCst);
            let _running = clock.run();
            assert!(comes_true(|| count.load(Ordering::SeqCst) > before));
        }
    }

    #[test]
    fn its_thread_ends_with_it_asleep_or_not() {
        let (clock, _) = counted();
        assert!(comes_true(|| is_asleep(&clock)));
        for clock in [clock, counted().0] {
            let calls = Arc::downgrade(&clock.calls);
            drop(clock);
            assert!(comes_true(|| calls.strong_count() == 0));
        }
    }

    #[test]
    fn ticks_never_cut_a_limit_short_and_never_overflow() {
        assert_eq!(ticks(Duration::from_millis(100)), 51);
        assert_eq!(ticks(Duration::ZERO), 1);
        assert_eq!(ticks(Duration::MAX), 1 << 40);
    }
}

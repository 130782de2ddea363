//! Waiting until an exact moment.
//!
//! The executor's own clock ticks in milliseconds, too coarse for a server that answers in a tenth of one. The kernel's timers are exact, but a thread that
//! slept until one needs some tens of microseconds to run again on an idle virtual processor, and that would count as the server's latency. So a timer is
//! set to end a moment early, and the rest is waited for awake: a small part of the time between arrivals, because on a small machine the server needs the
//! CPU time. Where arrivals are that close, the processors do not sleep anyway.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
use tokio::io::unix::AsyncFd;

/// Waking takes no longer than this, mostly.
const WAKING: Duration = Duration::from_micros(60);

/// At most one part in so many of the time between arrivals is waited for awake.
const AWAKE_SHARE: u32 = 16;

/// A timer of one thread.
#[derive(Debug)]
pub(crate) struct Timer {
    kernel: AsyncFd<OwnedFd>,
    /// How long the last part of a wait is, which is spent awake.
    awake: Duration,
}

impl Timer {
    /// A timer for the executor on this thread, for moments that are so far from each other on average.
    pub(crate) fn new(distance: Duration) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe for the sake of descriptors that change or close; an `OwnedFd` does neither while it lives"
        )]
        let kernel = AsyncFd::new(timer)?;
        Ok(Self { kernel, awake: WAKING.min(distance / AWAKE_SHARE) })
    }

    /// Waits until then; a moment that has passed is not waited for.
    pub(crate) async fn until(&self, instant: Instant) -> io::Result<()> {
        loop {
            let left = instant.saturating_duration_since(Instant::now());
            if left <= self.awake {
                while Instant::now() < instant {
                    // Answers are still read meanwhile.
                    tokio::task::yield_now().await;
                }
                return Ok(());
            }
            let left = left - self.awake;
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            let value = Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
            timerfd_settime(&self.kernel, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: none, it_value: value })?;
            let mut expired = self.kernel.readable().await?;
            // How often it has expired, which must be read before it can be seen to expire again.
            let read = expired.try_io(|timer| rustix::io::read(timer, &mut [0; 8]).map_err(io::Error::from));
            if let Ok(read) = read {
                read?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_neither_wakes_early_nor_a_tick_late() {
        let timer = Timer::new(Duration::from_millis(1)).unwrap();
        let mut late: Vec<Duration> = Vec::new();
        for wait_us in [0, 30, 300, 1500, 100] {
            for _ in 0..20 {
                let instant = Instant::now() + Duration::from_micros(wait_us);
                timer.until(instant).await.unwrap();
                let now = Instant::now();
                assert!(now >= instant, "woke {:?} early", instant - now);
                late.push(now.saturating_duration_since(instant));
            }
        }
        // Half of them at least, since other work on the machine delays some.
        late.sort();
        assert!(late[late.len() / 2] < Duration::from_micros(700), "{late:?}");
    }
}

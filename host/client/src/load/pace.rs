//! Waiting until an exact moment.
//!
//! The executor's own clock ticks in milliseconds, too coarse for a server that answers in a tenth of one. The kernel's timers are exact, and waiting for
//! one costs no CPU time, which on a small machine the server needs.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
use tokio::io::unix::AsyncFd;

/// Arming a timer takes about so long.
const SHORT: Duration = Duration::from_micros(5);

/// A timer of one thread.
#[derive(Debug)]
pub(crate) struct Timer {
    kernel: AsyncFd<OwnedFd>,
}

impl Timer {
    /// A timer for the executor on this thread.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe for the sake of descriptors that change or close; an `OwnedFd` does neither while it lives"
        )]
        let kernel = AsyncFd::new(timer)?;
        Ok(Self { kernel })
    }

    /// Waits until then; a moment that has passed is not waited for.
    pub(crate) async fn until(&self, instant: Instant) -> io::Result<()> {
        loop {
            let left = instant.saturating_duration_since(Instant::now());
            if left < SHORT {
                return Ok(());
            }
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
        let timer = Timer::new().unwrap();
        let mut late: Vec<Duration> = Vec::new();
        for wait_us in [0, 30, 300, 1500, 100] {
            for _ in 0..20 {
                let instant = Instant::now() + Duration::from_micros(wait_us);
                timer.until(instant).await.unwrap();
                let now = Instant::now();
                assert!(now + SHORT >= instant, "woke {:?} early", instant - now);
                late.push(now.saturating_duration_since(instant));
            }
        }
        // Half of them at least, since other work on the machine delays some.
        late.sort();
        assert!(late[late.len() / 2] < Duration::from_micros(700), "{late:?}");
    }
}

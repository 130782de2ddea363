//! How long a device is waited for before it is given up.
//!
//! A device that is gone says so. A device on which a kernel never ends, or whose firmware hangs,
//! reports "not ready" for ever. After [`WAIT_MAX`] its worker or driver treats it as lost, like
//! one that says so. The engine hears of it first. The driver then ends without any call that could
//! wait, and leaves its memory on the device until the process ends.

use std::time::{Duration, Instant};

/// How long what was queued first may take where nobody says otherwise. The engine keeps a task to milliseconds and its longest row to a quarter of a second, a few tasks
/// are queued in front of it, and the longest that a load waits for, a table by token, is given two seconds. Ten times that is left to a device that serves
/// other processes as well, or that is looked at by a debugger.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// What the time between two looks counts for, at most: where nobody looked (the process was stopped, its thread had a cell to load), the device may have done what is
/// waited for long ago.
const GAP_MAX: Duration = Duration::from_secs(1);

/// Somebody who looks again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    waited: Duration,
    looked: Instant,
}

impl Waiting {
    pub(crate) const fn since(now: Instant) -> Self {
        Self { waited: Duration::ZERO, looked: now }
    }

    /// Looks now: how long it has been.
    pub(crate) fn look(&mut self, now: Instant) -> Duration {
        self.waited += now.saturating_duration_since(self.looked).min(GAP_MAX);
        self.looked = now;
        self.waited
    }
}

/// Why a device is given up that was waited for so long.
pub(crate) fn endless(waited: Duration) -> String {
    format!("what was queued first has not ended within {:.1} s, so that it is waited for no longer", waited.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_while_somebody_looks() {
        let began = Instant::now();
        let at = |milliseconds| began + Duration::from_millis(milliseconds);
        let mut waiting = Waiting::since(began);
        let waited = [at(0), at(20), at(500), at(1400), at(1400)].map(|now| waiting.look(now).as_millis());
        assert_eq!(waited, [0, 20, 500, 1400, 1400]);
        // Nobody looked for an hour, and whoever looks twice then has waited a moment longer.
        let waited = [at(3_601_400), at(3_601_410)].map(|now| waiting.look(now).as_millis());
        assert_eq!(waited, [2400, 2410]);
        assert_eq!(waiting.look(began).as_millis(), 2410, "clocks that disagree take nothing back");
    }

    #[test]
    fn it_is_said_how_long_it_was() {
        assert!(endless(Duration::from_millis(30_012)).contains("has not ended within 30.0 s"));
    }
}

//! Waiting for a device's signals: how soon it is looked at again, when it is asked whether it is still there, and when it is given up.
//!
//! Whoever waits does so for the oldest signal that is not there yet, so that each has its own time, however many are queued.

use std::time::{Duration, Instant};

use cellwright_backend::{DeviceLost, Progress};

use super::device::Device;
use crate::driver::waiting::{Waiting, endless};

/// How long a look at the signal is followed by another one at once, how long the pauses are afterwards, and for how long all that goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) spin: Duration,
    pub(super) pause: Duration,
    pub(super) most: Duration,
}

/// Looks at the signal between two questions whether the device is still there.
const LOOKS: u32 = 256;

/// A signal that somebody waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    number: u64,
    waiting: Waiting,
    looks: u32,
}

impl Watch {
    pub(super) fn of(number: u64) -> Self {
        Self { number, waiting: Waiting::since(Instant::now()), looks: 0 }
    }
}

impl Device {
    /// Whether a signal is there, and what whoever waits for it does until they look again. No call of the driver waits.
    pub(super) fn progress(&mut self, number: u64) -> Result<Progress, DeviceLost> {
        if self.is_done(number) {
            return Ok(Progress::Complete);
        }
        let mut watch = self.watch.take().filter(|watch| watch.number == number).unwrap_or_else(|| Watch::of(number));
        let progress = self.look_again(&mut watch);
        self.watch = Some(watch);
        progress
    }

    /// How soon whoever has found that signal not to be there looks again.
    pub(super) fn look_again(&mut self, watch: &mut Watch) -> Result<Progress, DeviceLost> {
        let waited = watch.waiting.look(Instant::now());
        watch.looks = watch.looks.wrapping_add(1);
        let is_patient = waited > self.patience.spin;
        if is_patient || watch.looks.is_multiple_of(LOOKS) {
            let there = self.driver.check();
            self.held(there)?;
        }
        if waited > self.patience.most {
            let cause = endless(waited);
            self.driver.give_up(&cause);
            return Err(self.lose(cause));
        }
        Ok(if is_patient { Progress::Later(self.patience.pause) } else { Progress::Soon })
    }

    /// Waits for a signal.
    pub(super) fn wait_for(&mut self, number: u64) -> Result<(), DeviceLost> {
        loop {
            match self.progress(number)? {
                Progress::Complete => return Ok(()),
                Progress::Soon => std::hint::spin_loop(),
                Progress::Later(pause) => std::thread::sleep(pause),
            }
        }
    }
}

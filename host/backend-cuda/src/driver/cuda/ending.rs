//! Waiting for a device, and how a driver ends: what goes with it, what it leaves to its peers, and what it leaves as it is.
//!
//! The driver's own waits have no end where the device's work has none. So streams are asked whether they are through, and what would wait for them is called when they are.
//! Of a device that is lost, or that nobody waits for any more, nothing is given back at all: a call for that might wait for ever, and what is queued
//! there may use it yet. The process's end gives back all of it.

use std::mem::{forget, take};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cudarc::driver::sys;

use super::CudaDriver;
use crate::driver::waiting::{Waiting, endless};
use crate::driver::{Done, Fault};

/// How long a stream is asked again at once, and how long the pauses are afterwards.
const SPIN: Duration = Duration::from_micros(200);
const PAUSE: Duration = Duration::from_micros(20);

impl CudaDriver {
    /// Remembers that the device is lost, and why it was first.
    pub(super) fn lose(&mut self, cause: &str) {
        self.lost.get_or_insert_with(|| cause.to_owned());
        self.stays.store(true, Ordering::Release);
        self.shared.lose();
    }

    /// Waits until all has run that is queued on these streams.
    pub(super) fn settle(&mut self, streams: &[sys::CUstream]) -> Done {
        let mut waiting = Waiting::since(Instant::now());
        for stream in streams {
            // SAFETY: a stream of this driver.
            let ask = || unsafe { sys::cuStreamQuery(*stream) };
            let mut told = ask();
            while told == sys::CUresult::CUDA_ERROR_NOT_READY {
                self.linger(&mut waiting)?;
                told = ask();
            }
            self.call(told)?;
        }
        Ok(())
    }

    /// Waits a moment longer, unless it has been long enough.
    fn linger(&mut self, waiting: &mut Waiting) -> Done {
        let waited = waiting.look(Instant::now());
        if waited > self.wait_max {
            let cause = endless(waited);
            self.lose(&cause);
            return Err(Fault::Lost(cause));
        }
        if waited < SPIN {
            std::hint::spin_loop();
        } else {
            sleep(PAUSE);
        }
        Ok(())
    }

    /// Waits until all has run that is queued.
    pub(super) fn settle_all(&mut self) -> Done {
        self.enter()?;
        let streams = self.streams.clone();
        self.settle(&streams)
    }

    /// Leaves everything as it is.
    fn leave_all(&mut self, cause: &str) {
        self.lose(cause);
        // What it reads of its peers' memory it may be reading yet.
        forget(take(&mut self.reached));
        // Letting go of the device's context waits for what runs there, as giving back any of its memory does.
        forget(Arc::clone(&self.context));
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        if let Err(fault) = self.settle_all() {
            return self.leave_all(&fault.to_string());
        }
        // Whatever fails here fails because the device is lost; then there is nothing to give back.
        // SAFETY: handles of this driver, given back once, after all that was queued has run.
        unsafe {
            for graph in self.graphs.drain(..).filter(|graph| !graph.is_null()) {
                let _ = sys::cuGraphExecDestroy(graph);
            }
            for event in self.events.drain(..) {
                let _ = sys::cuEventDestroy_v2(event);
            }
            for stream in self.streams.drain(..) {
                let _ = sys::cuStreamDestroy_v2(stream);
            }
            for module in self.own_modules().chain([self.module]) {
                let _ = sys::cuModuleUnload(module);
            }
        }
        self.shared.leave(take(&mut self.allocations));
    }
}

//! Which launches an emulated device takes.

use super::device::Work;
use super::{Emulated, Loaded, kernels};
use crate::driver::{Done, Fault, Kernel, Launch};

/// What a kernel's arguments may take.
const ARGUMENT_BYTES_MAX: usize = 4096;

/// Threads that a multiprocessor has at once.
const THREADS_RESIDENT: u32 = 2048;

/// Shared memory that each block takes for itself.
const BLOCK_SHARED_BYTES: u32 = 1 << 10;

impl Emulated {
    /// A launch as it is queued, if a device would take it.
    pub(super) fn checked(&self, launch: &Launch, arguments: &[u8]) -> Done<Work> {
        let Some(loaded) = self.kernels.get(launch.kernel.0 as usize).copied().filter(|loaded| !loaded.is_released) else {
            return Err(Fault::Refused("a kernel of another driver is launched".to_owned()));
        };
        let Loaded { name, compiled, argument_bytes: takes, .. } = loaded;
        let refused = |why: String| Err(Fault::Refused(format!("kernel `{name}`: {why}")));
        if arguments.len() != takes || takes > ARGUMENT_BYTES_MAX {
            return refused(format!("takes {takes} bytes of arguments (at most {ARGUMENT_BYTES_MAX}), got {}", arguments.len()));
        }
        let [x, y, z] = launch.grid;
        if x == 0 || x > i32::MAX as u32 || [y, z].iter().any(|side| !(1..=65535).contains(side)) || !(1..=1024).contains(&launch.threads) {
            return refused(format!("cannot have a grid of {x} x {y} x {z} blocks of {} threads", launch.threads));
        }
        if launch.shared_bytes > self.facts.shared_bytes_max {
            return refused(format!("asks for {} bytes of shared memory, there are {}", launch.shared_bytes, self.facts.shared_bytes_max));
        }
        if launch.cooperative {
            if self.device.state()?.faults.cooperation_fails() {
                return refused("its blocks cannot run at once for now".to_owned());
            }
            let most = self.resident(launch.kernel, launch.threads, launch.shared_bytes)?;
            if u64::from(x) * u64::from(y) * u64::from(z) > u64::from(most) {
                return refused(format!("{x} x {y} x {z} blocks are to wait for one another, {most} run at once"));
            }
        } else if kernels::is_cooperative(name) {
            return refused("its blocks wait for one another, but need not run at once".to_owned());
        }
        let cluster = kernels::cluster(name);
        if x % cluster != 0 {
            return refused(format!("a grid of {x} blocks, which are no whole clusters of {cluster}"));
        }
        Ok(Work::Launch { name, compiled, launch: *launch, arguments: arguments.to_vec() })
    }

    /// How many blocks run at once.
    pub(super) fn resident(&self, kernel: Kernel, threads: u32, shared_bytes: u32) -> Done<u32> {
        self.device.check()?;
        if kernel.0 as usize >= self.kernels.len() {
            return Err(Fault::Refused("a kernel of another driver is named".to_owned()));
        }
        if !self.cooperates {
            return Ok(0);
        }
        // Registers are not counted: nobody here knows how many a kernel takes.
        let by_threads = THREADS_RESIDENT / threads.max(1);
        let by_memory = (self.facts.shared_bytes_max + BLOCK_SHARED_BYTES) / (shared_bytes + BLOCK_SHARED_BYTES);
        Ok(self.facts.multiprocessors * by_threads.min(by_memory))
    }
}

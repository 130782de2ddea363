//! Where a helper wakes up: not on the processor of the thread that calls it.
//!
//! In a virtual machine (seen under KVM) Linux prefers the waker's processor to an idle one whose
//! virtual processor is halted. Probably it cannot tell whether that one would get a processor of
//! its own (`available_idle_cpu`). A helper that was asleep would then wait behind its caller,
//! beside an idle processor, and be asleep again by the next job.
//!
//! So a worker that wakes a helper first removes its own processor from the helper's set. The
//! helper restores the set as soon as it runs. To the system the set is then an explicit choice: if
//! a container is given more processors later, a helper may not use all of them.

#[cfg(target_os = "linux")]
pub(super) use linux::Whereabouts;

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

    use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// A helper, as the system calls it, and where it may be. What the system refuses stays as it is.
    #[derive(Debug, Default)]
    pub(in crate::team) struct Whereabouts(Mutex<Helper>);

    #[derive(Debug, Default)]
    struct Helper {
        thread: Option<Pid>,
        /// From which processor it is kept away, and all that it may be on otherwise.
        kept_from: Option<(usize, CpuSet)>,
    }

    impl Whereabouts {
        /// It is the calling thread.
        pub(in crate::team) fn begin(&self) {
            self.lock().thread = Some(gettid());
        }

        /// It is about to be woken, if it sleeps, and not here.
        pub(in crate::team) fn keep_away(&self, asleep: &AtomicBool) {
            let mut helper = match self.0.try_lock() {
                Ok(helper) => helper,
                Err(TryLockError::Poisoned(helper)) => helper.into_inner(),
                // It is awake: nobody else looks, and nothing is waited for here.
                Err(TryLockError::WouldBlock) => return,
            };
            // Who wakes says so before taking the lock, so that what is done here while it was asleep is undone by it.
            if !asleep.load(Ordering::SeqCst) {
                return;
            }
            // Without a name it has not begun to live, and is wherever it was put.
            let (Some(thread), here) = (helper.thread, sched_getcpu()) else { return };
            let anywhere = match helper.kept_from {
                Some((processor, _)) if processor == here => return,
                Some((_, anywhere)) => anywhere,
                None => match sched_getaffinity(Some(thread)) {
                    Ok(anywhere) => anywhere,
                    Err(_) => return,
                },
            };
            let mut elsewhere = anywhere;
            elsewhere.unset(here);
            if elsewhere.count() > 0 && elsewhere != anywhere && sched_setaffinity(Some(thread), &elsewhere).is_ok() {
                helper.kept_from = Some((here, anywhere));
            }
        }

        /// It is awake, has said so, and may be wherever it might before.
        pub(in crate::team) fn anywhere(&self) {
            let mut helper = self.lock();
            if let Some((_, anywhere)) = helper.kept_from.take() {
                let _ = sched_setaffinity(helper.thread, &anywhere);
            }
        }

        fn lock(&self) -> MutexGuard<'_, Helper> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

/// Other systems put helpers where they like.
#[cfg(not(target_os = "linux"))]
#[derive(Debug, Default)]
pub(super) struct Whereabouts;

#[cfg(not(target_os = "linux"))]
impl Whereabouts {
    pub(super) fn begin(&self) {}

    pub(super) fn keep_away(&self, _asleep: &std::sync::atomic::AtomicBool) {}

    pub(super) fn anywhere(&self) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::thread::sched_getcpu;

    use super::*;
    use crate::topology::Processors;

    #[test]
    fn who_is_called_is_elsewhere_and_then_anywhere() {
        let (helper, turn, asleep) = (Whereabouts::default(), Barrier::new(2), AtomicBool::new(true));
        // It has no name yet.
        helper.keep_away(&asleep);
        let here = Processors::new([sched_getcpu()]);
        here.keep_thread();
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                // A thread begins where it may be that began it.
                let all = Processors::new(0..1024);
                all.keep_thread();
                let before = Processors::allowed();
                helper.begin();
                turn.wait();
                turn.wait();
                let called = Processors::allowed();
                asleep.store(false, Ordering::SeqCst);
                helper.anywhere();
                turn.wait();
                turn.wait();
                (before, called, Processors::allowed())
            });
            turn.wait();
            helper.keep_away(&asleep);
            // Nor does it matter how often it is called before it is awake.
            helper.keep_away(&asleep);
            turn.wait();
            turn.wait();
            // Who is awake is where it is.
            helper.keep_away(&asleep);
            turn.wait();
            let (before, called, after) = there.join().unwrap();
            let elsewhere = Processors::new(before.numbers().iter().copied().filter(|number| !here.numbers().contains(number)));
            // Where there is one processor, it stays there.
            assert_eq!(called, if elsewhere.numbers().is_empty() { before.clone() } else { elsewhere });
            assert_eq!(after, before);
        });
    }
}

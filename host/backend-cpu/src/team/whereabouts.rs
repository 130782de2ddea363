//! Where a helper wakes up: not on the processor of the thread that calls it, which has that one for as long as the job takes.
//!
//! Linux prefers the waker's processor to one whose virtual processor is halted, because it cannot tell whether that one has a processor of its own at the
//! moment (`available_idle_cpu`). So in a virtual machine with nothing else to do a helper that was asleep would be put where it has to wait, beside an idle
//! processor, until the caller has done its part; and asleep again by the next job.

#[cfg(target_os = "linux")]
pub(super) use linux::Whereabouts;

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::{Mutex, PoisonError};

    use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// A helper, as the system calls it, and where it may be. What the system refuses stays as it is.
    #[derive(Debug, Default)]
    pub(in crate::team) struct Whereabouts(Mutex<(Option<Pid>, Option<CpuSet>)>);

    impl Whereabouts {
        /// It is the calling thread.
        pub(in crate::team) fn begin(&self) {
            self.lock().0 = Some(gettid());
        }

        /// It is about to be woken, and not here.
        pub(in crate::team) fn keep_away(&self) {
            let (thread, allowed) = &mut *self.lock();
            // Without a name it has not begun to live, and is wherever it was put.
            let Some(thread) = *thread else { return };
            let Some(anywhere) = allowed.or_else(|| sched_getaffinity(Some(thread)).ok()) else { return };
            let mut elsewhere = anywhere;
            elsewhere.unset(sched_getcpu());
            if elsewhere.count() > 0 && elsewhere != anywhere && sched_setaffinity(Some(thread), &elsewhere).is_ok() {
                *allowed = Some(anywhere);
            }
        }

        /// It is awake, and may be wherever it might before.
        pub(in crate::team) fn anywhere(&self) {
            let (thread, allowed) = &mut *self.lock();
            if let Some(allowed) = allowed.take() {
                let _ = sched_setaffinity(*thread, &allowed);
            }
        }

        fn lock(&self) -> std::sync::MutexGuard<'_, (Option<Pid>, Option<CpuSet>)> {
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

    pub(super) fn keep_away(&self) {}

    pub(super) fn anywhere(&self) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Barrier;

    use rustix::thread::sched_getcpu;

    use super::*;
    use crate::topology::Processors;

    #[test]
    fn who_is_called_is_elsewhere_and_then_anywhere() {
        let (helper, turn) = (Whereabouts::default(), Barrier::new(2));
        // It has no name yet.
        helper.keep_away();
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
                helper.anywhere();
                (before, called, Processors::allowed())
            });
            turn.wait();
            helper.keep_away();
            // Nor does it matter how often it is called before it is awake.
            helper.keep_away();
            turn.wait();
            let (before, called, after) = there.join().unwrap();
            let elsewhere = Processors::new(before.numbers().iter().copied().filter(|number| !here.numbers().contains(number)));
            // Where there is one processor, it stays there.
            assert_eq!(called, if elsewhere.numbers().is_empty() { before.clone() } else { elsewhere });
            assert_eq!(after, before);
        });
    }
}

//! A worker's threads: the worker's own and helpers that wait, spinning for a moment and then asleep.
//!
//! A job is one closure that every thread calls with its number. There is no queue and no stealing: who does what is decided by number.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::topology::Processors;

/// How often a waiting thread looks before it looks at the clock.
const LOOKS: u32 = 32;

type Job = dyn Fn(usize) + Sync;

struct Shared {
    /// Counts jobs; a helper that sees it move has work.
    generation: AtomicU32,
    /// The job, valid while `pending` is not zero.
    job: UnsafeCell<Option<*const Job>>,
    /// Helpers that have not finished it.
    pending: AtomicU32,
    /// One for each helper: it sleeps, or is about to.
    asleep: Vec<AtomicBool>,
    panicked: AtomicBool,
    ended: AtomicBool,
    /// How long a thread that waits spins.
    spin: Duration,
}

// SAFETY: `job` is written only while no helper works (`pending` is zero) and published by `generation`.
unsafe impl Sync for Shared {}
// SAFETY: the job behind the pointer is `Sync`, and outlives the helpers' use of it because `run` waits for them.
unsafe impl Send for Shared {}

/// The threads of one worker.
pub(crate) struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

impl Team {
    /// A team of so many threads, the caller's included; helpers without work spin for a while before they sleep. They keep to those processors, if any
    /// are named.
    pub(crate) fn new(threads: usize, spin: Duration, processors: Option<&Processors>) -> std::io::Result<Self> {
        let helpers = threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            generation: AtomicU32::new(0),
            job: UnsafeCell::new(None),
            pending: AtomicU32::new(0),
            asleep: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            spin,
        });
        let mut team = Self { shared: shared.clone(), helpers: Vec::new() };
        for helper in 0..helpers {
            let shared = shared.clone();
            let processors = processors.cloned();
            let work = move || {
                // Before it touches any memory, which is then near to it.
                if let Some(processors) = processors {
                    processors.keep_thread();
                }
                help(&shared, helper);
            };
            team.helpers.push(std::thread::Builder::new().name(format!("cpu-helper-{helper}")).spawn(work)?);
        }
        Ok(team)
    }

    pub(crate) fn size(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `job` once with each number below the team's size, on as many threads, and returns when all have returned.
    ///
    /// # Panics
    /// If the job panics on any thread.
    pub(crate) fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        if self.helpers.is_empty() {
            return job(0);
        }
        // SAFETY: only the lifetime changes; the pointer is not used after this function returns, because it waits until `pending` is zero.
        let job_pointer = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Job>(job) };
        // SAFETY: no helper reads the job now: `pending` was zero when the last `run` returned, and `&mut self` keeps others out.
        unsafe { *shared.job.get() = Some(job_pointer) };
        shared.pending.store(self.helpers.len() as u32, Ordering::Relaxed);
        shared.generation.fetch_add(1, Ordering::SeqCst);
        for (helper, asleep) in self.helpers.iter().zip(&shared.asleep) {
            if asleep.load(Ordering::SeqCst) {
                helper.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        while !spin_until(shared.spin, || shared.pending.load(Ordering::Acquire) == 0) {
            // A helper lost its core; it may need this one.
            std::thread::yield_now();
        }
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!shared.panicked.load(Ordering::Relaxed), "a helper thread panicked");
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // A helper's panic was reported by `run`.
            let _ = helper.join();
        }
    }
}

fn help(shared: &Shared, helper: usize) {
    let mut seen = 0;
    loop {
        seen = wait(shared, helper, seen);
        if shared.ended.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the generation moved, so the job was published before, and it stays valid until `pending` is counted down below.
        let outcome = unsafe { (*shared.job.get()).map(|job| catch_unwind(AssertUnwindSafe(|| (*job)(helper + 1)))) };
        if !matches!(outcome, Some(Ok(()))) {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.pending.fetch_sub(1, Ordering::Release);
    }
}

/// Waits until the generation is not `seen`, and says which it is.
fn wait(shared: &Shared, helper: usize, seen: u32) -> u32 {
    if spin_until(shared.spin, || shared.generation.load(Ordering::Acquire) != seen) {
        return shared.generation.load(Ordering::Acquire);
    }
    let asleep = &shared.asleep[helper];
    asleep.store(true, Ordering::SeqCst);
    loop {
        // Looked at after `asleep` was said, so that either this sees the new generation or `run` sees the sleeper.
        let generation = shared.generation.load(Ordering::SeqCst);
        if generation != seen {
            asleep.store(false, Ordering::Relaxed);
            return generation;
        }
        std::thread::park();
    }
}

/// Looks again and again for so long; whether it came true.
fn spin_until(limit: Duration, mut is_true: impl FnMut() -> bool) -> bool {
    let mut began = None;
    loop {
        for _ in 0..LOOKS {
            if is_true() {
                return true;
            }
            std::hint::spin_loop();
        }
        if began.get_or_insert_with(Instant::now).elapsed() >= limit {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_called_once_per_job_awake_or_asleep() {
        for threads in 1..=4 {
            let mut team = Team::new(threads, Duration::from_micros(50), None).unwrap();
            let counts: Vec<AtomicU32> = (0..threads).map(|_| AtomicU32::new(0)).collect();
            for round in 0..200_u32 {
                team.run(&|thread| {
                    counts[thread].fetch_add(1, Ordering::Relaxed);
                });
                if round % 50 == 0 {
                    // Long enough for helpers to fall asleep.
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == round + 1));
            }
        }
    }

    #[test]
    fn a_panic_on_a_helper_reaches_the_caller() {
        let mut team = Team::new(2, Duration::ZERO, None).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| team.run(&|thread| assert!(thread == 0, "helper"))));
        assert!(outcome.is_err());
    }
    #[cfg(target_os = "linux")]
    #[test]
    fn helpers_keep_to_their_processors() {
        let before = Processors::allowed();
        let last = Processors::new(before.numbers().last().copied());
        let mut team = Team::new(3, Duration::ZERO, Some(&last)).unwrap();
        let seen = std::sync::Mutex::new(vec![Processors::default(); 3]);
        team.run(&|thread| seen.lock().unwrap()[thread] = Processors::allowed());
        assert_eq!(seen.into_inner().unwrap(), [before, last.clone(), last]);
    }
}

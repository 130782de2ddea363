//! A worker's threads: the worker's own and its helpers, which spin for a moment and then sleep.
//!
//! A job is one closure that is called with each thread's number, and the number decides who does
//! what. Helpers take denormal numbers for zeros, as the worker does. There is one exception: when the worker's own thread has done its part, it also does the
//! parts of helpers that have not begun. So it does not wait for a helper to wake up or to get a
//! processor. A helper that wakes up too late for its part waits for the end of the job, 2 ms at
//! most. Otherwise it would be asleep when the next job begins.
//!
//! Beside its own helpers a team may have guests for a while: helpers in place of threads of other
//! workers that have nothing to do (see `lending`).

mod whereabouts;

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::denormals;
use crate::lending::Borrower;
use crate::topology::Processors;

use whereabouts::Whereabouts;

/// How often a waiting thread looks before it looks at the clock.
const LOOKS: u32 = 32;

/// For how long a helper that is awake waits for the end of a job of which it has no part: otherwise it would be asleep, or waking, when the next one begins.
const LATE_MAX: Duration = Duration::from_millis(2);

type Job = dyn Fn(usize) + Sync;

struct Shared {
    /// Counts jobs, and says of the last one how many helpers it is for: see [`signal`].
    signal: AtomicU64,
    /// The job, valid while `pending` is not zero.
    job: UnsafeCell<Option<*const Job>>,
    /// Parts of it for helpers that are not finished.
    pending: AtomicU32,
    /// One for each helper: the signal of the last job of which its part was begun, by itself or for it.
    begun: Vec<AtomicU64>,
    /// One for each helper: it sleeps, or is about to.
    asleep: Vec<AtomicBool>,
    /// One for each helper.
    whereabouts: Vec<Whereabouts>,
    panicked: AtomicBool,
    ended: AtomicBool,
    /// How long a thread that waits spins.
    spin: Duration,
}

// SAFETY: `job` is written only while no helper works (`pending` is zero) and published by `signal`.
unsafe impl Sync for Shared {}
impl Shared {
    /// Whether nobody has begun a helper's part of a job before. Whoever is told so does it.
    fn begins(&self, helper: usize, signal: u64) -> bool {
        self.begun[helper].fetch_max(signal, Ordering::AcqRel) < signal
    }
}

/// A part is finished when this is dropped.
struct Done<'a>(&'a Shared);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Release);
    }
}

// SAFETY: the job behind the pointer is `Sync`, and outlives the helpers' use of it because `run` waits for them.
unsafe impl Send for Shared {}

/// Guests that a team may have at once: beyond, what there is to do is mostly too little to be shared.
pub(crate) const GUESTS_MAX: usize = 7;

/// The next job's number and how many helpers it is for, in one: a helper that reads it knows for sure whether it is waited for.
const fn signal(before: u64, helpers: usize) -> u64 {
    ((before >> HELPERS_BITS) + 1) << HELPERS_BITS | helpers as u64
}

const HELPERS_BITS: u32 = 16;

/// How many helpers a job is for.
const fn called(signal: u64) -> usize {
    (signal & ((1 << HELPERS_BITS) - 1)) as usize
}

/// The threads of one worker.
pub(crate) struct Team {
    shared: Arc<Shared>,
    /// Its own, and after them guests that have been there.
    helpers: Vec<JoinHandle<()>>,
    /// Its own threads, the caller's included.
    own: usize,
    /// Guests that are there now.
    guests: usize,
    /// Guests that may be there at once: as many as there are processors for, and threads to be had.
    pub(crate) guests_most: usize,
    pub(crate) borrower: Borrower,
    processors: Option<Processors>,
}

impl Team {
    /// A team of so many threads, the caller's included; helpers without work spin for a while before they sleep. They keep to those processors, if any
    /// are named.
    pub(crate) fn new(threads: usize, spin: Duration, processors: Option<&Processors>) -> std::io::Result<Self> {
        let own = threads.max(1);
        let shared = Arc::new(Shared {
            signal: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            pending: AtomicU32::new(0),
            begun: (1..own + GUESTS_MAX).map(|_| AtomicU64::new(0)).collect(),
            asleep: (1..own + GUESTS_MAX).map(|_| AtomicBool::new(false)).collect(),
            whereabouts: (1..own + GUESTS_MAX).map(|_| Whereabouts::default()).collect(),
            panicked: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            spin,
        });
        let here = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let here = processors.map_or(here, |processors| processors.numbers().len().min(here));
        let guests_most = GUESTS_MAX.min(here.saturating_sub(own));
        let mut team = Self {
            shared,
            helpers: Vec::new(),
            own,
            guests: 0,
            guests_most,
            borrower: Borrower::default(),
            processors: processors.cloned(),
        };
        (1..own).try_for_each(|_| team.hire())?;
        Ok(team)
    }

    /// One helper more.
    fn hire(&mut self) -> std::io::Result<()> {
        let (shared, processors, helper) = (self.shared.clone(), self.processors.clone(), self.helpers.len());
        let work = move || {
            // Before it touches any memory, which is then near to it.
            if let Some(processors) = processors {
                processors.keep_thread();
            }
            shared.whereabouts[helper].begin();
            help(&shared, helper);
        };
        self.helpers.push(std::thread::Builder::new().name(format!("cpu-helper-{helper}")).spawn(work)?);
        Ok(())
    }

    /// Its own threads.
    pub(crate) const fn own(&self) -> usize {
        self.own
    }

    /// Guests that are there.
    pub(crate) const fn guests(&self) -> usize {
        self.guests
    }

    /// So many guests are there from now on, but no more than may be; fewer, if the system has no more threads.
    pub(crate) fn set_guests(&mut self, guests: usize) {
        let wanted = guests.min(self.guests_most);
        while self.helpers.len() < self.own - 1 + wanted {
            if self.hire().is_err() {
                self.guests_most = self.helpers.len() + 1 - self.own;
                break;
            }
        }
        self.guests = wanted.min(self.guests_most);
    }

    /// Threads that work on a job.
    pub(crate) const fn size(&self) -> usize {
        self.own + self.guests
    }

    /// Calls `job` once with each number below the team's size, on as many threads at most, and returns when all have returned.
    ///
    /// # Panics
    /// If the job panics on any thread.
    pub(crate) fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        let helpers = self.size() - 1;
        if helpers == 0 {
            return job(0);
        }
        // SAFETY: only the lifetime changes; the pointer is not used after this function returns, because it waits until `pending` is zero.
        let job_pointer = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Job>(job) };
        // SAFETY: no helper reads the job now: `pending` was zero when the last `run` returned, and `&mut self` keeps others out.
        unsafe { *shared.job.get() = Some(job_pointer) };
        shared.pending.store(helpers as u32, Ordering::Relaxed);
        let signal = signal(shared.signal.load(Ordering::Relaxed), helpers);
        shared.signal.store(signal, Ordering::SeqCst);
        for (number, helper) in self.helpers[..helpers].iter().enumerate() {
            if shared.asleep[number].load(Ordering::SeqCst) {
                shared.whereabouts[number].keep_away(&shared.asleep[number]);
                helper.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| {
            job(0);
            for helper in (0..helpers).filter(|helper| shared.begins(*helper, signal)) {
                let _done = Done(shared);
                job(helper + 1);
            }
        }));
        if own.is_err() {
            // What nobody has begun is not worth beginning.
            (0..helpers).filter(|helper| shared.begins(*helper, signal)).for_each(|_| drop(Done(shared)));
        }
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
        let last = signal(self.shared.signal.load(Ordering::Relaxed), self.helpers.len());
        self.shared.signal.store(last, Ordering::SeqCst);
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
        if !shared.begins(helper, seen) {
            // Somebody else does its part.
            let is_over = || shared.pending.load(Ordering::Acquire) == 0 || shared.signal.load(Ordering::Relaxed) != seen;
            let late = Instant::now();
            while !spin_until(shared.spin, is_over) && late.elapsed() < LATE_MAX {
                // Who does it may need this processor.
                std::thread::yield_now();
            }
            continue;
        }
        let _done = Done(shared);
        // SAFETY: the signal moved and calls this helper, so the job was published before; nobody else does this part, so `run` waits until it is done.
        let outcome =
            unsafe { (*shared.job.get()).map(|job| catch_unwind(AssertUnwindSafe(|| denormals::as_zeros(|| (*job)(helper + 1))))) };
        if !matches!(outcome, Some(Ok(()))) {
            shared.panicked.store(true, Ordering::Relaxed);
        }
    }
}

/// Waits for a job that is not the one of `seen` and calls this helper, and says which it is.
fn wait(shared: &Shared, helper: usize, seen: u64) -> u64 {
    let mut new = seen;
    let mut is_called = |order| {
        new = shared.signal.load(order);
        new != seen && helper < called(new)
    };
    if !spin_until(shared.spin, || is_called(Ordering::Acquire)) {
        let asleep = &shared.asleep[helper];
        asleep.store(true, Ordering::SeqCst);
        // Looked at after `asleep` was said, so that either this sees the new signal or `run` sees the sleeper.
        while !is_called(Ordering::SeqCst) {
            std::thread::park();
        }
        asleep.store(false, Ordering::SeqCst);
        shared.whereabouts[helper].anywhere();
    }
    new
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
    fn what_no_helper_begins_the_caller_does() {
        let mut team = Team::new(1, Duration::ZERO, None).unwrap();
        // One that never looks.
        team.helpers.push(std::thread::spawn(|| ()));
        team.own = 2;
        for _ in 0..3 {
            let seen = std::sync::Mutex::new(Vec::new());
            team.run(&|thread| seen.lock().unwrap().push((thread, std::thread::current().id())));
            let own = std::thread::current().id();
            assert_eq!(seen.into_inner().unwrap(), [(0, own), (1, own)]);
        }
    }

    #[test]
    fn guests_come_and_go() {
        let mut team = Team::new(2, Duration::from_micros(20), None).unwrap();
        team.guests_most = GUESTS_MAX;
        let counts: Vec<AtomicU32> = (0..2 + GUESTS_MAX).map(|_| AtomicU32::new(0)).collect();
        let mut expected = [0; 2 + GUESTS_MAX];
        for round in 0..2000 {
            team.set_guests([0, 1, 3, 0, 2, 9][round % 6]);
            assert_eq!(team.size(), 2 + [0, 1, 3, 0, 2, GUESTS_MAX][round % 6]);
            team.run(&|thread| {
                counts[thread].fetch_add(1, Ordering::Relaxed);
            });
            expected[..team.size()].iter_mut().for_each(|count| *count += 1);
            let seen: Vec<u32> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            assert_eq!(seen, expected, "round {round}");
        }
        assert_eq!((team.own(), team.helpers.len()), (2, 1 + GUESTS_MAX));
    }

    #[test]
    fn there_are_no_more_guests_than_processors_for_them() {
        let processors = Processors::allowed();
        let mut team = Team::new(1, Duration::ZERO, Some(&processors)).unwrap();
        team.set_guests(GUESTS_MAX);
        assert!(team.size() <= processors.numbers().len().max(1));
        let mut alone = Team::new(1, Duration::ZERO, Some(&Processors::new(processors.numbers().first().copied()))).unwrap();
        alone.set_guests(GUESTS_MAX);
        assert_eq!(alone.size(), 1);
    }

    #[test]
    fn a_panic_of_the_caller_waits_for_nobody_who_has_not_begun() {
        let mut team = Team::new(1, Duration::ZERO, None).unwrap();
        // One that never looks.
        team.helpers.push(std::thread::spawn(|| ()));
        team.own = 2;
        let outcome = catch_unwind(AssertUnwindSafe(|| team.run(&|thread| assert!(thread > 0, "the caller"))));
        assert!(outcome.is_err());
    }

    #[test]
    fn a_panic_on_a_helper_reaches_the_caller() {
        let mut team = Team::new(2, Duration::ZERO, None).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| team.run(&|thread| assert!(thread == 0, "helper"))));
        assert!(outcome.is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_helper_that_was_woken_may_be_wherever_it_might_before() {
        let mut team = Team::new(2, Duration::ZERO, None).unwrap();
        let begin_together = std::sync::Barrier::new(2);
        for _ in 0..20 {
            // Long enough to fall asleep.
            std::thread::sleep(Duration::from_millis(1));
            let seen = std::sync::Mutex::new(Vec::new());
            team.run(&|_| {
                begin_together.wait();
                seen.lock().unwrap().push(Processors::allowed());
            });
            assert_eq!(seen.into_inner().unwrap(), [Processors::allowed(), Processors::allowed()]);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn helpers_keep_to_their_processors() {
        let before = Processors::allowed();
        let last = Processors::new(before.numbers().last().copied());
        let mut team = Team::new(3, Duration::ZERO, Some(&last)).unwrap();
        let seen = std::sync::Mutex::new(vec![Processors::default(); 3]);
        // None ends before all have begun, so that each does its own part.
        let all = std::sync::Barrier::new(3);
        team.run(&|thread| {
            seen.lock().unwrap()[thread] = Processors::allowed();
            all.wait();
        });
        assert_eq!(seen.into_inner().unwrap(), [before, last.clone(), last]);
    }
}

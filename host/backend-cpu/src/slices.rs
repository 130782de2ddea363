//! Work in slices: a thread that stops at certain points, and goes on where it stopped when it is let.
//!
//! A plan that takes long would hold up every other task of its worker. So it runs on a thread of its own, and only while the worker waits for it: never
//! both at once. That thread asks at every [`point`] whether its time is over. If so it gives the turn back and sleeps until it has the next. Its stack keeps
//! all that is half done, wherever that is: the first half of a cell, one of many inputs, a product of which some columns are computed.
//!
//! Points stand between the parts of a plan, on the thread that runs it. Nothing runs on the team's other threads at a point. On every other thread a point
//! does nothing.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

thread_local! {
    /// When this thread's slice ends, if it runs in slices.
    static ENDS: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether what takes long is cut meanwhile.
    static IS_CUT: Cell<bool> = const { Cell::new(false) };
    /// For how long it has been paused so far.
    static PAUSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// How many guests its team may have meanwhile.
    static GUESTS: Cell<usize> = const { Cell::new(0) };
    /// Whether those are wanted back.
    static WANTED: RefCell<Option<Wanted>> = const { RefCell::new(None) };
    /// Its way back, and where it hears that it may go on.
    static TURNS: RefCell<Option<(SyncSender<Turn>, Receiver<Slice>)>> = const { RefCell::new(None) };
}

/// A turn of such a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    /// How long it is.
    pub(crate) time: Duration,
    /// Threads that others lend for it.
    pub(crate) guests: usize,
    /// Whether what takes long is cut; else there are points only where it has parts anyway.
    pub(crate) is_cut: bool,
}

impl Slice {
    fn begin(self) {
        ENDS.set(Some(Instant::now() + self.time));
        GUESTS.set(self.guests);
        IS_CUT.set(self.is_cut);
    }
}

/// Threads that others lend for this slice.
pub(crate) fn guests() -> usize {
    GUESTS.get()
}

/// Whether this thread runs in slices and cuts long work into parts, with a [`point`] behind each.
pub(crate) fn is_sliced() -> bool {
    are_taken() && IS_CUT.get()
}

/// Whether this thread runs in slices, cut or not.
pub(crate) fn are_taken() -> bool {
    ENDS.get().is_some()
}

/// For how long this thread has been paused so far.
pub(crate) fn paused() -> Duration {
    PAUSED.get()
}

/// Here a slice may end: because its time is over, or because lent threads are wanted back.
pub(crate) fn point() {
    let Some(end) = ENDS.get() else { return };
    let is_wanted = || GUESTS.get() > 0 && WANTED.with_borrow(|wanted| wanted.as_ref().is_some_and(|wanted| wanted()));
    if Instant::now() >= end || is_wanted() {
        pause();
    }
}

/// What a thread unwinds with that is never to go on.
struct Abandoned;

#[cold]
fn pause() {
    let began = Instant::now();
    let next = TURNS.with_borrow(|turns| {
        let (back, again) = turns.as_ref()?;
        back.send(Turn::Paused).ok()?;
        again.recv().ok()
    });
    // Nobody is left to wait for the result.
    let Some(slice) = next else { resume_unwind(Box::new(Abandoned)) };
    PAUSED.set(PAUSED.get() + began.elapsed());
    slice.begin();
}

/// How a slice ended.
enum Turn {
    Paused,
    /// All is done, or has panicked.
    Done(Option<Box<dyn Any + Send>>),
}

/// Says whether threads that were lent are wanted back.
type Wanted = Box<dyn Fn() -> bool + Send>;

/// Work for such a thread.
type Work = Box<dyn FnOnce() + Send>;

/// A thread that runs in slices, one piece of work after the other.
pub(crate) struct SlicedThread {
    work: Option<SyncSender<(Work, Slice)>>,
    again: Option<SyncSender<Slice>>,
    turns: Receiver<Turn>,
    thread: Option<JoinHandle<()>>,
}

impl SlicedThread {
    /// Starts one, which does `first` before anything else, and asks `wanted` whether threads that were lent for its slices are wanted back.
    pub(crate) fn start(first: impl FnOnce() + Send + 'static, wanted: impl Fn() -> bool + Send + 'static) -> std::io::Result<Self> {
        let (work, works) = sync_channel::<(Work, Slice)>(1);
        let (again, agains) = sync_channel(1);
        let (back, turns) = sync_channel(1);
        let run = move || {
            first();
            TURNS.set(Some((back.clone(), agains)));
            WANTED.set(Some(Box::new(wanted)));
            while let Ok((work, slice)) = works.recv() {
                slice.begin();
                let done = catch_unwind(AssertUnwindSafe(work));
                ENDS.set(None);
                if back.send(Turn::Done(done.err())).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("cpu-slices".to_owned()).spawn(run)?;
        Ok(Self { work: Some(work), again: Some(again), turns, thread: Some(thread) })
    }

    /// Begins some work, and waits for the end of the first slice; whether all is done.
    ///
    /// # Panics
    /// If the work panics.
    pub(crate) fn begin(&self, work: impl FnOnce() + Send + 'static, slice: Slice) -> bool {
        let sent = self.work.as_ref().is_some_and(|works| works.send((Box::new(work), slice)).is_ok());
        assert!(sent, "the thread waits for work");
        self.wait()
    }

    /// Goes on with what was paused, and waits for the end of that slice; whether all is done.
    ///
    /// # Panics
    /// If the work panics.
    pub(crate) fn resume(&self, slice: Slice) -> bool {
        let sent = self.again.as_ref().is_some_and(|again| again.send(slice).is_ok());
        assert!(sent, "the thread waits for its turn");
        self.wait()
    }

    fn wait(&self) -> bool {
        match self.turns.recv() {
            Ok(Turn::Paused) => false,
            Ok(Turn::Done(None)) => true,
            Ok(Turn::Done(Some(panic))) => resume_unwind(panic),
            Err(_) => unreachable!("the thread ends after its owner"),
        }
    }
}

impl Drop for SlicedThread {
    fn drop(&mut self) {
        // What is paused ends where it is.
        (self.work, self.again) = (None, None);
        if let Some(thread) = self.thread.take() {
            // What its work ended with is nobody's concern.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const AT_ONCE: Slice = Slice { time: Duration::ZERO, guests: 0, is_cut: true };
    const NEVER: Slice = Slice { time: Duration::from_secs(600), guests: 0, is_cut: true };

    /// Counts up, with a point behind each number.
    fn counting(to: u32, count: &Arc<AtomicU32>) -> impl FnOnce() + Send + 'static {
        let count = count.clone();
        move || {
            for _ in 0..to {
                count.fetch_add(1, Ordering::Relaxed);
                point();
            }
        }
    }

    #[test]
    fn work_stops_at_points_and_goes_on_there() {
        let (one, other) = (SlicedThread::start(|| (), || false).unwrap(), SlicedThread::start(|| (), || false).unwrap());
        let counts = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let now = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert!(!one.begin(counting(3, &counts[0]), AT_ONCE));
        assert_eq!(now(), [1, 0]);
        assert!(!other.begin(counting(2, &counts[1]), AT_ONCE));
        assert!(!one.resume(AT_ONCE));
        assert_eq!(now(), [2, 1]);
        assert!(!other.resume(AT_ONCE) && other.resume(AT_ONCE));
        assert!(one.resume(NEVER));
        assert_eq!(now(), [3, 2]);
        assert!(one.begin(counting(9, &counts[0]), NEVER), "and again");
        assert_eq!(now(), [12, 2]);
        point();
        assert!(!is_sliced(), "this thread never stops");
    }

    #[test]
    fn a_slice_ends_when_threads_are_wanted_back() {
        let count = Arc::new(AtomicU32::new(0));
        let thread = SlicedThread::start(|| (), || true).unwrap();
        assert!(!thread.begin(counting(3, &count), Slice { guests: 1, ..NEVER }));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert!(thread.resume(NEVER), "none are lent");
    }

    #[test]
    fn what_is_never_to_go_on_ends_where_it_is() {
        let count = Arc::new(AtomicU32::new(0));
        let thread = SlicedThread::start(|| (), || false).unwrap();
        assert!(!thread.begin(counting(3, &count), AT_ONCE));
        drop(thread);
        assert_eq!((count.load(Ordering::Relaxed), Arc::strong_count(&count)), (1, 1));
    }

    #[test]
    fn a_panic_comes_out_where_it_is_waited_for() {
        let thread = SlicedThread::start(|| (), || false).unwrap();
        let panics = || {
            point();
            panic!("the work");
        };
        assert!(!thread.begin(panics, AT_ONCE));
        let outcome = catch_unwind(AssertUnwindSafe(|| thread.resume(AT_ONCE)));
        assert_eq!(outcome.expect_err("it panics").downcast_ref(), Some(&"the work"));
    }
}

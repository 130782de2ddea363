//! Whose turn it is to run the core: that of its own thread, or of a worker that has just completed something.
//!
//! Where workers leave the engine's thread no processor, it would hear of a task's end only once one of them had lost its own, and the next task would wait
//! for that, or run without those who could have joined it. There a worker runs the core itself, between two of its tasks: once, then the thread goes on, so
//! that no worker is kept from its device for long. Messages from elsewhere, and times to wake up at, are the thread's to wait for.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select, Sender, bounded};

use crate::core::{Core, Rest, ToCore};
use crate::worker::FromWorker;

/// How long the engine's thread looks for a message before it sleeps: about as long as it takes to wake one that sleeps on an idle virtual processor
/// (35 to 45 µs), so that it never costs much more than sleeping would have.
const LOOK_OUT: Duration = Duration::from_micros(40);

/// The core, and who may have a turn at it.
pub(crate) struct Turns {
    /// Nothing before it begins and once it has ended.
    core: Mutex<Option<Box<Core>>>,
    /// As the core has it.
    completions: Receiver<FromWorker>,
    /// Wakes the engine's thread.
    bell: Sender<()>,
    /// Workers run the core too.
    by_workers: bool,
}

impl Turns {
    /// Turns at a core that is yet to come, which workers have too if that is wanted, and what its thread listens to.
    pub(crate) fn new(completions: Receiver<FromWorker>, by_workers: bool) -> (Self, Receiver<()>) {
        // A ring that has not been heard yet is enough.
        let (bell, rings) = bounded(1);
        (Self { core: Mutex::default(), completions, bell, by_workers }, rings)
    }

    /// A worker has said something.
    pub(crate) fn heard(&self) {
        if !self.by_workers {
            self.ring();
            // Others may leave the engine's thread no processor but this one: it may go first, since whoever could join the next task, or has its answer
            // now, would wait for all of that task.
            std::thread::yield_now();
            return;
        }
        for first in [true, false] {
            // Who has had a turn lets go of the core before looking whether more was said, and who said something does so before looking whether the core
            // is free: one of the two sees the other.
            fence(Ordering::SeqCst);
            if self.completions.is_empty() {
                return;
            }
            let held = match self.core.try_lock() {
                Ok(held) => held,
                Err(TryLockError::Poisoned(held)) => held.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            if !first {
                return self.ring();
            }
            if self.with(held, Core::turn) == Some(true) {
                self.ring();
            }
        }
    }

    /// The engine's thread: until everybody is to leave.
    pub(crate) fn run(&self, core: Core, inbox: &Receiver<ToCore>, rings: &Receiver<()>) {
        *self.core.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(core));
        if let Ok(Some(core)) = catch_unwind(AssertUnwindSafe(|| self.own_turns(inbox, rings))) {
            return core.stop();
        }
        // The core has panicked. A channel keeps its messages when its receiver goes, and whoever asked in one of them would wait for ever: each is let go of.
        while inbox.recv().is_ok_and(|message| !matches!(message, ToCore::Stop)) {}
    }

    /// Until everybody is to leave: then with the core, if there still is one.
    fn own_turns(&self, inbox: &Receiver<ToCore>, rings: &Receiver<()>) -> Option<Box<Core>> {
        loop {
            let held = self.core.lock().unwrap_or_else(PoisonError::into_inner);
            let rest = self.with(held, Core::turns)?;
            if rest.stopping {
                return self.core.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
            fence(Ordering::SeqCst);
            if self.completions.is_empty() {
                sleep(&rest, inbox, rings);
            }
            let _ = rings.try_recv();
        }
    }

    fn ring(&self) {
        let _ = self.bell.try_send(());
    }

    /// Does something with the core, if there still is one. Whoever panics ends it: who waits for something of it hears that by what it let go of.
    fn with<T>(&self, mut held: MutexGuard<'_, Option<Box<Core>>>, act: impl FnOnce(&mut Core) -> T) -> Option<T> {
        let mut core = held.take()?;
        match catch_unwind(AssertUnwindSafe(|| act(&mut core))) {
            Ok(done) => {
                *held = Some(core);
                Some(done)
            }
            Err(panic) => {
                // Before anything of it goes, which may panic too: the engine's thread waits for the lock.
                self.ring();
                drop(core);
                drop(held);
                resume_unwind(panic)
            }
        }
    }
}

/// Until there is a message, a ring, or it is time.
fn sleep(rest: &Rest, inbox: &Receiver<ToCore>, rings: &Receiver<()>) {
    // While tasks run, their workers need the processor.
    if rest.idle && look_out(inbox, rings) {
        return;
    }
    let mut select = Select::new();
    select.recv(inbox);
    select.recv(rings);
    match rest.wake_at {
        None => {
            select.ready();
        }
        Some(at) => {
            let _ = select.ready_deadline(at);
        }
    }
}

/// Looks out for a message for a moment, as long as it would take to be woken; whether there is one.
fn look_out(inbox: &Receiver<ToCore>, rings: &Receiver<()>) -> bool {
    let until = Instant::now() + LOOK_OUT;
    loop {
        if !inbox.is_empty() || !rings.is_empty() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        // Whoever is about to send something may need this core.
        std::thread::yield_now();
    }
}

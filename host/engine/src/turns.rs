//! Turns: which thread runs the core (the scheduler and all around it), one at a time.
//!
//! The core is run by the engine's own thread, or by a worker that has just completed something.
//! The choice depends on the processors that the workers' threads leave:
//!
//! - None: the engine's thread would hear of a task's end only after a worker lost its processor,
//!   and the next task would wait for that. So a worker runs the core itself, between two of its
//!   tasks.
//! - A few: a worker rings for the engine's thread and gives its processor away for a moment. If
//!   other programs took the processor lately, it runs the core itself.
//! - Plenty (one for the engine, one for whoever brings requests, one spare): the engine's thread
//!   looks for the next event for 40 µs before it sleeps, also while tasks run. So does a worker
//!   without a task. Waking a thread takes longer than many a task.
//!
//! A worker has one turn and returns to its device. The rest is left to the engine's thread, which
//! is also the one that waits for requests and for times to wake up at. A thread that got its
//! processor back only after a millisecond or more gave way to another program. It does not give
//! way again for sixteen times as long, a minute at most.
//!
//! A panic in a turn ends the engine. Every request hears of it, and so does every later one.

use std::cell::Cell;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use cellwright_backend::Backend;
use crossbeam_channel::{Receiver, Select, Sender, bounded};

use crate::core::{Core, ToCore};
use crate::worker::FromWorker;

/// How long the engine's thread, or a worker without a task, looks for a message before it sleeps: about as long as it takes to wake one that sleeps on an
/// idle virtual processor (35 to 45 µs), so that it never costs much more than sleeping would have.
const LOOK_OUT: Duration = Duration::from_micros(40);

/// Processors beside the workers' threads from which on nobody is in the way of a thread that looks out: one for it, one for whoever brings requests, and one.
const SPARE: usize = 2;

/// What workers leave of the machine's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processors {
    /// None: whoever wants to hear of a task's end waits for a worker to lose its own.
    None,
    /// One that is shared: who only waits should leave it.
    Few,
    /// One for the engine alone: it may look for what comes next while tasks run, and need not be woken.
    Plenty,
}

impl Processors {
    pub(crate) fn left_by(backends: &[Box<dyn Backend>]) -> Self {
        let threads: usize = backends.iter().map(|backend| backend.info().threads).sum();
        Self::left((threads, std::thread::available_parallelism().map_or(0, NonZero::get)))
    }

    /// Of so many, by so many threads; of nobody knows how many (0) a few.
    const fn left((threads, processors): (usize, usize)) -> Self {
        match processors {
            0 => Self::Few,
            _ if threads >= processors => Self::None,
            _ if threads + SPARE < processors => Self::Plenty,
            _ => Self::Few,
        }
    }
}

/// The core, and who may have a turn at it.
pub(crate) struct CoreTurns {
    /// Nothing before it begins and once it has ended.
    core: Mutex<Option<Box<Core>>>,
    /// As the core has it.
    completions: Receiver<FromWorker>,
    /// Wakes the engine's thread.
    bell: Sender<()>,
    processors: Processors,
}

impl CoreTurns {
    /// Turns at a core that is yet to come, which workers have too if they leave no processor, and what its thread listens to.
    pub(crate) fn new(completions: Receiver<FromWorker>, processors: Processors) -> (Self, Receiver<()>) {
        // A ring that has not been heard yet is enough.
        let (bell, rings) = bounded(1);
        (Self { core: Mutex::default(), completions, bell, processors }, rings)
    }

    /// A worker has completed a task: it takes a turn at the core, or wakes the engine's thread.
    pub(crate) fn note_completion(&self) {
        match self.processors {
            Processors::Plenty => return self.ring(),
            // Others may leave the engine's thread no processor but this one: it may go first, since whoever could join the next task, or has its answer
            // now, would wait for all of that task. Where other programs go first, it is as if there were no processor for it.
            Processors::Few if gives_way() => {
                self.ring();
                return give_way();
            }
            Processors::Few | Processors::None => {}
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
        // There is no request among them but those that had their handles before.
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
                // While tasks run, their workers may need the processor.
                let looks_out = rest.idle || self.processors == Processors::Plenty;
                sleep(rest.wake_at, looks_out, inbox, rings);
            }
            let _ = rings.try_recv();
        }
    }

    /// Whether whoever waits may look for what comes next, without being woken.
    pub(crate) fn has_plenty(&self) -> bool {
        self.processors == Processors::Plenty
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
                // Before anything of it goes, which may panic too: the engine's thread waits for the lock, and whoever hears of a request's end may come again.
                core.close();
                self.ring();
                drop(core);
                drop(held);
                resume_unwind(panic)
            }
        }
    }
}

/// Until there is a message, a ring, or it is time.
fn sleep(wake_at: Option<Instant>, looks_out: bool, inbox: &Receiver<ToCore>, rings: &Receiver<()>) {
    if looks_out && look_out(wake_at, || !inbox.is_empty() || !rings.is_empty()) {
        return;
    }
    let mut select = Select::new();
    select.recv(inbox);
    select.recv(rings);
    match wake_at {
        None => {
            select.ready();
        }
        Some(at) => {
            let _ = select.ready_deadline(at);
        }
    }
}

/// Looks out for something for a moment, as long as it would take to be woken, or until it is time; whether it is there.
pub(crate) fn look_out(wake_at: Option<Instant>, is_there: impl Fn() -> bool) -> bool {
    let until = Instant::now() + LOOK_OUT;
    let until = wake_at.map_or(until, |at| at.min(until));
    loop {
        if is_there() {
            return true;
        }
        if Instant::now() >= until || !gives_way() {
            return false;
        }
        // Whoever is about to send something may need this core.
        give_way();
    }
}

/// A thread of this process that is given way to is back sooner; another program that computes takes milliseconds, a whole slice of time, whenever it is.
const LONG: Duration = Duration::from_millis(1);

/// For how many times as long as such a program took nobody gives way to it again: little of the time is lost to it, beside its own half.
const KEEPS: u32 = 16;

/// And for how long at most: a process that was stopped for hours was not kept from its processor by others.
const KEEPS_MOST: Duration = Duration::from_secs(60);

thread_local! {
    /// Until when this thread does not give way.
    static KEEPS_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Whether this thread gives way: not to other programs that compute, as they lately did.
fn gives_way() -> bool {
    KEEPS_UNTIL.get().is_none_or(|until| Instant::now() >= until)
}

/// Lets whoever waits for this processor have it for a moment.
fn give_way() {
    let began = Instant::now();
    std::thread::yield_now();
    let back = Instant::now();
    record_absence(back, back - began);
}

/// This thread got its processor back then, after so long.
fn record_absence(back: Instant, away: Duration) {
    KEEPS_UNTIL.set((away >= LONG).then(|| back + away.saturating_mul(KEEPS).min(KEEPS_MOST)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_waits_leaves_the_last_processors() {
        let left = |threads, processors| Processors::left((threads, processors));
        assert_eq!([left(2, 2), left(3, 2)], [Processors::None; 2]);
        assert_eq!([left(1, 2), left(2, 4), left(1, 3), left(1, 0)], [Processors::Few; 4]);
        assert_eq!([left(1, 4), left(1, 16)], [Processors::Plenty; 2]);
    }

    /// For sixteen times as long as others took the processor for, if that was a slice of time, but not for ever.
    #[test]
    fn nobody_gives_way_to_those_who_keep_the_processor() {
        let now = Instant::now();
        let slice = Duration::from_secs(100);
        let gives_way_after = |back, away| {
            record_absence(back, away);
            gives_way()
        };
        assert!(gives_way());
        assert!(!gives_way_after(now, slice));
        assert!(!look_out(Some(now + slice), || false), "and then it waits to be woken, at once");
        assert!(gives_way_after(now, LONG - Duration::from_nanos(1)));
        assert!(now.checked_sub(slice).is_none_or(|past| gives_way_after(past, slice)), "a minute is the most");
    }
}

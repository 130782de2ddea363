//! The emulated device's queues, and the thread that empties them.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::control::{Faults, Log, Ran, What};
use super::launches::{Early, Queued};
use super::memory::Allocations;
use super::{Emulation, kernels, peers};
use crate::driver::waiting::{WAIT_MAX, endless};
use crate::driver::{DeviceAddress, Done, Event, Fault, Peer, Stream};

/// What keeps pinned memory alive while work on it is queued.
type Keep = Arc<dyn Any + Send + Sync>;

/// A piece of work.
pub(super) enum Work {
    Upload {
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: usize,
        _keep: Keep,
    },
    Download {
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: usize,
        _keep: Keep,
    },
    Copy {
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: usize,
    },
    Fetch {
        peer: Peer,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: usize,
    },
    Zero {
        at: DeviceAddress,
        bytes: usize,
    },
    Launch(Queued),
    /// A graph of so many launches begins, which come behind it.
    Graph {
        launches: usize,
    },
    Record {
        event: usize,
        ticket: u64,
    },
    Wait {
        event: usize,
        ticket: u64,
    },
    Signal {
        at: DeviceAddress,
        value: u64,
        _keep: Keep,
    },
}

/// A mark: each recording has a ticket, and those that were not reached yet are remembered.
#[derive(Default)]
struct Mark {
    ticket: u64,
    open: Vec<u64>,
    reached: Option<(u64, Instant)>,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    /// Whether a piece of it runs.
    running: bool,
    /// Whether it waits for a test.
    held: bool,
}

/// What the device is doing.
#[derive(Default)]
pub(super) struct State {
    queues: Vec<Queue>,
    marks: Vec<Mark>,
    pub(super) memory: Allocations,
    pub(super) faults: Faults,
    pub(super) log: Log,
    pub(super) held: bool,
    /// Graphs that are there.
    pub(super) graphs: usize,
    /// What they take of the device's memory.
    pub(super) graph_bytes: u64,
    /// Whether there was nothing to run when the thread last looked.
    settled: bool,
    pub(super) lost: Option<String>,
    pub(super) ended: bool,
    /// How long a call waits, at most.
    pub(super) wait_max: Duration,
    random: u64,
}

impl State {
    pub(super) fn queued(&self) -> usize {
        self.queues.iter().map(|queue| queue.work.len() + usize::from(queue.running)).sum()
    }

    /// Bytes of its memory that somebody has.
    pub(super) fn taken(&self) -> u64 {
        self.memory.bytes() + self.graph_bytes
    }

    pub(super) fn hold_stream(&mut self, stream: Stream) {
        self.queues[stream.0 as usize].held = true;
    }

    pub(super) fn release(&mut self) {
        self.held = false;
        self.queues.iter_mut().for_each(|queue| queue.held = false);
    }

    pub(super) fn add_stream(&mut self) -> Stream {
        self.queues.push(Queue::default());
        Stream(self.queues.len() as u32 - 1)
    }

    fn is_known(&self, stream: Stream) -> Done {
        let known = (stream.0 as usize) < self.queues.len();
        if known { Ok(()) } else { Err(Fault::Refused("a stream of another driver is named".to_owned())) }
    }

    pub(super) fn add_event(&mut self) -> Event {
        self.marks.push(Mark::default());
        Event(self.marks.len() as u32 - 1)
    }

    fn mark(&self, event: Event) -> Done<&Mark> {
        self.marks.get(event.0 as usize).ok_or_else(|| Fault::Refused("an event of another driver is named".to_owned()))
    }

    pub(super) fn record(&mut self, event: Event) -> Done<Work> {
        self.mark(event)?;
        let mark = &mut self.marks[event.0 as usize];
        mark.ticket += 1;
        mark.open.push(mark.ticket);
        Ok(Work::Record { event: event.0 as usize, ticket: mark.ticket })
    }

    pub(super) fn wait(&mut self, event: Event) -> Done<Work> {
        Ok(Work::Wait { event: event.0 as usize, ticket: self.mark(event)?.ticket })
    }

    /// When the latest recording of an event was reached.
    pub(super) fn reached(&self, event: Event) -> Done<Instant> {
        let mark = self.mark(event)?;
        match mark.reached {
            Some((ticket, at)) if ticket == mark.ticket => Ok(at),
            _ => Err(Fault::Refused("the time of an event is asked for that was not reached".to_owned())),
        }
    }

    /// The next number of a xorshift generator.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// A stream whose next piece of work waits for nothing, drawn from all of them.
    fn draw_stream(&mut self) -> Option<usize> {
        let waits = |work: &Work| matches!(work, Work::Wait { event, ticket } if self.marks[*event].open.contains(ticket));
        let ready = |queue: &Queue| queue.work.front().is_some_and(|work| !waits(work));
        let ready = |index: &usize| !self.queues[*index].held && ready(&self.queues[*index]);
        let ready: Vec<usize> = (0..self.queues.len()).filter(ready).collect();
        if ready.is_empty() {
            return None;
        }
        let drawn = self.draw() % ready.len() as u64;
        Some(ready[drawn as usize])
    }

    /// Which launches of a stream begin before the one that is about to run.
    fn draw_early(&mut self, stream: usize) -> Vec<Early> {
        let work = std::mem::take(&mut self.queues[stream].work);
        let early = Early::drawn(&work, || self.draw());
        self.queues[stream].work = work;
        early
    }

    fn reach(&mut self, event: usize, ticket: u64) {
        let mark = &mut self.marks[event];
        mark.open.retain(|open| *open != ticket);
        if mark.reached.is_none_or(|(latest, _)| latest < ticket) {
            mark.reached = Some((ticket, Instant::now()));
        }
    }

    /// Whatever was queued will never run.
    pub(super) fn lose(&mut self, cause: String) {
        self.lost.get_or_insert(cause);
        self.queues.iter_mut().for_each(|queue| queue.work.clear());
    }
}

/// The device, shared by its driver and its thread.
pub(super) struct Device {
    state: Mutex<State>,
    changed: Condvar,
    lag: Duration,
    pub(super) ordinal: u32,
}

impl Device {
    pub(super) fn new(emulation: &Emulation) -> Self {
        // A xorshift generator must not begin at zero, and near seeds are to differ at once.
        let random = emulation.seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self {
            state: Mutex::new(State { random, wait_max: WAIT_MAX, ..State::default() }),
            changed: Condvar::new(),
            lag: emulation.lag,
            ordinal: emulation.ordinal,
        }
    }

    /// What it is doing, lost or not.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it is doing, unless it is lost.
    pub(super) fn state(&self) -> Done<MutexGuard<'_, State>> {
        let state = self.lock();
        match &state.lost {
            Some(cause) => Err(Fault::Lost(cause.clone())),
            None => Ok(state),
        }
    }

    /// Whether it is lost.
    pub(super) fn check(&self) -> Done {
        self.state().map(drop)
    }

    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Queues what `work` gives.
    pub(super) fn queue(&self, stream: Stream, work: impl FnOnce(&mut State) -> Done<Work>) -> Done {
        let mut state = self.state()?;
        state.is_known(stream)?;
        let work = work(&mut state)?;
        state.queues[stream.0 as usize].work.push_back(work);
        self.wake();
        Ok(())
    }

    /// Queues several pieces of work, one behind the other.
    pub(super) fn queue_all(&self, stream: Stream, work: impl Iterator<Item = Work>) -> Done {
        let mut state = self.state()?;
        state.is_known(stream)?;
        state.queues[stream.0 as usize].work.extend(work);
        self.wake();
        Ok(())
    }

    /// Waits until nothing is queued.
    pub(super) fn drain(&self) -> Done {
        self.until(|state| state.queued() == 0)
    }

    /// Waits until nothing is queued on a stream.
    pub(super) fn drain_stream(&self, stream: Stream) -> Done {
        let index = stream.0 as usize;
        self.until(|state| state.queues[index].work.is_empty() && !state.queues[index].running)
    }

    fn until(&self, met: impl Fn(&State) -> bool) -> Done {
        let state = self.state()?;
        let most = state.wait_max;
        let waited = self.changed.wait_timeout_while(state, most, |state| state.lost.is_none() && !met(state));
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            state.lose(endless(most));
        }
        state.lost.as_ref().map_or(Ok(()), |cause| Err(Fault::Lost(cause.clone())))
    }

    /// Waits until nothing runs and nothing would: what is queued is held, or waits for what is.
    pub(super) fn settle(&self) {
        let mut state = self.lock();
        state.settled = false;
        self.wake();
        let settled = self.changed.wait_while(state, |state| !state.settled && !state.ended);
        drop(settled.unwrap_or_else(PoisonError::into_inner));
    }

    /// The thread ends; what is queued is forgotten.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        self.wake();
    }

    /// The thread: takes one piece of work after the other until the device is dropped.
    pub(super) fn run(&self) {
        let mut state = self.lock();
        kernels::seed(state.random);
        while !state.ended {
            let drawn = if state.held || state.lost.is_some() { None } else { state.draw_stream() };
            let Some(stream) = drawn else {
                state.settled = true;
                self.wake();
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if !self.lag.is_zero() && state.draw().is_multiple_of(8) {
                // Meanwhile the caller queues more, and may do what it should not yet.
                state = self.changed.wait_timeout(state, self.lag).unwrap_or_else(PoisonError::into_inner).0;
                if state.held || state.ended {
                    continue;
                }
            }
            state = self.run_one(state, stream);
            self.wake();
        }
    }

    /// Runs the next piece of work of a stream, with the state unlocked.
    fn run_one<'a>(&'a self, mut state: MutexGuard<'a, State>, stream: usize) -> MutexGuard<'a, State> {
        let Some(mut work) = state.queues[stream].work.pop_front() else { return state };
        if state.faults.work_fails() {
            state.lose("the device has fallen off the bus".to_owned());
            return state;
        }
        if let Work::Launch(Queued { name, .. }) = &work
            && state.faults.launch_fails()
        {
            state.lose(format!("an illegal memory access was encountered (kernel `{name}`)"));
            return state;
        }
        state.log.add(Ran { stream: Stream(stream as u32), what: What::of(&work) });
        state.queues[stream].running = true;
        // Only a kernel with a machine of its own needs one: what runs otherwise stays as it is.
        let seed = if matches!(work, Work::Launch(Queued { compiled: Some(_), .. })) { state.draw() } else { 0 };
        let early = if matches!(work, Work::Launch(_)) { state.draw_early(stream) } else { Vec::new() };
        drop(state);
        let early = early.into_iter().map(Early::begin).collect::<Result<Vec<_>, _>>();
        let done = early.and_then(|early| execute(&mut work, seed).map(|()| early));
        let mut state = self.lock();
        state.queues[stream].running = false;
        let done = done.map(|early| early.into_iter().for_each(|one| one.leave_in(&mut state.queues[stream].work)));
        match (done, work) {
            (Err(cause), _) => state.lose(cause),
            (Ok(()), Work::Record { event, ticket }) => state.reach(event, ticket),
            (Ok(()), Work::Launch(Queued { name, .. })) => {
                if let Some(overrun) = state.memory.overrun() {
                    state.lose(format!("{overrun} (kernel `{name}`)"));
                }
            }
            _ => {}
        }
        state
    }
}

/// Does a piece of work that touches memory.
fn execute(work: &mut Work, seed: u64) -> Result<(), String> {
    match work {
        Work::Upload { from, to, bytes, .. } | Work::Download { from, to, bytes, .. } | Work::Copy { from, to, bytes } => {
            // SAFETY: both ranges were within live memory when this was queued: pinned memory is kept by the work itself, and memory of the device is
            // freed only when nothing is queued.
            unsafe { std::ptr::copy(from.0 as *const u8, to.0 as *mut u8, *bytes) };
        }
        Work::Fetch { peer, from, to, bytes } => return peers::copy(peer, *from, *to, *bytes),
        // SAFETY: as above.
        Work::Zero { at, bytes } => unsafe { (at.0 as *mut u8).write_bytes(0, *bytes) },
        Work::Launch(queued) => return queued.run(seed),
        // SAFETY: an aligned word of pinned memory, which the work keeps.
        Work::Signal { at, value, .. } => unsafe { &*(at.0 as *const AtomicU64) }.store(*value, Ordering::Release),
        Work::Graph { .. } | Work::Record { .. } | Work::Wait { .. } => {}
    }
    Ok(())
}

//! State that a worker copies out of the memory of another device's worker.
//!
//! Copies have a stream of their own with a signal behind them, which the worker polls between its
//! tasks. No stream waits for another device. A request moves between its tasks, so the writes of
//! its state were seen complete before the move was decided. The request goes on, and its old slots
//! are given away, once the signal is seen. At most one move into a domain is under way at a time.
//!
//! So two devices may copy from each other at once, and a lost device holds up neither a copy nor a
//! task of another one. If the source is lost, the target reports that the state did not come, once
//! nothing of it can be written any more.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use cellwright_backend::{DeviceLost, Progress, SLOT_BYTES, Slot, Taken};

use super::CudaWorker;
use super::watch::Watch;
use crate::driver::{DeviceAddress, Done, Fault, Peer, Pinned, Stream};

/// A worker's memory, as workers on other devices know it.
pub(super) struct Neighbour {
    device: Peer,
    arena: DeviceAddress,
    slots: u32,
}

impl Neighbour {
    /// Where bytes of its arena lie on its device.
    fn slots(&self, first: Slot, count: u32) -> Done<DeviceAddress> {
        match first.0.checked_add(count) {
            Some(end) if end <= self.slots => Ok(self.arena.plus(first.index() * SLOT_BYTES)),
            _ => Err(Fault::Refused(format!("slots from {} on lie beyond the arena of the other device", first.0))),
        }
    }
}

/// What is on its way.
struct Taking {
    /// Of the signal behind it.
    number: u64,
    from: Peer,
    /// Whether all of it was queued.
    is_whole: bool,
    watch: Watch,
}

/// The workers that this one reaches, and what it takes from them.
#[derive(Default)]
pub(super) struct Peers {
    /// By their numbers.
    reached: Vec<(u32, cellwright_backend::Peer)>,
    /// Where copies are queued, and the word that holds the number of the newest that is done. None as long as nobody is reached.
    stream: Option<(Stream, Pinned)>,
    queued: u64,
    under_way: VecDeque<Taking>,
}

impl CudaWorker {
    pub(super) fn neighbour(&self) -> Neighbour {
        Neighbour { device: self.device.driver.peer(), arena: self.arena, slots: self.sizes.slots }
    }

    /// Whether that worker's memory can be read; makes ready for it.
    pub(super) fn reach_worker(&mut self, worker: u32, peer: &cellwright_backend::Peer) -> Done<bool> {
        let driver = &mut self.device.driver;
        let Some(neighbour) = peer.known::<Neighbour>() else { return Ok(false) };
        if !driver.reach(&neighbour.device)? {
            return Ok(false);
        }
        if self.peers.stream.is_none() {
            self.peers.stream = Some((driver.stream()?, driver.pinned(size_of::<u64>())?));
        }
        self.peers.reached.push((worker, peer.clone()));
        tracing::info!("{}: state moves here from worker {worker} without passing through the host", self.device.name);
        Ok(true)
    }

    /// Queues the copies of a request's state, and the signal behind them.
    pub(super) fn queue_taking(&mut self, worker: u32, runs: &[(Slot, Slot, u32)]) -> Result<(), DeviceLost> {
        let Some(peer) = self.peers.reached.iter().find(|(number, _)| *number == worker).map(|(_, peer)| peer.clone()) else {
            return Err(self.device.lose(format!("state is to be taken from worker {worker}, whose memory is out of reach")));
        };
        let (Some(neighbour), Some((stream, _))) = (peer.known::<Neighbour>(), &self.peers.stream) else { return Ok(()) };
        let stream = *stream;
        let mut is_whole = true;
        for (from, to, count) in runs {
            is_whole = self.fetch(stream, neighbour, (*from, *to, *count))?;
            if !is_whole {
                break;
            }
        }
        let number = self.peers.queued + 1;
        let Some((stream, word)) = &self.peers.stream else { return Ok(()) };
        let signalled = self.device.driver.signal(*stream, word, 0, number);
        self.device.held(signalled)?;
        self.peers.queued = number;
        self.peers.under_way.push_back(Taking { number, from: neighbour.device.clone(), is_whole, watch: Watch::of(number) });
        Ok(())
    }

    /// Queues one copy; false if the other device does not give it.
    fn fetch(&mut self, stream: Stream, neighbour: &Neighbour, (from, to, count): (Slot, Slot, u32)) -> Result<bool, DeviceLost> {
        let bytes = count as usize * SLOT_BYTES;
        let to = self.slots(to, bytes);
        let to = self.device.held(to)?;
        let fetched = neighbour.slots(from, count).and_then(|from| {
            let driver = &mut self.device.driver;
            driver.fetch(stream, (&neighbour.device, from), to, bytes)
        });
        match fetched {
            Err(fault) if !fault.is_lost() => {
                tracing::warn!("{}: state is not copied from the other device: {fault}", self.device.name);
                Ok(false)
            }
            fetched => self.device.held(fetched),
        }
    }

    /// What became of the oldest that is under way.
    pub(super) fn look_at_taken(&mut self) -> Result<Taken, DeviceLost> {
        let (Some(oldest), Some((_, word))) = (self.peers.under_way.front_mut(), &self.peers.stream) else { return Ok(Taken::NotMoved) };
        if word.word(0).load(Ordering::Acquire) < oldest.number {
            return Ok(match self.device.look_again(&mut oldest.watch)? {
                Progress::Later(pause) => Taken::Later(pause),
                Progress::Soon | Progress::Complete => Taken::Soon,
            });
        }
        let is_there = oldest.is_whole && !oldest.from.is_lost();
        self.peers.under_way.pop_front();
        self.device.is_intact(format_args!("state came from another device"))?;
        Ok(if is_there { Taken::Moved } else { Taken::NotMoved })
    }
}

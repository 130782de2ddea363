//! Moves of a request's state from one memory domain to another.
//!
//! If the target's device reaches the source's memory, the target copies the state by itself and
//! the source is not told. Otherwise the state passes through the host: the source's worker reads
//! it and hands it to the target's, which writes it and reports. A copy between devices that was
//! refused goes through the host too, as do all later ones between the two.
//!
//! The request does not run until the scheduler hears that the move is over. Until then nobody else
//! gets its old slots or its new ones. If a worker that takes part is lost, the request fails, and
//! the scheduler hears of the end of the move all the same. If the other worker is alive, it hears
//! that only once that worker does nothing more with the slots, because they are given to others
//! then.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use cellwright_scheduler::{Commands, DomainId, Event, Move, RequestId, WorkerId};

use super::{Core, ToWorker};
use crate::worker::Runs;

/// Moves under way at once. Workers hand each other what they read, and must never wait for each other: their queues hold all of these
/// (see `CONTROL_QUEUE`).
const UNDER_WAY_MAX: usize = 24;

/// Which way state goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Read by one worker and written by the other.
    Host,
    /// Taken by the target's device.
    Peer,
}

/// A move that was commanded.
struct Moving {
    number: u64,
    request: RequestId,
    from: DomainId,
    to: DomainId,
    /// The slot there, the slot here, and how many.
    runs: Runs,
    /// Who has the state and who gets it, and by which way, once they were told.
    told: Option<(WorkerId, WorkerId, Way)>,
}

/// Moves that are not over. There is at most one for each request.
#[derive(Default)]
pub(super) struct Moves {
    waiting: VecDeque<Moving>,
    under_way: Vec<Moving>,
    last_number: u64,
}

impl Core {
    pub(super) fn move_request(&mut self, commands: &Commands, moved: &Move) {
        let runs = commands.copies[moved.copies.clone()].to_vec();
        let moves = &mut self.state.moves;
        moves.last_number += 1;
        let moving = Moving { number: moves.last_number, request: moved.request, from: moved.from, to: moved.to, runs, told: None };
        moves.waiting.push_back(moving);
        self.counters.moves.fetch_add(1, Ordering::Relaxed);
        self.start_moves();
    }

    fn start_moves(&mut self) {
        while self.state.moves.under_way.len() < UNDER_WAY_MAX {
            let Some(moving) = self.state.moves.waiting.pop_front() else { return };
            self.start(moving);
        }
    }

    /// Tells workers of a move.
    fn start(&mut self, mut moving: Moving) {
        let worker_of = |domain: DomainId| self.workers.iter().position(|worker| worker.up && worker.domain == domain);
        let (Some(source), Some(target)) = (worker_of(moving.from), worker_of(moving.to)) else {
            self.lose(&moving);
            self.state.events.push(Event::Moved(moving.request));
            return;
        };
        let (from, runs, number) = (WorkerId(source as u32), moving.runs.clone(), moving.number);
        let reaches = self.workers[target].reaches & 1 << source != 0;
        let way = if reaches { Way::Peer } else { Way::Host };
        // If whoever is told is lost, `lost` will find the move.
        let _ = match way {
            Way::Peer => self.workers[target].sender.send(ToWorker::Take { from, runs, number }),
            Way::Host => self.workers[source].sender.send(ToWorker::Read { runs, to: self.workers[target].sender.clone(), number }),
        };
        moving.told = Some((from, WorkerId(target as u32), way));
        self.state.moves.under_way.push(moving);
    }

    fn take_move(&mut self, number: u64) -> Option<Moving> {
        let moves = &mut self.state.moves.under_way;
        let at = moves.iter().position(|moving| moving.number == number)?;
        Some(moves.swap_remove(at))
    }

    /// A move's state is where it should be, or nothing of it comes any more. Of a move whose source was lost it may be said twice.
    pub(super) fn moved(&mut self, number: u64) {
        if let Some(moving) = self.take_move(number) {
            self.state.events.push(Event::Moved(moving.request));
        }
        self.start_moves();
    }

    /// A move's state could not be taken: it passes through the host, and so does from then on whatever goes the same way, since what a device was refused
    /// once it would be refused again.
    pub(super) fn not_moved(&mut self, number: u64) {
        if let Some(moving) = self.take_move(number) {
            if let Some((source, target, _)) = moving.told {
                self.workers[target.index()].reaches &= !(1 << source.index());
            }
            self.start(moving);
        }
        self.start_moves();
    }

    /// A worker is gone, and with it whatever passed through it.
    pub(super) fn lost(&mut self, worker: WorkerId) {
        self.workers[worker.index()].up = false;
        self.state.tally.lost(worker);
        self.state.lanes.lost(worker);
        self.state.events.push(Event::WorkerDown(worker));
        let has_part = |moving: &Moving| moving.told.is_some_and(|(source, target, _)| source == worker || target == worker);
        let (lost, rest): (Vec<Moving>, Vec<Moving>) = std::mem::take(&mut self.state.moves.under_way).into_iter().partition(has_part);
        self.state.moves.under_way = rest;
        for moving in lost {
            self.lose(&moving);
            let busy = moving.told.and_then(|(source, target, way)| {
                let other = if target == worker { source } else { target };
                // It may write still, or read what was left behind. What a lost device took from another by itself goes nowhere any more.
                let has_part = target != worker || way == Way::Host;
                (has_part && self.workers[other.index()].up).then_some((other, way))
            });
            let Some((other, way)) = busy else {
                self.state.events.push(Event::Moved(moving.request));
                continue;
            };
            if way == Way::Host {
                // What it has to do for the move lies in its queue, if anywhere: this lies behind that, and is all there is to say if there is nothing. Were it
                // lost too, the move will be found here again.
                let _ = self.workers[other.index()].sender.send(ToWorker::Write { runs: Vec::new(), number: moving.number });
            }
            // It says when it is done.
            self.state.moves.under_way.push(moving);
        }
        self.start_moves();
    }

    fn lose(&mut self, moving: &Moving) {
        if let Some(entry) = self.state.requests.get_mut(moving.request) {
            entry.worker_lost = true;
        }
        self.state.events.push(Event::Cancel(moving.request));
    }
}

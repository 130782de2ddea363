//! State on its way from one memory domain to another: the source's worker reads, hands over to the target's, which writes and says so.
//!
//! A worker that is lost may have had a part in it; then its request fails, and the scheduler hears that the move is over all the same.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use cellwright_backend::Slot;
use cellwright_scheduler::{Commands, DomainId, Event, Move, RequestId, WorkerId};

use super::{Core, ToWorker};

/// Moves under way at once. Workers hand each other what they read, and must never wait for each other: their queues hold all of these.
const UNDER_WAY_MAX: usize = 24;

/// A move that was commanded.
struct Moving {
    number: u64,
    request: RequestId,
    from: DomainId,
    to: DomainId,
    /// The slot there, the slot here, and how many.
    runs: Vec<(Slot, Slot, u32)>,
    /// Who reads and who writes, once they were told.
    workers: Option<(WorkerId, WorkerId)>,
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
        let runs = commands.copies[moved.copies.clone()].iter().map(|(from, to, count)| (Slot(from.0), Slot(to.0), *count)).collect();
        let moves = &mut self.state.moves;
        moves.last_number += 1;
        let moving = Moving { number: moves.last_number, request: moved.request, from: moved.from, to: moved.to, runs, workers: None };
        moves.waiting.push_back(moving);
        self.counters.moves.fetch_add(1, Ordering::Relaxed);
        self.start_moves();
    }

    fn start_moves(&mut self) {
        while self.state.moves.under_way.len() < UNDER_WAY_MAX {
            let Some(mut moving) = self.state.moves.waiting.pop_front() else { return };
            let worker_of = |domain: DomainId| self.workers.iter().position(|worker| worker.up && worker.domain == domain);
            let (Some(source), Some(target)) = (worker_of(moving.from), worker_of(moving.to)) else {
                self.lose(&moving);
                continue;
            };
            let runs = std::mem::take(&mut moving.runs);
            let read = ToWorker::Read { runs, to: self.workers[target].sender.clone(), number: moving.number };
            // If the source is lost, `lost` will find the move.
            let _ = self.workers[source].sender.send(read);
            moving.workers = Some((WorkerId(source as u32), WorkerId(target as u32)));
            self.state.moves.under_way.push(moving);
        }
    }

    /// A move's state has been written.
    pub(super) fn moved(&mut self, number: u64) {
        let moves = &mut self.state.moves.under_way;
        if let Some(at) = moves.iter().position(|moving| moving.number == number) {
            let moving = moves.swap_remove(at);
            self.state.events.push(Event::Moved(moving.request));
        }
        self.start_moves();
    }

    /// A worker is gone, and with it whatever passed through it.
    pub(super) fn lost(&mut self, worker: WorkerId) {
        self.workers[worker.index()].up = false;
        self.state.tally.lost(worker);
        self.state.events.push(Event::WorkerDown(worker));
        let concerned = |moving: &mut Moving| moving.workers.is_some_and(|(source, target)| source == worker || target == worker);
        let lost: Vec<Moving> = self.state.moves.under_way.extract_if(.., concerned).collect();
        for moving in &lost {
            self.lose(moving);
        }
        self.start_moves();
    }

    fn lose(&mut self, moving: &Moving) {
        if let Some(entry) = self.state.requests.get_mut(moving.request) {
            entry.worker_lost = true;
        }
        self.state.events.push(Event::Cancel(moving.request));
        self.state.events.push(Event::Moved(moving.request));
    }
}

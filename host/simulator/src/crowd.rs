//! A crowd of requests that is always as large, on a device that is always done at once: what is left is the cost of deciding.
//!
//! It prepares events and takes in what the scheduler wants; whoever measures does it around [`Crowd::decide`], which is `handle` and nothing else.

use std::sync::Arc;

use cellwright_cell_graph::Random;
use cellwright_scheduler::{
    CellTypeId, Commands, Config, DomainId, Event, ModelId, NumericClass, RequestId, Scheduler, Submission, TaskSeq, TenantId, Time,
    WorkerId,
};

use crate::workload::{Drawn, Ids, Workload};

/// The one worker.
const WORKER: WorkerId = WorkerId(0);
/// Slots of its memory: more than any crowd needs.
const ARENA_SLOTS: u32 = 1 << 27;
/// So many arrive at once, where nothing is to complete.
const ARRIVALS: usize = 100;
/// Cell types of a model, at most.
const TYPES_PER_MODEL: u32 = 64;

/// What a crowd is made of.
#[derive(Debug)]
pub struct Members {
    /// Kinds of requests, and the batch limits of their cells.
    pub kinds: Vec<(Workload, Vec<u32>)>,
    /// Models; each has one of the kinds, in turn.
    pub models: u32,
    /// Whose they are, evenly.
    pub tenants: u32,
    /// Requests in flight.
    pub in_flight: u32,
}

/// What was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it all")]
pub struct Decided {
    pub tasks: u64,
    pub nodes: u64,
    pub finished: u64,
}

/// A crowd and its scheduler.
#[derive(Debug)]
pub struct Crowd {
    members: Members,
    random: Random,
    scheduler: Scheduler,
    events: Vec<Event>,
    commands: Commands,
    now: Time,
    /// Requests that are not in flight.
    idle: Vec<RequestId>,
    /// The last launch in flight, and how long all of them took.
    launched: Option<(TaskSeq, u64)>,
    decided: Decided,
}

impl Crowd {
    /// Nobody in flight yet.
    #[must_use]
    pub fn new(members: Members, seed: u64) -> Self {
        let class = NumericClass(0);
        let models = (0..members.models.max(1)).map(|model| {
            let (workload, limits) = &members.kinds[model as usize % members.kinds.len()];
            let tenant = TenantId(model % members.tenants.max(1));
            let ids = Ids { model: ModelId(model), tenant, first_type: CellTypeId(model.saturating_mul(TYPES_PER_MODEL)) };
            Event::ModelUp(Arc::new(workload.model(ids, limits)))
        });
        let up = Event::WorkerUp { worker: WORKER, domain: DomainId(0), class, arena_slots: ARENA_SLOTS };
        let mut crowd = Self {
            random: Random::new(seed),
            scheduler: Scheduler::new(Config::default()),
            events: models.chain([up]).collect(),
            commands: Commands::default(),
            now: Time(0),
            idle: (0..members.in_flight).rev().map(RequestId).collect(),
            launched: None,
            decided: Decided::default(),
            members,
        };
        crowd.decide();
        crowd
    }

    /// The next events: whoever has finished is followed by another, and the device has completed all that it was given.
    pub fn prepare(&mut self) {
        while let Some(request) = self.idle.pop() {
            let event = self.submission(request);
            self.events.push(event);
        }
        if let Some((up_to, busy_ns)) = self.launched.take() {
            self.events.push(Event::Done { worker: WORKER, up_to, busy_ns, stopped: Vec::new(), failed: Vec::new() });
        }
        self.now.0 += 1;
    }

    /// Some of the crowd arrive, and nothing completes; whether anybody did. What they take in memory is what is taken until nobody does.
    pub fn prepare_arrivals(&mut self) -> bool {
        let first = self.idle.len().saturating_sub(ARRIVALS);
        for request in self.idle.split_off(first) {
            let event = self.submission(request);
            self.events.push(event);
        }
        !self.events.is_empty()
    }

    fn submission(&mut self, request: RequestId) -> Event {
        let model = self.random.below(self.members.models.max(1) as usize);
        let kind = model % self.members.kinds.len();
        let Drawn { growth, .. } = self.members.kinds[kind].0.draw(&mut self.random);
        Event::Submit(Submission { request, model: ModelId(model as u32), rank: 0, deadline: None, growth })
    }

    /// One `handle`, to be measured.
    pub fn decide(&mut self) {
        self.scheduler.handle(self.now, &mut self.events, &mut self.commands);
    }

    /// Takes in what was decided.
    pub fn take_in(&mut self) {
        for launch in &self.commands.launches {
            let rows = launch.rows.len() as u64;
            // A time of which shares can be counted, though none passes.
            let busy_ns = 1000 + rows * u64::from(launch.steps);
            self.launched = Some((launch.seq, busy_ns + self.launched.map_or(0, |(_, before)| before)));
            self.decided.tasks += u64::from(launch.steps);
            self.decided.nodes += rows * u64::from(launch.steps);
        }
        self.decided.finished += self.commands.finished.len() as u64;
        self.idle.extend(&self.commands.finished);
    }

    /// What the scheduler holds of the nodes of those in flight one by one, in bytes.
    #[must_use]
    pub fn bytes_of_nodes(&self) -> usize {
        self.scheduler.bytes_of_nodes()
    }

    /// What was decided since the last time that it was asked.
    pub const fn decided(&mut self) -> Decided {
        std::mem::replace(&mut self.decided, Decided { tasks: 0, nodes: 0, finished: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Decoding, Lengths, Pairs, Trees};

    #[test]
    fn a_crowd_stays_as_large_as_it_is() {
        let kinds = vec![
            (Workload::lstm(Lengths::EUROPARL), vec![16]),
            (Workload::trees(&Trees::treebank(1)), vec![8]),
            (Workload::seq2seq(Pairs::EUROPARL, Decoding::Known), vec![16, 8]),
        ];
        let mut crowd = Crowd::new(Members { kinds, models: 7, tenants: 3, in_flight: 100 }, 5);
        let mut all = Decided::default();
        for _ in 0..2000 {
            crowd.prepare();
            crowd.decide();
            crowd.take_in();
            let Decided { tasks, nodes, finished } = crowd.decided();
            all = Decided { tasks: all.tasks + tasks, nodes: all.nodes + nodes, finished: all.finished + finished };
            assert_eq!(crowd.scheduler.requests_in_flight() as usize + crowd.idle.len(), 100);
        }
        assert!(all.finished > 100 && all.nodes > all.tasks && all.tasks > 1000, "{all:?}");
    }
}

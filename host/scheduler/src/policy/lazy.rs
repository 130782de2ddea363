//! LazyBatching (Choi, Kim, Rhu; HPCA'21): requests are batched node by node, and whoever comes later may catch up with who came before.
//!
//! A request's nodes are executed one after the other, in the order in which they stand in its graph (section II-A). Requests that are at the same
//! node are a *sub-batch*, and what runs is the sub-batch that is furthest behind: newcomers preempt a batch between two of its nodes, and merge
//! with it when they have caught up (section IV-A). Whether they may is for the slack of all concerned to say (section IV-C, see `slack`): if
//! not, the batch completes uninterrupted, and they wait, even if there comes to be slack for them meanwhile (section IV-B). Then all who wait begin
//! together, as a batch or, if there is but one, in isolation.
//!
//! The paper keeps sub-batches on a stack, its BatchTable, pushes newcomers on top, and merges the two topmost when they are at one node
//! (section IV-B, figure 10). A newcomer is behind everybody, so that the top is always who is furthest behind; here requests are kept in a list, and
//! the top is found by looking, which is the same and survives requests whose graphs have different shapes. Steps of a chain are one node: their
//! weights are the same, so that a request at its first step joins those at any other, as under cellular batching.

mod slack;

use std::collections::BTreeMap;

use crate::command::{Failure, Row};
use crate::id::{CellTypeId, ModelId, Time, WorkerId};
use crate::policy::shelf::Member;
use crate::queues::Key;
use crate::request::Chain;
use crate::scheduler::Scheduler;
use slack::Profile;

/// A request of a batch, and its next node.
#[derive(Clone, Copy, Debug)]
struct Rider {
    member: Member,
    /// In its growth.
    chain: u32,
    stage: u32,
    step: u32,
    /// Whether it was looked at which steps the chain names; if it may stop by itself, the next step.
    checked: bool,
    /// How long the rest of it would take alone, nanoseconds.
    left_ns: u64,
    /// When it should be done.
    due: Time,
}

/// Where a batch may meet: requests that are at the same place of a graph, and there at the same type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NodeId {
    chain: u32,
    stage: u32,
    cell_type: CellTypeId,
}

/// What a request does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    At(NodeId),
    /// It depends on tasks in flight.
    Wait,
    /// Every node was submitted.
    Over,
}

/// The paper's BatchTable.
#[derive(Debug, Default)]
struct Table {
    riders: Vec<Rider>,
    /// Somebody had no slack for a newcomer: the batch completes uninterrupted.
    closed: bool,
}

/// What runs: a table of each model on each worker, and what was learned of models.
#[derive(Debug, Default)]
pub(crate) struct LazyPolicy {
    tables: BTreeMap<(WorkerId, ModelId), Table>,
    profiles: BTreeMap<ModelId, Profile>,
}

impl LazyPolicy {
    /// A model is gone.
    pub(crate) fn forget_model(&mut self, id: ModelId) {
        self.tables.retain(|(_, model), _| *model != id);
        self.profiles.remove(&id);
    }
}

/// Choosing.
impl Scheduler {
    /// Since when a worker could run something of the model.
    pub(crate) fn oldest_lazy(&self, worker: WorkerId, model: ModelId) -> Option<Key> {
        let state = self.worker(worker).filter(|state| state.outstanding <= self.config.low_water)?;
        let riders = self.riders(worker, model);
        let mut staying = riders.iter().filter(|rider| self.in_batch(&rider.member, worker));
        if staying.any(|rider| matches!(self.peek_rider(rider), Next::At(_))) {
            return Some(Key::FIRST);
        }
        self.oldest_due(model, state.domain).filter(|_| self.admissible(worker, model).0 > 0)
    }

    /// Lets in whom slack allows, and submits the next node of the sub-batch that is furthest behind; whether there was anything to do.
    pub(crate) fn run_lazy(&mut self, worker: WorkerId, model: ModelId) -> bool {
        let (newcomers, refused) = self.admissible(worker, model);
        let mut table = self.lazy.tables.remove(&(worker, model)).unwrap_or_default();
        table.closed |= refused;
        if newcomers > 0 {
            let members = self.take_from_shelf(worker, model, |_, _| newcomers);
            table.riders.extend(members.into_iter().map(|member| self.rider(model, member)));
        }
        let riders = &mut table.riders;
        riders.retain(|rider| self.in_batch(&rider.member, worker));
        riders.iter_mut().for_each(|rider| self.settle_rider(rider));
        self.settle_failures();
        // Others may come in their place.
        let given_up = riders.iter().any(|rider| !self.in_batch(&rider.member, worker));
        let behind = riders.iter().filter(|rider| self.in_batch(&rider.member, worker)).filter_map(|rider| self.node(rider)).min();
        if let Some(node) = behind {
            self.submit_node(worker, model, node, riders);
        }
        self.lazy.tables.insert((worker, model), table);
        self.end_riders(worker, model) || behind.is_some() || given_up
    }

    fn riders(&self, worker: WorkerId, model: ModelId) -> &[Rider] {
        self.lazy.tables.get(&(worker, model)).map_or(&[], |table| &table.riders)
    }

    fn rider(&self, model: ModelId, member: Member) -> Rider {
        let left_ns = self.alone_ns(model, &member, 0);
        Rider { member, chain: 0, stage: 0, step: 0, checked: false, left_ns, due: self.due_at(&member) }
    }

    fn chain_of(&self, rider: &Rider) -> Option<&Chain> {
        let graph = self.graph_of(&rider.member)?;
        self.request(rider.member.request).chain(graph.first_chain + rider.chain)
    }

    /// The node that a settled rider is at.
    fn node(&self, rider: &Rider) -> Option<NodeId> {
        match self.peek_rider(rider) {
            Next::At(node) => Some(node),
            Next::Wait | Next::Over => None,
        }
    }

    /// What a rider does next; `Wait` too if it is to be looked at first what its chain names.
    fn peek_rider(&self, rider: &Rider) -> Next {
        let mut at = *rider;
        while let Some(graph) = self.graph_of(&at.member).filter(|graph| (at.chain as usize) < graph.chains.len()) {
            let Some(chain) = self.chain_of(&at).filter(|chain| !chain.cancelled && at.step < chain.end) else {
                at = Rider { chain: at.chain + 1, stage: 0, step: 0, checked: false, ..at };
                continue;
            };
            if !at.checked && self.waits_for_stop(&at, graph.first_chain, chain) {
                return Next::Wait;
            }
            let cell_type = self.lane(chain.lane(at.stage)).cell_type;
            return Next::At(NodeId { chain: at.chain, stage: at.stage, cell_type });
        }
        Next::Over
    }

    /// Whether how long a chain is, or what it reads, depends on stops of earlier chains that are not known; or whether its next step is executed on one of
    /// its own.
    fn waits_for_stop(&self, rider: &Rider, first: u32, chain: &Chain) -> bool {
        let request = self.request(rider.member.request);
        let mut before = (first..first + rider.chain).filter_map(|number| request.chain(number));
        let mut unknown = || match rider.step {
            0 => before.any(|chain| chain.stops && !chain.ended()),
            _ => self.names_beyond_end(chain, rider.step).is_some(),
        };
        request.flying > 0 && unknown()
    }

    /// Moves a rider on to its next node: past chains that have ended. Whoever names steps there that were never executed is given up.
    fn settle_rider(&mut self, rider: &mut Rider) {
        while let Some(graph) = self.graph_of(&rider.member).filter(|graph| (rider.chain as usize) < graph.chains.len()) {
            let (first, model) = (graph.first_chain, self.request(rider.member.request).model);
            let Some(chain) = self.chain_of(rider).filter(|chain| !chain.cancelled && rider.step < chain.end) else {
                *rider = Rider { chain: rider.chain + 1, stage: 0, step: 0, checked: false, ..*rider };
                rider.left_ns = rider.left_ns.min(self.alone_ns(model, &rider.member, rider.chain));
                continue;
            };
            if rider.checked || self.waits_for_stop(rider, first, chain) {
                return;
            }
            if let Some(chain) = self.names_beyond_end(chain, rider.step) {
                self.doom(rider.member.request, Failure::BeyondEnd { chain });
            }
            rider.checked = true;
        }
    }

    /// Submits a node of all riders that are there, and moves them on.
    fn submit_node(&mut self, worker: WorkerId, model: ModelId, node: NodeId, riders: &mut [Rider]) {
        let known = self.model(model).types.iter().find(|known| known.cell_type == node.cell_type);
        let most = known.map_or(1, |known| known.batch.max as usize);
        let mut rows: Vec<Row> = Vec::new();
        for rider in riders {
            if rows.len() >= most || !self.in_batch(&rider.member, worker) || self.node(rider) != Some(node) {
                continue;
            }
            let place = |chain: &Chain| (chain.lane(rider.stage), chain.stages(), chain.stops_itself());
            let Some((lane, stages, stops)) = self.chain_of(rider).map(place) else { continue };
            rows.push(Row { lane, step: rider.step });
            rider.left_ns = rider.left_ns.saturating_sub(self.node_ns(model, node.cell_type));
            (rider.stage, rider.step, rider.checked) =
                if rider.stage + 1 < stages { (rider.stage + 1, rider.step, true) } else { (0, rider.step + 1, !stops) };
        }
        self.hand_over(worker, model, node.cell_type, &rows);
    }
}

/// Ending.
impl Scheduler {
    /// A task of a worker is complete; perhaps requests are.
    pub(crate) fn lazy_task_done(&mut self, worker: WorkerId) {
        if self.lazy.tables.is_empty() {
            return;
        }
        self.settle_failures();
        let all = (worker, ModelId(0))..=(worker, ModelId(u32::MAX));
        let models: Vec<ModelId> = self.lazy.tables.range(all).map(|((_, model), _)| *model).collect();
        for model in models {
            self.end_riders(worker, model);
        }
    }

    /// Requests leave as soon as nothing of them is left; whether any did.
    fn end_riders(&mut self, worker: WorkerId, model: ModelId) -> bool {
        let over =
            |this: &Self, rider: &Rider| this.request(rider.member.request).flying == 0 && matches!(this.peek_rider(rider), Next::Over);
        let riders = self.riders(worker, model).iter();
        let over: Vec<Member> =
            riders.filter(|rider| self.in_batch(&rider.member, worker) && over(self, rider)).map(|rider| rider.member).collect();
        for member in &over {
            self.learn_lengths(model, member);
            self.leave_batch(member, worker);
        }
        self.riders_left(worker, model);
        !over.is_empty()
    }

    /// Somebody may have left a worker's batch. One that is left without anybody is gone, and with it that it takes no newcomers.
    pub(crate) fn riders_left(&mut self, worker: WorkerId, model: ModelId) {
        if let Some(mut table) = self.lazy.tables.remove(&(worker, model)) {
            table.riders.retain(|rider| self.in_batch(&rider.member, worker));
            if !table.riders.is_empty() {
                self.lazy.tables.insert((worker, model), table);
            }
        }
    }

    /// A worker is lost, and its batches with it.
    pub(crate) fn lazy_worker_lost(&mut self, worker: WorkerId) -> Vec<Member> {
        let mut lost = Vec::new();
        self.lazy.tables.retain(|(other, _), table| {
            lost.extend(table.riders.iter().filter(|_| *other == worker).map(|rider| rider.member));
            *other != worker
        });
        lost
    }
}

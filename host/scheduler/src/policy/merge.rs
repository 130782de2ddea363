//! Merging graphs: TensorFlow Fold's dynamic batching (Looks et al., ICLR'17, section 2) and DyNet's batching on the fly (Neubig et al., NIPS'17),
//! as BatchMaker compares itself with them (EuroSys'18, sections 2.3 and 7.5).
//!
//! A worker that has no set takes up to so many requests, whatever their graphs, and merges them level by level: all nodes of a type that are
//! equally deep run together, cut only at the type's batch limit, and no level begins before the one below it was submitted. Nobody joins a
//! set, and nobody leaves before it is complete: the whole is one graph to the system that runs it.
//!
//! A level is never computed: it is what of the set is ready when the level before has been submitted.

use crate::command::Row;
use crate::id::{CellTypeId, ModelId, Time, WorkerId};
use crate::policy::shelf::Member;
use crate::queues::Key;
use crate::scheduler::Scheduler;

/// A ready node, and since when it is, where that says where it is listed.
type Node = (Row, Option<Time>);

/// Requests that run as one graph.
#[derive(Debug)]
struct Set {
    model: ModelId,
    members: Vec<Member>,
    /// What is left of the current level, type by type, in the reverse of the order in which it is submitted.
    level: Vec<(CellTypeId, Vec<Node>)>,
}

/// What runs: a set on each worker.
#[derive(Debug, Default)]
pub(crate) struct MergePolicy(Vec<Option<Set>>);

impl Scheduler {
    /// Since when a worker could run something of the model: of the set that it has, or, if it has none, a new one.
    pub(crate) fn oldest_merged(&self, worker: WorkerId, model: ModelId) -> Option<Key> {
        let state = self.worker(worker)?;
        let Some(set) = self.live_set(worker) else { return self.oldest_due(model, state.domain) };
        let asks = set.model == model && state.outstanding < self.config.max_tasks_to_submit;
        (asks && (self.has_ready(worker, set) || !self.any_flying(&set.members, worker))).then_some(Key::FIRST)
    }

    /// Submits the next task of a worker's set, after it has taken one if it had none; whether there was anything to do.
    pub(crate) fn run_merge(&mut self, worker: WorkerId, model: ModelId) -> bool {
        if self.live_set(worker).is_none() {
            self.take_set(worker, model);
        }
        if self.set(worker).is_some_and(|set| set.level.is_empty()) {
            let level = self.next_level(worker, model);
            if let Some(set) = self.set_mut(worker) {
                set.level = level;
            }
        }
        // If all of a level rode along with others, there may be another one.
        self.submit_of_level(worker, model)
            || self.end_set_if_over(worker)
            || self.set(worker).is_some_and(|set| self.has_ready(worker, set))
    }

    fn take_set(&mut self, worker: WorkerId, model: ModelId) {
        let members = self.take_from_shelf(worker, model, Self::members_max);
        if members.is_empty() {
            return;
        }
        for member in &members {
            let graph = self.request(member.request).growth(member.growth).cloned();
            if let Some(graph) = graph {
                self.start_growth(member.request, &graph);
            }
        }
        if worker.index() >= self.merge.0.len() {
            self.merge.0.resize_with(worker.index() + 1, || None);
        }
        self.merge.0[worker.index()] = Some(Set { model, members, level: Vec::new() });
        self.settle_failures();
    }

    /// All that is ready now, by type; the highest priority is submitted first.
    fn next_level(&self, worker: WorkerId, model: ModelId) -> Vec<(CellTypeId, Vec<Node>)> {
        let mut types: Vec<_> = self.model(model).types.iter().map(|known| (known.priority, known.cell_type)).collect();
        types.sort_unstable();
        let picks = types.into_iter().map(|(_, cell_type)| (cell_type, self.ready_in_set(worker, cell_type).collect::<Vec<_>>()));
        picks.filter(|(_, picks)| !picks.is_empty()).collect()
    }

    /// Submits as much of a level's next type as makes a task.
    fn submit_of_level(&mut self, worker: WorkerId, model: ModelId) -> bool {
        while let Some((cell_type, mut picks)) = self.set_mut(worker).and_then(|set| set.level.pop()) {
            let most =
                self.model(model).types.iter().find(|known| known.cell_type == cell_type).map_or(1, |known| known.batch.max as usize);
            let rest = picks.split_off(picks.len().min(most));
            if let Some(set) = self.set_mut(worker).filter(|_| !rest.is_empty()) {
                set.level.push((cell_type, rest));
            }
            // Requests may have been given up, and rows may have ridden along with another model's, since the level began.
            picks.retain(|(node, _)| self.is_ready(*node) && self.request(self.lane(node.lane).request).batch() == Some(worker));
            if !picks.is_empty() {
                self.submit_picks(worker, cell_type, model, &picks);
                return true;
            }
        }
        false
    }

    fn submit_picks(&mut self, worker: WorkerId, cell_type: CellTypeId, model: ModelId, picks: &[Node]) {
        let rows: Vec<Row> = picks.iter().map(|(node, _)| *node).collect();
        self.hand_over(worker, model, cell_type, &rows);
        for node in &rows {
            self.after_queued(node.lane, std::slice::from_ref(node), worker);
        }
        self.settle_told(Some(worker));
        for (node, ready) in picks {
            self.tidy(node.lane, node.step, *ready);
        }
        self.settle_failures();
    }

    /// A set is complete when nothing of it is ready and nothing in flight; only now its requests are done. One that was given up as a whole is over: its model
    /// may be gone with its last request.
    fn end_set_if_over(&mut self, worker: WorkerId) -> bool {
        let goes_on = |set: &Set| self.has_ready(worker, set) || self.any_flying(&set.members, worker);
        let over = self.set(worker).is_some() && !self.live_set(worker).is_some_and(goes_on);
        let Some(set) = self.merge.0.get_mut(worker.index()).and_then(|set| set.take_if(|_| over)) else { return false };
        for member in set.members {
            self.leave_batch(&member, worker);
        }
        true
    }

    /// A task is complete; perhaps the set is.
    pub(crate) fn set_task_done(&mut self, worker: WorkerId) {
        if self.set(worker).is_some() {
            self.end_set_if_over(worker);
        }
    }

    fn has_ready(&self, worker: WorkerId, set: &Set) -> bool {
        !set.level.is_empty() || self.types_of(set.model).any(|cell_type| self.ready_in_set(worker, cell_type).next().is_some())
    }

    /// A worker is lost, and its set with it.
    pub(crate) fn merge_worker_lost(&mut self, worker: WorkerId) -> Vec<Member> {
        self.merge.0.get_mut(worker.index()).and_then(Option::take).map(|set| set.members).unwrap_or_default()
    }

    fn types_of(&self, model: ModelId) -> impl Iterator<Item = CellTypeId> {
        self.model(model).types.iter().map(|known| known.cell_type)
    }

    /// Ready nodes of a worker's set.
    fn ready_in_set(&self, worker: WorkerId, cell_type: CellTypeId) -> impl Iterator<Item = Node> {
        self.ready_for(worker, cell_type).filter(move |(node, _)| self.request(self.lane(node.lane).request).batch() == Some(worker))
    }

    fn set(&self, worker: WorkerId) -> Option<&Set> {
        self.merge.0.get(worker.index())?.as_ref()
    }

    /// The same, unless all its requests were given up: nobody would ask for the rest of it.
    fn live_set(&self, worker: WorkerId) -> Option<&Set> {
        self.set(worker).filter(|set| set.members.iter().any(|member| self.in_batch(member, worker)))
    }

    fn set_mut(&mut self, worker: WorkerId) -> Option<&mut Set> {
        self.merge.0.get_mut(worker.index())?.as_mut()
    }
}

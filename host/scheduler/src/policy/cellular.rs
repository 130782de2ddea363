//! Cellular batching: Algorithm 1 of BatchMaker (EuroSys'18, section 4.3), with its gaps filled.
//!
//! Only nodes that the asking worker may run count; an empty batch is never submitted; ties go to the oldest ready node, then to the smallest
//! id; queues are first come, first served, within a rank. The model is chosen first, by device time owed; the algorithm runs among the types of which it has
//! nodes ready, and nodes of other models of the same type ride along.

use crate::command::Row;
use crate::event::BatchSizes;
use crate::id::{CellTypeId, DomainId, LaneId, ModelId, Time, WorkerId};
use crate::lane::{Lane, NodeState, Progress, Ready};
use crate::listing::scope;
use crate::queues::{Item, Key, Scope};
use crate::scheduler::Scheduler;

/// A node chosen for a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub(crate) lane: LaneId,
    pub(crate) step: u32,
    /// When it became ready, where that says where it is listed.
    ready: Option<Time>,
}

impl Pick {
    const fn row(&self) -> Row {
        Row { lane: self.lane, step: self.step }
    }
}

impl Scheduler {
    /// Every worker that asks for work gets some, as long as there is any; workers in order of their ids.
    pub(crate) fn run_cellular(&mut self) {
        self.note_activity();
        for index in 0..self.workers.len() {
            let worker = WorkerId(index as u32);
            while self.worker(worker).is_some_and(|state| state.outstanding <= self.config.low_water) {
                if !self.schedule(worker) {
                    break;
                }
            }
        }
        self.move_to_idle_workers();
    }

    /// Algorithm 1, `Schedule`: one model, one type, up to `max_tasks_to_submit` tasks; whether there was anything to do.
    fn schedule(&mut self, worker: WorkerId) -> bool {
        let Some(model) = self.choose_model(worker) else { return false };
        let Some(position) = self.choose_type(model, worker) else { return false };
        let chosen = &self.model(model).types[position];
        let (cell_type, sizes) = (chosen.cell_type, chosen.batch);
        let mut picks = std::mem::take(&mut self.picks);
        for task in 0..self.config.max_tasks_to_submit {
            self.form_batch(worker, cell_type, sizes, &mut picks);
            let enough = if task == 0 { 1 } else { sizes.min as usize };
            if picks.len() < enough {
                break;
            }
            self.submit_batch(worker, cell_type, model, &picks, task > 0);
        }
        self.picks = picks;
        true
    }

    /// Algorithm 1, lines 5 to 10, for a model's types of which it has ready nodes that the worker may run.
    fn choose_type(&self, model: ModelId, worker: WorkerId) -> Option<usize> {
        let domain = self.worker(worker)?.domain;
        let types = &self.model(model).types;
        let candidates = || (0..types.len()).filter(|at| types[*at].tally.runnable(worker, domain) > 0);
        let full = |at: &usize| self.types[types[*at].cell_type.index()].tally.runnable(worker, domain) >= types[*at].batch.max;
        let idle = |at: &usize| self.types[types[*at].cell_type.index()].running == 0;
        let rank = |at: &usize| types[*at].priority;
        let best = candidates().filter(full).map(|at| rank(&at)).max().map(|rank| (rank, 0));
        let best = best.or_else(|| candidates().filter(idle).map(|at| rank(&at)).max().map(|rank| (rank, 1)));
        let (highest, criterion) = best.or_else(|| candidates().map(|at| rank(&at)).max().map(|rank| (rank, 2)))?;
        let mut finalists = candidates()
            .filter(|at| rank(at) == highest && (criterion == 2 || (criterion == 0 && full(at)) || (criterion == 1 && idle(at))));
        let first = finalists.next()?;
        let Some(second) = finalists.next() else { return Some(first) };
        let age = |at: usize| (self.oldest(types[at].cell_type, worker, domain, None), types[at].cell_type);
        [first, second].into_iter().chain(finalists).min_by_key(|at| age(*at))
    }

    /// The age of the oldest ready node of a type (and model) that a worker may run.
    pub(crate) fn oldest(&self, cell_type: CellTypeId, worker: WorkerId, domain: DomainId, model: Option<ModelId>) -> Option<Key> {
        let mut oldest: Option<Key> = None;
        for (place, item) in self.types[cell_type.index()].items(domain) {
            // No node is ready before its subgraph entered.
            if oldest.is_some_and(|oldest| (oldest.rank, oldest.time) < (place.rank, place.time)) {
                break;
            }
            let (Item::Front(lane) | Item::Run(lane, ..) | Item::Subgraph(lane, _)) = *item;
            let lane = self.lane(lane);
            if model.is_none_or(|model| model == lane.model) {
                let age = first_runnable(lane, *item, worker).map(|(step, ready)| lane.key(ready.time, step));
                oldest = oldest.into_iter().chain(age).min();
            }
        }
        oldest
    }

    /// Algorithm 1, `FormBatchedTask`; a batch above the quantum is cut to a multiple of it.
    fn form_batch(&self, worker: WorkerId, cell_type: CellTypeId, sizes: BatchSizes, picks: &mut Vec<Pick>) {
        picks.clear();
        let Some(domain) = self.worker(worker).map(|state| state.domain) else { return };
        let queue = &self.types[cell_type.index()];
        let wanted = sizes.max.min(queue.tally.runnable(worker, domain)) as usize;
        for (_, item) in queue.items(domain) {
            if picks.len() >= wanted {
                break;
            }
            pick_ready(&self.lanes, *item, worker, wanted, picks);
        }
        let quantum = sizes.quantum as usize;
        if picks.len() > quantum {
            picks.truncate(picks.len() / quantum * quantum);
        }
    }

    /// Algorithm 1, lines 17 to 21: submit, update dependencies, pin.
    fn submit_batch(&mut self, worker: WorkerId, cell_type: CellTypeId, model: ModelId, picks: &[Pick], follows: bool) {
        let merge = follows && self.config.merge_steps && self.continues_last(worker, cell_type, picks.iter().map(Pick::row));
        self.launch(worker, cell_type, model, picks.iter().map(Pick::row), merge);
        for pick in picks {
            self.queue_node(pick.lane, pick.step, worker);
        }
        for pick in picks {
            self.after_queued(pick.lane, pick.step, worker);
        }
        for pick in picks {
            self.tidy(pick.lane, pick.step, pick.ready);
        }
        self.settle_failures();
    }
}

fn runnable(lane: &Lane, pinned: Option<WorkerId>, ready: Ready, worker: WorkerId) -> bool {
    match scope(lane.domain, pinned, ready.only) {
        Scope::Domain(_) => true,
        Scope::Worker(only) => only == worker,
        Scope::Nobody => false,
    }
}

/// The first ready node of a listed subgraph (or run) that a worker may run.
fn first_runnable(lane: &Lane, item: Item, worker: WorkerId) -> Option<(u32, Ready)> {
    match (&lane.progress, item) {
        (Progress::Front(front), _) => {
            front.ready.filter(|ready| runnable(lane, lane.pinned(), *ready, worker)).map(|ready| (front.queued, ready))
        }
        (Progress::Each(nodes), Item::Run(_, from, to)) => (from..to).find_map(|step| match nodes.states[step as usize] {
            NodeState::Ready(ready) if runnable(lane, None, ready, worker) => Some((step, ready)),
            _ => None,
        }),
        (Progress::Grouped(grouped), Item::Subgraph(_, group)) => {
            let subgraph = &grouped.subgraphs[group as usize];
            subgraph.ready.iter().find(|(_, ready)| runnable(lane, subgraph.pinned(), *ready, worker)).copied()
        }
        _ => None,
    }
}

/// Adds the ready nodes of a listed subgraph (or run) that a worker may run, until there are `wanted`.
fn pick_ready(lanes: &[Lane], item: Item, worker: WorkerId, wanted: usize, picks: &mut Vec<Pick>) {
    let (Item::Front(id) | Item::Run(id, ..) | Item::Subgraph(id, _)) = item;
    let lane = &lanes[id.index()];
    let room = wanted - picks.len();
    match (&lane.progress, item) {
        (Progress::Front(front), _) => {
            let ready = front.ready.filter(|ready| runnable(lane, lane.pinned(), *ready, worker));
            picks.extend(ready.map(|_| Pick { lane: id, step: front.queued, ready: None }));
        }
        (Progress::Each(nodes), Item::Run(_, from, to)) => {
            let ready = (from..to).filter_map(|step| match nodes.states[step as usize] {
                NodeState::Ready(ready) if runnable(lane, None, ready, worker) => Some(Pick { lane: id, step, ready: Some(ready.time) }),
                _ => None,
            });
            picks.extend(ready.take(room));
        }
        (Progress::Grouped(grouped), Item::Subgraph(_, group)) => {
            let subgraph = &grouped.subgraphs[group as usize];
            let ready = subgraph.ready.iter().filter(|(_, ready)| runnable(lane, subgraph.pinned(), *ready, worker));
            picks.extend(ready.take(room).map(|(step, _)| Pick { lane: id, step: *step, ready: None }));
        }
        _ => {}
    }
}

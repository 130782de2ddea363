//! Cellular batching: Algorithm 1 of BatchMaker (EuroSys'18, section 4.3), with its gaps filled.
//!
//! Only nodes that the asking worker may run count; an empty batch is never submitted; ties go to the oldest ready node, then to the smallest
//! id; queues are first come, first served, within a rank. The model is chosen first, by device time owed; the algorithm runs among the types of which it has
//! nodes ready, and nodes of other models of the same type ride along.

use crate::command::Row;
use crate::config::PolicyKind;
use crate::event::BatchSizes;
use crate::group::Counted;
use crate::id::{CellTypeId, DomainId, LaneId, ModelId, Time, WorkerId};
use crate::lane::{Grouped, Lane, NodeState, Progress, Ready, Status};
use crate::listing::scope;
use crate::queues::{Item, Key, Scope};
use crate::scheduler::Scheduler;

/// A node chosen for a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub(crate) lane: LaneId,
    pub(crate) step: u32,
    /// When it became ready, where that says where it is listed.
    pub(crate) ready: Option<Time>,
    /// The first step of its run, or the number of its subgraph: those of one are listed together.
    first: u32,
    /// How many of its worker's group come before it.
    after: usize,
}

/// What a batch is made of.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Nodes from the queue, in its order.
    picks: Vec<Pick>,
    /// So many of the worker's group.
    members: usize,
    /// Picked nodes of lanes that do not join, with their places among the rows.
    apart: Vec<(usize, Pick)>,
    /// The model of all of those, if there is but one.
    sole: Option<ModelId>,
}

impl Batch {
    const fn len(&self) -> usize {
        self.picks.len() + self.members
    }
}

impl Scheduler {
    /// Algorithm 1, `Schedule`, for a model: one type, up to `max_tasks_to_submit` tasks; whether there was anything to do.
    pub(crate) fn schedule(&mut self, worker: WorkerId, model: ModelId) -> bool {
        let Some(position) = self.choose_type(model, worker) else { return false };
        let position = if self.model(model).policy == PolicyKind::Adaptive { self.behind(model, worker, position) } else { position };
        let chosen = &self.model(model).types[position];
        let (cell_type, sizes) = (chosen.cell_type, chosen.batch);
        let mut batch = std::mem::take(&mut self.batch);
        for task in 0..self.config.max_tasks_to_submit {
            self.settle_counts();
            self.form_batch(worker, cell_type, sizes, &mut batch);
            let enough = if task == 0 { 1 } else { sizes.min as usize };
            if batch.len() < enough {
                break;
            }
            self.submit_batch(worker, cell_type, model, &mut batch, task > 0);
        }
        self.batch = batch;
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
        let queue = &self.types[cell_type.index()];
        queue.oldest(worker, model, || self.find_oldest(cell_type, worker, domain, model))
    }

    fn find_oldest(&self, cell_type: CellTypeId, worker: WorkerId, domain: DomainId, model: Option<ModelId>) -> Option<Key> {
        let mut oldest = self.oldest_of_group(cell_type, worker, model);
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

    /// Algorithm 1, `FormBatchedTask`; a batch above the quantum is cut to a multiple of it. Nodes of the worker's group and of the queue are taken
    /// in one order.
    fn form_batch(&self, worker: WorkerId, cell_type: CellTypeId, sizes: BatchSizes, batch: &mut Batch) {
        batch.picks.clear();
        batch.members = 0;
        let Some(domain) = self.worker(worker).map(|state| state.domain) else { return };
        let queue = &self.types[cell_type.index()];
        let wanted = sizes.max.min(queue.tally.runnable(worker, domain)) as usize;
        let members = self.group(cell_type, worker).map_or(&[][..], |group| &group.rows);
        let fronts = queue.items(domain).map_while(|(_, item)| if let Item::Front(lane) = item { Some(*lane) } else { None });
        self.read_ahead(fronts.take(wanted.saturating_sub(members.len())));
        let mut before = 0;
        for (key, item) in queue.items(domain) {
            if before + batch.picks.len() >= wanted {
                break;
            }
            before = self.rows_before(members, before, key);
            if before + batch.picks.len() >= wanted {
                break;
            }
            pick_ready(&self.lanes, *item, worker, (wanted - before, before), &mut batch.picks);
        }
        batch.members = members.len().min(wanted - batch.picks.len());
        let quantum = sizes.quantum as usize;
        let total = if batch.len() > quantum { batch.len() / quantum * quantum } else { batch.len() };
        while batch.len() > total {
            if batch.picks.pop_if(|last| last.after == batch.members).is_none() {
                batch.members -= 1;
            }
        }
    }

    /// All ready nodes in a type's queue that a worker may run, in its order.
    pub(crate) fn ready_for(&self, worker: WorkerId, cell_type: CellTypeId) -> impl Iterator<Item = Pick> {
        let items = self.worker(worker).into_iter().flat_map(move |state| self.types[cell_type.index()].items(state.domain));
        items.flat_map(move |(_, item)| {
            let mut picks = Vec::new();
            pick_ready(&self.lanes, *item, worker, (usize::MAX, 0), &mut picks);
            picks
        })
    }

    /// Whether a node that was picked may still be submitted.
    pub(crate) fn is_ready(&self, pick: &Pick) -> bool {
        let lane = self.lane(pick.lane);
        lane.status(pick.step) == Status::Waiting
            && match &lane.progress {
                Progress::Front(front) => front.queued == pick.step && front.ready.is_some(),
                Progress::Each(nodes) | Progress::Grouped(Grouped { nodes, .. }) => {
                    matches!(nodes.states[pick.step as usize], NodeState::Ready(_))
                }
            }
    }

    /// Algorithm 1, lines 17 to 21: submit, update dependencies, pin. Who is taken from the queue joins the group, if it may.
    fn submit_batch(&mut self, worker: WorkerId, cell_type: CellTypeId, model: ModelId, batch: &mut Batch, follows: bool) {
        while let Some(last) = self.group(cell_type, worker).and_then(|group| group.rows.get(batch.members..)?.last()) {
            self.part(last.lane);
        }
        batch.apart.clear();
        let (mut joined, same) = (0, batch.picks.is_empty());
        let mut run: (Option<Counted>, i32) = (None, 0);
        for (index, pick) in batch.picks.iter().enumerate() {
            let lane = self.lane(pick.lane);
            if !lane.joins {
                batch.sole = Some(lane.model).filter(|model| batch.apart.is_empty() || batch.sole == Some(*model));
                batch.apart.push((pick.after + index, *pick));
                continue;
            }
            let counted = Some(self.join(pick.lane, cell_type, worker, pick.after + joined));
            joined += 1;
            if run.0 != counted {
                self.recount_joined(run.0, run.1, cell_type, worker);
                run = (counted, 0);
            }
            run.1 += 1;
        }
        self.recount_joined(run.0, run.1, cell_type, worker);
        self.launch_group(worker, cell_type, model, batch, (follows && self.config.merge_steps, same));
        for (lane, picks) in runs(&batch.apart) {
            self.queue_nodes(lane, steps(picks), worker);
        }
        self.after_advanced(cell_type, worker);
        for (lane, picks) in runs(&batch.apart) {
            self.after_queued(lane, steps(picks), worker);
        }
        for (lane, picks) in runs(&batch.apart) {
            let last = picks.last().map(|(_, last)| (last.step, last.ready));
            last.into_iter().for_each(|(step, ready)| self.tidy(lane, step, ready));
        }
        self.settle_failures();
    }

    /// Launches a step of a worker's group, and with it nodes of others at their places among the rows. If it `may` run with the launch before, and
    /// has the same rows (known to be `same` but for those that left), it does.
    fn launch_group(&mut self, worker: WorkerId, cell_type: CellTypeId, model: ModelId, batch: &Batch, (may, same): (bool, bool)) {
        let group = self.group(cell_type, worker);
        let apart = &batch.apart[..];
        let members = group.map_or(&[][..], |group| &group.rows[..]);
        let sole = match (members, apart) {
            (_, []) => group.and_then(|group| group.sole),
            ([], _) => batch.sole,
            _ => batch.sole.filter(|sole| group.is_some_and(|group| group.sole == Some(*sole))),
        };
        let count = members.len() + apart.len();
        let last = self.out.launches.last().filter(|last| may && last.worker == worker && last.cell_type == cell_type);
        let alike = last.is_some_and(|last| last.rows.len() == count);
        let merge = if alike && same {
            group.is_some_and(|group| group.unmergeable == 0)
        } else {
            alike && self.continues_last(worker, cell_type, Rows { members, apart, at: 0 })
        };
        let mut out = std::mem::take(&mut self.out.rows);
        let group = self.group(cell_type, worker);
        let members = group.map_or(&[][..], |group| &group.rows[..]);
        if merge {
            let charged = match sole {
                Some(sole) => self.charge_ahead_one(cell_type, sole, count),
                None => {
                    let rows: Vec<Row> = Rows { members, apart, at: 0 }.collect();
                    self.charge_ahead(cell_type, rows.into_iter())
                }
            };
            self.launch_step_more(worker, cell_type, charged);
            self.out.rows = out;
        } else {
            let first = out.len();
            let mut taken = 0;
            for (place, pick) in apart {
                let before = place + first - out.len();
                out.extend_from_slice(&members[taken..taken + before]);
                taken += before;
                out.push(Row { lane: pick.lane, step: pick.step });
            }
            out.extend_from_slice(&members[taken..]);
            self.out.rows = out;
            self.launch_rows(worker, cell_type, model, first, sole);
        }
        if let Some(state) = self.workers[worker.index()].as_mut()
            && let Some(task) = state.tasks.back_mut()
            && count > apart.len()
        {
            // A launch of several steps has such rows once, and lands them all: it is looked through.
            task.walk |= merge && !apart.is_empty();
            task.listed += apart.len();
            state.landing.extend(apart.iter().map(|(_, pick)| Row { lane: pick.lane, step: pick.step }));
        }
        if count > apart.len() {
            self.advance(cell_type, worker);
        }
    }
}

/// Picked nodes in runs: those of one lane that are listed together.
fn runs(picks: &[(usize, Pick)]) -> impl Iterator<Item = (LaneId, &[(usize, Pick)])> {
    let runs = picks.chunk_by(|(_, one), (_, next)| (one.lane, one.first) == (next.lane, next.first));
    runs.map(|run| (run[0].1.lane, run))
}

/// The steps of a run.
fn steps(run: &[(usize, Pick)]) -> impl ExactSizeIterator<Item = u32> + Clone {
    run.iter().map(|(_, pick)| pick.step)
}

/// The rows of a batch, in order.
#[derive(Clone)]
struct Rows<'a> {
    members: &'a [Row],
    apart: &'a [(usize, Pick)],
    /// The next one's place.
    at: usize,
}

impl Iterator for Rows<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let row = match self.apart.split_first() {
            Some(((place, pick), rest)) if *place == self.at => {
                self.apart = rest;
                Row { lane: pick.lane, step: pick.step }
            }
            _ => {
                let (first, rest) = self.members.split_first()?;
                self.members = rest;
                *first
            }
        };
        self.at += 1;
        Some(row)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.members.len() + self.apart.len();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Rows<'_> {}

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
            let subgraph = &grouped.split.subgraphs[group as usize];
            subgraph.ready.iter().find(|(_, ready)| runnable(lane, subgraph.pinned(), *ready, worker)).copied()
        }
        _ => None,
    }
}

/// Adds the ready nodes of a listed subgraph (or run) that a worker may run, until there are `wanted`; so many of the group come before them.
fn pick_ready(lanes: &[Lane], item: Item, worker: WorkerId, (wanted, after): (usize, usize), picks: &mut Vec<Pick>) {
    let (Item::Front(id) | Item::Run(id, ..) | Item::Subgraph(id, _)) = item;
    let lane = &lanes[id.index()];
    let room = wanted - picks.len();
    match (&lane.progress, item) {
        (Progress::Front(front), _) => {
            let ready = front.ready.filter(|ready| runnable(lane, lane.pinned(), *ready, worker));
            picks.extend(ready.map(|_| Pick { lane: id, step: front.queued, ready: None, first: 0, after }));
        }
        (Progress::Each(nodes), Item::Run(_, first, to)) => {
            let ready = (first..to).filter_map(|step| match nodes.states[step as usize] {
                NodeState::Ready(ready) if runnable(lane, None, ready, worker) => {
                    Some(Pick { lane: id, step, ready: Some(ready.time), first, after })
                }
                _ => None,
            });
            picks.extend(ready.take(room));
        }
        (Progress::Grouped(grouped), Item::Subgraph(_, group)) => {
            let subgraph = &grouped.split.subgraphs[group as usize];
            let ready = subgraph.ready.iter().filter(|(_, ready)| runnable(lane, subgraph.pinned(), *ready, worker));
            picks.extend(ready.take(room).map(|(step, _)| Pick { lane: id, step: *step, ready: None, first: group, after }));
        }
        _ => {}
    }
}

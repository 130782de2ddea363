//! Forms tasks of the oldest ready nodes of a type: `FormBatchedTask` and the submission of
//! Algorithm 1 (BatchMaker, EuroSys'18, section 4.3).
//!
//! An empty batch is never submitted. Queues are first come, first served, within a rank. Ready
//! nodes of all models join.

use cellwright_cell_graph::unfolded::{Run, RunOf, Source};

use crate::command::Row;
use crate::core::group::{Counted, Group};
use crate::core::lane::{Joining, Lane, Moments, Progress, Ready, Status};
use crate::core::queues::{Item, Key};
use crate::core::{Core, reserve};
use crate::event::BatchSizes;
use crate::id::{CellTypeId, DomainId, LaneId, ModelId, Time, WorkerId};

/// Nodes that share a queue entry: the next step of an in-order stage, or nodes of a run or of a
/// subgraph.
#[derive(Clone, Copy, Debug)]
struct Listed {
    lane: LaneId,
    /// When the nodes of a run became ready: part of the run's key in the queue.
    ready: Option<Time>,
    /// Their position in `Batch::rows`, and how many they are.
    first: usize,
    count: usize,
    /// How many rows of the worker's group come before them.
    after: usize,
}

/// A batch that is being formed.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Nodes from the queue, in its order. After `join_group`, those that did not join.
    listed: Vec<Listed>,
    /// Every node of `listed`.
    rows: Vec<Row>,
    /// Rows of the worker's group that go on.
    members: usize,
    /// The model of the nodes that did not join, if it is one.
    sole: Option<ModelId>,
}

impl Batch {
    const fn len(&self) -> usize {
        self.rows.len() + self.members
    }

    fn rows_of(&self, nodes: &Listed) -> &[Row] {
        &self.rows[nodes.first..nodes.first + nodes.count]
    }

    /// The last node, of a batch with rows of that group.
    fn last(&self, members: &[Row]) -> Option<Row> {
        match self.listed.last().filter(|last| last.after == self.members) {
            Some(_) => self.rows.last().copied(),
            None => members.get(self.members.checked_sub(1)?).copied(),
        }
    }

    /// Drops the last node.
    fn cut(&mut self) {
        match self.listed.last_mut().filter(|last| last.after == self.members) {
            Some(last) => {
                last.count -= 1;
                self.rows.pop();
                self.listed.pop_if(|last| last.count == 0);
            }
            None => self.members -= 1,
        }
    }
}

impl Core {
    /// Submits up to `max_tasks_to_submit` tasks of the oldest ready nodes of one of a model's
    /// types. Whether it submitted any.
    pub(super) fn run_oldest(&mut self, worker: WorkerId, model: ModelId, position: usize, own: bool) -> bool {
        let chosen = &self.model(model).types[position];
        let (cell_type, sizes, together) = (chosen.cell_type, chosen.batch, chosen.steps_together);
        let span_rows = chosen.span_rows;
        let mut batch = std::mem::take(&mut self.batch);
        let mut served = false;
        for task in 0..self.config.max_tasks_to_submit {
            if task > 0 && !(self.may_start(worker, model) && self.worker(worker).is_some_and(|state| self.has_time(state))) {
                break;
            }
            self.settle_counts();
            self.form_batch((worker, own), cell_type, sizes, &mut batch);
            if span_rows < u64::MAX {
                self.fit_spans((worker, cell_type), span_rows, &mut batch);
            }
            let enough = if task == 0 { 1 } else { sizes.min as usize };
            if batch.len() < enough {
                break;
            }
            let follows = (task > 0 && self.config.merge_steps).then_some(together);
            self.submit_batch(worker, cell_type, model, &mut batch, follows);
            served = true;
        }
        self.batch = batch;
        if let Some(state) = self.workers[worker.index()].as_mut().filter(|_| served) {
            state.chosen = [self.now, state.chosen[0]];
        }
        served
    }

    /// The age of the oldest ready node of a type (and model) that a worker may run.
    pub(super) fn oldest(&self, cell_type: CellTypeId, worker: WorkerId, model: Option<ModelId>) -> Option<Key> {
        let domain = self.worker(worker)?.domain;
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
                let age = first_runnable(lane, &self.moments, *item, worker).map(|(step, ready)| lane.key(ready.time, step));
                oldest = oldest.into_iter().chain(age).min();
            }
        }
        oldest
    }

    /// Algorithm 1, `FormBatchedTask`. A batch above the quantum is cut to a multiple of it. Rows
    /// of the worker's group and nodes of the queue are merged in queue order.
    fn form_batch(&self, (worker, own_only): (WorkerId, bool), cell_type: CellTypeId, sizes: BatchSizes, batch: &mut Batch) {
        batch.listed.clear();
        batch.rows.clear();
        batch.members = 0;
        let Some(domain) = self.worker(worker).map(|state| state.domain) else { return };
        let queue = &self.types[cell_type.index()];
        let ready = if own_only { queue.tally.own(worker) } else { queue.tally.runnable(worker, domain) };
        let wanted = sizes.max.min(ready) as usize;
        let members = self.group(cell_type, worker).map_or(&[][..], |group| &group.rows);
        let fronts = || queue.items(domain).map_while(|(_, item)| if let Item::Front(lane) = item { Some(*lane) } else { None });
        self.read_ahead(|| fronts().take(wanted.saturating_sub(members.len())));
        let mut before = 0;
        for (key, item) in queue.items(domain) {
            if batch.rows.len() + before >= wanted {
                break;
            }
            before = self.rows_before(members, before, key);
            let (first, room) = (batch.rows.len(), wanted.saturating_sub(before + batch.rows.len()));
            if room == 0 {
                break;
            }
            if let Some((lane, ready)) = take_ready((&self.lanes, &self.moments), *item, (worker, own_only), room, &mut batch.rows) {
                reserve::in_table(&mut batch.listed, 1);
                batch.listed.push(Listed { lane, ready, first, count: batch.rows.len() - first, after: before });
            }
        }
        batch.members = members.len().min(wanted - batch.rows.len());
        let quantum = sizes.quantum as usize;
        let total = if batch.len() > quantum { batch.len() / quantum * quantum } else { batch.len() };
        while batch.len() > total {
            batch.cut();
        }
    }

    /// Cuts a batch whose nodes see more rows of spans together than a task may read.
    fn fit_spans(&self, (worker, cell_type): (WorkerId, CellTypeId), most: u64, batch: &mut Batch) {
        let members = self.group(cell_type, worker).map_or(&[][..], |group| &group.rows);
        let rows = batch.rows.iter().chain(&members[..batch.members]);
        let mut seen: u64 = rows.map(|row| self.rows_seen(*row)).sum();
        while seen > most && batch.len() > 1 {
            seen -= batch.last(members).map_or(0, |row| self.rows_seen(row));
            batch.cut();
        }
    }

    /// Checks row by row whether a task that reads at most so many rows of spans has room for the
    /// row. It has room for the first row and for rows without spans.
    pub(super) fn fits(&self, most: u64) -> impl FnMut(&Row) -> bool {
        let mut seen = None;
        move |row| {
            if most == u64::MAX {
                return true;
            }
            let before = seen.replace(seen.unwrap_or(0) + self.rows_seen(*row));
            before.is_none() || seen <= Some(most)
        }
    }

    /// Rows that a node sees in its spans: those of the ragged input that sees most. Padding sees
    /// none.
    fn rows_seen(&self, row: Row) -> u64 {
        let place = self.lane(row.lane);
        let request = self.request(place.request);
        let Some((_, _, stage)) = Self::stage_of(request, place).filter(|_| row.step < place.limit) else { return 0 };
        let of_run = |run: &Run| {
            let ends = match run.of {
                // Rows of earlier tensors are not known here.
                RunOf::Tensor(_) => (0, i64::MAX >> 1),
                RunOf::Chain { chain, stage, .. } => {
                    let Some((graph, of)) = request.graph_of(chain).zip(request.chain(chain)) else { return 0 };
                    (-i64::from(graph.stages[stage as usize].retention.before()), of.end.into())
                }
            };
            run.rows(row.step, ends)
        };
        let spans = stage.inputs.iter().filter(|input| matches!(input.source, Source::Span(_)));
        spans.map(|input| input.source.runs().iter().map(of_run).sum()).max().unwrap_or(0)
    }

    /// Whether a listed node is ready, and a worker may run it.
    pub(super) fn runs_on(&self, node: Row, worker: WorkerId) -> bool {
        let lane = self.lane(node.lane);
        if lane.status(node.step) != Status::Waiting {
            return false;
        }
        let (pinned, ready) = match &lane.progress {
            Progress::Front(front) => (lane.pinned(), front.ready().filter(|_| front.queued == node.step)),
            Progress::Each(nodes) => (None, nodes.states.is_ready(node.step).then(|| nodes.states.ready(node.step, &self.moments))),
            Progress::Grouped(grouped) => {
                let states = &grouped.nodes.states;
                let pinned = grouped.subgraphs[grouped.group(node.step) as usize].pinned();
                (pinned, states.is_ready(node.step).then(|| states.ready(node.step, &self.moments)))
            }
        };
        ready.is_some_and(|ready| runnable(pinned, ready, worker))
    }

    /// All ready nodes in a type's queue that a worker may run, in its order.
    pub(super) fn ready_for(&self, worker: WorkerId, cell_type: CellTypeId) -> impl Iterator<Item = Row> {
        let items = self.worker(worker).into_iter().flat_map(move |state| self.types[cell_type.index()].items(state.domain));
        items.flat_map(move |(_, item)| {
            let mut rows = Vec::new();
            take_ready((&self.lanes, &self.moments), *item, (worker, false), usize::MAX, &mut rows);
            rows
        })
    }

    /// Algorithm 1, lines 17 to 21: submits, updates dependencies and pins subgraphs. Lanes from
    /// the queue join the group if they may.
    fn submit_batch(&mut self, worker: WorkerId, cell_type: CellTypeId, model: ModelId, batch: &mut Batch, follows: Option<bool>) {
        while let Some(last) = self.group(cell_type, worker).and_then(|group| group.rows.get(batch.members..)?.last()) {
            self.leave_group(last.lane);
        }
        let same = batch.listed.is_empty();
        self.join_group(cell_type, worker, batch);
        self.launch_group(worker, cell_type, model, batch, (follows, same));
        for nodes in &batch.listed {
            self.queue_nodes(nodes.lane, batch.rows_of(nodes), worker);
        }
        self.after_advanced(cell_type, worker);
        self.read_successors_ahead(batch.listed.iter().map(|nodes| batch.rows[nodes.first]));
        for nodes in &batch.listed {
            self.after_queued(nodes.lane, batch.rows_of(nodes), worker);
        }
        self.check_notified(Some(worker));
        for nodes in &batch.listed {
            if let Some(last) = batch.rows_of(nodes).last() {
                self.tidy(nodes.lane, last.step, nodes.ready);
            }
        }
        self.settle_failures();
    }

    /// Moves the lanes that may join to the worker's group. The others stay in `listed`.
    fn join_group(&mut self, cell_type: CellTypeId, worker: WorkerId, batch: &mut Batch) {
        let (mut joined, mut apart) = (0, 0);
        let mut run: (Option<Counted>, i32) = (None, 0);
        for index in 0..batch.listed.len() {
            let nodes = batch.listed[index];
            let lane = self.lane(nodes.lane);
            if lane.joining != Joining::May {
                batch.sole = Some(lane.model).filter(|model| apart == 0 || batch.sole == Some(*model));
                batch.listed[apart] = nodes;
                apart += 1;
                continue;
            }
            let counted = Some(self.join(nodes.lane, cell_type, worker, nodes.after + joined));
            joined += 1;
            if run.0 != counted {
                self.recount_joined(run.0, run.1, cell_type, worker);
                run = (counted, 0);
            }
            run.1 += 1;
        }
        self.recount_joined(run.0, run.1, cell_type, worker);
        batch.listed.truncate(apart);
    }

    /// Launches a step of a worker's group, merged with the nodes that did not join.
    ///
    /// If it `follows` the previous launch and has the same rows, it becomes a further step of that
    /// launch. With `Some(true)` rows may be missing because their chains have ended. `same` says
    /// that no row is new.
    fn launch_group(
        &mut self,
        worker: WorkerId,
        cell_type: CellTypeId,
        model: ModelId,
        batch: &Batch,
        (follows, same): (Option<bool>, bool),
    ) {
        let group = self.group(cell_type, worker);
        let members = group.map_or(&[][..], |group| &group.rows[..]);
        let apart = batch.listed.iter().map(|nodes| nodes.count).sum::<usize>();
        let (count, in_group) = (members.len() + apart, !members.is_empty());
        let sole = match (in_group, apart) {
            (_, 0) => group.and_then(|group| group.sole),
            (false, _) => batch.sole,
            _ => batch.sole.filter(|sole| group.is_some_and(|group| group.sole == Some(*sole))),
        };
        let last = self.last_launch(worker, cell_type).filter(|_| follows.is_some());
        let alike = last.is_some_and(|last| last.rows.len() == count);
        // No lane has joined, so the chains of missing rows have ended. Rows of several models do
        // not merge: each model is charged for its own rows.
        let of_one = || self.worker(worker).and_then(|state| state.tasks.back()).is_some_and(|task| task.sole.is_some());
        let missing = group.map_or(0, |group| group.ended);
        let fewer = follows == Some(true) && last.is_some_and(|last| last.rows.len() == count + missing) && of_one();
        let goes_on = |group: &Group| group.unmergeable == 0 && (alike || fewer);
        let mut merge = same && group.is_some_and(goes_on);
        if let Some(sole) = sole.filter(|_| merge) {
            let charged = self.charge_ahead_one(cell_type, sole, count);
            self.launch_step_more(worker, cell_type, (count, charged));
        } else {
            let mut rows = std::mem::take(&mut self.out.rows);
            let first = rows.len();
            reserve::in_table(&mut rows, count);
            lay_out(batch, self.group(cell_type, worker).map_or(&[][..], |group| &group.rows), &mut rows);
            merge |= alike && !same && self.continues_last(worker, cell_type, &rows[..first], &rows[first..]);
            if merge {
                let charged = self.charge_ahead(cell_type, rows[first..].iter().copied());
                self.launch_step_more(worker, cell_type, (count, charged));
                rows.truncate(first);
            }
            self.out.rows = rows;
            if !merge {
                self.launch_rows(worker, cell_type, model, first, sole);
                self.group_mut(cell_type, worker).ended = 0;
            }
        }
        if !in_group {
            return;
        }
        if let Some(state) = self.workers[worker.index()].as_mut()
            && let Some(task) = state.tasks.back_mut()
        {
            // A launch of several steps lists these rows once but lands each step, so every row is
            // checked.
            task.walk |= merge && apart > 0;
            task.listed += apart;
            reserve::in_ring(&mut state.landing, apart);
            batch.listed.iter().for_each(|nodes| state.landing.extend(batch.rows_of(nodes)));
        }
        self.advance(cell_type, worker);
    }
}

/// Writes the rows of a batch: members of the group and nodes of the queue, in order.
fn lay_out(batch: &Batch, members: &[Row], out: &mut Vec<Row>) {
    let (first, mut taken) = (out.len(), 0);
    for nodes in &batch.listed {
        let before = nodes.after + nodes.first + first - out.len();
        out.extend_from_slice(&members[taken..taken + before]);
        taken += before;
        out.extend_from_slice(batch.rows_of(nodes));
    }
    out.extend_from_slice(&members[taken..]);
}

/// The first ready node of a listed subgraph (or run) that a worker may run.
fn first_runnable(lane: &Lane, moments: &Moments, item: Item, worker: WorkerId) -> Option<(u32, Ready)> {
    match (&lane.progress, item) {
        (Progress::Front(front), _) => {
            front.ready().filter(|ready| runnable(lane.pinned(), *ready, worker)).map(|ready| (front.queued, ready))
        }
        (Progress::Each(nodes), Item::Run(_, from, to)) => {
            nodes.states.ready_in(from..to, moments).find(|(_, ready)| runnable(None, *ready, worker))
        }
        (Progress::Grouped(grouped), Item::Subgraph(_, group)) => {
            let pinned = grouped.subgraphs[group as usize].pinned();
            let mut ready = grouped.ready(group).iter().map(|step| (*step, grouped.nodes.states.ready(*step, moments)));
            ready.find(|(_, ready)| runnable(pinned, *ready, worker))
        }
        _ => None,
    }
}

/// Whether a worker may run a ready node. `pinned` is the worker of its subgraph, as in
/// [`crate::core::listing::scope`].
fn runnable(pinned: Option<WorkerId>, ready: Ready, worker: WorkerId) -> bool {
    pinned.is_none_or(|pinned| pinned == worker) && ready.only.is_none_or(|only| only == worker)
}

/// As `runnable`. With `own_only`, only nodes that no other worker may run.
fn may_run(pinned: Option<WorkerId>, ready: Ready, (worker, own_only): (WorkerId, bool)) -> bool {
    runnable(pinned, ready, worker) && (!own_only || pinned.or(ready.only).is_some())
}

/// Appends up to `room` ready nodes of a queue entry that a worker may run. Returns their lane, and
/// for nodes of a run when they became ready; nothing if there are none.
fn take_ready(
    (lanes, moments): (&[Lane], &Moments),
    item: Item,
    worker: (WorkerId, bool),
    room: usize,
    rows: &mut Vec<Row>,
) -> Option<(LaneId, Option<Time>)> {
    let (Item::Front(id) | Item::Run(id, ..) | Item::Subgraph(id, _)) = item;
    let (lane, first) = (&lanes[id.index()], rows.len());
    let mut since = None;
    match (&lane.progress, item) {
        (Progress::Front(front), _) => {
            let ready = front.ready().filter(|ready| may_run(lane.pinned(), *ready, worker));
            rows.extend(ready.map(|_| Row { lane: id, step: front.queued }));
        }
        (Progress::Each(nodes), Item::Run(_, from, to)) => {
            let ready = nodes.states.ready_in(from..to, moments).filter(|(_, ready)| may_run(None, *ready, worker)).map(|(step, ready)| {
                since = Some(ready.time);
                Row { lane: id, step }
            });
            rows.extend(ready.take(room));
        }
        (Progress::Grouped(grouped), Item::Subgraph(_, group)) => {
            let pinned = grouped.subgraphs[group as usize].pinned();
            let ready = grouped.ready(group).iter().filter(|step| may_run(pinned, grouped.nodes.states.ready(**step, moments), worker));
            rows.extend(ready.take(room).map(|step| Row { lane: id, step: *step }));
        }
        _ => {}
    }
    (rows.len() > first).then_some((id, since))
}

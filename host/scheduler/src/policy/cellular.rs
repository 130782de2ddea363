//! Cellular batching: Algorithm 1 of BatchMaker (EuroSys'18, section 4.3), with its gaps filled.
//!
//! Only nodes that the asking worker may run count; an empty batch is never submitted; ties go to the oldest ready node, then to the smallest
//! id; queues are first come, first served, within a rank. The model is chosen first, by device time owed; the algorithm runs among the types of which it has
//! nodes ready, and nodes of other models of the same type ride along.

use crate::command::Row;
use crate::config::PolicyKind;
use crate::event::BatchSizes;
use crate::fleet::{ModelType, Task, Worker};
use crate::group::{Counted, Group};
use crate::id::{CellTypeId, DomainId, LaneId, ModelId, Time, WorkerId};
use crate::lane::{Lane, Moments, Progress, Ready, Status};
use crate::queues::{Item, Key, Tally};
use crate::room;
use crate::scheduler::Scheduler;

/// Nodes chosen for a batch that are listed together: the next step of a stage in order, or nodes of a run or a subgraph.
#[derive(Clone, Copy, Debug)]
struct Pick {
    lane: LaneId,
    /// When they became ready, where that says where they are listed.
    ready: Option<Time>,
    /// Their place among what was picked, and how many they are.
    first: usize,
    count: usize,
    /// How many of their worker's group come before them.
    after: usize,
}

/// What a batch is made of.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// What is taken from the queue, in its order; once those that join have joined, what is left of it.
    picks: Vec<Pick>,
    /// Every node that was picked.
    rows: Vec<Row>,
    /// So many of the worker's group.
    members: usize,
    /// The model of what is left, if there is but one.
    sole: Option<ModelId>,
}

impl Batch {
    const fn len(&self) -> usize {
        self.rows.len() + self.members
    }

    fn rows_of(&self, pick: &Pick) -> &[Row] {
        &self.rows[pick.first..pick.first + pick.count]
    }

    /// Has one node less: its last.
    fn cut(&mut self) {
        match self.picks.last_mut().filter(|last| last.after == self.members) {
            Some(last) => {
                last.count -= 1;
                self.rows.pop();
                self.picks.pop_if(|last| last.count == 0);
            }
            None => self.members -= 1,
        }
    }
}

/// Which of the ready nodes of a type that a worker may run are its to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    All,
    /// Those that no other worker may run.
    Own,
    None,
}

impl Scheduler {
    /// Algorithm 1, `Schedule`, for a model: one type, up to `max_tasks_to_submit` tasks; whether there was anything to do.
    pub(crate) fn schedule(&mut self, worker: WorkerId, model: ModelId) -> bool {
        let Some(position) = self.choose_type(model, worker) else { return false };
        let position = if self.model(model).policy == PolicyKind::Adaptive { self.behind(model, worker, position) } else { position };
        let chosen = &self.model(model).types[position];
        let (cell_type, sizes) = (chosen.cell_type, chosen.batch);
        let together = chosen.steps_together;
        let Some(domain) = self.worker(worker).map(|state| state.domain) else { return false };
        let own_only = self.part_of(&self.model(model).types, position, worker, domain) == Part::Own;
        let mut batch = std::mem::take(&mut self.batch);
        let mut served = false;
        for task in 0..self.config.max_tasks_to_submit {
            self.settle_counts();
            self.form_batch((worker, own_only), cell_type, sizes, &mut batch);
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

    /// Algorithm 1, lines 5 to 10, for a model's types of which it has ready nodes that the worker may run.
    fn choose_type(&self, model: ModelId, worker: WorkerId) -> Option<usize> {
        let domain = self.worker(worker)?.domain;
        let types = &self.model(model).types;
        let candidates = || (0..types.len()).filter(|at| self.offered(types, *at, &types[*at].tally, worker, domain) > 0);
        let ready = |at: usize| self.offered(types, at, &self.types[types[at].cell_type.index()].tally, worker, domain);
        let full = |at: &usize| ready(*at) >= types[*at].batch.max;
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

    /// How many ready nodes of one of a model's types a worker may run, out of `tally`: of one of which batches are to be filled first, maybe not all.
    pub(crate) fn offered(&self, types: &[ModelType], at: usize, tally: &Tally, worker: WorkerId, domain: DomainId) -> u32 {
        if tally.runnable(worker, domain) == 0 {
            return 0;
        }
        match self.part_of(types, at, worker, domain) {
            Part::All => tally.runnable(worker, domain),
            Part::Own => tally.own(worker),
            Part::None => 0,
        }
    }

    /// Which nodes of one of a model's types are a worker's to run, if batches of the type are filled first and another worker of the domain has batches of
    /// such types that the model has, and nothing else: who is left to that one joins its next. Unless it has full batches of the very type, a worker takes
    /// nothing but what is its own or a full batch; and it keeps apart from the other only what is half a batch or more, since for less, weights are
    /// read that the other has read. What the other has passed over twice, and has no batch of, is left to it no more. Of several such workers the first goes on. Who would have to wait for anything else there is left to nobody.
    fn part_of(&self, types: &[ModelType], at: usize, worker: WorkerId, domain: DomainId) -> Part {
        let (one, Some(own)) = (&types[at], self.worker(worker)) else { return Part::None };
        let tally = &self.types[one.cell_type.index()].tally;
        let full = one.batch.full();
        if !one.fill_first || tally.runnable(worker, domain) >= full {
            return Part::All;
        }
        let filled = |task: &Task| types.iter().any(|of| of.fill_first && of.cell_type == task.cell_type);
        let fills = |worker: &Worker| !worker.tasks.is_empty() && worker.tasks.iter().all(filled);
        let others = if fills(own) { &self.workers[..worker.index()] } else { &self.workers[..] };
        let mut others = others.iter().flatten().filter(|other| other.domain == own.domain && fills(other)).peekable();
        if others.peek().is_none() {
            return Part::All;
        }
        let half = |rows: u32| 2 * rows >= full;
        let mut any_passed = false;
        let no_room = others.all(|other| {
            let mut of_type = other.tasks.iter().filter(|task| task.cell_type == one.cell_type).peekable();
            if of_type.peek().is_some() {
                return of_type.any(|task| task.rows >= full as usize);
            }
            let ready = self.oldest(one.cell_type, worker, domain, None).map(|oldest| oldest.time);
            let passed = ready.is_some_and(|ready| other.chosen[1] > ready);
            any_passed |= passed;
            passed
        });
        match no_room {
            true if any_passed || half(tally.runnable(worker, domain)) => Part::All,
            false if half(tally.own(worker)) => Part::Own,
            _ => Part::None,
        }
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
                let age = first_runnable(lane, &self.moments, *item, worker).map(|(step, ready)| lane.key(ready.time, step));
                oldest = oldest.into_iter().chain(age).min();
            }
        }
        oldest
    }

    /// Algorithm 1, `FormBatchedTask`; a batch above the quantum is cut to a multiple of it. Nodes of the worker's group and of the queue are taken
    /// in one order.
    fn form_batch(&self, (worker, own_only): (WorkerId, bool), cell_type: CellTypeId, sizes: BatchSizes, batch: &mut Batch) {
        batch.picks.clear();
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
            if let Some((lane, ready)) = pick_ready((&self.lanes, &self.moments), *item, (worker, own_only), room, &mut batch.rows) {
                room::in_table(&mut batch.picks, 1);
                batch.picks.push(Pick { lane, ready, first, count: batch.rows.len() - first, after: before });
            }
        }
        batch.members = members.len().min(wanted - batch.rows.len());
        let quantum = sizes.quantum as usize;
        let total = if batch.len() > quantum { batch.len() / quantum * quantum } else { batch.len() };
        while batch.len() > total {
            batch.cut();
        }
    }

    /// All ready nodes in a type's queue that a worker may run, in its order, and since when they are, where that says where they are listed.
    pub(crate) fn ready_for(&self, worker: WorkerId, cell_type: CellTypeId) -> impl Iterator<Item = (Row, Option<Time>)> {
        let items = self.worker(worker).into_iter().flat_map(move |state| self.types[cell_type.index()].items(state.domain));
        items.flat_map(move |(_, item)| {
            let mut rows = Vec::new();
            let ready =
                pick_ready((&self.lanes, &self.moments), *item, (worker, false), usize::MAX, &mut rows).and_then(|(_, ready)| ready);
            rows.into_iter().map(move |row| (row, ready))
        })
    }

    /// Whether a node that was picked may still be submitted.
    pub(crate) fn is_ready(&self, node: Row) -> bool {
        let lane = self.lane(node.lane);
        lane.status(node.step) == Status::Waiting
            && match &lane.progress {
                Progress::Front(front) => front.queued == node.step && front.ready().is_some(),
                progress => progress.nodes().is_some_and(|nodes| nodes.states.is_ready(node.step)),
            }
    }

    /// Algorithm 1, lines 17 to 21: submit, update dependencies, pin. Who is taken from the queue joins the group, if it may.
    fn submit_batch(&mut self, worker: WorkerId, cell_type: CellTypeId, model: ModelId, batch: &mut Batch, follows: Option<bool>) {
        while let Some(last) = self.group(cell_type, worker).and_then(|group| group.rows.get(batch.members..)?.last()) {
            self.part(last.lane);
        }
        let same = batch.picks.is_empty();
        self.join_picks(cell_type, worker, batch);
        self.launch_group(worker, cell_type, model, batch, (follows, same));
        for pick in &batch.picks {
            self.queue_nodes(pick.lane, batch.rows_of(pick), worker);
        }
        self.after_advanced(cell_type, worker);
        self.read_successors_ahead(batch.picks.iter().map(|pick| batch.rows[pick.first]));
        for pick in &batch.picks {
            self.after_queued(pick.lane, batch.rows_of(pick), worker);
        }
        self.settle_told(Some(worker));
        for pick in &batch.picks {
            if let Some(last) = batch.rows_of(pick).last() {
                self.tidy(pick.lane, last.step, pick.ready);
            }
        }
        self.settle_failures();
    }

    /// Who may join the worker's group joins it, and is of the batch's picks no more.
    fn join_picks(&mut self, cell_type: CellTypeId, worker: WorkerId, batch: &mut Batch) {
        let (mut joined, mut apart) = (0, 0);
        let mut run: (Option<Counted>, i32) = (None, 0);
        for index in 0..batch.picks.len() {
            let pick = batch.picks[index];
            let lane = self.lane(pick.lane);
            if !lane.joins {
                batch.sole = Some(lane.model).filter(|model| apart == 0 || batch.sole == Some(*model));
                batch.picks[apart] = pick;
                apart += 1;
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
        batch.picks.truncate(apart);
    }

    /// Launches a step of a worker's group, and with it nodes of others at their places among the rows. If it `follows` the launch before, and
    /// has the same rows (known to be `same` but for those that left), it runs with it; with `Some(true)` also if some have ended.
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
        let apart = batch.picks.iter().map(|pick| pick.count).sum::<usize>();
        let (count, in_group) = (members.len() + apart, !members.is_empty());
        let sole = match (in_group, apart) {
            (_, 0) => group.and_then(|group| group.sole),
            (false, _) => batch.sole,
            _ => batch.sole.filter(|sole| group.is_some_and(|group| group.sole == Some(*sole))),
        };
        let last = self.last_launch(worker, cell_type).filter(|_| follows.is_some());
        let alike = last.is_some_and(|last| last.rows.len() == count);
        // Nobody has joined: who is missing has ended. Of several models each is charged for its rows of every step.
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
            room::in_table(&mut rows, count);
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
            // A launch of several steps has such rows once, and lands them all: it is looked through.
            task.walk |= merge && apart > 0;
            task.listed += apart;
            room::in_ring(&mut state.landing, apart);
            batch.picks.iter().for_each(|pick| state.landing.extend(batch.rows_of(pick)));
        }
        self.advance(cell_type, worker);
    }
}

/// The rows of a batch: members of a group, and picked nodes at their places among them.
fn lay_out(batch: &Batch, members: &[Row], out: &mut Vec<Row>) {
    let (first, mut taken) = (out.len(), 0);
    for pick in &batch.picks {
        let before = pick.after + pick.first + first - out.len();
        out.extend_from_slice(&members[taken..taken + before]);
        taken += before;
        out.extend_from_slice(batch.rows_of(pick));
    }
    out.extend_from_slice(&members[taken..]);
}

/// Whether a worker may run a ready node of a subgraph that is pinned, if it is: as [`crate::listing::scope`] says.
fn runnable(pinned: Option<WorkerId>, ready: Ready, worker: WorkerId) -> bool {
    pinned.is_none_or(|pinned| pinned == worker) && ready.only.is_none_or(|only| only == worker)
}

/// The same, of those that no other worker may run if it is its own only.
fn may_run(pinned: Option<WorkerId>, ready: Ready, (worker, own_only): (WorkerId, bool)) -> bool {
    runnable(pinned, ready, worker) && (!own_only || pinned.or(ready.only).is_some())
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

/// Adds up to so many of the ready nodes of a listed subgraph (or run) that a worker may run. Of which lane they are, if there are any, and since when
/// they are ready, where that says where they are listed.
fn pick_ready(
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

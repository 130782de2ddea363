//! Groups: chains that a worker runs together, step after step.
//!
//! A group holds the chains that a worker ran in its last batch of a type and will run in its next
//! one. Its rows are kept as the next launch needs them. So a task costs what joins and leaves the
//! group, not what stays. A lane joins with its first step that is launched with the group and
//! leaves with its last. In between it is not touched: its progress follows from the group's ticks
//! (steps launched, steps landed) and from the tick at which it joined.
//!
//! Invariants:
//!
//! - A group belongs to one type and one worker. Every task of that type on that worker has a row
//!   for every member.
//! - A member is in no queue, has a ready node, and is counted under its worker.
//! - Only lanes of policies that take nodes join, and only if they wait for no other lane and no
//!   other lane waits for their steps.
//! - Code that needs more of a lane than whether it has ended calls [`Core::leave_group`] first.
//!   From then on the lane is by itself and its own record is right.
//!
//! Unusual events make lanes part first, so that one code decides: a stop, a cancellation, a lost
//! or new worker, a smaller batch. Every decision equals that of the literal oracle in the tests.
//!
//! Consecutive tasks of one decision with equal rows are one launch of several steps. A backend may
//! ask for more (`Backend::steps_together`). A row whose chain has ended then stays in the launch
//! as padding, as long as no lane joins. This excludes chains that might stop earlier and rows of
//! several models.

use std::num::NonZeroU32;
use std::ops::Range;

use crate::command::Row;
use crate::core::Core;
use crate::core::lane::{Progress, Ready};
use crate::core::listing::scope;
use crate::core::queues::{Item, Key, Scope, entry};
use crate::core::reserve;
use crate::id::{CellTypeId, LaneId, ModelId, Time, WorkerId};

/// A lane's place in the time of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Steps that the group had launched before.
    pub(crate) joined: u64,
    /// Steps of the lane that were launched with the group, once its last was.
    pub(crate) steps: NonZeroU32,
}

impl Membership {
    /// More steps follow.
    const STAYS: NonZeroU32 = NonZeroU32::MAX;

    pub(crate) fn of(joined: u64, steps: u32) -> Option<Self> {
        NonZeroU32::new(steps).map(|steps| Self { joined, steps })
    }

    const fn stays(self) -> bool {
        self.steps.get() == Self::STAYS.get()
    }

    /// The tick of the lane's last step; beyond all ticks, as long as more follow.
    const fn left(self) -> u64 {
        if self.stays() { u64::MAX } else { self.joined + self.steps.get() as u64 }
    }

    /// The lane's last step is that of this tick.
    fn leave(&mut self, tick: u64) {
        self.steps = u32::try_from(tick - self.joined).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
    }
}

/// Where a ready node is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    model: ModelId,
    position: u32,
    scope: Scope,
}

/// The chains of one type that go on together on one worker.
#[derive(Debug)]
pub(crate) struct Group {
    /// The next step of each, in the order of the queue.
    pub(crate) rows: Vec<Row>,
    /// The tick of each one's last step; its low bits tell it from all others that there can be.
    ends: Vec<u32>,
    /// Steps launched since the beginning.
    pub(crate) launched: u64,
    /// Steps of them that are complete.
    pub(crate) landed: u64,
    /// When the last one was launched: so long have all next steps been ready.
    time: Time,
    /// The model of all, if there is but one.
    pub(crate) sole: Option<ModelId>,
    /// Members whose steps may not be one launch.
    pub(crate) unmergeable: u32,
    /// Whether members stand in order of admission.
    orderly: bool,
    /// Lanes that leave with the current tick.
    leavers: Vec<LaneId>,
    /// Members that left with a step of the last launch and may run further steps as padding.
    /// Members that do not merge are not counted.
    pub(crate) ended: usize,
}

impl Default for Group {
    fn default() -> Self {
        let (rows, ends, leavers) = Default::default();
        Self { rows, ends, launched: 0, landed: 0, time: Time(0), sole: None, unmergeable: 0, orderly: true, leavers, ended: 0 }
    }
}

impl Group {
    fn remove(&mut self, at: usize, merges: bool) -> Row {
        self.ends.remove(at);
        self.unmergeable -= u32::from(!merges);
        self.rows.remove(at)
    }

    /// Moves lanes that have had their last step to `leavers`; the others go on to their next.
    fn advance(&mut self, now: Time) {
        self.launched += 1;
        self.time = now;
        // No step reaches the largest number: a lane leaves at its limit.
        self.rows.iter_mut().for_each(|row| row.step = row.step.wrapping_add(1));
        let tick = self.launched as u32;
        // Those that stay move up in runs.
        let (mut kept, mut from) = (0, 0);
        for first in (0..self.ends.len()).step_by(WIDTH) {
            let mut leave = equal(&self.ends[first..self.ends.len().min(first + WIDTH)], tick);
            while leave != 0 {
                let leaves = first + leave.trailing_zeros() as usize;
                leave &= leave - 1;
                self.leavers.push(self.rows[leaves].lane);
                self.keep(from..leaves, kept);
                kept += leaves - from;
                from = leaves + 1;
            }
        }
        self.keep(from..self.ends.len(), kept);
        let kept = kept + self.ends.len() - from;
        self.rows.truncate(kept);
        self.ends.truncate(kept);
    }

    fn keep(&mut self, range: std::ops::Range<usize>, to: usize) {
        if range.start > to {
            self.rows.copy_within(range.clone(), to);
            self.ends.copy_within(range, to);
        }
    }
}

/// How many members are compared at once.
const WIDTH: usize = 64;

/// Which of up to 64 numbers equal `wanted`: a bit for each.
fn equal(numbers: &[u32], wanted: u32) -> u64 {
    const STEP: usize = 16;
    let bits = |numbers: &[u32]| (0..).zip(numbers).fold(0_u16, |bits, (at, number)| bits | u16::from(*number == wanted) << at);
    let (steps, rest) = numbers.as_chunks::<STEP>();
    let last = if rest.is_empty() { 0 } else { u64::from(bits(rest)) << (steps.len() * STEP) };
    steps.iter().enumerate().fold(last, |all, (at, step)| all | u64::from(bits(step)) << (at * STEP))
}

/// Asking.
impl Core {
    pub(crate) fn group(&self, cell_type: CellTypeId, worker: WorkerId) -> Option<&Group> {
        self.types[cell_type.index()].groups.get(worker.index())
    }

    #[inline]
    pub(crate) fn group_mut(&mut self, cell_type: CellTypeId, worker: WorkerId) -> &mut Group {
        entry(&mut self.types[cell_type.index()].groups, worker.index())
    }

    /// How many of a group's rows, from the `from`th on, come before a place in the queue.
    pub(crate) fn rows_before(&self, rows: &[Row], from: usize, key: &Key) -> usize {
        let before = |row: &Row| self.lane(row.lane).queue_key().is_some_and(|own| own < *key);
        match rows.last() {
            None => 0,
            Some(last) if before(last) => rows.len(),
            Some(_) => from + rows[from..].partition_point(before),
        }
    }

    /// The age of the oldest next step of a worker's group (of a model).
    pub(crate) fn oldest_of_group(&self, cell_type: CellTypeId, worker: WorkerId, model: Option<ModelId>) -> Option<Key> {
        let group = self.group(cell_type, worker)?;
        let age = |row: &Row| self.lane(row.lane).key(group.time, row.step);
        if group.orderly && (model.is_none() || model == group.sole) {
            return group.rows.first().map(age);
        }
        group.rows.iter().filter(|row| model.is_none_or(|model| model == self.lane(row.lane).model)).map(age).min()
    }
}

/// Joining, going on, leaving.
impl Core {
    /// A lane from the queue joins its worker's group as row `at`. Its next step is launched with
    /// the group. Returns where it was counted as ready; the caller moves the count.
    pub(crate) fn join(&mut self, lane: LaneId, cell_type: CellTypeId, worker: WorkerId, at: usize) -> Counted {
        self.types[cell_type.index()].changed();
        let place = &mut self.lanes[lane.index()];
        let (domain, pinned, limit, merges, model, request) =
            (place.domain, place.pinned(), place.limit, place.merges, place.model, place.request);
        let position = u32::from(place.type_position);
        let Progress::Front(front) = &mut place.progress else { panic!("who joins goes on in order") };
        let (ready, entered) = front.take_ready().zip(front.entered()).expect("who was picked is ready");
        (front.worker, front.listed) = (worker, false);
        let (step, before) = (front.queued, scope(domain, pinned, ready.only));
        let key = place.key(entered, 0);
        self.types[cell_type.index()].unlist(domain, &key);
        self.request_mut(request).flying += 1;
        self.model_mut(model).flying += 1;
        let last = self.group(cell_type, worker).and_then(|group| group.rows.last());
        let orderly = last.is_none_or(|last| self.admitted(last.lane) < self.admitted(lane));
        let group = self.group_mut(cell_type, worker);
        (group.sole, group.orderly) = match group.rows.len() {
            0 => (Some(model), true),
            len => (group.sole.filter(|sole| *sole == model), group.orderly && orderly && at == len),
        };
        reserve::in_table(&mut group.rows, 1);
        reserve::in_table(&mut group.ends, 1);
        group.rows.insert(at, Row { lane, step });
        group.ends.insert(at, (group.launched + u64::from(limit - step)) as u32);
        group.unmergeable += u32::from(!merges);
        let joined = group.launched;
        if let Progress::Front(front) = &mut self.lane_mut(lane).progress {
            front.set_member(Membership { joined, steps: Membership::STAYS });
        }
        Counted { model, position, scope: before }
    }

    /// Moves the ready count of lanes that have joined to their worker.
    pub(crate) fn recount_joined(&mut self, counted: Option<Counted>, joined: i32, cell_type: CellTypeId, worker: WorkerId) {
        if let Some(Counted { model, position, scope }) = counted.filter(|counted| counted.scope != Scope::Worker(worker)) {
            self.count_of((model, position), cell_type, scope, -joined);
            self.count_of((model, position), cell_type, Scope::Worker(worker), joined);
        }
    }

    fn admitted(&self, lane: LaneId) -> (u32, u64, u32, u32) {
        let lane = self.lane(lane);
        (lane.rank, lane.order, lane.chain, u32::from(lane.stage))
    }

    /// Every member's step was launched. Members whose last step it was leave and land by
    /// themselves. They stay in `leavers` until [`Core::after_advanced`].
    pub(crate) fn advance(&mut self, cell_type: CellTypeId, worker: WorkerId) {
        let now = self.now;
        self.types[cell_type.index()].changed();
        let group = self.group_mut(cell_type, worker);
        group.advance(now);
        let (tick, sole, leavers) = (group.launched, group.sole, std::mem::take(&mut group.leavers));
        self.read_ahead(|| leavers.iter().copied());
        if let Some((model, first)) = sole.zip(leavers.first()) {
            let position = u32::from(self.lane(*first).type_position);
            self.count_of((model, position), cell_type, Scope::Worker(worker), -(leavers.len() as i32));
        }
        for lane in &leavers {
            if sole.is_none() {
                self.count(*lane, Scope::Worker(worker), -1);
            }
            let place = &mut self.lanes[lane.index()];
            if let Progress::Front(front) = &mut place.progress
                && let Some(mut member) = front.member()
            {
                member.leave(tick);
                front.set_member(member);
                front.queued = place.limit;
            }
            let merges = place.merges;
            let group = self.group_mut(cell_type, worker);
            if merges {
                group.ended += 1;
            } else {
                group.unmergeable -= 1;
            }
        }
        if let Some(state) = self.workers[worker.index()].as_mut()
            && let Some(task) = state.tasks.back_mut()
        {
            task.tick = tick;
            task.listed += leavers.len();
            reserve::in_ring(&mut state.landing, leavers.len());
            state.landing.extend(leavers.iter().map(|lane| Row { lane: *lane, step: 0 }));
        }
        self.group_mut(cell_type, worker).leavers = leavers;
    }

    /// Notifies the lanes that wait for the ends of those that have left.
    pub(crate) fn after_advanced(&mut self, cell_type: CellTypeId, worker: WorkerId) {
        if self.group(cell_type, worker).is_none_or(|group| group.leavers.is_empty()) {
            return;
        }
        let mut leavers = std::mem::take(&mut self.group_mut(cell_type, worker).leavers);
        self.read_waiters_ahead(&leavers);
        for lane in leavers.drain(..) {
            self.notify_end(lane);
        }
        self.group_mut(cell_type, worker).leavers = leavers;
    }

    /// Every step of a group up to a tick is complete.
    pub(crate) fn land_group(&mut self, cell_type: CellTypeId, worker: WorkerId, tick: u64) {
        let alone = self.sole_worker;
        let group = self.group_mut(cell_type, worker);
        group.landed = tick;
        // A sole worker keeps its members: no other could take them.
        if group.launched == tick && !alone {
            self.dissolve(cell_type, worker);
        }
    }

    /// Lands a row of a completed task of a group's type that ended with `tick`. The row lands by
    /// itself, with its lane's last step, or with the group.
    pub(crate) fn land_row(&mut self, row: Row, steps: u32, worker: WorkerId, tick: u64) {
        match self.lane(row.lane).member() {
            Some(member) if member.joined < tick && member.left() > tick => {}
            Some(member) if member.joined < tick => self.land_last(row.lane),
            _ => self.complete(row.lane, self.steps_of(row, steps, tick), worker),
        }
    }

    /// The steps of a row of a launch that ends with `tick` of its group; 0: it has no member. A
    /// member's chain may have ended before the launch did.
    pub(crate) fn steps_of(&self, row: Row, steps: u32, tick: u64) -> Range<u32> {
        let end = row.step + steps;
        // In a group's launch of several steps a lane runs to its limit. The lane cannot stop, so
        // its limit stays above what was launched. Steps beyond the limit are padding and were
        // never counted.
        row.step..if tick > 0 && steps > 1 { end.min(self.lane(row.lane).limit) } else { end }
    }

    /// The last step of a lane that left its group is complete, and so are all others.
    fn land_last(&mut self, lane: LaneId) {
        let place = &mut self.lanes[lane.index()];
        let (id, number, model, limit) = (place.request, place.chain, place.model, place.limit);
        if let Progress::Front(front) = &mut place.progress {
            front.take_member();
            front.done = limit;
        }
        self.uncount_rows(model, 1);
        let request = self.request_mut(id);
        request.flying -= 1;
        if let Some(chain) = request.chain_mut(number) {
            chain.remaining = 0;
        }
        self.end_chain_if_over(id, number);
    }
}

/// Leaving.
impl Core {
    /// The lane leaves its group, and also ends its membership if steps launched with the group are
    /// in flight. From now on its own record is right.
    pub(crate) fn leave_group(&mut self, lane: LaneId) {
        let done = self.landed_in_group(lane);
        let place = &mut self.lanes[lane.index()];
        let (cell_type, domain, merges, model, id, number) =
            (place.cell_type, place.domain, place.merges, place.model, place.request, place.chain);
        let Progress::Front(front) = &mut place.progress else { return };
        let Some(member) = front.take_member() else { return };
        let worker = front.worker;
        let group = &mut self.types[cell_type.index()].groups[worker.index()];
        let last = member.left().min(group.launched);
        let flying = (last - member.joined - done) as u32;
        front.done += done as u32;
        place.flying += flying;
        if member.stays() {
            let only = (place.flying > 0).then_some(worker);
            let at = group.rows.iter().rposition(|row| row.lane == lane).expect("a member has a row");
            front.queued = group.remove(at, merges).step;
            front.set_ready(Ready { time: group.time, only });
            front.listed = true;
            let key = front.entered().map(|entered| place.key(entered, 0)).expect("who was picked had entered");
            self.types[cell_type.index()].list(domain, key, Item::Front(lane));
            if only.is_none() {
                self.count(lane, Scope::Worker(worker), -1);
                self.count(lane, Scope::Domain(domain), 1);
            }
        }
        let request = self.request_mut(id);
        request.flying = request.flying + flying - 1;
        if let Some(chain) = request.chain_mut(number) {
            chain.remaining -= done;
        }
        let known = self.model_mut(model);
        known.flying = known.flying + flying - 1;
        if !known.is_busy() {
            self.touched.push(model);
        }
        if let Some(state) = self.workers[worker.index()].as_mut().filter(|_| flying > 0) {
            let tasks = state.tasks.iter_mut().filter(|task| task.cell_type == cell_type && task.tick > member.joined);
            tasks.for_each(|task| task.walk = true);
        }
    }

    /// Steps of a lane that landed with its group and are not in the lane's own record yet.
    pub(crate) fn landed_in_group(&self, lane: LaneId) -> u64 {
        let place = self.lane(lane);
        let Progress::Front(front) = &place.progress else { return 0 };
        let Some(member) = front.member() else { return 0 };
        let group = &self.types[place.cell_type.index()].groups[front.worker.index()];
        group.landed.clamp(member.joined, member.left().min(group.launched)) - member.joined
    }

    /// All members leave.
    pub(crate) fn dissolve(&mut self, cell_type: CellTypeId, worker: WorkerId) {
        while let Some(last) = self.group(cell_type, worker).and_then(|group| group.rows.last()) {
            self.leave_group(last.lane);
        }
    }

    /// Groups with nothing in flight dissolve: another worker could take their members now.
    pub(crate) fn dissolve_idle_groups(&mut self) {
        for cell_type in 0..self.types.len() {
            for worker in 0..self.types[cell_type].groups.len() {
                let group = &self.types[cell_type].groups[worker];
                if group.launched == group.landed {
                    self.dissolve(CellTypeId(cell_type as u32), WorkerId(worker as u32));
                }
            }
        }
    }

    /// A worker is about to be lost. Its groups dissolve, and its rows in flight leave them.
    pub(crate) fn dissolve_groups_of(&mut self, worker: WorkerId) {
        for cell_type in 0..self.types.len() {
            self.dissolve(CellTypeId(cell_type as u32), worker);
        }
        for index in 0..self.worker(worker).map_or(0, |state| state.rows.len()) {
            if let Some(row) = self.worker(worker).and_then(|state| state.rows.get(index)).copied() {
                self.leave_group(row.lane);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list: lanes leave with their last step, and the others continue in order.
        #[test]
        fn members_leave_with_their_last_step(steps in prop::collection::vec(1_u32..9, 0..300), launched in prop::sample::select(vec![0, u64::from(u32::MAX) - 4])) {
            let rows: Vec<_> = (0..steps.len() as u32).map(|lane| Row { lane: LaneId(lane), step: lane % 3 }).collect();
            let ends = steps.iter().map(|steps| (launched + u64::from(*steps)) as u32).collect();
            let mut group = Group { rows: rows.clone(), ends, launched, ..Group::default() };
            for tick in 1..9 {
                group.advance(Time(tick.into()));
                let at = |row: &&Row, wanted: fn(u32, u32) -> bool| wanted(steps[row.lane.index()], tick);
                let go_on: Vec<_> = rows.iter().filter(|row| at(row, |steps, tick| steps > tick)).map(|row| Row { step: row.step + tick, ..*row }).collect();
                let leave: Vec<_> = rows.iter().filter(|row| at(row, |steps, tick| steps == tick)).map(|row| row.lane).collect();
                prop_assert_eq!((&group.rows, &group.leavers, group.ends.len()), (&go_on, &leave, go_on.len()));
                group.leavers.clear();
            }
        }
    }
}

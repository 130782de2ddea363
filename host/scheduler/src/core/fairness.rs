//! Fair sharing of device time: between tenants by weight, between the models of a tenant evenly.
//!
//! The next turn goes to the tenant that is owed most device time for its weight, and within it to
//! the model that is owed most. A task is charged when it is submitted, at the recent cost of its
//! type, and corrected when its time is known. Rows of other models in the same batch are charged
//! to those models and their tenants. All of this holds under every policy.
//!
//! An idle tenant saves nothing up. It returns no better off than the active tenant that had least,
//! even if all of them were idle. That comparison counts completed tasks only, so tasks that others
//! queued ahead of a newcomer are not held against it. The newcomer goes before their tenants until
//! it has had as much.
//!
//! A tenant's requests thus take as much longer as its share of the device is smaller. Beside a
//! flood from one tenant of equal weight they take at most twice as long, plus the tasks that are
//! already with a worker. This holds while the tenant sends no more than half of its share.

use std::collections::VecDeque;

use crate::command::Row;
use crate::core::Core;
use crate::core::fleet::{Model, Task};
use crate::core::queues::Key;
use crate::core::tenants::Tenant;
use crate::id::{CellTypeId, ModelId, TaskSeq, WorkerId};

/// Fraction bits of virtual time.
const FRACTION: u32 = 16;

/// One microsecond, so that a newcomer goes first among equals. It is not gained twice, because a
/// larger share is kept.
const HEAD_START: i128 = 1000 << FRACTION;

/// Each new measurement moves a type's estimate by an eighth of the difference.
const SMOOTHING: i128 = 8;

/// Device time of a tenant or a model, in nanoseconds with [`FRACTION`] bits of fraction. A
/// tenant's is divided by its weight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    /// What was submitted counts at once, at its estimate until its time is known.
    pub(crate) charged: i128,
    /// Complete tasks alone.
    complete: i128,
}

impl Share {
    /// No better off than that, but for the head start.
    fn raise(&mut self, start: i128) {
        self.complete = self.complete.max(start - HEAD_START);
        self.charged = self.complete;
    }
}

/// Where those start that come back after a pause.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    /// Never goes back.
    floor: i128,
    /// The most that any of those had that have gone.
    most: i128,
}

impl Start {
    /// A tenant or model became idle. If no other is active, the next busy period starts for all of
    /// them where this one ended.
    fn left(&mut self, complete: i128, others_go_on: bool) {
        self.most = self.most.max(complete);
        if !others_go_on {
            self.floor = self.floor.max(self.most);
        }
    }

    /// Where a newcomer starts, if `least` is the least that any of the active ones had.
    fn come(&mut self, least: Option<i128>) -> i128 {
        self.floor = self.floor.max(least.unwrap_or(self.floor));
        self.floor
    }
}

/// Activity.
impl Core {
    /// Updates the sets of active models and tenants: those with ready nodes or rows in flight.
    pub(crate) fn note_activity(&mut self) {
        self.settle_counts();
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        touched.retain(|id| self.model(*id).active != self.model(*id).is_busy());
        self.switch_activity(&touched);
        touched.clear();
        self.touched = touched;
    }

    /// Those models, in order of their ids, were active and are not, or the other way round.
    pub(crate) fn switch_activity(&mut self, touched: &[ModelId]) {
        self.switch_models(touched);
        self.switch_tenants(touched);
    }

    fn switch_models(&mut self, touched: &[ModelId]) {
        for busy in [false, true] {
            for id in touched {
                let Model { tenant, share, .. } = *self.model(*id);
                if self.model(*id).is_busy() != busy {
                    continue;
                }
                let going_on = self.tenant(tenant).active.iter().filter(|other| touched.binary_search(other).is_err());
                let least = going_on.map(|other| self.model(*other).share.complete).min();
                let tenant = self.tenant_mut(tenant);
                if busy {
                    let at = tenant.active.partition_point(|other| other < id);
                    tenant.active.insert(at, *id);
                    let start = tenant.start.come(least);
                    self.model_mut(*id).share.raise(start);
                } else {
                    tenant.active.retain(|other| other != id);
                    tenant.start.left(share.complete, least.is_some());
                }
                self.model_mut(*id).active = busy;
            }
        }
    }

    /// The same for their tenants.
    fn switch_tenants(&mut self, touched: &[ModelId]) {
        if touched.iter().all(|id| self.tenant_of(*id).awake != self.tenant_of(*id).active.is_empty()) {
            return;
        }
        let going_on = self.tenants.iter().flatten().filter(|tenant| tenant.awake && !tenant.active.is_empty());
        let least = going_on.map(|tenant| tenant.share.complete).min();
        for busy in [false, true] {
            for id in touched {
                let index = self.model(*id).tenant;
                let tenant = self.tenant_mut(index);
                if tenant.awake == busy || tenant.active.is_empty() == busy {
                    continue;
                }
                tenant.awake = busy;
                let complete = tenant.share.complete;
                if busy {
                    let start = self.tenants_start.come(least);
                    self.tenant_mut(index).share.raise(start);
                } else {
                    self.tenants_start.left(complete, least.is_some());
                }
            }
        }
    }
}

/// The entry with work that had the least. If others had as little, also how much that is.
fn owed_most<T>(all: impl Iterator<Item = (T, i128)>, works: impl Fn(&T) -> bool) -> Option<(T, Option<i128>)> {
    let mut owed: Option<(T, i128)> = None;
    let mut tied = false;
    for (one, charged) in all {
        let least = owed.as_ref().map(|(_, least)| *least);
        if least.is_none_or(|least| charged <= least) && works(&one) {
            tied = least == Some(charged);
            owed = Some((one, charged));
        }
    }
    owed.map(|(one, least)| (one, tied.then_some(least)))
}

/// Order.
impl Core {
    /// The tenant that is owed most device time, of those with work for the worker; then the model
    /// of that tenant that is owed most. Ties go to the oldest work.
    pub(crate) fn choose_model(&self, has_work: impl Fn(ModelId) -> bool, age: impl Fn(ModelId) -> Option<Key>) -> Option<ModelId> {
        let has_work = |id: &ModelId| has_work(*id);
        let works = |tenant: &&Tenant| tenant.active.iter().any(has_work);
        let tenants = || self.tenants.iter().flatten().map(|tenant| (tenant, tenant.share.charged));
        let (mut tenant, tied) = owed_most(tenants(), works)?;
        if let Some(least) = tied {
            let rivals = tenants().filter(|(_, charged)| *charged == least).map(|(rival, _)| rival);
            let oldest = |rival: &&Tenant| (rival.active.iter().filter(|id| has_work(id)).filter_map(|id| age(*id)).min(), rival.id);
            tenant = rivals.filter(works).min_by_key(oldest)?;
        }
        let models = || tenant.active.iter().map(|id| (*id, self.model(*id).share.charged));
        let (model, tied) = owed_most(models(), has_work)?;
        let Some(least) = tied else { return Some(model) };
        let rivals = models().filter(|(_, charged)| *charged == least).map(|(id, _)| id);
        rivals.filter(has_work).min_by_key(|id| (age(*id), *id))
    }
}

/// Accounts.
impl Core {
    /// Charges a task of one step at its type's estimate, which is returned.
    pub(crate) fn charge_ahead(&mut self, cell_type: CellTypeId, rows: impl ExactSizeIterator<Item = Row>) -> u64 {
        let estimate = self.types[cell_type.index()].estimate_ns;
        self.charge(rows, i128::from(estimate), 0);
        estimate
    }

    /// The same where all rows are one model's.
    pub(crate) fn charge_ahead_one(&mut self, cell_type: CellTypeId, model: ModelId, rows: usize) -> u64 {
        let estimate = self.types[cell_type.index()].estimate_ns;
        self.charge_model(model, (i128::from(estimate), 0), (rows, rows));
        estimate
    }

    /// Charges rows' models, each by its number of rows; `used` is what they are known to have had.
    fn charge(&mut self, rows: impl ExactSizeIterator<Item = Row>, nanoseconds: i128, used: u64) {
        let total = rows.len();
        let mut run: Option<(ModelId, usize)> = None;
        for row in rows {
            let model = self.lanes[row.lane.index()].model;
            run = match run {
                Some((same, count)) if same == model => Some((same, count + 1)),
                Some((other, count)) => {
                    self.charge_model(other, (nanoseconds, used), (count, total));
                    Some((model, 1))
                }
                None => Some((model, 1)),
            };
        }
        if let Some((model, count)) = run {
            self.charge_model(model, (nanoseconds, used), (count, total));
        }
    }

    /// Charges a model and its tenant for `count` rows of `total`.
    fn charge_model(&mut self, id: ModelId, (nanoseconds, used): (i128, u64), (count, total): (usize, usize)) {
        let part = |of: i128| if count == total { of } else { of * count as i128 / total as i128 };
        let (charged, complete) = (part(nanoseconds << FRACTION), part(i128::from(used) << FRACTION));
        let model = self.model_mut(id);
        model.share.charged += charged;
        model.share.complete += complete;
        let index = model.tenant;
        let tenant = self.tenant_mut(index);
        let weight = i128::from(tenant.weight);
        let weighed = |of: i128| if weight == 1 { of } else { of / weight };
        tenant.share.charged += weighed(charged);
        tenant.share.complete += weighed(complete);
        if used > 0 {
            let part = u64::try_from(complete >> FRACTION).unwrap_or(u64::MAX);
            match self.out.used.iter_mut().rev().find(|(other, _)| *other == id) {
                Some((_, sum)) => *sum = sum.saturating_add(part),
                None => self.out.used.push((id, part)),
            }
        }
    }

    /// A task is lost: takes back what was charged for it.
    pub(crate) fn refund(&mut self, task: &Task, rows: impl ExactSizeIterator<Item = Row>) {
        self.charge(rows, -i128::from(task.charged_ns), 0);
    }

    /// Splits the measured time of completed tasks by their estimates. Corrects what was charged,
    /// and updates the estimates.
    pub(crate) fn account(&mut self, worker: WorkerId, up_to: TaskSeq, busy_ns: u64) {
        let Some(state) = self.workers[worker.index()].as_mut() else { return };
        let tasks: VecDeque<Task> = std::mem::take(&mut state.tasks);
        let rows = std::mem::take(&mut state.rows);
        let done = tasks.partition_point(|task| task.seq <= up_to);
        let charged: u128 = tasks.range(..done).map(|task| u128::from(task.charged_ns)).sum();
        let steps: u64 = tasks.range(..done).map(|task| u64::from(task.steps)).sum();
        let part = |of: u64, all: u128| u64::try_from(u128::from(busy_ns) * u128::from(of) / all).unwrap_or(busy_ns);
        let mut first = 0;
        for task in tasks.range(..done) {
            let measured = match charged {
                _ if done == 1 => busy_ns,
                0 => part(u64::from(task.steps), u128::from(steps.max(1))),
                charged => part(task.charged_ns, charged),
            };
            let correction = i128::from(measured) - i128::from(task.charged_ns);
            match task.sole {
                Some(sole) => self.charge_model(sole, (correction, measured), (task.rows, task.rows)),
                None => self.charge(rows.range(first..first + task.rows).copied(), correction, measured),
            }
            first += task.rows;
            let queue = &mut self.types[task.cell_type.index()];
            let each = i128::from(measured / u64::from(task.steps));
            let before = i128::from(queue.estimate_ns);
            let estimate = if before == 0 { each } else { before + (each - before) / SMOOTHING };
            queue.estimate_ns = u64::try_from(estimate).unwrap_or(0);
        }
        if let Some(state) = self.workers[worker.index()].as_mut() {
            (state.tasks, state.rows) = (tasks, rows);
        }
    }
}

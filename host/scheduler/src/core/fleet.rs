//! Workers, their memory domains, and the models they serve. Nothing here is about requests.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::command::Row;
use crate::core::admission_queues::AdmissionQueues;
use crate::core::arena::Arena;
use crate::core::fairness::Share;
use crate::core::queues::Tally;
use crate::core::slices::Paused;
use crate::core::tenants::TenantIndex;
use crate::cost::CostTable;
use crate::event::{BatchSizes, ModelInfo};
use crate::id::{CellTypeId, DomainId, ModelId, NumericClass, TaskSeq, Time};
use crate::policy::{PolicyKind, Takes};

/// A task in flight. Its rows are in its worker's `rows`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) seq: TaskSeq,
    pub(crate) cell_type: CellTypeId,
    pub(crate) steps: u32,
    pub(crate) rows: usize,
    /// The tick of the worker's group of this type after it. 0: no row is a member's.
    pub(crate) tick: u64,
    /// How many rows do not land with the group. They are in the worker's `landing`.
    pub(crate) listed: usize,
    /// Whether every row must be checked, because a member left the group and lands by itself.
    pub(crate) walk: bool,
    /// The model of all rows, if there is but one.
    pub(crate) sole: Option<ModelId>,
    /// Device time charged for it ahead.
    pub(crate) charged_ns: u64,
    /// Its worker may pause it.
    pub(crate) sliced: bool,
}

/// A worker that is up.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) domain: DomainId,
    pub(crate) class: NumericClass,
    pub(crate) last_seq: TaskSeq,
    pub(crate) tasks: VecDeque<Task>,
    /// Rows of `tasks`, one after the other.
    pub(crate) rows: VecDeque<Row>,
    /// Rows of `tasks` that land by themselves, where members of a group do not.
    pub(crate) landing: VecDeque<Row>,
    /// Steps of tasks in flight.
    pub(crate) outstanding: u32,
    /// When cellular or adaptive batching last chose a type for it, and when the time before.
    pub(crate) chosen: [Time; 2],
    /// How many requests of which models are taken for it, ascending by model.
    pub(crate) taken: Vec<(ModelId, u32)>,
    /// Tasks that it paused.
    pub(crate) paused: VecDeque<Paused>,
}

impl Worker {
    /// Nothing in flight.
    pub(crate) fn new(domain: DomainId, class: NumericClass) -> Self {
        let (tasks, rows, landing, paused) = Default::default();
        Self { domain, class, last_seq: TaskSeq(0), tasks, rows, landing, outstanding: 0, chosen: [Time(0); 2], taken: Vec::new(), paused }
    }
}

/// A memory domain with at least one worker.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) class: NumericClass,
    pub(crate) workers: u32,
    pub(crate) arena: Arena,
    /// Numbers the lives of domains. A block of an earlier life is not given back to this one.
    pub(crate) life: u32,
}

/// A numeric class.
#[derive(Debug, Default)]
pub(crate) struct Class {
    pub(crate) workers: u32,
    /// Requests without memory, and how much the tenants of the others hold.
    pub(crate) queues: AdmissionQueues,
    /// More than one tenant has models of it.
    pub(crate) shared: bool,
}

/// One of a model's distinct cell types.
#[derive(Debug)]
pub(crate) struct ModelType {
    pub(crate) cell_type: CellTypeId,
    pub(crate) priority: i32,
    pub(crate) batch: BatchSizes,
    /// Rows of spans that a task may read, unless it is of one node.
    pub(crate) span_rows: u64,
    pub(crate) cost: CostTable,
    pub(crate) fill_first: bool,
    pub(crate) steps_together: bool,
    /// This model's ready nodes of the type.
    pub(crate) tally: Tally,
}

/// A model, and how much device time it had.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) info: Arc<ModelInfo>,
    pub(crate) tenant: TenantIndex,
    pub(crate) policy: PolicyKind,
    pub(crate) takes: Takes,
    pub(crate) types: Vec<ModelType>,
    /// For each cell, its type's position in `types`.
    pub(crate) type_of_cell: Vec<u32>,
    pub(crate) share: Share,
    pub(crate) active: bool,
    /// Requests of it that have not left.
    pub(crate) requests: u32,
    /// Ready nodes, and requests that are offered or taken.
    pub(crate) ready: u32,
    /// Rows in flight.
    pub(crate) flying: u32,
    /// It takes no more submissions.
    pub(crate) closed: bool,
    /// Its tasks run in slices.
    pub(crate) sliced: bool,
}

impl Model {
    pub(crate) fn new(info: Arc<ModelInfo>, tenant: TenantIndex, (policy, takes): (PolicyKind, Takes)) -> Self {
        let mut types: Vec<ModelType> = Vec::new();
        let mut type_of_cell = Vec::with_capacity(info.cells.len());
        for cell in &info.cells {
            let at = match types.iter().position(|known| known.cell_type == cell.cell_type) {
                Some(at) => at,
                None => {
                    types.push(ModelType {
                        cell_type: cell.cell_type,
                        priority: cell.priority,
                        batch: cell.batch,
                        span_rows: u64::MAX,
                        cost: cell.cost.clone(),
                        fill_first: cell.fill_first,
                        steps_together: cell.steps_together,
                        tally: Tally::default(),
                    });
                    types.len() - 1
                }
            };
            // Equal cells under two names are one type; the higher rank counts.
            types[at].priority = types[at].priority.max(cell.priority);
            type_of_cell.push(at as u32);
        }
        let share = Share::default();
        let (active, closed, sliced, requests, ready, flying) = Default::default();
        Self { info, tenant, policy, takes, types, type_of_cell, share, active, requests, ready, flying, closed, sliced }
    }

    /// Sets batch limits so that a batch takes no longer than a slice, if one is given and a row
    /// does not.
    pub(crate) fn fit_batches(&mut self, slice_ns: Option<u64>) {
        for (one, at) in self.types.iter_mut().zip(0..) {
            let cell = self.type_of_cell.iter().position(|of_type| *of_type == at);
            let Some(sizes) = cell.map(|cell| sound(self.info.cells[cell].batch)) else { continue };
            let fits = |rows: &u32| slice_ns.is_none_or(|slice_ns| one.cost.nanoseconds(*rows).is_none_or(|ns| ns <= slice_ns));
            let fitted = |most: u32| if fits(&1) { (1..=most).rev().find(fits).unwrap_or(1) } else { most };
            let spans = cell.and_then(|cell| self.info.cells[cell].spans);
            let span_rows = spans.map_or(u64::MAX, |spans| u64::from(spans.rows) * u64::from(fitted(spans.batch)));
            one.batch = sound(BatchSizes { max: fitted(sizes.max), ..sizes });
            one.span_rows = span_rows;
        }
    }

    /// Whether its policy takes requests, not nodes.
    pub(crate) fn takes_requests(&self) -> bool {
        self.takes != Takes::Nodes
    }

    /// Whether it has something ready or in flight.
    pub(crate) const fn is_busy(&self) -> bool {
        self.ready + self.flying > 0
    }
}

/// Batch sizes under which every batch makes progress.
fn sound(sizes: BatchSizes) -> BatchSizes {
    let max = sizes.max.max(1);
    BatchSizes { min: sizes.min.clamp(1, max), quantum: sizes.quantum.clamp(1, max), max }
}

/// A table indexed by an id; absent entries are none.
pub(crate) fn entry<T>(table: &mut Vec<Option<T>>, index: usize) -> &mut Option<T> {
    if index >= table.len() {
        table.resize_with(index + 1, || None);
    }
    &mut table[index]
}

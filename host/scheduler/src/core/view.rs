//! What a policy may read.

use cellwright_cell_graph::UnfoldedGrowth;

use crate::command::Row;
use crate::config::Config;
use crate::core::Core;
use crate::core::fleet::{Model, ModelType, Worker};
use crate::core::lane::{Progress, Status};
use crate::core::offers::Member;
use crate::core::queues::{Key, TypeQueue};
use crate::core::request::{Chain, Request};
use crate::id::{CellTypeId, LaneId, ModelId, RequestId, Time, WorkerId};

/// The scheduler's state as a model's policy sees it. Read only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    core: &'a Core,
    model: ModelId,
}

impl Core {
    pub(crate) const fn view(&self, model: ModelId) -> View<'_> {
        View { core: self, model }
    }
}

/// The model, its types and the workers.
impl<'a> View<'a> {
    pub(crate) fn model(self) -> &'a Model {
        self.core.model(self.model)
    }

    pub(crate) const fn model_id(self) -> ModelId {
        self.model
    }

    /// The model's distinct cell types.
    pub(crate) fn types(self) -> &'a [ModelType] {
        &self.model().types
    }

    /// One of the model's types.
    pub(crate) fn type_of(self, cell_type: CellTypeId) -> Option<&'a ModelType> {
        self.types().iter().find(|known| known.cell_type == cell_type)
    }

    /// The queue of a type, which all models share: ready nodes, tasks in flight, and task time.
    pub(crate) fn queue(self, cell_type: CellTypeId) -> &'a TypeQueue {
        &self.core.types[cell_type.index()]
    }

    pub(crate) const fn now(self) -> Time {
        self.core.now
    }

    pub(crate) const fn config(self) -> &'a Config {
        &self.core.config
    }

    pub(crate) fn worker(self, worker: WorkerId) -> Option<&'a Worker> {
        self.core.worker(worker)
    }

    /// All workers that are up, and their ids.
    pub(crate) fn workers(self) -> impl Iterator<Item = (WorkerId, &'a Worker)> {
        (0..).map(WorkerId).zip(&self.core.workers).filter_map(|(id, worker)| Some((id, worker.as_ref()?)))
    }

    /// Whether there is one worker alone.
    pub(crate) const fn is_sole_worker(self) -> bool {
        self.core.sole_worker
    }

    /// The policies of other models of which requests are taken for a worker, by name.
    pub(crate) fn other_takers(self, worker: WorkerId) -> impl Iterator<Item = &'static str> {
        let taken = self.worker(worker).map_or(&[][..], |state| &state.taken);
        taken.iter().filter(move |(model, _)| *model != self.model).map(move |(model, _)| self.core.model(*model).policy.name())
    }
}

/// Nodes in queues.
impl<'a> View<'a> {
    /// The age of the oldest ready node of a type that a worker may run. With `own`, of this model
    /// only.
    pub(crate) fn oldest_node(self, cell_type: CellTypeId, worker: WorkerId, own: bool) -> Option<Key> {
        self.core.oldest(cell_type, worker, own.then_some(self.model))
    }

    /// All ready nodes of a type that a worker may run, in the queue's order.
    pub(crate) fn ready_nodes(self, cell_type: CellTypeId, worker: WorkerId) -> impl Iterator<Item = Row> + use<'a> {
        self.core.ready_for(worker, cell_type)
    }

    /// Checks row by row whether a task of a type may read the row's spans, too.
    pub(crate) fn fits(self, cell_type: CellTypeId) -> impl FnMut(&Row) -> bool {
        self.core.fits(self.type_of(cell_type).map_or(u64::MAX, |known| known.span_rows))
    }

    /// How many of these rows, from the first on, may be one task.
    pub(crate) fn fitting(self, cell_type: CellTypeId, rows: &[Row]) -> usize {
        rows.iter().copied().take_while(self.fits(cell_type)).count()
    }

    /// Whether a node was submitted. Its stage runs step by step.
    pub(crate) fn is_submitted(self, node: Row) -> bool {
        matches!(&self.core.lane(node.lane).progress, Progress::Front(front) if node.step < front.queued)
    }

    /// Whether a worker may run a node now.
    pub(crate) fn is_ready(self, node: Row, worker: WorkerId) -> bool {
        self.core.runs_on(node, worker)
    }
}

/// Requests.
impl<'a> View<'a> {
    pub(crate) fn request(self, request: RequestId) -> &'a Request {
        self.core.request(request)
    }

    /// The order that the next submission will have.
    pub(crate) const fn next_order(self) -> u64 {
        self.core.next_order
    }

    /// The request of a lane.
    pub(crate) fn request_of(self, lane: LaneId) -> &'a Request {
        self.request(self.core.lane(lane).request)
    }

    pub(crate) fn cell_type_of(self, lane: LaneId) -> CellTypeId {
        self.core.lane(lane).cell_type
    }

    /// The graph of a growth that was offered.
    pub(crate) fn growth(self, member: &Member) -> Option<&'a UnfoldedGrowth> {
        self.request(member.request).growth(member.growth).map(|graph| &**graph)
    }

    /// Whether a growth is taken for a worker, and its request has not ended.
    pub(crate) fn is_taken(self, member: &Member, worker: WorkerId) -> bool {
        self.request(member.request).order == member.order && self.core.is_taken_for(member.request, worker)
    }

    /// Whether any of these that is taken for the worker has rows in flight.
    pub(crate) fn any_in_flight(self, members: &[Member], worker: WorkerId) -> bool {
        members.iter().any(|member| self.is_taken(member, worker) && self.request(member.request).flying > 0)
    }

    /// The smallest limit of the types that a growth names.
    pub(crate) fn batch_limit(self, member: &Member) -> u32 {
        let cells = self.growth(member).into_iter().flat_map(|graph| &graph.chains).flat_map(|chain| &chain.stages).map(|stage| stage.cell);
        let limits = cells.map(|cell| self.types()[self.model().type_of_cell[cell as usize] as usize].batch.max);
        limits.min().unwrap_or(1)
    }

    /// Nodes of a lane that are complete but not yet counted by its chain.
    pub(crate) fn landed_in_group(self, lane: LaneId) -> u64 {
        self.core.landed_in_group(lane)
    }

    /// A chain of which `own` names a step that was never executed. All steps from `step` on are
    /// checked; only that step if `own` may stop by itself before later ones.
    pub(crate) fn names_beyond_end(self, own: &Chain, step: u32) -> Option<u32> {
        let steps = if own.stops_itself() { step..own.end.min(step + 1) } else { step..own.end };
        let lanes = (0..own.stages()).map(|stage| own.lane(stage));
        let mut named = lanes.flat_map(|lane| steps.clone().flat_map(move |step| self.core.named_steps(lane, step)));
        named.find(|(_, status)| *status == Status::Never).map(|(chain, _)| chain)
    }
}

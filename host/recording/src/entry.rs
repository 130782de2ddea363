//! What a frame holds.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::Source;
use cellwright_scheduler::{
    Config, DomainId, Event, LaneId, ModelId, ModelInfo, NumericClass, RequestId, Submission, TaskSeq, TenantId, Time, WorkerId,
};
use serde::{Deserialize, Serialize};

/// The first frame.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    /// The version of the program that wrote it.
    pub(super) program: String,
    pub(super) config: Config,
}

/// Any other frame.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Entry {
    /// A graph that requests after it name by that number; it takes the place of one that had the number before.
    Growth { number: u32, growth: UnfoldedGrowth },
    /// A call of the scheduler; when the tasks that it was told of ended, in their order.
    Handled { now: Time, told: Vec<Told>, ended: Vec<Time>, decisions: u64 },
}

/// An event, with graphs by number.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Told {
    WorkerUp { worker: WorkerId, domain: DomainId, class: NumericClass, arena_slots: u32 },
    WorkerDown(WorkerId),
    ModelUp(ModelInfo),
    ModelDown(ModelId),
    TenantWeight { tenant: TenantId, weight: u32 },
    Submit { request: RequestId, model: ModelId, rank: u32, deadline: Option<Time>, growth: u32 },
    Grow { request: RequestId, growth: u32 },
    Close(RequestId),
    Cancel(RequestId),
    Done { worker: WorkerId, up_to: TaskSeq, busy_ns: u64, stopped: Vec<(LaneId, u32)>, failed: Vec<LaneId> },
    Paused { worker: WorkerId, seq: TaskSeq, busy_ns: u64 },
    Moved(RequestId),
    Wake,
}

impl Told {
    /// That event; `number` says by which number a graph goes.
    pub(super) fn of<E>(event: Event, number: &mut impl FnMut(&UnfoldedGrowth) -> Result<u32, E>) -> Result<Self, E> {
        Ok(match event {
            Event::WorkerUp { worker, domain, class, arena_slots } => Self::WorkerUp { worker, domain, class, arena_slots },
            Event::WorkerDown(worker) => Self::WorkerDown(worker),
            Event::ModelUp(info) => Self::ModelUp(Arc::unwrap_or_clone(info)),
            Event::ModelDown(model) => Self::ModelDown(model),
            Event::TenantWeight { tenant, weight } => Self::TenantWeight { tenant, weight },
            Event::Submit(Submission { request, model, rank, deadline, growth }) => {
                Self::Submit { request, model, rank, deadline, growth: number(&growth)? }
            }
            Event::Grow { request, growth } => Self::Grow { request, growth: number(&growth)? },
            Event::Close(request) => Self::Close(request),
            Event::Cancel(request) => Self::Cancel(request),
            Event::Done { worker, up_to, busy_ns, stopped, failed } => Self::Done { worker, up_to, busy_ns, stopped, failed },
            Event::Paused { worker, seq, busy_ns } => Self::Paused { worker, seq, busy_ns },
            Event::Moved(request) => Self::Moved(request),
            Event::Wake => Self::Wake,
        })
    }

    /// The event again; none if it names a graph that `growth` does not know.
    pub(super) fn event(self, growth: impl Fn(u32) -> Option<Arc<UnfoldedGrowth>>) -> Option<Event> {
        Some(match self {
            Self::WorkerUp { worker, domain, class, arena_slots } => Event::WorkerUp { worker, domain, class, arena_slots },
            Self::WorkerDown(worker) => Event::WorkerDown(worker),
            Self::ModelUp(info) => Event::ModelUp(Arc::new(info)),
            Self::ModelDown(model) => Event::ModelDown(model),
            Self::TenantWeight { tenant, weight } => Event::TenantWeight { tenant, weight },
            Self::Submit { request, model, rank, deadline, growth: number } => {
                Event::Submit(Submission { request, model, rank, deadline, growth: growth(number)? })
            }
            Self::Grow { request, growth: number } => Event::Grow { request, growth: growth(number)? },
            Self::Close(request) => Event::Close(request),
            Self::Cancel(request) => Event::Cancel(request),
            Self::Done { worker, up_to, busy_ns, stopped, failed } => Event::Done { worker, up_to, busy_ns, stopped, failed },
            Self::Paused { worker, seq, busy_ns } => Event::Paused { worker, seq, busy_ns },
            Self::Moved(request) => Event::Moved(request),
            Self::Wake => Event::Wake,
        })
    }
}

/// A graph without what its request holds: a scheduler never looks at it.
pub(super) fn bare(growth: &UnfoldedGrowth) -> UnfoldedGrowth {
    let mut bare = growth.clone();
    for input in bare.chains.iter_mut().flat_map(|chain| &mut chain.stages).flat_map(|stage| &mut stage.inputs) {
        match &mut input.source {
            Source::Literal(bytes) => *bytes = Box::default(),
            Source::Ints(ints) => ints.clear(),
            _ => {}
        }
    }
    if let Some(next) = &mut bare.next {
        next.state.clear();
    }
    bare
}

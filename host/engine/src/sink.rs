//! Where a request's results go.

use std::time::Duration;

use cellwright_backend::RowError;
use cellwright_scheduler::{Failure, Fault, PolicyKind};

use crate::figures::RequestTimes;

/// An output of one node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value<'a> {
    /// The chain, counted over the request.
    pub chain: u32,
    /// The stage.
    pub stage: u32,
    /// The output.
    pub output: u32,
    /// The step.
    pub step: u32,
    /// The row, in the output's datatype.
    pub bytes: &'a [u8],
}

/// Why a request ended without finishing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestFailure {
    /// It was cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// It needs more memory than a request of its tenant may have.
    #[error("the request's graph needs {needed} bytes of state, and a request of this tenant may have {available}: send a shorter one")]
    TooLarge {
        /// Bytes it needs.
        needed: u64,
        /// Bytes that it may have.
        available: u64,
    },
    /// It grew beyond its reservation, or beyond the rows of slots that are left there.
    #[error(
        "the request's graph grew beyond the room that its model's live-max reserves: {reserved} bytes, with no free stretch that is long enough"
    )]
    GrewTooLarge {
        /// Bytes it had reserved.
        reserved: u64,
    },
    /// Its model may not grow.
    #[error("the plugin let its graph grow, but its description declares no live-max")]
    MayNotGrow,
    /// A kernel refused one of its rows.
    #[error("{0}")]
    Row(RowError),
    /// It named a step that was never executed.
    #[error("the graph names a step beyond the end of chain {chain}, which stopped early")]
    BeyondEnd {
        /// The chain.
        chain: u32,
    },
    /// The device that held its state is gone.
    #[error("the device that ran this request is lost")]
    WorkerLost,
    /// Nothing can run it.
    #[error("no worker can run this model")]
    NoWorker,
    /// Too much is waiting.
    #[error("too many requests wait for memory on the device")]
    Overloaded,
    /// Its model's policy gave it up: it could not be done by its deadline any more.
    #[error("the request, which takes at least {alone:.1?} on idle devices, could not be answered by its deadline")]
    Late {
        /// What it takes at least on idle devices.
        alone: Duration,
    },
    /// It took longer than [`EngineOptions::request_time_max`](crate::EngineOptions::request_time_max).
    #[error("the request took longer than {} s, the limit of this server", max.as_secs_f64())]
    Overdue {
        /// The limit.
        max: Duration,
    },
    /// Its model's policy broke a rule of the scheduler.
    #[error("the policy `{policy}` failed: {fault}")]
    Policy {
        /// The policy.
        policy: PolicyKind,
        /// Which rule.
        fault: Fault,
    },
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    Stopped,
}

impl RequestFailure {
    /// What the scheduler said, in the engine's terms; `row` is what the kernel said.
    pub(crate) fn from_scheduler(failure: Failure, row: Option<RowError>) -> Self {
        const BYTES: u64 = cellwright_backend::SLOT_BYTES as u64;
        match failure {
            Failure::Cancelled => Self::Cancelled,
            Failure::TooLarge { needed, available } => {
                Self::TooLarge { needed: needed.saturating_mul(BYTES), available: available.saturating_mul(BYTES) }
            }
            Failure::GrewTooLarge { reserved } => Self::GrewTooLarge { reserved: reserved.saturating_mul(BYTES) },
            Failure::MayNotGrow => Self::MayNotGrow,
            Failure::Row => row.map_or(Self::WorkerLost, Self::Row),
            Failure::BeyondEnd { chain } => Self::BeyondEnd { chain },
            Failure::WorkerLost => Self::WorkerLost,
            Failure::NoWorker => Self::NoWorker,
            Failure::Overloaded => Self::Overloaded,
            Failure::Policy { policy, fault } => Self::Policy { policy, fault },
            Failure::Late { alone_ns } => Self::Late { alone: Duration::from_nanos(alone_ns) },
        }
    }
}

/// Receives a request's results on the thread that runs the scheduler (the engine's, or a worker's between two tasks), which waits for it: an implementation
/// copies or signals and returns.
///
/// Of one output, values come in the order of steps where the chain is sequential, in any order otherwise. After `finished` or `failed`
/// nothing more comes.
pub trait Sink: Send {
    /// An output that its graph delivers.
    fn value(&mut self, value: Value<'_>);

    /// A chain that may stop executed its last step: so many in all. Chains of fixed length do not say so. Comes after the step's values.
    fn ended(&mut self, chain: u32, executed: u32);

    /// A later growth has its place. A sink that counts growths can hold up its input before the
    /// scheduler refuses one.
    fn placed(&mut self) {}

    /// The last node is complete.
    fn finished(self: Box<Self>, times: RequestTimes);

    /// It ended otherwise.
    fn failed(self: Box<Self>, failure: RequestFailure, times: RequestTimes);
}

//! Figures as `/metrics` and the statistics show them: plain numbers, read at one moment.

use cellwright_registry::TenantName;

/// So many occasions, and how long they took together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Occasions.
    pub count: u64,
    /// Nanoseconds.
    pub ns: u64,
}

/// How a version of a model has fared since the server started. Versions that have not served since are not among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFigures {
    /// Whose it is.
    pub tenant: TenantName,
    /// The model's name.
    pub name: String,
    /// The version.
    pub version: u64,
    /// Calls in flight now.
    pub in_flight: u64,
    /// Calls that wait for a place among them.
    pub queued: u64,
    /// Calls that were answered.
    pub success: Total,
    /// Calls that were not.
    pub failure: Total,
    /// Requests that waited for their first task.
    pub queue: Total,
    /// Calls that were unfolded.
    pub unfold: Total,
    /// Requests that ran.
    pub compute: Total,
    /// Requests that were answered: where rows are requests, a call is several.
    pub requests: u64,
    /// Requests that began again because the device that had them was lost.
    pub replayed: u64,
    /// Failures that were the plugin's fault.
    pub faults: u64,
    /// Calls refused for load.
    pub shed: u64,
    /// Calls whose client left.
    pub cancelled: u64,
    /// Calls whose time was up.
    pub expired: u64,
    /// When the last call ended, milliseconds since 1970; 0: none has.
    pub last_ms: u64,
    /// Answered calls by latency: up to so many nanoseconds (none: longer than all before), so many calls; not added up.
    pub latency: Vec<(Option<u64>, u64)>,
    /// Device time of its calls' nodes, nanoseconds.
    pub device_ns: u64,
    /// Batches in which nodes of its calls ran, by size: up to so many nodes, whosever they were (none: more than all before), so many batches; not added
    /// up.
    pub batches: Vec<(Option<u64>, u64)>,
    /// Its cells, as they were loaded last.
    pub cells: Vec<CellFigures>,
}

impl ModelFigures {
    /// Batches of all sizes.
    pub(crate) fn tasks(&self) -> u64 {
        self.batches.iter().map(|(_, count)| count).sum()
    }
}

/// What a cell's type has done since it was loaded, whichever models' nodes they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellFigures {
    /// The plugin's name for it.
    pub name: String,
    /// Its type.
    pub key: String,
    /// Its batch limit.
    pub batch_max: u64,
    /// Batches that ran.
    pub tasks: u64,
    /// Their nodes.
    pub rows: u64,
    /// Device time they took, nanoseconds.
    pub busy_ns: u64,
    /// Batches by size: up to so many nodes (none: more than all before), so many batches; not added up.
    pub batches: Vec<(Option<u64>, u64)>,
    /// The tables by which workers look up what it computes of a token, if they have some or may come to.
    pub table: Option<TableFigures>,
}

/// Tables of what a cell computes of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFigures {
    /// Bytes that they may come to take.
    pub bytes: u64,
    /// Tokens that there are, of all of them together.
    pub tokens: u64,
    /// Rows of tokens that are there.
    pub filled: u64,
}

/// A memory domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainFigures {
    /// Its name.
    pub name: String,
    /// Slots that requests hold.
    pub slots_used: u64,
    /// Slots there are.
    pub slots: u64,
}

/// A worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerFigures {
    /// Whether it takes tasks.
    pub up: bool,
    /// Tasks it has not completed.
    pub outstanding: u64,
}

/// Everything that is counted behind the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// By tenant, name and version.
    pub models: Vec<ModelFigures>,
    /// Requests that wait for memory.
    pub waiting: u64,
    /// Memory domains, by number.
    pub domains: Vec<DomainFigures>,
    /// Workers, by number.
    pub workers: Vec<WorkerFigures>,
}

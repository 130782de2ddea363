//! What one call into a plugin may use. A model may lower a limit; it may raise that on memory alone, up to the server's.

use std::time::Duration;

/// Bounds on every call into a plugin, and on what it may answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Processor time of one `unfold` or `resume`. In real time a call may take 20 times as long, should the machine be that busy.
    pub call_time: Duration,
    /// The same of one `describe`, the instance's start included.
    pub describe_time: Duration,
    /// Linear memory of one instance, all its memories together.
    pub memory_bytes: usize,
    /// Elements of all tables of one instance together.
    pub table_elements: usize,
    /// Bytes a plugin may hand over in one answer, as the host stores them.
    pub answer_bytes: usize,
    /// Chains in one growth.
    pub chains: usize,
    /// Elements of all lists of one growth or description together.
    pub list_elements: usize,
    /// Bytes of state a continuation may leave with the host.
    pub state_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            call_time: Duration::from_millis(100),
            describe_time: Duration::from_secs(5),
            memory_bytes: 64 << 20,
            table_elements: 20_000,
            answer_bytes: 64 << 20,
            chains: 1 << 16,
            list_elements: 1 << 22,
            state_bytes: 1 << 20,
        }
    }
}

impl Limits {
    /// The most that a server allows its models: the defaults, and more memory for those that ask for it.
    #[must_use]
    pub fn of_server() -> Self {
        Self { memory_bytes: 512 << 20, ..Self::default() }
    }

    /// The stricter of both, limit by limit.
    #[must_use]
    pub fn lowered_to(&self, other: &Self) -> Self {
        Self {
            call_time: self.call_time.min(other.call_time),
            describe_time: self.describe_time.min(other.describe_time),
            memory_bytes: self.memory_bytes.min(other.memory_bytes),
            table_elements: self.table_elements.min(other.table_elements),
            answer_bytes: self.answer_bytes.min(other.answer_bytes),
            chains: self.chains.min(other.chains),
            list_elements: self.list_elements.min(other.list_elements),
            state_bytes: self.state_bytes.min(other.state_bytes),
        }
    }
}

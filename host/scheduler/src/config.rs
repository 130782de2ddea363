//! What an operator may choose.

use serde::{Deserialize, Serialize};

use crate::policy::PolicyKind;

/// When a node may be queued (DESIGN: Algorithm 1 with its gaps filled).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Release {
    /// When each input is complete or its producer is queued ahead on the same worker.
    #[default]
    Node,
    /// The paper's rule: when all outside inputs of its subgraph are complete.
    Subgraph,
}

/// A scheduler's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// The policy of models that name none.
    pub policy: PolicyKind,
    /// The release rule of `Cellular` and `Adaptive`.
    pub release: Release,
    /// How many tasks one decision may submit (the paper's `MaxTasksToSubmit`).
    pub max_tasks_to_submit: u32,
    /// A worker asks for more when so few of its tasks are outstanding; 0 is the paper's "when
    /// idle". A launch has so many steps fewer than a decision may have: one that had them all
    /// would end at once, and leave the worker idle until it hears of more.
    pub low_water: u32,
    /// Consecutive tasks of one decision with the same rows, each a step further, become one launch
    /// of several steps, where no row's chain may stop and none of their outputs is delivered step
    /// by step. Of types whose [`crate::CellInfo::steps_together`] says so, also with fewer rows,
    /// because chains have ended.
    pub merge_steps: bool,
    /// How long a task runs before others may run in between, nanoseconds, if one row of a cell of
    /// its model takes longer. 0: to its end.
    pub slice_ns: u64,
    /// Requests admitted but not yet placed, at most; one more is failed with
    /// `Failure::Overloaded`.
    pub waiting_max: u32,
}

impl Config {
    /// Steps of a launch, at most. Where more may be outstanding than one decision submits, a
    /// launch may be all of a decision.
    pub(crate) const fn launch_steps_max(&self) -> u32 {
        match self.max_tasks_to_submit.checked_sub(self.low_water) {
            None | Some(0) => self.max_tasks_to_submit,
            Some(steps) => steps,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: PolicyKind::default(),
            release: Release::default(),
            max_tasks_to_submit: 5,
            low_water: 2,
            merge_steps: true,
            slice_ns: 0,
            waiting_max: 1 << 20,
        }
    }
}

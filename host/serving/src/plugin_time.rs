//! How much processor time the plugin of one call takes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellwright_plugin_runtime::processor_time;

use crate::error::InferError;
use crate::model::ServedModel;

/// Time of all calls of a plugin for one call of a client, and of what the host makes of their answers. The rows of a call share one.
#[derive(Debug, Default)]
pub(crate) struct PluginTime {
    taken_ns: AtomicU64,
}

/// What the thread does until this is dropped is counted.
pub(crate) struct Spending<'a> {
    time: &'a PluginTime,
    begun: Duration,
}

impl PluginTime {
    pub(crate) fn spend(&self) -> Spending<'_> {
        Spending { time: self, begun: processor_time() }
    }

    /// Whether there is time left.
    pub(crate) fn check(&self, model: &ServedModel) -> Result<(), InferError> {
        let limit = model.limits.plugin_time_max;
        if Duration::from_nanos(self.taken_ns.load(Ordering::Relaxed)) <= limit {
            return Ok(());
        }
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Err(InferError::Time { plugin: model.plugin_name().to_owned(), limit_ms })
    }

    /// What comes now is not held against what came before.
    pub(crate) fn start_over(&self) {
        self.taken_ns.store(0, Ordering::Relaxed);
    }
}

impl Drop for Spending<'_> {
    fn drop(&mut self) {
        let took = processor_time().saturating_sub(self.begun);
        self.time.taken_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

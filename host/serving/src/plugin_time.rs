//! How much processor time the plugin of one call takes, and that of one model in all.

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

/// What the thread does until this is dropped is counted, to the call and to its model.
pub(crate) struct Spending<'a> {
    time: &'a PluginTime,
    model: &'a ServedModel,
    begun: Duration,
}

impl PluginTime {
    pub(crate) fn spend<'a>(&'a self, model: &'a ServedModel) -> Spending<'a> {
        Spending { time: self, model, begun: processor_time() }
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
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.time.taken_ns.fetch_add(took_ns, Ordering::Relaxed);
        for counter in &self.model.charged {
            counter.fetch_add(took_ns, Ordering::Relaxed);
        }
    }
}

//! Logs of the server, and traces for a collector where one is named.
//!
//! The crates below speak `tracing` and know nothing of this. Without a collector, only the logs'
//! layer is installed.

mod collector;
mod export;
mod spans;

use cellwright_command::logs::{self, LogFormat};
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

pub(crate) use collector::CollectorUrl;
pub(crate) use export::Traces;

/// Writes logs to standard error from now on, and sends a trace of every request to the collector.
pub(crate) fn start(filter: &str, format: LogFormat, collector: Option<(&CollectorUrl, &'static str)>) -> anyhow::Result<Option<Traces>> {
    let lines = logs::layer(filter, format)?;
    let Some((collector, scheme)) = collector else {
        tracing_subscriber::registry().with(lines).init();
        return Ok(None);
    };
    let (traces, spans) = export::start(collector, scheme)?;
    // Each layer has its own filter: the log level has no effect on traces.
    tracing_subscriber::registry().with(lines).with(spans.with_filter(spans::wanted())).init();
    Ok(Some(traces))
}

//! Logs: for people, or for machines.

use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;

/// Writes logs to standard error from now on.
pub(crate) fn start(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| anyhow::anyhow!("the log filter `{filter}` is not one: {error}; try `info`, or `cellwright_engine=debug`"))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Human => subscriber.init(),
        LogFormat::Json => subscriber.json().flatten_event(true).with_current_span(true).with_span_list(false).init(),
    }
    Ok(())
}

//! What the process says about itself while it runs: logs for people or for machines, and traces for a collector where one is named.
//!
//! The crates below speak `tracing` and know nothing of this. Without a collector, what is installed is what logs need and no more.

mod collector;
mod export;
mod spans;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::cli::LogFormat;

pub(crate) use collector::CollectorUrl;
pub(crate) use export::Traces;

/// Writes logs to standard error from now on.
pub(crate) fn start(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = parse(filter)?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Human => subscriber.init(),
        LogFormat::Json => subscriber.json().flatten_event(true).with_current_span(true).with_span_list(false).init(),
    }
    Ok(())
}

/// The same, and sends a trace of every request to a collector.
pub(crate) fn start_with_traces(
    filter: &str,
    format: LogFormat,
    (collector, scheme): (&CollectorUrl, &'static str),
) -> anyhow::Result<Traces> {
    let filter = parse(filter)?;
    let (traces, spans) = export::start(collector, scheme)?;
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let logs: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Human => logs.boxed(),
        LogFormat::Json => logs.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
    };
    // Each has a filter of its own, so that the level of the logs decides nothing about traces.
    tracing_subscriber::registry().with(logs.with_filter(filter)).with(spans.with_filter(spans::wanted())).init();
    Ok(traces)
}

fn parse(filter: &str) -> anyhow::Result<EnvFilter> {
    // A word alone that is no level would be the name of a crate, whose lines were all there is.
    let is_level = |word: &str| word.is_empty() || word.contains(['=', '[']) || word.parse::<LevelFilter>().is_ok();
    if let Some(word) = filter.split(',').map(str::trim).find(|word| !is_level(word)) {
        anyhow::bail!(
            "`{word}` is no level of the log: `off`, `error`, `warn`, `info`, `debug` or `trace`, or one for a single crate (`cellwright_engine=debug`)"
        );
    }
    // It warns of what any client may do as often as it likes.
    let quiet = if filter.contains("h2") { filter.to_owned() } else { format!("h2=off,{filter}") };
    EnvFilter::try_new(quiet)
        .map_err(|error| anyhow::anyhow!("the log filter `{filter}` is not one: {error}; try `info`, or `cellwright_engine=debug`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_make_http2_warn_of_is_told_only_to_who_asks_for_it() {
        let directives = |filter: &str| parse(filter).expect("it is a filter").to_string();
        for filter in ["warn", "debug", "off", "warn,cellwright_engine=debug"] {
            assert!(directives(filter).split(',').any(|directive| directive == "h2=off"), "{filter}: {}", directives(filter));
        }
        assert!(!directives("warn,h2=debug").contains("h2=off"));
    }
}

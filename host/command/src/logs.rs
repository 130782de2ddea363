//! Logs on standard error, and the filter that says which lines are shown.

mod volume;

use std::sync::Arc;

use serde::Deserialize;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry};

use crate::process::Usage;
use volume::Bounded;

/// How a log line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    Human,
    /// One JSON object a line.
    Json,
}

/// Writes logs for people to standard error from now on.
///
/// # Errors
/// If the text is not a filter.
pub fn start(text: &str) -> anyhow::Result<()> {
    tracing_subscriber::registry().with(layer(text, LogFormat::Human)?).init();
    Ok(())
}

/// The layer that writes logs to standard error.
///
/// # Errors
/// If the text is not a filter.
pub fn layer(text: &str, format: LogFormat) -> anyhow::Result<Box<dyn Layer<Registry> + Send + Sync>> {
    let filter = filter(text)?;
    let (lines, volume) = (tracing_subscriber::fmt::layer().with_writer(std::io::stderr), Arc::default());
    Ok(match format {
        LogFormat::Human => lines.map_event_format(|format| Bounded { format, volume }).with_filter(filter).boxed(),
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_current_span(true).with_span_list(false);
            lines.map_event_format(|format| Bounded { format, volume }).with_filter(filter).boxed()
        }
    })
}

/// Reads a filter: a level, or `crate=level`, or several with commas between them.
fn filter(text: &str) -> Result<Targets, Usage> {
    let directives: Vec<&str> = text.split(',').map(str::trim).filter(|directive| !directive.is_empty()).collect();
    // `Targets` takes a single word that is not a level for the name of a crate, and shows nothing else.
    let is_level = |word: &str| word.contains('=') || word.parse::<LevelFilter>().is_ok();
    if let Some(word) = directives.iter().find(|word| !is_level(word)) {
        return Err(Usage(format!(
            "`{word}` is not a log level: use `off`, `error`, `warn`, `info`, `debug` or `trace`, or `cellwright_engine=debug` for one crate"
        )));
    }
    // h2 warns of things that any client can do at any rate.
    let quiet = if text.contains("h2") { None } else { Some("h2=off") };
    let whole = quiet.into_iter().chain(directives).collect::<Vec<_>>().join(",");
    whole
        .parse()
        .map_err(|error| Usage(format!("the log filter `{text}` cannot be read: {error}; try `info` or `cellwright_engine=debug`")))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    #[test]
    fn http2_logs_only_on_request() {
        let shows = |filter: &str, target: &str| super::filter(filter).expect("a filter").would_enable(target, &Level::WARN);
        for filter in ["warn", "debug", "warn,cellwright_engine=debug", "cellwright_engine=debug, warn"] {
            assert!(!shows(filter, "h2::proto") && shows(filter, "cellwright_http_api"), "{filter}");
        }
        assert!(shows("warn,h2=debug", "h2::proto") && !shows("off", "cellwright_http_api"));
    }

    #[test]
    fn a_word_that_is_not_a_level_is_refused() {
        for text in ["wran", "info,wran", "cellwright_engine=wran"] {
            assert!(super::filter(text).is_err_and(|error| error.to_string().contains("wran")), "{text}");
        }
    }
}

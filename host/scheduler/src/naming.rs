//! Policies by name: how `--policy`, a model and the simulator write them.

use std::fmt;
use std::str::FromStr;

use crate::config::PolicyKind;

/// Steps per bucket where none are given: the width the cellular batching paper found best for its baseline.
const BUCKET_WIDTH: u32 = 10;

/// Requests that are merged where no number is given: the paper found that best for its baselines (EuroSys'18, section 7.5).
const MERGED: u32 = 64;

/// LazyBatching's objective (HPCA'21, section VI) and percentile (section IV-C) where none are given.
const OBJECTIVE_NS: u64 = 100 * NANOSECONDS_PER_MS;
const PERCENTILE: u8 = 90;

const NANOSECONDS_PER_MS: u64 = 1_000_000;

/// Requests are padded to a multiple of the width, and each step of padding is computed: a wider one is a mistake.
const WIDTH_MAX: u32 = 1024;

/// A longer window is a mistake.
const WINDOW_MS_MAX: u64 = 60_000;

/// A text that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it all")]
pub enum PolicyNameError {
    #[error(
        "the policies are `adaptive`, `cellular`, `graph`, `graph:WIDTH`, `graph:WIDTH:WINDOW_MS`, `serial`, `merge`, `merge:REQUESTS`, `lazy`, `lazy:OBJECTIVE_MS` and `lazy:OBJECTIVE_MS:PERCENTILE`, not `{0}`"
    )]
    Unknown(String),
    #[error("`{0}` is no number of steps per bucket, 0 to {WIDTH_MAX}; write `graph:10`, or `graph:0` to pad a batch to its longest")]
    Width(String),
    #[error("`{0}` is no number of requests to merge; write `merge:64`")]
    Requests(String),
    #[error("`{0}` is no latency objective in milliseconds, 1 to {WINDOW_MS_MAX}; write `lazy:100`")]
    Objective(String),
    #[error("`{0}` is no percentile, 1 to 100; write `lazy:100:90`")]
    Percentile(String),
    #[error("`{0}` is no batching window in milliseconds, 0 to {WINDOW_MS_MAX}; write `graph:10:25`")]
    Window(String),
}

impl FromStr for PolicyKind {
    type Err = PolicyNameError;

    fn from_str(text: &str) -> Result<Self, PolicyNameError> {
        let mut parts = text.splitn(3, ':');
        let said = (parts.next().unwrap_or_default(), parts.next(), parts.next());
        match said {
            ("cellular", None, _) => Ok(Self::Cellular),
            ("adaptive", None, _) => Ok(Self::Adaptive),
            ("serial", None, _) => Ok(Self::Serial),
            ("graph", width, window) => {
                Ok(Self::Graph { bucket_width: width.map_or(Ok(BUCKET_WIDTH), read_width)?, window_ns: window.map_or(Ok(0), read_window)? })
            }
            ("merge", None, _) => Ok(Self::Merge { requests: MERGED }),
            ("merge", Some(requests), None) => Ok(Self::Merge { requests: read_requests(requests)? }),
            ("lazy", objective, percentile) => Ok(Self::Lazy {
                objective_ns: objective.map_or(Ok(OBJECTIVE_NS), read_objective)?,
                percentile: percentile.map_or(Ok(PERCENTILE), read_percentile)?,
            }),
            _ => Err(PolicyNameError::Unknown(text.to_owned())),
        }
    }
}

fn read_width(text: &str) -> Result<u32, PolicyNameError> {
    text.parse().ok().filter(|width| *width <= WIDTH_MAX).ok_or_else(|| PolicyNameError::Width(text.to_owned()))
}

fn read_requests(text: &str) -> Result<u32, PolicyNameError> {
    text.parse().ok().filter(|requests| *requests > 0).ok_or_else(|| PolicyNameError::Requests(text.to_owned()))
}

fn read_objective(text: &str) -> Result<u64, PolicyNameError> {
    let objective = text.parse().ok().filter(|ms| (1..=WINDOW_MS_MAX).contains(ms));
    objective.map(|ms: u64| ms * NANOSECONDS_PER_MS).ok_or_else(|| PolicyNameError::Objective(text.to_owned()))
}

fn read_percentile(text: &str) -> Result<u8, PolicyNameError> {
    text.parse().ok().filter(|percent| (1..=100).contains(percent)).ok_or_else(|| PolicyNameError::Percentile(text.to_owned()))
}

fn read_window(text: &str) -> Result<u64, PolicyNameError> {
    let window = text.parse().ok().filter(|window| *window <= WINDOW_MS_MAX);
    window.map(|ms: u64| ms * NANOSECONDS_PER_MS).ok_or_else(|| PolicyNameError::Window(text.to_owned()))
}

/// As it is read. What is no whole number of milliseconds is rounded down.
impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Cellular => f.write_str("cellular"),
            Self::Adaptive => f.write_str("adaptive"),
            Self::Serial => f.write_str("serial"),
            Self::Merge { requests } => write!(f, "merge:{requests}"),
            Self::Lazy { objective_ns, percentile } => write!(f, "lazy:{}:{percentile}", objective_ns / NANOSECONDS_PER_MS),
            Self::Graph { bucket_width, window_ns: 0 } => write!(f, "graph:{bucket_width}"),
            Self::Graph { bucket_width, window_ns } => write!(f, "graph:{bucket_width}:{}", window_ns / NANOSECONDS_PER_MS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_they_are_written() {
        for text in
            ["cellular", "adaptive", "graph:10", "graph:1024", "graph:0", "graph:10:95", "serial", "merge:16", "lazy:100:90", "lazy:5:100"]
        {
            assert_eq!(text.parse::<PolicyKind>().unwrap().to_string(), text);
        }
        assert_eq!("graph".parse::<PolicyKind>().unwrap().to_string(), "graph:10");
        for text in [
            "",
            "graph:-1",
            "graph:x",
            "graph:1025",
            "graph:99999999",
            "graph:10:x",
            "graph:10:-1",
            "graph:10:5:7",
            "graph:10:60001",
            "cellular:2",
            "serial:1",
            "merge:0",
            "merge:4:5",
            "lazy:0",
            "lazy:5:0",
            "lazy:5:101",
        ] {
            text.parse::<PolicyKind>().unwrap_err();
        }
    }
}

//! `--policy`: the scheduler's policies by name.

use std::fmt;
use std::str::FromStr;

use cellwright_scheduler::PolicyKind;

/// Steps per bucket where none are given: the width the cellular batching paper found best for its baseline.
const BUCKET_WIDTH: u32 = 10;

/// A policy as it is written on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicySpec(pub(crate) PolicyKind);

impl Default for PolicySpec {
    fn default() -> Self {
        Self(PolicyKind::Cellular)
    }
}

impl FromStr for PolicySpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, width) = text.split_once(':').map_or((text, None), |(name, width)| (name, Some(width)));
        match (name, width) {
            ("cellular", None) => Ok(Self(PolicyKind::Cellular)),
            ("graph", None) => Ok(Self(PolicyKind::Graph { bucket_width: BUCKET_WIDTH })),
            ("graph", Some(width)) => match width.parse() {
                Ok(bucket_width) if bucket_width > 0 => Ok(Self(PolicyKind::Graph { bucket_width })),
                _ => Err(format!("`{width}` is no number of steps per bucket; write `graph:10`")),
            },
            _ => Err("the policies are `cellular`, `graph` and `graph:WIDTH`".to_owned()),
        }
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            PolicyKind::Cellular => f.write_str("cellular"),
            PolicyKind::Graph { bucket_width } => write!(f, "graph:{bucket_width}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_they_are_written() {
        for text in ["cellular", "graph:10", "graph:1"] {
            assert_eq!(text.parse::<PolicySpec>().unwrap().to_string(), text);
        }
        assert_eq!("graph".parse::<PolicySpec>().unwrap().to_string(), "graph:10");
        for text in ["", "lazy", "graph:0", "graph:x", "cellular:2"] {
            text.parse::<PolicySpec>().unwrap_err();
        }
    }
}

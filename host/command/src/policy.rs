//! `--policy`: the scheduler's policies by name.

use std::fmt;
use std::str::FromStr;

use cellwright_scheduler::PolicyKind;

/// A policy as it is written on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicySpec(
    /// The policy.
    pub PolicyKind,
);

impl FromStr for PolicySpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error: cellwright_scheduler::PolicyNameError| error.to_string())
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

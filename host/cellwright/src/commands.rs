//! The verbs.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod run;

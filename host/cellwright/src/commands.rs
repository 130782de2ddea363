//! The verbs.

pub(crate) mod admin;
pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod figures;
pub(crate) mod infer;
pub(crate) mod models;
pub(crate) mod push;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod simulate;

mod outcome;
mod remote;
pub(crate) mod replay;

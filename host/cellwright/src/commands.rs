//! The verbs.

pub(crate) mod admin;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod demo;
pub(crate) mod infer;
pub(crate) mod logs;
pub(crate) mod models;
pub(crate) mod push;
pub(crate) mod run;
pub(crate) mod serve;

mod outcome;
mod remote;

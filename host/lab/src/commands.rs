//! The verbs.

pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod figures;
pub(crate) mod replay;
pub(crate) mod simulate;

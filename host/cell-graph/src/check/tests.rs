//! The checks, against tables of refusals and a slow oracle.

mod oracle;
mod refusals;
mod shapes;

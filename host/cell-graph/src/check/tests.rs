//! The checks, against tables of refusals and a slow oracle.

mod models;
mod oracle;
mod refusals;
mod series;
mod shapes;

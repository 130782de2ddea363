//! The tests of the CPU worker. Files beside this folder need a process of their own.

mod ahead;
mod bodies;
mod conformance;
mod projections;
mod rows;
mod sliced_rows;
mod slices;
mod timing;
mod topology;
mod trees;
mod workers;

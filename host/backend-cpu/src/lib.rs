//! The CPU worker: cells compiled into plans of matrix products and fused element-wise groups, run over rows that lie in an arena.
//!
//! [`CpuDomain`] owns what workers share: the arena and the packed weights. [`CpuWorker`] is one worker, with a team of threads of its own.
//! Every sum is taken in an order that is fixed when a cell is compiled, so that a row's bits depend neither on the batch it is in nor on the
//! number of threads. This crate decides nothing about batches and never checks a graph again.
#![expect(
    unsafe_code,
    reason = "the arena is shared memory written through raw pointers, kernels are compiled for features found at run time, and the processor is told to take denormal numbers for zeros"
)]

mod arena;
mod cache;
mod compiled;
mod denormals;
mod domain;
mod held;
mod kernels;
mod lending;
mod level;
mod matrix;
mod memory;
mod plan;
mod roofline;
mod slices;
mod spans;
mod table;
mod team;
mod topology;
mod worker;

pub use domain::{CpuDomain, DomainError, DomainOptions};
pub use level::{Kernels, Level};
pub use roofline::Roofline;
pub use topology::{Node, Processors, Seat, Topology};
pub use worker::{CellWork, CpuOptions, CpuWorker, Shares};

//! The CUDA worker: cells compiled into plans of matrix products and fused groups, run on one device by kernels that lie in `kernels/`.
//!
//! A worker speaks to its device through the small trait [`driver::Driver`] alone. A real device stands behind it, or (feature `testing`) one that is
//! made of threads and runs the same kernels on the CPU, so that order, reuse of memory, completion and faults are tested where no device is.
#![expect(
    unsafe_code,
    reason = "memory that a device reads and writes is reached through raw pointers, and a driver is called through its C interface"
)]

mod abi;
pub mod driver;
mod plan;
mod worker;

pub use worker::{CudaOptions, CudaWorker};

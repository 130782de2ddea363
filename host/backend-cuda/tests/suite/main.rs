//! The tests of the CUDA worker, on a device made of threads.

mod ahead;
mod best;
mod bodies;
mod conformance;
mod cuda;
mod desk;
mod emulated;
mod endless;
mod gpu_run;
mod graphs;
mod guards;
mod moves;
mod peers;
mod recurrent;
mod tf32;
mod worker;

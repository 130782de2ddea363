//! Bodies at random on an emulated device: interpreted and compiled groups, with warpgroups and without, as graphs and as launches.

use std::time::Duration;

use cellwright_backend::Backend;
use cellwright_backend_cuda::driver::emulated::{Emulated, Emulation};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::generate::{more_seeds, try_each};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::Retention;
use cellwright_conformance::bodies::{Body, Company, Size};

/// Small, for each thread of a kernel is one of the test's.
const SIZE: Size = Size { elements_most: 400, operators_most: 20, rows: 12 };

/// So many rows that tiles, and batches, have more than one part.
const MANY: Size = Size { rows: 70, operators_most: 10, ..SIZE };

const COMPANIES: [Company; 2] =
    [Company { rows_most: 70, steps: 1, retention: Retention::Double }, Company { rows_most: 13, steps: 4, retention: Retention::All }];

const fn size_of(seed: u64) -> Size {
    if seed % 10 == 7 { MANY } else { SIZE }
}

fn worker(seed: u64, compiles: bool) -> Box<dyn Backend> {
    let capability = if seed.is_multiple_of(4) { (8, 0) } else { (9, 0) };
    let lag = Duration::from_micros(20);
    let driver = Emulated::new(&Emulation { seed, lag, compiles, capability, memory_bytes: 256 << 20, ..Emulation::default() });
    let options = CudaOptions {
        arena_bytes: Some(32 << 20),
        frame_bytes: Some(4 << 20),
        ring_bytes: 1 << 20,
        rows_most: 40,
        graphs: !seed.is_multiple_of(3),
        spin: Duration::ZERO,
        ..CudaOptions::default()
    };
    Box::new(CudaWorker::new(Box::new(driver), options).expect("a device made of threads"))
}

fn check(seeds: std::ops::Range<u64>, precision: Precision, compiles: bool) {
    let bodies = seeds.filter_map(|seed| Some((seed, Body::new(seed, precision, size_of(seed))?)));
    bodies.for_each(|(seed, body)| body.check(&mut || worker(seed, compiles), &COMPANIES));
}

#[test]
fn rows_are_what_their_bodies_say_in_f32() {
    check(0..9, Precision::F32, false);
}

#[test]
fn rows_are_what_their_bodies_say_in_bf16() {
    check(0..9, Precision::Bf16, false);
}

#[test]
fn rows_are_what_their_bodies_say_in_f16() {
    check(0..9, Precision::F16, false);
}

#[test]
fn rows_are_what_their_bodies_say_in_compiled_groups() {
    check(20..22, Precision::F32, true);
}

#[test]
#[ignore = "as long as one likes: CELLWRIGHT_SEEDS=1000 cargo test --release -p cellwright-backend-cuda --test suite bodies -- --ignored"]
fn soak() {
    try_each(more_seeds(1000), |seed| {
        let precision = [Precision::F32, Precision::Bf16, Precision::F16][(seed % 3) as usize];
        // Which takes long.
        let compiles = seed.is_multiple_of(32);
        check(seed..seed + 1, precision, compiles);
    });
}

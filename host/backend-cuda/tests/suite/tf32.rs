//! The suite that every backend must pass, on an emulated device that multiplies 32-bit floats in tf32, with the tolerance that this takes.

use std::time::Duration;

use cellwright_backend::Backend;
use cellwright_backend_cuda::driver::emulated::{Emulated, Emulation};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::typed::Precision;
use cellwright_conformance::{ARENA_SLOTS, Scope, Tolerance, behaviour, denormals, families, hoisting, invariance, operators};

fn make() -> impl FnMut() -> Box<dyn Backend> {
    let mut seed = 0;
    move || {
        seed += 1;
        let driver = Emulated::new(&Emulation { seed, lag: Duration::from_micros(20), ..Emulation::default() });
        let options = CudaOptions {
            arena_bytes: Some(u64::from(ARENA_SLOTS) * 64),
            frame_bytes: Some(8 << 20),
            ring_bytes: 1 << 20,
            rows_most: 256,
            tf32: true,
            spin: Duration::ZERO,
            ..CudaOptions::default()
        };
        Box::new(CudaWorker::new(Box::new(driver), options).expect("a device made of threads"))
    }
}

/// Nobody may take results of the one for results of the other.
#[test]
fn a_worker_in_tf32_is_of_another_numeric_class() {
    let driver = || Box::new(Emulated::new(&Emulation::default()));
    let plain = CudaWorker::new(driver(), CudaOptions::default()).expect("a device made of threads").info().numeric_class;
    let rounding = make()().info().numeric_class;
    assert_eq!(rounding, format!("{plain}-tf32"));
}

/// A model in bf16 is what it is.
#[test]
fn operators_in_bf16() {
    operators::run(&mut make(), Tolerance::default(), &scope(Precision::Bf16));
}

fn scope(precision: Precision) -> Scope {
    Scope { precisions: vec![precision], sizes: vec![1, 2, 7, 15, 16, 17, 33, 63, 64, 65, 128, 129, 257] }
}

#[test]
fn behaviour() {
    behaviour::run(&mut make());
}

/// Against sums of operands that are rounded as the device does it, what holds of 32-bit floats holds.
#[test]
fn operators() {
    operators::run_in_tf32(&mut make(), Tolerance::default(), &scope(Precision::F32));
}

#[test]
fn denormal_numbers_are_zeros() {
    denormals::run_in_tf32(&mut make(), &scope(Precision::F32));
}

#[test]
fn families() {
    families::run(&mut make(), Tolerance::TF32, &scope(Precision::F32));
}

#[test]
fn invariance() {
    invariance::run(&mut make(), &scope(Precision::F32));
}

#[test]
fn hoisting() {
    hoisting::run(&mut make(), &scope(Precision::F32));
}

//! The suite that every backend must pass, on each kind of CPU worker that this machine can be.

use std::sync::Arc;

use cellwright_backend::Backend;
use cellwright_backend::conformance::{self, Tolerance};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Kernels, Level};

fn domain(level: Option<Level>, kernels: Kernels) -> Arc<CpuDomain> {
    CpuDomain::new(DomainOptions { arena_bytes: Some(16 << 20), level, kernels, ..DomainOptions::default() }).expect("16 MiB are there")
}

fn worker(domain: Arc<CpuDomain>, threads: usize) -> Box<dyn Backend> {
    Box::new(CpuWorker::new(domain, CpuOptions { threads, ..CpuOptions::default() }).expect("threads start"))
}

fn suite(level: Option<Level>, kernels: Kernels, threads: usize) {
    conformance::run(&mut || worker(domain(level, kernels), threads), Tolerance::default());
}

#[test]
fn the_best_of_this_processor() {
    suite(None, Kernels::Best, 1);
}

#[test]
fn with_three_threads() {
    suite(None, Kernels::Best, 3);
}

#[test]
fn with_the_library() {
    suite(None, Kernels::Library, 2);
}

#[test]
fn avx2() {
    suite(Some(Level::Avx2), Kernels::Best, 1);
}

#[test]
fn portable() {
    suite(Some(Level::Portable), Kernels::Best, 1);
}

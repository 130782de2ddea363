//! Bodies at random, by every kind of kernels, on one thread and on several, with weights in tables and without, ahead of their steps or within them.

use cellwright_backend::Backend;
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_cell_graph::generate::{more_seeds, seeds, try_each};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::Retention;
use cellwright_conformance::bodies::{Body, Company, Size};

const BODIES: u64 = 60;

const SIZE: Size = Size { elements_most: 3000, operators_most: 30, rows: 40 };

const COMPANIES: [Company; 3] = [
    Company { rows_most: 100, steps: 1, retention: Retention::Double },
    Company { rows_most: 13, steps: 2, retention: Retention::All },
    Company { rows_most: 3, steps: 4, retention: Retention::Double },
];

/// Workers of one body: each has another number of threads, and half of them tables and what is computed ahead.
fn make() -> impl FnMut() -> Box<dyn Backend> {
    let mut number = 0;
    move || {
        number += 1;
        let (table_bytes, ahead_weights_least) = if number % 2 == 0 { (1 << 24, 0) } else { (0, u64::MAX) };
        let options = DomainOptions {
            arena_bytes: Some(16 << 20),
            table_bytes: Some(table_bytes),
            ahead_weights_least: Some(ahead_weights_least),
            ..DomainOptions::default()
        };
        let domain = CpuDomain::new(options).expect("16 MiB are there");
        let options = CpuOptions { threads: [3, 1, 2][number % 3], ..CpuOptions::default() };
        Box::new(CpuWorker::new(domain, options).expect("threads start"))
    }
}

fn check(seed: u64) {
    let precision = if seed.is_multiple_of(3) { Precision::ALL[(seed / 3 % 4) as usize] } else { Precision::F32 };
    let body = Body::new(seed, precision, SIZE);
    body.iter().for_each(|body| body.check(&mut make(), &COMPANIES));
}

#[test]
fn rows_are_what_their_bodies_say() {
    try_each(seeds(BODIES), check);
}

#[test]
#[ignore = "as long as one likes: CELLWRIGHT_SEEDS=10000 cargo test --release -p cellwright-backend-cpu --test suite bodies -- --ignored"]
fn soak() {
    try_each(more_seeds(1000), check);
}

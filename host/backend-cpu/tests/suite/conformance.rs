//! The suite that every backend must pass, on each kind of CPU worker that this machine can be.

use std::sync::Arc;

use cellwright_backend::Backend;
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Kernels, Level};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_conformance::{Scope, Tolerance, hoisting};

fn domain(level: Option<Level>, kernels: Kernels) -> Arc<CpuDomain> {
    CpuDomain::new(DomainOptions { arena_bytes: Some(16 << 20), level, kernels, ..DomainOptions::default() }).expect("16 MiB are there")
}

/// What workers do with what they may compute before it is needed: leave it, compute it ahead, look it up, look some of it up.
fn hoisting_domains(level: Option<Level>, kernels: Kernels) -> [Arc<CpuDomain>; 4] {
    [(0, u64::MAX), (0, 0), (1 << 20, u64::MAX), (3000, u64::MAX)].map(|(table_bytes, ahead_weights_least)| {
        let (table_bytes, ahead_weights_least) = (Some(table_bytes), Some(ahead_weights_least));
        let options =
            DomainOptions { arena_bytes: Some(16 << 20), level, kernels, table_bytes, ahead_weights_least, ..DomainOptions::default() };
        CpuDomain::new(options).expect("16 MiB are there")
    })
}

fn worker(domain: Arc<CpuDomain>, threads: usize) -> Box<dyn Backend> {
    Box::new(CpuWorker::new(domain, CpuOptions { threads, ..CpuOptions::default() }).expect("threads start"))
}

/// Ways of a worker that are tested beside the best of the processor.
const WAYS: usize = 7;

/// Sizes of a batch for one of the [`WAYS`]: all up to 130, and a share of the rest, so that together
/// the ways have every size up to 512. The best kernels of the processor have every size by themselves,
/// and in the soak each way has.
fn sizes(way: usize) -> Vec<usize> {
    (1..=130).chain((131..=512).filter(|size| size % WAYS == way || [255, 256, 257, 511, 512].contains(size))).collect()
}

fn suite_within(scope: &Scope, level: Option<Level>, kernels: Kernels, threads: usize) {
    cellwright_conformance::run_within(&mut || worker(domain(level, kernels), threads), Tolerance::default(), scope);
}

fn suite(way: usize, level: Option<Level>, kernels: Kernels, threads: usize) {
    suite_within(&Scope { sizes: sizes(way), ..Scope::default() }, level, kernels, threads);
}

#[test]
fn the_ways_have_every_size_together() {
    let all: std::collections::BTreeSet<usize> = (0..WAYS).flat_map(sizes).collect();
    assert!(all.into_iter().eq(1..=512));
}

#[test]
fn spans() {
    let floats = Scope { precisions: vec![Precision::F32], ..Scope::default() };
    for (level, threads, scope) in [(None, 2, Scope::default()), (Some(Level::Avx2), 1, floats.clone()), (Some(Level::Portable), 2, floats)]
    {
        cellwright_conformance::spans::run(&mut || worker(domain(level, Kernels::Best), threads), Tolerance::default(), &scope);
    }
}

#[test]
fn the_best_of_this_processor() {
    suite_within(&Scope::default(), None, Kernels::Best, 1);
}

#[test]
#[ignore = "the soak: every size of a batch with every kernel"]
fn every_size_with_every_kernel() {
    let levels = [Level::Portable, Level::Avx2, Level::Avx512, Level::Avx512Bf16].map(|level| (Some(level), Kernels::Best, 1));
    let others = [(None, Kernels::Best, 3), (None, Kernels::Library, 2), (None, Kernels::Tiles, 2)];
    for (level, kernels, threads) in levels.into_iter().chain(others).filter(|(_, kernels, _)| has(*kernels)) {
        suite_within(&Scope::default(), level, kernels, threads);
    }
}

/// Whether this processor has what they are made of; elsewhere there is nothing to test.
fn has(kernels: Kernels) -> bool {
    kernels != Kernels::Tiles || Level::detect() >= Level::Amx
}

#[test]
fn with_tiles_for_floats() {
    if has(Kernels::Tiles) {
        suite(0, None, Kernels::Tiles, 2);
    }
}

#[test]
fn with_three_threads() {
    suite(1, None, Kernels::Best, 3);
}

#[test]
fn with_the_library() {
    suite(2, None, Kernels::Library, 2);
}

#[test]
fn avx2() {
    suite(3, Some(Level::Avx2), Kernels::Best, 1);
}

#[test]
fn avx512_without_sums_of_products() {
    suite(4, Some(Level::Avx512), Kernels::Best, 2);
}

#[test]
fn avx512_without_tiles() {
    suite(5, Some(Level::Avx512Bf16), Kernels::Best, 1);
}

#[test]
fn portable() {
    suite(6, Some(Level::Portable), Kernels::Best, 1);
}

#[test]
fn halves_mean_the_whole() {
    hoisting::halves_mean_the_whole();
}

#[test]
fn whatever_is_computed_ahead_or_looked_up_no_bit_changes() {
    let ways = [(None, Kernels::Best, 1), (None, Kernels::Best, 2), (None, Kernels::Library, 1), (Some(Level::Avx2), Kernels::Best, 1)];
    let lower = [Level::Avx512Bf16, Level::Avx512, Level::Portable].map(|level| (Some(level), Kernels::Best, 1));
    let tiles = [(None, Kernels::Tiles, 1), (None, Kernels::Tiles, 2)];
    let ways = ways.into_iter().chain(lower).chain(tiles.into_iter().filter(|(_, kernels, _)| has(*kernels)));
    for (level, kernels, threads) in ways {
        let domains = hoisting_domains(level, kernels);
        for recurrent in Precision::ALL.into_iter().flat_map(hoisting::recurrent_cells) {
            let mut seed = 3;
            let mut run = |domain: &Arc<CpuDomain>| {
                seed += 1;
                hoisting::deliveries(
                    &mut || worker(domain.clone(), threads),
                    (&recurrent, hoisting::REQUESTS),
                    (24, 9),
                    &mut Rng::new(seed),
                )
            };
            let whole = run(&domains[0]);
            for (way, domain) in ["ahead", "a table", "a table of some tokens"].into_iter().zip(&domains[1..]) {
                assert!(
                    run(domain) == whole,
                    "`{}` in {} with {way}: {level:?}, {kernels:?}, {threads} threads",
                    recurrent.cell.name,
                    recurrent.cell.precision
                );
            }
        }
    }
}

#[test]
fn the_suite_with_everything_ahead() {
    let [_, ahead, table, some] = hoisting_domains(None, Kernels::Best);
    for domain in [ahead, table, some] {
        hoisting::run(&mut || worker(domain.clone(), 1), &Scope::default());
    }
}

//! The whole scheduler under generated traffic, a thousand seeds.

use std::collections::BTreeSet;

use cellwright_cell_graph::generate::{more_seeds, seeds, try_each};
use cellwright_scheduler::PolicyKind;

use super::dice::Dice;
use super::fairness::POLICIES;
use super::traffic::{Run, Scope, length_aware, scope, stages};

#[test]
fn every_request_ends_once_and_nothing_is_left_over() {
    try_each(seeds(1000), everyone_ends);
}

fn everyone_ends(seed: u64) {
    let world = Run::new(seed, scope(seed), |_, _| {}).run();
    assert_eq!(world.finished as usize + world.failed.len(), 12);
}

#[test]
#[ignore = "as long as one likes: CELLWRIGHT_SEEDS=1000000 cargo test --release -p cellwright-scheduler -- --ignored soak"]
fn soak() {
    try_each(more_seeds(100_000), everyone_ends);
}

/// One policy weighs what the others do not, among workers that leave nodes to each other: of all seeds above few have both.
#[test]
fn every_request_ends_once_under_adaptive_batching_of_one_memory() {
    try_each(seeds(500), |seed| {
        let scope = Scope { domains: 1, mixed: false, ..scope(seed) };
        let world = Run::new(seed, scope, |config, _| config.policy = PolicyKind::Adaptive).run();
        assert_eq!(world.finished as usize + world.failed.len(), 12);
    });
}

/// Policies that form batches by themselves, of which few seeds above have any.
#[test]
fn every_request_ends_once_in_batches_that_change() {
    try_each(seeds(500), |seed| {
        for make in [length_aware, stages] {
            let scope = Scope { mixed: false, ..scope(seed) };
            let world = Run::new(seed, scope, |config, _| config.policy = make(&mut Dice::new(seed))).run();
            assert_eq!(world.finished as usize + world.failed.len(), 12);
        }
    });
}

/// No task reads more rows of spans than it may: the world checks each.
#[test]
fn every_request_with_spans_ends_once_under_each_policy() {
    try_each(seeds(200), |seed| {
        for policy in POLICIES.into_iter().chain([PolicyKind::Serial]) {
            let scope = Scope { mixed: false, checked: true, ..scope(seed) };
            let world = Run::new(seed, scope, |config, _| config.policy = policy).run();
            assert_eq!(world.finished as usize + world.failed.len(), 12, "{policy:?}");
        }
    });
}

/// Graphs whose stages share slots move to a worker that comes late.
#[test]
fn values_in_shared_slots_are_copied_once() {
    try_each(seeds(500), |seed| {
        let scope = Scope { faults: false, losses: false, late: true, growths: false, mixed: false, checked: true, ..scope(seed) };
        Run::new(seed, scope, |config, _| config.policy = PolicyKind::Cellular).run();
    });
}

/// Of half the seeds nothing is known of what rows take; of the others some models have cells of which one takes longer than a slice.
#[test]
fn every_request_ends_once_where_tasks_are_paused() {
    let pauses = std::sync::atomic::AtomicU32::new(0);
    try_each(seeds(1000), |seed| {
        let world = Run::new(seed, scope(seed), |config, _| config.slice_ns = 20).run();
        assert_eq!(world.finished as usize + world.failed.len(), 12);
        pauses.fetch_add(world.pauses, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(pauses.into_inner() > 1000, "few tasks are paused");
}

/// The traffic must contain what the first test is about.
#[test]
fn the_simulation_sees_everything() {
    let (mut moved, mut copied, mut merged, mut padded, mut ragged, mut scrubbed, mut seen) = (0, 0, 0, 0, 0, 0, 0);
    let mut kinds = BTreeSet::new();
    for seed in 0..1000 {
        let world = Run::new(seed, scope(seed), |_, _| {}).run();
        moved += world.moved;
        copied += world.copied;
        merged += world.merged;
        padded += world.padded;
        ragged += world.ragged;
        scrubbed += world.scrubbed;
        seen += world.seen;
        kinds.extend(
            world
                .failed
                .iter()
                .map(|(_, failure)| format!("{failure:?}").chars().take_while(char::is_ascii_alphanumeric).collect::<String>()),
        );
    }
    for (what, count, least) in [
        ("moves", moved, 100),
        ("copies", copied, 100),
        ("launches of several steps", merged, 100),
        ("rows of padding", padded, 100),
        ("rows that ended before their launch", ragged, 5),
        ("scrubs", scrubbed, 100),
        ("rows of spans", seen, 1000),
    ] {
        assert!(count > least, "only {count} {what}");
    }
    let expected =
        ["BeyondEnd", "Cancelled", "GrewTooLarge", "Late", "MayNotGrow", "NoWorker", "Overloaded", "Row", "TooLarge", "WorkerLost"];
    assert_eq!(kinds.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    try_each(seeds(50), |seed| {
        let trace = || Run::new(seed, scope(seed), |_, _| {}).run().trace;
        assert_eq!(trace(), trace());
    });
}

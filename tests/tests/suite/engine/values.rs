//! Every value is right, and has the same bits alone and in company.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::generate;
use cellwright_engine::{Engine, LoadedModel};
use cellwright_scheduler::{Config, Graph, PolicyKind, Release};
use cellwright_tests::devices::{ALL_THREADS, Gate, domain, keeping, worker};
use cellwright_tests::graphs::{Answer, Case, Outcome, settled, spec};

use super::engine;

const REQUESTS: usize = 200;
const SEEDS: [u64; 3] = [1, 2, 3];

/// Answers of requests that have the engine for themselves.
fn alone(model: &Arc<Model>, cases: &[Case]) -> Vec<Answer> {
    let engine = engine(Config::default(), 4, vec![worker(&domain(64))]);
    let loaded = engine.load(&spec(model, 0, 16)).unwrap();
    cases.iter().map(|case| case.submit(&engine, &loaded).wait()).collect()
}

/// Answers of requests that are all in flight at once.
fn together(engine: &Engine, model: &Arc<LoadedModel>, cases: &[Case]) -> Vec<Answer> {
    let pending: Vec<_> = cases.iter().map(|case| case.submit(engine, model)).collect();
    pending.iter().map(|pending| pending.wait()).collect()
}

fn assert_right(what: &str, cases: &[Case], answers: &[Answer]) {
    for (number, (case, answer)) in cases.iter().zip(answers).enumerate() {
        case.check(answer).unwrap_or_else(|wrong| panic!("{what}, request {number}: {wrong}\n{:#?}", case.growth));
    }
}

fn assert_same(what: &str, alone: &[Answer], answers: &[Answer]) {
    for (number, (alone, answer)) in alone.iter().zip(answers).enumerate() {
        if alone.outcome == Outcome::Finished {
            assert!(alone == answer, "{what}, request {number}: other bits than alone");
        }
    }
}

fn check(config: Config, domains: usize) {
    for seed in SEEDS {
        let model = generate::model_with_spans(seed);
        let cases = Case::mixed(&model, REQUESTS, seed);
        let alone = alone(&model, &cases);
        assert_right("alone", &cases, &alone);
        let homes: Vec<_> = (0..domains).map(|_| domain(64)).collect();
        // Decisions are made by the engine's thread alone, and by workers too.
        let threads = if seed % 2 == 0 { 0 } else { ALL_THREADS };
        let engine = engine(config, 1 << 10, (0..2).map(|number| keeping(threads, worker(&homes[number % domains]))).collect());
        let loaded = engine.load(&spec(&model, 0, 16)).unwrap();
        for round in 0..2 {
            let answers = together(&engine, &loaded, &cases);
            let what = format!("{config:?}, {domains} domain(s), seed {seed}, round {round}");
            assert_right(&what, &cases, &answers);
            assert_same(&what, &alone, &answers);
        }
    }
}

fn cellular(release: Release, merge_steps: bool) -> Config {
    Config { release, merge_steps, ..Config::default() }
}

#[test]
fn cellular_by_node() {
    check(cellular(Release::Node, true), 1);
    check(cellular(Release::Node, false), 1);
}

#[test]
fn cellular_by_subgraph() {
    check(cellular(Release::Subgraph, true), 1);
}

#[test]
fn cellular_when_idle() {
    check(Config { low_water: 0, max_tasks_to_submit: 1, ..Config::default() }, 1);
}

#[test]
fn whole_graphs() {
    let graph = |bucket_width| Config { policy: PolicyKind::Graph(Graph { bucket_width, window_ns: 0 }), ..Config::default() };
    check(graph(1), 1);
    check(graph(10), 1);
}

#[test]
fn two_domains() {
    check(cellular(Release::Node, true), 2);
    check(cellular(Release::Subgraph, false), 2);
}

/// Slots that another tenant held are zeroed before they are used, and never after.
#[test]
fn tenants_take_turns_in_a_small_arena() {
    let model = generate::model(5);
    let cases: Vec<Case> = Case::mixed(&model, REQUESTS, 5);
    let home = cellwright_backend_cpu::CpuDomain::new(cellwright_backend_cpu::DomainOptions {
        arena_bytes: Some(1 << 18),
        ..cellwright_backend_cpu::DomainOptions::default()
    });
    let home = home.unwrap();
    let gate = Gate::default();
    let engine = engine(Config::default(), 1 << 10, vec![gate.before(worker(&home)), gate.before(worker(&home))]);
    let tenants = [0, 1].map(|tenant| {
        let fixed = cellwright_engine::ModelSpec { live_max: None, ..spec(&model, tenant, 4) };
        engine.load(&fixed).unwrap()
    });
    let first_only: Vec<_> = cases.iter().map(|case| case.submit(&engine, &tenants[0])).collect();
    drop(first_only.iter().map(|pending| pending.wait()).collect::<Vec<_>>());
    assert_eq!(gate.slots_zeroed(), 0, "nobody else has been here");
    for _ in 0..5 {
        let pending: Vec<_> = cases.iter().enumerate().map(|(n, case)| case.submit(&engine, &tenants[n % 2])).collect();
        let answers: Vec<_> = pending.iter().map(|pending| pending.wait()).collect();
        assert_right("tenants", &cases, &answers);
    }
    assert!(gate.slots_zeroed() > 0, "what one tenant left is zeroed for the other");
}

/// What the engine counts goes up and comes down again.
#[test]
fn nothing_is_left_behind() {
    let model = generate::model(6);
    let cases = Case::mixed(&model, 50, 6);
    let home = domain(64);
    let engine = engine(Config::default(), 1 << 10, vec![worker(&home), worker(&home)]);
    let loaded = engine.load(&spec(&model, 0, 16)).unwrap();
    drop(together(&engine, &loaded, &cases));
    settled(&engine);
    let counters = engine.counters();
    assert_eq!(counters.finished.load(Ordering::Relaxed) + counters.failed.load(Ordering::Relaxed), 50);
}

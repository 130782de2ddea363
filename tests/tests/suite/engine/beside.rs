//! A device that works by itself is given what comes while it works.

use std::sync::Arc;

use cellwright_cell_graph::check::{GraphLimits, Unfolding};
use cellwright_cell_graph::generate::{self, Family, Rng};
use cellwright_scheduler::Config;
use cellwright_tests::devices::{Crew, domain, worker};
use cellwright_tests::graphs::{Case, spec, wait_until};

use super::engine;

/// Requests come one after the other, and none is answered before the device has eight tasks.
#[test]
fn tasks_reach_a_device_that_works() {
    const TASKS: u32 = 8;
    let model = generate::model(51);
    let mut rng = Rng::new(51);
    let case = |steps| {
        let (growth, tensors) = generate::growth_of(&model, Family::Lstm, steps, &mut rng);
        let unfolded = Unfolding::new(model.clone(), GraphLimits::default()).grow(growth, 0, &tensors).unwrap();
        Case::new(&model, Arc::new(unfolded), tensors)
    };
    let cases: Vec<Case> = (1..=TASKS).map(case).collect();
    let crew = Crew::of(TASKS);
    let engine = engine(Config { low_water: 64, ..Config::default() }, 1 << 10, vec![crew.on(worker(&domain(64)))]);
    let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
    let mut pending = Vec::new();
    for case in &cases {
        let before = crew.given();
        pending.push(case.submit(&engine, &loaded));
        wait_until("the device is given the request's first task", || crew.given() > before || crew.given() >= TASKS);
    }
    for (number, (case, pending)) in cases.iter().zip(&pending).enumerate() {
        case.check(&pending.wait()).unwrap_or_else(|wrong| panic!("request {number}: {wrong}"));
    }
}

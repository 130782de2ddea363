//! Stages that share memory: every value has the bits that it has without.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cellwright_cell_graph::check::{GraphLimits, Model, Unfolding};
use cellwright_cell_graph::generate::{self, CELLS, Rng, seeds, try_each};
use cellwright_cell_graph::graph::{Affine, Chain, Extent, Feedback, Growth, OutputRef, Source, Stage};
use cellwright_cell_graph::unfolded::Delivery;
use cellwright_cell_graph::{SLOT_BYTES, Tensor, UnfoldedGrowth};
use cellwright_engine::{RequestMemory, RequestTensors};
use cellwright_scheduler::Config;
use cellwright_tests::devices::{domain, worker};
use cellwright_tests::graphs::{Outcome, Pending, spec, submit};

use super::engine;

/// A graph in which some stages share memory, with every value delivered.
fn sharing(rng: &mut Rng, model: &Arc<Model>) -> Option<(UnfoldedGrowth, Vec<Arc<Tensor>>)> {
    let (growth, tensors) = if rng.one_in(4) { generate::growth(model, rng) } else { generate::wild(model, rng) };
    let mut unfolded = Unfolding::new(model.clone(), GraphLimits::default()).grow(growth, 0, &tensors).ok()?;
    unfolded.shared.as_ref()?;
    let stages = unfolded.chains.iter_mut().flat_map(|chain| &mut chain.stages);
    stages.flat_map(|stage| &mut stage.delivery).for_each(|delivery| *delivery = Delivery::All);
    Some((unfolded, tensors))
}

#[test]
fn shared_memory_changes_no_bit() {
    let policies = ["cellular", "adaptive", "graph", "serial", "merge", "lazy", "length-aware", "stages"];
    let (saved, whole) = (AtomicU64::new(0), AtomicU64::new(0));
    try_each(seeds(16), |seed| {
        let mut rng = Rng::new(seed);
        let model = generate::model_with_spans(seed % 7);
        let config = Config { policy: policies[seed as usize % policies.len()].parse().expect("a policy"), ..Config::default() };
        // Two workers of one domain: what one reads the other may write.
        let home = domain(64);
        let engine = engine(config, 1 << 10, vec![worker(&home), worker(&home)]);
        let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
        let found: Vec<_> = std::iter::repeat_with(|| sharing(&mut rng, &model)).take(120).flatten().collect();
        let pending = |is_shared: bool| -> Vec<Pending> {
            let of = |(growth, tensors): &(UnfoldedGrowth, Vec<Arc<Tensor>>)| {
                let mut growth = growth.clone();
                growth.shared = growth.shared.filter(|_| is_shared);
                submit(&engine, &loaded, &Arc::new(growth), &RequestTensors { first: 0, tensors: tensors.clone() }).unwrap()
            };
            found.iter().map(of).collect()
        };
        // All at once: each in the company of the others.
        let (with, without) = (pending(true), pending(false));
        for ((with, without), (growth, _)) in with.iter().zip(&without).zip(&found) {
            let (with, without) = (with.wait(), without.wait());
            assert_eq!(with.outcome, without.outcome);
            if with.outcome == Outcome::Finished {
                assert!(with.values == without.values && with.ended == without.ended, "other bits of {growth:?}");
            }
            let shared = growth.shared.as_ref().unwrap();
            saved.fetch_add((shared.unshared - shared.slots).into(), Ordering::Relaxed);
            whole.fetch_add(shared.unshared.into(), Ordering::Relaxed);
        }
        let counts = loaded.counters.counts().memory;
        assert!(counts.reserved < counts.unshared, "{counts:?}");
    });
    assert!(saved.load(Ordering::Relaxed) * 20 > whole.load(Ordering::Relaxed), "{saved:?} of {whole:?} slots are saved");
}

/// What is reserved for steps that a decoder may take is counted beside what it takes.
#[test]
fn a_decoder_that_stops_uses_little_of_what_it_reserves() {
    const STEPS: u32 = 4096;
    let model = generate::model(3);
    let of = |chain: u32, output: u32| OutputRef { chain, stage: 0, output };
    let feed = |output: u32, input: u32| Feedback { stage: 0, output, to_stage: 0, input };
    let chain = |cell: u32, length, inputs: Vec<Source>, feedback, stop| Chain {
        stages: vec![Stage { cell, inputs }],
        length,
        feedback,
        stop,
        series: None,
    };
    let begins = vec![Source::Ints(vec![1]), Source::Zeros, Source::Zeros];
    let decoder = chain(CELLS.decoder, Extent::Fixed(STEPS), begins, vec![feed(2, 0), feed(0, 1), feed(1, 2)], Some((0, 3)));
    let sees = vec![Source::Steps { of: of(0, 0), at: Affine::EVERY }];
    let head = chain(CELLS.head, Extent::Like(0), sees, vec![], None);
    let growth = Growth { chains: vec![decoder, head], ..Growth::default() };
    let growth = generate::unfold(&model, growth, &[]);
    let engine = engine(Config::default(), 4, vec![worker(&domain(64))]);
    let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
    let answer = submit(&engine, &loaded, &growth, &RequestTensors { first: 0, tensors: vec![] }).unwrap().wait();
    let (counts, slots) = (loaded.counters.counts().memory, u64::from(loaded.cells[CELLS.decoder as usize].slots));
    let bytes = |steps: u32| u64::from(steps) * slots * SLOT_BYTES as u64;
    assert_eq!(counts, RequestMemory { reserved: bytes(STEPS), unshared: bytes(STEPS), used: bytes(answer.ended[&0]) });
}

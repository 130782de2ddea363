//! Settings at random: devices, what decides what runs together, and models.

use std::sync::Arc;
use std::time::Duration;

use cellwright_backend::Backend;
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Level};
use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::generate::{self, ModelShape, Rng};
use cellwright_cell_graph::typed::Precision;
use cellwright_conformance::bodies::cell_among;
use cellwright_engine::{CellOverride, EngineOptions, ModelSpec};
use cellwright_scheduler::{Config, Graph, Lazy, LengthAware, Merge, PolicyKind, Release, Stages};
use cellwright_tests::devices::{ALL_THREADS, Fuse, keeping, preferring};

/// All that a world is made of.
pub(crate) struct Settings {
    pub(crate) shape: ModelShape,
    pub(crate) precision: Precision,
    /// Cells of random bodies in each model, at most.
    pub(crate) bodies: u64,
    pub(crate) domain: DomainOptions,
    pub(crate) options: EngineOptions,
    /// The first worker has it, if one is to be lost.
    pub(crate) fuse: Option<Fuse>,
    pub(crate) backends: Vec<Box<dyn Backend>>,
    /// For people.
    pub(crate) words: String,
}

fn one_of<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

fn policy(rng: &mut Rng) -> PolicyKind {
    match rng.below(10) {
        0 | 1 => PolicyKind::Cellular,
        2 => PolicyKind::Graph(Graph { bucket_width: one_of(rng, &[0, 1, 4, 10]), window_ns: one_of(rng, &[0, 0, 50_000]) }),
        3 => PolicyKind::Serial,
        4 => PolicyKind::Merge(Merge { requests: one_of(rng, &[1, 3, 16]) }),
        5 => PolicyKind::Lazy(Lazy { objective_ns: one_of(rng, &[0, 100_000, 1_000_000_000]), percentile: one_of(rng, &[1, 50, 100]) }),
        6 => PolicyKind::LengthAware(LengthAware { timeout_ns: one_of(rng, &[0, 0, 50_000]), objective_ns: one_of(rng, &[0, 100_000]) }),
        7 => PolicyKind::Stages(Stages { count: one_of(rng, &[1, 3, 8]), stretch_ns: one_of(rng, &[None, Some(0), Some(1_000_000)]) }),
        _ => PolicyKind::Adaptive,
    }
}

fn shape(rng: &mut Rng) -> ModelShape {
    let vocabulary = rng.between(4, 12);
    match rng.below(8) {
        // Sums of so many are cut input by input.
        0 => ModelShape { width: rng.between(1, 40), hidden: rng.between(128, 140), vocabulary, spans: true },
        1 | 2 => ModelShape { width: rng.between(1, 20), hidden: rng.between(15, 40), vocabulary, spans: true },
        _ => ModelShape { width: rng.between(1, 6), hidden: rng.between(2, 8), vocabulary, spans: true },
    }
}

impl Settings {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let shape = shape(rng);
        let precision = one_of(rng, &[Precision::F32, Precision::F32, Precision::Bf16, Precision::Int8]);
        let scheduler = Config {
            policy: policy(rng),
            release: one_of(rng, &[Release::Node, Release::Subgraph]),
            max_tasks_to_submit: one_of(rng, &[1, 2, 5, 9]),
            low_water: one_of(rng, &[0, 1, 2, 6]),
            merge_steps: !rng.one_in(3),
            waiting_max: one_of(rng, &[1 << 20, 1 << 20, 1 << 20, 3]),
            // At every point where a task may be paused, if it is a CPU's.
            slice_ns: one_of(rng, &[0, 0, 1]),
        };
        let bodies = one_of(rng, &[0, 2, 6]);
        let domain = DomainOptions {
            arena_bytes: Some(one_of(rng, &[1 << 18, 1 << 20, 1 << 24])),
            table_bytes: one_of(rng, &[None, Some(0), Some(1 << 12)]),
            ahead_weights_least: one_of(rng, &[None, Some(0)]),
            level: one_of(rng, &[None, None, None, Some(Level::Avx2), Some(Level::Portable)]),
            ..DomainOptions::default()
        };
        // Threads of each worker, and the number of domains.
        let (threads, domains): (&[usize], usize) = one_of(rng, &[(&[2], 1), (&[1, 1], 1), (&[1, 1], 2), (&[1], 1)]);
        let (keep, lent, together) = (if rng.one_in(2) { 0 } else { ALL_THREADS }, rng.one_in(2), rng.one_in(3));
        let fuse = rng.one_in(8).then(|| Fuse::new(false));
        let words = format!(
            "{shape:?}, {bodies} bodies, {precision:?}, {scheduler:?}, {domain:?}, threads {threads:?} in {domains} domain(s), keep {keep}, lent {lent}, together {together}, \
             fuse {}",
            fuse.is_some()
        );
        let homes: Vec<Arc<CpuDomain>> = (0..domains).map(|_| CpuDomain::new(domain).unwrap()).collect();
        let device = |number: usize, threads: &usize| {
            let options = CpuOptions { threads: *threads, spin: Duration::from_micros(5), ..CpuOptions::default() };
            let worker: Box<dyn Backend> = Box::new(CpuWorker::new(homes[number % domains].clone(), options).unwrap());
            let worker = keeping(keep, worker);
            let worker = match &fuse {
                Some(fuse) if number == 0 => fuse.on(worker),
                _ => worker,
            };
            preferring(lent, together, worker)
        };
        let backends = threads.iter().enumerate().map(|(number, threads)| device(number, threads)).collect();
        let options = EngineOptions { scheduler, in_flight_max: one_of(rng, &[8, 1 << 10]), batch_max: 64, ..EngineOptions::default() };
        Self { shape, precision, bodies, domain, options, fuse, backends, words }
    }

    /// One of these models for the engine.
    pub(crate) fn spec(&self, model: &Arc<Model>, rng: &mut Rng) -> ModelSpec {
        let own = |rng: &mut Rng| CellOverride {
            batch_max: Some(one_of(rng, &[1, 2, 3, 8, 16, 64])),
            priority: rng.one_in(3).then(|| rng.between(0, 20).cast_signed() - 10),
        };
        let alike = CellOverride { batch_max: Some(one_of(rng, &[1, 4, 64])), priority: None };
        let overrides = if rng.one_in(2) { vec![alike; model.cells.len()] } else { model.cells.iter().map(|_| own(rng)).collect() };
        ModelSpec {
            name: "generated".to_owned(),
            tenant: rng.between(0, 2),
            weight: rng.between(1, 3),
            policy: rng.one_in(2).then(|| policy(rng)),
            cells: model.cells.clone(),
            overrides,
            live_max: self.live_max(rng),
            charged: Vec::new(),
        }
    }

    /// Some requests fit beside one another.
    fn live_max(&self, rng: &mut Rng) -> Option<u32> {
        // Two states and more, of 4 bytes an element.
        let node = (12 * u64::from(self.shape.hidden) + 128).next_multiple_of(64);
        let arena = self.domain.arena_bytes.unwrap_or(0);
        let live = arena / node / u64::from(rng.between(2, 8));
        (!rng.one_in(4)).then(|| u32::try_from(live).unwrap_or(u32::MAX).min(1 << 10))
    }
}

/// So many models of that shape, with other weights, and at times with cells of random bodies beside the generator's.
pub(crate) fn models(settings: &Settings, seed: u64, count: u64) -> Vec<Arc<Model>> {
    (0..count)
        .map(|number| {
            let seed = seed.wrapping_add(number << 40);
            let mut model = Model::clone(&generate::model_at(settings.shape, seed, settings.precision));
            let seeds = (0..settings.bodies).map(|body| seed.wrapping_add(body << 50));
            for (cell, typed) in seeds.filter_map(|seed| cell_among(settings.shape, seed, settings.precision)) {
                std::sync::Arc::make_mut(&mut model.description).cells.push(cell);
                model.cells.push(typed);
            }
            Arc::new(model)
        })
        .collect()
}

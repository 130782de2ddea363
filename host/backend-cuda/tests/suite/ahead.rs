//! Requests of every kind with five tasks on their way at once give what they give step by step: what a task reads is read where it runs, not where it
//! is queued.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use cellwright_backend::CellTypeId;
use cellwright_backend_cuda::driver::emulated::{Emulated, Emulation};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::TypedCell;
use cellwright_cell_graph::generate::{self, Family, Rng};
use cellwright_cell_graph::typed::Precision;
use cellwright_conformance::driver::{Driver, Placed, delivering_everything};
use std::sync::Arc;

/// Tasks that an engine has outstanding at most.
const AHEAD: usize = 5;

/// What a request delivers, by chain, stage, output and step.
type Outputs = BTreeMap<(usize, usize, u32, u32), Vec<u8>>;

/// A request's nodes in an order in which each stands behind what it waits for.
struct Program {
    request: Placed,
    nodes: Vec<(usize, usize, u32)>,
    at: usize,
    outstanding: usize,
    may_stop: bool,
}

impl Program {
    fn new(request: Placed) -> Self {
        let chains = &request.growth.growth.chains;
        let of = |(number, chain): (usize, &cellwright_cell_graph::unfolded::UnfoldedChain)| {
            let stages = chain.stages.len();
            (0..chain.length.bound).flat_map(move |step| (0..stages).map(move |stage| (number, stage, step))).collect::<Vec<_>>()
        };
        let nodes = chains.iter().enumerate().flat_map(of).collect();
        let may_stop = chains.iter().any(cellwright_cell_graph::unfolded::UnfoldedChain::may_stop);
        Self { request, nodes, at: 0, outstanding: 0, may_stop }
    }

    /// The next node that can be queued, and whether there is any left at all. Another chain may ask where one before it ended, which is known
    /// when that is complete.
    fn head(&mut self) -> (Option<(usize, usize, u32)>, bool) {
        loop {
            let Some(node) = self.nodes.get(self.at).copied() else { return (None, false) };
            let is_other = self.at.checked_sub(1).is_some_and(|before| self.nodes[before].0 != node.0);
            if is_other && self.may_stop && self.outstanding > 0 {
                return (None, true);
            }
            let number = self.request.growth.growth.first_chain + node.0 as u32;
            if node.2 < self.request.growth.executed_steps(number).unwrap_or_default() {
                return (Some(node), true);
            }
            self.at += 1;
        }
    }
}

fn run(
    cells: &[Arc<TypedCell>],
    requests: &[(Arc<cellwright_cell_graph::UnfoldedGrowth>, Vec<Arc<cellwright_cell_graph::Tensor>>)],
    ahead: usize,
    seed: u64,
) -> Vec<Outputs> {
    let device = Emulated::new(&Emulation { seed, lag: Duration::from_micros(50), ..Emulation::default() });
    let options = CudaOptions {
        arena_bytes: Some(8 << 20),
        frame_bytes: Some(4 << 20),
        ring_bytes: 64 << 10,
        rows_most: 16,
        ..CudaOptions::default()
    };
    let worker = CudaWorker::new(Box::new(device), options).expect("a device made of threads");
    let mut driver = Driver::new(Box::new(worker), cells);
    let mut programs: Vec<Program> =
        requests.iter().map(|(growth, tensors)| Program::new(driver.place(growth.clone(), tensors, 0, &[]))).collect();
    let mut rng = Rng::new(seed);
    let mut flying: VecDeque<Vec<usize>> = VecDeque::new();
    loop {
        let mut heads = Vec::new();
        let mut is_left = false;
        for (index, program) in programs.iter_mut().enumerate() {
            let (head, more) = program.head();
            is_left |= more;
            heads.extend(head.map(|(chain, stage, step)| (index, chain, stage, step)));
        }
        if flying.len() == ahead || (heads.is_empty() && !flying.is_empty()) {
            driver.complete();
            flying.pop_front().into_iter().flatten().for_each(|index| programs[index].outstanding -= 1);
            continue;
        }
        if heads.is_empty() {
            assert!(!is_left, "what waits is waited for");
            break;
        }
        let cell_of = |(index, chain, stage, _): &(usize, usize, usize, u32)| {
            programs[*index].request.growth.growth.chains[*chain].stages[*stage].cell
        };
        let cell = cell_of(&heads[rng.below(heads.len() as u64) as usize]);
        heads.retain(|head| cell_of(head) == cell);
        heads.truncate(rng.between(1, heads.len() as u32) as usize);
        let rows: Vec<_> =
            heads.iter().map(|(index, chain, stage, step)| (programs[*index].request.lanes[*chain][*stage], *step)).collect();
        let task = driver.prepare(CellTypeId(cell), &rows, 1);
        driver.submit(task);
        for (index, ..) in &heads {
            programs[*index].at += 1;
            programs[*index].outstanding += 1;
        }
        flying.push_back(heads.iter().map(|(index, ..)| *index).collect());
    }
    programs.iter().map(|program| driver.outputs(&program.request)).collect()
}

#[test]
fn requests_of_every_kind_are_what_they_are_step_by_step() {
    for seed in 0..4 {
        let precision = [Precision::F32, Precision::Bf16][seed as usize % 2];
        let model = generate::model_at(generate::shape_of(seed), seed, precision);
        let mut rng = Rng::new(2000 + seed);
        let mut requests = Vec::new();
        for number in 0..24 {
            let family = Family::ALL[number % Family::ALL.len()];
            let (growth, tensors) = generate::growth_of(&model, family, rng.between(1, 10), &mut rng);
            requests.push((delivering_everything(&generate::unfold(&model, growth, &tensors)), tensors));
        }
        let alone = run(&model.cells, &requests, 1, seed);
        assert!(alone.iter().all(|outputs| !outputs.is_empty()));
        for round in 0..3 {
            let ahead = run(&model.cells, &requests, AHEAD, 100 * round + seed);
            for (number, (ahead, alone)) in ahead.iter().zip(&alone).enumerate() {
                assert!(ahead == alone, "seed {seed}, round {round}, request {number}");
            }
        }
    }
}

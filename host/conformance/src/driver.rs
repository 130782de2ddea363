//! The least of an engine: places growths, makes tasks of chosen or random rows, keeps what is delivered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::unfolded::{Delivery, Grouping, Length, Retention, Source, UnfoldedChain, UnfoldedInput, UnfoldedStage};
use cellwright_cell_graph::{Tensor, TypedCell, UnfoldedGrowth};

use cellwright_backend::{
    Backend, CellTypeId, Completed, EarlierChain, FirstSlots, Lane, LaneId, NodeLayout, PlacedGrowth, RequestFlags, Row, Slot, Task,
};

/// A place that holds nothing.
const NOWHERE: Slot = Slot(u32::MAX);

/// A request's growth in a driver.
#[derive(Clone, Debug)]
pub struct Placed {
    /// As the backend sees it.
    pub growth: Arc<PlacedGrowth>,
    /// For each chain and stage its lane.
    pub lanes: Vec<Vec<LaneId>>,
}

/// What was delivered: by lane, output and step.
pub type Deliveries = BTreeMap<(LaneId, u32, u32), Vec<u8>>;

/// A backend, and what drives it.
pub struct Driver {
    /// The backend.
    pub backend: Box<dyn Backend>,
    /// The cells it has loaded, by index.
    pub cells: Vec<Arc<TypedCell>>,
    /// Everything delivered so far.
    pub delivered: Deliveries,
    layouts: Vec<NodeLayout>,
    joins: Vec<(LaneId, Arc<Lane>)>,
    cell_of: Vec<CellTypeId>,
    sizes: Vec<Vec<usize>>,
    next_slot: u32,
    next_seq: u64,
}

impl Driver {
    /// Loads the cells under the indices of their positions.
    ///
    /// # Panics
    /// If the backend cannot load one.
    #[must_use]
    pub fn new(mut backend: Box<dyn Backend>, cells: &[Arc<TypedCell>]) -> Self {
        for (index, cell) in cells.iter().enumerate() {
            if let Err(error) = backend.load(CellTypeId(index as u32), cell) {
                panic!("{error}");
            }
        }
        Self {
            backend,
            cells: cells.to_vec(),
            delivered: BTreeMap::new(),
            layouts: cells.iter().map(|cell| NodeLayout::of(cell)).collect(),
            joins: Vec::new(),
            cell_of: Vec::new(),
            sizes: Vec::new(),
            next_slot: 3,
            next_seq: 0,
        }
    }

    /// So many slots that nobody has.
    pub fn slots(&mut self, count: u32) -> Slot {
        let first = Slot(self.next_slot);
        self.next_slot += count;
        assert!(self.next_slot <= self.backend.info().arena_slots, "the suite stays within the arena");
        first
    }

    /// Gives a request's growth its place. `earlier` are the request's growths before it.
    pub fn place(&mut self, growth: Arc<UnfoldedGrowth>, tensors: &[Arc<Tensor>], first_tensor: u32, earlier: &[Placed]) -> Placed {
        // Stages of a series share their slots.
        let continued = |chain: u32, stage: usize| {
            let of = earlier.iter().rfind(|placed| placed.growth.growth.first_chain <= chain).expect("an earlier chain");
            of.growth.slots[(chain - of.growth.growth.first_chain) as usize][stage]
        };
        let place = |driver: &mut Self, chain: &UnfoldedChain, (number, stage): (usize, &UnfoldedStage)| {
            let count = stage.retention.places(chain.length.bound) * driver.layouts[stage.cell as usize].slots;
            match chain.continues.filter(|_| matches!(stage.retention, Retention::Ring { .. })) {
                Some(chain) => continued(chain, number),
                None if count == 0 => NOWHERE,
                None => driver.slots(count),
            }
        };
        let mut slots = Vec::new();
        for chain in &growth.chains {
            slots.extend(chain.stages.iter().enumerate().map(|stage| place(self, chain, stage)));
        }
        let slots = FirstSlots::new(&growth, slots);
        let placed = Arc::new(PlacedGrowth {
            cells: (0..self.cells.len() as u32).map(CellTypeId).collect(),
            slots,
            executed: growth.chains.iter().map(|chain| AtomicU32::new(chain.length.bound)).collect(),
            earlier: earlier.iter().flat_map(earlier_chains).collect(),
            tensors: tensors.to_vec(),
            first_tensor,
            flags: earlier.first().map_or_else(|| Arc::new(RequestFlags::default()), |first| first.growth.flags.clone()),
            growth,
        });
        let lanes = placed.growth.chains.iter().enumerate().map(|(chain, of)| {
            let lanes = of.stages.iter().enumerate().map(|(stage, of)| self.join(&placed, chain as u32, stage as u32, of.cell));
            lanes.collect()
        });
        let lanes = lanes.collect();
        Placed { growth: placed, lanes }
    }

    fn join(&mut self, growth: &Arc<PlacedGrowth>, chain: u32, stage: u32, cell: u32) -> LaneId {
        let lane = LaneId(self.cell_of.len() as u32);
        self.cell_of.push(CellTypeId(cell));
        self.sizes.push(self.layouts[cell as usize].sizes.clone());
        self.joins.push((lane, Arc::new(Lane { growth: growth.clone(), chain, stage })));
        lane
    }

    /// Runs one task, and keeps what it delivers.
    ///
    /// # Panics
    /// If the backend is lost, or its completion is not of this task.
    pub fn task(&mut self, cell: CellTypeId, rows: &[(LaneId, u32)], steps: u32) -> Completed {
        let task = self.prepare(cell, rows, steps);
        self.submit(task);
        self.complete()
    }

    /// A task that was not submitted yet.
    pub fn prepare(&mut self, cell: CellTypeId, rows: &[(LaneId, u32)], steps: u32) -> Task {
        let rows = rows.iter().map(|(lane, step)| Row { lane: *lane, step: *step }).collect();
        self.next_seq += 1;
        Task { seq: self.next_seq, cell, steps, rows, joins: std::mem::take(&mut self.joins), ..Task::default() }
    }

    /// Submits a task.
    ///
    /// # Panics
    /// If the backend is lost.
    pub fn submit(&mut self, task: Task) {
        if let Err(error) = self.backend.submit(task) {
            panic!("{error}");
        }
    }

    /// Waits for the oldest task.
    ///
    /// # Panics
    /// If there is none, the backend is lost, or bytes are missing.
    pub fn complete(&mut self) -> Completed {
        let completed = match self.backend.complete() {
            Ok(Some(completed)) => completed,
            Ok(None) => panic!("a task was submitted, so there is one to complete"),
            Err(error) => panic!("{error}"),
        };
        let ends = completed.delivered.iter().skip(1).map(|next| next.offset as usize).chain([completed.bytes.len()]);
        for (delivered, end) in completed.delivered.iter().zip(ends) {
            let bytes = completed.bytes[delivered.offset as usize..end].to_vec();
            assert_eq!(bytes.len(), self.sizes[delivered.lane.index()][delivered.output as usize], "an output is delivered whole");
            let before = self.delivered.insert((delivered.lane, delivered.output, delivered.step), bytes.clone());
            assert!(before.is_none_or(|before| before == bytes), "delivered again, an output is the same");
        }
        completed
    }

    /// Runs requests to their ends, each node by node in order, in tasks of rows picked at random.
    pub fn run_all(&mut self, requests: &[Placed], rng: &mut Rng, rows_most: usize) {
        let mut programs: Vec<Program> = requests.iter().map(|request| Program::new(request.clone())).collect();
        loop {
            let mut heads: Vec<(usize, LaneId, u32)> = Vec::new();
            for (index, program) in programs.iter_mut().enumerate() {
                heads.extend(program.head().map(|(lane, step)| (index, lane, step)));
            }
            if heads.is_empty() {
                return;
            }
            let chosen = self.cell_of[heads[rng.below(heads.len() as u64) as usize].1.index()];
            heads.retain(|(_, lane, _)| self.cell_of[lane.index()] == chosen);
            // Any order, any number.
            for at in (1..heads.len()).rev() {
                heads.swap(at, rng.below(at as u64 + 1) as usize);
            }
            let most = heads.len().min(rows_most) as u32;
            heads.truncate(rng.between(1, most) as usize);
            let rows: Vec<(LaneId, u32)> = heads.iter().map(|(_, lane, step)| (*lane, *step)).collect();
            let completed = self.task(chosen, &rows, 1);
            self.backend.recycle(completed);
            heads.iter().for_each(|(index, ..)| programs[*index].at += 1);
        }
    }

    /// What a request's lanes delivered, by chain, stage, output and step.
    #[must_use]
    pub fn outputs(&self, request: &Placed) -> BTreeMap<(usize, usize, u32, u32), Vec<u8>> {
        let mut outputs = BTreeMap::new();
        for (chain, lanes) in request.lanes.iter().enumerate() {
            for (stage, lane) in lanes.iter().enumerate() {
                for ((_, output, step), bytes) in self.delivered.range((*lane, 0, 0)..=(*lane, u32::MAX, u32::MAX)) {
                    outputs.insert((chain, stage, *output, *step), bytes.clone());
                }
            }
        }
        outputs
    }

    /// An output of a node that was delivered, as floats.
    ///
    /// # Panics
    /// If it was not.
    #[must_use]
    pub fn floats(&self, lane: LaneId, output: u32, step: u32) -> Vec<f32> {
        let bytes = self.delivered.get(&(lane, output, step)).unwrap_or_else(|| panic!("output {output} of step {step} was not delivered"));
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

fn earlier_chains(placed: &Placed) -> impl Iterator<Item = EarlierChain> {
    let growth = &placed.growth;
    growth.growth.chains.iter().enumerate().map(|(chain, of)| EarlierChain {
        chain: growth.growth.first_chain + chain as u32,
        stages: of.stages.iter().zip(&growth.slots[chain]).map(|(stage, slot)| (*slot, stage.retention, stage.cell)).collect(),
        executed: (growth.executed.clone(), chain as u32),
    })
}

/// A request's nodes in an order that respects what they wait for: a source names only earlier chains, steps and stages.
struct Program {
    request: Placed,
    nodes: Vec<(usize, usize, u32)>,
    at: usize,
}

impl Program {
    fn new(request: Placed) -> Self {
        let mut nodes = Vec::new();
        for (chain, of) in request.growth.growth.chains.iter().enumerate() {
            for step in 0..of.length.bound {
                nodes.extend((0..of.stages.len()).map(|stage| (chain, stage, step)));
            }
        }
        Self { request, nodes, at: 0 }
    }

    /// The next node that is to run.
    fn head(&mut self) -> Option<(LaneId, u32)> {
        loop {
            let (chain, stage, step) = *self.nodes.get(self.at)?;
            let number = self.request.growth.growth.first_chain + chain as u32;
            let executed = self.request.growth.executed_steps(number).expect("its own chain");
            if step < executed && !self.request.growth.flags.dead.load(Ordering::Relaxed) {
                return Some((self.request.lanes[chain][stage], step));
            }
            self.at += 1;
        }
    }
}

/// A chain of one cell that delivers every output of every step and holds none; nothing is fed back.
#[must_use]
pub fn independent(cell: u32, outputs: usize, sources: Vec<Source>, steps: u32) -> UnfoldedChain {
    let stage = UnfoldedStage {
        cell,
        inputs: sources.into_iter().map(|source| UnfoldedInput { source, feedback: None }).collect(),
        depends: Vec::new(),
        named_producers: Vec::new(),
        successors: cellwright_cell_graph::unfolded::Successors::default(),
        retention: Retention::None,
        grouping: Grouping::Each,
        delivery: vec![Delivery::All; outputs],
    };
    UnfoldedChain { stages: vec![stage], length: Length { bound: steps, like: None }, sequential: false, stop: None, continues: None }
}

/// A growth of those chains.
#[must_use]
pub fn growth_of(chains: Vec<UnfoldedChain>) -> UnfoldedGrowth {
    let nodes = chains.iter().map(|chain| u64::from(chain.length.bound) * chain.stages.len() as u64).sum();
    UnfoldedGrowth { first_chain: 0, chains, outputs: Vec::new(), cancel: Vec::new(), next: None, nodes, shared: None }
}

/// The same growth with every output of every step delivered.
#[must_use]
pub fn delivering_everything(growth: &UnfoldedGrowth) -> Arc<UnfoldedGrowth> {
    let mut growth = growth.clone();
    let stages = growth.chains.iter_mut().flat_map(|chain| &mut chain.stages);
    stages.for_each(|stage| stage.delivery.iter_mut().for_each(|delivery| *delivery = Delivery::All));
    Arc::new(growth)
}

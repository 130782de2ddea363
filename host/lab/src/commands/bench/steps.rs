//! Steps of a cell on a worker of its own, as an engine would give them: rows in slots, states fed back, nothing that leaves.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cellwright_backend::{Backend, CellTypeId, Lane, LaneId, NodeLayout, PlacedGrowth, RequestFlags, Row, Slot, Task};
use cellwright_cell_graph::Random;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::{Delivery, Grouping, Length, Retention, Source, Successors};
use cellwright_cell_graph::unfolded::{UnfoldedChain, UnfoldedInput, UnfoldedStage};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell, UnfoldedGrowth};

const CELL: CellTypeId = CellTypeId(0);
/// Chains that do not end while they are measured.
const STEPS: u32 = u32::MAX - 1;

/// What rows are drawn from.
pub(super) struct Drawn<'a> {
    pub(super) random: &'a mut Random,
    /// How many tokens there are.
    pub(super) tokens: usize,
    /// Which worker of those that share a memory it is for: each has slots of its own.
    pub(super) worker: u32,
}

/// A worker with one cell and as many endless chains of it as a step has rows.
pub(super) struct Steps {
    worker: Box<dyn Backend>,
    rows: Vec<Row>,
    joins: Vec<(LaneId, Arc<Lane>)>,
    step: u32,
}

impl Steps {
    /// Loads the cell and places its chains, with random rows for what is not fed back.
    pub(super) fn new(mut worker: Box<dyn Backend>, cell: &Arc<TypedCell>, batch: u32, mut drawn: Drawn<'_>) -> anyhow::Result<Self> {
        worker.load(CELL, cell)?;
        let slots = NodeLayout::of(cell).slots * Retention::Double.places(STEPS);
        let own = slots.checked_mul(batch);
        let end = own.and_then(|own| own.checked_mul(drawn.worker + 1)).filter(|end| *end <= worker.info().arena_slots);
        ensure!(end.is_some(), "{batch} rows of the cell `{}` do not fit the worker's memory", cell.name);
        let first = own.unwrap_or_default() * drawn.worker;
        let joins = (0..batch).map(|number| {
            let (sources, tensors): (Vec<Source>, Vec<Option<Tensor>>) =
                (0..cell.inputs.len()).map(|input| source(cell, input, &mut drawn)).unzip();
            let growth = placed(cell, sources, tensors.into_iter().flatten().map(Arc::new).collect(), Slot(first + number * slots));
            (LaneId(number), Arc::new(Lane { growth: Arc::new(growth), chain: 0, stage: 0 }))
        });
        let joins = joins.collect();
        Ok(Self { worker, rows: (0..batch).map(|number| Row { lane: LaneId(number), step: 0 }).collect(), joins, step: 0 })
    }

    /// Runs one step of every chain; how long it took.
    pub(super) fn step(&mut self) -> anyhow::Result<Duration> {
        let mut rows = std::mem::take(&mut self.rows);
        rows.iter_mut().for_each(|row| row.step = self.step);
        let task =
            Task { seq: u64::from(self.step) + 1, cell: CELL, steps: 1, rows, joins: std::mem::take(&mut self.joins), ..Task::default() };
        self.step += 1;
        let began = Instant::now();
        self.worker.submit(task)?;
        let mut completed = self.worker.complete()?.context("a step that was submitted ends")?;
        let took = began.elapsed();
        self.rows = std::mem::take(&mut completed.rows);
        if let Some(refused) = completed.refused.first() {
            return Err(refused.error.clone().into());
        }
        self.worker.recycle(completed);
        Ok(took)
    }

    /// Runs steps for about so much time, one at least; the median of their times.
    pub(super) fn median(&mut self, time: Duration) -> anyhow::Result<Duration> {
        let (mut times, mut spent) = (Vec::new(), Duration::ZERO);
        while times.is_empty() || spent < time {
            let took = self.step()?;
            spent += took;
            times.push(took);
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }
}

/// What an input sees: at the first step zeros where it is fed back, always a row of its own otherwise. The tensor is that row.
fn source(cell: &TypedCell, input: usize, drawn: &mut Drawn<'_>) -> (Source, Option<Tensor>) {
    if fed_back(cell, input).is_some() {
        return (Source::Zeros, None);
    }
    let (port, random) = (&cell.inputs[input], &mut *drawn.random);
    match port.datatype {
        Datatype::Fp32 => {
            let shape: Vec<usize> = std::iter::once(1).chain(port.shape.iter().map(|extent| *extent as usize)).collect();
            #[expect(clippy::cast_possible_truncation, reason = "rows need no more than single precision")]
            let values: Vec<f32> = (0..shape.iter().product()).map(|_| random.normal() as f32).collect();
            let tensor = (0..input).filter(|earlier| has_tensor(cell, *earlier)).count();
            let at = Affine { first: 0, stride: 0, from_end: false };
            let tensor_number = u32::try_from(tensor).unwrap_or(u32::MAX);
            (Source::Rows { tensor: tensor_number, at }, Some(Tensor::from_f32(&port.name, &shape, &values)))
        }
        // A token, drawn for each row.
        _ => (Source::Index(Affine { first: i64::try_from(random.below(drawn.tokens)).unwrap_or(0), stride: 0, from_end: false }), None),
    }
}

fn has_tensor(cell: &TypedCell, input: usize) -> bool {
    fed_back(cell, input).is_none() && cell.inputs[input].datatype == Datatype::Fp32
}

/// The output that an input sees of the step before: of a state its next value; of a cell without states, whose inputs are other nodes' outputs,
/// one of its shape.
fn fed_back(cell: &TypedCell, input: usize) -> Option<u32> {
    let port = &cell.inputs[input];
    let has_states = cell.inputs.iter().any(|input| input.carried);
    if has_states && !port.carried {
        return None;
    }
    let alike: Vec<usize> = (0..cell.outputs.len())
        .filter(|output| cell.outputs[*output].port.shape == port.shape && cell.outputs[*output].port.datatype == port.datatype)
        .collect();
    let before = cell.inputs[..input].iter().filter(|other| other.carried == port.carried && other.shape == port.shape).count();
    alike.get(before % alike.len().max(1)).and_then(|output| u32::try_from(*output).ok())
}

fn placed(cell: &TypedCell, sources: Vec<Source>, tensors: Vec<Arc<Tensor>>, first: Slot) -> PlacedGrowth {
    let input = |(input, source)| UnfoldedInput { source, feedback: fed_back(cell, input).map(|output| (0, output)) };
    let stage = UnfoldedStage {
        cell: 0,
        inputs: sources.into_iter().enumerate().map(input).collect(),
        depends: Vec::new(),
        named_producers: Vec::new(),
        successors: Successors::default(),
        retention: Retention::Double,
        grouping: Grouping::Whole,
        delivery: vec![Delivery::None; cell.outputs.len()],
    };
    let chain =
        UnfoldedChain { stages: vec![stage], length: Length { bound: STEPS, like: None }, sequential: true, stop: None, continues: None };
    let nodes = u64::from(STEPS);
    let growth =
        UnfoldedGrowth { first_chain: 0, chains: vec![chain], outputs: Vec::new(), cancel: Vec::new(), next: None, nodes, shared: None };
    PlacedGrowth {
        growth: Arc::new(growth),
        cells: [CELL].into(),
        slots: [vec![first]].into(),
        executed: [AtomicU32::new(STEPS)].into(),
        earlier: Vec::new(),
        tensors,
        first_tensor: 0,
        flags: Arc::new(RequestFlags::default()),
    }
}

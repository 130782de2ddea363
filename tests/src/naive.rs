//! What a request's graph means, computed one node at a time, in 64-bit floats unless somebody else computes its cells: no batches, no slots, no order but that of chains, steps and stages.
//!
//! It reads the checked growth's sources by itself, and shares no code with the scheduler, the engine or any backend but the meaning of a cell.

use std::collections::BTreeMap;
use std::sync::Arc;

use cellwright_backend::RowError;
use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::{Delivery, Run, RunOf, Source, UnfoldedChain};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell, UnfoldedGrowth};
use cellwright_conformance::reference::{Elements, evaluate};

/// An output of a node: chain, stage, output, step.
pub type At = (u32, u32, u32, u32);

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq)]
pub enum NaiveFailure {
    /// It names a step that this chain never executed.
    BeyondEnd(u32),
    /// A cell refused a row.
    Row(RowError),
}

/// What computes a cell's outputs from one row of each input.
pub type Compute = Arc<dyn Fn(&Arc<TypedCell>, &[Elements]) -> Result<Vec<Elements>, RowError> + Send + Sync>;

/// One chain's values: by step, stage and output.
struct Computed {
    continues: Option<u32>,
    stages: Vec<u32>,
    steps: Vec<Vec<Vec<Elements>>>,
}

/// A request that is computed growth by growth.
pub struct Naive {
    model: Arc<Model>,
    compute: Compute,
    chains: Vec<Computed>,
    /// What leaves so far.
    pub delivered: BTreeMap<At, (Datatype, Elements)>,
    /// Steps that chains with a stop executed.
    pub ended: BTreeMap<u32, u32>,
}

struct Scope<'a> {
    naive: &'a Naive,
    tensors: &'a [Arc<Tensor>],
    first_tensor: u32,
    chain: &'a UnfoldedChain,
    number: u32,
    /// Steps of this chain, if that is known before it runs.
    known_steps: u32,
    before: &'a [Vec<Vec<Elements>>],
    now: &'a [Vec<Elements>],
    step: u32,
}

impl Naive {
    /// A request without chains.
    #[must_use]
    pub fn new(model: Arc<Model>) -> Self {
        Self::by(Arc::new(|cell, inputs| evaluate(cell, inputs)), model)
    }

    /// The same, of whose cells that computes every row.
    #[must_use]
    pub fn by(compute: Compute, model: Arc<Model>) -> Self {
        Self { model, compute, chains: Vec::new(), delivered: BTreeMap::new(), ended: BTreeMap::new() }
    }

    /// Computes one more growth.
    ///
    /// # Errors
    /// If the request fails in it.
    ///
    /// # Panics
    /// If the growth is not what the checks let through.
    pub fn grow(&mut self, growth: &UnfoldedGrowth, first_tensor: u32, tensors: &[Arc<Tensor>]) -> Result<(), NaiveFailure> {
        assert_eq!(growth.first_chain as usize, self.chains.len(), "chains are numbered over the request");
        for chain in &growth.chains {
            let number = self.chains.len() as u32;
            let computed = self.chain(chain, number, first_tensor, tensors)?;
            self.deliver(chain, number, &computed);
            self.chains.push(computed);
        }
        Ok(())
    }

    fn chain(&self, chain: &UnfoldedChain, number: u32, first_tensor: u32, tensors: &[Arc<Tensor>]) -> Result<Computed, NaiveFailure> {
        let known_steps = chain.length.like.map_or(chain.length.bound, |like| self.chains[like as usize].steps.len() as u32);
        let mut steps: Vec<Vec<Vec<Elements>>> = Vec::new();
        for step in 0..known_steps {
            let mut now: Vec<Vec<Elements>> = Vec::new();
            for (position, stage) in chain.stages.iter().enumerate() {
                let cell = &self.model.cells[stage.cell as usize];
                let scope = Scope { naive: self, tensors, first_tensor, chain, number, known_steps, before: &steps, now: &now, step };
                let mut inputs = Vec::new();
                for (input, port) in cell.inputs.iter().enumerate() {
                    let elements: usize = port.shape.iter().map(|extent| *extent as usize).product();
                    inputs.push(scope.input(position, input, port.datatype, elements)?);
                }
                now.push((self.compute)(cell, &inputs).map_err(NaiveFailure::Row)?);
            }
            let stops = chain.stop.is_some_and(|(stage, output)| match &now[stage as usize][output as usize] {
                Elements::Integers(values) => values[0] != 0,
                Elements::Floats(_) => panic!("a stop is a BOOL"),
            });
            steps.push(now);
            if stops {
                break;
            }
        }
        Ok(Computed { stages: chain.stages.iter().map(|stage| stage.cell).collect(), continues: chain.continues, steps })
    }

    fn deliver(&mut self, chain: &UnfoldedChain, number: u32, computed: &Computed) {
        if chain.stop.is_some() {
            self.ended.insert(number, computed.steps.len() as u32);
        }
        for (position, stage) in chain.stages.iter().enumerate() {
            let cell = &self.model.cells[computed.stages[position] as usize];
            for (output, delivery) in stage.delivery.iter().enumerate() {
                let first = match delivery {
                    Delivery::None => computed.steps.len(),
                    Delivery::Last => computed.steps.len() - 1,
                    Delivery::All => 0,
                };
                for (step, values) in computed.steps.iter().enumerate().skip(first) {
                    let at = (number, position as u32, output as u32, step as u32);
                    let datatype = cell.outputs[output].port.datatype;
                    self.delivered.insert(at, (datatype, rounded(datatype, &values[position][output])));
                }
            }
        }
    }
}

/// As it leaves the cell.
fn rounded(datatype: Datatype, elements: &Elements) -> Elements {
    Elements::from_bytes(datatype, &elements.to_bytes(datatype))
}

impl Scope<'_> {
    fn input(&self, stage: usize, input: usize, datatype: Datatype, elements: usize) -> Result<Elements, NaiveFailure> {
        let input = &self.chain.stages[stage].inputs[input];
        if let (Some((stage, output)), Some(before)) = (input.feedback, self.step.checked_sub(1)) {
            return Ok(self.before[before as usize][stage as usize][output as usize].clone());
        }
        let integer = |number: i64| Elements::from_bytes(datatype, &Elements::Integers(vec![number]).to_bytes(datatype));
        let zeros = || match datatype {
            Datatype::Fp32 => Elements::Floats(vec![0.0; elements]),
            _ => Elements::Integers(vec![0; elements]),
        };
        match &input.source {
            Source::Zeros => Ok(zeros()),
            Source::Literal(bytes) => Ok(Elements::from_bytes(datatype, bytes)),
            Source::Ints(numbers) => Ok(integer(numbers[self.step as usize])),
            Source::Index(at) => {
                let number = self.line(*at);
                Ok(integer(if at.from_end { i64::from(self.known_steps) - 1 - number } else { number }))
            }
            Source::Rows { tensor, at } => {
                let tensor = &self.tensors[(tensor - self.first_tensor) as usize];
                let rows = tensor.shape[0];
                let number = if at.from_end { rows as i64 - 1 - self.line(*at) } else { self.line(*at) };
                let bytes = tensor.data.len() / rows;
                Ok(Elements::from_bytes(datatype, &tensor.data[number as usize * bytes..][..bytes]))
            }
            Source::Frames { tensor, at } => {
                let size = datatype.size().expect("rows of a fixed size");
                let all: Vec<&Tensor> = self.same_name(*tensor).collect();
                let before: usize = all[1..].iter().map(|tensor| tensor.data.len()).sum();
                let all: Vec<u8> = all.iter().rev().flat_map(|tensor| tensor.data.iter().copied()).collect();
                let bytes = (0..elements as i64).flat_map(|element| {
                    let from = usize::try_from(self.line(*at) + element + (before / size) as i64).ok();
                    let from = from.and_then(|from| all.get(from * size..(from + 1) * size));
                    from.map_or_else(|| vec![0; size], <[u8]>::to_vec)
                });
                Ok(Elements::from_bytes(datatype, &bytes.collect::<Vec<u8>>()))
            }
            Source::Window(runs) => {
                let rows: u32 = runs.iter().map(|run| run.count).sum();
                let size = elements / rows as usize * datatype.size().expect("rows of a fixed size");
                let rows = runs.iter().flat_map(|run| (0..run.count).map(move |row| (run, row)));
                let bytes = rows.flat_map(|(run, row)| self.row(run, row, datatype).unwrap_or_else(|| vec![0; size]));
                Ok(Elements::from_bytes(datatype, &bytes.collect::<Vec<u8>>()))
            }
            Source::Span(runs) => {
                let bytes = runs.iter().flat_map(|run| self.rows(run, datatype)).flatten();
                Ok(Elements::from_bytes(datatype, &bytes.collect::<Vec<u8>>()))
            }
            Source::Steps { chain, stage, output, at } => {
                let executed = self.executed(*chain);
                let number = if at.from_end { executed as i64 - 1 - self.line(*at) } else { self.line(*at) };
                let step = usize::try_from(number).ok().filter(|step| *step < executed).ok_or(NaiveFailure::BeyondEnd(*chain))?;
                Ok(self.node(*chain, *stage, *output, step))
            }
            Source::Last { chain, stage, output } => Ok(self.node(*chain, *stage, *output, self.executed(*chain) - 1)),
            Source::Nodes { stage, output, of } => {
                let node = of[self.step as usize];
                if node.step as usize >= self.executed(node.chain) {
                    return Err(NaiveFailure::BeyondEnd(node.chain));
                }
                Ok(self.node(node.chain, *stage, *output, node.step as usize))
            }
            Source::Sibling { stage, output } => Ok(self.now[*stage as usize][*output as usize].clone()),
        }
    }

    /// All rows of a run that are there.
    fn rows(&self, run: &Run, datatype: Datatype) -> Vec<Vec<u8>> {
        let (before, behind) = self.ends(run);
        let first = self.first(run);
        let row = |number: i64| (number - first) / i64::from(run.every);
        let is_of = |number: &i64| *number >= first && (number - first) % i64::from(run.every) == 0 && row(*number) < i64::from(run.count);
        (-before..behind).filter(is_of).filter_map(|number| self.row(run, row(number) as u32, datatype)).collect()
    }

    /// Rows of a run's origin before number 0, and from there on.
    fn ends(&self, run: &Run) -> (i64, i64) {
        match run.of {
            RunOf::Tensor(tensor) => {
                let rows: Vec<i64> = self.same_name(tensor).map(|tensor| tensor.shape[0] as i64).collect();
                (rows[1..].iter().sum(), rows[0])
            }
            RunOf::Chain { chain, .. } => {
                // The stages of this step that are there.
                let own = i64::from(chain == self.number);
                (self.series(chain).skip(1).map(|chain| self.executed(chain) as i64).sum(), self.executed(chain) as i64 + own)
            }
        }
    }

    /// A tensor, and those before it of its name, the latest first.
    fn same_name(&self, tensor: u32) -> impl Iterator<Item = &Tensor> {
        let (earlier, own) = self.tensors[..=(tensor - self.first_tensor) as usize].split_at((tensor - self.first_tensor) as usize);
        std::iter::once(&*own[0]).chain(earlier.iter().rev().map(|tensor| &**tensor).filter(|tensor| tensor.name == own[0].name))
    }

    /// A chain and all chains before it in its series, the latest first.
    fn series(&self, chain: u32) -> impl Iterator<Item = u32> {
        let continues = |chain: &u32| {
            if *chain == self.number { self.chain.continues } else { self.naive.chains[*chain as usize].continues }
        };
        std::iter::successors(Some(chain), continues)
    }

    fn first(&self, run: &Run) -> i64 {
        if run.at.from_end { self.ends(run).1 - 1 - self.line(run.at) } else { self.line(run.at) }
    }

    /// A row of a run, if it is not beyond either end.
    fn row(&self, run: &Run, row: u32, datatype: Datatype) -> Option<Vec<u8>> {
        let mut number = self.first(run) + i64::from(run.every) * i64::from(row);
        let mut within = |rows: usize, is_first: bool| {
            number += if is_first { 0 } else { rows as i64 };
            usize::try_from(number).ok().filter(|number| *number < rows)
        };
        match run.of {
            RunOf::Tensor(tensor) => {
                let (tensor, number) =
                    self.same_name(tensor).enumerate().find_map(|(at, tensor)| Some((tensor, within(tensor.shape[0], at == 0)?)))?;
                let bytes = tensor.data.len() / tensor.shape[0];
                Some(tensor.data[number * bytes..][..bytes].to_vec())
            }
            RunOf::Chain { chain, stage, output } => {
                let there = |chain: u32| {
                    let is_ahead = chain == self.number && (stage as usize) < self.now.len();
                    self.executed(chain) + usize::from(is_ahead)
                };
                let found = self.series(chain).enumerate().find_map(|(at, chain)| Some((chain, within(there(chain), at == 0)?)));
                let (chain, step) = found?;
                if chain != self.number {
                    return Some(self.node(chain, stage, output, step).to_bytes(datatype));
                }
                let stages = self.before.get(step).map_or(self.now, Vec::as_slice);
                Some(stages[stage as usize][output as usize].to_bytes(datatype))
            }
        }
    }

    fn line(&self, at: Affine) -> i64 {
        at.first + i64::from(self.step) * i64::from(at.stride)
    }

    /// Steps of a chain that are computed: all that it executes, or those before this one.
    fn executed(&self, chain: u32) -> usize {
        if chain == self.number { self.before.len() } else { self.naive.chains[chain as usize].steps.len() }
    }

    fn node(&self, chain: u32, stage: u32, output: u32, step: usize) -> Elements {
        let steps = if chain == self.number { self.before } else { &self.naive.chains[chain as usize].steps };
        steps[step][stage as usize][output as usize].clone()
    }
}

/// The first value that was delivered wrongly, not at all, or without being asked for.
///
/// # Errors
/// A sentence that says which.
pub fn compare(wanted: &BTreeMap<At, (Datatype, Elements)>, given: &BTreeMap<At, Vec<u8>>) -> Result<(), String> {
    if let Some(at) = given.keys().find(|at| !wanted.contains_key(at)) {
        return Err(format!("{at:?} (chain, stage, output, step) was delivered, but nobody asked for it"));
    }
    for (at, (datatype, value)) in wanted {
        let Some(bytes) = given.get(at) else { return Err(format!("{at:?} (chain, stage, output, step) was not delivered")) };
        let found = Elements::from_bytes(*datatype, bytes);
        let same = match (&found, value) {
            (Elements::Floats(a), Elements::Floats(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs()))
            }
            (a, b) => a == b,
        };
        if !same {
            return Err(format!("{at:?} (chain, stage, output, step) is {found:?}, not {value:?}"));
        }
    }
    Ok(())
}

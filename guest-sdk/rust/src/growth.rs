//! Builds a request's cell graph: chains of cells, where their inputs come from, and what the response is made of.
//!
//! A graph that names what does not exist is the plugin author's mistake and panics, with a sentence that reaches the uploader.

use crate::abi::cellwright::plugin::types::{
    Affine, Chain, Continuation, Extent, Feedback, Gathered, Growth, Node, Nodes, OutputRef, Pace, Reaction, ResponseTensor, Series,
    Sibling, Source, Stage, Steps, Tensor,
};
use crate::cell::Cell;

impl Affine {
    /// 0, 1, 2, …
    pub const EVERY: Self = Self { first: 0, stride: 1, from_end: false };

    /// The last executed step, the one before it, …
    pub const FROM_END: Self = Self { first: 0, stride: 1, from_end: true };

    /// `count` − 1, …, 1, 0.
    ///
    /// # Panics
    /// `count` is 0.
    #[must_use]
    pub const fn backward(count: u32) -> Self {
        assert!(count > 0, "a chain has at least one step");
        Self { first: count as i64 - 1, stride: -1, from_end: false }
    }

    /// `step` at every step.
    #[must_use]
    pub const fn always(step: u32) -> Self {
        Self { first: step as i64, stride: 0, from_end: false }
    }
}

impl OutputRef {
    /// Step t takes step t of it.
    #[must_use]
    pub const fn every(self) -> Source {
        self.at(Affine::EVERY)
    }

    /// Step t takes the step of it that `at` says.
    #[must_use]
    pub const fn at(self, at: Affine) -> Source {
        Source::Steps(Steps { of: self, at })
    }

    /// Its last executed step.
    #[must_use]
    pub const fn last(self) -> Source {
        Source::Last(self)
    }
}

impl Reaction {
    /// Nothing to send, nothing new: a watch that has more to see goes on, otherwise the request ends.
    #[must_use]
    pub const fn nothing() -> Self {
        Self { emit: vec![], growth: None }
    }

    /// A part of the response, sent now.
    #[must_use]
    pub fn emit(part: Tensor) -> Self {
        Self { emit: vec![part], growth: None }
    }

    /// How the graph goes on.
    #[must_use]
    pub fn grow(growth: Growth) -> Self {
        Self { emit: vec![], growth: Some(growth) }
    }
}

/// Builds a [`Growth`].
pub struct GrowthBuilder {
    first: u32,
    growth: Growth,
}

impl Default for GrowthBuilder {
    fn default() -> Self {
        Self::after(0)
    }
}

impl GrowthBuilder {
    /// The first growth of a request.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A later growth, of a request that has so many chains already.
    #[must_use]
    pub const fn after(chains: u32) -> Self {
        Self { first: chains, growth: Growth { chains: vec![], outputs: vec![], cancel: vec![], next: None } }
    }

    /// Chains that the request has, with those of this growth: what the next growth begins
    /// [`after`](Self::after).
    #[must_use]
    pub fn chains(&self) -> u32 {
        self.first + number(self.growth.chains.len())
    }

    /// A chain of so many steps, or fewer if it stops.
    pub fn chain<'c>(&mut self, steps: u32) -> ChainBuilder<'_, 'c> {
        self.extent(Extent::Fixed(steps))
    }

    /// A chain of as many steps as that one executes.
    pub fn chain_like<'c>(&mut self, other: &ChainHandle<'_>) -> ChainBuilder<'_, 'c> {
        self.extent(Extent::Like(other.number))
    }

    fn extent<'c>(&mut self, length: Extent) -> ChainBuilder<'_, 'c> {
        let chain = Chain { stages: Vec::with_capacity(1), length, feedback: vec![], stop: None, series: None };
        ChainBuilder { growth: self, cells: Vec::with_capacity(1), sources: vec![], chain }
    }

    /// A response tensor: the last executed step.
    pub fn output_last(&mut self, name: &str, of: OutputRef) -> &mut Self {
        self.output(name, Gathered::Last(of), false)
    }

    /// A response tensor: every executed step, stacked.
    pub fn output_all(&mut self, name: &str, of: OutputRef) -> &mut Self {
        self.output(name, Gathered::All(of), false)
    }

    /// A response tensor: every executed step, each sent as it arrives.
    pub fn output_streamed(&mut self, name: &str, of: OutputRef) -> &mut Self {
        self.output(name, Gathered::All(of), true)
    }

    /// A response tensor: those outputs, each at its chain's last executed step, stacked.
    pub fn output_listed(&mut self, name: &str, of: Vec<OutputRef>) -> &mut Self {
        self.output(name, Gathered::Listed(of), false)
    }

    fn output(&mut self, name: &str, from: Gathered, stream: bool) -> &mut Self {
        self.growth.outputs.push(ResponseTensor { name: name.into(), from, stream });
        self
    }

    /// A chain of this request that need not go on. Chains that read it, or end where it does, must be cancelled with it; what the response is
    /// made of cannot be.
    pub fn cancel(&mut self, chain: u32) -> &mut Self {
        self.growth.cancel.push(chain);
        self
    }

    /// Asks to be called with these outputs once all of their chains have ended.
    pub fn watch(&mut self, outputs: Vec<OutputRef>) -> &mut Self {
        self.next().watch.extend(outputs);
        self
    }

    /// Asks to be called with these outputs every `steps` steps, without holding their chains up.
    pub fn watch_every(&mut self, steps: u32, outputs: Vec<OutputRef>) -> &mut Self {
        self.next().pace = Pace::Every(steps);
        self.watch(outputs)
    }

    /// Asks to be called with the session's next input. Tensors before that number are no longer needed; whoever keeps none says
    /// [`Request::end`](crate::Request::end).
    pub fn await_input(&mut self, keep_tensors_from: u32) -> &mut Self {
        self.next().keep_tensors_from = keep_tensors_from;
        self
    }

    /// An output that later growths may still refer to; all others are freed once they are consumed.
    pub fn keep(&mut self, output: OutputRef) -> &mut Self {
        self.next().keep.push(output);
        self
    }

    /// What the next call is to be handed.
    pub fn state(&mut self, state: Vec<u8>) -> &mut Self {
        self.next().state = state;
        self
    }

    fn next(&mut self) -> &mut Continuation {
        let nothing = || Continuation { watch: vec![], pace: Pace::All, keep: vec![], keep_tensors_from: 0, state: vec![] };
        self.growth.next.get_or_insert_with(nothing)
    }

    /// The growth.
    #[must_use]
    pub fn finish(self) -> Growth {
        self.growth
    }
}

/// Builds one chain. Inputs are given to the stage begun last.
#[must_use = "a chain is part of the graph once it is added"]
pub struct ChainBuilder<'g, 'c> {
    growth: &'g mut GrowthBuilder,
    cells: Vec<&'c Cell>,
    /// Of the stage begun last.
    sources: Vec<Option<Source>>,
    chain: Chain,
}

impl<'g, 'c> ChainBuilder<'g, 'c> {
    /// Begins the step's next stage. Its states start as zeros and feed themselves; its other inputs must be given.
    pub fn stage(mut self, cell: &'c Cell) -> Self {
        self.end_stage();
        let stage = number(self.cells.len());
        let own = cell.loops.iter().map(|&(output, input)| Feedback { stage, output, to_stage: stage, input });
        self.chain.feedback.extend(own);
        self.sources.extend(cell.inputs.iter().map(|(_, state)| state.then_some(Source::Zeros)));
        self.cells.push(cell);
        self
    }

    /// What an input of the stage sees at each step; for a state, at step 0.
    ///
    /// # Panics
    /// There is no stage yet, or its cell has no such input.
    pub fn input(mut self, name: &str, source: Source) -> Self {
        let input = self.cell().input(name);
        self.sources[input as usize] = Some(source);
        self
    }

    /// Step t takes, of the node that element t names, the output of that name of this chain's own last stage (all named nodes' cells have
    /// it at the same place).
    ///
    /// # Panics
    /// There is no stage yet, or its cell has no such input or output.
    pub fn nodes(self, name: &str, output: &str, of: Vec<Node>) -> Self {
        let (stage, output) = (number(self.cells.len() - 1), self.cell().output(output));
        self.input(name, Source::Nodes(Nodes { stage, output, of }))
    }

    /// In a session: it goes on where a chain of an earlier growth ended, or, without one, begins what
    /// later growths go on with. Rows of the earlier chain have numbers below 0, so windows and spans see
    /// them as if all were one chain. The newest `rows` rows are held. They must be enough for the
    /// chain's own steps and all rows before that its growth sees. What is to go on is kept
    /// ([`GrowthBuilder::keep`]).
    pub const fn series(mut self, rows: u32, before: Option<u32>) -> Self {
        self.chain.series = Some(match before {
            Some(chain) => Series::Continues(chain),
            None => Series::Begins(rows),
        });
        self
    }

    /// The stage's input sees an output of an earlier stage of the same step.
    ///
    /// # Panics
    /// There is no such input, stage or output.
    pub fn sibling(self, name: &str, stage: u32, output: &str) -> Self {
        let output = self.output_of(stage, output);
        self.input(name, Source::Sibling(Sibling { stage, output }))
    }

    /// An output of a stage of this chain. A window over it may see earlier steps, and the same step
    /// of an earlier stage.
    ///
    /// # Panics
    /// There is no such stage or output.
    #[must_use]
    pub fn own(&self, stage: u32, output: &str) -> OutputRef {
        let chain = self.growth.first + number(self.growth.growth.chains.len());
        OutputRef { chain, stage, output: self.output_of(stage, output) }
    }

    /// An output of one stage becomes, in the next step, an input of any stage: across stages, for states that do not feed themselves.
    ///
    /// # Panics
    /// There is no such stage, output or input, or the input is no state.
    pub fn feedback(mut self, (stage, output): (u32, &str), (to_stage, input): (u32, &str)) -> Self {
        let (output, input) = (self.output_of(stage, output), self.cells[to_stage as usize].state(input));
        self.chain.feedback.push(Feedback { stage, output, to_stage, input });
        self
    }

    /// The step in which this BOOL output of the stage begun last is true is the last.
    ///
    /// # Panics
    /// There is no such output.
    pub fn stop(mut self, output: &str) -> Self {
        let stage = number(self.cells.len() - 1);
        self.chain.stop = Some(Sibling { stage, output: self.cell().output(output) });
        self
    }

    /// Adds the chain to the graph.
    ///
    /// # Panics
    /// An input has no source.
    pub fn add(mut self) -> ChainHandle<'c> {
        self.end_stage();
        let handle = ChainHandle { number: self.growth.first + number(self.growth.growth.chains.len()), cells: self.cells };
        self.growth.growth.chains.push(self.chain);
        handle
    }

    fn end_stage(&mut self) {
        let Some(cell) = self.cells.last() else { return };
        let given = self.sources.drain(..).zip(&cell.inputs);
        let given =
            given.map(|(source, (name, _))| source.unwrap_or_else(|| panic!("input `{name}` of cell `{}` has no source", cell.name)));
        let inputs = given.collect();
        self.chain.stages.push(Stage { cell: cell.index, inputs });
    }

    fn cell(&self) -> &'c Cell {
        self.cells.last().expect("a chain's first call is `stage`")
    }

    fn output_of(&self, stage: u32, output: &str) -> u32 {
        self.cells[stage as usize].output(output)
    }
}

/// A chain of the graph.
#[derive(Clone, Debug)]
pub struct ChainHandle<'c> {
    /// Its number in the request.
    pub number: u32,
    cells: Vec<&'c Cell>,
}

impl ChainHandle<'_> {
    /// An output, of the last stage that has one of that name.
    ///
    /// # Panics
    /// No stage has one.
    #[must_use]
    pub fn output(&self, name: &str) -> OutputRef {
        let found = self.cells.iter().enumerate().rev().find_map(|(stage, cell)| Some((number(stage), cell.find_output(name)?)));
        let (stage, output) = found.unwrap_or_else(|| panic!("chain {} has no output `{name}`", self.number));
        OutputRef { chain: self.number, stage, output }
    }

    /// The node of one step.
    #[must_use]
    pub const fn node(&self, step: u32) -> Node {
        Node { chain: self.number, step }
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("a graph has fewer than 2³² chains")
}

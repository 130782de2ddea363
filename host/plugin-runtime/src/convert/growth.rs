//! A growth and a reaction. On every request's path: lists of plain numbers change owner without being copied.

use cellwright_cell_graph::graph::{
    Affine, Chain, Continuation, Extent, Feedback, Gathered, Growth, Node, OutputRef, Pace, Reaction, ResponseTensor, Series, Source, Span,
    SpanOf, Stage,
};

use super::{Budget, Unfit, tensor};
use crate::abi::types;
use crate::error::LimitReached;
use crate::limits::Limits;

pub(super) struct Converter<'a> {
    budget: Budget,
    limits: &'a Limits,
}

impl<'a> Converter<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        Self { budget: Budget::new(limits), limits }
    }

    pub(super) fn reaction(mut self, from: types::Reaction) -> Result<Reaction, Unfit> {
        self.budget.take(from.emit.len())?;
        let emit = from.emit.into_iter().map(tensor).collect::<Result<_, _>>()?;
        let growth = from.growth.map(|growth| self.growth(growth)).transpose()?;
        Ok(Reaction { emit, growth })
    }

    pub(super) fn growth(mut self, from: types::Growth) -> Result<Growth, Unfit> {
        if from.chains.len() > self.limits.chains {
            return Err(LimitReached::Chains(self.limits.chains).into());
        }
        self.budget.take(from.chains.len().saturating_add(from.outputs.len()).saturating_add(from.cancel.len()))?;
        Ok(Growth {
            chains: from.chains.into_iter().map(|chain| self.chain(chain)).collect::<Result<_, _>>()?,
            outputs: from.outputs.into_iter().map(|output| self.output(output)).collect::<Result<_, _>>()?,
            cancel: from.cancel,
            next: from.next.map(|next| self.continuation(next)).transpose()?,
        })
    }

    fn chain(&mut self, from: types::Chain) -> Result<Chain, Unfit> {
        self.budget.take(from.stages.len().saturating_add(from.feedback.len()))?;
        Ok(Chain {
            stages: from.stages.into_iter().map(|stage| self.stage(stage)).collect::<Result<_, _>>()?,
            length: match from.length {
                types::Extent::Fixed(steps) => Extent::Fixed(steps),
                types::Extent::Like(chain) => Extent::Like(chain),
            },
            feedback: from.feedback.into_iter().map(feedback).collect(),
            stop: from.stop.map(|stop| (stop.stage, stop.output)),
            series: from.series.map(|series| match series {
                types::Series::Begins(rows) => Series::Begins(rows),
                types::Series::Continues(chain) => Series::Continues(chain),
            }),
        })
    }

    fn stage(&mut self, from: types::Stage) -> Result<Stage, Unfit> {
        self.budget.take(from.inputs.len())?;
        let inputs = from.inputs.into_iter().map(|input| self.source(input)).collect::<Result<_, _>>()?;
        Ok(Stage { cell: from.cell, inputs })
    }

    fn source(&mut self, from: types::Source) -> Result<Source, Unfit> {
        Ok(match from {
            types::Source::Zeros => Source::Zeros,
            types::Source::Literal(value) => Source::Literal(tensor(value)?),
            types::Source::Ints(values) => {
                self.budget.take(values.len())?;
                Source::Ints(values)
            }
            types::Source::Index(at) => Source::Index(affine(at)),
            types::Source::Rows(rows) => Source::Rows { tensor: rows.tensor, at: affine(rows.at) },
            types::Source::Frames(rows) => Source::Frames { tensor: rows.tensor, at: affine(rows.at) },
            types::Source::Steps(steps) => Source::Steps { of: output(steps.of), at: affine(steps.at) },
            types::Source::Last(of) => Source::Last(output(of)),
            types::Source::Nodes(nodes) => {
                self.budget.take(nodes.of.len())?;
                // Both are two u32s: the list keeps its memory.
                let of = nodes.of.into_iter().map(|node| Node { chain: node.chain, step: node.step }).collect();
                Source::Nodes { stage: nodes.stage, output: nodes.output, of }
            }
            types::Source::Sibling(of) => Source::Sibling { stage: of.stage, output: of.output },
            types::Source::Many(spans) => {
                self.budget.take(spans.len())?;
                Source::Many(spans.into_iter().map(span).collect())
            }
        })
    }

    fn output(&mut self, from: types::ResponseTensor) -> Result<ResponseTensor, Unfit> {
        let gathered = match from.from {
            types::Gathered::Last(of) => Gathered::Last(output(of)),
            types::Gathered::All(of) => Gathered::All(output(of)),
            types::Gathered::Listed(list) => Gathered::Listed(self.outputs(list)?),
        };
        Ok(ResponseTensor { name: from.name, from: gathered, stream: from.stream })
    }

    fn outputs(&mut self, list: Vec<types::OutputRef>) -> Result<Vec<OutputRef>, Unfit> {
        self.budget.take(list.len())?;
        Ok(list.into_iter().map(output).collect())
    }

    fn continuation(&mut self, from: types::Continuation) -> Result<Continuation, Unfit> {
        if from.state.len() > self.limits.state_bytes {
            return Err(LimitReached::StateBytes(self.limits.state_bytes).into());
        }
        let pace = match from.pace {
            types::Pace::All => Pace::All,
            types::Pace::Every(steps) => Pace::Every(steps),
        };
        let (watch, keep) = (self.outputs(from.watch)?, self.outputs(from.keep)?);
        Ok(Continuation { watch, pace, keep, keep_tensors_from: from.keep_tensors_from, state: from.state })
    }
}

fn affine(from: types::Affine) -> Affine {
    Affine { first: from.first, stride: from.stride, from_end: from.from_end }
}

fn output(from: types::OutputRef) -> OutputRef {
    OutputRef { chain: from.chain, stage: from.stage, output: from.output }
}

fn span(from: types::Span) -> Span {
    let of = match from.of {
        types::SpanOf::Chain(of) => SpanOf::Chain(output(of)),
        types::SpanOf::Tensor(tensor) => SpanOf::Tensor(tensor),
    };
    Span { of, at: affine(from.at), every: from.every, count: from.count }
}

fn feedback(from: types::Feedback) -> Feedback {
    Feedback { stage: from.stage, output: from.output, to_stage: from.to_stage, input: from.input }
}

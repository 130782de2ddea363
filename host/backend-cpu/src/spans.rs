//! Cells with ragged inputs, compiled: ordinary plans over rows of nodes and rows of spans, and between them what sees whole spans
//! (`cellwright_cell_graph::hoist::by_span`).

use cellwright_backend::LoadError;
use cellwright_cell_graph::hoist::{self, BySpan, Feed, Half};
use cellwright_cell_graph::typed::{Compute, JoinedSpan};
use cellwright_cell_graph::{Datatype, TypedCell};

use crate::compiled::Body;
use crate::kernels::attention::{self, AttentionKernel, Head, Mask};
use crate::kernels::spans::{self, SpanKernel, SpanOp};
use crate::level::Level;

/// Everything of such a cell that runs before its rest.
#[derive(Debug)]
pub(crate) struct Spans {
    pub(crate) inputs: Vec<RaggedInput>,
    /// Spans that operations make. Their positions follow those of ragged inputs.
    pub(crate) joined: Vec<JoinedSpan>,
    /// What phases give, by number.
    pub(crate) values: Vec<KeptValue>,
    pub(crate) phases: Vec<Phase>,
}

/// A ragged input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RaggedInput {
    /// Which input of the cell.
    pub(crate) input: u32,
    /// The position among ragged inputs of the first that has as many rows.
    pub(crate) like: usize,
    pub(crate) row_bytes: usize,
    /// At what rows must be aligned to be read where they lie.
    pub(crate) alignment: usize,
}

/// A value that is kept from phase to phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptValue {
    pub(crate) row_bytes: usize,
    /// The span, by position, of which it has a row for each row.
    pub(crate) span: Option<usize>,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// Of rows of nodes, or of that span.
    Rows {
        span: Option<usize>,
        body: Body,
        gives: Vec<u32>,
    },
    Whole(Whole),
}

/// Where whole spans come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// A ragged input, by position.
    Input(usize),
    /// A kept value.
    Value(usize),
}

/// What sees whole spans.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) kind: WholeKind,
    /// The span, by position.
    pub(crate) span: usize,
    pub(crate) operands: Vec<Taken>,
    pub(crate) results: Vec<Option<usize>>,
}

#[derive(Debug)]
pub(crate) enum WholeKind {
    /// Rows of each operand behind those of the one before.
    Concat,
    /// A node's row, of so many bytes, for each row of its span.
    Repeat(usize),
    /// Rows of so many bytes of each span, as many as that, by their numbers.
    Gather {
        bytes: usize,
        count: usize,
    },
    Span {
        op: SpanOp,
        kernel: SpanKernel,
        width: usize,
        columns: usize,
    },
    Attention {
        head: Head,
        kernel: AttentionKernel,
        queries: usize,
        heads: usize,
        key_heads: usize,
        mask: (usize, usize),
    },
}

impl Spans {
    /// Compiles what runs before the rest of a cell, and that rest; none if it has no ragged input.
    pub(crate) fn compile(
        cell: &TypedCell,
        level: Level,
        body: &mut dyn FnMut(&Half) -> Result<Body, LoadError>,
    ) -> Result<Option<(Self, Body)>, LoadError> {
        let Some(BySpan { phases, values, step }) = hoist::by_span(cell) else { return Ok(None) };
        let ragged: Vec<u32> = (0..).zip(&cell.spans).filter(|(_, span)| span.is_some()).map(|(input, _)| input).collect();
        let position = |span: u32| match (span as usize).checked_sub(cell.inputs.len()) {
            Some(joined) => ragged.len() + joined,
            None => ragged.iter().position(|of| *of == span).unwrap_or_default(),
        };
        let joined = |span: &JoinedSpan| {
            let inputs = span.inputs.iter().map(|input| position(*input) as u32).collect();
            JoinedSpan { inputs, ..*span }
        };
        let input = |input: &u32| {
            let port = &cell.inputs[*input as usize];
            let size = port.datatype.size().unwrap_or(size_of::<u64>());
            let elements: usize = port.shape.iter().map(|extent| *extent as usize).product();
            let like = cell.spans[*input as usize].map_or(0, position);
            RaggedInput { input: *input, like, row_bytes: elements * size, alignment: size }
        };
        let kept = |value: &hoist::KeptValue| {
            let row_bytes = value.elements * value.datatype.size().unwrap_or(size_of::<u64>());
            KeptValue { row_bytes, span: value.span.map(position) }
        };
        let taken = |feed: &Feed| match feed {
            Feed::Own(input) => Taken::Input(position(*input)),
            Feed::Pre(number) => Taken::Value(*number as usize),
        };
        let mut compiled = Vec::with_capacity(phases.len());
        for phase in &phases {
            compiled.push(match phase {
                hoist::Phase::Rows { span, half, gives } => {
                    Phase::Rows { span: span.map(position), body: body(half)?, gives: gives.clone() }
                }
                hoist::Phase::Whole(whole) => Phase::Whole(Whole {
                    kind: kind(whole, level).ok_or_else(|| unsupported(cell, whole))?,
                    span: position(whole.span),
                    operands: whole.operands.iter().map(taken).collect(),
                    results: whole.results.iter().map(|result| result.map(|number| number as usize)).collect(),
                }),
            });
        }
        let own = Self {
            inputs: ragged.iter().map(input).collect(),
            joined: cell.joined.iter().map(joined).collect(),
            values: values.iter().map(kept).collect(),
            phases: compiled,
        };
        Ok(Some((own, body(&step)?)))
    }

    /// Bytes that are held for each row of a span, with what computes it.
    pub(crate) fn row_bytes(&self, threads: usize) -> usize {
        let kept = self.values.iter().filter(|value| value.span.is_some()).map(|value| value.row_bytes).sum::<usize>();
        let frame = |phase: &Phase| match phase {
            Phase::Rows { span: Some(_), body, .. } => body.plan.frame_row_bytes(threads),
            _ => 0,
        };
        kept + self.phases.iter().map(frame).max().unwrap_or(0)
    }

    /// Rows of all spans of a node, whose ragged inputs have so many.
    pub(crate) fn rows(&self, of: impl Fn(&RaggedInput) -> u64) -> u64 {
        let first_of_kind = self.inputs.iter().enumerate().filter(|(position, input)| input.like == *position);
        let of_joined =
            |joined: &JoinedSpan| joined.rows as u64 + joined.inputs.iter().map(|input| of(&self.inputs[*input as usize])).sum::<u64>();
        first_of_kind.map(|(_, input)| of(input)).sum::<u64>() + self.joined.iter().map(of_joined).sum::<u64>()
    }

    pub(crate) fn bodies(&self) -> impl Iterator<Item = &Body> {
        self.phases.iter().filter_map(|phase| if let Phase::Rows { body, .. } = phase { Some(body) } else { None })
    }
}

fn unsupported(cell: &TypedCell, whole: &hoist::Whole) -> LoadError {
    let what = format!("{:?} of {}", whole.compute, whole.datatypes.first().copied().unwrap_or(Datatype::Fp32));
    LoadError::Unsupported { cell: cell.name.clone(), device: "the CPU worker".to_owned(), what }
}

fn kind(whole: &hoist::Whole, level: Level) -> Option<WholeKind> {
    let elements = |operand: usize| whole.shapes.get(operand).map_or(1, |shape| shape.iter().product::<usize>());
    let span = |op: SpanOp, columns: usize| WholeKind::Span { op, kernel: spans::kernel(level), width: elements(0), columns };
    let kind = match &whole.compute {
        Compute::SpanConcat => return Some(WholeKind::Concat),
        Compute::Repeat => return Some(WholeKind::Repeat(elements(0) * whole.datatypes.first()?.size()?)),
        Compute::SpanGather => {
            return Some(WholeKind::Gather { bytes: elements(0) * whole.datatypes.first()?.size()?, count: elements(1) });
        }
        Compute::SpanReduce(kind) => span(SpanOp::Reduce(*kind), 1),
        Compute::SpanSoftmax { log } => span(SpanOp::Softmax { log: *log }, 1),
        Compute::SpanCumSum { exclusive, reverse } => span(SpanOp::CumSum { exclusive: *exclusive, reverse: *reverse }, 1),
        Compute::SpanArgMax { select_last } => span(SpanOp::ArgMax { last: *select_last }, 1),
        Compute::SpanTopK { k, largest } => span(SpanOp::TopK { k: *k as usize, largest: *largest }, 1),
        Compute::SpanMatMul => span(SpanOp::MatMul, *whole.shapes.get(1)?.get(1)?),
        Compute::SpanMix => span(SpanOp::Mix, elements(1)),
        Compute::Attention { heads, key_heads, scale, softcap } => {
            let (heads, key_heads) = (*heads as usize, *key_heads as usize);
            let (queries, depth) = (*whole.shapes.first()?.first()?, elements(1) / key_heads);
            let (mask, shape) = match (whole.datatypes.get(3), whole.shapes.get(3)) {
                (Some(Datatype::Fp32), Some(shape)) => (Mask::Floats, (*shape.first()?, *shape.get(1)?)),
                (Some(Datatype::Bool), Some(shape)) => (Mask::Truths, (*shape.first()?, *shape.get(1)?)),
                _ => (Mask::None, (1, 1)),
            };
            let head = Head { depth, size: elements(2) / key_heads, scale: *scale, softcap: *softcap, mask };
            return Some(WholeKind::Attention { head, kernel: attention::kernel(level), queries, heads, key_heads, mask: shape });
        }
        _ => return None,
    };
    // The others are of floats.
    (whole.datatypes.first() == Some(&Datatype::Fp32)).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_joined_spans_are_counted_beside_those_that_they_are_made_of() {
        let input = |input: u32, like| RaggedInput { input, like, row_bytes: 4, alignment: 4 };
        let inputs = vec![input(1, 0), input(2, 0), input(5, 2)];
        let spans = Spans { inputs, joined: vec![JoinedSpan { inputs: vec![0, 2, 2], rows: 3 }], values: Vec::new(), phases: Vec::new() };
        assert_eq!(spans.rows(|input| if input.input < 5 { 10 } else { 7 }), 10 + 7 + (10 + 7 + 7 + 3));
    }
}

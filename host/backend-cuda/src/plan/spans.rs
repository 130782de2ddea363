//! Cells with ragged inputs: plans over rows of nodes and rows of spans, and between them what sees whole spans
//! (`cellwright_cell_graph::hoist::by_span`).

use cellwright_backend::LoadError;
use cellwright_cell_graph::hoist::{self, BySpan, Feed, Half};
use cellwright_cell_graph::typed::{Compute, JoinedSpan, ReduceKind};
use cellwright_cell_graph::{Datatype, TypedCell};

use crate::abi::{AttentionArguments, SpanArguments, flag, mask, span};

/// Everything of such a cell that runs before its rest. A body is what runs rows.
#[derive(Debug)]
pub(crate) struct Spans<Body> {
    pub(crate) inputs: Vec<RaggedInput>,
    /// Spans that operations make, of positions of ragged inputs. Their positions follow those.
    pub(crate) joined: Vec<JoinedSpan>,
    /// What phases give, by number.
    pub(crate) values: Vec<KeptValue>,
    pub(crate) phases: Vec<Phase<Body>>,
    /// Where the inputs of the rest come from.
    pub(crate) feeds: Vec<Feed>,
    /// The most rows that a node's span has.
    pub(crate) rows_most: usize,
}

/// A ragged input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RaggedInput {
    /// Which input of the cell.
    pub(crate) input: usize,
    pub(crate) row_bytes: usize,
}

/// A value that is kept from phase to phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptValue {
    pub(crate) row_bytes: usize,
    /// The span, by position, of which it has a row for each row.
    pub(crate) span: Option<usize>,
}

#[derive(Debug)]
pub(crate) enum Phase<Body> {
    /// Of rows of nodes, or of that span.
    Rows {
        span: Option<usize>,
        body: Body,
        feeds: Vec<Feed>,
        gives: Vec<usize>,
    },
    Whole(Whole),
}

/// What sees whole spans.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    pub(crate) kind: WholeKind,
    /// By operand of the kernel.
    pub(crate) operands: Vec<Taken>,
    /// By result of the kernel.
    pub(crate) results: Vec<Option<usize>>,
}

/// Where whole spans come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// A ragged input, by position.
    Input(usize),
    /// A kept value.
    Value(usize),
    /// How many rows a span has, by position, and nothing of them.
    Rows(usize),
}

/// A launch that knows everything but where things lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WholeKind {
    Span(SpanArguments),
    Attention(AttentionArguments),
    /// Rows of each operand behind those of the one before, by a launch for each.
    Concat,
}

impl Whole {
    /// Whether rows of it may be refused.
    pub(crate) const fn may_refuse(&self) -> bool {
        matches!(self.kind, WholeKind::Span(SpanArguments { op: span::GATHER | span::TOP, .. }))
    }
}

impl<Body> Spans<Body> {
    /// Compiles what runs before the rest of a cell, and that rest; none if it has no ragged input.
    pub(crate) fn compile(
        cell: &TypedCell,
        body: &mut dyn FnMut(Half) -> Result<Body, LoadError>,
    ) -> Result<Option<(Self, Body)>, LoadError> {
        let Some(BySpan { phases, values, step }) = hoist::by_span(cell) else { return Ok(None) };
        let ragged: Vec<usize> = (0..cell.spans.len()).filter(|input| cell.spans[*input].is_some()).collect();
        let position = |span: u32| match (span as usize).checked_sub(cell.inputs.len()) {
            Some(joined) => ragged.len() + joined,
            None => ragged.iter().position(|of| *of == span as usize).unwrap_or_default(),
        };
        let joined = |span: &JoinedSpan| {
            let inputs = span.inputs.iter().map(|input| position(*input) as u32).collect();
            JoinedSpan { inputs, ..*span }
        };
        let input = |input: &usize| {
            let port = &cell.inputs[*input];
            let elements: usize = port.shape.iter().map(|extent| *extent as usize).product();
            RaggedInput { input: *input, row_bytes: elements * bytes_of(port.datatype) }
        };
        let kept =
            |value: &hoist::KeptValue| KeptValue { row_bytes: value.elements * bytes_of(value.datatype), span: value.span.map(position) };
        let mut compiled = Vec::with_capacity(phases.len());
        for phase in phases {
            compiled.push(match phase {
                hoist::Phase::Rows { span, mut half, gives } => {
                    let (feeds, gives) = (std::mem::take(&mut half.feeds), gives.iter().map(|value| *value as usize).collect());
                    Phase::Rows { span: span.map(position), body: body(half)?, feeds, gives }
                }
                hoist::Phase::Whole(whole) => Phase::Whole(of_whole(&whole, &position).ok_or_else(|| {
                    let what = format!("{:?} of {}", whole.compute, whole.datatypes.first().copied().unwrap_or(Datatype::Fp32));
                    LoadError::Unsupported { cell: cell.name.clone(), device: "the CUDA worker".to_owned(), what }
                })?),
            });
        }
        let mut step = step;
        let feeds = std::mem::take(&mut step.feeds);
        let inputs = ragged.iter().map(input).collect();
        let (joined, values) = (cell.joined.iter().map(joined).collect(), values.iter().map(kept).collect());
        Ok(Some((Self { inputs, joined, values, phases: compiled, feeds, rows_most: cell.span_rows_most() as usize }, body(step)?)))
    }

    /// The same with other bodies.
    pub(crate) fn map<Other, Error>(self, of: &mut dyn FnMut(Body) -> Result<Other, Error>) -> Result<Spans<Other>, Error> {
        let Self { inputs, joined, values, phases, feeds, rows_most } = self;
        let phase = |phase: Phase<Body>| {
            Ok(match phase {
                Phase::Rows { span, body, feeds, gives } => Phase::Rows { span, body: of(body)?, feeds, gives },
                Phase::Whole(whole) => Phase::Whole(whole),
            })
        };
        Ok(Spans { inputs, joined, values, phases: phases.into_iter().map(phase).collect::<Result<_, _>>()?, feeds, rows_most })
    }

    /// Adds how many rows joined spans have of so many nodes, to how many ragged inputs have of all of them.
    pub(crate) fn with_joined(&self, nodes: usize, mut rows: Vec<usize>) -> Vec<usize> {
        for joined in &self.joined {
            rows.push(nodes * joined.rows + joined.inputs.iter().map(|input| rows[*input as usize]).sum::<usize>());
        }
        rows
    }

    /// What runs rows before the rest.
    pub(crate) fn bodies(&self) -> impl Iterator<Item = &Body> {
        self.phases.iter().filter_map(|phase| if let Phase::Rows { body, .. } = phase { Some(body) } else { None })
    }
}

fn bytes_of(datatype: Datatype) -> usize {
    datatype.size().unwrap_or(size_of::<u64>())
}

/// None if no kernel has it.
fn of_whole(whole: &hoist::Whole, position: &dyn Fn(u32) -> usize) -> Option<Whole> {
    let taken = |feed: &Feed| match feed {
        Feed::Own(input) => Taken::Input(position(*input)),
        Feed::Pre(number) => Taken::Value(*number as usize),
    };
    let mut operands: Vec<Taken> = whole.operands.iter().map(taken).collect();
    let mut results: Vec<Option<usize>> = whole.results.iter().map(|result| result.map(|number| number as usize)).collect();
    let elements = |operand: usize| whole.shapes.get(operand).map_or(1, |shape| shape.iter().product::<usize>());
    let number = |number: usize| u32::try_from(number).ok();
    let bytes = number(elements(0) * bytes_of(*whole.datatypes.first()?))?;
    let of_bytes = |op: u32, k: usize| Some(SpanArguments { op, width: bytes, k: number(k)?, ..SpanArguments::default() });
    let arguments = match &whole.compute {
        // The kernel has the span first.
        Compute::Repeat => {
            operands.insert(0, Taken::Rows(position(whole.span)));
            of_bytes(span::REPEAT, 0)?
        }
        Compute::SpanConcat => return Some(Whole { kind: WholeKind::Concat, operands, results }),
        Compute::SpanGather => of_bytes(span::GATHER, elements(1))?,
        _ if whole.datatypes.first() != Some(&Datatype::Fp32) => return None,
        Compute::Attention { heads, key_heads, scale, softcap } => {
            let (kind, mask_shape) = match (whole.datatypes.get(3), whole.shapes.get(3)) {
                (None, _) => (mask::NONE, None),
                (Some(Datatype::Fp32), shape) => (mask::FLOATS, shape),
                (Some(Datatype::Bool), shape) => (mask::TRUTHS, shape),
                _ => return None,
            };
            let extent = |axis: usize| mask_shape.map_or(Some(1), |shape| number(*shape.get(axis)?));
            let of_head = |operand: usize| number(elements(operand) / *key_heads as usize);
            let kind = WholeKind::Attention(AttentionArguments {
                query_count: number(*whole.shapes.first()?.first()?)?,
                heads: *heads,
                key_heads: *key_heads,
                depth: of_head(1)?,
                size: of_head(2)?,
                mask: kind,
                mask_heads: extent(0)?,
                mask_queries: extent(1)?,
                scale: *scale,
                softcap: *softcap,
                ..AttentionArguments::default()
            });
            return Some(Whole { kind, operands, results });
        }
        compute => {
            let flags = |flags: &[(bool, u32)]| flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
            let (op, flags, columns, k) = match compute {
                Compute::SpanReduce(ReduceKind::Sum) => (span::SUM, 0, 1, 1),
                Compute::SpanReduce(ReduceKind::Mean) => (span::MEAN, 0, 1, 1),
                Compute::SpanReduce(ReduceKind::Max) => (span::MAX, 0, 1, 1),
                Compute::SpanSoftmax { log } => (if *log { span::LOG_SOFTMAX } else { span::SOFTMAX }, 0, 1, 1),
                Compute::SpanCumSum { exclusive, reverse } => {
                    (span::CUM_SUM, flags(&[(*exclusive, flag::EXCLUSIVE), (*reverse, flag::REVERSE)]), 1, 1)
                }
                Compute::SpanArgMax { select_last } => {
                    // Positions are the kernel's second result.
                    results.insert(0, None);
                    (span::TOP, flags(&[(*select_last, flag::LAST)]), 1, 1)
                }
                Compute::SpanTopK { k, largest } => (span::TOP, flags(&[(!*largest, flag::SMALLEST)]), 1, *k),
                Compute::SpanMatMul => (span::MAT_MUL, 0, number(*whole.shapes.get(1)?.get(1)?)?, 1),
                Compute::SpanMix => (span::MIX, 0, number(elements(1))?, 1),
                _ => return None,
            };
            SpanArguments { op, flags, width: number(elements(0))?, columns, k, ..SpanArguments::default() }
        }
    };
    Some(Whole { kind: WholeKind::Span(arguments), operands, results })
}

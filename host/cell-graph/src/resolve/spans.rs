//! Operators that see rows of a span together, and what leads from rows of nodes to rows of spans.

use super::error::CellFault;
use super::operator::{Call, narrow};
use super::reshape::with_extents;
use super::scope::Span;
use crate::datatype::Datatype;
use crate::typed::{BinaryKind, Compute, ValueId};

/// A result that left a span, in whose place an axis of extent 1 is kept, or none.
pub(super) fn keep_axis(call: &mut Call<'_, '_>, span: Span, id: ValueId, keep: bool) -> Result<Vec<ValueId>, CellFault> {
    let mut extents = call.extents(id);
    if keep {
        extents.insert(span.axis.min(extents.len()), Some(1));
    }
    with_extents(call, id, &extents)
}

/// An operand of an operation on rows of rank `rank`, of which an axis is ragged: without that axis, in which others than ragged ones have an extent of 1,
/// and a row for each row of the span.
pub(super) fn repeat(call: &mut Call<'_, '_>, id: ValueId, span: Span, rank: usize) -> Result<ValueId, CellFault> {
    if call.scope.span(id).is_some() {
        return Ok(id);
    }
    let value = call.value(id);
    let (batched, datatype, mut shape) = (value.batched, value.datatype, value.shape.clone());
    // Shapes of constants are aligned at the right.
    let at = (span.axis + shape.len()).checked_sub(rank);
    if let Some(at) = at
        && shape.remove(at) != 1
    {
        return Err(CellFault::RaggedAxis { axis: span.axis as i64 + 1, how: "an input with one extent for all nodes must have 1 there" });
    }
    if !batched {
        return call.scope.reshape_constant(id, shape);
    }
    let flat = call.one(Compute::Reshape, vec![id], (datatype, shape.clone()))?;
    Ok(call.one_in(Some(span), Compute::Repeat, flat, (datatype, shape))?[0])
}

pub(super) fn top_k(call: &mut Call<'_, '_>, operand: ValueId, k: i64, largest: bool) -> Result<Vec<ValueId>, CellFault> {
    let Some(count) = u32::try_from(k).ok().filter(|count| (1..=MOST).contains(count)) else {
        return Err(CellFault::Limit { what: "rows in k", count: k.unsigned_abs(), limit: MOST.into() });
    };
    let shape: Vec<usize> = std::iter::once(count as usize).chain(call.value(operand).shape.iter().copied()).collect();
    let axis = call.scope.span(operand).map_or(0, |span| span.axis);
    let results = vec![(Datatype::Fp32, shape.clone()), (Datatype::Int64, shape)];
    let found = call.scope.emit(Compute::SpanTopK { k: count, largest }, vec![operand], results)?;
    if axis > 0 {
        return Err(CellFault::RaggedAxis { axis: axis as i64 + 1, how: "TopK takes it as the first of a row alone" });
    }
    Ok(found)
}

/// Rows that TopK gives of a span, at most.
const MOST: u32 = 1024;

/// Rows of a span by number: ONNX's GatherND with `batch_dims` 1 and indices of one component.
pub(super) fn gather(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(2, 2)?;
    if call.attributes.int("batch_dims")? != Some(1) {
        return Err(CellFault::AttributeType { name: "batch_dims", wanted: "1: each node has rows and indices of its own" });
    }
    let data = call.batched(0, &Datatype::ALL, "any datatype")?;
    let Some((None, row)) = call.extents(data).split_first().map(|(first, row)| (*first, row.to_vec())) else {
        return Err(CellFault::NotRagged { input: 0 });
    };
    let index = call.batched(1, &[Datatype::Int64], "INT64")?;
    call.no_span(1)?;
    let Some((1, numbers)) = call.value(index).shape.split_last().map(|(last, numbers)| (*last, numbers.to_vec())) else {
        return Err(CellFault::InputShape { input: 1, given: call.text(index), wanted: "indices are [N, .., 1]" });
    };
    let shape = numbers.into_iter().chain(row.into_iter().flatten()).collect();
    let datatype = call.value(data).datatype;
    call.one(Compute::SpanGather, vec![data, index], (datatype, shape))
}

/// Along the ragged axis of that operand.
pub(super) fn concat(call: &mut Call<'_, '_>, mut operands: Vec<ValueId>, ragged: ValueId) -> Result<Vec<ValueId>, CellFault> {
    if operands.len() == 1 {
        return Ok(operands);
    }
    let span = call.scope.span(ragged).ok_or(CellFault::SpanAxes)?;
    let (datatype, shape) = (call.value(ragged).datatype, call.value(ragged).shape.clone());
    let (mut spans, mut rows) = (Vec::new(), 0);
    for (input, operand) in operands.iter_mut().enumerate() {
        call.batched(input, &Datatype::ALL, "any datatype")?;
        let other = call.value(*operand).datatype;
        if other != datatype {
            return Err(CellFault::DatatypesDiffer { left: datatype, right: other });
        }
        let mut extents = call.extents(*operand);
        if call.scope.span(*operand).is_some_and(|own| own.axis != span.axis) {
            return Err(CellFault::SpanAxes);
        }
        let own = (span.axis < extents.len()).then(|| extents.remove(span.axis));
        if own.is_none() || !extents.iter().copied().eq(shape.iter().copied().map(Some)) {
            return Err(CellFault::ShapesDiffer { left: call.text(ragged), right: call.text(*operand) });
        }
        spans.extend(call.scope.span(*operand));
        let Some(Some(own)) = own else { continue };
        if own > 1 && shape[..span.axis].iter().any(|extent| *extent > 1) {
            return Err(CellFault::RaggedAxis {
                axis: span.axis as i64 + 1,
                how: "of a node one row alone joins it there: move it to axis 1 for more",
            });
        }
        rows += own;
        extents.insert(0, Some(own));
        *operand = with_extents(call, *operand, &extents)?[0];
    }
    let joined = call.scope.concat(&spans, rows)?;
    call.one_in(Some(joined), Compute::SpanConcat, operands, (datatype, shape))
}

pub(super) fn cumulative_sum(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 2)?;
    let exclusive = call.attributes.truth("exclusive", false)?;
    let reverse = call.attributes.truth("reverse", false)?;
    let axis = match call.parameter("axis", 1)?.as_deref() {
        Some([axis]) => *axis,
        Some(_) => return Err(CellFault::AttributeType { name: "axis", wanted: "one integer" }),
        None => return Err(CellFault::AttributeMissing { name: "axis" }),
    };
    let operand = call.floats(0)?;
    if call.axis(operand, axis)?.is_some() {
        return Err(CellFault::Unusable { what: "it sums along a ragged axis only" });
    }
    let shape = call.value(operand).shape.clone();
    call.one(Compute::SpanCumSum { exclusive, reverse }, vec![operand], (Datatype::Fp32, shape))
}

/// Of ragged values, whose other axes stay in order: only what is said of their axes changes.
pub(super) fn transpose(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(1, 1)?;
    let Some(order) = call.attributes.ints("perm")? else { return Err(CellFault::AttributeMissing { name: "perm" }) };
    let id = call.batched(0, &Datatype::ALL, "any datatype")?;
    if call.scope.span(id).is_none() {
        return Err(CellFault::NotRagged { input: 0 });
    }
    let extents = call.extents(id);
    let wrong = || CellFault::AttributeType { name: "perm", wanted: "0 and then each other axis once" };
    let Some((0, rest)) = order.split_first() else { return Err(wrong()) };
    if Call::row_axes(rest, extents.len())?.len() != extents.len() {
        return Err(wrong());
    }
    let order: Vec<usize> = rest.iter().map(|axis| Call::row_axis(*axis, extents.len())).collect::<Result<_, _>>()?;
    let fixed: Vec<usize> = order.iter().copied().filter(|axis| extents[*axis].is_some()).collect();
    if !fixed.is_sorted() {
        return Err(CellFault::Unusable { what: "it moves the ragged axis only; others must stay in order" });
    }
    let moved: Vec<Option<usize>> = order.into_iter().map(|axis| extents[axis]).collect();
    with_extents(call, id, &moved)
}

/// A product of two values of each node, of which one at least is ragged.
pub(super) fn matmul(call: &mut Call<'_, '_>, a: ValueId, b: ValueId) -> Result<Vec<ValueId>, CellFault> {
    [0, 1].into_iter().try_for_each(|input| call.datatype(input, &[Datatype::Fp32], "FP32").map(drop))?;
    let (left, right) = (call.extents(a), call.extents(b));
    let fault = || CellFault::ShapesDiffer { left: call.text(a), right: call.text(b) };
    match (&left[..], &right[..]) {
        // Scores, a row of them for each of the span.
        ([None, Some(k)], [Some(depth), Some(width)]) if k == depth => {
            call.one(Compute::SpanMatMul, vec![a, b], (Datatype::Fp32, vec![*width]))
        }
        // The same turned: rows of q with columns of a span. It is written down as rows of the span.
        ([Some(rows), Some(k)], [Some(depth), None]) if k == depth => {
            let (rows, depth) = (*rows, *depth);
            let span = call.scope.span(b);
            if rows == 1 {
                let column = call.one(Compute::Reshape, vec![a], (Datatype::Fp32, vec![depth, 1]))?[0];
                return call.one_in(span, Compute::SpanMatMul, vec![b, column], (Datatype::Fp32, vec![1]));
            }
            Err(CellFault::Unusable { what: "a product with a turned span takes one row on its left: write it as the span times columns" })
        }
        // Rows of a span, weighted and added up.
        ([Some(p), None], [None, Some(q)]) => {
            let (shape, rows) = (vec![*p, *q], [None, Some(*p)]);
            // What counts is the order of the rows: the axis is said to be the first.
            let a = with_extents(call, a, &rows)?[0];
            call.one(Compute::SpanMix, vec![a, b], (Datatype::Fp32, shape))
        }
        _ => Err(fault()),
    }
}

pub(super) fn attention(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(3, 4)?;
    let heads = |value: Option<i64>| value.and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
    let query_heads = heads(call.attributes.int("q_num_heads")?).ok_or(CellFault::AttributeMissing { name: "q_num_heads" })?;
    let key_heads = heads(call.attributes.int("kv_num_heads")?).ok_or(CellFault::AttributeMissing { name: "kv_num_heads" })?;
    let scale = call.attributes.float("scale", 0.0)?;
    let softcap = call.attributes.float("softcap", 0.0)?;
    if call.attributes.truth("is_causal", false)? {
        return Err(CellFault::Unusable { what: "which rows it sees is said by the span, not by `is_causal`" });
    }
    if !matches!(call.attributes.int("qk_matmul_output_mode")?, None | Some(0)) {
        return Err(CellFault::AttributeType { name: "qk_matmul_output_mode", wanted: "0: scores are no output" });
    }
    if !matches!(call.attributes.int("softmax_precision")?, None | Some(1)) {
        return Err(CellFault::AttributeType { name: "softmax_precision", wanted: "1 (FP32)" });
    }
    if softcap < 0.0 {
        return Err(CellFault::AttributeType { name: "softcap", wanted: "at least 0" });
    }
    if query_heads % key_heads != 0 {
        return Err(CellFault::AttributeType { name: "q_num_heads", wanted: "a multiple of kv_num_heads" });
    }
    let [q, k, v] = [call.floats(0)?, call.floats(1)?, call.floats(2)?];
    call.no_span(0)?;
    let [rows, width] = call.value(q).shape[..] else {
        return Err(CellFault::InputShape { input: 0, given: call.text(q), wanted: "Attention takes [N, rows, heads · size]" });
    };
    let mut sizes = [0; 2];
    for (input, size) in [1, 2].into_iter().zip(&mut sizes) {
        let id = call.input(input)?;
        let wanted = "Attention takes [N, ragged, heads · size]";
        match call.extents(id)[..] {
            [None, Some(all)] if all % key_heads == 0 => *size = all / key_heads,
            [None, Some(_)] => {
                return Err(CellFault::InputShape { input, given: call.text(id), wanted: "its heads must divide its width" });
            }
            _ => return Err(CellFault::InputShape { input, given: call.text(id), wanted }),
        }
    }
    let [depth, value_size] = sizes;
    if width != query_heads * depth {
        return Err(CellFault::ShapesDiffer { left: call.text(q), right: call.text(k) });
    }
    let mut operands = vec![q, k, v];
    if let Some(mask) = call.optional(3) {
        operands.push(self::mask(call, mask, (query_heads, rows))?);
    }
    let scale = if scale == 0.0 { 1.0 / (depth as f32).sqrt() } else { scale };
    let compute = Compute::Attention { heads: narrow(query_heads), key_heads: narrow(key_heads), scale, softcap };
    call.one(compute, operands, (Datatype::Fp32, vec![rows, query_heads * value_size]))
}

/// A mask with a row for each row of the span, said to be ragged along the first axis.
fn mask(call: &mut Call<'_, '_>, mask: ValueId, (heads, rows): (usize, usize)) -> Result<ValueId, CellFault> {
    call.datatype(3, &[Datatype::Fp32, Datatype::Bool], "FP32 or BOOL")?;
    match call.extents(mask)[..] {
        [Some(h), Some(l), None] if (h == 1 || h == heads) && (l == 1 || l == rows) => {
            Ok(with_extents(call, mask, &[None, Some(h), Some(l)])?[0])
        }
        _ => Err(CellFault::InputShape { input: 3, given: call.text(mask), wanted: "a mask is [N, heads or 1, rows or 1, ragged]" }),
    }
}

/// Composed of what other operators compute: halves of each head are turned by the angles whose cosines and sines are given.
pub(super) fn rotary(call: &mut Call<'_, '_>) -> Result<Vec<ValueId>, CellFault> {
    call.arity(3, 4)?;
    let interleaved = call.attributes.truth("interleaved", false)?;
    let heads = call.attributes.int("num_heads")?;
    let turned = call.attributes.int("rotary_embedding_dim")?;
    let x = call.floats(0)?;
    [1, 2].into_iter().try_for_each(|input| call.datatype(input, &[Datatype::Fp32], "FP32").map(drop))?;
    let shape = call.value(x).shape.clone();
    let wanted = "RotaryEmbedding takes [N, rows, heads · size], and num_heads";
    let shaped = || CellFault::InputShape { input: 0, given: call.text(x), wanted };
    let heads = heads.and_then(|heads| usize::try_from(heads).ok()).filter(|heads| *heads > 0);
    let (Some(heads), Some((width, lead)), 2) = (heads, shape.split_last(), call.extents(x).len()) else { return Err(shaped()) };
    let size = width / heads;
    let turned = match turned {
        None | Some(0) => size,
        Some(turned) => usize::try_from(turned).unwrap_or(usize::MAX),
    };
    if size * heads != *width || turned == 0 || turned > size || turned % 2 == 1 {
        return Err(CellFault::AttributeType { name: "rotary_embedding_dim", wanted: "even, and at most a head's size" });
    }
    let angles = [1, 2].map(|input| angles(call, input, (x, turned / 2)));
    let [cosines, sines] = [angles[0].clone()?, angles[1].clone()?];
    let mut rotary = Rotary { call, lead: lead.to_vec(), heads, of: x };
    let by_head = rotary.shaped(x, &[heads, size])?;
    let cut = |start: usize, step: i32| Compute::Slice { axes: vec![(narrow(lead.len() + 1), narrow(start), step)] };
    let (second, step) = if interleaved { (1, 2) } else { (turned / 2, 1) };
    let first = rotary.make(cut(0, step), vec![by_head], &[heads, turned / 2])?;
    let second = rotary.make(cut(second, step), vec![by_head], &[heads, turned / 2])?;
    let mut times = |one, other| rotary.make(Compute::Binary(BinaryKind::Mul), vec![one, other], &[heads, turned / 2]);
    let [a, b, c, d] = [times(cosines, first)?, times(sines, second)?, times(sines, first)?, times(cosines, second)?];
    let real = rotary.make(Compute::Binary(BinaryKind::Sub), vec![a, b], &[heads, turned / 2])?;
    let imaginary = rotary.make(Compute::Binary(BinaryKind::Add), vec![c, d], &[heads, turned / 2])?;
    let mut parts = if interleaved {
        let [real, imaginary] = [rotary.shaped(real, &[heads, turned / 2, 1])?, rotary.shaped(imaginary, &[heads, turned / 2, 1])?];
        let axis = narrow(lead.len() + 2);
        let pairs = rotary.make(Compute::Concat { axis }, vec![real, imaginary], &[heads, turned / 2, 2])?;
        vec![rotary.shaped(pairs, &[heads, turned])?]
    } else {
        vec![real, imaginary]
    };
    if turned < size {
        parts.push(rotary.make(cut(turned, 1), vec![by_head], &[heads, size - turned])?);
    }
    let whole = match parts[..] {
        [one] => one,
        _ => rotary.make(Compute::Concat { axis: narrow(lead.len() + 1) }, parts, &[heads, size])?,
    };
    Ok(vec![rotary.shaped(whole, &[heads * size])?])
}

/// Values like those of an operand, behind its leading extents.
struct Rotary<'c, 's, 'a> {
    call: &'c mut Call<'s, 'a>,
    lead: Vec<usize>,
    heads: usize,
    of: ValueId,
}

impl Rotary<'_, '_, '_> {
    fn make(&mut self, compute: Compute, operands: Vec<ValueId>, shape: &[usize]) -> Result<ValueId, CellFault> {
        debug_assert!(shape[0] == self.heads || shape.len() == 1, "heads stand behind the leading extents");
        let span = self.call.scope.span(self.of);
        let shape = self.lead.iter().chain(shape).copied().collect();
        Ok(self.call.one_in(span, compute, operands, (Datatype::Fp32, shape))?[0])
    }

    fn shaped(&mut self, id: ValueId, shape: &[usize]) -> Result<ValueId, CellFault> {
        self.make(Compute::Reshape, vec![id], shape)
    }
}

/// Cosines or sines `[rows, 1, half]` for a value `[rows, ..]`: those of its positions, or given as such.
fn angles(call: &mut Call<'_, '_>, input: usize, (x, half): (ValueId, usize)) -> Result<ValueId, CellFault> {
    let table = call.input(input)?;
    let lead = call.value(x).shape.split_last().map_or(0, |(_, lead)| lead.len());
    let rows: Vec<usize> = call.value(x).shape[..lead].to_vec();
    let wanted = "it must be a table [positions, half a head's size], or without positions [N, rows, half a head's size]";
    let fault = |call: &Call<'_, '_>| CellFault::InputShape { input, given: call.text(table), wanted };
    let found = match call.optional(3) {
        Some(_) => {
            let positions = call.batched(3, &[Datatype::Int32, Datatype::Int64], "INT32 or INT64")?;
            call.constant(input)?;
            if !matches!(call.value(table).shape[..], [_, width] if width == half) {
                return Err(fault(call));
            }
            if call.value(positions).shape != rows || call.scope.span(positions).is_some() != call.scope.span(x).is_some() {
                return Err(CellFault::InputShape { input: 3, given: call.text(positions), wanted: "it has a position for each row" });
            }
            let shape = rows.iter().copied().chain([half]).collect();
            call.one(Compute::Gather, vec![table, positions], (Datatype::Fp32, shape))?[0]
        }
        None => {
            let is_like = call.scope.span(table).is_some() == call.scope.span(x).is_some();
            let fits = call.value(table).shape.split_last() == Some((&half, &rows[..]));
            if !(call.value(table).batched && is_like && fits) {
                return Err(fault(call));
            }
            table
        }
    };
    call.scope.join(&[x, found])?;
    let shape = rows.iter().copied().chain([1, half]).collect();
    Ok(call.one(Compute::Reshape, vec![found], (Datatype::Fp32, shape))?[0])
}

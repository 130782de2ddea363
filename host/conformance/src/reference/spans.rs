//! Operations over spans: row by row, or over all rows at once.

use std::rc::Rc;

use cellwright_backend::task::RowError;
use cellwright_cell_graph::Datatype;
use cellwright_cell_graph::typed::{Compute, Operation, ReduceKind, ValueId};

use super::{Elements, Reference, Scope, append, operators};

impl Elements {
    /// No elements of a datatype.
    fn none(datatype: Datatype) -> Self {
        if datatype == Datatype::Fp32 { Self::Floats(Vec::new()) } else { Self::Integers(Vec::new()) }
    }
}

impl Reference<'_> {
    /// How many rows a span has.
    pub(super) fn rows(&self, span: u32, known: &[Option<Rc<Elements>>]) -> usize {
        match self.cell.joined(span) {
            Some(joined) => joined.inputs.iter().map(|input| self.rows(*input, known)).sum::<usize>() + joined.rows,
            None => known[span as usize].as_ref().expect("inputs stand first").len() / self.cell.value(ValueId(span)).elements(),
        }
    }
}

impl Scope<'_> {
    fn rows(&self, span: u32) -> usize {
        self.reference.rows(span, self.known)
    }

    /// A row of a value of a span.
    fn of_row(&self, id: ValueId, row: usize) -> Elements {
        let count = self.value(id).elements();
        self.elements(id).pick(row * count..(row + 1) * count)
    }

    /// An operation on rows, of each row of a span.
    pub(super) fn each_row(&self, operation: &Operation, span: u32) -> Result<Vec<Elements>, RowError> {
        let none = operation.results.iter().map(|id| Elements::none(self.value(*id).datatype));
        let mut results: Vec<Elements> = none.collect();
        for row in 0..self.rows(span) {
            let mut known = self.known.to_vec();
            for id in operation.operands.iter().filter(|id| self.value(**id).span.is_some()) {
                known[id.0 as usize] = Some(Rc::new(self.of_row(*id, row)));
            }
            let scope = Scope { known: &known, ..*self };
            append(&mut results, scope.row(operation)?);
        }
        Ok(results)
    }

    /// An operation that sees whole spans.
    pub(super) fn whole(&self, operation: &Operation) -> Result<Vec<Elements>, RowError> {
        let first = operation.operands[0];
        let ids = operation.results.iter().chain(&operation.operands);
        let rows = self.rows(ids.copied().find_map(|id| self.value(id).span).expect("a span is seen"));
        let count = self.value(first).elements();
        let floats = |at: usize| self.elements(operation.operands[at]).floats();
        // An element of each row.
        let stretch = |element: usize| self.elements(first).pick((0..rows).map(|row| row * count + element));
        let at_least = |needed: usize| {
            let too_few = || RowError::TooFewRows { rows: rows as u64, needed: needed as u64, cell: self.reference.cell.name.clone() };
            if rows < needed { Err(too_few()) } else { Ok(()) }
        };
        // Columns of elements, as rows.
        let turned =
            |columns: Vec<Vec<f64>>| Elements::Floats((0..rows).flat_map(|row| columns.iter().map(move |column| column[row])).collect());
        Ok(match &operation.compute {
            Compute::Repeat => {
                let positions = (0..rows).flat_map(|_| 0..count);
                vec![self.elements(first).pick(positions)]
            }
            Compute::SpanConcat => {
                let mut all = vec![Elements::none(self.value(first).datatype)];
                operation.operands.iter().for_each(|id| append(&mut all, vec![self.elements(*id).clone()]));
                all
            }
            Compute::SpanGather => {
                let Elements::Integers(numbers) = self.elements(operation.operands[1]) else { panic!("numbers of rows") };
                let mut positions = Vec::new();
                for index in numbers {
                    let at = if *index < 0 { index.saturating_add(rows as i64) } else { *index };
                    let Some(row) = usize::try_from(at).ok().filter(|row| *row < rows) else {
                        return Err(RowError::SpanIndex { index: *index, rows: rows as u64, cell: self.reference.cell.name.clone() });
                    };
                    positions.extend(row * count..(row + 1) * count);
                }
                vec![self.elements(first).pick(positions.into_iter())]
            }
            Compute::SpanReduce(kind) if rows == 0 => {
                let of_none = match kind {
                    ReduceKind::Sum => 0.0,
                    ReduceKind::Mean => f64::NAN,
                    ReduceKind::Max => f64::NEG_INFINITY,
                };
                vec![Elements::Floats(vec![of_none; count])]
            }
            Compute::SpanReduce(kind) => {
                let mut reduced = Vec::new();
                (0..count).for_each(|at| append(&mut reduced, vec![operators::reduce(*kind, &stretch(at), Datatype::Fp32)]));
                reduced
            }
            Compute::SpanSoftmax { log } => {
                let softmax = if *log { operators::log_softmax } else { operators::softmax };
                vec![turned((0..count).map(|at| softmax(&stretch(at).floats())).collect())]
            }
            Compute::SpanCumSum { exclusive, reverse } => {
                let sums = |at: usize| {
                    let mut own = stretch(at).floats();
                    if *reverse {
                        own.reverse();
                    }
                    let mut sum = 0.0;
                    for value in &mut own {
                        let before = sum;
                        sum += *value;
                        *value = if *exclusive { before } else { sum };
                    }
                    if *reverse {
                        own.reverse();
                    }
                    own
                };
                vec![turned((0..count).map(sums).collect())]
            }
            Compute::SpanArgMax { select_last } => {
                at_least(1)?;
                let mut found = Vec::new();
                (0..count).for_each(|at| append(&mut found, vec![operators::arg_max(&stretch(at), *select_last)]));
                found
            }
            Compute::SpanTopK { k, largest } => {
                let k = *k as usize;
                at_least(k)?;
                let found: Vec<Vec<usize>> = (0..count).map(|at| operators::top_k(&stretch(at), k, *largest)).collect();
                let places = || (0..k).flat_map(|place| (0..count).map(move |at| (place, at)));
                let values = self.elements(first).pick(places().map(|(place, at)| found[at][place] * count + at));
                vec![values, Elements::Integers(places().map(|(place, at)| found[at][place] as i64).collect())]
            }
            Compute::SpanMatMul => {
                let (a, b) = (floats(0), floats(1));
                let width = self.value(operation.results[0]).elements();
                let product = |row: usize, column: usize| (0..count).map(|k| a[row * count + k] * b[k * width + column]).sum();
                vec![Elements::Floats(
                    (0..rows).flat_map(|row| (0..width).map(move |column| (row, column))).map(|(r, c)| product(r, c)).collect(),
                )]
            }
            Compute::SpanMix => {
                let (a, b) = (floats(0), floats(1));
                let width = self.value(operation.operands[1]).elements();
                let sum = |(p, q): (usize, usize)| (0..rows).map(|row| a[row * count + p] * b[row * width + q]).sum();
                vec![Elements::Floats((0..count).flat_map(|p| (0..width).map(move |q| (p, q))).map(sum).collect())]
            }
            Compute::Attention { heads, key_heads, scale, softcap } => {
                let heads = (*heads as usize, *key_heads as usize);
                vec![self.attention(operation, rows, heads, (f64::from(*scale), f64::from(*softcap)))]
            }
            other => panic!("{other:?} sees no span"),
        })
    }

    fn attention(&self, operation: &Operation, rows: usize, (heads, key_heads): (usize, usize), (scale, softcap): (f64, f64)) -> Elements {
        let floats = |at: usize| self.elements(operation.operands[at]).floats();
        let (q, k, v) = (floats(0), floats(1), floats(2));
        let [queries, width] = self.value(operation.operands[0]).shape[..] else { panic!("rows of queries") };
        let (depth, value_width) = (width / heads, self.value(operation.operands[2]).elements());
        let size = value_width / key_heads;
        let mask = operation.operands.get(3).map(|id| (self.elements(*id), self.value(*id).shape.clone()));
        let mut y = Vec::new();
        for query in 0..queries {
            for head in 0..heads {
                let key_head = head * key_heads / heads;
                let score = |row: usize| {
                    let own = &q[query * width + head * depth..][..depth];
                    let key = &k[row * depth * key_heads + key_head * depth..][..depth];
                    let mut score: f64 = scale * own.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
                    if softcap > 0.0 {
                        score = softcap * (score / softcap).tanh();
                    }
                    let Some((mask, shape)) = &mask else { return score };
                    let at = row * shape[0] * shape[1] + (head % shape[0]) * shape[1] + query % shape[1];
                    match mask {
                        Elements::Floats(mask) => score + mask[at],
                        Elements::Integers(mask) if mask[at] == 0 => f64::NEG_INFINITY,
                        Elements::Integers(_) => score,
                    }
                };
                let scores: Vec<f64> = (0..rows).map(score).collect();
                let counts = scores.iter().any(|score| *score != f64::NEG_INFINITY);
                let weights = if counts { operators::softmax(&scores) } else { vec![0.0; rows] };
                let weighted = |at: usize| {
                    let value = |row: usize| v[row * value_width + key_head * size + at];
                    if counts { weights.iter().enumerate().map(|(row, weight)| weight * value(row)).sum() } else { 0.0 }
                };
                y.extend((0..size).map(weighted));
            }
        }
        Elements::Floats(y)
    }
}

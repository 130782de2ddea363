//! The meaning of a cell: one row, in 64-bit floats, operation by operation, slow and plain.
//!
//! This is the oracle of the conformance suite. It shares no code with any backend, knows nothing
//! of batches, and follows ONNX's text: shapes are walked index by index. Integers wrap to their
//! datatype. Values that a backend stores as FP32 are kept exact here until they leave the cell,
//! but for denormal numbers: every operand and every result that is one is zero.
//!
//! A precision says which numbers of a product are rounded, and to what
//! ([`cellwright_cell_graph::typed::Precision`]). Those numbers are rounded here in the same way
//! and then summed exactly. So every device is held to the same numbers; only the order of its sums
//! is its own.

mod operators;
mod rounding;
mod spans;

use std::cell::OnceCell;
use std::rc::Rc;

use cellwright_cell_graph::typed::{Compute, Operation, Origin, Precision, Value, ValueId};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};

use cellwright_backend::task::RowError;

/// Elements of one value.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// FP32, in 64 bits.
    Floats(Vec<f64>),
    /// BOOL (0 or 1), UINT8, INT32 and INT64.
    Integers(Vec<i64>),
}

impl Elements {
    /// From a row's bytes.
    ///
    /// # Panics
    /// If the datatype is none that cells compute with.
    #[must_use]
    pub fn from_bytes(datatype: Datatype, bytes: &[u8]) -> Self {
        let tensor = Tensor { name: String::new(), datatype, shape: Vec::new(), data: bytes.to_vec() };
        match datatype {
            Datatype::Fp32 => Self::Floats(tensor.to_f32().unwrap_or_default().into_iter().map(f64::from).collect()),
            Datatype::Bool => Self::Integers(bytes.iter().map(|byte| i64::from(*byte != 0)).collect()),
            Datatype::Uint8 | Datatype::Int32 | Datatype::Int64 => Self::Integers(tensor.to_i64().unwrap_or_default()),
            other => panic!("cells do not compute with {other}"),
        }
    }

    /// As a row's bytes.
    #[must_use]
    pub fn to_bytes(&self, datatype: Datatype) -> Vec<u8> {
        match self {
            Self::Floats(values) => values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect(),
            Self::Integers(values) => {
                let size = datatype.size().unwrap_or(8);
                values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(size)).collect()
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Floats(values) => values.len(),
            Self::Integers(values) => values.len(),
        }
    }

    /// The elements at those positions.
    fn pick(&self, positions: impl Iterator<Item = usize>) -> Self {
        match self {
            Self::Floats(values) => Self::Floats(positions.map(|position| values[position]).collect()),
            Self::Integers(values) => Self::Integers(positions.map(|position| values[position]).collect()),
        }
    }

    /// With zeros for what would be denormal as FP32.
    fn flushed(self) -> Self {
        match self {
            Self::Floats(values) => Self::Floats(values.into_iter().map(flushed).collect()),
            Self::Integers(_) => self,
        }
    }

    fn floats(&self) -> Vec<f64> {
        match self {
            Self::Floats(values) => values.clone(),
            Self::Integers(values) => values.iter().map(|value| *value as f64).collect(),
        }
    }

    fn integers(&self) -> &[i64] {
        match self {
            Self::Integers(values) => values,
            Self::Floats(_) => panic!("integers were expected"),
        }
    }
}

/// Zero of the same sign for what would be denormal as FP32.
fn flushed(value: f64) -> f64 {
    if (value as f32).abs() < f32::MIN_POSITIVE { 0.0_f64.copysign(value) } else { value }
}

/// Rounds a row of a product's left-hand side, or a column of its right-hand side.
type Rounding<'a> = Box<dyn Fn(&[f64]) -> Vec<f64> + 'a>;

/// A cell that is evaluated row by row. What does not depend on the row is computed once: constants,
/// and the rounded columns of constant weights.
pub struct Reference<'a> {
    cell: &'a TypedCell,
    rounded: Rounding<'a>,
    /// By value.
    constants: Vec<Option<Rc<Elements>>>,
    /// By operation: the columns of a product's weight, if it is a constant.
    columns: Vec<OnceCell<Vec<Vec<f64>>>>,
}

impl<'a> Reference<'a> {
    /// A cell at its own precision.
    #[must_use]
    pub fn new(cell: &'a TypedCell) -> Self {
        Self::with(cell, |values| rounding::stretch(cell.precision, values))
    }

    /// The same for a device that multiplies in tf32 what a cell has in 32-bit floats.
    #[must_use]
    pub fn in_tf32(cell: &'a TypedCell) -> Self {
        match cell.precision {
            Precision::F32 => Self::with(cell, rounding::stretch_in_tf32),
            Precision::F16 | Precision::Bf16 | Precision::Int8 => Self::new(cell),
        }
    }

    fn with(cell: &'a TypedCell, rounded: impl Fn(&[f64]) -> Vec<f64> + 'a) -> Self {
        let constant = |value: &Value| match &value.origin {
            Origin::Constant(tensor) => Some(Rc::new(Elements::from_bytes(value.datatype, &tensor.data).flushed())),
            Origin::Input(_) | Origin::Operation(_) => None,
        };
        let constants = cell.values.iter().map(constant).collect();
        Self { cell, rounded: Box::new(rounded), constants, columns: vec![OnceCell::new(); cell.operations.len()] }
    }

    /// Computes the cell's outputs from one row of each input, or, of a ragged one, its rows one behind the other.
    ///
    /// # Errors
    /// If a Gather's index is out of range, or a span has too few rows.
    ///
    /// # Panics
    /// If the inputs are not the cell's.
    pub fn evaluate(&self, inputs: &[Elements]) -> Result<Vec<Elements>, RowError> {
        let cell = self.cell;
        assert_eq!(inputs.len(), cell.inputs.len(), "one row of each input");
        let mut known = self.constants.clone();
        for (known, value) in known.iter_mut().zip(&cell.values) {
            if let Origin::Input(input) = &value.origin {
                *known = Some(Rc::new(inputs[*input as usize].clone().flushed()));
            }
        }
        let rows = |value: &Value, known: &[Option<Rc<Elements>>]| value.span.map_or(1, |span| self.rows(span, known));
        for (known_one, value) in known.iter().zip(&cell.values) {
            if let Some(one) = known_one {
                assert_eq!(one.len(), rows(value, &known) * value.elements(), "`{}` has the elements of its shape", value.name);
            }
        }
        for (operation, columns) in cell.operations.iter().zip(&self.columns) {
            let results = Scope { reference: self, known: &known, columns }.compute(operation)?;
            for (id, result) in operation.results.iter().zip(results) {
                let wanted = rows(cell.value(*id), &known) * cell.value(*id).elements();
                assert_eq!(result.len(), wanted, "{:?} gives the elements of its shape", operation.compute);
                known[id.0 as usize] = Some(Rc::new(result.flushed()));
            }
        }
        let output = |id: ValueId| known[id.0 as usize].as_deref().cloned().expect("every output is computed");
        Ok(cell.outputs.iter().map(|cell_output| output(cell_output.value)).collect())
    }
}

/// Computes a cell's outputs from one row of each input. For many rows, keep a [`Reference`].
///
/// # Errors
/// As [`Reference::evaluate`].
///
/// # Panics
/// As [`Reference::evaluate`].
pub fn evaluate(cell: &TypedCell, inputs: &[Elements]) -> Result<Vec<Elements>, RowError> {
    Reference::new(cell).evaluate(inputs)
}

/// What is known when an operation is computed.
struct Scope<'a> {
    reference: &'a Reference<'a>,
    known: &'a [Option<Rc<Elements>>],
    columns: &'a OnceCell<Vec<Vec<f64>>>,
}

impl Scope<'_> {
    fn value(&self, id: ValueId) -> &Value {
        self.reference.cell.value(id)
    }

    fn elements(&self, id: ValueId) -> &Elements {
        self.known[id.0 as usize].as_deref().expect("operands stand before results")
    }

    /// The operand, spread over a shape: ONNX aligns shapes at the right and repeats extents of 1.
    fn spread(&self, id: ValueId, shape: &[usize]) -> Elements {
        let own = &self.value(id).shape;
        let extra = own.len().saturating_sub(shape.len());
        let own = &own[extra..];
        let position = |index: Vec<usize>| {
            let aligned = &index[shape.len() - own.len()..];
            let own_index: Vec<usize> = aligned.iter().zip(own).map(|(at, extent)| if *extent == 1 { 0 } else { *at }).collect();
            offset(own, &own_index)
        };
        self.elements(id).pick(indices(shape).map(position))
    }

    fn compute(&self, operation: &Operation) -> Result<Vec<Elements>, RowError> {
        if operation.compute.sees_span() {
            return self.whole(operation);
        }
        match self.value(operation.results[0]).span {
            None => self.row(operation),
            Some(span) => self.each_row(operation, span),
        }
    }

    /// Of one row of each operand.
    fn row(&self, operation: &Operation) -> Result<Vec<Elements>, RowError> {
        let result = self.value(operation.results[0]);
        let first = operation.operands[0];
        Ok(match &operation.compute {
            Compute::Linear { transposed, alpha, beta } => vec![self.linear(operation, *transposed, f64::from(*alpha), f64::from(*beta))],
            Compute::Unary(kind) => vec![operators::unary(*kind, self.elements(first), result.datatype)],
            Compute::Binary(kind) => {
                let [left, right] = [0, 1].map(|at| self.spread(operation.operands[at], &result.shape));
                vec![operators::binary(*kind, &left, &right, self.value(first).datatype)]
            }
            Compute::Where => {
                let [condition, then, otherwise] = [0, 1, 2].map(|at| self.spread(operation.operands[at], &result.shape));
                vec![operators::choose(&condition, &then, &otherwise)]
            }
            Compute::Cast => vec![operators::cast(self.elements(first), result.datatype)],
            Compute::Concat { axis } => vec![self.concat(operation, *axis as usize)],
            Compute::Split { axis, .. } => self.split(operation, *axis as usize),
            Compute::Slice { axes } => vec![self.slice(operation, axes)],
            Compute::Gather => vec![self.gather(operation)?],
            Compute::Reshape => vec![self.elements(first).clone()],
            Compute::Reduce { kind, axes } => {
                let axes: Vec<usize> = axes.iter().map(|axis| *axis as usize).collect();
                let datatype = result.datatype;
                vec![self.along(first, &axes, &mut |stretch| vec![operators::reduce(*kind, stretch, datatype)]).remove(0)]
            }
            Compute::ArgMax { axis, select_last } => {
                self.along(first, &[*axis as usize], &mut |stretch| vec![operators::arg_max(stretch, *select_last)])
            }
            Compute::TopK { axis, k, largest } => self.along_kept(first, *axis as usize, &mut |stretch| {
                let positions = operators::top_k(stretch, *k as usize, *largest);
                let values = stretch.pick(positions.iter().copied());
                vec![values, Elements::Integers(positions.iter().map(|position| *position as i64).collect())]
            }),
            Compute::Softmax { axis } => {
                self.along_kept(first, *axis as usize, &mut |stretch| vec![Elements::Floats(operators::softmax(&stretch.floats()))])
            }
            Compute::LogSoftmax { axis } => {
                self.along_kept(first, *axis as usize, &mut |stretch| vec![Elements::Floats(operators::log_softmax(&stretch.floats()))])
            }
            Compute::LayerNormalization { axis, epsilon } => {
                vec![self.normalize(operation, *axis as usize, &|stretch| operators::standardize(stretch, f64::from(*epsilon)))]
            }
            Compute::RmsNormalization { axis, epsilon } => {
                vec![self.normalize(operation, *axis as usize, &|stretch| operators::root_mean_square(stretch, f64::from(*epsilon)))]
            }
            whole => panic!("{whole:?} sees more than a row"),
        })
    }

    fn linear(&self, operation: &Operation, transposed: bool, alpha: f64, beta: f64) -> Elements {
        let x = self.elements(operation.operands[0]).floats();
        let weight = self.value(operation.operands[1]);
        let (k, n) = if transposed { (weight.shape[1], weight.shape[0]) } else { (weight.shape[0], weight.shape[1]) };
        let shape = &self.value(operation.results[0]).shape;
        let summand = operation.operands.get(2).map(|c| self.spread(*c, shape).floats());
        let rounded = &self.reference.rounded;
        let compute = || -> Vec<Vec<f64>> {
            let w = self.elements(operation.operands[1]).floats();
            (0..n)
                .map(|column| {
                    (0..k).map(|depth| flushed(alpha * if transposed { w[column * k + depth] } else { w[depth * n + column] })).collect()
                })
                .map(|column: Vec<f64>| rounded(&column))
                .collect()
        };
        let computed;
        let columns = if matches!(weight.origin, Origin::Constant(_)) {
            self.columns.get_or_init(compute)
        } else {
            computed = compute();
            &computed
        };
        let mut y = Vec::with_capacity(x.len() / k * n);
        for (row, x) in x.chunks(k).enumerate() {
            let x = rounded(x);
            for (column, w) in columns.iter().enumerate() {
                let product: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                let summand = summand.as_ref().map_or(0.0, |summand| beta * summand[row * n + column]);
                y.push(product + summand);
            }
        }
        Elements::Floats(y)
    }

    fn concat(&self, operation: &Operation, axis: usize) -> Elements {
        let shape = &self.value(operation.results[0]).shape;
        let mut floats = Vec::new();
        let mut integers = Vec::new();
        for mut index in indices(shape) {
            let mut operands = operation.operands.iter();
            let operand = loop {
                let operand = *operands.next().expect("extents add up");
                let extent = self.row_shape(operand, shape.len())[axis];
                match index[axis].checked_sub(extent) {
                    Some(rest) => index[axis] = rest,
                    None => break operand,
                }
            };
            match self.elements(operand) {
                Elements::Floats(values) => floats.push(values[offset(self.row_shape(operand, shape.len()), &index)]),
                Elements::Integers(values) => integers.push(values[offset(self.row_shape(operand, shape.len()), &index)]),
            }
        }
        if integers.is_empty() { Elements::Floats(floats) } else { Elements::Integers(integers) }
    }

    /// The shape of a row; a constant may have the batch dimension written out as 1.
    fn row_shape(&self, id: ValueId, rank: usize) -> &[usize] {
        let shape = &self.value(id).shape;
        &shape[shape.len().saturating_sub(rank)..]
    }

    fn split(&self, operation: &Operation, axis: usize) -> Vec<Elements> {
        let shape = &self.value(operation.operands[0]).shape;
        let mut start = 0;
        let parts = operation.results.iter().map(|id| {
            let part = &self.value(*id).shape;
            let positions = indices(part).map(|mut index| {
                index[axis] += start;
                offset(shape, &index)
            });
            let elements = self.elements(operation.operands[0]).pick(positions);
            start += part[axis];
            elements
        });
        parts.collect()
    }

    fn slice(&self, operation: &Operation, axes: &[(u32, u32, i32)]) -> Elements {
        let shape = &self.value(operation.operands[0]).shape;
        let positions = indices(&self.value(operation.results[0]).shape).map(|mut index| {
            for (axis, start, step) in axes {
                let at = &mut index[*axis as usize];
                *at = usize::try_from(i64::from(*start) + *at as i64 * i64::from(*step)).expect("slices are clamped");
            }
            offset(shape, &index)
        });
        self.elements(operation.operands[0]).pick(positions)
    }

    fn gather(&self, operation: &Operation) -> Result<Elements, RowError> {
        let table = &self.value(operation.operands[0]).shape;
        let rows = table[0] as i64;
        let rest: usize = table[1..].iter().product();
        let mut positions = Vec::new();
        for index in self.elements(operation.operands[1]).integers() {
            let row = if *index < 0 { index.saturating_add(rows) } else { *index };
            if !(0..rows).contains(&row) {
                return Err(RowError::Index { index: *index, rows: table[0] as u64, cell: self.reference.cell.name.clone() });
            }
            positions.extend((0..rest).map(|at| row as usize * rest + at));
        }
        Ok(self.elements(operation.operands[0]).pick(positions.into_iter()))
    }

    /// A function of the elements along some axes, which go: one result element for each rest of the index.
    fn along(&self, id: ValueId, axes: &[usize], of: &mut dyn FnMut(&Elements) -> Vec<Elements>) -> Vec<Elements> {
        let shape = &self.value(id).shape;
        let kept: Vec<usize> = (0..shape.len()).filter(|axis| !axes.contains(axis)).collect();
        let extents = |axes: &[usize]| axes.iter().map(|axis| shape[*axis]).collect::<Vec<_>>();
        let mut results: Vec<Elements> = Vec::new();
        for outer in indices(&extents(&kept)) {
            let positions = indices(&extents(axes)).map(|inner| {
                let mut index = vec![0; shape.len()];
                kept.iter().zip(&outer).chain(axes.iter().zip(&inner)).for_each(|(axis, at)| index[*axis] = *at);
                offset(shape, &index)
            });
            append(&mut results, of(&self.elements(id).pick(positions)));
        }
        results
    }

    /// A function of the elements along one axis, which stays in its place.
    fn along_kept(&self, id: ValueId, axis: usize, of: &mut dyn FnMut(&Elements) -> Vec<Elements>) -> Vec<Elements> {
        let shape = &self.value(id).shape;
        let last = self.along(id, &[axis], of);
        let outer: usize = shape.iter().product::<usize>() / shape[axis];
        last.into_iter()
            .map(|elements| {
                let extent = elements.len() / outer;
                let mut result_shape = shape.clone();
                result_shape[axis] = extent;
                let mut others = shape.clone();
                others.remove(axis);
                let positions = indices(&result_shape).map(|mut index| {
                    let at = index.remove(axis);
                    offset(&others, &index) * extent + at
                });
                elements.pick(positions)
            })
            .collect()
    }

    fn normalize(&self, operation: &Operation, axis: usize, of: &dyn Fn(&[f64]) -> Vec<f64>) -> Elements {
        let shape = &self.value(operation.operands[0]).shape;
        let n: usize = shape[axis..].iter().product();
        let x = self.elements(operation.operands[0]).floats();
        let factors: Vec<Vec<f64>> = operation.operands[1..].iter().map(|id| self.spread(*id, shape).floats()).collect();
        let normal = x.chunks(n).flat_map(of);
        let scaled = normal.enumerate().map(|(at, y)| y * factors[0][at] + factors.get(1).map_or(0.0, |bias| bias[at]));
        Elements::Floats(scaled.collect())
    }
}

fn append(results: &mut Vec<Elements>, more: Vec<Elements>) {
    if results.is_empty() {
        *results = more;
        return;
    }
    for (result, more) in results.iter_mut().zip(more) {
        match (result, more) {
            (Elements::Floats(values), Elements::Floats(more)) => values.extend(more),
            (Elements::Integers(values), Elements::Integers(more)) => values.extend(more),
            _ => panic!("results keep their datatype"),
        }
    }
}

/// Every index of a shape, the last axis fastest.
fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let shape = shape.to_vec();
    let count: usize = shape.iter().product();
    (0..count).map(move |mut position| {
        let mut index = vec![0; shape.len()];
        for axis in (0..shape.len()).rev() {
            index[axis] = position % shape[axis];
            position /= shape[axis];
        }
        index
    })
}

fn offset(shape: &[usize], index: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |offset, (at, extent)| offset * extent + at)
}

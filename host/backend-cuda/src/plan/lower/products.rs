//! Sums of products, lowered: one launch for each row of the matrix that a row of the batch is.

use std::sync::Arc;

use cellwright_cell_graph::Datatype;
use cellwright_cell_graph::sums::{self, Sum};
use cellwright_cell_graph::typed::{Compute, Operation, ValueId};

use super::super::pack::{Weight, packed_bytes, slab};
use super::super::view::{Base, Element, View, row_major};
use super::super::{ALIGNMENT, Blob, BlobId, Product, Term};
use super::{Item, Lowering, Why, Work, narrow};
use crate::abi::op;

/// Rows of a matrix that a row of the batch may be: each is a launch.
const ROWS_MAX: usize = 1024;
/// Launches of products that a cell may take.
const LAUNCHES_MAX: usize = 4096;
/// Slabs that their blocks may walk, in all of these launches, which come one after the other. To wait for one takes up to half a microsecond, however few columns there
/// are. As of [`LOOKS_MAX`](super::LOOKS_MAX).
const SLABS_MAX: usize = 1 << 23;

/// The left-hand side of a term: where each of its rows lies.
struct Left {
    value: usize,
    places: Vec<usize>,
    k: usize,
}

impl Lowering<'_> {
    /// A product by itself.
    pub(super) fn linear(&mut self, operation: &Operation) -> Result<(), Why> {
        let Compute::Linear { beta, .. } = operation.compute else { return Ok(()) };
        let result_id = operation.results[0];
        let without = Operation { operands: operation.operands[..2].to_vec(), ..operation.clone() };
        let alone = Sum { linears: vec![without], constants: Vec::new(), begin: None };
        let Some(c) = operation.operands.get(2).copied() else { return self.sum(&alone, result_id) };
        // A summand that is not one bias for all rows is added element by element.
        let shape = self.value(result_id).shape.clone();
        let mut summand = self.spread(c, &shape)?;
        if beta.to_bits() != 1.0_f32.to_bits() {
            let factor = self.blob(Blob::Bytes(beta.to_le_bytes().to_vec()));
            let factor = View::whole(Base::Blob(factor), 0, Element::F32, &[]).spread(&shape).ok_or("a factor of a summand")?;
            let scaled = self.room(Element::F32, &shape);
            self.elements(op::MUL, &[summand, factor], &scaled)?;
            summand = scaled;
        }
        let product = self.aligned_room(&shape);
        self.product(&alone, result_id, &product)?;
        let result = self.define(result_id)?;
        self.elements(op::ADD, &[product, summand], &result)?;
        self.known.insert(result_id, result);
        Ok(())
    }

    pub(super) fn sum(&mut self, sum: &Sum, result_id: ValueId) -> Result<(), Why> {
        let shape = self.defined(result_id)?.1;
        let result = match self.best.get(&result_id).copied() {
            Some(kept) => self.candidates_room(&shape, kept),
            None => self.aligned_room(&shape),
        };
        self.product(sum, result_id, &result)?;
        self.known.insert(result_id, result);
        Ok(())
    }

    /// One product of several terms, with all its constant summands as its bias, or onto a row.
    fn product(&mut self, sum: &Sum, like: ValueId, result: &View) -> Result<(), Why> {
        let n = *result.shape.last().ok_or("a product without columns")?;
        let lead = result.elements() / n.max(1);
        self.launches = self.launches.saturating_add(lead);
        if lead > ROWS_MAX || self.launches > LAUNCHES_MAX {
            let (rows, launches) = (lead, self.launches);
            return Err(format!("products of {rows} rows each, {launches} in all: {ROWS_MAX} and {LAUNCHES_MAX} are the most"));
        }
        let mut terms = Vec::new();
        for linear in &sum.linears {
            let Compute::Linear { transposed, alpha, .. } = linear.compute else { continue };
            let (weights, k) = self.weights(linear.operands[1], transposed, alpha)?;
            let left = self.left(linear.operands[0], lead)?;
            if left.k != k {
                return Err(format!("a product of {} elements by {k}", left.k));
            }
            self.slabs = self.slabs.saturating_add(k.div_ceil(slab(self.arithmetic)).saturating_mul(lead));
            terms.push((left, weights));
        }
        if self.slabs > SLABS_MAX {
            return Err(format!("products that walk {} slabs of a row: {SLABS_MAX} are the most", self.slabs));
        }
        let begin = sum.begin.map(|begin| self.aligned(begin)).transpose()?;
        let bias = self.bias(sum, like)?.filter(|_| begin.is_none());
        let mut reads: Vec<(usize, bool)> = terms.iter().map(|(left, _)| (left.value, false)).collect();
        if let Some(Base::Row(value)) = begin.as_ref().map(|begin| begin.base) {
            reads.push((value, false));
        }
        let Base::Row(written) = result.base else { return Err("a product into a constant".to_owned()) };
        let (rows, begins) = (places(result), begin.as_ref().map(places));
        for (row, y) in rows.into_iter().enumerate() {
            let terms = terms.iter().map(|(left, weights)| Ok(Term { x: left.places[row], weights: *weights, k: narrow(left.k)? }));
            let product = Product {
                arithmetic: self.arithmetic,
                terms: terms.collect::<Result<_, Why>>()?,
                n: narrow(n)?,
                begin: begins.as_ref().map(|begins| begins[row]),
                bias,
                y,
                kept: self.kept(result),
            };
            self.lowered.items.push(Item { work: Work::Product(product), reads: reads.clone(), writes: vec![(written, false)] });
        }
        Ok(())
    }

    fn bias(&mut self, sum: &Sum, like: ValueId) -> Result<Option<BlobId>, Why> {
        if sum.constants.is_empty() {
            return Ok(None);
        }
        let bias = sums::bias(self.cell, sum, like).ok_or("a bias that is not of floats")?;
        Ok(Some(BlobId(self.blob(Blob::Bytes(bias.iter().flat_map(|value| value.to_le_bytes()).collect())))))
    }

    fn weights(&mut self, id: ValueId, transposed: bool, alpha: f32) -> Result<(BlobId, usize), Why> {
        let tensor = self.tensor(id)?.clone();
        if tensor.datatype != Datatype::Fp32 {
            return Err(format!("a product with a weight of datatype {}", tensor.datatype));
        }
        let [rows, columns] = tensor.shape[..] else { return Err("a product with what is no matrix".to_owned()) };
        let (k, n) = if transposed { (columns, rows) } else { (rows, columns) };
        if k == 0 {
            return Err("a product over no elements".to_owned());
        }
        let key = (Arc::as_ptr(&tensor), transposed, alpha.to_bits());
        if let Some(blob) = self.packed.get(&key) {
            return Ok((BlobId(*blob), k));
        }
        // As packed, thin weights take many times what they take in the bundle. What does not fit is only reckoned.
        let bytes = packed_bytes(self.arithmetic, k, n).ok_or("a weight of more bytes than there are")?;
        self.lowered.packed_bytes = self.lowered.packed_bytes.saturating_add(bytes as u64);
        let packed = if self.lowered.packed_bytes > self.weight_bytes_most {
            Vec::new()
        } else {
            let values = tensor.to_f32().unwrap_or_default();
            Weight::new(&tensor, &values, transposed, alpha).ok_or("a weight that lacks values")?.packed(self.arithmetic)
        };
        let blob = self.blob(Blob::Bytes(packed));
        self.packed.insert(key, blob);
        Ok((BlobId(blob), k))
    }

    /// The rows of a left-hand side as products read them.
    fn left(&mut self, id: ValueId, lead: usize) -> Result<Left, Why> {
        let view = if self.arithmetic.is_wide() { self.rounded(id)? } else { self.aligned(id)? };
        let k = *view.shape.last().ok_or("a product of what has no axes")?;
        let Base::Row(value) = view.base else { return Err("a product of a constant".to_owned()) };
        let places = places(&view);
        if places.len() != lead {
            return Err(format!("a product of {} rows into {lead}", places.len()));
        }
        Ok(Left { value, places, k })
    }

    /// A value as warpgroups multiply it: rounded, its stretches along the last axis aligned. Each product has its own: one that two shared would tie
    /// what is computed ahead of a recurrence to what waits for it.
    fn rounded(&mut self, id: ValueId) -> Result<View, Why> {
        if let Some((state, at)) = self.rounded_states.get_mut(&id) {
            // With room for all the units that a step computes.
            let bytes = (state.elements() * state.element.size()).next_multiple_of(ALIGNMENT);
            let at = at.get_or_insert_with(|| self.lowered.frame.place(bytes));
            return Ok(View { at: *at, ..state.clone() });
        }
        let view = self.batched(id)?;
        let element = if self.arithmetic.is_f16() { Element::F16 } else { Element::Bf16 };
        let rounded = self.aligned_room_of(element, &view.shape);
        self.elements(op::CAST, std::slice::from_ref(&view), &rounded)?;
        Ok(rounded)
    }

    /// Room for a value of which every stretch along the last axis is aligned.
    fn aligned_room(&mut self, shape: &[usize]) -> View {
        self.aligned_room_of(Element::F32, shape)
    }

    fn aligned_room_of(&mut self, element: Element, shape: &[usize]) -> View {
        let (width, leading) = shape.split_last().map_or((1, shape), |(width, leading)| (*width, leading));
        let count = leading.iter().product::<usize>();
        // Where a value is several rows of a matrix, each of them is to be aligned.
        let width = if count == 1 { width } else { width.next_multiple_of(ALIGNMENT / element.size()) };
        let room = self.room(element, &[count, width]);
        let mut strides: Vec<i64> = row_major(leading).iter().map(|stride| stride * width as i64).collect();
        strides.push(1);
        View { shape: shape.to_vec(), strides, ..room }
    }

    /// The value itself if products can read its stretches along the last axis where they lie, a copy if not.
    pub(super) fn aligned(&mut self, id: ValueId) -> Result<View, Why> {
        let view = self.batched(id)?;
        let is_dense = view.strides.last() == Some(&1) || view.shape.last() == Some(&1);
        if is_dense && places(&view).iter().all(|place| place % ALIGNMENT == 0) {
            return Ok(view);
        }
        let copy = self.aligned_room(&view.shape);
        self.elements(op::COPY, std::slice::from_ref(&view), &copy)?;
        Ok(copy)
    }
}

/// Where each stretch along the last axis begins.
fn places(view: &View) -> Vec<usize> {
    let axes = view.shape.len().saturating_sub(1);
    let mut places = vec![view.at as i64];
    for (extent, stride) in view.shape[..axes].iter().zip(&view.strides) {
        let step = stride * view.element.size() as i64;
        places = places.iter().flat_map(|place| (0..*extent as i64).map(move |at| place + at * step)).collect();
    }
    places.into_iter().map(|place| usize::try_from(place).unwrap_or_default()).collect()
}

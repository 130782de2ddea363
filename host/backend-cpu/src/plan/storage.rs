//! Which values share memory: a stretch of another value is a view of it, what is concatenated is computed where it will
//! stand, and what a product is added onto has its place, if it is put anywhere, where the product will be.

use super::Place;
use super::copies::Copies;
use super::lower::{LowOp, Lowered, Operand, Val};

/// Rows of that many bytes or more begin apart by [`APART`] beyond a multiple of this, so that equal places of rows that are read together do
/// not compete for the same lines of the nearest cache.
const LONG_ROW: usize = 2048;
/// Thirteen lines: rows that follow one another cover different lines, however many there are.
const APART: usize = 13 * 64;

/// Bytes from row to row.
fn stride(bytes: usize) -> usize {
    if bytes < LONG_ROW { bytes } else { (bytes.saturating_sub(APART)).next_multiple_of(LONG_ROW) + APART }
}

/// For each value, where it lies within another one, or that it has memory of its own.
#[derive(Debug)]
pub(super) struct Storage {
    parents: Vec<Option<(Val, usize)>>,
    /// For each value, whether another lies within it.
    is_parent: Vec<bool>,
}

impl Storage {
    /// Finds the values that can share memory, and removes from concatenations what then needs no copy.
    pub(super) fn share(lowered: &mut Lowered) -> Self {
        let mut storage = Self { parents: vec![None; lowered.values.len()], is_parent: vec![false; lowered.values.len()] };
        let mut is_view = vec![false; lowered.values.len()];
        for op in &lowered.ops {
            if let LowOp::View { source, offset, result } = op {
                storage.parents[result.0] = Some((*source, *offset));
                is_view[result.0] = true;
            }
        }
        // A product that is added onto a row is computed where that row is put, unless it is read where it lies.
        for op in &lowered.ops {
            if let LowOp::Linear { begin: Some(begin), result, .. } = op {
                storage.parents[begin.0] = Some((*result, 0));
            }
        }
        // Last first, so that a concatenation is placed in another before what it concatenates is placed in it.
        for op in lowered.ops.iter_mut().rev() {
            let LowOp::Assemble { parts, placed, result } = op else { continue };
            parts.retain(|(operand, copies)| {
                let Operand::Value(value) = *operand else { return true };
                let bytes = lowered.values[value.0].bytes();
                let is_placed =
                    *copies == Copies::stretch(0, copies.result, bytes) && !is_view[value.0] && storage.parents[value.0].is_none();
                if is_placed {
                    storage.parents[value.0] = Some((*result, copies.result));
                    placed.push(value);
                }
                !is_placed
            });
        }
        storage.parents.iter().flatten().for_each(|(parent, _)| storage.is_parent[parent.0] = true);
        storage
    }

    /// Whether the value has a place in, or gives place to, another.
    pub(super) fn is_shared(&self, value: Val) -> bool {
        self.parents[value.0].is_some() || self.is_parent[value.0]
    }

    fn root(&self, value: Val) -> (Val, usize) {
        let (mut value, mut offset) = (value, 0);
        while let Some((parent, more)) = self.parents[value.0] {
            (value, offset) = (parent, offset + more);
        }
        (value, offset)
    }

    /// Gives every value that needs memory its place; the strides of the buffers.
    pub(super) fn allocate(&self, lowered: &Lowered, needs: impl Fn(Val) -> bool) -> (Vec<Option<Place>>, Vec<usize>) {
        let mut buffers: Vec<Option<usize>> = vec![None; lowered.values.len()];
        let mut strides = Vec::new();
        let places = (0..lowered.values.len())
            .map(Val)
            .map(|value| {
                needs(value).then(|| {
                    let (root, offset) = self.root(value);
                    let buffer = *buffers[root.0].get_or_insert_with(|| {
                        let bytes = lowered.values[root.0].bytes();
                        strides.push(stride(bytes));
                        strides.len() - 1
                    });
                    Place { buffer, offset }
                })
            })
            .collect();
        (places, strides)
    }
}

//! Where the rows are that a product reads, and those that it writes.

use super::PackedRows;

/// Where the rows of a term's left-hand side are: `rows` of `k` floats, `stride` floats apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub(super) rows: *const f32,
    pub(super) stride: usize,
    /// Where each of them is, if they lie anywhere; null: as above. For products that take that ([`super::Product::takes_pointers`]).
    pub(super) pointers: *const *const f32,
    /// Where they are as the product packs them: then they need not be there as floats.
    pub(super) packed: Option<PackedRows>,
}

impl Left {
    pub(crate) const NONE: Self = Self::floats(std::ptr::null(), 0);

    pub(crate) const fn floats(rows: *const f32, stride: usize) -> Self {
        Self { rows, stride, pointers: std::ptr::null(), packed: None }
    }

    pub(crate) const fn pointed(pointers: *const *const f32) -> Self {
        Self { pointers, ..Self::NONE }
    }

    pub(crate) const fn packed(rows: PackedRows) -> Self {
        Self { packed: Some(rows), ..Self::NONE }
    }

    /// The same from a row on; of packed rows one with which a block of them begins.
    pub(super) fn beginning_at(self, row: usize) -> Self {
        Self {
            rows: self.rows.wrapping_add(row * self.stride),
            stride: self.stride,
            pointers: if self.pointers.is_null() { self.pointers } else { self.pointers.wrapping_add(row) },
            packed: self.packed.map(|packed| packed.beginning_at(row)),
        }
    }
}

/// Where the result's rows are, and what their sums begin with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(super) rows: *mut f32,
    pub(super) stride: usize,
    /// Where each of the rows is that sums begin with, of products that do; null: where the result is to be.
    pub(super) begins: *const *const f32,
}

impl Target {
    /// Rows that are so many floats apart.
    pub(crate) const fn rows(rows: *mut f32, stride: usize) -> Self {
        Self { rows, stride, begins: std::ptr::null() }
    }

    /// The same of sums that begin with rows somewhere else, of which there is a pointer for each.
    pub(crate) const fn begun(self, begins: *const *const f32) -> Self {
        Self { begins, ..self }
    }

    /// The same from a row on.
    pub(super) const fn beginning_at(self, row: usize) -> Self {
        let rows = self.rows.wrapping_add(row * self.stride);
        if self.begins.is_null() { Self { rows, ..self } } else { Self { rows, begins: self.begins.wrapping_add(row), ..self } }
    }
}

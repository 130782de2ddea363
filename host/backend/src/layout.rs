//! Where the outputs of one node lie in its slots.
//!
//! A slot is 64 bytes, not one value. So nodes of all sizes share one arena without size classes,
//! at the price of rounding up.

use cellwright_cell_graph::{Datatype, TypedCell};

use crate::task::Slot;

pub use cellwright_cell_graph::SLOT_BYTES;

/// One node's outputs, each at a multiple of [`SLOT_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLayout {
    /// Byte offset of each output in the node.
    pub offsets: Vec<usize>,
    /// Bytes of each output.
    pub sizes: Vec<usize>,
    /// Slots of a node: at least 1.
    pub slots: u32,
}

impl NodeLayout {
    /// The layout of a cell's outputs, stored as their logical datatypes.
    #[must_use]
    pub fn of(cell: &TypedCell) -> Self {
        let mut offset = 0;
        let (mut offsets, mut sizes) = (Vec::new(), Vec::new());
        for output in &cell.outputs {
            let elements: usize = output.port.shape.iter().map(|extent| *extent as usize).product();
            let bytes = elements * output.port.datatype.size().unwrap_or(size_of::<u64>());
            offsets.push(offset);
            sizes.push(bytes);
            offset += bytes.next_multiple_of(SLOT_BYTES);
        }
        debug_assert!(cell.outputs.iter().all(|output| output.port.datatype != Datatype::Bytes), "checked when the cell was resolved");
        let slots = u32::try_from(offset / SLOT_BYTES).unwrap_or(u32::MAX).max(1);
        Self { offsets, sizes, slots }
    }

    /// Slot of the node at a place (see [`cellwright_cell_graph::unfolded::Retention::place`]) of a block that begins at `first`.
    ///
    /// # Panics
    /// If the block reaches past the largest slot number, which no arena has.
    #[must_use]
    pub fn slot(&self, first: Slot, place: u32) -> Slot {
        let slot = place.checked_mul(self.slots).and_then(|offset| first.0.checked_add(offset));
        Slot(slot.expect("slots of a placed growth lie in its arena"))
    }
}

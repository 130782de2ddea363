//! Where the outputs of one node lie in its slots.
//!
//! A slot is 64 bytes, not one value. So nodes of all sizes share one arena without size classes,
//! at the price of rounding up.

use crate::{Datatype, Port, SLOT_BYTES, Slot, TypedCell};

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
    /// Slots of a node of a cell.
    #[must_use]
    pub fn slots_of(cell: &TypedCell) -> u32 {
        let slots: usize = cell.outputs.iter().map(|output| bytes(&output.port).div_ceil(SLOT_BYTES)).sum();
        u32::try_from(slots).unwrap_or(u32::MAX).max(1)
    }

    /// The layout of a cell's outputs, stored as their logical datatypes.
    #[must_use]
    pub fn of(cell: &TypedCell) -> Self {
        let mut offset = 0;
        let (mut offsets, mut sizes) = (Vec::new(), Vec::new());
        for output in &cell.outputs {
            let bytes = bytes(&output.port);
            offsets.push(offset);
            sizes.push(bytes);
            offset += bytes.next_multiple_of(SLOT_BYTES);
        }
        debug_assert!(cell.outputs.iter().all(|output| output.port.datatype != Datatype::Bytes), "checked when the cell was resolved");
        Self { offsets, sizes, slots: Self::slots_of(cell) }
    }

    /// Slot of the node at a place (see [`crate::unfolded::Retention::place`]) of a block that begins at `first`.
    ///
    /// # Panics
    /// If the block reaches past the largest slot number, which no arena has.
    #[must_use]
    pub fn slot(&self, first: Slot, place: u32) -> Slot {
        let slot = place.checked_mul(self.slots).and_then(|offset| first.0.checked_add(offset));
        Slot(slot.expect("slots of a placed growth lie in its arena"))
    }
}

/// Bytes of a row of a port.
fn bytes(port: &Port) -> usize {
    let elements: usize = port.shape.iter().map(|extent| *extent as usize).product();
    elements * port.datatype.size().unwrap_or(size_of::<u64>())
}

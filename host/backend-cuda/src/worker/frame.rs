//! Where rows are worked on, and matrices of what lies in them.

use super::device::Device;
use crate::abi::{TENSOR_BOX, TensorMap};
use crate::driver::{DeviceAddress, Done, Matrix};

/// A frame: so many bytes, of rows that each cell has as long as it needs them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameMemory {
    pub(super) address: DeviceAddress,
    pub(super) bytes: usize,
}

impl FrameMemory {
    /// What lies at that place of so many rows, as kernels copy it that multiply it: so many values of 16 bits.
    pub(super) fn matrix(&self, device: &mut Device, (place, columns): (usize, u32), (rows, stride): (u32, u32)) -> Done<TensorMap> {
        let matrix = Matrix { at: self.address.plus(place), columns, rows: self.whole(rows, stride), stride };
        Ok(TensorMap { words: device.driver.tensor_map(&matrix)? })
    }

    /// So many rows and those that their last box has beside them, as far as the frame goes: rows of other batches, or what lies behind the rows. Nobody looks at
    /// what comes of them, and a box that lies beyond its matrix takes a device longer (at one row an H200's step of an LSTM of 1024 5.9 us, not 3.8).
    fn whole(&self, rows: u32, stride: u32) -> u32 {
        let most = u32::try_from(self.bytes / stride as usize).unwrap_or(u32::MAX);
        rows.next_multiple_of(TENSOR_BOX).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_has_whole_boxes_as_far_as_the_frame_goes() {
        let frame = FrameMemory { address: DeviceAddress(4096), bytes: 100 * 160 + 80 };
        for (rows, whole) in [(1, 64), (64, 64), (65, 100), (100, 100)] {
            assert_eq!(frame.whole(rows, 160), whole, "{rows} rows");
        }
    }
}

//! Products by warpgroups, on a device with Hopper's kernels: their tiles and numbers of blocks.
//!
//! They take rows of 16-bit values, which are values of the frame like any other: an instruction of
//! a group, or the step that left them, has rounded them. Kernels copy them in boxes (tensor maps,
//! `FrameMemory::matrix`). The rows of a batch are a matrix at the frame's stride. Rows in the last
//! box that are not the batch's are multiplied too, and their results are never read.

use crate::abi::{WIDE_BEST_BF16, WIDE_BEST_F16, WIDE_BF16, WIDE_F16, WideTile};
use crate::driver::{Done, Driver, Kernel, Launch};

/// The kernels, loaded: in bf16 and in f16, each those that leave all sums and those that keep the best of each panel.
#[derive(Clone, Copy, Debug)]
pub(super) struct WideKernels {
    all: [[(Kernel, WideTile); WIDE_BF16.len()]; 2],
    best: [[(Kernel, WideTile); WIDE_BEST_BF16.len()]; 2],
}

impl WideKernels {
    pub(super) fn of(driver: &mut dyn Driver) -> Done<Self> {
        Ok(Self {
            all: [loaded(driver, WIDE_BF16)?, loaded(driver, WIDE_F16)?],
            best: [loaded(driver, WIDE_BEST_BF16)?, loaded(driver, WIDE_BEST_F16)?],
        })
    }

    /// How a product of so many rows and columns is launched. No bit of it depends on that.
    pub(super) fn launch(&self, (is_f16, is_best): (bool, bool), (rows, n): (u32, u32), multiprocessors: u32) -> Launch {
        let format = usize::from(is_f16);
        let tiles: &[(Kernel, WideTile)] = if is_best { &self.best[format] } else { &self.all[format] };
        let (kernel, tile) = tiles.iter().min_by_key(|(_, tile)| time(tile, (rows, n), multiprocessors)).unwrap_or(&tiles[0]);
        Launch {
            kernel: *kernel,
            // More than run at once would only begin later.
            grid: [tile.tiles(rows, n).min(multiprocessors).max(1), 1, 1],
            threads: tile.threads(),
            shared_bytes: tile.shared_bytes(),
            cooperative: false,
        }
    }
}

fn loaded<const COUNT: usize>(driver: &mut dyn Driver, tiles: [WideTile; COUNT]) -> Done<[(Kernel, WideTile); COUNT]> {
    let mut loaded = tiles.map(|tile| (Kernel(0), tile));
    for (kernel, tile) in &mut loaded {
        *kernel = driver.kernel(tile.name)?;
    }
    Ok(loaded)
}

/// Multiplications of rows by columns that take the tensor cores as long as a multiprocessor takes to read a row or a column: 2048 a cycle, of 64 for each,
/// against about 30 of 128 bytes.
const MULTIPLIED: u32 = 128;

/// How long a product takes, in rows and columns that a multiprocessor reads. Arithmetic, which on an H200 finds the fastest tile for 1 to 2048 rows of 4096
/// columns: tiles come in waves, of which each takes as long as reading what there is of its rows and columns, or as multiplying them.
fn time(tile: &WideTile, (rows, n): (u32, u32), multiprocessors: u32) -> u64 {
    let one = (tile.rows.min(rows) + tile.columns).max(tile.rows * tile.columns / MULTIPLIED);
    u64::from(tile.tiles(rows, n).div_ceil(multiprocessors.max(1))) * u64::from(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tile_is_the_one_whose_waves_take_least() {
        let best = |rows, n, tiles: &[WideTile]| {
            tiles.iter().min_by_key(|tile| time(tile, (rows, n), 132)).map(|tile| (tile.rows, tile.columns)).expect("there are tiles")
        };
        for (rows, tile) in [(1, (64, 64)), (64, (64, 64)), (128, (64, 64)), (256, (128, 64)), (512, (128, 128)), (2048, (128, 256))] {
            assert_eq!(best(rows, 4096, &WIDE_BF16), tile, "{rows} rows");
        }
        for (rows, tile) in [(64, (128, 256)), (256, (128, 256))] {
            assert_eq!(best(rows, 30_000, &WIDE_BEST_BF16), tile, "{rows} rows of a projection");
        }
    }
}

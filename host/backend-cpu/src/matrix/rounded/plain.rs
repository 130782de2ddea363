//! Loops for processors without instructions for these sums. Every one of them gives the same bits.

use super::super::PANEL;
use super::{Columns, GROUP, Tile};
use crate::kernels::dispatch;
use crate::level::Level;

/// Rows of a tile at most.
pub(super) const HEIGHT: usize = 4;

/// # Safety
/// The tile's rows, panel and result are there, and the processor has what the level says.
pub(super) unsafe fn halves(tile: Tile, level: Level) {
    let run = dispatch!(level, halves_of::<>, [], (tile: Tile));
    // SAFETY: the caller's promise.
    unsafe { run(tile) }
}

/// # Safety
/// As for [`halves`]; rows and columns have their scales.
pub(super) unsafe fn bytes(tile: Tile, level: Level) {
    let run = dispatch!(level, bytes_of::<>, [], (tile: Tile));
    // SAFETY: the caller's promise.
    unsafe { run(tile) }
}

/// # Safety
/// As for [`halves`].
#[inline(always)]
unsafe fn halves_of(tile: Tile) {
    // SAFETY: the caller's promise, for each arm.
    unsafe {
        match tile.rows {
            1 => halves_tile::<1>(tile),
            2 => halves_tile::<2>(tile),
            3 => halves_tile::<3>(tile),
            _ => halves_tile::<HEIGHT>(tile),
        }
    }
}

/// # Safety
/// As for [`bytes`].
#[inline(always)]
unsafe fn bytes_of(tile: Tile) {
    // SAFETY: the caller's promise, for each arm.
    unsafe {
        match tile.rows {
            1 => bytes_tile::<1>(tile),
            2 => bytes_tile::<2>(tile),
            3 => bytes_tile::<3>(tile),
            _ => bytes_tile::<HEIGHT>(tile),
        }
    }
}

/// # Safety
/// As for [`halves`]; the tile has so many rows.
#[inline(always)]
unsafe fn halves_tile<const ROWS: usize>(tile: Tile) {
    let mut sums = [[0.0_f32; PANEL]; ROWS];
    for group in 0..tile.groups {
        // SAFETY: the panel has this group of each column.
        let w = unsafe { &*tile.panel.add(group * PANEL * GROUP).cast::<[u32; PANEL]>() };
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the row has this group.
            let x = unsafe { *tile.left.add(row * tile.left_stride + group * GROUP).cast::<u32>() };
            let (first, second) = pair(x);
            for (sum, w) in sums.iter_mut().zip(w) {
                let (low, high) = pair(*w);
                *sum = second.mul_add(high, first.mul_add(low, *sum));
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (column, sum) in sums.iter().enumerate().take(tile.columns) {
            // SAFETY: the result has this row and column, and so has what it is added to.
            unsafe { *tile.into.add(row * tile.into_stride + column) = *tile.onto.row(row).add(column) + sum };
        }
    }
}

/// The numbers of a group.
#[inline(always)]
fn pair(group: u32) -> (f32, f32) {
    (f32::from_bits(group << 16), f32::from_bits(group & 0xffff_0000))
}

/// # Safety
/// As for [`bytes`]; the tile has so many rows.
#[inline(always)]
unsafe fn bytes_tile<const ROWS: usize>(tile: Tile) {
    let mut sums = [[0_i32; PANEL]; ROWS];
    for group in 0..tile.groups {
        // SAFETY: the panel has this group of each column.
        let w = unsafe { &*tile.panel.add(group * PANEL * GROUP).cast::<[u32; PANEL]>() };
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the row has this group.
            let x = unsafe { *tile.left.add(row * tile.left_stride + group * GROUP).cast::<u32>() };
            for (sum, w) in sums.iter_mut().zip(w) {
                let product = |at: u32| byte(x, at).wrapping_mul(byte(*w, at));
                *sum = sum.wrapping_add(product(0).wrapping_add(product(1)).wrapping_add(product(2).wrapping_add(product(3))));
            }
        }
    }
    // SAFETY: the panel has them.
    let Columns { scales, .. } = unsafe { &*tile.scales };
    for (row, sums) in sums.iter().enumerate() {
        for (column, sum) in sums.iter().enumerate().take(tile.columns) {
            // SAFETY: the result has this row and column, and so has what it is added to; the row has its scale.
            unsafe {
                let of_row = *sum as f32 * *tile.row_scales.add(row);
                let from = *tile.onto.row(row).add(column);
                *tile.into.add(row * tile.into_stride + column) = of_row.mul_add(scales[column], from);
            }
        }
    }
}

/// One of a group's integers.
#[inline(always)]
fn byte(group: u32, at: u32) -> i32 {
    (group << (24 - 8 * at)).cast_signed() >> 24
}

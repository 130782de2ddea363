//! Where the numbers of packed weights and rows are: in panels of columns and in rows, or as AMX's tiles. What becomes of a number is said in `numbers`.

use super::super::{PANEL, Packed};
#[cfg(target_arch = "x86_64")]
use super::tiles;
use super::{Columns, GROUP, GROUPS, Rounded, Width};
use crate::memory::Lines;

impl Rounded {
    /// Where a group of a column is in its panel.
    const fn place(self, group: usize, lane: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.is_tiled() {
            let (step, row) = (group / GROUPS, group % GROUPS);
            return (2 * step + lane * GROUP / tiles::ROW) * tiles::TILE + row * tiles::ROW + lane * GROUP % tiles::ROW;
        }
        (group * PANEL + lane) * GROUP
    }

    /// Where a row of so many begins, and bytes from line to line of it.
    pub(super) fn row_place(self, row: usize, rows: usize, stride: usize) -> (usize, usize) {
        #[cfg(target_arch = "x86_64")]
        if self.is_tiled() {
            let (first, at) = (row / tiles::HEIGHT * tiles::HEIGHT, row % tiles::HEIGHT);
            return (first * stride + at * tiles::ROW, (rows - first).min(tiles::HEIGHT) * tiles::ROW);
        }
        let _ = rows;
        (row * stride, GROUPS * GROUP)
    }

    /// Bytes of a weight of that many rows and columns as packed.
    pub(in super::super) fn packed_bytes(self, k: usize, n: usize) -> usize {
        let panels = n.div_ceil(PANEL);
        let columns = if self.width == Width::Byte { Lines::rounded(panels * size_of::<Columns>()) } else { 0 };
        panels * self.panel_bytes(k) + columns
    }

    /// Bytes of a panel.
    const fn panel_bytes(self, k: usize) -> usize {
        let bytes = self.groups(k) * PANEL * GROUP;
        if matches!(self.width, Width::Thirds) { 2 * bytes } else { bytes }
    }

    /// Packs the weight `w(k, n)` as floats: of sixteen columns those of one k, and then those of the k that is in one group with it.
    fn pack_floats(self, (k, n): (usize, usize), w: &dyn Fn(usize, usize) -> f32) -> Packed {
        const LANES: usize = 16;
        let floats_of_panel = self.panel_bytes(k) / size_of::<f32>();
        let mut data = Lines::zeroed(n.div_ceil(PANEL) * self.panel_bytes(k));
        let floats = data.floats_mut();
        for row in 0..k {
            let (step, pair, of_pair) = (row / (2 * GROUPS), row / 2 % GROUPS, row % 2);
            for column in 0..n {
                let (panel, half, lane) = (column / PANEL, column % PANEL / LANES, column % LANES);
                let vector = ((2 * step + half) * GROUPS + pair) * 2 + of_pair;
                floats[panel * floats_of_panel + vector * LANES + lane] = w(row, column);
            }
        }
        Packed { k, data, columns: Lines::default() }
    }

    /// Packs the weight `w(k, n)`.
    pub(in super::super) fn pack(self, (k, n): (usize, usize), w: &dyn Fn(usize, usize) -> f32) -> Packed {
        if self.width == Width::Thirds {
            return self.pack_floats((k, n), w);
        }
        let (groups, panels) = (self.groups(k), n.div_ceil(PANEL));
        let mut data = Lines::zeroed(panels * groups * PANEL * GROUP);
        let mut columns = match self.width {
            Width::Thirds | Width::Half => Lines::default(),
            Width::Byte => Lines::zeroed(panels * size_of::<Columns>()),
        };
        let mut column = vec![0.0_f32; k];
        let mut packed = vec![0_u8; groups * GROUP];
        for at in 0..n {
            column.iter_mut().enumerate().for_each(|(row, value)| *value = w(row, at));
            let scale = self.round(&column, &mut packed, false);
            let (panel, lane) = (at / PANEL, at % PANEL);
            for (group, bytes) in packed.chunks_exact(GROUP).enumerate() {
                data.bytes_mut()[panel * groups * PANEL * GROUP + self.place(group, lane)..][..GROUP].copy_from_slice(bytes);
            }
            if self.width == Width::Byte {
                let sum: i32 = packed.iter().map(|byte| i32::from(byte.cast_signed())).sum();
                // A panel's scales, then its sums.
                let floats = &mut columns.floats_mut()[panel * 2 * PANEL..];
                floats[lane] = scale;
                floats[PANEL + lane] = f32::from_bits((128 * sum).cast_unsigned());
            }
        }
        Packed { k, data, columns }
    }
}

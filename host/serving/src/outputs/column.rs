//! The rows of one output, as they arrive.

use std::ops::Range;
use std::sync::Arc;

use cellwright_cell_graph::cell::Port;
use cellwright_cell_graph::datatype::Datatype;

use crate::join::{Piece, Run};

/// Rows lie in blocks of so many bytes, or of one row.
const BLOCK_BYTES: usize = 64 << 10;

/// The rows of one output that have arrived.
///
/// They lie in blocks, which whoever reads them shares: rows are not moved when there are more of them, and only a block is ever copied because a row
/// is written to it that others have not seen.
#[derive(Debug)]
pub(super) struct Column {
    datatype: Datatype,
    row_shape: Vec<usize>,
    row_bytes: usize,
    /// Only the last step matters: its row is the only one.
    pub(super) last_only: bool,
    /// Step of the row held, if `last_only`.
    pub(super) last_step: Option<u32>,
    /// Rows that there may be.
    rows_max: usize,
    /// Rows of one block; the last one may have fewer.
    block_rows: usize,
    blocks: Vec<Option<Arc<Vec<u8>>>>,
    arrived: Vec<bool>,
    /// Steps 0..in_order have arrived.
    pub(super) in_order: u32,
    /// Steps that the plugin has seen.
    pub(super) seen: u32,
    /// The plugin watches it, and cannot be called before more of it arrives.
    pub(super) awaited: bool,
}

impl Column {
    /// Of that port's rows, at most so many; of the last one alone if `last_only`.
    pub(super) fn new(port: &Port, last_only: bool, steps_max: u32) -> Self {
        let row_shape: Vec<usize> = port.shape.iter().map(|extent| *extent as usize).collect();
        let row_bytes = row_shape.iter().product::<usize>() * port.datatype.size().unwrap_or(0);
        Self {
            datatype: port.datatype,
            row_bytes,
            row_shape,
            last_only,
            last_step: None,
            rows_max: if last_only { 1 } else { steps_max as usize },
            block_rows: (BLOCK_BYTES / row_bytes.max(1)).max(1),
            blocks: Vec::new(),
            arrived: Vec::new(),
            in_order: 0,
            seen: 0,
            awaited: false,
        }
    }

    /// Bytes of one row.
    pub(super) const fn row_bytes(&self) -> u64 {
        self.row_bytes as u64
    }

    /// Bytes that it will take if its chain has that many steps.
    pub(super) fn bytes(&self, steps: u32) -> u64 {
        if self.last_only { self.row_bytes() } else { u64::from(steps).saturating_mul(self.row_bytes() + 1) }
    }

    pub(super) fn take(&mut self, step: u32, bytes: &[u8]) {
        if bytes.len() != self.row_bytes {
            return;
        }
        if self.last_only {
            if self.last_step.is_none_or(|last| last <= step) {
                self.last_step = Some(step);
                self.write(0, bytes);
            }
            return;
        }
        let index = step as usize;
        if index >= self.rows_max {
            return;
        }
        self.write(index, bytes);
        if self.arrived.len() <= index {
            self.arrived.resize(index + 1, false);
        }
        self.arrived[index] = true;
        while self.arrived.get(self.in_order as usize) == Some(&true) {
            self.in_order += 1;
        }
    }

    fn write(&mut self, index: usize, bytes: &[u8]) {
        let (number, within) = (index / self.block_rows, index % self.block_rows);
        if self.blocks.len() <= number {
            self.blocks.resize(number + 1, None);
        }
        let rows = self.block_rows.min(self.rows_max - (index - within));
        let block = self.blocks[number].get_or_insert_with(|| Arc::new(vec![0; rows * self.row_bytes]));
        Arc::make_mut(block)[within * self.row_bytes..(within + 1) * self.row_bytes].copy_from_slice(bytes);
    }

    /// No rows, to add some to.
    pub(super) fn no_rows(&self) -> Piece {
        self.stacked(0..0)
    }

    /// Those steps, stacked.
    pub(super) fn stacked(&self, steps: Range<u32>) -> Piece {
        let shape = std::iter::once(steps.len()).chain(self.row_shape.iter().copied()).collect();
        Piece { datatype: self.datatype, shape, runs: self.runs(steps.start as usize..steps.end as usize) }
    }

    /// The row of one step, by itself.
    pub(super) fn row(&self, step: u32) -> Option<Piece> {
        let row = if self.last_only { 0 } else { step as usize };
        let runs = self.runs(row..row + 1);
        (!runs.is_empty()).then(|| Piece { datatype: self.datatype, shape: self.row_shape.clone(), runs })
    }

    /// Those rows, which have arrived.
    fn runs(&self, rows: Range<usize>) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut row = rows.start;
        while row < rows.end {
            let within = row % self.block_rows;
            let Some(Some(block)) = self.blocks.get(row / self.block_rows) else { break };
            let until = rows.end.min(row - within + self.block_rows);
            let start = within * self.row_bytes;
            runs.push(Run::new(block.clone(), start..start + (until - row) * self.row_bytes));
            row = until;
        }
        runs
    }
}

//! The rows of one output, as they arrive.

use std::ops::Range;

use cellwright_cell_graph::Tensor;
use cellwright_cell_graph::cell::Port;
use cellwright_cell_graph::datatype::Datatype;

/// The rows of one output that have arrived.
#[derive(Debug)]
pub(super) struct Column {
    datatype: Datatype,
    row_shape: Vec<usize>,
    row_bytes: usize,
    /// Only the last step matters.
    last_only: bool,
    /// Step of the row held, if `last_only`.
    pub(super) last_step: Option<u32>,
    rows: Vec<u8>,
    arrived: Vec<bool>,
    /// Steps 0..in_order have arrived.
    pub(super) in_order: u32,
    /// Steps that the plugin has seen.
    pub(super) seen: u32,
    /// The plugin watches it, and cannot be called before more of it arrives.
    pub(super) awaited: bool,
}

impl Column {
    /// Of that port's rows; of the last one alone if `last_only`.
    pub(super) fn new(port: &Port, last_only: bool) -> Self {
        let row_shape: Vec<usize> = port.shape.iter().map(|extent| *extent as usize).collect();
        Self {
            datatype: port.datatype,
            row_bytes: row_shape.iter().product::<usize>() * port.datatype.size().unwrap_or(0),
            row_shape,
            last_only,
            last_step: None,
            rows: Vec::new(),
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
                self.rows.clear();
                self.rows.extend_from_slice(bytes);
            }
            return;
        }
        let index = step as usize;
        if self.arrived.len() <= index {
            self.arrived.resize(index + 1, false);
            self.rows.resize((index + 1) * self.row_bytes, 0);
        }
        self.rows[index * self.row_bytes..(index + 1) * self.row_bytes].copy_from_slice(bytes);
        self.arrived[index] = true;
        while self.arrived.get(self.in_order as usize) == Some(&true) {
            self.in_order += 1;
        }
    }

    /// No rows, in a tensor to put some in.
    pub(super) fn no_rows(&self, name: &str) -> Tensor {
        self.stacked(name, 0..0)
    }

    /// Those steps, stacked.
    pub(super) fn stacked(&self, name: &str, steps: Range<u32>) -> Tensor {
        let bytes = steps.start as usize * self.row_bytes..steps.end as usize * self.row_bytes;
        let mut shape = vec![steps.len()];
        shape.extend_from_slice(&self.row_shape);
        Tensor { name: name.to_owned(), datatype: self.datatype, shape, data: self.rows.get(bytes).unwrap_or_default().to_vec() }
    }

    /// The row of one step, by itself.
    pub(super) fn row(&self, name: &str, step: u32) -> Option<Tensor> {
        let data = match self.last_step {
            Some(_) => self.rows.clone(),
            None => self.rows.get(step as usize * self.row_bytes..(step as usize + 1) * self.row_bytes)?.to_vec(),
        };
        Some(Tensor { name: name.to_owned(), datatype: self.datatype, shape: self.row_shape.clone(), data })
    }
}

//! What the first half of a cell gives for each token, kept from the first time that a token is seen.
//!
//! Nothing is computed for it when a cell is loaded: no worker is kept from its tasks, and a vocabulary of which little is used takes little memory.
//! Workers of a domain share a table. A row is written once, by whoever claims it, and read only when it is complete.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use cellwright_backend::TableInfo;
use cellwright_cell_graph::TypedCell;

use crate::plan::element_of;

/// Where a row's parts begin: at cache lines.
const LINE: usize = 64;

const EMPTY: u8 = 0;
const CLAIMED: u8 = 1;
const COMPLETE: u8 = 2;

/// A table by token.
#[derive(Debug)]
pub(crate) struct Table {
    tokens: usize,
    /// Bytes from row to row.
    stride: usize,
    /// Where each output is in a row, and its bytes.
    outputs: Vec<(usize, usize)>,
    states: Vec<AtomicU8>,
    memory: Untouched,
    filled: Arc<AtomicU64>,
}

impl Table {
    /// An empty table of what that half gives; none if it takes more than so many bytes, or the system has no room for it.
    pub(crate) fn new(pre: &TypedCell, tokens: usize, bytes_most: u64) -> Option<Self> {
        let mut stride = 0_usize;
        let mut outputs = Vec::with_capacity(pre.outputs.len());
        for output in &pre.outputs {
            let value = pre.value(output.value);
            let bytes = value.elements().checked_mul(element_of(value.datatype)?.size())?;
            outputs.push((stride, bytes));
            stride = stride.checked_add(bytes)?.checked_next_multiple_of(LINE)?;
        }
        let bytes = stride.checked_mul(tokens).filter(|bytes| *bytes > 0 && *bytes as u64 <= bytes_most)?;
        let memory = Untouched::new(bytes)?;
        Some(Self { tokens, stride, outputs, states: (0..tokens).map(|_| AtomicU8::new(EMPTY)).collect(), memory, filled: Arc::default() })
    }

    pub(crate) fn info(&self) -> TableInfo {
        TableInfo { bytes: self.bytes(), tokens: self.tokens as u64, filled: self.filled.clone() }
    }

    pub(crate) const fn bytes(&self) -> u64 {
        (self.stride * self.tokens) as u64
    }

    /// Which token an index means; a negative one counts from the end.
    pub(crate) fn token(&self, index: i64) -> Option<usize> {
        let tokens = self.tokens as i64;
        let token = if index < 0 { index.checked_add(tokens)? } else { index };
        (0..tokens).contains(&token).then_some(token as usize)
    }

    fn place(&self, token: usize, output: usize) -> *mut u8 {
        self.memory.start.as_ptr().wrapping_add(token * self.stride + self.outputs[output].0)
    }

    /// Where each output of a token is, if it is there.
    pub(crate) fn find(&self, token: usize) -> Option<impl Iterator<Item = *const u8>> {
        let complete = self.states.get(token)?.load(Ordering::Acquire) == COMPLETE;
        complete.then(|| (0..self.outputs.len()).map(move |output| self.place(token, output).cast_const()))
    }

    /// Keeps a token's outputs, unless somebody else does.
    ///
    /// # Safety
    /// `from` gives as many readable bytes for each output as the half that the table was made for.
    pub(crate) unsafe fn keep(&self, token: usize, from: impl Fn(usize) -> *const u8) {
        let Some(state) = self.states.get(token) else { return };
        if state.compare_exchange(EMPTY, CLAIMED, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        for (output, (_, bytes)) in self.outputs.iter().enumerate() {
            // SAFETY: the caller's promise; the row is within the table, whoever claimed it alone writes it, and nobody reads it before it is complete.
            unsafe { std::ptr::copy_nonoverlapping(from(output), self.place(token, output), *bytes) };
        }
        state.store(COMPLETE, Ordering::Release);
        self.filled.fetch_add(1, Ordering::Relaxed);
    }
}

/// Zeroed bytes from a cache line on, of which the system gives out what is touched.
#[derive(Debug)]
struct Untouched {
    start: NonNull<u8>,
    whole: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the bytes are owned; who may write them is the table's business.
unsafe impl Send for Untouched {}
// SAFETY: as above.
unsafe impl Sync for Untouched {}

impl Untouched {
    fn new(bytes: usize) -> Option<Self> {
        // Beyond what allocators align to by themselves, they would zero the pages by hand.
        let layout = Layout::from_size_align(bytes.checked_add(LINE)?, align_of::<u64>()).ok()?;
        // SAFETY: the layout's size is not zero.
        let whole = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let start = NonNull::new(whole.as_ptr().wrapping_add(whole.as_ptr().align_offset(LINE)))?;
        Some(Self { start, whole, layout })
    }
}

impl Drop for Untouched {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.whole.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use cellwright_backend::conformance::cells;
    use cellwright_cell_graph::Tensor;
    use cellwright_cell_graph::hoist;

    use super::*;

    fn leaf() -> hoist::ByToken {
        let weight = |name: &str| {
            let shape: &[usize] = match name {
                "emb.weight" => &[6, 5],
                "leaf.weight" => &[21, 5],
                _ => &[21],
            };
            Tensor::from_f32(name, shape, &vec![0.5; shape.iter().product()])
        };
        hoist::by_token(&cells::tree_leaf(7, &weight).resolve()).expect("a leaf is its token's")
    }

    #[test]
    fn a_row_is_found_once_it_is_kept_and_stays_what_it_was() {
        let hoist::ByToken { tokens, hoisted, .. } = leaf();
        let bytes = 6 * 2 * 64;
        assert!(Table::new(&hoisted.pre.cell, tokens, bytes - 1).is_none(), "two outputs of 28 bytes, each at a line of its own");
        let table = Table::new(&hoisted.pre.cell, tokens, bytes).expect("it fits");
        assert_eq!([table.token(5), table.token(-1), table.token(6), table.token(-7)], [Some(5), Some(5), None, None]);
        assert!(table.find(5).is_none());
        for fill in [3_u8, 4] {
            let row = [[fill; 28], [fill + 10; 28]];
            // SAFETY: there are two outputs of 28 bytes.
            unsafe { table.keep(5, |output| row[output].as_ptr()) };
        }
        // SAFETY: a row that is found has its outputs' bytes.
        let kept: Vec<u8> = table.find(5).expect("it was kept").map(|at| unsafe { *at }).collect();
        assert_eq!(kept, [3, 13], "what came first");
        assert!(table.find(4).is_none() && table.find(6).is_none());
        assert_eq!(table.info().filled.load(Ordering::Relaxed), 1);
    }
}

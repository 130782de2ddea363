//! Tables by token: what the first half of a cell gives for a token, or what one input adds to a
//! sum.
//!
//! A row is computed when its token is first seen, not when the cell is loaded. So no worker is
//! kept from its tasks, and a vocabulary that is little used takes little memory. Rows hold exactly
//! what would be computed, so a lookup changes no bit. What a product puts down is f32 at every
//! precision.
//!
//! Workers of a domain share a table. A row is written once, by the worker that claims its token,
//! and read only when complete. All tables of a domain share one budget. A vocabulary that does not
//! fit gets half of what is left, for the tokens that come first, if that is room for a quarter of
//! them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cellwright_backend::TableInfo;
use cellwright_cell_graph::TypedCell;

use crate::plan::element_of;

/// Where a row's parts begin: at cache lines.
const LINE: usize = 64;

/// What is said of a token: nothing, that somebody has claimed it (and found no row for it, perhaps), or, from there on, which row is its own.
const EMPTY: u32 = 0;
const CLAIMED: u32 = 1;
const COMPLETE: u32 = 2;

/// Bytes that tables of a domain may take.
#[derive(Debug)]
pub(crate) struct Budget {
    whole: u64,
    left: AtomicU64,
}

impl Budget {
    pub(crate) const fn new(bytes: u64) -> Self {
        Self { whole: bytes, left: AtomicU64::new(bytes) }
    }

    /// Whether there are never to be tables.
    pub(crate) const fn is_nothing(&self) -> bool {
        self.whole == 0
    }

    /// Rows of tables by so many tokens, one table of each of these kinds of row: of every token, or as many as there is room for in half of what is left, so that not all
    /// of it is gone.
    pub(crate) fn rows<'r>(&self, kinds: impl Iterator<Item = &'r TableRow> + Clone, tokens: usize) -> usize {
        let bytes = |rows: usize| kinds.clone().map(|row| row.bytes_for(rows, tokens)).fold(0, u64::saturating_add);
        let left = self.left.load(Ordering::Relaxed);
        if bytes(tokens) <= left {
            return tokens;
        }
        let for_rows = (left / 2).saturating_sub(bytes(0));
        usize::try_from(for_rows / bytes(1).saturating_sub(bytes(0)).max(1)).unwrap_or(usize::MAX).min(tokens)
    }

    /// Whether there were as many, which are taken then.
    fn take(&self, bytes: u64) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Where the outputs of a half, or of a part, are in a table's row.
#[derive(Clone, Debug)]
pub(crate) struct TableRow {
    /// Bytes from row to row.
    stride: usize,
    /// Where each output is, and its bytes.
    outputs: Vec<(usize, usize)>,
}

impl TableRow {
    /// A row of what that half gives; none if it has no end.
    pub(crate) fn of(pre: &TypedCell) -> Option<Self> {
        let mut stride = 0_usize;
        let mut outputs = Vec::with_capacity(pre.outputs.len());
        for output in &pre.outputs {
            let value = pre.value(output.value);
            let bytes = value.elements().checked_mul(element_of(value.datatype)?.size())?;
            outputs.push((stride, bytes));
            stride = stride.checked_add(bytes)?.checked_next_multiple_of(LINE)?;
        }
        Some(Self { stride, outputs })
    }

    /// Bytes of a table of so many rows, for so many tokens.
    const fn bytes_for(&self, rows: usize, tokens: usize) -> u64 {
        (self.stride as u64).saturating_mul(rows as u64).saturating_add((tokens as u64).saturating_mul(size_of::<AtomicU32>() as u64))
    }
}

/// A table by token.
#[derive(Debug)]
pub(crate) struct Table {
    row: TableRow,
    rows: usize,
    /// By token.
    states: Vec<AtomicU32>,
    /// Rows that were given to tokens, or asked for in vain.
    asked: AtomicU32,
    memory: Untouched,
    budget: Arc<Budget>,
    /// Of all tables of its cell.
    info: Arc<TableInfo>,
}

impl Table {
    /// An empty table of so many rows, for those that come first of so many tokens; none if it takes more than the budget has, or the system has no room for it.
    pub(crate) fn new(row: &TableRow, (rows, tokens): (usize, usize), budget: &Arc<Budget>, info: &Arc<TableInfo>) -> Option<Self> {
        u32::try_from(tokens).ok()?.checked_add(COMPLETE)?;
        let of_rows = row.stride.checked_mul(rows).filter(|bytes| *bytes > 0)?;
        let bytes = (of_rows as u64).checked_add(row.bytes_for(0, tokens))?;
        if !budget.take(bytes) {
            return None;
        }
        let Some(memory) = Untouched::new(of_rows) else {
            budget.give_back(bytes);
            return None;
        };
        info.bytes.fetch_add(bytes, Ordering::Relaxed);
        info.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        let states = (0..tokens).map(|_| AtomicU32::new(EMPTY)).collect();
        Some(Self { row: row.clone(), rows, states, asked: AtomicU32::new(0), memory, budget: budget.clone(), info: info.clone() })
    }

    /// Whether another token's row may be kept.
    pub(crate) fn has_room(&self) -> bool {
        (self.asked.load(Ordering::Relaxed) as usize) < self.rows
    }

    pub(crate) const fn info(&self) -> &Arc<TableInfo> {
        &self.info
    }

    /// Which token an index means; a negative one counts from the end.
    pub(crate) fn token(&self, index: i64) -> Option<usize> {
        let tokens = self.states.len() as i64;
        let token = if index < 0 { index.checked_add(tokens)? } else { index };
        (0..tokens).contains(&token).then_some(token as usize)
    }

    fn place(&self, row: usize, output: usize) -> *mut u8 {
        self.memory.start.as_ptr().wrapping_add(row * self.row.stride + self.row.outputs[output].0)
    }

    /// Where each output of a token is, if it is there.
    pub(crate) fn find(&self, token: usize) -> Option<impl Iterator<Item = *const u8>> {
        let row = self.states.get(token)?.load(Ordering::Acquire).checked_sub(COMPLETE)? as usize;
        Some((0..self.row.outputs.len()).map(move |output| self.place(row, output).cast_const()))
    }

    /// Keeps a token's outputs, unless somebody else does or all rows are others'.
    ///
    /// # Safety
    /// `from` gives as many readable bytes for each output as the half that the table was made for.
    pub(crate) unsafe fn keep(&self, token: usize, from: impl Fn(usize) -> *const u8) {
        let Some(state) = self.states.get(token) else { return };
        if state.compare_exchange(EMPTY, CLAIMED, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        // Each token asks once, so this ends.
        let row = self.asked.fetch_add(1, Ordering::Relaxed);
        if row as usize >= self.rows {
            return;
        }
        for (output, (_, bytes)) in self.row.outputs.iter().enumerate() {
            // SAFETY: the caller's promise; the row is within the table, whoever claimed its token alone writes it, and nobody reads it before it is complete.
            unsafe { std::ptr::copy_nonoverlapping(from(output), self.place(row as usize, output), *bytes) };
        }
        state.store(COMPLETE + row, Ordering::Release);
        self.info.filled.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let bytes = self.row.bytes_for(self.rows, self.states.len());
        let filled = self.states.iter().filter(|state| state.load(Ordering::Relaxed) >= COMPLETE).count();
        self.info.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.info.tokens.fetch_sub(self.states.len() as u64, Ordering::Relaxed);
        self.info.filled.fetch_sub(filled as u64, Ordering::Relaxed);
        self.budget.give_back(bytes);
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
    use cellwright_cell_graph::Tensor;
    use cellwright_cell_graph::hoist;
    use cellwright_conformance::cells;

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
        let row = TableRow::of(&hoisted.pre.cell).expect("it has an end");
        let (bytes, info) = (6 * (2 * 64 + 4), Arc::default());
        assert!(
            Table::new(&row, (tokens, tokens), &Arc::new(Budget::new(bytes - 1)), &info).is_none(),
            "two outputs of 28 bytes, each at a line of its own, and what is said of each token"
        );
        let budget = Arc::new(Budget::new(bytes));
        let table = Table::new(&row, (tokens, tokens), &budget, &info).expect("it fits");
        assert!(Table::new(&row, (tokens, tokens), &budget, &info).is_none(), "nothing is left");
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
        let said = || [&info.bytes, &info.tokens, &info.filled].map(|figure| figure.load(Ordering::Relaxed));
        assert_eq!(said(), [bytes, 6, 1]);
        drop(table);
        assert_eq!(said(), [0; 3]);
        assert!(Table::new(&row, (tokens, tokens), &budget, &info).is_some(), "what it took was given back");
    }

    #[test]
    fn a_table_of_fewer_rows_has_the_tokens_that_come_first() {
        let hoist::ByToken { tokens, hoisted, .. } = leaf();
        let row = TableRow::of(&hoisted.pre.cell).expect("it has an end");
        let (budget, info) = (Arc::new(Budget::new(1 << 20)), Arc::default());
        let table = Table::new(&row, (2, tokens), &budget, &info).expect("it fits");
        for token in [4, 1, 5, 4, 5] {
            let bytes = [token as u8; 28];
            // SAFETY: there are two outputs of 28 bytes.
            unsafe { table.keep(token, |_| bytes.as_ptr()) };
        }
        // SAFETY: a row that is found has its outputs' bytes.
        let found = (0..tokens).filter_map(|token| Some((token, table.find(token)?.map(|at| unsafe { *at.add(27) }).collect::<Vec<_>>())));
        assert_eq!(found.collect::<Vec<_>>(), [(1, vec![1, 1]), (4, vec![4, 4])]);
        assert_eq!([&info.bytes, &info.tokens, &info.filled].map(|figure| figure.load(Ordering::Relaxed)), [2 * 2 * 64 + 6 * 4, 6, 2]);
        assert!(!table.has_room());
    }
}

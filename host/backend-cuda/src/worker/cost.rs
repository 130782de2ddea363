//! What rows take of the rings through which tasks come and go, and how many of them can be one batch.
//!
//! Lists and a status take as much for every row. What the host has of a row's inputs, and what a row brings to it, is most of what is copied, and most rows have
//! none of either: they are steps in the middle of a chain, whose states stay on the device. So batches are bounded by what their rows take, not by what they might.

use super::frame::FrameMemory;
use super::resident::Resident;
use super::together::Selected;
use crate::abi::{BatchHead, LstmRows, RowEntry, RowStatus};

/// What lies between the pieces of a segment so that each is aligned.
pub(super) const SLACK: usize = 64;

/// Bytes that a row of a cell takes, but for what the host has of its inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    lists: usize,
    /// Of a row that brings outputs to the host, at most.
    outputs: usize,
}

/// Rows that go together, as far as it matters for what they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) rows: usize,
    /// Bytes that the host has of their inputs, at most.
    pub(super) hosted: usize,
    /// Rows that may bring outputs to the host.
    pub(super) bringing: usize,
}

/// How much may be one batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) cost: Cost,
    pub(super) rows: usize,
    /// Of each of the two rings.
    pub(super) bytes: usize,
}

impl Cost {
    pub(super) fn new(resident: &Resident) -> Self {
        let (inputs, outlets) = (&resident.plan.inputs, &resident.plan.outlets);
        // Each row may be a step of its own.
        let of_step = if resident.plan.recurrence.is_some() { size_of::<LstmRows>() } else { 0 };
        let of_number = if resident.ahead.is_some() { size_of::<u64>() } else { 0 };
        Self {
            lists: size_of::<RowEntry>() + of_step + of_number + inputs.len() * size_of::<u64>() + outlets.len() * size_of::<u32>(),
            outputs: outlets.iter().map(|outlet| (outlet.bytes as usize).next_multiple_of(16)).sum(),
        }
    }

    /// Of a batch: up and down.
    pub(super) const fn of(self, Load { rows, hosted, bringing }: Load) -> (usize, usize) {
        (rows * self.lists + hosted + SLACK + size_of::<BatchHead>(), rows * size_of::<RowStatus>() + bringing * self.outputs + SLACK)
    }
}

/// Bytes that a row takes of an upload, at most, if the host has all of its pieces, or lists them.
pub(super) const fn hosted_in_pieces(bytes: usize, pieces: usize) -> usize {
    let list = if pieces > 0 { (1 + pieces) * size_of::<u64>() } else { 0 };
    bytes.next_multiple_of(16) + list.next_multiple_of(16) + 16 * pieces
}

impl Load {
    pub(super) fn of(rows: &[Selected]) -> Self {
        rows.iter().fold(Self::default(), Self::and)
    }

    /// One row that takes as much as any.
    pub(super) fn most(resident: &Resident) -> Self {
        let plan = &resident.plan;
        let hosted =
            plan.inputs.iter().zip(&plan.pieces).map(|(input, pieces)| hosted_in_pieces(input.bytes as usize, *pieces as usize)).sum();
        Self { rows: 1, hosted, bringing: 1 }
    }

    fn and(self, row: &Selected) -> Self {
        self.plus(Self { rows: 1, hosted: row.hosted as usize, bringing: usize::from(row.brings) })
    }

    pub(super) const fn plus(self, more: Self) -> Self {
        Self { rows: self.rows + more.rows, hosted: self.hosted.wrapping_add(more.hosted), bringing: self.bringing + more.bringing }
    }
}

impl Limit {
    pub(super) fn new(resident: &Resident, frame: FrameMemory, rows_most: usize, bytes: usize) -> Self {
        Self { cost: Cost::new(resident), rows: resident.rows_in(frame).min(rows_most), bytes }
    }

    pub(super) const fn holds(&self, load: Load) -> bool {
        let (up, down) = self.cost.of(load);
        load.rows <= self.rows && up <= self.bytes && down <= self.bytes
    }

    /// Rows in parts of which each is within the limit, or a single row, and that are about as large as each other if what they take allows it.
    pub(super) fn parts<'a>(&self, mut rows: &'a [Selected]) -> impl Iterator<Item = (&'a [Selected], Load)> {
        let all = Load::of(rows);
        let (up, down) = self.cost.of(all);
        let count = rows.len().div_ceil(self.rows).max(up.max(down).div_ceil(self.bytes)).max(1);
        let size = rows.len().div_ceil(count);
        std::iter::from_fn(move || {
            let (mut load, mut end) = rows.first().map(|row| (Load::default().and(row), 1))?;
            while let Some(row) = rows[..size.min(rows.len())].get(end)
                && self.holds(load.and(row))
            {
                (load, end) = (load.and(row), end + 1);
            }
            let part = rows.split_off(..end)?;
            Some((part, load))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_backend::LaneId;

    fn rows(count: usize, of: impl Fn(usize) -> (u32, bool)) -> Vec<Selected> {
        let row = |row: usize| {
            let (hosted, brings) = of(row);
            Selected { position: row as u32, lane: LaneId(row as u32), step: 0, hosted, brings }
        };
        (0..count).map(row).collect()
    }

    const LIMIT: Limit = Limit { cost: Cost { lists: 80, outputs: 4096 }, rows: 300, bytes: 1 << 18 };

    fn sizes(rows: &[Selected]) -> Vec<usize> {
        let parts: Vec<(&[Selected], Load)> = LIMIT.parts(rows).collect();
        let mut positions = rows.iter();
        for (part, load) in &parts {
            assert_eq!(*load, Load::of(part));
            assert!(LIMIT.holds(*load) || part.len() == 1, "{load:?}");
            part.iter().for_each(|row| assert_eq!(Some(row), positions.next()));
        }
        assert_eq!(positions.next(), None, "all of them");
        parts.iter().map(|(part, _)| part.len()).collect()
    }

    #[test]
    fn rows_that_bring_nothing_are_bounded_by_their_number() {
        assert_eq!(sizes(&rows(300, |_| (0, false))), [300]);
        assert_eq!(sizes(&rows(301, |_| (0, false))), [151, 150]);
        assert_eq!(sizes(&rows(0, |_| (0, false))), [0; 0]);
    }

    #[test]
    fn parts_are_as_large_as_what_their_rows_bring_and_have_allows() {
        // A few of all: as if there were none.
        assert_eq!(sizes(&rows(300, |row| (0, row % 24 == 0))), [300]);
        // 63 outputs, statuses and slack fill a ring of 256 KiB.
        assert_eq!(sizes(&rows(120, |_| (0, true))), [60, 60]);
        // Those that bring something are next to each other, so that equal parts would not do.
        assert_eq!(sizes(&rows(200, |row| (0, row < 100))), [63, 100, 37]);
        assert_eq!(sizes(&rows(4, |_| (100_000, false))), [2, 2]);
        // One that takes more than there is goes alone.
        assert_eq!(sizes(&rows(3, |row| (if row == 1 { 300_000 } else { 0 }, false))), [1, 1, 1]);
    }
}

//! Capacity for long-lived tables. They grow by a sixteenth instead of doubling, so that little
//! memory is unused.

use std::collections::VecDeque;

/// The least number of entries to reserve.
const ROOM_MIN: usize = 4;
/// Tables grow by one in so many of their entries.
const SHARE: usize = 16;

/// Reserves capacity for `more` entries in a table.
#[inline]
pub(crate) fn in_table<T>(table: &mut Vec<T>, more: usize) {
    if table.capacity() - table.len() < more {
        table.reserve_exact(more.max(ROOM_MIN) + table.len() / SHARE);
    }
}

/// Reserves capacity for `more` entries in a ring.
#[inline]
pub(crate) fn in_ring<T>(ring: &mut VecDeque<T>, more: usize) {
    if ring.capacity() - ring.len() < more {
        ring.reserve_exact(more.max(ROOM_MIN) + ring.len() / SHARE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_grow_by_little() {
        let (mut table, mut ring, mut grown) = (Vec::new(), VecDeque::new(), 0);
        for entry in 0..1000 {
            let before = table.capacity();
            in_table(&mut table, 1);
            table.push(entry);
            in_ring(&mut ring, 1);
            ring.push_back(entry);
            grown += u32::from(table.capacity() > before);
            assert!(table.capacity().max(ring.capacity()) <= table.len() + table.len() / 16 + ROOM_MIN);
        }
        assert!(grown < 80, "grown {grown} times");
        in_table(&mut table, 500);
        assert!(table.capacity() >= 1500);
    }
}

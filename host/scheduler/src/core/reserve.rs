//! Memory for tables that last: they grow by a sixteenth, not to the double, so that little is reserved in vain.

use std::collections::VecDeque;

/// Room for so many is made at least.
const ROOM_MIN: usize = 4;
/// And for so great a share of those that there are.
const SHARE: usize = 16;

/// Room for so many entries more in a table.
#[inline]
pub(crate) fn in_table<T>(table: &mut Vec<T>, more: usize) {
    if table.capacity() - table.len() < more {
        table.reserve_exact(more.max(ROOM_MIN) + table.len() / SHARE);
    }
}

/// Room for so many entries more in a ring.
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

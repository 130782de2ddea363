//! Entries in the order of their keys. Most are added at the end and removed at the front.
//!
//! A ring of ascending keys. A removed entry leaves a gap, because its key often comes back. Gaps
//! are dropped when they reach an end of the ring, or when they are more than half of it. A key
//! between two others that has no gap is inserted if few entries have to move. Otherwise it goes
//! into a tree of strays. That is rare, and no slower than a tree of all entries.

use std::collections::{BTreeMap, VecDeque};

use crate::core::queues::{Item, Key};
use crate::core::reserve;

/// Gaps that are always tolerated.
const GONE_MIN: usize = 32;

/// Entries that move, at most, for a key between two others.
const MOVED_MAX: usize = 32;

/// One part of a queue.
#[derive(Debug, Default)]
pub(crate) struct SortedRing {
    ring: VecDeque<(Key, Option<Item>)>,
    /// Gaps in the ring.
    gone: usize,
    strays: BTreeMap<Key, Item>,
}

impl SortedRing {
    pub(crate) fn insert(&mut self, key: Key, item: Item) {
        reserve::in_ring(&mut self.ring, 1);
        if self.ring.back().is_none_or(|(last, _)| *last < key) {
            self.ring.push_back((key, Some(item)));
        } else if self.ring.front().is_some_and(|(first, _)| key < *first) {
            self.ring.push_front((key, Some(item)));
        } else {
            let before = match self.find(&key) {
                Ok(at) => {
                    let before = self.ring[at].1.replace(item);
                    self.gone -= usize::from(before.is_none());
                    before
                }
                Err(at) if at.min(self.ring.len() - at) <= MOVED_MAX => {
                    self.ring.insert(at, (key, Some(item)));
                    None
                }
                Err(_) => self.strays.insert(key, item),
            };
            assert!(before.is_none(), "two subgraphs in one place");
        }
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Item> {
        if let Some((_, Some(item))) = self.ring.pop_front_if(|(first, item)| item.is_some() && first == key) {
            self.trim();
            return Some(item);
        }
        let Some(item) = self.find(key).ok().and_then(|at| self.ring[at].1.take()) else { return self.strays.remove(key) };
        self.gone += 1;
        self.trim();
        if self.gone > GONE_MIN && self.gone > self.ring.len() / 2 {
            self.ring.retain(|(_, item)| item.is_some());
            self.gone = 0;
        }
        Some(item)
    }

    /// Drops gaps at the ends.
    fn trim(&mut self) {
        while self.gone > 0 && self.ring.pop_front_if(|(_, item)| item.is_none()).is_some() {
            self.gone -= 1;
        }
        while self.gone > 0 && self.ring.pop_back_if(|(_, item)| item.is_none()).is_some() {
            self.gone -= 1;
        }
    }

    /// In order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Item)> {
        let mut ring = self.ring.iter().filter_map(|(key, item)| Some((key, item.as_ref()?))).peekable();
        let mut strays = self.strays.iter().peekable();
        let alone = self.strays.is_empty();
        std::iter::from_fn(move || {
            if alone {
                return ring.next();
            }
            match (ring.peek(), strays.peek()) {
                (Some((one, _)), Some((other, _))) if other < one => strays.next(),
                (None, _) => strays.next(),
                _ => ring.next(),
            }
        })
    }

    /// The last entry at or before a key.
    pub(crate) fn last_to(&mut self, key: &Key) -> Option<(Key, &mut Item)> {
        let end = self.find(key).map_or_else(|at| at, |at| at + 1);
        let at = (0..end).rev().find(|at| self.ring[*at].1.is_some());
        let stray = self.strays.range_mut(..=*key).next_back();
        match (at, stray) {
            (Some(at), Some((stray, item))) if self.ring[at].0 < *stray => Some((*stray, item)),
            (None, Some((stray, item))) => Some((*stray, item)),
            (at, _) => {
                let (found, item) = &mut self.ring[at?];
                item.as_mut().map(|item| (*found, item))
            }
        }
    }

    /// Where a key is in the ring, or would be. Looks near the front first.
    fn find(&self, key: &Key) -> Result<usize, usize> {
        let mut end = 1;
        while self.ring.get(end).is_some_and(|(other, _)| other <= key) {
            end *= 2;
        }
        let (mut low, mut high) = (end / 2, end.min(self.ring.len()));
        while low < high {
            let middle = low.midpoint(high);
            match self.ring[middle].0.cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::{LaneId, Time};

    const fn key(order: u64) -> Key {
        Key { rank: 0, time: Time(0), order, chain: 0, stage: 0, step: 0 }
    }

    proptest! {
        /// Against a tree, in any order.
        #[test]
        fn a_line_is_a_map_in_order(changes in prop::collection::vec((0_u64..60, 0_u8..4), 1..400)) {
            let (mut ring, mut map) = (SortedRing::default(), BTreeMap::new());
            for (index, (order, what)) in changes.into_iter().enumerate() {
                // Mostly at the end, as queues are.
                let order = if what == 0 { order } else { order + index as u64 };
                let item = Item::Front(LaneId(index as u32));
                if map.contains_key(&key(order)) || what == 3 {
                    let first = map.keys().next().copied().filter(|_| what != 3).unwrap_or(key(order));
                    prop_assert_eq!(ring.remove(&first), map.remove(&first));
                } else {
                    ring.insert(key(order), item);
                    map.insert(key(order), item);
                }
                prop_assert!(ring.iter().eq(map.iter()));
                let before = ring.last_to(&key(order)).map(|(key, item)| (key, *item));
                prop_assert_eq!(before, map.range(..=key(order)).next_back().map(|(key, item)| (*key, *item)));
                prop_assert!(ring.gone <= GONE_MIN.max(ring.ring.len() / 2));
            }
        }
    }
}

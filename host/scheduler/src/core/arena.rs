//! The slots of a domain: which are free, and which tenant's values they last held.
//!
//! It owns numbers only; the bytes are the backend's. A buddy allocator gives the unused tail of a
//! block back at once, so little is lost to rounding. Every choice is the lowest address of the
//! smallest block that fits, so the allocator is deterministic.
//!
//! Small blocks that come back are kept for requests of exactly their size, last in, first out.
//! Requests of a model are alike, and memory that was touched lately is touched again. They go back
//! to the buddies when nothing else is left.
//!
//! A large request may find enough slots but none in a row. It then claims a block. What is free of
//! it, or comes free, is kept for that request. So it waits only for what lies in that block.

use crate::id::{RequestId, TenantId};

/// Slots whose last owner is remembered together.
const GRANULE: u32 = 64;

/// Free blocks of up to this many slots are kept by size.
const ALIKE_SLOTS: usize = 64;

/// The most free blocks kept of one size.
const ALIKE_MAX: usize = 1024;

/// The slots of one memory domain.
#[derive(Debug)]
pub(crate) struct Arena {
    slots: u32,
    free: u32,
    /// Bit i of `orders[k]`: the block of `1 << k` slots at `i << k` is free, and its buddy is not.
    orders: Vec<BitTree>,
    /// The starts of free blocks of one slot, two slots, and so on. They are in no order.
    alike: Vec<Vec<u32>>,
    claim: Option<Claim>,
    owners: Owners,
}

/// A request and its order of admission, because ids are used again.
pub(crate) type Claimant = (RequestId, u64);

/// A block that one request waits for.
#[derive(Debug)]
struct Claim {
    claimant: Claimant,
    start: u32,
    slots: u32,
    /// What is free of it: start and slots.
    free: Vec<(u32, u32)>,
    /// Slots that are not.
    missing: u32,
}

impl Claim {
    /// The part of a block of slots that lies in the claim: start and end.
    fn overlap(&self, start: u32, slots: u32) -> Option<(u32, u32)> {
        let (first, end) = (start.max(self.start), (start + slots).min(self.start + self.slots));
        (first < end).then_some((first, end))
    }
}

impl Arena {
    /// All slots free, none ever used.
    pub(crate) fn new(slots: u32) -> Self {
        let count = if slots == 0 { 0 } else { slots.ilog2() + 1 };
        let orders = (0..count).map(|order| BitTree::new((slots >> order) as usize)).collect();
        let alike = vec![Vec::new(); ALIKE_SLOTS];
        let mut arena = Self { slots, free: slots, orders, alike, claim: None, owners: Owners::default() };
        arena.merge(0, slots);
        arena
    }

    /// All slots.
    pub(crate) const fn slots(&self) -> u32 {
        self.slots
    }

    /// Slots that are free now.
    pub(crate) const fn free_slots(&self) -> u32 {
        self.free
    }

    /// The largest block there can be.
    pub(crate) fn largest(&self) -> u32 {
        if self.slots == 0 { 0 } else { 1 << self.slots.ilog2() }
    }

    /// `need` ≥ 1 slots in a row, or none if no block fits now.
    pub(crate) fn allocate(&mut self, need: u32) -> Option<u32> {
        let alike = self.alike.get_mut(need as usize - 1).and_then(Vec::pop);
        let start = match alike.or_else(|| self.split(need)) {
            Some(start) => start,
            None if need > self.free => return None,
            None => {
                self.merge_alike();
                self.split(need)?
            }
        };
        self.free -= need;
        Some(start)
    }

    /// Gives slots back: a block, or any part of one.
    pub(crate) fn free(&mut self, start: u32, slots: u32) {
        if slots == 0 {
            return;
        }
        self.free += slots;
        assert!(self.free <= self.slots, "more slots given back than there are");
        if let Some(claim) = &mut self.claim
            && let Some((first, end)) = claim.overlap(start, slots)
        {
            claim.free.push((first, end - first));
            claim.missing -= end - first;
            self.merge(start, first - start);
            return self.merge(end, start + slots - end);
        }
        match self.alike.get_mut(slots as usize - 1).filter(|alike| alike.len() < ALIKE_MAX) {
            Some(alike) => alike.push(start),
            None => self.merge(start, slots),
        }
    }

    /// Claims the block with most free slots of those whose size is that power of two, if none of
    /// them is free.
    pub(crate) fn claim(&mut self, claimant: Claimant, slots: u32) {
        self.drop_claim();
        self.merge_alike();
        let order = slots.ilog2() as usize;
        let Some(count) = self.orders.get(order).map(|tree| tree.bits) else { return };
        if self.orders[order..].iter().any(|tree| tree.first().is_some()) {
            return;
        }
        let mut free_of = vec![0; count];
        for (low, tree) in self.orders[..order].iter().enumerate() {
            for index in tree.iter() {
                if let Some(free) = free_of.get_mut(index >> (order - low)) {
                    *free += 1_u32 << low;
                }
            }
        }
        let Some((block, found)) = free_of.into_iter().enumerate().rev().max_by_key(|(_, free)| *free) else { return };
        let mut free = Vec::new();
        for (low, tree) in self.orders[..order].iter_mut().enumerate() {
            let inside: Vec<usize> = tree.iter().filter(|index| index >> (order - low) == block).collect();
            for index in inside {
                tree.clear(index);
                free.push(((index as u32) << low, 1 << low));
            }
        }
        self.claim = Some(Claim { claimant, start: (block as u32) << order, slots, free, missing: slots - found });
    }

    /// Whose claim there is.
    pub(crate) fn claimant(&self) -> Option<Claimant> {
        self.claim.as_ref().map(|claim| claim.claimant)
    }

    /// Slots of the block that is claimed.
    pub(crate) fn claimed_slots(&self) -> u32 {
        self.claim.as_ref().map_or(0, |claim| claim.slots)
    }

    /// `need` slots of what the request claimed, once all of that is free. It may need more than it
    /// claimed, because tenants have come or gone.
    pub(crate) fn take_claimed(&mut self, claimant: Claimant, need: u32) -> Option<u32> {
        let is_free = |claim: &mut Claim| claim.claimant == claimant && claim.missing == 0 && need <= claim.slots;
        let claim = self.claim.take_if(is_free)?;
        self.merge(claim.start + need, claim.slots - need);
        self.free -= need;
        Some(claim.start)
    }

    /// What was kept for a claim is anybody's.
    pub(crate) fn drop_claim(&mut self) {
        for (start, slots) in self.claim.take().into_iter().flat_map(|claim| claim.free) {
            self.merge(start, slots);
        }
    }

    /// Takes slots from the smallest block that fits.
    fn split(&mut self, need: u32) -> Option<u32> {
        let order = need.checked_next_power_of_two()?.ilog2();
        let (mut at, mut index) =
            (order..).take_while(|at| (*at as usize) < self.orders.len()).find_map(|at| Some((at, self.orders[at as usize].first()?)))?;
        self.orders[at as usize].clear(index);
        while at > order {
            at -= 1;
            index *= 2;
            self.orders[at as usize].set(index + 1);
        }
        let start = u32::try_from(index).ok()? << order;
        self.merge(start + need, (1 << order) - need);
        Some(start)
    }

    /// Gives slots to the buddies.
    fn merge(&mut self, mut start: u32, mut slots: u32) {
        while slots > 0 {
            let order = start.trailing_zeros().min(slots.ilog2());
            self.free_block(start >> order, order);
            start += 1 << order;
            slots -= 1 << order;
        }
    }

    /// Merges all blocks that are kept by size.
    fn merge_alike(&mut self) {
        let mut all = std::mem::take(&mut self.alike);
        for (slots, alike) in (1..).zip(&mut all) {
            alike.drain(..).for_each(|start| self.merge(start, slots));
        }
        self.alike = all;
    }

    fn free_block(&mut self, index: u32, order: u32) {
        let (mut index, mut order) = (index as usize, order as usize);
        while order + 1 < self.orders.len() && self.orders[order].get(index ^ 1) {
            self.orders[order].clear(index ^ 1);
            index /= 2;
            order += 1;
        }
        debug_assert!(!self.orders[order].get(index), "slots given back twice");
        self.orders[order].set(index);
    }

    /// Records a tenant as the owner of slots. Whether any of them last held another tenant's
    /// values.
    pub(crate) fn take_over(&mut self, start: u32, slots: u32, tenant: TenantId) -> bool {
        self.owners.take_over(self.slots, start, slots, tenant)
    }
}

/// The last owner of each granule. Granules that only the first tenant has used are not stored.
#[derive(Debug, Default)]
struct Owners {
    sole: Option<TenantId>,
    /// The owners of the first granules.
    granules: Vec<Owner>,
    several: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    One(TenantId),
    Several,
}

impl Owners {
    fn take_over(&mut self, arena: u32, start: u32, slots: u32, tenant: TenantId) -> bool {
        let sole = *self.sole.get_or_insert(tenant);
        self.several |= slots > 0 && sole != tenant;
        if slots == 0 || !self.several {
            return false;
        }
        let mut foreign = false;
        let end = start + slots;
        let reached = end.div_ceil(GRANULE) as usize;
        if reached > self.granules.len() {
            // Slots are handed out from the lowest address, so most of a large arena is never
            // reached.
            self.granules.resize(reached, Owner::One(sole));
        }
        for granule in start / GRANULE..=(end - 1) / GRANULE {
            let owner = &mut self.granules[granule as usize];
            let whole = granule * GRANULE >= start && granule.saturating_add(1).saturating_mul(GRANULE).min(arena) <= end;
            foreign |= *owner != Owner::One(tenant);
            *owner = if whole || *owner == Owner::One(tenant) { Owner::One(tenant) } else { Owner::Several };
        }
        foreign
    }
}

/// A set of small numbers that finds its smallest fast: one bit per number, and one summary bit per
/// 64 of them on each level above.
#[derive(Debug)]
struct BitTree {
    bits: usize,
    levels: Vec<Vec<u64>>,
}

impl BitTree {
    fn new(bits: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = bits.div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                break;
            }
            words = words.div_ceil(64);
        }
        Self { bits, levels }
    }

    fn get(&self, index: usize) -> bool {
        index < self.bits && self.levels[0][index / 64] >> (index % 64) & 1 == 1
    }

    fn set(&mut self, mut index: usize) {
        for level in &mut self.levels {
            let word = &mut level[index / 64];
            let any = *word != 0;
            *word |= 1 << (index % 64);
            if any {
                return;
            }
            index /= 64;
        }
    }

    fn clear(&mut self, mut index: usize) {
        for level in &mut self.levels {
            let word = &mut level[index / 64];
            *word &= !(1 << (index % 64));
            if *word != 0 {
                return;
            }
            index /= 64;
        }
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        let ones = |word: u64| (0..64).filter(move |bit| word >> bit & 1 == 1);
        self.levels[0].iter().enumerate().flat_map(move |(index, word)| ones(*word).map(move |bit| index * 64 + bit))
    }

    fn first(&self) -> Option<usize> {
        if self.levels.last()?[0] == 0 {
            return None;
        }
        Some(self.levels.iter().rev().fold(0, |index, level| index * 64 + level[index].trailing_zeros() as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against an array of owners: blocks never overlap, nor lie in what is claimed, and all
        /// slots merge into one block again.
        #[test]
        fn blocks_never_overlap_and_coalesce(slots in 1_u32..300, needs in prop::collection::vec((1_u32..40, any::<u8>()), 1..200)) {
            let mut arena = Arena::new(slots);
            let mut held = vec![false; slots as usize];
            let mut blocks: Vec<(u32, u32)> = Vec::new();
            const CLAIMANT: Claimant = (RequestId(7), 1);
            for (need, choice) in needs {
                if choice % 16 == 1 {
                    arena.claim(CLAIMANT, need.next_power_of_two());
                } else if choice % 16 == 4 {
                    arena.drop_claim();
                }
                let claimed = arena.claim.as_ref().map(|claim| claim.start..claim.start + claim.slots);
                if choice % 3 == 2 && let Some(start) = arena.take_claimed(CLAIMANT, claimed.as_ref().map_or(1, |claimed| claimed.len() as u32)) {
                    let claimed = claimed.expect("something was claimed");
                    prop_assert_eq!(start, claimed.start);
                    for slot in &mut held[claimed.start as usize..claimed.end as usize] {
                        prop_assert!(!std::mem::replace(slot, true));
                    }
                    blocks.push((start, claimed.len() as u32));
                } else if choice % 3 == 0 && !blocks.is_empty() {
                    let (start, count) = blocks.swap_remove(choice as usize % blocks.len());
                    held[start as usize..(start + count) as usize].fill(false);
                    arena.free(start, count);
                } else if let Some(start) = arena.allocate(need) {
                    prop_assert!(claimed.is_none_or(|claimed| start + need <= claimed.start || claimed.end <= start));
                    for slot in &mut held[start as usize..(start + need) as usize] {
                        prop_assert!(!*slot);
                        *slot = true;
                    }
                    blocks.push((start, need));
                }
                prop_assert_eq!(arena.free_slots() as usize, held.iter().filter(|held| !**held).count());
            }
            for (start, count) in blocks {
                arena.free(start, count);
            }
            arena.drop_claim();
            prop_assert_eq!(arena.allocate(arena.largest()), Some(0));
        }
    }

    #[test]
    fn a_claim_is_met_by_what_comes_free_in_it() {
        let (mut arena, claimant) = (Arena::new(64), (RequestId(1), 1));
        let blocks: Vec<u32> = std::iter::from_fn(|| arena.allocate(4)).collect();
        blocks.iter().step_by(2).for_each(|start| arena.free(*start, 4));
        assert_eq!((arena.free_slots(), arena.allocate(32)), (32, None), "none in a row");
        arena.claim(claimant, 32);
        assert_eq!(arena.take_claimed(claimant, 20), None);
        let outside: Vec<u32> = std::iter::from_fn(|| arena.allocate(4)).collect();
        assert_eq!(outside.len(), 4, "what lies in the other half goes on");
        for start in blocks.iter().skip(1).step_by(2).filter(|start| **start < 32) {
            arena.free(*start, 4);
        }
        assert_eq!(arena.take_claimed((RequestId(1), 2), 20), None, "another request of that id");
        assert_eq!(arena.take_claimed(claimant, 33), None, "more than was claimed");
        assert_eq!(arena.take_claimed(claimant, 20), Some(0));
        assert_eq!((arena.free_slots(), arena.allocate(8)), (12, Some(24)), "the rest is anybody's");
    }

    #[test]
    fn a_block_that_another_tenant_held_is_scrubbed() {
        let mut arena = Arena::new(1024);
        let (one, two) = (TenantId(1), TenantId(2));
        assert!(!arena.take_over(0, 100, one), "fresh slots are zero");
        assert!(arena.take_over(10, 20, two));
        assert!(arena.take_over(0, 5, one), "the granule holds values of both");
        assert!(arena.take_over(0, 64, one));
        assert!(!arena.take_over(3, 9, one), "the whole granule was taken over");
    }
}

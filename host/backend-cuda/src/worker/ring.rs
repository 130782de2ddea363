//! Memory through which tasks come and go: a stretch for each, given back in the order in which it was taken.
//!
//! What is pinned on the host has its counterpart on the device at the same offset, so that one allocation is one of both.

use std::collections::VecDeque;

use crate::driver::{DeviceAddress, Done, Driver, Pinned};

/// Every stretch begins at a multiple of so many bytes.
const STRETCH: usize = 256;

/// Less than this holds no segment.
const LEAST: usize = 4096;

/// Which bytes of a ring are taken.
#[derive(Debug, Default)]
struct Taken {
    capacity: usize,
    /// Stretches in order: where they begin, and where the next one may.
    stretches: VecDeque<(usize, usize)>,
}

impl Taken {
    /// Where so many bytes may be taken; none if they must wait for older ones.
    fn room(&self, bytes: usize) -> Option<usize> {
        // A stretch that takes nothing would hide whether the ring is full.
        let bytes = bytes.max(1);
        let (Some((first, _)), Some((_, end))) = (self.stretches.front(), self.stretches.back()) else {
            return (bytes <= self.capacity).then_some(0);
        };
        if end > first {
            // At the beginning again as soon as there is room, for what was written last is in the processor's caches.
            if bytes <= *first {
                return Some(0);
            }
            return (bytes <= self.capacity - end).then_some(*end);
        }
        // Behind the newest, which lies before the oldest. Both at one place: it is full.
        (bytes <= first - end).then_some(*end)
    }

    fn take(&mut self, first: usize, bytes: usize) {
        let end = (first + bytes.max(1)).next_multiple_of(STRETCH).min(self.capacity);
        self.stretches.push_back((first, end));
    }

    fn give_back(&mut self) {
        self.stretches.pop_front();
    }
}

/// A ring on the host and on the device.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) pinned: Pinned,
    pub(super) device: DeviceAddress,
    taken: Taken,
}

impl Ring {
    /// An empty ring.
    pub(super) fn new(driver: &mut dyn Driver, bytes: usize) -> Done<Self> {
        let capacity = bytes.next_multiple_of(STRETCH).max(LEAST);
        let device = driver.allocate(capacity)?;
        let pinned = driver.pinned(capacity).inspect_err(|_| {
            // What became of the device is told by the first fault.
            let _ = driver.free(device);
        })?;
        Ok(Self { pinned, device, taken: Taken { capacity, stretches: VecDeque::new() } })
    }

    pub(super) const fn capacity(&self) -> usize {
        self.taken.capacity
    }

    /// Where so many bytes may be taken; none if they must wait for older ones.
    pub(super) fn room(&self, bytes: usize) -> Option<usize> {
        self.taken.room(bytes)
    }

    /// Takes bytes where there was room.
    pub(super) fn take(&mut self, first: usize, bytes: usize) {
        self.taken.take(first, bytes);
    }

    /// Gives the oldest stretch back.
    pub(super) fn give_back(&mut self) {
        self.taken.give_back();
    }
}

/// Writes a stretch from its beginning.
pub(super) struct Pen<'a> {
    bytes: &'a mut [u8],
    address: DeviceAddress,
    at: usize,
}

impl<'a> Pen<'a> {
    /// Of bytes that the device will find at that address.
    pub(super) const fn new(bytes: &'a mut [u8], address: DeviceAddress) -> Self {
        Self { bytes, address, at: 0 }
    }

    /// Leaves out so many bytes, from a multiple of 16 on: where they begin.
    pub(super) fn leave(&mut self, bytes: usize) -> usize {
        let first = self.at.next_multiple_of(16);
        assert!(first + bytes <= self.bytes.len(), "a task's stretch of {} bytes is too small", self.bytes.len());
        self.at = first + bytes;
        first
    }

    /// Writes bytes where they were left out.
    pub(super) fn fill(&mut self, first: usize, bytes: &[u8]) {
        self.bytes[first..first + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes bytes behind everything: where they begin.
    pub(super) fn put(&mut self, bytes: &[u8]) -> usize {
        let first = self.leave(bytes.len());
        self.fill(first, bytes);
        first
    }

    /// Where the device finds an offset.
    pub(super) const fn address(&self, offset: usize) -> u64 {
        self.address.plus(offset).0
    }

    pub(super) const fn written(&self) -> usize {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_never_overlap_and_a_full_ring_says_so() {
        let mut taken = Taken { capacity: 16 * STRETCH, ..Taken::default() };
        let mut random = 7_u64;
        let mut full = 0;
        for _ in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bytes = ((random >> 40) as usize % (5 * STRETCH)).saturating_sub(STRETCH);
            let first = loop {
                match taken.room(bytes) {
                    Some(first) => break first,
                    None => taken.give_back(),
                }
                full += 1;
            };
            let end = first + bytes.max(1);
            assert!(end <= taken.capacity);
            for (other, other_end) in &taken.stretches {
                assert!(end <= *other || *other_end <= first, "{first}..{end} overlaps {other}..{other_end}");
            }
            taken.take(first, bytes);
            if random >> 60 == 0 {
                taken.give_back();
            }
        }
        assert!(full > 100);
        assert_eq!(taken.room(17 * STRETCH), None);
        while !taken.stretches.is_empty() {
            taken.give_back();
        }
        assert_eq!(taken.room(16 * STRETCH), Some(0));
    }
}

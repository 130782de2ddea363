//! Memory through which tasks come and go: a stretch for each, given back in the order in which it was taken.
//!
//! What is pinned on the host has its counterpart on the device at the same offset, so that one allocation is one of both.

use std::collections::VecDeque;

use crate::abi::Plain;
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
    /// What is not written yet: the stretch's end.
    left: &'a mut [u8],
    /// Bytes of all of the stretch, and where the device will find its end.
    bytes: usize,
    end: DeviceAddress,
}

/// A list in a stretch, which is to be written.
pub(super) struct List<'a, T> {
    pub(super) values: &'a mut [T],
    /// Where the device will find it.
    pub(super) address: u64,
}

impl<'a> Pen<'a> {
    /// Of bytes that the device will find at that address.
    pub(super) const fn new(bytes: &'a mut [u8], address: DeviceAddress) -> Self {
        let end = address.plus(bytes.len());
        Self { bytes: bytes.len(), left: bytes, end }
    }

    /// So many bytes behind everything. What follows them begins at a multiple of 16, as they do.
    #[inline]
    fn leave(&mut self, bytes: usize) -> (&'a mut [u8], u64) {
        assert!(bytes <= self.left.len(), "a task's stretch is too small: {} bytes for {bytes}", self.left.len());
        let address = self.end.0.wrapping_sub(self.left.len() as u64);
        let left = std::mem::take(&mut self.left);
        let (piece, left) = left.split_at_mut(bytes);
        let padding = (bytes.wrapping_neg() % 16).min(left.len());
        self.left = &mut left[padding..];
        (piece, address)
    }

    /// So many values behind everything, which are to be written: what they are is what lay there before.
    pub(super) fn list<T: Plain>(&mut self, count: usize) -> List<'a, T> {
        let (piece, address) = self.leave(count * size_of::<T>());
        let values = piece.as_mut_ptr().cast::<T>();
        assert!(values.is_aligned(), "a stretch begins where any value may lie");
        // SAFETY: there are as many bytes, which are this list's alone, from a place on where the first may lie; and any bytes are valid for them.
        List { values: unsafe { std::slice::from_raw_parts_mut(values, count) }, address }
    }

    /// Writes bytes behind everything: where the device will find them.
    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) -> u64 {
        // Most are numbers of 64 bits, of which each is one store.
        match <&[u8; 8]>::try_from(bytes) {
            Ok(number) => self.copy(number),
            Err(_) => self.copy_any(bytes),
        }
    }

    #[inline]
    fn copy(&mut self, bytes: &[u8]) -> u64 {
        let (piece, address) = self.leave(bytes.len());
        piece.copy_from_slice(bytes);
        address
    }

    #[inline(never)]
    fn copy_any(&mut self, bytes: &[u8]) -> u64 {
        self.copy(bytes)
    }

    /// So many zeros behind everything, and where the device will find them.
    pub(super) fn zeros(&mut self, bytes: usize) -> (&'a mut [u8], u64) {
        let (piece, address) = self.leave(bytes);
        piece.fill(0);
        (piece, address)
    }

    /// Bytes that are written, with what is between them and what would follow.
    pub(super) const fn written(&self) -> usize {
        self.bytes - self.left.len()
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

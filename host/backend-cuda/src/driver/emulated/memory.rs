//! The emulated device's memory: blocks between canaries, poisoned when they are allocated.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ptr::NonNull;

use crate::driver::{DeviceAddress, Done, Fault};

/// What a block begins at multiples of, as on a device.
const ALIGNMENT: usize = 256;
/// Bytes on either side of a block that nobody may write.
const GUARD: usize = 256;
const CANARY: u8 = 0xA5;
/// NaN in every floating-point type, -1 in every integer.
pub(super) const POISON: u8 = 0xFF;

/// Bytes between canaries.
pub(super) struct Block {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory; whoever reads or writes it sees to it that nobody else does.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub(super) fn new(bytes: usize, fill: u8) -> Self {
        let layout = Self::layout(bytes);
        // SAFETY: the layout is not empty; canaries and bytes lie within it.
        unsafe {
            let Some(base) = NonNull::new(alloc(layout)) else { handle_alloc_error(layout) };
            base.as_ptr().write_bytes(CANARY, layout.size());
            base.as_ptr().add(GUARD).write_bytes(fill, bytes);
            Self { base, bytes }
        }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes + 2 * GUARD, ALIGNMENT).expect("a block of the emulated device is too large")
    }

    pub(super) fn pointer(&self) -> NonNull<u8> {
        // SAFETY: the bytes begin behind the guard, within the block.
        unsafe { self.base.add(GUARD) }
    }

    fn address(&self) -> u64 {
        self.pointer().as_ptr() as u64
    }

    /// Which side of it somebody wrote.
    fn overrun(&self) -> Option<&'static str> {
        // SAFETY: the guards lie within the block, and nobody has a reason to write them.
        let side = |from: usize| unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(from), GUARD) };
        let touched = |from: usize| side(from).iter().any(|byte| *byte != CANARY);
        [("in front of", 0), ("behind", GUARD + self.bytes)].into_iter().find_map(|(which, from)| touched(from).then_some(which))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with that layout.
        unsafe { dealloc(self.base.as_ptr(), Self::layout(self.bytes)) };
    }
}

/// What is allocated, by address.
#[derive(Default)]
pub(super) struct Allocations {
    blocks: BTreeMap<u64, Block>,
    bytes: u64,
}

impl Allocations {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn allocate(&mut self, bytes: usize) -> DeviceAddress {
        let block = Block::new(bytes, POISON);
        let address = block.address();
        self.bytes += bytes as u64;
        self.blocks.insert(address, block);
        DeviceAddress(address)
    }

    pub(super) fn free(&mut self, address: DeviceAddress) -> Done {
        match self.blocks.remove(&address.0) {
            Some(block) => {
                self.bytes -= block.bytes as u64;
                Ok(())
            }
            None => Err(Fault::Refused(format!("nothing was allocated at {:#x}", address.0))),
        }
    }

    /// That a range lies within one block.
    pub(super) fn within(&self, what: &str, at: DeviceAddress, bytes: usize) -> Done {
        let block = self.blocks.range(..=at.0).next_back();
        match block {
            Some((begin, block)) if (at.0 - begin).checked_add(bytes as u64).is_some_and(|end| end <= block.bytes as u64) => Ok(()),
            _ => Err(Fault::Refused(format!("{what} of {bytes} bytes at {:#x} leaves the device's memory", at.0))),
        }
    }

    /// A sentence if something was written where nobody has memory.
    pub(super) fn overrun(&self) -> Option<String> {
        self.blocks.values().find_map(|block| {
            let side = block.overrun()?;
            Some(format!("memory {side} the {} bytes at {:#x} was written", block.bytes, block.address()))
        })
    }
}

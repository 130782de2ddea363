//! Memory that all cells of a worker share, as large as the largest of them needs it.

use cellwright_backend::LoadError;

use super::CudaWorker;
use super::cost::{Cost, Load};
use super::frame::FrameMemory;
use super::resident::{Resident, fault_of_load};
use super::ring::Ring;
use crate::driver::{DeviceAddress, Done, Fault};

/// Bytes of one row on its way to the device or back, at most: each of the two rings holds four, on the host and on the device.
const RING_ROW_MAX: usize = 64 << 20;

impl CudaWorker {
    /// Makes the frame and the rings as large as a cell needs them.
    pub(super) fn make_room(&mut self, resident: &Resident) -> Result<(), LoadError> {
        let one = resident.frame_bytes(1);
        let name = &resident.name;
        if one as u64 > self.sizes.frame_bytes {
            return Err(LoadError::OutOfMemory { cell: name.clone(), needed: one as u64, available: self.sizes.frame_bytes });
        }
        let wanted = resident.frame_bytes(self.sizes.rows_most).min(usize::try_from(self.sizes.frame_bytes).unwrap_or(usize::MAX));
        if wanted > self.frame.bytes {
            match self.grow_frame(wanted) {
                // Fewer rows at once do as well.
                Err(Fault::OutOfMemory { .. }) if one <= self.frame.bytes => {}
                grown => grown.map_err(|fault| fault_of_load(name, &mut self.device, &fault))?,
            }
        }
        let (up, down) = Cost::new(resident).of(Load::most(resident));
        self.make_room_in_rings(up.max(down)).map_err(|fault| fault_of_load(name, &mut self.device, &fault))
    }

    /// Makes the frame so large. Where it finds no room, it is as large as it was: what a worker's parts may take leaves less than a second frame, so that the old one may
    /// have to go first.
    fn grow_frame(&mut self, wanted: usize) -> Done {
        let old = self.frame.bytes;
        match self.device.driver.allocate(wanted) {
            Ok(address) => {
                let left = self.leave_frame();
                self.take_frame(address, wanted);
                left
            }
            // Graphs go with the old one: not for a frame that has no room without it either.
            Err(Fault::OutOfMemory { needed, free }) if old > 0 && free.saturating_add(old as u64) >= needed => {
                let left = self.leave_frame();
                let driver = &mut self.device.driver;
                let (address, bytes, grown) = match driver.allocate(wanted) {
                    Ok(address) => (address, wanted, Ok(())),
                    Err(fault) => {
                        // It was given back just now: if somebody else has it already, no cell that is loaded can run.
                        let again = driver.allocate(old).map_err(|gone| Fault::Lost(format!("the memory of its rows is gone: {gone}")));
                        (again?, old, Err(fault))
                    }
                };
                self.take_frame(address, bytes);
                left.and(grown)
            }
            Err(fault) => Err(fault),
        }
    }

    fn take_frame(&mut self, address: DeviceAddress, bytes: usize) {
        self.device.call(address, "the frame");
        self.frame = FrameMemory { address, bytes };
    }

    /// Gives the frame back, and the graphs, which know where it was.
    fn leave_frame(&mut self) -> Done {
        let old = std::mem::take(&mut self.frame);
        let forgotten = self.graphs.forget(None, &mut *self.device.driver);
        let freed = if old.bytes > 0 { self.device.driver.free(old.address) } else { Ok(()) };
        freed.and(forgotten)
    }

    /// A ring must hold a segment of one row at least.
    fn make_room_in_rings(&mut self, bytes: usize) -> Done {
        // They grow together, so that what fits one of them fits the other.
        if 2 * bytes <= self.up.capacity() {
            return Ok(());
        }
        if bytes > RING_ROW_MAX {
            return Err(Fault::Refused(format!("one row takes {bytes} bytes on its way, {RING_ROW_MAX} at most are possible")));
        }
        self.drain().map_err(|lost| Fault::Lost(lost.cause))?;
        let capacity = (4 * bytes).next_power_of_two();
        let up = Ring::new(&mut *self.device.driver, capacity)?;
        let down = match Ring::new(&mut *self.device.driver, capacity) {
            Ok(down) => down,
            Err(fault) => {
                let _ = self.device.driver.free(up.device);
                return Err(fault);
            }
        };
        self.device.call(up.device, "the ring of uploads");
        self.device.call(down.device, "the ring of downloads");
        let old = [std::mem::replace(&mut self.up, up), std::mem::replace(&mut self.down, down)];
        old.iter().try_for_each(|ring| self.device.driver.free(ring.device))
    }
}

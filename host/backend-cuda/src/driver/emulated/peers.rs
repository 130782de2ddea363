//! Emulated devices that read one another's memory: each with its own queues and thread, so that they run out of step.

use super::device::{Device, Work};
use super::memory::POISON;
use super::{Emulated, Peer};
use crate::driver::peer::Known;
use crate::driver::{DeviceAddress, Done, Fault, Stream};

impl Known for Device {
    fn is_lost(&self) -> bool {
        let state = self.lock();
        state.ended || state.lost.is_some()
    }
}

impl Emulated {
    pub(super) fn reach_device(&mut self, peer: &Peer) -> Done<bool> {
        self.device.check()?;
        let reaches = self.reaches && peer.known::<Device>().is_some_and(|other| other.ordinal != self.device.ordinal);
        if reaches && !self.reached.iter().any(|known| known.is(peer)) {
            self.reached.push(peer.clone());
        }
        Ok(reaches)
    }

    pub(super) fn fetch_from(
        &mut self,
        stream: Stream,
        (peer, from): (&Peer, DeviceAddress),
        to: DeviceAddress,
        bytes: usize,
    ) -> Done<bool> {
        let other = peer.known::<Device>().filter(|_| self.reached.iter().any(|known| known.is(peer)));
        let Some(other) = other else {
            return Err(Fault::Refused("a device is named that was not reached".to_owned()));
        };
        // Never both devices' states at once: the other may be doing the same.
        if other.is_lost() {
            return self.device.check().map(|()| false);
        }
        other.lock().memory.within("a fetch", from, bytes)?;
        if self.device.state()?.faults.fetch_fails() {
            return Err(Fault::Refused("the device does not read that one's memory after all".to_owned()));
        }
        self.device.queue(stream, |state| {
            state.memory.within("a fetch", to, bytes)?;
            Ok(Work::Fetch { peer: peer.clone(), from, to, bytes })
        })?;
        Ok(true)
    }
}

/// Does a fetch, on the thread of the device that queued it.
pub(super) fn copy(peer: &Peer, from: DeviceAddress, to: DeviceAddress, bytes: usize) -> Result<(), String> {
    let Some(other) = peer.known::<Device>() else { return Ok(()) };
    // Held meanwhile, so that nothing is given back.
    let state = other.lock();
    if state.lost.is_some() {
        // SAFETY: the range was within this device's memory when this was queued, which is freed only when nothing is queued.
        unsafe { (to.0 as *mut u8).write_bytes(POISON, bytes) };
        return Ok(());
    }
    if state.memory.within("a fetch", from, bytes).is_err() {
        return Err("an illegal memory access was encountered (a fetch from memory that was given back)".to_owned());
    }
    // SAFETY: this range as above, the other was just found to be there. Nothing writes it before a signal behind this is seen (`Driver::fetch`).
    unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.0 as *mut u8, bytes) };
    Ok(())
}

//! Devices that read one another's memory by themselves, over NVLink or PCIe.

use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, sys};

use super::CudaDriver;
use super::fault::fault;
use crate::driver::peer::Known;
use crate::driver::{DeviceAddress, Done, Fault, Peer, Stream};

/// A device as its peers know it, and what a driver that is gone leaves them: a copy out of its memory may still be queued elsewhere.
pub(super) struct Shared {
    ordinal: u32,
    context: Arc<CudaContext>,
    lost: AtomicBool,
    left: Mutex<Vec<sys::CUdeviceptr>>,
}

impl Shared {
    pub(super) fn new(ordinal: u32, context: &Arc<CudaContext>) -> Arc<Self> {
        Arc::new(Self { ordinal, context: Arc::clone(context), lost: AtomicBool::new(false), left: Mutex::default() })
    }

    /// What was copied since then may be anything.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// The driver goes; its memory goes with the last who may read it.
    pub(super) fn leave(&self, memory: Vec<sys::CUdeviceptr>) {
        self.lose();
        self.left.lock().unwrap_or_else(PoisonError::into_inner).extend(memory);
    }
}

impl Known for Shared {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let left = take(self.left.get_mut().unwrap_or_else(PoisonError::into_inner));
        // A device that is lost has nothing to give back to. Whoever had this thread enters its own context before each call.
        if left.is_empty() || self.context.bind_to_thread().is_err() {
            return;
        }
        for address in left {
            // SAFETY: its driver allocated it, had all that was queued run, and freed it nowhere else; peers hold this until theirs has run.
            let _ = unsafe { sys::cuMemFree_v2(address) };
        }
    }
}

impl CudaDriver {
    pub(super) fn reach_device(&mut self, peer: &Peer) -> Done<bool> {
        use sys::CUresult as Code;
        self.enter()?;
        let Some(other) = peer.known::<Shared>().filter(|other| other.ordinal != self.facts.ordinal) else { return Ok(false) };
        if self.reached.iter().any(|known| known.is(peer)) {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: devices that the driver gave; the pointer is to an integer of ours.
        let code = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.context.cu_device(), other.context.cu_device()) };
        self.call(code)?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: the context of a device that the peer holds.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context.cu_ctx(), 0) } {
            Code::CUDA_SUCCESS | Code::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {
                self.reached.push(peer.clone());
                Ok(true)
            }
            // A device has a bounded number of peers.
            Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED | Code::CUDA_ERROR_TOO_MANY_PEERS => Ok(false),
            code => self.blamed(other, code).map(|_| false),
        }
    }

    pub(super) fn fetch_from(
        &mut self,
        stream: Stream,
        (peer, from): (&Peer, DeviceAddress),
        to: DeviceAddress,
        bytes: usize,
    ) -> Done<bool> {
        let other = peer.known::<Shared>().filter(|_| self.reached.iter().any(|known| known.is(peer)));
        let Some(other) = other else {
            return Err(Fault::Refused("a device is named that was not reached".to_owned()));
        };
        self.enter()?;
        if other.is_lost() {
            return Ok(false);
        }
        let stream = self.stream_of(stream)?;
        let (own, theirs) = (self.context.cu_ctx(), other.context.cu_ctx());
        // SAFETY: addresses of the two devices, which the driver checks; the memory there stays as long as the peer is held, which is until this driver
        // has had everything run.
        let code = unsafe { sys::cuMemcpyPeerAsync(to.0, own, from.0, theirs, bytes, stream) };
        self.blamed(other, code)
    }

    /// What a call that concerns two devices says: true if it was done, false if the other is lost, an error if this one is, or if it was refused.
    fn blamed(&mut self, other: &Shared, code: sys::CUresult) -> Done<bool> {
        let error = code.result().map_err(fault).err();
        // An error that stays is told by every call: that of this device is asked for by itself.
        if error.is_some_and(|fault| fault.is_lost()) && self.is_sound() {
            other.lose();
            return Ok(false);
        }
        self.call(code).map(|()| true)
    }

    /// Whether this device alone has no error.
    pub(super) fn is_sound(&self) -> bool {
        use sys::CUresult as Code;
        // SAFETY: a stream of this driver.
        let told = self.streams.first().map(|stream| unsafe { sys::cuStreamQuery(*stream) });
        matches!(told, Some(Code::CUDA_SUCCESS | Code::CUDA_ERROR_NOT_READY))
    }
}

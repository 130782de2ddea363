//! A real device, through CUDA's driver interface, which is looked for when it is asked for: building needs none of it.
//!
//! Calls go to the driver's C interface nearly one to one. The binding's own slices and events are not used: they would order streams by themselves,
//! which a worker that queues several tasks ahead must do once, and itself. Completion is a store by the stream (`cuStreamWriteValue64`) rather than by a
//! kernel: it takes no multiprocessor, cannot queue behind another stream's blocks for one, and fences what ran before it for the whole system.

mod compile;
mod ending;
mod fault;
mod graphs;
mod images;
mod kernels;
mod memory;
mod peers;
mod probe;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cudarc::driver::{CudaContext, DriverError, result, sys};

pub use images::{Form, IMAGES, Image, choose};
pub use probe::{Absent, devices};

use super::{
    Compiler, DeviceAddress, Done, Driver, Event, Facts, Fault, Graph, GraphLaunch, Kernel, Launch, Matrix, Peer, Pinned, Stream, WAIT_MAX,
};
use fault::{fault, told};
use kernels::Loaded;
use peers::Shared;

/// A device of this machine.
pub struct CudaDriver {
    facts: Facts,
    context: Arc<CudaContext>,
    module: sys::CUmodule,
    kernels: Vec<Loaded>,
    streams: Vec<sys::CUstream>,
    events: Vec<sys::CUevent>,
    /// Null where one was given back.
    graphs: Vec<sys::CUgraphExec>,
    allocations: Vec<sys::CUdeviceptr>,
    lost: Option<String>,
    /// Whether what was given out stays when it is let go of, because the device may use it yet.
    stays: Arc<AtomicBool>,
    /// How long a call waits, at most.
    wait_max: Duration,
    /// Whether the device runs all blocks of a launch at once if it is asked to.
    cooperates: bool,
    /// What its peers know of it, and those whose memory it reads: held until all that it queued has run.
    shared: Arc<Shared>,
    reached: Vec<Peer>,
    /// Whether it leaves the compiler alone that there may be.
    interprets: bool,
}

// SAFETY: the driver's handles may be used from any thread whose current context is theirs, which every call sees to; it is never used from two at once.
unsafe impl Send for CudaDriver {}

impl CudaDriver {
    /// A device by what [`devices`] said of it, with the kernels of one of these images.
    ///
    /// # Errors
    /// If none of the images is for it, or it cannot be used.
    pub fn open(facts: Facts, images: &[Image]) -> Done<Self> {
        let (major, minor) = facts.capability;
        let unusable = |why: &str| Fault::Refused(format!("{} {why}", facts.name));
        let images = choose(images, facts.capability);
        if images.is_empty() {
            return Err(unusable(&format!("has compute capability {major}.{minor}; 8.0 or newer is needed")));
        }
        let context = CudaContext::new(facts.ordinal as usize).map_err(fault)?;
        // SAFETY: nothing of the binding's that would order streams by events is ever used.
        unsafe { context.disable_event_tracking() };
        let stores = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS).map_err(fault)?;
        if stores == 0 {
            return Err(unusable("cannot store to the host's memory from a stream, by which tasks are completed"));
        }
        let cooperates = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH).map_err(fault)? != 0;
        let mut module = std::ptr::null_mut();
        let mut loaded = Err(String::new());
        for image in images {
            // SAFETY: an image that was compiled with this program: machine code, which says itself how long it is, or text that ends in zero.
            let result = unsafe { sys::cuModuleLoadData(&raw mut module, image.bytes.as_ptr().cast()) }.result();
            // The first one's complaint says most.
            loaded = result.map_err(|error| loaded.err().filter(|first| !first.is_empty()).unwrap_or_else(|| told(error)));
            if loaded.is_ok() {
                break;
            }
        }
        loaded.map_err(|complaint| unusable(&format!("does not take the kernels: {complaint}")))?;
        Ok(Self {
            shared: Shared::new(facts.ordinal, &context),
            reached: vec![],
            facts,
            context,
            module,
            kernels: vec![],
            streams: vec![],
            events: vec![],
            graphs: vec![],
            allocations: vec![],
            lost: None,
            stays: Arc::default(),
            wait_max: WAIT_MAX,
            cooperates,
            interprets: false,
        })
    }

    /// The same without a compiler, so that groups are interpreted: to compare the two.
    #[must_use]
    pub fn interpreting(mut self) -> Self {
        self.interprets = true;
        self
    }

    /// Makes this thread one that may call the driver for this device.
    fn enter(&mut self) -> Done {
        if let Some(cause) = &self.lost {
            return Err(Fault::Lost(cause.clone()));
        }
        let bound = self.context.bind_to_thread();
        self.done(bound)
    }

    /// Remembers a fault from which the device does not come back.
    fn done<T>(&mut self, result: Result<T, DriverError>) -> Done<T> {
        result.map_err(|error| {
            let fault = fault(error);
            if let Fault::Lost(cause) = &fault {
                self.lose(cause);
            }
            fault
        })
    }

    /// The same of a call that has nothing run on the device. Of its errors not the worst is believed, but what the device says by itself, for one that stays is
    /// told by every call: the system may refuse to pin memory with whatever error it likes.
    fn made<T>(&mut self, result: Result<T, DriverError>) -> Done<T> {
        match result.as_ref().map_err(|error| fault(*error)) {
            Err(Fault::Lost(cause)) if self.is_sound() => Err(Fault::Refused(cause)),
            _ => self.done(result),
        }
    }

    fn call(&mut self, code: sys::CUresult) -> Done {
        self.done(code.result())
    }

    fn stream_of(&self, stream: Stream) -> Done<sys::CUstream> {
        self.streams.get(stream.0 as usize).copied().ok_or_else(|| Fault::Refused("a stream of another driver is named".to_owned()))
    }

    fn event_of(&self, event: Event) -> Done<sys::CUevent> {
        self.events.get(event.0 as usize).copied().ok_or_else(|| Fault::Refused("an event of another driver is named".to_owned()))
    }
}

fn within(of: &Pinned, offset: usize, bytes: usize) -> Done {
    match offset.checked_add(bytes) {
        Some(end) if end <= of.len() => Ok(()),
        _ => Err(Fault::Refused(format!("{bytes} bytes from byte {offset} on are not within {} pinned bytes", of.len()))),
    }
}

impl Driver for CudaDriver {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn wait_at_most(&mut self, most: Duration) {
        self.wait_max = most;
    }

    fn give_up(&mut self, cause: &str) {
        self.lose(cause);
    }

    fn memory_free(&mut self) -> Done<u64> {
        self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both are integers of ours.
        let code = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        self.call(code).map(|()| free as u64)
    }

    fn allocate(&mut self, bytes: usize) -> Done<DeviceAddress> {
        self.enter()?;
        let mut address = 0;
        // SAFETY: the address is an integer of ours.
        let code = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) };
        if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(Fault::OutOfMemory { needed: bytes as u64, free: self.memory_free()? });
        }
        self.call(code)?;
        self.allocations.push(address);
        Ok(DeviceAddress(address))
    }

    fn free(&mut self, address: DeviceAddress) -> Done {
        let Some(position) = self.allocations.iter().position(|known| *known == address.0) else {
            return Err(Fault::Refused(format!("nothing was allocated at {:#x}", address.0)));
        };
        self.settle_all()?;
        self.allocations.swap_remove(position);
        // SAFETY: it was allocated by this driver, is freed once, and nothing that is queued needs it.
        let code = unsafe { sys::cuMemFree_v2(address.0) };
        self.call(code)
    }

    fn pinned(&mut self, bytes: usize) -> Done<Pinned> {
        self.enter()?;
        let pinned = memory::pinned((&self.context, &self.stays), bytes);
        self.made(pinned)
    }

    fn stream(&mut self) -> Done<Stream> {
        self.enter()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = self.done(stream)?;
        self.streams.push(stream);
        Ok(Stream(self.streams.len() as u32 - 1))
    }

    fn event(&mut self) -> Done<Event> {
        self.enter()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = self.done(event)?;
        self.events.push(event);
        Ok(Event(self.events.len() as u32 - 1))
    }

    fn kernel(&mut self, name: &'static str) -> Done<Kernel> {
        self.embedded(name)
    }

    fn compiler(&self) -> Result<Compiler, String> {
        if self.interprets { Err("it was told to have none".to_owned()) } else { compile::compiler(self.facts.capability) }
    }

    fn compiled(&mut self, source: &str) -> Done<Option<Kernel>> {
        if self.interprets { Ok(None) } else { self.of_text(source) }
    }

    fn release(&mut self, kernel: Kernel) -> Done {
        self.unload(kernel)
    }

    fn resident_blocks(&mut self, kernel: Kernel, threads: u32, shared_bytes: u32) -> Done<u32> {
        self.resident(kernel, threads, shared_bytes as usize)
    }

    fn upload(&mut self, stream: Stream, from: &Pinned, offset: usize, to: DeviceAddress, bytes: usize) -> Done {
        within(from, offset, bytes)?;
        self.enter()?;
        let stream = self.stream_of(stream)?;
        // SAFETY: the bytes lie within pinned memory, whose holder leaves them until the copy has run; the driver checks the device's address.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, from.as_ptr().add(offset).cast(), bytes, stream) };
        self.call(code)
    }

    fn download(&mut self, stream: Stream, from: DeviceAddress, to: &Pinned, offset: usize, bytes: usize) -> Done {
        within(to, offset, bytes)?;
        self.enter()?;
        let stream = self.stream_of(stream)?;
        // SAFETY: the bytes lie within pinned memory, whose holder does not touch them until the copy has run; the driver checks the device's address.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_ptr().add(offset).cast(), from.0, bytes, stream) };
        self.call(code)
    }

    fn copy(&mut self, stream: Stream, from: DeviceAddress, to: DeviceAddress, bytes: usize) -> Done {
        self.enter()?;
        let stream = self.stream_of(stream)?;
        // SAFETY: addresses of the device, which the driver checks.
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to.0, from.0, bytes, stream) };
        self.call(code)
    }

    fn peer(&self) -> Peer {
        Peer::new(Arc::clone(&self.shared) as _)
    }

    fn reach(&mut self, peer: &Peer) -> Done<bool> {
        self.reach_device(peer)
    }

    fn fetch(&mut self, stream: Stream, from: (&Peer, DeviceAddress), to: DeviceAddress, bytes: usize) -> Done<bool> {
        self.fetch_from(stream, from, to, bytes)
    }

    fn tensor_map(&mut self, matrix: &Matrix) -> Done<[u64; 16]> {
        self.enter()?;
        // The device takes rows that overlap, and nobody means them.
        if matrix.stride < 2 * matrix.columns {
            return Err(Fault::Refused(format!("rows of {} values are {} bytes apart", matrix.columns, matrix.stride)));
        }
        let described = memory::tensor_map(matrix);
        self.done(described)
    }

    fn zero(&mut self, stream: Stream, at: DeviceAddress, bytes: usize) -> Done {
        self.enter()?;
        let stream = self.stream_of(stream)?;
        // SAFETY: an address of the device, which the driver checks.
        let code = unsafe { sys::cuMemsetD8Async(at.0, 0, bytes, stream) };
        self.call(code)
    }

    unsafe fn launch(&mut self, stream: Stream, launch: &Launch, arguments: &[u8]) -> Done {
        self.enter()?;
        let stream = self.stream_of(stream)?;
        let kernel = self.taking(launch.kernel, arguments)?;
        let mut parameters: [*mut c_void; 1] = [arguments.as_ptr().cast_mut().cast()];
        let ([x, y, z], threads, shared) = (launch.grid, launch.threads, launch.shared_bytes);
        // SAFETY: the kernel takes one structure of just that many bytes, which are copied before the call returns; what they point at is the caller's.
        let code = unsafe {
            if launch.cooperative {
                sys::cuLaunchCooperativeKernel(kernel, x, y, z, threads, 1, 1, shared, stream, parameters.as_mut_ptr())
            } else {
                sys::cuLaunchKernel(kernel, x, y, z, threads, 1, 1, shared, stream, parameters.as_mut_ptr(), std::ptr::null_mut())
            }
        };
        self.call(code)
    }

    fn graph(&mut self, stream: Stream, launches: &[GraphLaunch]) -> Done<Graph> {
        self.make_graph(stream, launches)
    }

    unsafe fn launch_graph(&mut self, stream: Stream, graph: Graph) -> Done {
        self.queue_graph(stream, graph)
    }

    fn release_graph(&mut self, graph: Graph) -> Done {
        self.destroy_graph(graph)
    }

    fn record(&mut self, event: Event, stream: Stream) -> Done {
        self.enter()?;
        let (event, stream) = (self.event_of(event)?, self.stream_of(stream)?);
        // SAFETY: both are this driver's.
        let code = unsafe { sys::cuEventRecord(event, stream) };
        self.call(code)
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Done {
        self.enter()?;
        let (event, stream) = (self.event_of(event)?, self.stream_of(stream)?);
        // SAFETY: both are this driver's.
        let code = unsafe { sys::cuStreamWaitEvent(stream, event, 0) };
        self.call(code)
    }

    fn elapsed(&mut self, from: Event, to: Event) -> Done<Duration> {
        self.enter()?;
        let (from, to) = (self.event_of(from)?, self.event_of(to)?);
        // SAFETY: both are this driver's.
        let milliseconds = unsafe { result::event::elapsed(from, to) };
        let milliseconds = self.done(milliseconds)?;
        Ok(Duration::try_from_secs_f32(milliseconds / 1e3).unwrap_or_default())
    }

    fn signal(&mut self, stream: Stream, word: &Pinned, offset: usize, value: u64) -> Done {
        within(word, offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(Fault::Refused(format!("no word lies at byte {offset}")));
        }
        self.enter()?;
        let stream = self.stream_of(stream)?;
        // SAFETY: a word of mapped pinned memory; without flags the store comes after a fence for the whole system.
        let code = unsafe { sys::cuStreamWriteValue64_v2(stream, word.address().plus(offset).0, value, 0) };
        self.call(code)
    }

    fn check(&mut self) -> Done {
        self.enter()?;
        let Some(stream) = self.streams.first().copied() else { return Ok(()) };
        // Faults belong to the context: any stream tells of them.
        // SAFETY: a stream of this driver.
        match unsafe { sys::cuStreamQuery(stream) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(()),
            code => self.call(code),
        }
    }

    fn synchronize(&mut self) -> Done {
        self.settle_all()
    }

    fn write(&mut self, stream: Stream, to: DeviceAddress, bytes: &[u8]) -> Done {
        self.enter()?;
        let stream = self.stream_of(stream)?;
        // Bytes that are not pinned are copied by the call itself, which would wait for what is queued before them, however long that takes.
        self.settle(&[stream])?;
        // SAFETY: the bytes are there until the stream has been waited for, or the device is lost and may copy what it likes; the driver checks its address.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, bytes.as_ptr().cast(), bytes.len(), stream) };
        self.call(code)?;
        self.settle(&[stream])
    }

    fn read(&mut self, stream: Stream, from: DeviceAddress, into: &mut [u8]) -> Done {
        self.enter()?;
        let stream = self.stream_of(stream)?;
        // As of a write.
        self.settle(&[stream])?;
        // SAFETY: the bytes are ours until the stream has been waited for; the driver checks the device's address.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(into.as_mut_ptr().cast(), from.0, into.len(), stream) };
        let queued = self.call(code);
        // Even if it was refused: nothing may write there once this returns. Only therefore it is waited for as long as it takes, which is the copy alone.
        // SAFETY: a stream of this driver.
        let code = unsafe { sys::cuStreamSynchronize(stream) };
        self.call(code)?;
        queued
    }
}

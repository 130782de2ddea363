//! A device made of threads: it runs the kernels' own sources on the CPU, and is as unkind as a device may be.
//!
//! Each stream is a queue. One thread takes the next piece of work from a stream that it draws from a seed, so that streams overtake one another wherever
//! no event forbids it, and at times waits a moment first, so that it lags behind its caller. A copy reads its source when it runs. Memory holds NaN when
//! it is allocated, and lies between canaries, which are looked at after every launch. Launches of a graph begin before those in front of them have run, at
//! times, and wait for them by themselves. Faults can be ordered beforehand ([`Control`]). What it cannot show: two kernels that really run at the same
//! time, and how fast anything is.

mod compile;
mod control;
mod device;
mod graphs;
mod kernels;
mod launches;
mod memory;
mod peers;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use control::{Control, Injection, Ran, What};

use super::{Compiler, DeviceAddress, Done, Driver, Event, Facts, Fault, Graph, GraphLaunch, Kernel, Launch, Matrix, Peer, Pinned, Stream};
use crate::abi::{Arguments, CompiledGroupArguments};
use crate::driver::compiler::refused;
use device::{Device, Work};
use graphs::Graphs;
use memory::Block;

/// How an emulated device is made.
#[derive(Clone, Debug)]
pub struct Emulation {
    /// Draws the order of streams, and when the device lags.
    pub seed: u64,
    /// How long it waits when it lags, at most; it does so before one piece of work in eight.
    pub lag: Duration,
    /// What it says its compute capability is.
    pub capability: (u32, u32),
    /// All of its memory.
    pub memory_bytes: u64,
    /// Its number.
    pub ordinal: u32,
    /// Whether it reads other emulated devices' memory by itself.
    pub reaches: bool,
    /// Whether it has a compiler: that of the machine it runs on. It is slow, and so is asked for by the tests that need it.
    pub compiles: bool,
    /// Whether it has cooperative launches.
    pub cooperates: bool,
}

impl Default for Emulation {
    fn default() -> Self {
        Self {
            seed: 0,
            lag: Duration::from_micros(100),
            capability: (9, 0),
            memory_bytes: 1 << 30,
            ordinal: 0,
            reaches: true,
            compiles: false,
            cooperates: true,
        }
    }
}

/// A kernel, and its library if it was compiled while the program ran.
#[derive(Clone, Copy)]
struct Loaded {
    name: &'static str,
    compiled: Option<compile::Library>,
    argument_bytes: usize,
    is_released: bool,
}

/// What the kernels begin with that only this compute capability has: those of `sm_90a.cubin`.
const HOPPER: ((u32, u32), [&str; 4]) = ((9, 0), ["lstm_", "gru_", "tree_", "wide_"]);

/// An emulated device.
pub struct Emulated {
    facts: Facts,
    device: Arc<Device>,
    kernels: Vec<Loaded>,
    graphs: Graphs,
    /// Whether it reaches others, and those that it does.
    reaches: bool,
    reached: Vec<Peer>,
    compiles: bool,
    cooperates: bool,
    thread: Option<JoinHandle<()>>,
}

impl Emulated {
    /// A device with nothing on it.
    ///
    /// # Panics
    /// If its thread cannot be started.
    #[must_use]
    pub fn new(emulation: &Emulation) -> Self {
        let facts = Facts {
            name: "emulated device".to_owned(),
            ordinal: emulation.ordinal,
            capability: emulation.capability,
            memory_bytes: emulation.memory_bytes,
            multiprocessors: 4,
            shared_bytes_max: if emulation.capability.0 >= 9 { 227 << 10 } else { 99 << 10 },
            uuid: format!("emulated-{}", emulation.ordinal),
            driver_version: 13000,
        };
        let device = Arc::new(Device::new(emulation));
        let runner = Arc::clone(&device);
        let thread = std::thread::Builder::new().name("emulated-device".to_owned()).spawn(move || runner.run());
        Self {
            facts,
            device,
            kernels: Vec::new(),
            graphs: Graphs::default(),
            reaches: emulation.reaches,
            reached: Vec::new(),
            compiles: emulation.compiles,
            cooperates: emulation.cooperates,
            thread: Some(thread.expect("a thread for the emulated device")),
        }
    }

    /// What a test may order and see of it, from any thread.
    #[must_use]
    pub fn control(&self) -> Control {
        Control::new(Arc::clone(&self.device))
    }

    /// Memory of the host for a driver's own calls, of which no fault is ordered.
    fn staging(&self, bytes: usize) -> Done<Pinned> {
        self.device.check()?;
        let block = Arc::new(Block::new(bytes.max(1), 0));
        let pointer = block.pointer();
        // SAFETY: the block is zeroed and aligned, and is freed when its last owner goes: this handle, or work that is queued on it.
        Ok(unsafe { Pinned::new(pointer, bytes, DeviceAddress(pointer.as_ptr() as u64), block) })
    }

    fn pinned_range(of: &Pinned, offset: usize, bytes: usize) -> Done {
        match offset.checked_add(bytes) {
            Some(end) if end <= of.len() => Ok(()),
            _ => Err(Fault::Refused(format!("{bytes} bytes from byte {offset} on are not within {} pinned bytes", of.len()))),
        }
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.device.end();
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked in a way that matters to whoever drops its device.
            let _ = thread.join();
        }
    }
}

impl Driver for Emulated {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn wait_at_most(&mut self, most: Duration) {
        self.device.lock().wait_max = most;
    }

    fn give_up(&mut self, cause: &str) {
        self.device.lock().lose(cause.to_owned());
        self.device.wake();
    }

    fn memory_free(&mut self) -> Done<u64> {
        let mut state = self.device.state()?;
        if state.faults.figure_fails() {
            return Err(Fault::Refused("how much memory is free is not told".to_owned()));
        }
        Ok(self.facts.memory_bytes.saturating_sub(state.taken()))
    }

    fn allocate(&mut self, bytes: usize) -> Done<DeviceAddress> {
        let mut state = self.device.state()?;
        let free = self.facts.memory_bytes.saturating_sub(state.taken());
        if bytes == 0 {
            return Err(Fault::Refused("no bytes were asked for".to_owned()));
        }
        if state.faults.allocation_fails() || bytes as u64 > free {
            return Err(Fault::OutOfMemory { needed: bytes as u64, free });
        }
        Ok(state.memory.allocate(bytes))
    }

    fn free(&mut self, address: DeviceAddress) -> Done {
        self.device.drain()?;
        self.device.state()?.memory.free(address)
    }

    fn pinned(&mut self, bytes: usize) -> Done<Pinned> {
        if self.device.state()?.faults.pinned_fails() {
            return Err(Fault::Refused("no memory of the host can be pinned any more".to_owned()));
        }
        self.staging(bytes)
    }

    fn stream(&mut self) -> Done<Stream> {
        Ok(self.device.state()?.add_stream())
    }

    fn event(&mut self) -> Done<Event> {
        Ok(self.device.state()?.add_event())
    }

    fn kernel(&mut self, name: &'static str) -> Done<Kernel> {
        self.device.check()?;
        if let Some(known) = self.kernels.iter().position(|known| known.name == name && known.compiled.is_none()) {
            return Ok(Kernel(known as u32));
        }
        let is_there = self.facts.capability == HOPPER.0 || !HOPPER.1.iter().any(|own| name.starts_with(own));
        let Some(argument_bytes) = kernels::argument_bytes(name).filter(|_| is_there) else {
            return Err(Fault::Refused(format!("there is no kernel `{name}`")));
        };
        self.kernels.push(Loaded { name, compiled: None, argument_bytes, is_released: false });
        Ok(Kernel(self.kernels.len() as u32 - 1))
    }

    fn compiler(&self) -> Result<Compiler, String> {
        if !self.compiles {
            return Err("it was told to have no compiler".to_owned());
        }
        Ok(Compiler::new("the CPU's compiler".to_owned(), |source| compile::library(source).map(drop)))
    }

    fn compiled(&mut self, source: &str) -> Done<Option<Kernel>> {
        self.device.check()?;
        if !self.compiles {
            return Ok(None);
        }
        match compile::library(source) {
            Ok(library) => {
                let argument_bytes = size_of::<CompiledGroupArguments>();
                let name = CompiledGroupArguments::KERNEL;
                self.kernels.push(Loaded { name, compiled: Some(library), argument_bytes, is_released: false });
                Ok(Some(Kernel(self.kernels.len() as u32 - 1)))
            }
            Err(said) => {
                refused(&said);
                Ok(None)
            }
        }
    }

    fn release(&mut self, kernel: Kernel) -> Done {
        self.device.drain()?;
        match self.kernels.get_mut(kernel.0 as usize) {
            Some(loaded) if loaded.compiled.is_some() && !loaded.is_released => {
                loaded.is_released = true;
                Ok(())
            }
            _ => Err(Fault::Refused("a kernel is released that was not compiled".to_owned())),
        }
    }

    fn resident_blocks(&mut self, kernel: Kernel, threads: u32, shared_bytes: u32) -> Done<u32> {
        self.resident(kernel, threads, shared_bytes)
    }

    fn upload(&mut self, stream: Stream, from: &Pinned, offset: usize, to: DeviceAddress, bytes: usize) -> Done {
        Self::pinned_range(from, offset, bytes)?;
        let from_pinned = from.as_ptr() as u64 + offset as u64;
        self.device.queue(stream, |state| {
            state.memory.within("an upload", to, bytes)?;
            Ok(Work::Upload { from: DeviceAddress(from_pinned), to, bytes, _keep: from.owner() })
        })
    }

    fn download(&mut self, stream: Stream, from: DeviceAddress, to: &Pinned, offset: usize, bytes: usize) -> Done {
        Self::pinned_range(to, offset, bytes)?;
        let to_pinned = to.as_ptr() as u64 + offset as u64;
        self.device.queue(stream, |state| {
            state.memory.within("a download", from, bytes)?;
            Ok(Work::Download { from, to: DeviceAddress(to_pinned), bytes, _keep: to.owner() })
        })
    }

    fn copy(&mut self, stream: Stream, from: DeviceAddress, to: DeviceAddress, bytes: usize) -> Done {
        self.device.queue(stream, |state| {
            state.memory.within("a copy", from, bytes)?;
            state.memory.within("a copy", to, bytes)?;
            if from.0 < to.0 + bytes as u64 && to.0 < from.0 + bytes as u64 {
                return Err(Fault::Refused(format!("a copy of {bytes} bytes overlaps itself")));
            }
            Ok(Work::Copy { from, to, bytes })
        })
    }

    fn peer(&self) -> Peer {
        Peer::new(Arc::clone(&self.device) as _)
    }

    fn reach(&mut self, peer: &Peer) -> Done<bool> {
        self.reach_device(peer)
    }

    fn fetch(&mut self, stream: Stream, from: (&Peer, DeviceAddress), to: DeviceAddress, bytes: usize) -> Done<bool> {
        self.fetch_from(stream, from, to, bytes)
    }

    fn tensor_map(&mut self, matrix: &Matrix) -> Done<[u64; 16]> {
        let Matrix { at, columns, rows, stride } = *matrix;
        if !(at.0 | u64::from(stride)).is_multiple_of(16) || columns == 0 || rows == 0 || stride < 2 * columns {
            return Err(Fault::Refused(format!("no matrix of {rows} by {columns} lies at {:#x}, {stride} bytes from row to row", at.0)));
        }
        // A real device does not look until it copies.
        self.device.state()?.memory.within("a matrix", at, (rows as usize - 1) * stride as usize + 2 * columns as usize)?;
        // As `emulation/ptx_hopper.h` reads it.
        let mut words = [0; 16];
        words[..4].copy_from_slice(&[at.0, stride.into(), columns.into(), rows.into()]);
        Ok(words)
    }

    fn zero(&mut self, stream: Stream, at: DeviceAddress, bytes: usize) -> Done {
        self.device.queue(stream, |state| {
            state.memory.within("a fill", at, bytes)?;
            Ok(Work::Zero { at, bytes })
        })
    }

    unsafe fn launch(&mut self, stream: Stream, launch: &Launch, arguments: &[u8]) -> Done {
        let work = self.checked(launch, arguments)?;
        self.device.queue(stream, |_| Ok(work))
    }

    fn graph(&mut self, _stream: Stream, launches: &[GraphLaunch]) -> Done<Graph> {
        self.make_graph(launches)
    }

    unsafe fn launch_graph(&mut self, stream: Stream, graph: Graph) -> Done {
        self.queue_graph(stream, graph)
    }

    fn release_graph(&mut self, graph: Graph) -> Done {
        self.forget_graph(graph)
    }

    fn record(&mut self, event: Event, stream: Stream) -> Done {
        self.device.queue(stream, |state| state.record(event))
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Done {
        self.device.queue(stream, |state| state.wait(event))
    }

    fn elapsed(&mut self, from: Event, to: Event) -> Done<Duration> {
        let state = self.device.state()?;
        Ok(state.reached(to)?.saturating_duration_since(state.reached(from)?))
    }

    fn signal(&mut self, stream: Stream, word: &Pinned, offset: usize, value: u64) -> Done {
        if !offset.is_multiple_of(8) {
            return Err(Fault::Refused(format!("no word lies at byte {offset}")));
        }
        Self::pinned_range(word, offset, 8)?;
        let at = DeviceAddress(word.as_ptr() as u64 + offset as u64);
        self.device.queue(stream, |_| Ok(Work::Signal { at, value, _keep: word.owner() }))
    }

    fn check(&mut self) -> Done {
        self.device.check()
    }

    fn synchronize(&mut self) -> Done {
        self.device.drain()
    }

    fn write(&mut self, stream: Stream, to: DeviceAddress, bytes: &[u8]) -> Done {
        let mut staging = self.staging(bytes.len())?;
        // SAFETY: nothing is queued on memory that was just made.
        unsafe { staging.bytes_mut(0..bytes.len()) }.copy_from_slice(bytes);
        self.upload(stream, &staging, 0, to, bytes.len())?;
        self.device.drain_stream(stream)
    }

    fn read(&mut self, stream: Stream, from: DeviceAddress, into: &mut [u8]) -> Done {
        let staging = self.staging(into.len())?;
        self.download(stream, from, &staging, 0, into.len())?;
        self.device.drain_stream(stream)?;
        // SAFETY: the download has run, and nothing else is queued on it.
        into.copy_from_slice(unsafe { staging.bytes(0..into.len()) });
        Ok(())
    }
}

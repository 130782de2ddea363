//! A device that computes nothing: what is left of a task's time is what the worker itself takes. Memory is the host's and copies copy, at once; of all kernels
//! only `finish` does anything, which says that every row has run, whatever it leaves.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::peer::Known;
use super::{Compiler, DeviceAddress, Done, Driver, Event, Facts, Fault, Graph, GraphLaunch, Kernel, Launch, Matrix, Peer, Pinned, Stream};
use crate::abi::{Arguments, BatchHead, FinishArguments, RowStatus, read, status};

/// What memory is aligned to.
const ALIGNMENT: usize = 256;

struct Nobody;

impl Known for Nobody {
    fn is_lost(&self) -> bool {
        false
    }
}

/// Memory that is given back with it.
struct Memory(NonNull<u8>, Layout);

// SAFETY: plain memory; who reads and writes it sees to that.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize) -> Done<Self> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).map_err(|error| Fault::Refused(error.to_string()))?;
        // SAFETY: of at least one byte.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        Ok(Self(pointer, layout))
    }

    fn address(&self) -> DeviceAddress {
        DeviceAddress(self.0.as_ptr() as u64)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and given back once.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

/// Such a device. By what it says of itself it is one of compute capability 9.0.
pub struct Idle {
    facts: Facts,
    memory: BTreeMap<DeviceAddress, Memory>,
    handles: u32,
    finish: Option<Kernel>,
    /// Of each graph what its launches of `finish` take.
    graphs: BTreeMap<Graph, Vec<Vec<u8>>>,
    peer: Arc<Nobody>,
}

impl Idle {
    /// One that has so many bytes of memory, or says so.
    #[must_use]
    pub fn new(memory_bytes: u64) -> Self {
        let facts = Facts {
            name: "a device that computes nothing".to_owned(),
            ordinal: 0,
            capability: (9, 0),
            memory_bytes,
            multiprocessors: 132,
            shared_bytes_max: 227 << 10,
            uuid: "idle".to_owned(),
            driver_version: 13_000,
        };
        Self { facts, memory: BTreeMap::new(), handles: 0, finish: None, graphs: BTreeMap::new(), peer: Arc::new(Nobody) }
    }

    const fn handle(&mut self) -> u32 {
        self.handles += 1;
        self.handles
    }
}

/// Says of every row that it ran.
fn run_finish(arguments: &[u8]) {
    let FinishArguments { head, own, .. } = read(arguments);
    // SAFETY: the caller's promise of a launch: the head lies there, if there is one, and the statuses of as many rows as it says.
    let head = if head == 0 { own } else { unsafe { ptr::read_unaligned(head as *const BatchHead) } };
    for row in 0..head.rows as usize {
        // SAFETY: as above.
        unsafe { (head.statuses as *mut RowStatus).add(row).write_unaligned(RowStatus { status: status::RAN, ..RowStatus::default() }) };
    }
}

impl Driver for Idle {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn wait_at_most(&mut self, _: Duration) {}

    /// Nobody does: all that is queued has run.
    fn give_up(&mut self, _: &str) {}

    fn memory_free(&mut self) -> Done<u64> {
        Ok(self.facts.memory_bytes)
    }

    fn allocate(&mut self, bytes: usize) -> Done<DeviceAddress> {
        let memory = Memory::new(bytes)?;
        let address = memory.address();
        self.memory.insert(address, memory);
        Ok(address)
    }

    fn free(&mut self, address: DeviceAddress) -> Done {
        self.memory.remove(&address);
        Ok(())
    }

    fn pinned(&mut self, bytes: usize) -> Done<Pinned> {
        let memory = Memory::new(bytes)?;
        let (pointer, address) = (memory.0, memory.address());
        // SAFETY: so many bytes lie there, zeroed, until their owner goes.
        Ok(unsafe { Pinned::new(pointer, bytes, address, Arc::new(memory)) })
    }

    fn stream(&mut self) -> Done<Stream> {
        Ok(Stream(self.handle()))
    }

    fn event(&mut self) -> Done<Event> {
        Ok(Event(self.handle()))
    }

    fn kernel(&mut self, name: &'static str) -> Done<Kernel> {
        let kernel = Kernel(self.handle());
        if name == FinishArguments::KERNEL {
            self.finish = Some(kernel);
        }
        Ok(kernel)
    }

    fn compiler(&self) -> Result<Compiler, String> {
        Err("the device computes nothing".to_owned())
    }

    fn compiled(&mut self, _: &str) -> Done<Option<Kernel>> {
        Ok(None)
    }

    fn release(&mut self, _: Kernel) -> Done {
        Ok(())
    }

    fn resident_blocks(&mut self, _: Kernel, _: u32, _: u32) -> Done<u32> {
        Ok(self.facts.multiprocessors)
    }

    fn upload(&mut self, stream: Stream, from: &Pinned, offset: usize, to: DeviceAddress, bytes: usize) -> Done {
        self.copy(stream, from.address().plus(offset), to, bytes)
    }

    fn download(&mut self, stream: Stream, from: DeviceAddress, to: &Pinned, offset: usize, bytes: usize) -> Done {
        self.copy(stream, from, to.address().plus(offset), bytes)
    }

    fn copy(&mut self, _: Stream, from: DeviceAddress, to: DeviceAddress, bytes: usize) -> Done {
        // SAFETY: both lie in memory of this driver, as a device would check.
        unsafe { ptr::copy(from.0 as *const u8, to.0 as *mut u8, bytes) };
        Ok(())
    }

    fn peer(&self) -> Peer {
        Peer::new(Arc::clone(&self.peer) as _)
    }

    fn reach(&mut self, _: &Peer) -> Done<bool> {
        Ok(false)
    }

    fn fetch(&mut self, _: Stream, _: (&Peer, DeviceAddress), _: DeviceAddress, _: usize) -> Done<bool> {
        Ok(false)
    }

    fn tensor_map(&mut self, _: &Matrix) -> Done<[u64; 16]> {
        Ok([0; 16])
    }

    fn zero(&mut self, _: Stream, _: DeviceAddress, _: usize) -> Done {
        // Nothing was written but what was copied, which nobody reads.
        Ok(())
    }

    unsafe fn launch(&mut self, _: Stream, launch: &Launch, arguments: &[u8]) -> Done {
        if Some(launch.kernel) == self.finish {
            run_finish(arguments);
        }
        Ok(())
    }

    fn graph(&mut self, _: Stream, launches: &[GraphLaunch]) -> Done<Graph> {
        let graph = Graph(self.handle());
        let of_finish = launches.iter().filter(|launch| Some(launch.launch.kernel) == self.finish);
        self.graphs.insert(graph, of_finish.map(|launch| launch.arguments.clone()).collect());
        Ok(graph)
    }

    unsafe fn launch_graph(&mut self, _: Stream, graph: Graph) -> Done {
        self.graphs.get(&graph).into_iter().flatten().for_each(|arguments| run_finish(arguments));
        Ok(())
    }

    fn release_graph(&mut self, graph: Graph) -> Done {
        self.graphs.remove(&graph);
        Ok(())
    }

    fn record(&mut self, _: Event, _: Stream) -> Done {
        Ok(())
    }

    fn wait(&mut self, _: Stream, _: Event) -> Done {
        Ok(())
    }

    fn elapsed(&mut self, _: Event, _: Event) -> Done<Duration> {
        Ok(Duration::ZERO)
    }

    fn signal(&mut self, _: Stream, word: &Pinned, offset: usize, value: u64) -> Done {
        word.word(offset).store(value, Ordering::Release);
        Ok(())
    }

    fn check(&mut self) -> Done {
        Ok(())
    }

    fn synchronize(&mut self) -> Done {
        Ok(())
    }

    fn write(&mut self, _: Stream, to: DeviceAddress, bytes: &[u8]) -> Done {
        // SAFETY: the address lies in memory of this driver, as a device would check.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.0 as *mut u8, bytes.len()) };
        Ok(())
    }

    fn read(&mut self, _: Stream, from: DeviceAddress, into: &mut [u8]) -> Done {
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(from.0 as *const u8, into.as_mut_ptr(), into.len()) };
        Ok(())
    }
}

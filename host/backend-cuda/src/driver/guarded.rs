//! A driver between whose allocations lie words that nobody may write: for finding what leaves its memory on a device that does not say so itself.
//!
//! Every signal brings all of them along, so that whoever sees a task's signal can ask ([`Guards::broken`]) whether anything was overwritten until then.
//! That costs two small copies for each allocation and task: a debug mode.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Compiler, DeviceAddress, Done, Driver, Event, Facts, Fault, Graph, GraphLaunch, Kernel, Launch, Matrix, Peer, Pinned, Stream};

/// Bytes on either side of an allocation: what it begins at multiples of, so that it still does.
const GUARD: usize = 256;
/// What they hold: neither zeros nor NaN nor any small number.
const WORD: u64 = 0xC0DE_5AFE_A5A5_5A5A;

/// An allocation.
#[derive(Debug)]
struct Guarded {
    bytes: usize,
    name: String,
    /// What its guards were, as of the newest signal: in front of it, then behind it.
    seen: Pinned,
}

/// Guards by the address between them.
type Known = BTreeMap<DeviceAddress, Guarded>;

/// What the worker asks of guards.
#[derive(Clone, Debug)]
pub(crate) struct Guards(Arc<Mutex<Known>>);

impl Guards {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what an allocation is.
    pub(crate) fn name(&self, address: DeviceAddress, name: &str) {
        if let Some(guarded) = self.known().get_mut(&address) {
            name.clone_into(&mut guarded.name);
        }
    }

    /// What was overwritten, as of the newest signal that was seen: where, and of what.
    pub(crate) fn broken(&self) -> Option<String> {
        let known = self.known();
        let broken = |seen: &Pinned, from: usize| {
            (from..from + GUARD).step_by(size_of::<u64>()).any(|offset| seen.word(offset).load(Ordering::Relaxed) != WORD)
        };
        known.values().find_map(|Guarded { bytes, name, seen, .. }| {
            let side = [("in front of", 0), ("behind", GUARD)].into_iter().find(|(_, from)| broken(seen, *from))?.0;
            Some(format!("memory {side} the {bytes} bytes of {name} was overwritten"))
        })
    }
}

/// A driver with guards around what it allocates.
pub(crate) struct GuardedDriver {
    driver: Box<dyn Driver>,
    /// Guards are written here, and nothing else.
    stream: Stream,
    guards: Guards,
}

impl GuardedDriver {
    /// Around a driver that has allocated nothing yet.
    pub(crate) fn new(mut driver: Box<dyn Driver>) -> Done<(Self, Guards)> {
        let guards = Guards(Arc::default());
        let stream = driver.stream()?;
        Ok((Self { driver, stream, guards: guards.clone() }, guards))
    }

    fn guard(&mut self, base: DeviceAddress, bytes: usize) -> Done<DeviceAddress> {
        let words: Vec<u8> = std::iter::repeat_n(WORD.to_le_bytes(), GUARD / size_of::<u64>()).flatten().collect();
        let address = base.plus(GUARD);
        for side in [base, address.plus(bytes)] {
            self.driver.write(self.stream, side, &words)?;
        }
        let mut seen = self.driver.pinned(2 * GUARD)?;
        // SAFETY: nothing is queued on memory that was just made.
        unsafe { seen.bytes_mut(0..2 * GUARD) }.chunks_mut(GUARD).for_each(|side| side.copy_from_slice(&words));
        self.guards.known().insert(address, Guarded { bytes, name: "an allocation".to_owned(), seen });
        Ok(address)
    }
}

impl Driver for GuardedDriver {
    fn facts(&self) -> &Facts {
        self.driver.facts()
    }

    fn wait_at_most(&mut self, most: Duration) {
        self.driver.wait_at_most(most);
    }

    fn give_up(&mut self, cause: &str) {
        self.driver.give_up(cause);
    }

    fn memory_free(&mut self) -> Done<u64> {
        self.driver.memory_free()
    }

    fn allocate(&mut self, bytes: usize) -> Done<DeviceAddress> {
        // What lies behind it begins at a word.
        let bytes = bytes.next_multiple_of(size_of::<u64>());
        let base = self.driver.allocate(bytes + 2 * GUARD)?;
        self.guard(base, bytes).inspect_err(|_| {
            // What became of the device is told by the first fault.
            let _ = self.driver.free(base);
        })
    }

    fn free(&mut self, address: DeviceAddress) -> Done {
        if !self.guards.known().contains_key(&address) {
            return Err(Fault::Refused(format!("nothing was allocated at {:#x}", address.0)));
        }
        // It waits for what is queued, so that nothing brings its guards any more.
        self.driver.free(DeviceAddress(address.0 - GUARD as u64))?;
        self.guards.known().remove(&address);
        Ok(())
    }

    fn pinned(&mut self, bytes: usize) -> Done<Pinned> {
        self.driver.pinned(bytes)
    }

    fn stream(&mut self) -> Done<Stream> {
        self.driver.stream()
    }

    fn event(&mut self) -> Done<Event> {
        self.driver.event()
    }

    fn kernel(&mut self, name: &'static str) -> Done<Kernel> {
        self.driver.kernel(name)
    }

    fn compiler(&self) -> Result<Compiler, String> {
        self.driver.compiler()
    }

    fn compiled(&mut self, source: &str) -> Done<Option<Kernel>> {
        self.driver.compiled(source)
    }

    fn release(&mut self, kernel: Kernel) -> Done {
        self.driver.release(kernel)
    }

    fn resident_blocks(&mut self, kernel: Kernel, threads: u32, shared_bytes: u32) -> Done<u32> {
        self.driver.resident_blocks(kernel, threads, shared_bytes)
    }

    fn upload(&mut self, stream: Stream, from: &Pinned, offset: usize, to: DeviceAddress, bytes: usize) -> Done {
        self.driver.upload(stream, from, offset, to, bytes)
    }

    fn download(&mut self, stream: Stream, from: DeviceAddress, to: &Pinned, offset: usize, bytes: usize) -> Done {
        self.driver.download(stream, from, to, offset, bytes)
    }

    fn copy(&mut self, stream: Stream, from: DeviceAddress, to: DeviceAddress, bytes: usize) -> Done {
        self.driver.copy(stream, from, to, bytes)
    }

    fn peer(&self) -> Peer {
        self.driver.peer()
    }

    fn reach(&mut self, peer: &Peer) -> Done<bool> {
        self.driver.reach(peer)
    }

    fn fetch(&mut self, stream: Stream, from: (&Peer, DeviceAddress), to: DeviceAddress, bytes: usize) -> Done<bool> {
        self.driver.fetch(stream, from, to, bytes)
    }

    fn tensor_map(&mut self, matrix: &Matrix) -> Done<[u64; 16]> {
        self.driver.tensor_map(matrix)
    }

    fn zero(&mut self, stream: Stream, at: DeviceAddress, bytes: usize) -> Done {
        self.driver.zero(stream, at, bytes)
    }

    unsafe fn launch(&mut self, stream: Stream, launch: &Launch, arguments: &[u8]) -> Done {
        // SAFETY: the caller's promise.
        unsafe { self.driver.launch(stream, launch, arguments) }
    }

    fn graph(&mut self, stream: Stream, launches: &[GraphLaunch]) -> Done<Graph> {
        self.driver.graph(stream, launches)
    }

    unsafe fn launch_graph(&mut self, stream: Stream, graph: Graph) -> Done {
        // SAFETY: the caller's promise.
        unsafe { self.driver.launch_graph(stream, graph) }
    }

    fn release_graph(&mut self, graph: Graph) -> Done {
        self.driver.release_graph(graph)
    }

    fn record(&mut self, event: Event, stream: Stream) -> Done {
        self.driver.record(event, stream)
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Done {
        self.driver.wait(stream, event)
    }

    fn elapsed(&mut self, from: Event, to: Event) -> Done<Duration> {
        self.driver.elapsed(from, to)
    }

    fn signal(&mut self, stream: Stream, word: &Pinned, offset: usize, value: u64) -> Done {
        for (address, guarded) in self.guards.known().iter_mut() {
            let sides = [DeviceAddress(address.0 - GUARD as u64), address.plus(guarded.bytes)];
            for (side, to) in sides.into_iter().zip([0, GUARD]) {
                self.driver.download(stream, side, &guarded.seen, to, GUARD)?;
            }
        }
        self.driver.signal(stream, word, offset, value)
    }

    fn check(&mut self) -> Done {
        self.driver.check()
    }

    fn synchronize(&mut self) -> Done {
        self.driver.synchronize()
    }

    fn write(&mut self, stream: Stream, to: DeviceAddress, bytes: &[u8]) -> Done {
        self.driver.write(stream, to, bytes)
    }

    fn read(&mut self, stream: Stream, from: DeviceAddress, into: &mut [u8]) -> Done {
        self.driver.read(stream, from, into)
    }
}

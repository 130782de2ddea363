//! What the worker asks of a device: memory, streams, launches, graphs, events and signals.
//!
//! The worker knows nothing else of a device. A [`Driver`] is one device, used from one thread at a
//! time. Work is queued on [`Stream`]s and runs in the order of its stream. Streams run beside one
//! another unless events order them.
//!
//! Not promised: that work has begun when a call returns, that a fault shows in the call that
//! caused it, that new memory holds anything in particular.
//!
//! A task is complete when the device has stored a number in pinned memory, which the worker polls.
//! Between two looks the worker submits new tasks, so that the device has its next task before it
//! needs it.
//!
//! The suite `promises` holds every driver to its promises: the emulated one in every run of the
//! tests, a real one in `tests/gpu/run`.

mod compiler;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "testing")]
pub mod emulated;
pub(crate) mod guarded;
#[cfg(feature = "testing")]
pub mod idle;
pub mod peer;
pub mod pinned;
#[cfg(feature = "testing")]
pub mod promises;
pub(crate) mod waiting;

use std::time::Duration;

pub use compiler::Compiler;
pub use peer::Peer;
pub use pinned::Pinned;
pub use waiting::WAIT_MAX;

/// An address in a device's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// No memory lies there.
    pub const NULL: Self = Self(0);

    /// So many bytes further on.
    #[must_use]
    pub const fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u32);
    )*};
}

handles! {
    /// A queue of a device's work. It lives as long as its driver.
    Stream;
    /// A mark in a stream. It lives as long as its driver, and is recorded as often as one likes.
    Event;
    /// A kernel that is loaded.
    Kernel;
    /// Launches that are made once and queued as one.
    Graph;
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Which.
    pub kernel: Kernel,
    /// Blocks in each direction, none of them zero.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory of a block beyond what the kernel declares.
    pub shared_bytes: u32,
    /// Whether its blocks wait for one another, so that all of them must run at once: no more than [`Driver::resident_blocks`] says.
    pub cooperative: bool,
}

/// A launch as a graph has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphLaunch {
    /// What is launched, not cooperatively.
    pub launch: Launch,
    /// What [`Driver::launch`] would be given.
    pub arguments: Vec<u8>,
}

/// A matrix of 16 bits on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Where it lies, at a multiple of 16.
    pub at: DeviceAddress,
    /// Values of a row, at least 1.
    pub columns: u32,
    /// How many rows, at least 1.
    pub rows: u32,
    /// Bytes from row to row: a multiple of 16, and no less than a row has.
    pub stride: u32,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// By its own name, such as `NVIDIA H200`.
    pub name: String,
    /// Its number among the devices that this process sees.
    pub ordinal: u32,
    /// Compute capability, such as `(9, 0)`.
    pub capability: (u32, u32),
    /// All of its memory.
    pub memory_bytes: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that one block may have if it asks for it.
    pub shared_bytes_max: u32,
    /// Which device it is, wherever it is seen from.
    pub uuid: String,
    /// Version of the driver, as its interface counts: 13000 is 13.0.
    pub driver_version: u32,
}

/// Why a device did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is no room. The device goes on.
    #[error("{needed} bytes of device memory are needed, {free} are free")]
    OutOfMemory {
        /// Bytes asked for.
        needed: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// The call was refused. The device goes on.
    #[error("{0}")]
    Refused(String),
    /// Nothing that was queued can be relied on any more, and nothing else will run.
    #[error("{0}")]
    Lost(String),
}

impl Fault {
    /// Whether the device is lost.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

/// What a call of a driver gives.
pub type Done<T = ()> = Result<T, Fault>;

/// One device.
///
/// Calls that only queue work return at once. Those that wait say so: they are for loading and for values that move, never for a task.
///
/// # Errors
/// Every call may tell of an earlier one's fault. After [`Fault::Lost`] every call but [`Driver::facts`] fails, as after [`Driver::give_up`].
pub trait Driver: Send {
    /// What it is.
    fn facts(&self) -> &Facts;

    /// How long a call that waits does so from now on, at most; [`WAIT_MAX`] if nobody says. What has not ended by then is taken never to, and the device to be lost.
    fn wait_at_most(&mut self, most: Duration);

    /// The device is lost from now on, whatever it says itself: nothing that is queued on it is waited for any more, nor when the driver goes. What cannot be
    /// given back without that stays until the process ends, for it may be read and written yet.
    fn give_up(&mut self, cause: &str);

    /// Bytes of its memory that nobody has.
    fn memory_free(&mut self) -> Done<u64>;

    /// Memory of at least one byte, aligned to 256, holding anything.
    fn allocate(&mut self, bytes: usize) -> Done<DeviceAddress>;

    /// Gives memory back by the address that [`Driver::allocate`] gave. Waits until nothing that is queued needs it. What is not given back goes with
    /// the driver.
    fn free(&mut self, address: DeviceAddress) -> Done;

    /// Memory of the host, zeroed, aligned to 256, that the device reads and writes.
    fn pinned(&mut self, bytes: usize) -> Done<Pinned>;

    /// A new stream. No stream waits for another, the device's default one included.
    fn stream(&mut self) -> Done<Stream>;

    /// A new event, not recorded yet.
    fn event(&mut self) -> Done<Event>;

    /// A kernel by its name in `kernels/`. The same name gives the same kernel.
    fn kernel(&mut self, name: &'static str) -> Done<Kernel>;

    /// Who compiles what is given to [`Driver::compiled`].
    ///
    /// # Errors
    /// Why nobody does, in words that may follow "because".
    fn compiler(&self) -> Result<Compiler, String>;

    /// A kernel that was written while the program runs: text that includes `group_stretches.cuh` of `kernels/` and defines `compiled_group`. None if
    /// nobody compiles here, or the compiler does not take it, which is said in the log. Waits for the compiler, unless [`Compiler::takes`] was asked before.
    fn compiled(&mut self, source: &str) -> Done<Option<Kernel>>;

    /// Gives a kernel back that was compiled. Waits until nothing that is queued needs it.
    fn release(&mut self, kernel: Kernel) -> Done;

    /// How many blocks of so many threads and so much shared memory (beyond what the kernel declares) run at once on the whole device, if nothing else
    /// runs there; 0 if none can, or if the device has no cooperative launches.
    fn resident_blocks(&mut self, kernel: Kernel, threads: u32, shared_bytes: u32) -> Done<u32>;

    /// Queues a copy of pinned bytes, from `offset` on, to the device. They are read when the copy runs: until then they must stay as they are.
    fn upload(&mut self, stream: Stream, from: &Pinned, offset: usize, to: DeviceAddress, bytes: usize) -> Done;

    /// Queues a copy from the device to pinned bytes, from `offset` on. They may be read once a signal that was queued behind it is seen.
    fn download(&mut self, stream: Stream, from: DeviceAddress, to: &Pinned, offset: usize, bytes: usize) -> Done;

    /// Queues a copy within the device's memory, between ranges that do not overlap.
    fn copy(&mut self, stream: Stream, from: DeviceAddress, to: DeviceAddress, bytes: usize) -> Done;

    /// What it is to other devices of this process.
    fn peer(&self) -> Peer;

    /// Whether the device reads that one's memory by itself, of all its drivers; it is made ready for that, which may take a while. It never reaches itself.
    fn reach(&mut self, peer: &Peer) -> Done<bool>;

    /// Queues a copy out of the memory of a device that this one reaches. It waits for nothing on that device: what wrote there was seen to be done, and
    /// nothing is to write there, or give it back, before a signal behind the copy is seen. False if that device is lost or its driver gone; then nothing
    /// was queued. Whether it was lost meanwhile, so that what was copied may be anything, [`Peer::is_lost`] says when the signal is seen.
    fn fetch(&mut self, stream: Stream, from: (&Peer, DeviceAddress), to: DeviceAddress, bytes: usize) -> Done<bool>;

    /// A matrix as kernels of 9.0 are given it that copy boxes of its rows (`TensorMap` in `kernels/abi.h`), whether it lies there yet or not. Nobody asks a device
    /// without such kernels.
    ///
    /// # Errors
    /// Also if no matrix can be like this.
    fn tensor_map(&mut self, matrix: &Matrix) -> Done<[u64; 16]>;

    /// Queues the filling of bytes with zeros.
    fn zero(&mut self, stream: Stream, at: DeviceAddress, bytes: usize) -> Done;

    /// Queues a launch. The kernel takes one structure by value, of which these are the bytes; they are copied before the call returns.
    ///
    /// # Safety
    /// What the arguments say is what the kernel takes: whatever it reads and writes by them lies in memory of this driver, and stays there until the
    /// launch has run.
    unsafe fn launch(&mut self, stream: Stream, launch: &Launch, arguments: &[u8]) -> Done;

    /// Makes a graph of launches that run one after the other, with the arguments that they are given here whenever it is launched. A device may begin one before
    /// the one in front of it has ended: each kernel waits for that by itself (`launch_wait` in `kernels/`), before it reads what launches of the graph write, or
    /// writes anything. Waits for nothing that is queued. What it takes of the device's memory it has when this returns, so that [`Driver::memory_free`] shows it, and no launch takes more; what is left
    /// to be done for that is queued on the stream.
    ///
    /// # Errors
    /// Also if there is no launch, or one of them is cooperative.
    fn graph(&mut self, stream: Stream, launches: &[GraphLaunch]) -> Done<Graph>;

    /// Queues a graph. It may be queued while it runs.
    ///
    /// # Errors
    /// Also if the device has no room to launch it. Nothing of it is queued then.
    ///
    /// # Safety
    /// As for [`Driver::launch`], of each of its launches; and none of their kernels was given back.
    unsafe fn launch_graph(&mut self, stream: Stream, graph: Graph) -> Done;

    /// Gives a graph back. Waits until nothing that is queued needs it. What is not given back goes with the driver.
    fn release_graph(&mut self, graph: Graph) -> Done;

    /// Marks where a stream is now. Whoever waits for the event from now on waits for that.
    fn record(&mut self, event: Event, stream: Stream) -> Done;

    /// What is queued on the stream from now on runs after what the event marks now. One that was never recorded is not waited for.
    fn wait(&mut self, stream: Stream, event: Event) -> Done;

    /// Device time between two events that have both been reached: a signal queued behind them was seen, or [`Driver::synchronize`] returned.
    ///
    /// # Errors
    /// Also if one of them has not been reached.
    fn elapsed(&mut self, from: Event, to: Event) -> Done<Duration>;

    /// Queues the store of `value` to the word at `offset` of pinned memory, which is aligned to 8 bytes. Whoever sees it there ([`Pinned::word`], loaded
    /// with `Acquire`) sees all that ran before it on that stream.
    fn signal(&mut self, stream: Stream, word: &Pinned, offset: usize, value: u64) -> Done;

    /// Whether a fault has surfaced, without waiting.
    fn check(&mut self) -> Done;

    /// Waits until everything queued has run.
    fn synchronize(&mut self) -> Done;

    /// Copies bytes to the device behind what is queued on that stream, and waits for it.
    fn write(&mut self, stream: Stream, to: DeviceAddress, bytes: &[u8]) -> Done;

    /// Copies bytes from the device behind what is queued on that stream, and waits for it.
    fn read(&mut self, stream: Stream, from: DeviceAddress, into: &mut [u8]) -> Done;
}

//! What a test may order of an emulated device, and see.

use std::collections::VecDeque;
use std::sync::Arc;

use super::device::{Device, Work};
use super::launches::Queued;
use crate::driver::{DeviceAddress, Stream};

/// How much of what ran is kept.
const LOG_MAX: usize = 1 << 14;

/// A fault that is to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// A kernel leaves its memory: after so many more launches the next one fails, and the device is lost.
    IllegalAccess {
        /// Launches that still run.
        after_launches: u64,
    },
    /// The device falls off its bus, after so many more pieces of work.
    DeviceLost {
        /// Pieces of work that still run.
        after_work: u64,
    },
    /// After so many more allocations the next one finds no room.
    OutOfMemory {
        /// Allocations that still succeed.
        after_allocations: u64,
    },
    /// After so many more pinned ranges of the host's memory the next one is refused.
    NoPinned {
        /// Ranges that are still pinned.
        after_ranges: u64,
    },
    /// After so many more questions how much memory is free the next one is refused.
    NoMemoryFigure {
        /// Questions that are still answered.
        after_figures: u64,
    },
    /// After so many more copies out of a peer's memory the next one is refused.
    NoFetch {
        /// Copies that are still queued.
        after_fetches: u64,
    },
    /// After so many more graphs were made the next one is refused.
    NoGraph {
        /// Graphs that are still made.
        after_graphs: u64,
    },
    /// After so many more graphs were launched there is no room to launch the next one.
    NoLaunchOfGraph {
        /// Graphs that are still launched.
        after_launches: u64,
    },
    /// After so many more cooperative launches the next one is refused.
    NoCooperation {
        /// Those that are still queued.
        after_launches: u64,
    },
}

/// What is to go wrong.
#[derive(Default)]
pub(super) struct Faults {
    launches: Option<u64>,
    work: Option<u64>,
    allocations: Option<u64>,
    pinned: Option<u64>,
    figures: Option<u64>,
    fetches: Option<u64>,
    graphs: Option<u64>,
    launches_of_graphs: Option<u64>,
    cooperative: Option<u64>,
}

impl Faults {
    fn add(&mut self, injection: Injection) {
        match injection {
            Injection::IllegalAccess { after_launches } => self.launches = Some(after_launches),
            Injection::DeviceLost { after_work } => self.work = Some(after_work),
            Injection::OutOfMemory { after_allocations } => self.allocations = Some(after_allocations),
            Injection::NoPinned { after_ranges } => self.pinned = Some(after_ranges),
            Injection::NoMemoryFigure { after_figures } => self.figures = Some(after_figures),
            Injection::NoFetch { after_fetches } => self.fetches = Some(after_fetches),
            Injection::NoGraph { after_graphs } => self.graphs = Some(after_graphs),
            Injection::NoLaunchOfGraph { after_launches } => self.launches_of_graphs = Some(after_launches),
            Injection::NoCooperation { after_launches } => self.cooperative = Some(after_launches),
        }
    }

    pub(super) fn allocation_fails(&mut self) -> bool {
        due(&mut self.allocations)
    }

    pub(super) fn pinned_fails(&mut self) -> bool {
        due(&mut self.pinned)
    }

    pub(super) fn figure_fails(&mut self) -> bool {
        due(&mut self.figures)
    }

    pub(super) fn fetch_fails(&mut self) -> bool {
        due(&mut self.fetches)
    }

    pub(super) fn graph_fails(&mut self) -> bool {
        due(&mut self.graphs)
    }

    pub(super) fn launch_of_graph_fails(&mut self) -> bool {
        due(&mut self.launches_of_graphs)
    }

    pub(super) fn cooperation_fails(&mut self) -> bool {
        due(&mut self.cooperative)
    }

    pub(super) fn launch_fails(&mut self) -> bool {
        due(&mut self.launches)
    }

    pub(super) fn work_fails(&mut self) -> bool {
        due(&mut self.work)
    }
}

/// Whether it is time, once.
fn due(left: &mut Option<u64>) -> bool {
    match left {
        Some(0) => {
            *left = None;
            true
        }
        Some(more) => {
            *more -= 1;
            false
        }
        None => false,
    }
}

/// Something that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// On which stream.
    pub stream: Stream,
    /// What.
    pub what: What,
}

/// A piece of work, as far as tests want to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named like the calls that queue them")]
pub enum What {
    Upload {
        to: DeviceAddress,
        bytes: usize,
    },
    Download {
        from: DeviceAddress,
        bytes: usize,
    },
    Copy {
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: usize,
    },
    Fetch {
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: usize,
    },
    Zero {
        at: DeviceAddress,
        bytes: usize,
    },
    Launch {
        kernel: &'static str,
        grid: [u32; 3],
        arguments: Vec<u8>,
    },
    /// A graph begins: its launches come behind it.
    Graph {
        launches: usize,
    },
    Record,
    Wait,
    Signal {
        value: u64,
    },
}

impl What {
    pub(super) fn of(work: &Work) -> Self {
        match *work {
            Work::Upload { to, bytes, .. } => Self::Upload { to, bytes },
            Work::Download { from, bytes, .. } => Self::Download { from, bytes },
            Work::Copy { from, to, bytes } => Self::Copy { from, to, bytes },
            Work::Fetch { from, to, bytes, .. } => Self::Fetch { from, to, bytes },
            Work::Zero { at, bytes } => Self::Zero { at, bytes },
            Work::Launch(Queued { name, launch, ref arguments, .. }) => {
                Self::Launch { kernel: name, grid: launch.grid, arguments: arguments.to_vec() }
            }
            Work::Graph { launches } => Self::Graph { launches },
            Work::Record { .. } => Self::Record,
            Work::Wait { .. } => Self::Wait,
            Work::Signal { value, .. } => Self::Signal { value },
        }
    }
}

/// The latest of what ran.
#[derive(Default)]
pub(super) struct Log(VecDeque<Ran>);

impl Log {
    pub(super) fn add(&mut self, ran: Ran) {
        if self.0.len() == LOG_MAX {
            self.0.pop_front();
        }
        self.0.push_back(ran);
    }
}

/// A hand on an emulated device.
#[derive(Clone)]
pub struct Control {
    device: Arc<Device>,
}

impl Control {
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self { device }
    }

    /// Nothing runs from now on, until [`Control::release`]. A call that waits for the device then waits for that.
    pub fn hold(&self) {
        self.device.lock().held = true;
    }

    /// Nothing of that stream runs from now on, until [`Control::release`]: the others go on as far as they do not wait for it.
    ///
    /// # Panics
    /// If it is another device's.
    pub fn hold_stream(&self, stream: Stream) {
        self.device.lock().hold_stream(stream);
    }

    /// Waits until all has run that runs: what is left is held, or waits for what is.
    pub fn settle(&self) {
        self.device.settle();
    }

    /// Work goes on.
    pub fn release(&self) {
        self.device.lock().release();
        self.device.wake();
    }

    /// Orders a fault.
    pub fn inject(&self, injection: Injection) {
        self.device.lock().faults.add(injection);
    }

    /// What ran since the last call, in the order in which it ran; the latest 16384 of it.
    #[must_use]
    pub fn take_log(&self) -> Vec<Ran> {
        self.device.lock().log.0.drain(..).collect()
    }

    /// Pieces of work that are queued.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.device.lock().queued()
    }

    /// Graphs that were made and not given back.
    #[must_use]
    pub fn graphs(&self) -> usize {
        self.device.lock().graphs
    }

    /// Bytes of the device's memory that they take.
    #[must_use]
    pub fn graph_bytes(&self) -> u64 {
        self.device.lock().graph_bytes
    }

    /// Bytes of the device's memory that are allocated.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.device.lock().memory.bytes()
    }
}

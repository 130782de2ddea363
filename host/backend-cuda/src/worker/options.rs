//! How large a worker is.

use std::time::Duration;

use cellwright_backend::SLOT_BYTES;

use super::watch::Patience;
use crate::driver::{Done, Driver, WAIT_MAX};

/// How a worker runs, and what of its device's memory it may have.
#[derive(Clone, Copy, Debug)]
pub struct CudaOptions {
    /// Bytes of the arena: a quarter of the memory that is free, at most 16 GiB, if not said.
    pub arena_bytes: Option<u64>,
    /// Bytes that plans and their weights may take: half of the memory that is free if not said.
    pub weight_bytes: Option<u64>,
    /// Bytes that the rows may take that are worked on at once: an eighth of the memory that is free if not said.
    pub frame_bytes: Option<u64>,
    /// Bytes of the device's memory that graphs may take, and one of them more: a sixty-fourth of the memory that is free if not said.
    pub graph_bytes: Option<u64>,
    /// Bytes that may be taken by what is computed of steps before a task asks for them, beside the steps that run: a thirty-second of the memory that is free if
    /// not said; with 0 nothing is. Results are the same.
    pub ahead_bytes: Option<u64>,
    /// Bytes of each of the two rings, pinned on the host and again on the device, through which tasks come and go.
    pub ring_bytes: usize,
    /// Rows of a batch that are run at once; larger ones are run in parts.
    pub rows_most: u32,
    /// Chains whose ends can be noted on the device without making more room for them while requests wait.
    pub chains: u32,
    /// Whether products of models in 32-bit floats are in tf32: their operands are rounded to 10 bits behind the point, and tensor cores multiply them. Models at other
    /// precisions are what they are.
    pub tf32: bool,
    /// Whether the launches of a batch whose number of rows is new are made a graph, which later ones of about that size are launched by. Results are the same
    /// without it.
    pub graphs: bool,
    /// How long the worker looks for a signal without a pause: what a step has to wait for it is less, what others get of its core is less too.
    pub spin: Duration,
    /// How long the worker waits for what it queued first; then the device is lost, whatever it says. [`WAIT_MAX`] if not said.
    pub wait_max: Duration,
    /// Whether words that nobody may write lie around everything on the device, and are looked at after every task: a device on which one is overwritten
    /// is lost. It is slow, and for finding faults.
    pub debug: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        let spin = Duration::from_micros(200);
        Self {
            arena_bytes: None,
            weight_bytes: None,
            frame_bytes: None,
            graph_bytes: None,
            ahead_bytes: None,
            ring_bytes: 32 << 20,
            rows_most: 4096,
            chains: 1 << 18,
            tf32: false,
            graphs: true,
            spin,
            wait_max: WAIT_MAX,
            debug: false,
        }
    }
}

/// The arena's size where nothing is said and memory is plenty.
const ARENA_BYTES: u64 = 16 << 30;

/// Between looks at the signal that are not worth a core.
const PAUSE: Duration = Duration::from_micros(20);

/// What comes of the options on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) slots: u32,
    pub(super) weight_bytes: u64,
    pub(super) frame_bytes: u64,
    pub(super) graph_bytes: u64,
    pub(super) ahead_bytes: u64,
    pub(super) ring_bytes: usize,
    pub(super) rows_most: usize,
    pub(super) words: u32,
}

impl CudaOptions {
    pub(super) const fn patience(&self) -> Patience {
        Patience { spin: self.spin, pause: PAUSE, most: self.wait_max }
    }

    pub(super) fn sizes(&self, driver: &mut dyn Driver) -> Done<Sizes> {
        let free = driver.memory_free()?;
        let arena = self.arena_bytes.unwrap_or_else(|| ARENA_BYTES.min(free / 4));
        Ok(Sizes {
            slots: u32::try_from(arena / SLOT_BYTES as u64).unwrap_or(u32::MAX).max(1),
            weight_bytes: self.weight_bytes.unwrap_or(free / 2),
            frame_bytes: self.frame_bytes.unwrap_or(free / 8),
            graph_bytes: self.graph_bytes.unwrap_or(free / 64),
            ahead_bytes: self.ahead_bytes.unwrap_or(free / 32),
            ring_bytes: self.ring_bytes,
            rows_most: self.rows_most.max(1) as usize,
            words: self.chains.max(1),
        })
    }
}

//! Graphs: the launches of one or several batches, made once for a cell and a size, and launched as one from then on.
//!
//! What differs from task to task is in the batches' heads ([`BatchHead`]). A task's are copied to one place, where the kernels of all graphs look, by what is
//! queued right before a graph: so a graph's arguments never change, whatever a batch is composed of. Its launches have blocks for as many rows as its
//! bucket has; those for rows that are not there leave at once. Work on the stream runs in its order, so the heads stay until the graph before is done.
//!
//! A batch's rows come in buckets of powers of two, the last of which is as many as the frame has. Batches that come one behind the other go by
//! eights, fours, twos and ones, so that a cell has four graphs for a bucket,
//! and four more of batches that begin with what was computed ahead. A graph is made when its first batch comes, from the calls that would have
//! queued it, and stays until its cell is unloaded or the frame moves. [`GRAPHS_MOST`] and [`LAUNCHES_MOST`] bound them; what comes later is launched
//! directly, and so is what would save nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::CudaWorker;
use super::queue::queue_batch;
use super::resident::{Resident, Rows};
use crate::abi::BatchHead;
use crate::driver::{DeviceAddress, Done, Driver, Graph};

/// Batches of a graph, at most: a power of two.
pub(super) const STEPS_MOST: usize = 8;

/// Graphs of a cell, at most: more than the buckets up to 4096 rows come to, of either kind.
const GRAPHS_MOST: usize = 128;

/// Launches of all graphs of a worker, at most: what a driver keeps of each is its own, and small.
const LAUNCHES_MOST: usize = 1 << 15;

/// Fewer launches are not worth one: the copy of the heads and the graph itself are two.
const LAUNCHES_LEAST: usize = 4;

/// What a graph is for: the cell's memory, rows, batches, and whether they begin with what was computed ahead.
type Key = (DeviceAddress, u32, usize, bool);

/// A graph that was made, and how many launches it has.
type Made = (Graph, usize);

/// Those of a worker.
#[derive(Debug)]
pub(super) struct Graphs {
    /// Where the heads lie of the batches that run; none: no graphs are made.
    heads: Option<DeviceAddress>,
    /// None: there is to be none, because it saves nothing, there were too many, or the driver did not make it.
    made: BTreeMap<Key, Option<Made>>,
}

impl Graphs {
    pub(super) fn new(driver: &mut dyn Driver, are_made: bool) -> Done<Self> {
        let heads = are_made.then(|| driver.allocate(STEPS_MOST * size_of::<BatchHead>())).transpose()?;
        Ok(Self { heads, made: BTreeMap::new() })
    }

    /// Its memory, if it has any.
    pub(super) const fn heads(&self) -> Option<DeviceAddress> {
        self.heads
    }

    /// Gives back those of the cell whose memory that is, or of all cells.
    pub(super) fn forget(&mut self, cell: Option<DeviceAddress>, driver: &mut dyn Driver) -> Done {
        let is_of = |key: &Key| cell.is_none_or(|cell| cell == key.0);
        let (gone, kept): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.made).into_iter().partition(|(key, _)| is_of(key));
        self.made = kept;
        // All of them, whatever became of one.
        gone.into_values().flatten().map(|(graph, _)| driver.release_graph(graph)).fold(Ok(()), Done::and)
    }

    /// Whether the cell whose memory that is may have another one.
    fn has_room(&self, cell: DeviceAddress) -> bool {
        self.made.range((cell, 0, 0, false)..=(cell, u32::MAX, usize::MAX, true)).count() < GRAPHS_MOST
    }

    fn launches(&self) -> usize {
        self.made.values().flatten().map(|(_, launches)| launches).sum()
    }
}

impl CudaWorker {
    /// Queues so many batches of at most so many rows, which begin with what was computed ahead or do not, and whose heads lie there, as a graph; whether
    /// there is one for them.
    pub(super) fn queue_graph(
        &mut self,
        resident: &Arc<Resident>,
        (rows, steps, is_ahead): (u32, usize, bool),
        from: DeviceAddress,
    ) -> Done<bool> {
        let Some(heads) = self.graphs.heads else { return Ok(false) };
        let most = resident.rows_in(self.frame).min(self.sizes.rows_most);
        let bucket = rows.next_power_of_two().min(u32::try_from(most).unwrap_or(u32::MAX));
        let key = (resident.memory, bucket, steps, is_ahead);
        let made = match self.graphs.made.get(&key) {
            Some(made) => *made,
            None => self.make_graph(resident, key, heads)?,
        };
        let Some((graph, _)) = made else { return Ok(false) };
        let (driver, stream) = (&mut self.device.driver, self.device.stream);
        driver.copy(stream, from, heads, steps * size_of::<BatchHead>())?;
        // SAFETY: the heads say where the batches' lists lie, as their direct launches would; the rest is the cell's, or the frame, which have not moved
        // since it was made.
        unsafe { driver.launch_graph(stream, graph)? };
        Ok(true)
    }

    fn make_graph(&mut self, resident: &Arc<Resident>, key: Key, heads: DeviceAddress) -> Done<Option<Made>> {
        let (cell, bucket, steps, is_ahead) = key;
        if !self.graphs.has_room(cell) {
            return Ok(None);
        }
        let frame = self.frame;
        let launches = self.device.collect(|device| {
            (0..steps).try_for_each(|step| {
                let head = heads.plus(step * size_of::<BatchHead>()).0;
                let rows = Rows { head, is_ahead, ..Rows::of_one_step(&bucket) };
                queue_batch(device, resident, frame, (&rows, BatchHead::default()))
            })
        })?;
        let is_worth_it = launches.len() >= LAUNCHES_LEAST && self.graphs.launches() + launches.len() <= LAUNCHES_MOST;
        let made = if !is_worth_it {
            None
        } else {
            match self.device.driver.graph(&launches) {
                Ok(graph) => Some((graph, launches.len())),
                Err(fault) if fault.is_lost() => return Err(fault),
                Err(fault) => {
                    let name = &resident.name;
                    tracing::warn!(
                        "cell `{name}`: {steps} batches of up to {bucket} rows are launched one kernel at a time, because their graph is not made: {fault}"
                    );
                    None
                }
            }
        };
        self.graphs.made.insert(key, made);
        Ok(made)
    }
}

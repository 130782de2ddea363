//! Graphs: the launches of one or several batches, made once for a cell and a size, launched as
//! one.
//!
//! A graph never changes. What differs from task to task (rows, their lists, their places in the
//! rings) is in the batches' heads ([`BatchHead`]), which the kernels read from one place, the
//! desk. The desk is filled by a copy in front of each graph, on the stream of the steps; a small
//! segment's whole upload is that copy. Large uploads go through a ring beside it. A batch's last
//! kernel stores small results in the host's memory, with the signal behind it on the same stream.
//! Large downloads have a stream of their own.
//!
//! Batches come in buckets of powers of two rows, the last as large as the frame. Blocks for rows
//! that are not there leave at once. Consecutive batches go by eights, fours, twos and ones: four
//! graphs for a bucket, and four more for batches that begin with what was computed ahead. Several
//! steps of an LSTM or a GRU that are one batch are a graph too, with a launch for each step. Each
//! launch is told its step's number. More than [`STEPS_MOST`] steps are one cooperative launch
//! outside any graph, because its blocks wait for one another for longer than a graph takes from
//! launch to launch.
//!
//! A graph is made when its first batch comes, from the calls that would have queued the batch. It
//! is uploaded at once, so its first launch takes no more memory than was seen. It stays until its
//! cell is unloaded or the frame moves. [`GRAPHS_MOST`], [`LAUNCHES_MOST`] and
//! `CudaOptions::graph_bytes` bound all graphs. Only the driver knows what a graph takes, so free
//! memory before and after making one is compared, and the sum exceeds its bound by one graph at
//! most.
//!
//! Batches are launched directly if a graph has no room, would save nothing (fewer than
//! [`LAUNCHES_LEAST`] launches), or is refused by the driver. A refusal does not lose the device,
//! and no bit depends on any of this. Calibration times batches by graphs of their own where tasks
//! would have graphs. Graphs are built from nodes, not captured from a stream: a capture forbids
//! calls to everybody meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::CudaWorker;
use super::device::Device;
use super::frame::FrameMemory;
use super::queue::queue_batch;
use super::resident::{Resident, Rows};
use crate::abi::{BatchHead, bytes_of};
use crate::driver::{DeviceAddress, Done, Driver, Fault, Graph, GraphLaunch};

/// Batches of a graph, at most (a power of two), and steps of one batch that is a graph.
pub(super) const STEPS_MOST: usize = 8;

/// Bytes of the desk: what is copied there keeps the steps' stream from going on.
pub(super) const DESK_BYTES: usize = 256 << 10;

/// Graphs of a cell, at most: more than the 13 buckets up to 4096 rows come to, of 1, 2, 4 and 8 batches, or of a batch of 2 to 8 steps, of either kind.
const GRAPHS_MOST: usize = 512;

/// Launches of all graphs of a worker, at most.
const LAUNCHES_MOST: usize = 1 << 15;

/// Fewer launches are not worth one: the graph is a call itself, and where its heads are not there yet their copy is another.
const LAUNCHES_LEAST: usize = 3;

/// Launches of a batch beside those of its cell's plan: its gathering and its finish.
const LAUNCHES_AROUND: usize = 2;

/// What a graph is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// The cell's memory.
    cell: DeviceAddress,
    /// Rows of a batch; or of a step, where all steps are one.
    bucket: u32,
    /// Batches, one behind the other; or steps of the one batch.
    steps: usize,
    /// Whether they begin with what was computed ahead.
    is_ahead: bool,
    /// Whether the steps are one batch, not one each.
    is_whole: bool,
}

impl Key {
    /// All of a cell lie between these two.
    const fn first(cell: DeviceAddress) -> Self {
        Self { cell, bucket: 0, steps: 0, is_ahead: false, is_whole: false }
    }
    const fn last(cell: DeviceAddress) -> Self {
        Self { cell, bucket: u32::MAX, steps: usize::MAX, is_ahead: true, is_whole: true }
    }

    /// Rows of the frame that its batches have, or its batch.
    pub(super) const fn rows(&self) -> u32 {
        if self.is_whole { self.bucket * self.steps as u32 } else { self.bucket }
    }

    /// Batches, each with a head.
    const fn batches(&self) -> usize {
        if self.is_whole { 1 } else { self.steps }
    }

    /// Queues its launches, which look for heads there.
    fn launch(&self, device: &mut Device, resident: &Resident, frame: FrameMemory, heads: DeviceAddress) -> Done {
        let steps = if self.is_whole { vec![self.bucket; self.steps] } else { vec![self.bucket] };
        (0..self.batches()).try_for_each(|batch| {
            let head = heads.plus(batch * size_of::<BatchHead>()).0;
            let (is_ahead, direct) = (self.is_ahead, resident.direct(self.is_ahead));
            let rows = Rows { steps: &steps, entries: 0, queue: 0, head, is_ahead, direct, checks: (0, 0) };
            queue_batch(device, resident, frame, (&rows, BatchHead::default()))
        })
    }
}

/// A graph that was made.
#[derive(Clone, Copy, Debug)]
struct Made {
    graph: Graph,
    launches: usize,
    /// Of the device's memory, about: drivers take it in large pieces.
    bytes: u64,
}

/// How batches of a key are launched.
#[derive(Clone, Copy, Debug)]
enum How {
    Graph(Made),
    /// Directly, because the driver refused to launch the graph, or to say what it takes. It stays until its cell goes, since giving one back waits for what is queued.
    GivenUp(Made),
    /// Directly, because a graph saves nothing, or the driver does not make it.
    Directly,
    /// Directly, as long as there is no room for a graph of so many launches.
    UntilThereIsRoom(usize),
}

impl How {
    const fn made(&self) -> Option<&Made> {
        match self {
            Self::Graph(made) | Self::GivenUp(made) => Some(made),
            Self::Directly | Self::UntilThereIsRoom(_) => None,
        }
    }
}

/// Those of a worker.
#[derive(Debug)]
pub(super) struct Graphs {
    /// The desk: where the heads lie of the batches that run, and behind them all that a small segment uploads; none: no graphs are made.
    heads: Option<DeviceAddress>,
    known: BTreeMap<Key, How>,
    /// Launches of all that are there, and what they take of the device's memory.
    launches: usize,
    bytes: u64,
    bytes_most: u64,
}

impl Graphs {
    /// `bytes_most`: what they may take; none: no graphs are made.
    pub(super) fn new(driver: &mut dyn Driver, bytes_most: Option<u64>) -> Done<Self> {
        let heads = bytes_most.map(|_| driver.allocate(DESK_BYTES)).transpose()?;
        Ok(Self { heads, known: BTreeMap::new(), launches: 0, bytes: 0, bytes_most: bytes_most.unwrap_or_default() })
    }

    /// The desk, if there is one.
    pub(super) const fn desk(&self) -> Option<DeviceAddress> {
        self.heads
    }

    /// Gives back those of the cell whose memory that is, or of all cells.
    pub(super) fn forget(&mut self, cell: Option<DeviceAddress>, driver: &mut dyn Driver) -> Done {
        let is_of = |key: &Key| cell.is_none_or(|cell| cell == key.cell);
        let (gone, kept): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.known).into_iter().partition(|(key, _)| is_of(key));
        self.known = kept;
        let kept = || self.known.values().filter_map(How::made);
        (self.launches, self.bytes) = (kept().map(|made| made.launches).sum(), kept().map(|made| made.bytes).sum());
        // All of them, whatever became of one.
        gone.values().filter_map(How::made).map(|made| driver.release_graph(made.graph)).fold(Ok(()), Done::and)
    }

    /// Whether the cell whose memory that is may have another one.
    fn has_room(&self, cell: DeviceAddress) -> bool {
        self.known.range(Key::first(cell)..=Key::last(cell)).count() < GRAPHS_MOST
    }

    /// Whether there may be one more, of so many launches.
    const fn has_room_for(&self, launches: usize) -> bool {
        self.launches + launches <= LAUNCHES_MOST && self.bytes < self.bytes_most
    }

    fn add(&mut self, key: Key, how: How) {
        if let Some(made) = how.made() {
            self.launches += made.launches;
            self.bytes += made.bytes;
        }
        self.known.insert(key, how);
    }
}

/// Batches that are timed: how many rows they have, and what they are launched by.
pub(super) type Timed = (u32, Option<(Graph, DeviceAddress)>);

impl CudaWorker {
    /// Queues so many batches of at most so many rows, which begin with what was computed ahead or do not, and whose heads lie there, as a graph; whether
    /// there is one for them.
    pub(super) fn queue_graph(
        &mut self,
        resident: &Arc<Resident>,
        (rows, steps, is_ahead): (u32, usize, bool),
        from: DeviceAddress,
    ) -> Done<bool> {
        let key = Key { cell: resident.memory, bucket: self.bucket(resident, rows), steps, is_ahead, is_whole: false };
        let Some(made) = self.made_graph(resident, key)? else { return Ok(false) };
        self.launch_graph(resident, (key, made), from)
    }

    /// For what graph several steps of so many rows are that are one batch, if there is one for them, or can be.
    pub(super) fn whole(&mut self, resident: &Arc<Resident>, steps: &[u32], is_ahead: bool) -> Done<Option<Key>> {
        let most = steps.iter().copied().max().unwrap_or_default();
        let key = Key { cell: resident.memory, bucket: self.bucket(resident, most), steps: steps.len(), is_ahead, is_whole: true };
        if steps.len() > STEPS_MOST || key.rows() as usize > resident.rows_in(self.frame) {
            return Ok(None);
        }
        Ok(self.made_graph(resident, key)?.map(|_| key))
    }

    /// Queues a batch of several steps whose lists were written for that graph, and whose head lies there.
    pub(super) fn queue_whole(&mut self, resident: &Arc<Resident>, key: Key, from: DeviceAddress) -> Done {
        if let Some(made) = self.made_graph(resident, key)?
            && self.launch_graph(resident, (key, made), from)?
        {
            return Ok(());
        }
        // It was given up since. Its launches run as well by themselves, and read the same lists.
        key.launch(&mut self.device, resident, self.frame, from)
    }

    /// The graph of a key, if there is one or can be.
    fn made_graph(&mut self, resident: &Arc<Resident>, key: Key) -> Done<Option<Made>> {
        let Some(heads) = self.graphs.heads else { return Ok(None) };
        let how = match self.graphs.known.get(&key).copied() {
            Some(How::UntilThereIsRoom(launches)) if self.graphs.has_room_for(launches) => self.make_graph(resident, key, heads)?,
            Some(how) => how,
            None => self.make_graph(resident, key, heads)?,
        };
        Ok(if let How::Graph(made) = how { Some(made) } else { None })
    }

    /// Queues a graph whose batches' heads lie there; whether the driver took it.
    fn launch_graph(&mut self, resident: &Arc<Resident>, (key, made): (Key, Made), from: DeviceAddress) -> Done<bool> {
        let Some(heads) = self.graphs.heads else { return Ok(false) };
        let (driver, stream) = (&mut self.device.driver, self.device.stream);
        if from != heads {
            driver.copy(stream, from, heads, key.batches() * size_of::<BatchHead>())?;
        }
        // SAFETY: the heads say where the batches' lists lie, as their direct launches would; the rest is the cell's, or the frame, which have not moved
        // since it was made.
        match unsafe { driver.launch_graph(stream, made.graph) } {
            Ok(()) => Ok(true),
            Err(fault) if fault.is_lost() => Err(fault),
            // A device that has no room to launch one has it for a kernel, and nothing of the graph is queued.
            Err(fault) => {
                self.graphs.known.insert(key, How::GivenUp(made));
                told_directly(resident, key, &fault);
                Ok(false)
            }
        }
    }

    /// For how many rows a graph is that runs so many.
    pub(super) fn bucket(&self, resident: &Resident, rows: u32) -> u32 {
        let most = resident.rows_in(self.frame).min(self.sizes.rows_most);
        rows.next_power_of_two().min(u32::try_from(most).unwrap_or(u32::MAX))
    }

    fn make_graph(&mut self, resident: &Arc<Resident>, key: Key, heads: DeviceAddress) -> Done<How> {
        if !self.graphs.known.contains_key(&key) && !self.graphs.has_room(key.cell) {
            return Ok(How::Directly);
        }
        let frame = self.frame;
        let launches = self.device.collect(|device| key.launch(device, resident, frame, heads))?;
        let how = if launches.len() < LAUNCHES_LEAST {
            How::Directly
        } else if !self.graphs.has_room_for(launches.len()) {
            How::UntilThereIsRoom(launches.len())
        } else {
            self.made(resident, key, &launches)?
        };
        self.graphs.add(key, how);
        Ok(how)
    }

    /// What a driver makes of launches. Whatever it refuses on the way, the batch runs without a graph, and this one is not asked for again.
    fn made(&mut self, resident: &Resident, key: Key, launches: &[GraphLaunch]) -> Done<How> {
        let (driver, stream) = (&mut self.device.driver, self.device.stream);
        let refused = |fault: Fault, how: How| {
            if fault.is_lost() {
                return Err(fault);
            }
            told_directly(resident, key, &fault);
            Ok(how)
        };
        let before = match driver.memory_free() {
            Ok(free) => free,
            Err(fault) => return refused(fault, How::Directly),
        };
        let graph = match driver.graph(stream, launches) {
            Ok(graph) => graph,
            Err(fault) => return refused(fault, How::Directly),
        };
        // What others take of the device meanwhile counts as well: then there are fewer graphs.
        let made = |bytes| Made { graph, launches: launches.len(), bytes };
        match driver.memory_free() {
            Ok(free) => Ok(How::Graph(made(before.saturating_sub(free)))),
            Err(fault) => refused(fault, How::GivenUp(made(0))),
        }
    }

    /// What batches of so many rows are launched by while they are timed: graphs of the cell's plan where those of tasks are graphs. They are to be given
    /// back.
    pub(super) fn timed(&mut self, resident: &Resident, rows: &[u32]) -> Done<Vec<Timed>> {
        let mut timed: Vec<Timed> = rows.iter().map(|rows| (*rows, None)).collect();
        let Some(heads) = self.graphs.heads.filter(|_| resident.spans.is_none()) else { return Ok(timed) };
        for (number, (rows, by)) in timed.iter_mut().enumerate() {
            let (frame, bucket) = (self.frame, self.bucket(resident, *rows));
            let of_graph = Rows { head: heads.0, ..Rows::of_one_step(&bucket) };
            let launches = self.device.collect(|device| resident.launch(device, frame, &of_graph))?;
            if launches.len() + LAUNCHES_AROUND < LAUNCHES_LEAST {
                continue;
            }
            // A task's heads come from elsewhere, as these do: the first place is theirs.
            let own = heads.plus((1 + number) * size_of::<BatchHead>());
            let (driver, stream) = (&mut self.device.driver, self.device.stream);
            driver.write(stream, own, bytes_of(&BatchHead { rows: *rows, ..BatchHead::default() }))?;
            *by = match driver.graph(stream, &launches) {
                Ok(graph) => Some((graph, own)),
                Err(fault) if fault.is_lost() => return Err(fault),
                Err(_) => None,
            };
        }
        Ok(timed)
    }

    /// Queues a batch that is timed.
    pub(super) fn queue_timed(&mut self, resident: &Resident, (rows, by): &Timed) -> Done {
        let (Some((graph, own)), Some(heads)) = (by, self.graphs.heads) else {
            return resident.launch(&mut self.device, self.frame, &Rows::of_one_step(rows));
        };
        let (driver, stream) = (&mut self.device.driver, self.device.stream);
        driver.copy(stream, *own, heads, size_of::<BatchHead>())?;
        // SAFETY: the head says how many rows of the frame there are; the rest is the cell's, and stays until this has run.
        match unsafe { driver.launch_graph(stream, *graph) } {
            Err(fault) if !fault.is_lost() => resident.launch(&mut self.device, self.frame, &Rows::of_one_step(rows)),
            launched => launched,
        }
    }
}

fn told_directly(resident: &Resident, Key { bucket, steps, is_whole, .. }: Key, fault: &Fault) {
    let (name, what) = (&resident.name, if is_whole { "steps" } else { "batches" });
    tracing::warn!(
        "cell `{name}`: {steps} {what} of up to {bucket} rows are launched one kernel at a time, because their graph is refused: {fault}"
    );
}

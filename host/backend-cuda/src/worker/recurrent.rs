//! Steps of an LSTM, a GRU or a tree by kernels of their own: which kernel, how it divides the
//! work, and the lists that it reads.
//!
//! A step reads and leaves its values in rows of the frame. A kernel writes the lists of them
//! (`kernels/lstm_rows.cu`), behind the frame's rows. An LSTM's states may pass by the frame
//! ([`Direct`]) if the cell is the step and nothing else, and if its sums begin with a looked-up
//! row. Then one kernel gathers and lists the rows. The step reads c, and leaves c and h, where
//! they are held. Delivered values are copied from there.
//!
//! Several steps of a task are several rows, and launches of one graph, or one launch if the device
//! takes it. No bit depends on the number of steps, on the tile that is chosen or on a table.

use std::sync::atomic::{AtomicBool, Ordering};

use super::device::Device;
use super::frame::FrameMemory;
use super::resident::Rows;
use super::table::Table;
use crate::abi::{
    Arguments, BatchHead, GRU_F16_QUEUES, GRU_F16_STEPS, GRU_QUEUES, GRU_STEPS, GateTile, LSTM_F16_QUEUES, LSTM_F16_STEPS, LSTM_LISTS,
    LSTM_QUEUES, LSTM_STEPS, LstmGatherArguments, LstmListArguments, LstmQueueArguments, LstmRows, LstmStepArguments, NOWHERE,
    TREE_F16_STEPS, TREE_LISTS, TREE_STEPS, TensorMap, TreeListArguments,
};
use crate::driver::{Done, Driver, Fault, Kernel, Launch};
use crate::plan::{BlobId, Kind, Recurrence};

/// Bytes of the lists for each row,
const LIST_BYTES: usize = (if LSTM_LISTS > TREE_LISTS { LSTM_LISTS } else { TREE_LISTS }) * size_of::<u64>();
/// and of the word by which a queue's blocks wait for one another.
const COUNTER_BYTES: usize = 16;

/// Threads that see to a row's lists.
pub(super) const LIST_THREADS: u32 = 128;

/// Those of a kind of cell.
#[derive(Clone, Copy, Debug)]
struct Steps {
    steps: [(Kernel, GateTile); LSTM_STEPS.len()],
    queues: [(Kernel, GateTile); LSTM_QUEUES.len()],
}

/// Those of one format of 16 bits.
#[derive(Clone, Copy, Debug)]
struct Format {
    lstm: Steps,
    gru: Steps,
    tree: [(Kernel, GateTile); TREE_STEPS.len()],
}

/// The kernels, loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct LstmKernels {
    rows: Kernel,
    gather: Kernel,
    pub(super) tree_rows: Kernel,
    bf16: Format,
    f16: Format,
}

impl LstmKernels {
    /// None on a device that has none: they are for one architecture.
    pub(super) fn of(driver: &mut dyn Driver) -> Done<Option<Self>> {
        let rows = match driver.kernel(LstmListArguments::KERNEL) {
            Ok(rows) => rows,
            Err(Fault::Refused(_)) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let mut loaded = |steps: [GateTile; LSTM_STEPS.len()], queues: [GateTile; LSTM_QUEUES.len()]| -> Done<Steps> {
            let mut loaded = Steps { steps: steps.map(|tile| (rows, tile)), queues: queues.map(|tile| (rows, tile)) };
            for (kernel, tile) in loaded.steps.iter_mut().chain(&mut loaded.queues) {
                *kernel = driver.kernel(tile.name)?;
            }
            Ok(loaded)
        };
        let lstm = [loaded(LSTM_STEPS, LSTM_QUEUES)?, loaded(LSTM_F16_STEPS, LSTM_F16_QUEUES)?];
        let gru = [loaded(GRU_STEPS, GRU_QUEUES)?, loaded(GRU_F16_STEPS, GRU_F16_QUEUES)?];
        let mut trees = [TREE_STEPS, TREE_F16_STEPS].map(|steps| steps.map(|tile| (rows, tile)));
        for (kernel, tile) in trees.iter_mut().flatten() {
            *kernel = driver.kernel(tile.name)?;
        }
        let (gather, tree_rows) = (driver.kernel(LstmGatherArguments::KERNEL)?, driver.kernel(TreeListArguments::KERNEL)?);
        let format = |number: usize| Format { lstm: lstm[number], gru: gru[number], tree: trees[number] };
        Ok(Some(Self { rows, gather, tree_rows, bf16: format(0), f16: format(1) }))
    }

    const fn format(&self, plan: &Recurrence) -> &Format {
        if plan.is_f16 { &self.f16 } else { &self.bf16 }
    }

    pub(super) const fn steps(&self, plan: &Recurrence) -> &[(Kernel, GateTile)] {
        let format = self.format(plan);
        match plan.kind {
            Kind::Lstm => &format.lstm.steps,
            Kind::Gru => &format.gru.steps,
            Kind::Tree => &format.tree,
        }
    }

    /// A tree's node has one step.
    const fn queues(&self, plan: &Recurrence) -> &[(Kernel, GateTile)] {
        let format = self.format(plan);
        match plan.kind {
            Kind::Lstm => &format.lstm.queues,
            Kind::Gru => &format.gru.queues,
            Kind::Tree => &[],
        }
    }
}

/// What a tile reads for each row of the weights, in columns: its own, which is what a multiprocessor waits for, for the tensor cores are faster. Of
/// weights that stay it reads none.
const fn reads(tile: &GateTile) -> u32 {
    tile.rows + if tile.is_resident { 0 } else { tile.columns() }
}

/// How long a step takes with so many blocks at once, in what a tile reads. Arithmetic, which on an H200 finds the fastest tile for 1 to 2048 rows of an LSTM
/// of 1024, or one that takes a twentieth more: blocks come in waves, of which each takes as long as one tile.
fn time(tile: &GateTile, (rows, units): (u32, u32), blocks: u32) -> u64 {
    u64::from(tile.tiles(rows, units).div_ceil(blocks.max(1))) * u64::from(reads(tile))
}

/// The tile that takes the least time for a step; of equal ones the first. No bit depends on which.
pub(super) fn step_tile<T: Copy>(tiles: &[(T, GateTile)], step: (u32, u32), multiprocessors: u32) -> Option<(T, GateTile)> {
    tiles.iter().copied().min_by_key(|(_, tile)| time(tile, step, multiprocessors))
}

/// A kernel for several steps that the device takes for so many units.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Queue {
    kernel: Kernel,
    tile: GateTile,
    /// Blocks that run at once; of a kernel whose weights stay a multiple of its tiles of units.
    blocks: u32,
}

impl Queue {
    fn all(device: &mut Device, queues: &[(Kernel, GateTile)], units: u32) -> Done<Vec<Self>> {
        let mut found = Vec::new();
        for (kernel, tile) in queues.iter().copied() {
            let shared_bytes = tile.shared_bytes(units);
            if shared_bytes > device.driver.facts().shared_bytes_max {
                continue;
            }
            let most = device.driver.resident_blocks(kernel, tile.threads, shared_bytes)?;
            let blocks = if tile.is_resident { most / tile.across(units) * tile.across(units) } else { most };
            if blocks > 0 {
                found.push(Self { kernel, tile, blocks });
            }
        }
        Ok(found)
    }
}

/// An LSTM, a GRU or a tree of a plan, on the device.
#[derive(Debug)]
pub(super) struct Recurrent {
    pub(super) plan: Recurrence,
    pub(super) kernels: LstmKernels,
    pub(super) weights: u64,
    pub(super) bias: u64,
    queues: Vec<Queue>,
    /// Whether the device has refused one of them.
    refuses: AtomicBool,
    /// What sums begin with, by token, if there is such a table.
    pub(super) table: Option<Table>,
    /// Rows in which they were computed ahead, by number, for batches that begin there.
    pub(super) ahead: Table,
}

impl Recurrent {
    /// Of a plan whose blobs lie there.
    pub(super) fn new(plan: &Recurrence, blobs: &[u64], device: &mut Device) -> Done<Self> {
        let address = |blob: BlobId| blobs[blob.0];
        let kernels = device.kernels.lstm.ok_or_else(|| Fault::Refused("it has no kernels for an LSTM".to_owned()))?;
        let queues = Queue::all(device, kernels.queues(plan), plan.units)?;
        let (weights, bias) = (address(plan.weights), plan.bias.map(address).unwrap_or_default());
        Ok(Self {
            plan: plan.clone(),
            kernels,
            weights,
            bias,
            queues,
            refuses: AtomicBool::new(false),
            table: None,
            ahead: Table::default(),
        })
    }

    /// Bytes of the frame beyond its rows, for so many of them.
    pub(super) const fn bytes(rows: usize) -> usize {
        rows * LIST_BYTES + COUNTER_BYTES
    }

    /// The lists of a step: rows from `first` on, of so many in all.
    fn rows_of(&self, lists: u64, (first, rows, all): (u32, u32, u32)) -> LstmRows {
        let list = |number: u64| lists + (number * u64::from(all) + u64::from(first)) * size_of::<u64>() as u64;
        let [h_next, c, begin, h_out, c_out, h_exact] = [0, 1, 2, 3, 4, 5].map(list);
        let h_out = if self.plan.h_out.is_some() { h_out } else { 0 };
        LstmRows { h_next, c, begin, h_out, c_out, h_exact, first, rows, sequence: 0, padding: 0 }
    }

    /// Where the lists lie, of that frame's rows.
    pub(super) fn lists(frame: FrameMemory, stride: u32, rows: u32) -> u64 {
        frame.address.plus(stride as usize * rows as usize).0
    }

    /// What is told of steps of so many rows each, whose lists are made for so many in all.
    pub(super) fn queue(&self, (frame, stride): (FrameMemory, u32), steps: &[u32], all: u32) -> Vec<LstmRows> {
        let lists = Self::lists(frame, stride, all);
        let mut first = 0;
        let of_step = |rows: &u32| {
            let step = self.rows_of(lists, (first, *rows, all));
            first += rows;
            step
        };
        steps.iter().map(of_step).collect()
    }

    /// Queues what makes the lists of rows, and gathers them, if they pass by the frame.
    fn make_lists(&self, device: &mut Device, (frame, stride): (FrameMemory, u32), (lists, counter): (u64, u64), rows: &Rows<'_>) -> Done {
        let (plan, all) = (&self.plan, rows.count());
        let place = |place: usize| place as u32;
        let h_from = place(plan.h_from);
        let table = if rows.is_ahead { self.ahead } else { self.table() };
        if let Some(direct) = &rows.direct {
            let arguments = LstmGatherArguments {
                frame: frame.address.0,
                head: rows.head,
                lists,
                counter,
                table: table.address.0,
                table_rows: table.rows,
                table_stride: table.stride,
                token_bytes: table.token.1,
                port_count: direct.ports.count,
                token_port: direct.ports.token,
                h_port: direct.ports.states[0],
                c_port: direct.ports.states[1],
                h_node: direct.nodes[0],
                c_node: direct.nodes[1],
                stride,
                units: plan.units,
                is_f16: u32::from(plan.is_f16),
                h_exact: place(plan.h_next),
                c_out: place(plan.c_next),
                h_from,
                own: direct.own,
            };
            let launch =
                Launch { kernel: self.kernels.gather, grid: [all, 1, 1], threads: LIST_THREADS, shared_bytes: 0, cooperative: false };
            // SAFETY: the kernel takes this structure; as below, and what entries and addresses name lies in the arena or the segment's stretch.
            return unsafe { device.launch(&launch, &arguments) };
        }
        let arguments = LstmListArguments {
            frame: frame.address.0,
            entries: rows.entries,
            lists,
            counter,
            table: table.address.0,
            table_rows: table.rows,
            table_stride: table.stride,
            token: table.token.0,
            token_bytes: table.token.1,
            is_f16: u32::from(plan.is_f16),
            stride,
            own: plan.own,
            units: plan.units,
            h: place(plan.h),
            c: place(plan.c),
            begin: plan.begin.map_or(NOWHERE, place),
            h_exact: place(plan.h_next),
            c_out: place(plan.c_next),
            h_from,
            h_out: plan.h_out.map_or(NOWHERE, place),
            head: rows.head,
        };
        let launch = Launch { kernel: self.kernels.rows, grid: [all, 1, 1], threads: LIST_THREADS, shared_bytes: 0, cooperative: false };
        // SAFETY: the kernel takes this structure; rows, lists and the word lie in the frame, the entries where their task was uploaded to.
        unsafe { device.launch(&launch, &arguments) }
    }

    /// Queues the steps of rows in the frame.
    pub(super) fn launch(&self, device: &mut Device, (frame, stride): (FrameMemory, u32), rows: &Rows<'_>) -> Done {
        let plan = &self.plan;
        let all = rows.count();
        if let Some(second) = plan.second {
            return self.launch_tree(device, (frame, stride), (all, rows.head), second);
        }
        let lists = Self::lists(frame, stride, all);
        let counter = lists + u64::from(all) * LIST_BYTES as u64;
        self.make_lists(device, (frame, stride), (lists, counter), rows)?;
        let h = frame.matrix(device, (plan.h_from, plan.units), (all, stride))?;
        match self.launch_together(device, (h, counter), rows) {
            Ok(false) => self.launch_one_by_one(device, (h, lists), rows),
            Err(fault) if !fault.is_lost() => {
                // What a device may run at once is not its driver's to promise (another process may have part of it), and steps run one by one as well.
                if !self.refuses.swap(true, Ordering::Relaxed) {
                    let (name, units) = (&device.name, plan.units);
                    tracing::warn!(
                        "{name}: steps of a cell of {units} units are launched one by one: several at once were refused: {fault}"
                    );
                }
                self.launch_one_by_one(device, (h, lists), rows)
            }
            launched => launched.map(|_| ()),
        }
    }

    /// Queues the steps as one launch whose blocks wait for one another; false if there is but one, or no kernel that the device would take.
    fn launch_together(&self, device: &mut Device, (h, counter): (TensorMap, u64), rows: &Rows<'_>) -> Done<bool> {
        let units = self.plan.units;
        let most = rows.steps.iter().copied().max().unwrap_or_default();
        let queue = self.queues.iter().min_by_key(|queue| time(&queue.tile, (most, units), queue.blocks));
        let Some(Queue { kernel, tile, blocks }) = queue.filter(|_| rows.queue != 0 && !self.refuses.load(Ordering::Relaxed)) else {
            return Ok(false);
        };
        let arguments = LstmQueueArguments {
            h,
            steps: rows.queue,
            counter,
            weights: self.weights,
            bias: self.bias,
            step_count: rows.steps.len() as u32,
            units,
            z_takes: u32::from(self.plan.z_takes),
            columns: self.columns(),
            ..LstmQueueArguments::default()
        };
        let grid = [tile.tiles(most, units).min(*blocks), 1, 1];
        let launch = Launch { kernel: *kernel, grid, threads: tile.threads, shared_bytes: tile.shared_bytes(units), cooperative: true };
        // SAFETY: the kernel takes this structure; what the steps name lies in the frame or where states are held, the word, which is 0, in the frame, and so do
        // boxes of rows (`FrameMemory::matrix`).
        unsafe { device.launch(&launch, &arguments) }.map(|()| true)
    }

    /// Queues one launch for each step. Of several whose rows are only known by their batch's head, each is told which it is.
    fn launch_one_by_one(&self, device: &mut Device, (h, lists): (TensorMap, u64), rows: &Rows<'_>) -> Done {
        let (plan, units, all) = (&self.plan, self.plan.units, rows.count());
        let mut first = 0;
        let are_numbered = rows.head != 0 && rows.steps.len() > 1;
        for (number, count) in (1..).zip(rows.steps) {
            let steps = self.kernels.steps(plan);
            let Some((kernel, tile)) = step_tile(steps, (*count, units), device.driver.facts().multiprocessors) else { continue };
            let of_step = self.rows_of(lists, (first, *count, all));
            let arguments = LstmStepArguments {
                h,
                rows: of_step,
                weights: self.weights,
                bias: self.bias,
                units,
                columns: self.columns(),
                rows_at: rows.head,
                z_takes: u32::from(plan.z_takes),
                number: if are_numbered { number } else { 0 },
                ..LstmStepArguments::default()
            };
            let (grid, shared_bytes) = ([tile.tiles(*count, units), 1, 1], tile.shared_bytes(units));
            let launch = Launch { kernel, grid, threads: tile.threads, shared_bytes, cooperative: false };
            // SAFETY: the kernel takes this structure; the lists lie behind the frame's rows, what they name in those or where states are held, and boxes of
            // rows in the frame (`FrameMemory::matrix`).
            unsafe { device.launch(&launch, &arguments)? };
            first += count;
        }
        Ok(())
    }

    /// Where i, f, g and o begin among a row's sums.
    const fn columns(&self) -> [u32; 4] {
        let [i, f, g, o, _] = self.plan.columns;
        [i, f, g, o]
    }
}

/// Where a cell's states come from and go to if they pass by the frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Direct {
    pub(super) ports: DirectPorts,
    /// Where in a node h and c are held.
    pub(super) nodes: [u32; 2],
    /// The head of a batch that is launched directly.
    pub(super) own: BatchHead,
}

/// Of a row's addresses, by position: how many they are, that of what is looked up, and those of h and c.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DirectPorts {
    pub(super) count: u32,
    pub(super) token: u32,
    pub(super) states: [u32; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `kernels/abi.h` has the tiles for: few rows are divided by units, many by rows as well.
    #[test]
    fn tiles_grow_with_the_rows() {
        let names = |tiles: [GateTile; 4]| {
            let tiles = tiles.map(|tile| ((), tile));
            [1, 64, 256, 512, 2048].map(|rows| step_tile(&tiles, (rows, 1024), 132).expect("there are tiles").1.name)
        };
        assert_eq!(names(LSTM_STEPS), ["lstm_step_64x8", "lstm_step_64x8", "lstm_step_64x32", "lstm_step_128x32", "lstm_step_128x32"]);
        assert_eq!(names(GRU_STEPS), ["gru_step_64x8", "gru_step_64x8", "gru_step_64x32", "gru_step_128x32", "gru_step_128x32"]);
    }

    #[test]
    fn shared_memory_is_what_the_header_says() {
        let bytes = |tile: GateTile| tile.shared_bytes(1000);
        for (steps, queues, gates) in [(LSTM_STEPS, LSTM_QUEUES, 4), (GRU_STEPS, GRU_QUEUES, 3)] {
            let of = |slabs: u32, rows: u32, units: u32| slabs * (rows + gates * units) * 128;
            assert_eq!(steps.map(bytes), [of(16, 64, 8), of(12, 64, 16), of(8, 64, 32), of(6, 128, 32)]);
            let resident = |units: u32| 65536 + 16 * gates * units * 128;
            assert_eq!(queues.map(bytes), [resident(8), resident(16), of(8, 64, 32), of(6, 128, 32)], "1000 units are 16 slabs");
            assert_eq!(steps.map(|tile| tile.threads), [256, 256, 256, 384]);
        }
    }
}

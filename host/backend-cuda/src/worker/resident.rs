//! Plans on the device: weights, constants, tables and instructions, uploaded once for all cells of one key.

use std::iter;

use cellwright_backend::{LoadError, NodeLayout};
use cellwright_cell_graph::TypedCell;

use super::ahead;
use super::device::Device;
use super::frame::FrameMemory;
use super::prepare::{ReadyCell, ReadyPart};
use super::recurrent::{Direct, DirectPorts, Recurrent};
use super::table;
use crate::abi::{
    BEST_THREADS, BatchHead, BestArguments, CompiledGroupArguments, GroupArguments, GroupInstruction, LstmRows, Port, ProductArguments,
    ProductBestArguments, ProductTerm, WideArguments, bytes_of_all,
};
use crate::driver::{DeviceAddress, Done, Fault, Kernel, Launch};
use crate::plan::{Arithmetic, Best, BlobId, Kept, Kind, Plan, Product, Spans, Step};

/// Every piece begins at a multiple of so many bytes.
const PIECE: usize = 256;

/// A launch that knows everything but where the frame is.
#[derive(Clone, Debug)]
enum Ready {
    /// With addresses of the row's values that are offsets into the frame.
    Product(Box<ProductArguments>, Arithmetic, Option<Kept>),
    Best(Best),
    Group {
        instructions: u64,
        count: u32,
        threads: u32,
    },
    /// The same, of a kernel of its own.
    Compiled {
        kernel: Kernel,
        blobs: u64,
        threads: u32,
    },
}

/// A cell on the device.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(super) name: String,
    pub(super) plan: Plan,
    pub(super) layout: NodeLayout,
    pub(super) ports: u64,
    pub(super) outlets: u64,
    /// What it takes of the device's memory.
    pub(super) bytes: u64,
    pub(super) memory: DeviceAddress,
    ready: Vec<Ready>,
    /// Kernels of its own.
    compiled: Vec<Kernel>,
    pub(super) recurrent: Option<Recurrent>,
    /// Ports of the inputs that are gathered for what is computed ahead, and of what is gathered when that is there: the number of its row, and the other inputs.
    pub(super) early_ports: u64,
    pub(super) late_ports: u64,
    /// Rows to compute ahead in.
    pub(super) ahead: Option<ahead::Rows>,
    /// What runs before it, if it is the rest of a cell with ragged inputs.
    pub(super) spans: Option<Spans<Self>>,
}

/// Rows of a batch that run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a> {
    /// How many each step has, one step behind the other.
    pub(super) steps: &'a [u32],
    /// Their entries on the device; 0: they have none, and each has a step of its own.
    pub(super) entries: u64,
    /// What a queue of several steps is told; 0: nothing.
    pub(super) queue: u64,
    /// Where the batch's head will lie that says how many of these rows there are, and what their entries are; 0: there are all of them.
    pub(super) head: u64,
    /// Whether they begin with what was computed ahead.
    pub(super) is_ahead: bool,
    /// How their states pass by the frame, if they do.
    pub(super) direct: Option<Direct>,
    /// Where the lists lie of rows that may have been refused before, and how many.
    pub(super) checks: (u64, u32),
}

impl<'a> Rows<'a> {
    /// Rows that have nothing to do with one another.
    pub(super) const fn of_one_step(rows: &'a u32) -> Self {
        Self { steps: std::slice::from_ref(rows), entries: 0, queue: 0, head: 0, is_ahead: false, direct: None, checks: (0, 0) }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        self.steps.iter().sum()
    }
}

impl Resident {
    /// What a plan takes of the device's memory, without a table.
    pub(super) fn bytes_of(plan: &Plan) -> usize {
        // Of a group that is compiled the addresses of what it reads instead, which take less.
        let instruction_bytes = plan.instructions().count() * size_of::<GroupInstruction>() + plan.steps.len() * PIECE;
        let [early, late] = ports_ahead(plan);
        let tables = [bytes_of_all(&plan.inputs), bytes_of_all(&plan.outlets), bytes_of_all(&early), bytes_of_all(&late)];
        let table_bytes: usize = tables.iter().map(|bytes| bytes.len().next_multiple_of(PIECE)).sum();
        plan.blob_bytes(PIECE) + instruction_bytes + table_bytes + PIECE
    }

    /// Uploads a cell, if it takes no more than that.
    pub(super) fn new(cell: &TypedCell, mut ready: ReadyCell, device: &mut Device, available: u64) -> Result<Self, LoadError> {
        let bytes = Self::bytes_of(&ready.plan);
        if ready.bytes() > available {
            return Err(LoadError::OutOfMemory { cell: cell.name.clone(), needed: ready.bytes(), available });
        }
        let mut parts = Vec::new();
        let mut part = |part: ReadyPart, device: &mut Device| {
            let resident = Self::new(&part.cell, part.ready, device, available)?;
            parts.push((resident.memory, resident.compiled.clone(), resident.bytes));
            Ok(resident)
        };
        let spans = ready.spans.take().map(|spans| spans.map(&mut |ready| part(ready, device))).transpose();
        let layout = NodeLayout::of(cell);
        let uploaded = spans.and_then(|spans| {
            let uploaded = Self::upload(cell, ready, layout, (device, bytes), available);
            Ok((spans, uploaded.map_err(|fault| fault_of_load(&cell.name, device, &fault))?))
        });
        match uploaded {
            Ok((spans, resident)) => {
                let bytes = resident.bytes + parts.iter().map(|(_, _, bytes)| bytes).sum::<u64>();
                Ok(Self { spans, bytes, ..resident })
            }
            Err(error) => {
                // A device that is lost has nothing to take back.
                parts.iter().for_each(|(memory, compiled, _)| drop(give_back(device, *memory, compiled)));
                Err(error)
            }
        }
    }

    fn upload(cell: &TypedCell, ready: ReadyCell, layout: NodeLayout, (device, bytes): (&mut Device, usize), available: u64) -> Done<Self> {
        let memory = device.driver.allocate(bytes)?;
        device.call(memory, &format!("cell `{}`", cell.name));
        let (mut compiled, table_bytes_max) = (Vec::new(), ready.table_bytes_max);
        let uploaded = Self::upload_to(memory, cell, ready, layout, (device, bytes), &mut compiled).and_then(|mut resident| {
            resident.make_table(device, table_bytes_max.min(available.saturating_sub(bytes as u64) / table::SHARE))?;
            Ok(resident)
        });
        if uploaded.is_err() {
            // A device that is lost has nothing to take back.
            let _ = give_back(device, memory, &compiled);
        }
        Ok(Self { compiled, ..uploaded? })
    }

    fn upload_to(
        memory: DeviceAddress,
        cell: &TypedCell,
        ReadyCell { mut plan, generated, .. }: ReadyCell,
        layout: NodeLayout,
        (device, bytes): (&mut Device, usize),
        compiled: &mut Vec<Kernel>,
    ) -> Done<Self> {
        let mut next = memory;
        let mut put = |bytes: &[u8], device: &mut Device| -> Done<u64> {
            let at = next;
            if !bytes.is_empty() {
                device.driver.write(device.stream, at, bytes)?;
            }
            next = at.plus(bytes.len().next_multiple_of(PIECE));
            Ok(at.0)
        };
        // What lies on the device need not lie here as well.
        let blobs = std::mem::take(&mut plan.blobs).iter().map(|blob| put(blob.bytes(), device)).collect::<Done<Vec<u64>>>()?;
        let ports = put(bytes_of_all(&plan.inputs), device)?;
        let outlets = put(bytes_of_all(&plan.outlets), device)?;
        let [early, late] = ports_ahead(&plan);
        let (early_ports, late_ports) = (put(bytes_of_all(&early), device)?, put(bytes_of_all(&late), device)?);
        let mut ready = Vec::new();
        for (step, generated) in plan.steps.iter().zip(generated.into_iter().chain(iter::repeat(None))) {
            let kernel = generated.as_ref().map(|generated| device.driver.compiled(&generated.source)).transpose()?;
            if let (Some(Some(kernel)), Some(generated), Step::Group { threads, .. }) = (kernel, generated, step) {
                compiled.push(kernel);
                let addresses: Vec<u64> = generated.blobs.iter().map(|blob| blobs[*blob]).collect();
                ready.push(Ready::Compiled { kernel, blobs: put(bytes_of_all(&addresses), device)?, threads: *threads });
                continue;
            }
            ready.push(match step {
                Step::Product(product) => Ready::Product(Box::new(product_arguments(product, &blobs)), product.arithmetic, product.kept),
                Step::Best(best) => Ready::Best(*best),
                Step::Group { instructions, threads } => {
                    let placed: Vec<GroupInstruction> =
                        instructions.iter().map(|instruction| with_addresses(instruction, &blobs)).collect();
                    Ready::Group { instructions: put(bytes_of_all(&placed), device)?, count: placed.len() as u32, threads: *threads }
                }
            });
        }
        let recurrent = plan.recurrence.as_ref().map(|recurrence| Recurrent::new(recurrence, &blobs, device)).transpose()?;
        let (name, bytes, compiled) = (cell.name.clone(), bytes as u64, Vec::new());
        let (ahead, spans) = (None, None);
        Ok(Self { name, plan, layout, ports, outlets, bytes, memory, ready, compiled, recurrent, early_ports, late_ports, ahead, spans })
    }

    /// Gives its memory back.
    pub(super) fn free(&self, device: &mut Device) -> Done {
        let table = self.recurrent.as_ref().and_then(|recurrent| recurrent.table);
        let beside = [table.map(|table| table.address), self.ahead.map(|rows| rows.frame.address)];
        // All of them, whatever became of one.
        let freed = beside.into_iter().flatten().map(|address| device.driver.free(address)).fold(Ok(()), Done::and);
        let parts = self.spans.iter().flat_map(Spans::bodies).map(|part| part.free(device)).fold(freed, Done::and);
        give_back(device, self.memory, &self.compiled).and(parts)
    }

    /// Bytes that so many rows take of a frame.
    pub(super) const fn frame_bytes(&self, rows: usize) -> usize {
        rows.saturating_mul(self.plan.stride).saturating_add(if self.recurrent.is_some() { Recurrent::bytes(rows) } else { 0 })
    }

    /// Rows that a frame has for it.
    pub(super) const fn rows_in(&self, frame: FrameMemory) -> usize {
        let beside = self.frame_bytes(0);
        frame.bytes.saturating_sub(beside) / (self.frame_bytes(1) - beside)
    }

    /// What is told of steps of so many rows, whose lists are made for so many in all; of a cell that has no such steps nothing.
    pub(super) fn queue(&self, frame: FrameMemory, steps: &[u32], all: u32) -> Vec<LstmRows> {
        self.recurrent.as_ref().map_or_else(Vec::new, |recurrent| recurrent.queue((frame, self.plan.stride as u32), steps, all))
    }

    /// Whether an input is a state, which goes from step to step within a batch.
    pub(super) fn carries(&self, input: usize) -> bool {
        self.plan.recurrence.as_ref().is_some_and(|recurrence| recurrence.inputs.contains(&input))
    }

    /// Inputs of which something is computed ahead.
    pub(super) fn early_inputs(&self) -> &[usize] {
        self.plan.recurrence.as_ref().and_then(|plan| plan.ahead.as_ref()).map_or(&[], |ahead| &ahead.early)
    }

    /// Their ports.
    pub(super) fn early(&self) -> impl Iterator<Item = &Port> {
        self.early_inputs().iter().map(|input| &self.plan.inputs[*input])
    }

    /// Inputs that are gathered where what was computed ahead is read.
    pub(super) fn late_inputs(&self) -> &[usize] {
        self.plan.recurrence.as_ref().and_then(|plan| plan.ahead.as_ref()).map_or(&[], |ahead| &ahead.late)
    }

    /// How states pass by the frame in a batch of which everything else is looked up, by a token or by the number of a row that was computed ahead: if the
    /// cell is the step of an LSTM and nothing else. Of whole batches without a table there is more to compute.
    pub(super) fn direct(&self, is_ahead: bool) -> Option<Direct> {
        let plan = self.plan.recurrence.as_ref().filter(|plan| plan.kind == Kind::Lstm && plan.own == plan.units)?;
        let ([h], [c]) = (plan.outputs[0].as_slice(), plan.outputs[1].as_slice()) else { return None };
        let in_pieces = |input: usize| self.plan.pieces.get(input).is_some_and(|pieces| *pieces > 0);
        // The kernel reads these where they lie.
        let token = plan.token.filter(|_| !is_ahead).map(|token| token.input);
        if plan.inputs.iter().copied().chain(token).any(in_pieces) {
            return None;
        }
        if self.plan.outlets.len() != 2 || self.ready.len() != plan.at || plan.inputs[0] == plan.inputs[1] {
            return None;
        }
        let late = self.late_inputs();
        let port = |input: usize| -> Option<u32> {
            let position = if is_ahead { late.iter().position(|late| *late == input)? + 1 } else { input };
            Some(position as u32)
        };
        let states = [port(plan.inputs[0])?, port(plan.inputs[1])?];
        let (count, token) = match is_ahead {
            true => (late.len() + 1, 0),
            false => (self.plan.inputs.len(), self.recurrent.as_ref()?.table.and(plan.token)?.input),
        };
        let node = |output: u32| Some(self.plan.outlets.get(output as usize)?.node_offset);
        let ports = DirectPorts { count: count as u32, token: token as u32, states };
        Some(Direct { ports, nodes: [node(*h)?, node(*c)?], own: BatchHead::default() })
    }

    /// Queues everything that lies between the gathering of so many rows and their leaving.
    ///
    /// # Errors
    /// If the driver has one.
    pub(super) fn launch(&self, device: &mut Device, frame: FrameMemory, rows: &Rows<'_>) -> Done {
        let count = rows.count();
        assert!(count as usize <= self.rows_in(frame), "{count} rows in a frame of {}", self.rows_in(frame));
        let Some(recurrent) = &self.recurrent else { return self.run(&self.ready, device, frame, rows) };
        if recurrent.table.is_none() && !rows.is_ahead {
            self.run_before(device, frame, rows)?;
        }
        recurrent.launch(device, (frame, self.plan.stride as u32), rows)?;
        self.run(&self.ready[self.steps_before()..], device, frame, rows)
    }

    /// How many steps come before an LSTM's.
    fn steps_before(&self) -> usize {
        self.plan.recurrence.as_ref().map_or(self.ready.len(), |recurrence| recurrence.at)
    }

    /// Queues what comes before an LSTM's step.
    pub(super) fn run_before(&self, device: &mut Device, frame: FrameMemory, rows: &Rows<'_>) -> Done {
        self.run(&self.ready[..self.steps_before()], device, frame, rows)
    }

    fn run(&self, steps: &[Ready], device: &mut Device, frame: FrameMemory, rows: &Rows<'_>) -> Done {
        let (stride, rows_at, rows) = (self.plan.stride as u32, rows.head, rows.count());
        let kernel = device.kernels.group;
        for ready in steps {
            // SAFETY (all): these kernels take these structures; places lie in the frame's rows, of which there are so many, or in this plan's own
            // memory, which stays while a task that names it is outstanding.
            match ready {
                Ready::Product(ready, arithmetic, kept) => {
                    let product = in_frame(ready, frame.address, (stride, rows, rows_at));
                    let launch = device.product(*arithmetic, kept.is_some(), (rows, product.n))?;
                    let Kept { k, flags } = kept.unwrap_or(Kept { k: 0, flags: 0 });
                    let best = ProductBestArguments { product, k, flags };
                    if arithmetic.is_wide() {
                        let arguments = wide_arguments(device, frame, (ready, best), (rows, stride))?;
                        // SAFETY: above; and boxes of rows lie in the frame (`FrameMemory::matrix`).
                        unsafe { device.launch(&launch, &arguments)? };
                    } else if kept.is_some() {
                        // SAFETY: above.
                        unsafe { device.launch(&launch, &best)? };
                    } else {
                        // SAFETY: above.
                        unsafe { device.launch(&launch, &product)? };
                    }
                }
                Ready::Best(best) => {
                    let launch = Launch {
                        kernel: device.kernels.best,
                        grid: [rows, 1, 1],
                        threads: BEST_THREADS,
                        shared_bytes: 0,
                        cooperative: false,
                    };
                    // SAFETY: above.
                    unsafe { device.launch(&launch, &best_arguments(best, frame.address, (stride, rows_at)))? };
                }
                Ready::Group { instructions, count, threads } => {
                    let arguments = GroupArguments { frame: frame.address.0, instructions: *instructions, stride, count: *count, rows_at };
                    let launch = Launch { kernel, grid: [rows, 1, 1], threads: *threads, shared_bytes: 0, cooperative: false };
                    // SAFETY: above.
                    unsafe { device.launch(&launch, &arguments)? };
                }
                Ready::Compiled { kernel, blobs, threads } => {
                    let arguments = CompiledGroupArguments { frame: frame.address.0, blobs: *blobs, stride, padding: 0, rows_at };
                    let launch = Launch { kernel: *kernel, grid: [rows, 1, 1], threads: *threads, shared_bytes: 0, cooperative: false };
                    // SAFETY: above.
                    unsafe { device.launch(&launch, &arguments)? };
                }
            }
        }
        Ok(())
    }
}

/// Ports of what is gathered ahead, and of what is left to be gathered then, the number of the row in front of it.
fn ports_ahead(plan: &Plan) -> [Vec<Port>; 2] {
    let Some(ahead) = plan.recurrence.as_ref().and_then(|plan| plan.ahead.as_ref()) else { return [const { Vec::new() }; 2] };
    let of = |inputs: &[usize]| inputs.iter().map(|input| plan.inputs[*input]).collect::<Vec<Port>>();
    let number = Port { place: ahead.number as u32, bytes: size_of::<u64>() as u32 };
    [of(&ahead.early), [vec![number], of(&ahead.late)].concat()]
}

/// What a fault means for a cell that is being loaded.
pub(super) fn fault_of_load(cell: &str, device: &mut Device, fault: &Fault) -> LoadError {
    match fault {
        Fault::OutOfMemory { needed, free } => LoadError::OutOfMemory { cell: cell.to_owned(), needed: *needed, available: *free },
        Fault::Refused(_) => LoadError::Unsupported { cell: cell.to_owned(), device: device.name.clone(), what: format!("it: {fault}") },
        Fault::Lost(_) => {
            let lost = device.lose(fault.to_string());
            LoadError::Unsupported { cell: cell.to_owned(), device: lost.device, what: format!("anything any more: {}", lost.cause) }
        }
    }
}

/// Gives back what a cell has on the device.
fn give_back(device: &mut Device, memory: DeviceAddress, compiled: &[Kernel]) -> Done {
    // All of them, whatever became of one.
    let released = compiled.iter().map(|kernel| device.driver.release(*kernel)).fold(Ok(()), Done::and);
    device.driver.free(memory).and(released)
}

fn with_addresses(instruction: &GroupInstruction, blobs: &[u64]) -> GroupInstruction {
    let mut placed = *instruction;
    for operand in placed.source.iter_mut().chain(&mut placed.result).filter(|operand| operand.is_address != 0) {
        operand.at = blobs[operand.at as usize];
    }
    placed
}

/// A launch whose row values are given as offsets.
fn product_arguments(product: &Product, blobs: &[u64]) -> ProductArguments {
    let address = |blob: BlobId| blobs[blob.0];
    let mut arguments = ProductArguments {
        // Offsets are never 0: a row begins with its record.
        begin: product.begin.unwrap_or_default() as u64,
        bias: product.bias.map(address).unwrap_or_default(),
        y: product.y as u64,
        term_count: product.terms.len() as u32,
        n: product.n,
        ..ProductArguments::default()
    };
    for (to, term) in arguments.terms.iter_mut().zip(&product.terms) {
        *to = ProductTerm { x: term.x as u64, weights: address(term.weights), x_stride: 0, k: term.k };
    }
    arguments
}

/// A product by warpgroups: the same, and its terms' x, of which it is ready where in a row they lie, as matrices.
fn wide_arguments(
    device: &mut Device,
    frame: FrameMemory,
    (ready, best): (&ProductArguments, ProductBestArguments),
    of_rows: (u32, u32),
) -> Done<WideArguments> {
    let mut arguments = WideArguments { best, ..WideArguments::default() };
    for (x, term) in arguments.x.iter_mut().zip(&ready.terms[..ready.term_count as usize]) {
        *x = frame.matrix(device, (term.x as usize, term.k), of_rows)?;
    }
    Ok(arguments)
}

fn best_arguments(best: &Best, frame: DeviceAddress, (stride, rows_at): (u32, u64)) -> BestArguments {
    let at = |place: usize| frame.plus(place).0;
    BestArguments {
        candidates: at(best.candidates),
        values: best.values.map(at).unwrap_or_default(),
        positions: at(best.positions),
        stride,
        panels: best.panels,
        k: best.kept.k,
        flags: best.kept.flags,
        rows_at,
    }
}

fn in_frame(ready: &ProductArguments, frame: DeviceAddress, (stride, rows, rows_at): (u32, u32, u64)) -> ProductArguments {
    let mut arguments = ProductArguments { rows_at, ..*ready };
    for term in &mut arguments.terms[..ready.term_count as usize] {
        (term.x, term.x_stride) = (term.x + frame.0, stride);
    }
    if arguments.begin != 0 {
        (arguments.begin, arguments.begin_stride) = (arguments.begin + frame.0, stride);
    }
    (arguments.y, arguments.y_stride, arguments.rows) = (arguments.y + frame.0, stride, rows);
    arguments
}

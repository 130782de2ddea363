//! Tables by token: the beginnings of an LSTM's sums for every token, computed when a cell is
//! loaded.
//!
//! The whole table is computed at once, because a kernel that missed a row could not compute it.
//! The same kernels would compute each row in its batch, so no bit of a result depends on the
//! table. It takes part of the memory for weights. There is none if that is too little, if the
//! device has no room, or if filling it would take more than two seconds.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use cellwright_backend::TableInfo;

use super::device::Device;
use super::frame::FrameMemory;
use super::queue::copies;
use super::recurrent::Recurrent;
use super::resident::{Resident, Rows};
use crate::abi::{BatchHead, FinishArguments, GatherArguments, NOWHERE, Outlet, RowEntry, RowStatus, bytes_of, bytes_of_all};
use crate::driver::{DeviceAddress, Done, Fault};
use crate::plan::Plan;

/// A table takes at most this part of what weights may still take: other cells are to be loaded yet.
pub(super) const SHARE: u64 = 4;

/// And no longer than this to make: the worker does nothing else meanwhile.
const FILL_MAX: Duration = Duration::from_secs(2);

/// Tokens that are computed at once, at most,
const TOKENS_MOST: usize = 1024;
/// in so much memory, or one.
const FRAME_BYTES: usize = 16 << 20;

/// A table on the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Table {
    pub(super) address: DeviceAddress,
    pub(super) rows: u64,
    /// Bytes from row to row.
    pub(super) stride: u32,
    /// Where in a row of the frame the token lies, and its bytes.
    pub(super) token: (u32, u32),
}

impl Table {
    /// The table that a plan could have, without memory.
    pub(super) fn of(Plan { recurrence, inputs, .. }: &Plan) -> Option<Self> {
        let plan = recurrence.as_ref()?;
        let token = plan.token.filter(|_| plan.begin.is_some())?;
        let last = plan.columns.into_iter().max()?;
        let stride = last.checked_add(plan.units)?.checked_mul(size_of::<f32>() as u32)?.checked_next_multiple_of(16)?;
        let port = inputs.get(token.input)?;
        Some(Self { address: DeviceAddress::NULL, rows: token.rows, stride, token: (port.place, port.bytes) })
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.rows.saturating_mul(self.stride as u64)
    }
}

/// Pieces of memory that are uploaded together.
#[derive(Default)]
struct Pieces(Vec<u8>);

impl Pieces {
    /// Where it lies from the beginning.
    fn put(&mut self, bytes: &[u8]) -> usize {
        self.0.resize(self.0.len().next_multiple_of(16), 0);
        self.0.extend_from_slice(bytes);
        self.0.len() - bytes.len()
    }
}

impl Resident {
    /// Makes the table if there can be one of no more than so many bytes.
    pub(super) fn make_table(&mut self, device: &mut Device, bytes_max: u64) -> Done {
        let Some(mut table) = Table::of(&self.plan).filter(|table| table.bytes() <= bytes_max) else { return Ok(()) };
        let (Ok(bytes), Some(begin)) = (usize::try_from(table.bytes()), self.plan.recurrence.as_ref().and_then(|plan| plan.begin)) else {
            return Ok(());
        };
        let made = device.driver.allocate(bytes).and_then(|address| {
            device.call(address, &format!("the table by token of cell `{}`", self.name));
            table.address = address;
            let filled = self.fill(device, &table, begin);
            if !matches!(filled, Ok(true)) {
                // What became of the device is told by the first fault.
                let freed = device.driver.free(address);
                return filled.and_then(|is_full| freed.map(|()| is_full));
            }
            filled
        });
        match made {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.bytes += table.bytes();
                self.recurrent.iter_mut().for_each(|recurrent| recurrent.table = Some(table));
                Ok(())
            }
            Err(Fault::OutOfMemory { .. }) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// What is said of its table: it is filled from the beginning.
    pub(super) fn table_info(&self) -> Option<Arc<TableInfo>> {
        let table = self.recurrent.as_ref()?.table?;
        let [bytes, tokens, filled] = [table.bytes(), table.rows, table.rows].map(AtomicU64::new);
        Some(Arc::new(TableInfo { bytes, tokens, filled }))
    }

    /// Computes it, chunk by chunk; whether all of it was. A cell may take long for each token, and the worker does nothing else meanwhile.
    fn fill(&self, device: &mut Device, table: &Table, begin: usize) -> Done<bool> {
        let rows = (FRAME_BYTES / self.plan.stride).clamp(1, TOKENS_MOST);
        let up = self.tokens(table, (0, rows), DeviceAddress::NULL).0.0.len();
        let frame_bytes = self.frame_bytes(rows);
        let scratch = device.driver.allocate(frame_bytes + up + rows * size_of::<RowStatus>() + 64)?;
        let frame = FrameMemory { address: scratch, bytes: frame_bytes };
        let lists = scratch.plus(frame_bytes.next_multiple_of(16));
        let began = Instant::now();
        let is_in_time = |chunks: u64| chunks == 0 || began.elapsed() < FILL_MAX;
        let chunks = (0..table.rows).step_by(rows).zip(0..);
        let done = chunks.take_while(|(_, number)| is_in_time(*number)).try_fold(0, |filled, (first, _)| {
            let count = rows.min(usize::try_from(table.rows - first).unwrap_or(rows));
            // Writing the next chunk's lists waits for this one, so that time passes here.
            self.fill_some(device, (table, begin), (frame, lists), (first, count))?;
            Ok(filled + count as u64)
        });
        let freed = device.driver.free(scratch);
        done.and_then(|filled| freed.map(|()| filled == table.rows))
    }

    /// The lists for tokens from `first` on, to lie at `lists`: and where in them the entries, addresses and the word lie.
    fn tokens(&self, table: &Table, (first, count): (u64, usize), lists: DeviceAddress) -> (Pieces, [usize; 3]) {
        let mut pieces = Pieces::default();
        let tokens = (first..).take(count).flat_map(|token| token.to_le_bytes().into_iter().take(table.token.1 as usize));
        let tokens = pieces.put(&tokens.collect::<Vec<u8>>());
        let ports = self.plan.inputs.iter().map(|port| port.place == table.token.0);
        let ports: Vec<bool> = ports.collect();
        let address = |row: usize, is_token: bool| if is_token { lists.plus(tokens + row * table.token.1 as usize).0 } else { 0 };
        let addresses: Vec<u8> =
            (0..count).flat_map(|row| ports.iter().flat_map(move |is_token| address(row, *is_token).to_le_bytes())).collect();
        let addresses = pieces.put(&addresses);
        let node = |row: u64| table.address.0 + row * u64::from(table.stride);
        let entry =
            |row| RowEntry { node: node(row), stop: NOWHERE, before: NOWHERE, later: NOWHERE, after: NOWHERE, ..RowEntry::default() };
        let entries = pieces.put(bytes_of_all(&(first..).take(count).map(entry).collect::<Vec<_>>()));
        // One chain that does not end.
        let executed = pieces.put(&u32::MAX.to_le_bytes());
        (pieces, [entries, addresses, executed])
    }

    /// Computes the rows of some tokens, and leaves them in the table as outputs are left in a node.
    fn fill_some(
        &self,
        device: &mut Device,
        (table, begin): (&Table, usize),
        (frame, lists): (FrameMemory, DeviceAddress),
        (first, count): (u64, usize),
    ) -> Done {
        let (mut pieces, places) = self.tokens(table, (first, count), lists);
        let [entries, addresses, executed] = places.map(|place| lists.plus(place).0);
        let outlet = Outlet { place: begin as u32, bytes: table.stride, ..Outlet::default() };
        let outlets = pieces.put(bytes_of(&outlet));
        let statuses = lists.plus(pieces.0.len().next_multiple_of(16)).0;
        let outlets = lists.plus(outlets).0;
        device.driver.write(device.stream, lists, &pieces.0)?;
        let (rows, stride, port_count) = (count as u32, self.plan.stride as u32, self.plan.inputs.len() as u32);
        let own = BatchHead { rows, addresses, entries, executed, statuses, ..BatchHead::default() };
        let arguments = GatherArguments { frame: frame.address.0, ports: self.ports, head: 0, stride, port_count, own };
        // SAFETY: the kernel takes this structure; the lists were written, and the rows lie in the frame.
        unsafe { device.launch(&copies(device.kernels.gather, rows), &arguments)? };
        self.run_before(device, frame, &Rows::of_one_step(&rows))?;
        let arguments = FinishArguments { frame: frame.address.0, outlets, head: 0, stride, outlet_count: 1, is_left: 0, padding: 0, own };
        // SAFETY: as above; what is left goes to the table's rows, and the statuses lie behind the lists.
        unsafe { device.launch(&copies(device.kernels.finish, rows), &arguments) }
    }
}

impl Recurrent {
    /// What a list of beginnings is made from: the table, or nothing.
    pub(super) fn table(&self) -> Table {
        self.table.unwrap_or_default()
    }
}

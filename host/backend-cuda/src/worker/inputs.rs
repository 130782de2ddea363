//! Rows of a batch as the device is told of them: whose step each is, and where its inputs are.

use cellwright_backend::{InputRef, Lane, LaneId, SLOT_BYTES, Window};
use cellwright_cell_graph::Datatype;
use cellwright_cell_graph::unfolded::Retention;

use super::joined::{Arena, Whose};
use super::lanes::Seats;
use super::resident::Resident;
use super::ring::{List, Pen};
use super::seat::{At, Held, INPUTS};
use super::together::Selected;
use crate::abi::{NOWHERE, PIECES, RowEntry};
use crate::driver::DeviceAddress;

/// The entry of a row that has nothing to do with others, of a chain that does not stop.
pub(super) const ALONE: RowEntry = RowEntry {
    node: 0,
    own: NOWHERE,
    followed: NOWHERE,
    step: 0,
    stop: NOWHERE,
    before: NOWHERE,
    later: NOWHERE,
    after: NOWHERE,
    padding: 0,
};

/// Rows of a batch that are written at once, at most. What the host has of their inputs is looked for while their entries are written: other threads wrote it, and
/// from row to row it lies somewhere else. What is looked for much earlier would not stay in the nearest cache.
pub(super) const BLOCK: usize = u32::BITS as usize;

/// Writes which steps rows of a block are, and where their outputs are held, as if each were [`ALONE`]. Those of which there may be something to tell when they
/// have run: a bit for each.
// A function of its own, because where it is called, registers are taken by everything else.
#[inline(never)]
pub(super) fn write_entries(
    seats: Seats<'_>,
    (arena, node_slots): (DeviceAddress, u32),
    rows: &[Selected],
    entries: &mut [RowEntry],
) -> u32 {
    let (mut told, mut own) = (0, 1_u32);
    for (row, entry) in rows.iter().zip(entries) {
        let (seat, step) = (seats.of(row.lane), row.step);
        seat.expect(step);
        let place = match seat.held {
            Held::Nothing => None,
            Held::Double => Some(Retention::Double.place(step)),
            Held::All => Some(step),
            Held::Ring => Some(seats.whose(row.lane).lane.stage().retention.place(step)),
        };
        // Its slots are in the arena, as those of a growth are.
        let slot = |place: u32| u64::from(seat.slot.0) + u64::from(place) * u64::from(node_slots);
        let node = place.map_or(0, |place| arena.plus(slot(place) as usize * SLOT_BYTES).0);
        *entry = RowEntry { node, step, ..ALONE };
        if seat.may_stop || row.brings {
            told |= own;
        }
        own = own.rotate_left(1);
    }
    told
}

/// Adds to the entry of a lane that may stop where that is noted.
#[inline(never)]
pub(super) fn end(resident: &Resident, whose: &Whose, entry: &mut RowEntry) {
    let Some(words) = &whose.words else { return };
    [entry.own, entry.followed] = words.each_ref().map(|word| word.number);
    let stop = whose.lane.chain().stop.filter(|(stage, _)| *stage == whose.lane.stage);
    let stop = stop.and_then(|(_, output)| resident.plan.outlets.get(output as usize));
    entry.stop = stop.map_or(NOWHERE, |outlet| outlet.place);
}

/// Where inputs of a cell are.
pub(super) struct Inputs<'a> {
    pub(super) arena: Arena<'a>,
    pub(super) seats: Seats<'a>,
    pub(super) resident: &'a Resident,
}

impl Inputs<'_> {
    /// Writes the addresses of rows of a block, and what the host has of these inputs; 0: it is zeros. Each row has so many addresses, of which these inputs' are
    /// from the `port`th on. States of a later step of a batch come from the step before.
    pub(super) fn write_block(
        &self,
        (inputs, is_first_step): (&[usize], bool),
        rows: &[Selected],
        (addresses, port, ports): (&mut [u64], usize, usize),
        pen: &mut Pen<'_>,
    ) {
        let rows = rows.iter().map(|row| (row.lane, row.step));
        if is_first_step {
            return self.write(inputs, rows, (addresses, port, ports), pen);
        }
        for (port, input) in (port..).zip(inputs) {
            if self.resident.carries(*input) {
                column(addresses, (port, ports)).for_each(|address| *address = 0);
            } else {
                self.write_some(|| [*input], rows.clone(), (addresses, port, ports), pen);
            }
        }
    }

    /// The same of rows of any lanes and steps.
    pub(super) fn write(
        &self,
        inputs: &[usize],
        rows: impl Iterator<Item = (LaneId, u32)> + Clone,
        (addresses, mut port, ports): (&mut [u64], usize, usize),
        pen: &mut Pen<'_>,
    ) {
        for some in inputs.chunks(INPUTS) {
            let (rows, to) = (rows.clone(), (&mut *addresses, port, ports));
            match *some {
                // Most are all that a cell has: which they are is known when this is compiled.
                [0, 1, 2] => self.write_some(|| [0, 1, 2], rows, to, pen),
                [0, 1] => self.write_some(|| [0, 1], rows, to, pen),
                [a] => self.write_some(|| [a], rows, to, pen),
                [a, b] => self.write_some(|| [a, b], rows, to, pen),
                [a, b, c] => self.write_some(|| [a, b, c], rows, to, pen),
                _ => unreachable!("they are at most {INPUTS}"),
            }
            port += some.len();
        }
    }

    /// The same of so many inputs that what is done for each of a row takes no loop, and a row's lane is looked for once.
    // A function of its own, because where it is called, registers are taken by everything else.
    #[inline(never)]
    fn write_some<const N: usize>(
        &self,
        inputs: impl Fn() -> [usize; N],
        rows: impl Iterator<Item = (LaneId, u32)>,
        (addresses, port, ports): (&mut [u64], usize, usize),
        pen: &mut Pen<'_>,
    ) {
        let seats = self.seats;
        let inputs = inputs();
        let bytes = inputs.map(|input| self.resident.plan.inputs[input].bytes as usize);
        for ((lane, step), row) in rows.zip(addresses.chunks_exact_mut(ports)) {
            let seat = seats.of(lane);
            let row = row[port..].first_chunk_mut::<N>().expect("a row has an address of each");
            for at in 0..N {
                row[at] = match seat.input(inputs[at], step) {
                    At::Device(at) => at.0,
                    At::Host(row) if row.len() == bytes[at] => pen.put(row),
                    _ => self.said(&seats.whose(lane).lane, (inputs[at], step), (bytes[at], self.resident.plan.datatypes[inputs[at]]), pen),
                };
            }
        }
    }

    /// The address of one of which nothing is known in advance, as the graph says it. Apart, so that the loop above is small.
    #[inline(never)]
    pub(super) fn said(&self, lane: &Lane, (input, step): (usize, u32), (bytes, datatype): (usize, Datatype), pen: &mut Pen<'_>) -> u64 {
        let unlike = || {
            debug_assert!(false, "the graph was checked");
            0
        };
        match lane.input(input, step) {
            InputRef::Host(row) if row.len() == bytes => pen.put(row),
            // Rows of spans are found elsewhere.
            InputRef::Host(_) | InputRef::Span(_) => unlike(),
            InputRef::Zeros => 0,
            InputRef::Frame(frame) => {
                let (row, address) = pen.zeros(bytes);
                frame.copy_to(row);
                address
            }
            InputRef::Window(window) => self.window(window, bytes, pen),
            InputRef::Slot { first, place, output, cell } => {
                self.arena.place((first, place), (cell, output as usize), bytes).map_or_else(unlike, |place| place.0)
            }
            InputRef::Int(number) => {
                let number = number.to_le_bytes();
                let number = match datatype {
                    Datatype::Int64 => number.as_slice(),
                    Datatype::Int32 => &number[..4],
                    _ => return 0,
                };
                pen.put(&number[..number.len().min(bytes)])
            }
        }
    }
}

impl Inputs<'_> {
    /// The address of a row of so many bytes that sees several: one piece if the host has all of them, a list of them otherwise.
    fn window(&self, window: Window<'_>, bytes: usize, pen: &mut Pen<'_>) -> u64 {
        let count = window.count().max(1);
        let size = bytes / count;
        if window.rows().all(|row| matches!(row, InputRef::Host(_) | InputRef::Zeros)) {
            let (row, address) = pen.zeros(bytes);
            for (own, from) in row.chunks_exact_mut(size.max(1)).zip(window.rows()) {
                if let InputRef::Host(from) = from
                    && from.len() == size
                {
                    own.copy_from_slice(from);
                }
            }
            return address;
        }
        let List { values: [length, pieces @ ..], address } = pen.list::<u64>(1 + count) else { return 0 };
        *length = count as u64;
        for (own, from) in pieces.iter_mut().zip(window.rows()) {
            *own = match from {
                InputRef::Host(row) if row.len() == size => pen.put(row),
                InputRef::Slot { first, place, output, cell } => {
                    self.arena.place((first, place), (cell, output as usize), size).map_or(0, |place| place.0)
                }
                _ => 0,
            };
        }
        address | PIECES
    }
}

/// Those of one of so many ports, of rows one after the other.
pub(super) fn column(addresses: &mut [u64], (port, ports): (usize, usize)) -> impl Iterator<Item = &mut u64> {
    addresses.chunks_exact_mut(ports).map(move |row| &mut row[port])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::seat::{Brings, Seat};
    use cellwright_backend::Slot;

    #[test]
    fn entries_say_where_outputs_are_held_and_which_rows_may_tell_something() {
        let (arena, node_slots) = (DeviceAddress(1 << 20), 3);
        let retentions = [Retention::None, Retention::Double, Retention::All];
        let seats: [Seat; BLOCK] = std::array::from_fn(|lane| Seat {
            bound: 5,
            slot: Slot(100 * lane as u32),
            held: Held::of(retentions[lane % 3]),
            brings: [Brings::Never, Brings::AtItsBound, Brings::Perhaps, Brings::AtItsBound][lane % 4],
            may_stop: lane % 7 == 0,
            ..Seat::EMPTY
        });
        // Lanes in another order than rows.
        let rows: [Selected; BLOCK] = std::array::from_fn(|row| {
            let (lane, step) = (row * 13 % BLOCK, row as u32 % 5);
            Selected { position: 0, lane: LaneId(lane as u32), step, hosted: 0, brings: seats[lane].may_bring(step) }
        });
        let mut entries = [RowEntry::default(); BLOCK];
        let told = write_entries(Seats::alone(&seats), (arena, node_slots), &rows, &mut entries);
        for (number, (row, entry)) in rows.iter().zip(entries).enumerate() {
            let (lane, step) = (row.lane.0, row.step);
            let place = match lane % 3 {
                0 => None,
                1 => Some(step % 2),
                _ => Some(step),
            };
            let node = place.map_or(0, |place| arena.0 + u64::from(100 * lane + place * node_slots) * SLOT_BYTES as u64);
            assert_eq!(entry, RowEntry { node, step, ..ALONE }, "row {number}");
            let is_told = lane % 7 == 0 || lane % 4 == 2 || (lane % 2 == 1 && step == 4);
            assert_eq!(told >> number & 1 != 0, is_told, "row {number}");
        }
    }
}

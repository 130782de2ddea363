//! Rows of a batch as the device is told of them: whose step each is, and where its inputs are.

use cellwright_backend::{InputRef, Lane, SLOT_BYTES};
use cellwright_cell_graph::Datatype;
use cellwright_cell_graph::unfolded::Retention;

use super::joined::{Arena, At, Joined};
use super::resident::Resident;
use super::ring::Pen;
use super::together::Link;
use crate::abi::{NOWHERE, RowEntry};
use crate::driver::DeviceAddress;

/// Whose step a row is, and where its outputs are held; as one of a batch of several steps, the rows that it has to know of.
#[inline]
pub(super) fn entry(
    resident: &Resident,
    arena: DeviceAddress,
    (joined, step): (&Joined, u32),
    Link { before, later, after }: Link,
) -> RowEntry {
    let node = match joined.retention {
        Retention::None => 0,
        // Its slots are in the arena, as those of a growth are.
        retention => arena.plus((joined.slot.index() + retention.place(step) as usize * resident.layout.slots as usize) * SLOT_BYTES).0,
    };
    let Some([own, followed]) = joined.words() else {
        return RowEntry { node, own: NOWHERE, followed: NOWHERE, step, stop: NOWHERE, before, later, after, padding: 0 };
    };
    let lane = &joined.whose.lane;
    let stop = lane.chain().stop.filter(|(stage, _)| *stage == lane.stage);
    let stop = stop.and_then(|(_, output)| resident.plan.outlets.get(output as usize)).map_or(NOWHERE, |outlet| outlet.place);
    RowEntry { node, own, followed, step, stop, before, later, after, padding: 0 }
}

/// Where inputs of a cell are.
pub(super) struct Inputs<'a> {
    pub(super) arena: Arena<'a>,
    pub(super) resident: &'a Resident,
}

impl Inputs<'_> {
    /// Writes the addresses of an input of rows, each a lane's at a step, and what the host has of them; 0: it is zeros. One input of all rows after the other,
    /// so that little is left to be decided for each, and what many of them read is looked for at once.
    // A function of its own, because where it is called, registers are taken by everything else.
    #[inline(never)]
    pub(super) fn write<'b>(&self, input: usize, rows: impl Iterator<Item = ((&'b Joined, u32), &'b mut u64)>, pen: &mut Pen<'_>) {
        let bytes = self.resident.plan.inputs[input].bytes as usize;
        for ((joined, step), address) in rows {
            *address = match joined.input(input, step) {
                At::Device(at) => at.0,
                At::Host(row) if row.len() == bytes => pen.put(row),
                _ => self.said(&joined.whose.lane, (input, step), pen),
            };
        }
    }

    /// The address of one of which nothing is known in advance, as the graph says it. Apart, so that the loop above is small.
    #[inline(never)]
    fn said(&self, lane: &Lane, (input, step): (usize, u32), pen: &mut Pen<'_>) -> u64 {
        let bytes = self.resident.plan.inputs[input].bytes as usize;
        let unlike = || {
            debug_assert!(false, "the graph was checked");
            0
        };
        match lane.input(input, step) {
            InputRef::Host(row) if row.len() == bytes => pen.put(row),
            InputRef::Host(_) => unlike(),
            InputRef::Zeros => 0,
            InputRef::Slot { first, place, output, cell } => {
                self.arena.place((first, place), (cell, output as usize), bytes).map_or_else(unlike, |place| place.0)
            }
            InputRef::Int(number) => {
                let number = number.to_le_bytes();
                let number = match self.resident.plan.datatypes[input] {
                    Datatype::Int64 => number.as_slice(),
                    Datatype::Int32 => &number[..4],
                    _ => return 0,
                };
                pen.put(&number[..number.len().min(bytes)])
            }
        }
    }
}

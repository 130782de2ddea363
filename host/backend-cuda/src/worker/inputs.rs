//! Rows of a batch as the device is told of them: whose step each is, and where its inputs are.

use cellwright_backend::{InputRef, SLOT_BYTES};
use cellwright_cell_graph::Datatype;
use cellwright_cell_graph::unfolded::Retention;

use super::joined::{Arena, Joined};
use super::resident::Resident;
use super::ring::Pen;
use crate::abi::{NOWHERE, RowEntry};
use crate::driver::DeviceAddress;

/// Whose step a row is, and where its outputs are held.
pub(super) fn entry(resident: &Resident, arena: DeviceAddress, joined: &Joined, step: u32) -> RowEntry {
    let retention = joined.retention;
    let node = if retention == Retention::None {
        0
    } else {
        arena.plus(resident.layout.slot(joined.slot, retention.place(step)).index() * SLOT_BYTES).0
    };
    let Some([own, followed]) = joined.words.map(|words| words.map(|word| word.number)) else {
        return RowEntry { node, own: NOWHERE, followed: NOWHERE, step, stop: NOWHERE, before: NOWHERE, later: NOWHERE };
    };
    let lane = &joined.lane;
    let stop = lane.chain().stop.filter(|(stage, _)| *stage == lane.stage);
    let stop = stop.and_then(|(_, output)| resident.plan.outlets.get(output as usize)).map_or(NOWHERE, |outlet| outlet.place);
    RowEntry { node, own, followed, step, stop, before: NOWHERE, later: NOWHERE }
}

/// Where inputs of a cell are.
pub(super) struct Inputs<'a> {
    pub(super) arena: Arena<'a>,
    pub(super) resident: &'a Resident,
}

impl Inputs<'_> {
    /// The address of a row of an input, which is written if the host has it; 0: it is zeros.
    pub(super) fn address(&self, joined: &Joined, (input, step): (usize, u32), pen: &mut Pen<'_>) -> u64 {
        let bytes = self.resident.plan.inputs[input].bytes as usize;
        let unlike = || {
            debug_assert!(false, "the graph was checked");
            0
        };
        if let Some((carried, of)) = joined.carried(input, step) {
            return if of == bytes { carried.0 } else { unlike() };
        }
        match joined.input(input, step) {
            InputRef::Zeros => 0,
            InputRef::Slot { first, place, output, cell } => {
                self.arena.place((first, place), (cell, output as usize), bytes).map_or_else(unlike, |place| place.0)
            }
            InputRef::Host(row) if row.len() == bytes => {
                let at = pen.put(row);
                pen.address(at)
            }
            InputRef::Host(_) => unlike(),
            InputRef::Int(number) => {
                let number = number.to_le_bytes();
                let number = match self.resident.plan.datatypes[input] {
                    Datatype::Int64 => number.as_slice(),
                    Datatype::Int32 => &number[..4],
                    _ => return 0,
                };
                let at = pen.put(&number[..number.len().min(bytes)]);
                pen.address(at)
            }
        }
    }
}

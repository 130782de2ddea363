//! Fingerprints: of bytes, to detect damage, and of decisions, to detect differences.
//!
//! They are not cryptographic.

use cellwright_scheduler::{Commands, Failure, Slice};

/// The state of a fingerprint.
#[derive(Clone, Copy, Debug)]
struct Fingerprint(u64);

impl Fingerprint {
    const fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    const fn feed(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29).wrapping_add(0x2545_f491_4f6c_dd1d);
    }

    const fn value(self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

pub(crate) fn of_bytes(bytes: &[u8]) -> u64 {
    let mut fingerprint = Fingerprint::new();
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        fingerprint.feed(u64::from_le_bytes(word));
    }
    fingerprint.feed(bytes.len() as u64);
    fingerprint.value()
}

/// The fingerprint of everything that the scheduler decided in one call.
#[must_use]
pub fn of_commands(commands: &Commands) -> u64 {
    let mut fingerprint = Fingerprint::new();
    let mut feed = |values: &[u64]| values.iter().for_each(|value| fingerprint.feed(*value));
    for launch in &commands.launches {
        let rows = &commands.rows[launch.rows.clone()];
        feed(&[u64::from(launch.worker.0), u64::from(launch.cell_type.0), u64::from(launch.model.0), launch.seq.0]);
        let slice = match launch.slice {
            Slice::Whole => u64::MAX,
            Slice::First => 0,
            Slice::Next(paused) => paused.0,
        };
        feed(&[u64::from(launch.steps), rows.len() as u64, slice]);
        rows.iter().for_each(|row| feed(&[u64::from(row.lane.0) << 32 | u64::from(row.step)]));
    }
    feed(&[commands.placements.len() as u64]);
    for placement in &commands.placements {
        feed(&[u64::from(placement.request.0), u64::from(placement.growth), u64::from(placement.domain.0), u64::from(placement.scrub)]);
        let places = &commands.places[placement.places.clone()];
        places.iter().for_each(|(lane, slot)| feed(&[u64::from(lane.0) << 32 | u64::from(slot.0)]));
    }
    feed(&[commands.moves.len() as u64]);
    for moved in &commands.moves {
        feed(&[u64::from(moved.request.0), u64::from(moved.from.0), u64::from(moved.to.0), moved.copies.len() as u64]);
    }
    commands.released.iter().for_each(|lane| feed(&[u64::from(lane.0)]));
    feed(&[commands.finished.len() as u64]);
    commands.finished.iter().for_each(|request| feed(&[u64::from(request.0)]));
    feed(&[commands.failed.len() as u64]);
    commands.failed.iter().for_each(|(request, failure)| feed(&[u64::from(request.0), kind(*failure)]));
    feed(&[commands.wake_at.map_or(u64::MAX, |time| time.0)]);
    fingerprint.value()
}

/// Which kind of failure it is, by its name.
fn kind(failure: Failure) -> u64 {
    of_bytes(format!("{failure:?}").as_bytes())
}

//! What most steps of a lane need, in one cache line.
//!
//! A task names hundreds of lanes, and each step reads these lines of all of them several times.
//! They should stay in the cache nearest to the processor. Facts that are asked more seldom are
//! elsewhere ([`Whose`](super::joined::Whose)), and are read when a lane joins or when a row has
//! something to report.

use cellwright_backend::Slot;
use cellwright_cell_graph::unfolded::Retention;

use super::given::Given;
use crate::driver::DeviceAddress;

/// Inputs that are kept ready; of more the graph is asked.
pub(super) const INPUTS: usize = 3;

/// Where an input is, as far as that is known in advance.
#[derive(Clone, Copy, Debug)]
pub(super) enum Known {
    /// Where the graph says.
    Asked,
    /// A state that goes from step to step: where the step before leaves it. The first is zeros, or where the graph says.
    Carried {
        first: DeviceAddress,
        /// From place to place of its stage's block.
        stride: u32,
        places: Places,
        begins_with_zeros: bool,
    },
    /// Rows of a tensor that came with the request, of all steps of the chain.
    Rows(Given),
}

/// The place of a step's node ([`Retention::place`]): those bits of the step's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places(i8);

/// A [`Retention`] without its numbers, in one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    Nothing,
    Double,
    All,
    /// The place is computed from the graph.
    Ring,
}

impl Held {
    pub(super) const fn of(retention: Retention) -> Self {
        match retention {
            Retention::None => Self::Nothing,
            Retention::Double => Self::Double,
            Retention::All => Self::All,
            Retention::Ring { .. } => Self::Ring,
        }
    }
}

impl Places {
    /// None for a ring, whose places are no bits of the step.
    pub(super) const fn of(retention: Retention) -> Option<Self> {
        Some(Self(match retention {
            Retention::None => 0,
            Retention::Double => 1,
            Retention::All => -1,
            Retention::Ring { .. } => return None,
        }))
    }

    #[inline]
    pub(super) const fn place(self, step: u32) -> u32 {
        step & self.0 as u32
    }
}

/// Where an input of a step is.
pub(super) enum At<'a> {
    /// There on the device; null: it is zeros.
    Device(DeviceAddress),
    /// With the host.
    Host(&'a [u8]),
    /// As the graph says it.
    Said,
}

/// Which steps bring outputs to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brings {
    Never,
    /// The chain's last step.
    AtItsBound,
    Perhaps,
}

/// A lane's. Not to be copied: what it points to is there while its place among the lanes is its own ([`super::lanes::Lanes`]).
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Seat {
    pub(super) known: [Known; INPUTS],
    /// Steps that its chain has at most, each with its rows of what is known; none if nobody wanted what it computes when it joined.
    pub(super) bound: u32,
    /// Where its outputs are held.
    pub(super) slot: Slot,
    /// Bytes of rows that the host has of each step but the first, at most.
    pub(super) hosted: u32,
    pub(super) brings: Brings,
    pub(super) held: Held,
    /// Whether it may end before its bound: whether it has words.
    pub(super) may_stop: bool,
    /// Whether several of its steps may be one batch ([`together`](super::together)).
    pub(super) goes_together: bool,
}

const _: () = assert!(size_of::<Seat>() == 64, "a line");

impl Seat {
    /// Nobody's.
    pub(super) const EMPTY: Self = Self {
        known: [Known::Asked; INPUTS],
        bound: 0,
        slot: Slot(0),
        hosted: 0,
        brings: Brings::Never,
        held: Held::Nothing,
        may_stop: false,
        goes_together: false,
    };

    /// Whether a step may bring an output to the host.
    pub(super) const fn may_bring(&self, step: u32) -> bool {
        match self.brings {
            Brings::Never => false,
            Brings::AtItsBound => step.wrapping_add(1) == self.bound,
            Brings::Perhaps => true,
        }
    }

    /// Whether nothing is brought to the host but what the last step leaves, which is known.
    pub(super) const fn brings_at_its_end(&self) -> bool {
        !matches!(self.brings, Brings::Perhaps)
    }

    /// Where an input of a step is. The rows are there while the lane is.
    #[inline]
    pub(super) fn input(&self, input: usize, step: u32) -> At<'_> {
        match self.known.get(input) {
            Some(Known::Carried { first, stride, places, .. }) if step > 0 => {
                At::Device(first.plus(places.place(step - 1) as usize * *stride as usize))
            }
            Some(Known::Carried { begins_with_zeros: true, .. }) => At::Device(DeviceAddress::NULL),
            // SAFETY: it was made for as many steps, of a tensor of the lane's growth, which nobody changes while the lane has it.
            Some(Known::Rows(given)) if step < self.bound => At::Host(unsafe { given.row(step) }),
            _ => At::Said,
        }
    }

    /// Has the processor look for what the host has of a step.
    #[inline]
    pub(super) fn expect(&self, step: u32) {
        for known in &self.known {
            if let Known::Rows(given) = known {
                given.expect(step);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_what_is_held() {
        for retention in [Retention::None, Retention::Double, Retention::All] {
            for step in [0, 1, 2, 3, 127, 128, 255, 256, u32::MAX] {
                assert_eq!(
                    Places::of(retention).map(|places| places.place(step)),
                    Some(retention.place(step)),
                    "{retention:?}, step {step}"
                );
            }
        }
    }
}

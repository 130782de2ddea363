//! What passes beside tasks: until their ends are heard of, until a device wakes up, and between them.

use cellwright_cell_graph::Random;
use serde::Deserialize;

/// Times that are equally likely, at most.
const TIMES_MAX: usize = 4096;
/// The longest of them, microseconds: a quarter of an hour.
const LONGEST_US: f64 = 1e9;

/// Durations that are equally likely, in nanoseconds; if there are none, no time passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations(Vec<u64>);

impl Durations {
    /// These.
    #[must_use]
    pub const fn new(nanoseconds: Vec<u64>) -> Self {
        Self(nanoseconds)
    }

    /// All of them.
    #[must_use]
    pub fn nanoseconds(&self) -> &[u64] {
        &self.0
    }

    /// One of them.
    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        match self.0[..] {
            [] => 0,
            [time] => time,
            ref times => times[random.below(times.len())],
        }
    }
}

/// How long it takes until the scheduler, which may have to wait for a processor, hears of something.
/// It is longer while every device is at work, where devices are processors and leave it none.
///
/// What happens while it waits is heard of at the same moment, so that one long wait holds up everything that comes meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    /// While a device has nothing to do.
    pub idle: Durations,
    /// While all are at work.
    pub busy: Durations,
}

impl Handover {
    /// Always the same time.
    #[must_use]
    pub fn constant(ns: u64) -> Self {
        Self { idle: Durations(vec![ns]), busy: Durations::default() }
    }

    /// One of those while every device is at work, or while one is not; where nothing is said of the one, of the other.
    pub(crate) fn draw(&self, busy: bool, random: &mut Random) -> u64 {
        let (of, other) = if busy { (&self.busy, &self.idle) } else { (&self.idle, &self.busy) };
        if of.0.is_empty() { other } else { of }.draw(random)
    }
}

/// What passes beside tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Until the scheduler hears of the end of a task.
    pub handover: Handover,
    /// From a task's launch until a device begins it that had had nothing to do, and so has to wake up.
    pub wake: Durations,
    /// From when any other task could begin, which may have waited for the one before or been launched when that ended, until it does.
    pub between_ns: u64,
}

/// As a table has times, in microseconds.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a number of microseconds, or a list of them")]
pub(super) enum Microseconds {
    Always(f64),
    EquallyLikely(Vec<f64>),
}

impl Microseconds {
    /// As they pass.
    ///
    /// # Errors
    /// Which time is none that can be waited for.
    pub(super) fn durations(&self) -> Result<Durations, String> {
        let times = match self {
            Self::Always(time) => std::slice::from_ref(time),
            Self::EquallyLikely(times) if times.is_empty() => return Err("it has no times".to_owned()),
            Self::EquallyLikely(times) if times.len() > TIMES_MAX => {
                return Err(format!("it has {} times, at most {TIMES_MAX} are read", times.len()));
            }
            Self::EquallyLikely(times) => times,
        };
        match times.iter().find(|time| !(0.0..=LONGEST_US).contains(*time)) {
            Some(time) => Err(format!("{time} is no time from 0 to 1e9 microseconds")),
            None => Ok(Durations(times.iter().map(|time| (time * 1e3) as u64).collect())),
        }
    }
}

//! How long it takes until the scheduler hears of what has happened.

use serde::Deserialize;

use crate::random::Random;

/// Times that are equally likely, at most.
const TIMES_MAX: usize = 4096;
/// The longest of them, microseconds: a quarter of an hour.
const LONGEST_US: f64 = 1e9;

/// How long it takes until the scheduler's thread, which waits for a processor, hears of something: times that are equally likely, none if it hears at once.
/// They are others while every device is at work, because devices that are processors leave none to that thread.
///
/// What happens while it waits is heard of at the same moment, so that one long wait holds up everything that comes meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    idle_ns: Vec<u64>,
    busy_ns: Vec<u64>,
}

/// As a table has it, in microseconds.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a number of microseconds, or a list of them")]
pub(super) enum Microseconds {
    Always(f64),
    EquallyLikely(Vec<f64>),
}

impl Microseconds {
    /// In nanoseconds.
    ///
    /// # Errors
    /// Which time is none that can be waited for.
    pub(super) fn nanoseconds(&self) -> Result<Vec<u64>, String> {
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
            None => Ok(times.iter().map(|time| (time * 1e3) as u64).collect()),
        }
    }
}

impl Handover {
    /// Times that are equally likely while a device has nothing to do, and while all are at work; where only one of the two is said, it is both.
    pub(crate) fn new(idle_ns: Option<Vec<u64>>, busy_ns: Option<Vec<u64>>) -> Self {
        let (idle, busy) = (idle_ns.clone().or_else(|| busy_ns.clone()), busy_ns.or(idle_ns));
        Self { idle_ns: idle.unwrap_or_default(), busy_ns: busy.unwrap_or_default() }
    }

    /// Always the same time.
    #[must_use]
    pub fn constant(ns: u64) -> Self {
        Self::new(Some(vec![ns]), None)
    }

    /// One of the times, in nanoseconds.
    pub(crate) fn draw(&self, busy: bool, random: &mut Random) -> u64 {
        match if busy { &self.busy_ns } else { &self.idle_ns }[..] {
            [] => 0,
            [time] => time,
            ref times => times[random.below(times.len())],
        }
    }
}

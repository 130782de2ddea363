//! Devices as cost curves: how long a batch of a cell takes, and what it costs to put the batch together.
//!
//! A device is a TOML table; the built-in ones are such files too. Times are microseconds there and nanoseconds here.

mod curve;
mod delays;
mod knots;

use std::collections::BTreeMap;

use cellwright_toml_faults as toml_faults;
use serde::Deserialize;

use crate::error::Error;

pub use curve::Curve;
pub use delays::{Delays, Durations, Handover};

use delays::Microseconds;
use knots::Knots;

/// Knots of one curve, and cells of one device, at most.
const CELLS_MAX: usize = 4096;

/// For how long no other device has begun or ended a task where it counts as having nothing to do. What is lent before is taken back at once: a CPU worker
/// waits as long (`backend-cpu`'s `lending`).
pub(crate) const QUIET_NS: u64 = 300_000;

/// The curves of one cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CellCosts {
    /// The batch itself.
    pub compute: Curve,
    /// The same, of a task that begins while no other device has had one for a while, where that makes a difference: threads and memory bandwidth may be lent.
    pub compute_quiet: Option<Curve>,
    /// Whether a device's batch is to be full before another of the same memory begins one.
    pub fill_first: bool,
    /// Scheduling and gathering, paid for every task by the policies that put batches together anew: all but whole-graph batching.
    pub overhead: Curve,
    /// What of the overhead is paid for each row that was not in the same place of the task before, instead of by the curve: used where
    /// gathering is costed by rows that change place.
    pub gather_ns_per_row: f64,
}

impl CellCosts {
    /// Nanoseconds for the batch itself, while no other device is at work (`quiet`), or some are. Where nothing is known of batches as large as that while it
    /// is quiet, they take as much less as the largest that is known.
    #[must_use]
    pub fn compute_ns(&self, batch: u32, quiet: bool) -> u64 {
        let busy = self.compute.at(batch);
        match self.compute_quiet.as_ref().filter(|_| quiet) {
            None => busy,
            Some(known) => match known.largest().filter(|largest| *largest < batch) {
                None => known.at(batch),
                Some(largest) => {
                    let (less, of) = (u128::from(known.at(largest)), u128::from(self.compute.at(largest).max(1)));
                    u64::try_from(u128::from(busy) * less / of).unwrap_or(u64::MAX)
                }
            },
        }
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// How long it takes to bring a request's state to another device.
    pub move_ns: u64,
    /// What passes beside its tasks.
    pub delays: Delays,
    /// What a request and its answer take on their ways between a client and the scheduler; none: the scheduler hears of a request as of the end of a task.
    pub request_ns: Option<u64>,
    /// Whether several of it share one memory, as a CPU's workers do: any of them may go on with any request.
    pub shares_memory: bool,
    /// What errors call its table.
    file: String,
    cells: BTreeMap<String, CellCosts>,
    default: Option<CellCosts>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    move_us: Option<toml::Spanned<f64>>,
    handover_us: Option<toml::Spanned<Microseconds>>,
    handover_busy_us: Option<toml::Spanned<Microseconds>>,
    wake_us: Option<toml::Spanned<Microseconds>>,
    request_us: Option<toml::Spanned<f64>>,
    between_us: Option<toml::Spanned<f64>>,
    #[serde(default)]
    shares_memory: bool,
    default: Option<CellTable>,
    #[serde(default)]
    cells: BTreeMap<String, CellTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of a cell's costs")]
struct CellTable {
    compute_us: toml::Spanned<Knots>,
    compute_quiet_us: Option<toml::Spanned<Knots>>,
    #[serde(default)]
    fill_first: bool,
    overhead_us: Option<toml::Spanned<Knots>>,
    gather_us_per_row: Option<toml::Spanned<f64>>,
}

const BUILT_IN: &[(&str, &str)] = &[("v100", include_str!("../devices/v100.toml")), ("npu", include_str!("../devices/npu.toml"))];

impl Device {
    /// A device that comes with the program, by name.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Self> {
        let (_, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        Self::from_toml(name, text).ok()
    }

    /// The names of those.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Reads a device's table; `file` is what errors call it.
    ///
    /// # Errors
    /// If it is no such table, or a curve could not be: batches that do not ascend, times that are not positive or that fall as batches grow.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Device { file: file.to_owned(), problem };
        let at = |place: std::ops::Range<usize>, problem: String| wrong(toml_faults::at(text, place, problem).to_string());
        let table: Table = toml_faults::read(text).map_err(|fault| wrong(fault.to_string()))?;
        if table.cells.len() > CELLS_MAX {
            return Err(wrong(format!("it has {} cells, at most {CELLS_MAX} are read", table.cells.len())));
        }
        let nanoseconds = |value: &Option<toml::Spanned<f64>>| match value {
            None => Ok(None),
            Some(us) if (0.0..=1e9).contains(us.get_ref()) => Ok(Some(us.get_ref() * 1e3)),
            Some(us) => Err(at(us.span(), format!("{} is no time from 0 to 1e9 microseconds", us.get_ref()))),
        };
        let durations = |us: &Option<toml::Spanned<Microseconds>>| -> Result<Durations, Error> {
            let Some(us) = us else { return Ok(Durations::default()) };
            us.get_ref().durations().map_err(|problem| at(us.span(), problem))
        };
        let curve = |knots: &toml::Spanned<Knots>, least_ns: f64| {
            Curve::new(&knots.get_ref().0, least_ns).map_err(|problem| at(knots.span(), problem))
        };
        let costs = |cell: &CellTable| -> Result<CellCosts, Error> {
            Ok(CellCosts {
                compute: curve(&cell.compute_us, 1.0)?,
                compute_quiet: cell.compute_quiet_us.as_ref().map(|knots| curve(knots, 1.0)).transpose()?,
                fill_first: cell.fill_first,
                overhead: cell.overhead_us.as_ref().map(|knots| curve(knots, 0.0)).transpose()?.unwrap_or_default(),
                gather_ns_per_row: nanoseconds(&cell.gather_us_per_row)?.unwrap_or(0.0),
            })
        };
        let cells = table.cells.iter().map(|(name, cell)| Ok((name.clone(), costs(cell)?)));
        Ok(Self {
            move_ns: nanoseconds(&table.move_us)?.unwrap_or(0.0) as u64,
            delays: Delays {
                handover: Handover { idle: durations(&table.handover_us)?, busy: durations(&table.handover_busy_us)? },
                wake: durations(&table.wake_us)?,
                between_ns: nanoseconds(&table.between_us)?.unwrap_or(0.0) as u64,
            },
            request_ns: nanoseconds(&table.request_us)?.map(|ns| ns as u64),
            cells: cells.collect::<Result<_, Error>>()?,
            default: table.default.as_ref().map(costs).transpose()?,
            shares_memory: table.shares_memory,
            file: file.to_owned(),
            name: table.name,
        })
    }

    /// What a cell costs here: by its name, by its name without a number at its end, or as every other cell.
    ///
    /// # Errors
    /// If the device says nothing of it.
    pub fn costs(&self, cell: &str) -> Result<&CellCosts, Error> {
        let none = || Error::NoCosts { file: self.file.clone(), device: self.name.clone(), cell: cell.to_owned() };
        let kind = cell.trim_end_matches(|digit: char| digit.is_ascii_digit());
        self.cells.get(cell).or_else(|| self.cells.get(kind)).or(self.default.as_ref()).ok_or_else(none)
    }

    /// A device on which every cell takes the same time, whatever the batch: for timelines.
    #[must_use]
    pub fn unit(step_ns: u64) -> Self {
        let costs = CellCosts { compute: Curve::constant(step_ns), ..CellCosts::default() };
        Self {
            name: "unit".to_owned(),
            move_ns: 0,
            delays: Delays::default(),
            request_ns: None,
            shares_memory: false,
            file: String::new(),
            cells: BTreeMap::new(),
            default: Some(costs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_device_costs_what_the_paper_says() {
        let v100 = Device::built_in("v100").unwrap();
        let lstm = v100.costs("lstm").unwrap();
        let us = |curve: &Curve, batch: u32| curve.at(batch) as f64 / 1e3;
        assert_eq!([1, 2, 64, 512, 1024].map(|batch| us(&lstm.compute, batch)), [185.0, 185.0, 185.0, 784.0, 1568.0]);
        assert_eq!([1, 64, 512].map(|batch| us(&lstm.overhead, batch)), [65.0, 65.0, 117.0]);
        // Section 7.3: at most 512 / (784 µs · 24) = 27,136 requests of 24 steps a second, to the rounding of "53 batches/sec".
        assert!((512.0 / (784e-6 * 24.0) - 27_136.0_f64).abs() < 150.0);
    }

    #[test]
    fn what_is_wrong_with_a_table_is_said_with_its_line_and_field() {
        let read = |text: &str| Device::from_toml("gpu.toml", text).map(|_| ()).map_err(|error| error.to_string());
        let table = |header: &str, knots: &str| format!("name = \"x\"\n\n[{header}]\ncompute_us = {knots}\n");
        let cell = |knots: &str| table("cells.lstm", knots);
        assert_eq!(read(&cell("[[1, 5.0], [8, 9.0]]")), Ok(()));
        let cases = [
            ("[]", "it has no knots"),
            ("[[0, 5.0]]", "knot 1 is for a batch of 0"),
            ("[[8, 5.0], [4, 6.0]]", "knot 2 is for a batch of 4, which is not above 8"),
            ("[[4, 5.0], [4, 6.0]]", "knot 2 is for a batch of 4, which is not above 4"),
            ("[[4, 5.0], [8, 4.0]]", "knot 2 takes less time than the smaller batch before it"),
            ("[[4, 0.0]]", "knot 1 has a time of 0, which is none from 0.001 to 3600000000 microseconds"),
            ("[[4, -1]]", "knot 1 has a time of -1, which is none from 0.001 to 3600000000 microseconds"),
            ("[[4, nan]]", "knot 1 has a time of NaN, which is none from 0.001 to 3600000000 microseconds"),
            ("[[4, 5], [8, inf]]", "knot 2 has a time of inf, which is none from 0.001 to 3600000000 microseconds"),
            ("[[1, 2, 3]]", "knot 1 has 3 numbers; a knot is two, [batch, microseconds]"),
            ("[[1, 2], [4]]", "knot 2 has 1 number; a knot is two, [batch, microseconds]"),
            ("[[]]", "knot 1 has 0 numbers; a knot is two, [batch, microseconds]"),
            ("[1, 2]", "invalid type: integer `1`, expected a knot, [batch, microseconds]"),
            ("[[1, \"2\"]]", "invalid type: string \"2\", expected a number"),
            ("[[1.5, 2]]", "invalid type: floating point `1.5`, expected a whole number from 0 to 4294967295"),
            ("[[-1, 2]]", "invalid value: integer `-1`, expected a whole number from 0 to 4294967295"),
            ("\"fast\"", "invalid type: string \"fast\", expected a list of knots, [[batch, microseconds], …]"),
            ("3", "invalid type: integer `3`, expected a list of knots, [[batch, microseconds], …]"),
        ];
        for header in ["cells.lstm", "cells.\"lstm.step\"", "default"] {
            for (knots, said) in cases {
                assert_eq!(read(&table(header, knots)), Err(format!("gpu.toml: line 4: {header}.compute_us: {said}")), "{knots}");
            }
        }
        let long = "[\n  [1, 2],\n  [2, 3, 4],\n]";
        let said = "gpu.toml: line 6: default.compute_us: knot 2 has 3 numbers; a knot is two, [batch, microseconds]";
        assert_eq!(read(&table("default", long)), Err(said.to_owned()));
        for (field, said) in [
            ("overhead_us = [[1, -2]]", "knot 1 has a time of -2, which is none from 0 to 3600000000 microseconds"),
            ("fill_first = 2", "invalid type: integer `2`, expected a boolean"),
            ("gather_us_per_row = nan", "NaN is no time from 0 to 1e9 microseconds"),
            ("gather_us_per_row = \"a\"", "invalid type: string \"a\", expected a number"),
        ] {
            let key = field.split(' ').next().unwrap_or_default();
            let error = read(&format!("{}{field}\n", table("default", "[[1, 2]]"))).unwrap_err();
            assert_eq!(error, format!("gpu.toml: line 5: default.{key}: {said}"));
        }
        let inline = read("name = \"x\"\n[cells]\nlstm = { compute_us = [[1, 2, 3]] }\n").unwrap_err();
        assert!(inline.starts_with("gpu.toml: line 3: cells.lstm.compute_us: knot 1 has 3 numbers"), "{inline}");
        let scalar = read("name = \"x\"\ncells.lstm = 3\n").unwrap_err();
        assert_eq!(scalar, "gpu.toml: line 2: cells.lstm: invalid type: integer `3`, expected a table of a cell's costs");
        let none = read("name = \"x\"\n[default]\nfill_first = true\n").unwrap_err();
        assert_eq!(none, "gpu.toml: line 2: default: missing field `compute_us`");
        assert_eq!(read("name = 3"), Err("gpu.toml: line 1: name: invalid type: integer `3`, expected a string".to_owned()));
        assert!(read("name = \"x\"\nspeed = 3").unwrap_err().starts_with("gpu.toml: line 2: speed: unknown field `speed`"));
        assert_eq!(
            read("name = \"x\"\nmove_us = -1"),
            Err("gpu.toml: line 2: move_us: -1 is no time from 0 to 1e9 microseconds".to_owned())
        );
        let whole = "[default]\ncompute_us = [[1, 5]]\n";
        for handovers in ["handover_us = 3", "handover_busy_us = [3, 3]", "handover_us = [3]\nhandover_busy_us = 3"] {
            let device = Device::from_toml("x.toml", &format!("name = \"x\"\n{handovers}\n{whole}")).unwrap();
            assert_eq!(
                [false, true].map(|busy| device.delays.handover.draw(busy, &mut cellwright_cell_graph::random::Random::new(1))),
                [3000; 2]
            );
        }
        for (us, said) in [
            ("-1", "-1 is no time from 0 to 1e9 microseconds"),
            ("[1, 2.5, nan]", "NaN is no time from 0 to 1e9 microseconds"),
            ("[]", "it has no times"),
            ("\"soon\"", "a number of microseconds, or a list of them"),
        ] {
            let error = read(&format!("name = \"x\"\nhandover_us = {us}")).unwrap_err();
            assert_eq!(error, format!("gpu.toml: line 2: handover_us: {said}"));
        }
        for (field, said) in [
            ("wake_us = [0, -1]", "wake_us: -1 is no time from 0 to 1e9 microseconds"),
            ("request_us = 2e9", "request_us: 2000000000 is no time from 0 to 1e9 microseconds"),
        ] {
            assert_eq!(read(&format!("name = \"x\"\n{field}")).unwrap_err(), format!("gpu.toml: line 2: {said}"));
        }
        let quiet = read(&format!("{}compute_quiet_us = []\n", cell("[[1, 5.0]]"))).unwrap_err();
        assert_eq!(quiet, "gpu.toml: line 5: cells.lstm.compute_quiet_us: it has no knots");
        let none = Device::from_toml("gpu.toml", "name = \"x\"").unwrap();
        assert_eq!(
            none.costs("lstm").unwrap_err().to_string(),
            "gpu.toml: the device x has no costs for the cell `lstm`: give it a table [cells.lstm], or [default]"
        );
    }
}

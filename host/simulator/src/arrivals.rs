//! When requests arrive.

use cellwright_cell_graph::Random;

use crate::error::Error;
use crate::lines::{fields, name_columns, no_more, numbered};
use crate::workload::LENGTH_MAX;

/// Requests per second, at most.
pub const RATE_MAX: f64 = 1e8;
/// How many times as fast a trace is played, at most.
pub const FASTER_MAX: f64 = 1e9;
/// Lines of a trace, at most.
const TRACE_MAX: usize = 1 << 24;
/// The latest arrival of a trace, as it is written and as it is played: 31 years.
const LATEST_US: f64 = 1e15;
/// The columns of a trace, and what a first line may call them.
const COLUMNS: &[&str] = &["microseconds", "length", "target length"];
const NAMES: &[&[&str]] = &[COLUMNS, &["t_us", "in", "out"]];

/// When requests arrive; but for [`Arrivals::Clients`], whether or not earlier ones are done.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// At random, so many per second (Poisson).
    Poisson(f64),
    /// At those times.
    Trace(Vec<Arrival>),
    /// So many at once, and another one whenever one has ended.
    Clients(u32),
}

/// One arrival of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Nanoseconds from the beginning.
    pub at_ns: u64,
    /// How long its input and its output are; none: as the workload has them.
    pub lengths: Option<(u32, u32)>,
}

/// A trace that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// In order.
    pub arrivals: Vec<Arrival>,
    /// The first line that says how long its input is.
    pub length_line: Option<usize>,
    /// The first line that says how long its output is.
    pub target_line: Option<usize>,
}

impl Trace {
    /// Reads `microseconds`, `microseconds,length` or `microseconds,length,target length` from each line, times in order and divided by `faster`; without a
    /// target length the output is as long as the input. `file` is what errors call it. The first line may name the columns like that, or `t_us,in,out`.
    ///
    /// # Errors
    /// If a line holds something else, comes before its predecessor, or none holds anything.
    pub fn read(file: &str, text: &str, faster: f64) -> Result<Self, Error> {
        let mut trace = Self { arrivals: Vec::new(), length_line: None, target_line: None };
        let mut before_us = 0.0;
        for (position, (line, content)) in numbered(file, text, TRACE_MAX)?.enumerate() {
            let fields = fields(content);
            if position == 0 && name_columns(&fields, NAMES) {
                continue;
            }
            no_more(file, line, &fields, COLUMNS)?;
            let wrong = |field: &'static str, problem: String| Error::Line { file: file.to_owned(), line, field, problem };
            let us = microseconds(fields[0], position == 0).map_err(|problem| wrong("time", problem))?;
            // Those of the file: divided, times that differ may be the same.
            if us < before_us {
                return Err(wrong("time", format!("`{}` is before the arrival of the line above; times must be in order", fields[0])));
            }
            before_us = us;
            if us / faster > LATEST_US {
                return Err(wrong("time", format!("`{}` is after {LATEST_US:e} microseconds, played {faster} times as fast", fields[0])));
            }
            let length = |at: usize, field: &'static str| match fields.get(at) {
                None | Some(&"") => Ok(None),
                Some(text) => match text.parse() {
                    Ok(length) if (1..=LENGTH_MAX).contains(&length) => Ok(Some(length)),
                    _ => Err(wrong(field, format!("`{text}` is no length from 1 to {LENGTH_MAX}"))),
                },
            };
            let (source, target) = (length(1, "length")?, length(2, "target length")?);
            if let (None, Some(target)) = (source, target) {
                return Err(wrong("length", format!("there is none beside the target length {target}")));
            }
            trace.length_line = trace.length_line.or(source.map(|_| line));
            trace.target_line = trace.target_line.or(target.map(|_| line));
            let lengths = source.map(|source| (source, target.unwrap_or(source)));
            trace.arrivals.push(Arrival { at_ns: (us / faster * 1e3) as u64, lengths });
        }
        if trace.arrivals.is_empty() {
            return Err(Error::Empty { file: file.to_owned(), what: "arrival" });
        }
        Ok(trace)
    }
}

/// A time of a trace; a first line may have been meant to name the columns.
fn microseconds(text: &str, first: bool) -> Result<f64, String> {
    match text.parse() {
        Ok(us) if (0.0..=LATEST_US).contains(&us) => Ok(us),
        Err(_) if first => {
            let names: Vec<String> = NAMES.iter().map(|names| format!("`{}`", names.join(","))).collect();
            Err(format!(
                "`{text}` is no number of microseconds, and a line that names the columns is {}, or the first of them",
                names.join(" or ")
            ))
        }
        _ => Err(format!("`{text}` is no number of microseconds from 0 to {LATEST_US:e}")),
    }
}

impl Arrivals {
    /// The arrivals one after the other.
    pub(crate) const fn begin(&self) -> Clock<'_> {
        Clock { arrivals: self, next: 0, at_ns: 0.0 }
    }
}

/// Where in the arrivals a run is.
#[derive(Debug)]
pub(crate) struct Clock<'a> {
    arrivals: &'a Arrivals,
    next: usize,
    at_ns: f64,
}

impl Clock<'_> {
    pub(crate) fn next(&mut self, random: &mut Random) -> Option<Arrival> {
        match self.arrivals {
            Arrivals::Poisson(rate) => {
                self.at_ns += random.exponential() * 1e9 / rate;
                Some(Arrival { at_ns: self.at_ns as u64, lengths: None })
            }
            Arrivals::Trace(arrivals) => {
                self.next += 1;
                arrivals.get(self.next - 1).copied()
            }
            Arrivals::Clients(clients) => {
                self.next += 1;
                (self.next <= *clients as usize).then_some(Arrival { at_ns: 0, lengths: None })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_read_with_or_without_lengths() {
        let at = |at_ns: u64, lengths: Option<(u32, u32)>| Arrival { at_ns, lengths };
        let arrivals = vec![at(0, Some((3, 4))), at(5000, Some((5, 5))), at(5000, None)];
        let lines = "0,3,4\n10,5\n10\n";
        for header in ["", "t_us\n", "t_us,in,out\n", "\u{feff}microseconds,length,target length\r\n", "\nMicroseconds\tLength\n"] {
            let trace = Trace::read("t.csv", &format!("{header}{lines}"), 2.0).unwrap();
            let first = 1 + header.matches('\n').count();
            assert_eq!(trace, Trace { arrivals: arrivals.clone(), length_line: Some(first), target_line: Some(first) }, "{header}");
        }
        let bare = Trace::read("t.csv", "1\n2,\n3,4\n", 1.0).unwrap();
        assert_eq!((bare.length_line, bare.target_line), (Some(3), None));
    }

    #[test]
    fn what_is_wrong_with_a_trace_is_said_with_its_line_and_field() {
        let cases = [
            ("t_us\n5\n4\n", "t.csv: line 3: time: `4` is before the arrival of the line above; times must be in order"),
            ("5\n4.9999999\n", "t.csv: line 2: time: `4.9999999` is before the arrival of the line above; times must be in order"),
            ("5\n-1\n", "t.csv: line 2: time: `-1` is no number of microseconds from 0 to 1e15"),
            ("5\nnan\n", "t.csv: line 2: time: `nan` is no number of microseconds from 0 to 1e15"),
            ("inf\n", "t.csv: line 1: time: `inf` is no number of microseconds from 0 to 1e15"),
            ("5\n1.1e15\n", "t.csv: line 2: time: `1.1e15` is no number of microseconds from 0 to 1e15"),
            ("5\nt_us\n", "t.csv: line 2: time: `t_us` is no number of microseconds from 0 to 1e15"),
            (
                "rubbish\n5\n",
                "t.csv: line 1: time: `rubbish` is no number of microseconds, and a line that names the columns is \
                 `microseconds,length,target length` or `t_us,in,out`, or the first of them",
            ),
            (
                "t_us,out\n5\n",
                "t.csv: line 1: time: `t_us` is no number of microseconds, and a line that names the columns is \
                 `microseconds,length,target length` or `t_us,in,out`, or the first of them",
            ),
            ("5\n6,0\n", "t.csv: line 2: length: `0` is no length from 1 to 100000"),
            ("5\n6,4294967296\n", "t.csv: line 2: length: `4294967296` is no length from 1 to 100000"),
            ("5\n6,1.5\n", "t.csv: line 2: length: `1.5` is no length from 1 to 100000"),
            ("5\n6,1,x\n", "t.csv: line 2: target length: `x` is no length from 1 to 100000"),
            ("5\n6,1,0\n", "t.csv: line 2: target length: `0` is no length from 1 to 100000"),
            ("5\n6,,4\n", "t.csv: line 2: length: there is none beside the target length 4"),
            ("5,1,2,3\n", "t.csv: line 1: columns: `3` is one too many: a line has microseconds,length,target length at most"),
            ("", "t.csv: it holds no arrival"),
            ("t_us\n", "t.csv: it holds no arrival"),
        ];
        for faster in [1.0, 1e6, FASTER_MAX] {
            for (text, said) in cases {
                assert_eq!(Trace::read("t.csv", text, faster).unwrap_err().to_string(), said, "{faster}");
            }
        }
        let slow = Trace::read("t.csv", "5\n2e14\n", 0.125).unwrap_err().to_string();
        assert_eq!(slow, "t.csv: line 2: time: `2e14` is after 1e15 microseconds, played 0.125 times as fast");
    }
}

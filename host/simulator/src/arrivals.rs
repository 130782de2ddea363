//! When requests arrive.

use crate::error::Error;
use crate::lines::numbered;
use crate::random::Random;
use crate::workload::LENGTH_MAX;

/// Requests per second, at most.
pub const RATE_MAX: f64 = 1e8;
/// Lines of a trace, at most.
const TRACE_MAX: usize = 1 << 24;

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

impl Arrivals {
    /// Reads `microseconds`, `microseconds,length` or `microseconds,source,target` from each line, times in order and divided by `faster`; `file` is what
    /// errors call it. A first line that is no number names the columns.
    ///
    /// # Errors
    /// If a line holds something else, comes before its predecessor, or none holds anything.
    pub fn from_trace(file: &str, text: &str, faster: f64) -> Result<Self, Error> {
        let mut arrivals: Vec<Arrival> = Vec::new();
        for (position, (line, content)) in numbered(file, text, TRACE_MAX)?.enumerate() {
            let fields: Vec<&str> = content.split([',', '\t']).map(str::trim).collect();
            if position == 0 && fields[0].parse::<f64>().is_err() {
                continue;
            }
            let wrong = |field: &'static str, problem: String| Error::Line { file: file.to_owned(), line, field, problem };
            let us: f64 = fields[0].parse().unwrap_or(f64::NAN);
            let at = us / faster * 1e3;
            if !(0.0..1e18).contains(&at) {
                return Err(wrong("time", format!("`{}` is no number of microseconds", fields[0])));
            }
            let at_ns = at as u64;
            if arrivals.last().is_some_and(|before| at_ns < before.at_ns) {
                return Err(wrong("time", format!("`{}` is before the arrival of the line above; times must be in order", fields[0])));
            }
            let length = |at: usize, field: &'static str| match fields.get(at) {
                None | Some(&"") => Ok(None),
                Some(text) => match text.parse() {
                    Ok(length) if (1..=LENGTH_MAX).contains(&length) => Ok(Some(length)),
                    _ => Err(wrong(field, format!("`{text}` is no length from 1 to {LENGTH_MAX}"))),
                },
            };
            let source = length(1, "length")?;
            let target = length(2, "target length")?;
            arrivals.push(Arrival { at_ns, lengths: source.map(|source| (source, target.unwrap_or(source))) });
        }
        if arrivals.is_empty() {
            return Err(Error::Empty { file: file.to_owned(), what: "arrival" });
        }
        Ok(Self::Trace(arrivals))
    }

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
        let read = |text: &str| Arrivals::from_trace("t.csv", text, 2.0).map_err(|error| error.to_string());
        let at = |at_ns: u64, lengths: Option<(u32, u32)>| Arrival { at_ns, lengths };
        assert_eq!(
            read("t_us,in,out\n0,3,4\n10,5\n10\n"),
            Ok(Arrivals::Trace(vec![at(0, Some((3, 4))), at(5000, Some((5, 5))), at(5000, None)]))
        );
        let cases = [
            ("t_us\n5\n4\n", "t.csv: line 3: time: `4` is before the arrival of the line above; times must be in order"),
            ("5\n-1\n", "t.csv: line 2: time: `-1` is no number of microseconds"),
            ("5\n6,0\n", "t.csv: line 2: length: `0` is no length from 1 to 100000"),
            ("5\n6,1,x\n", "t.csv: line 2: target length: `x` is no length from 1 to 100000"),
            ("", "t.csv: it holds no arrival"),
        ];
        for (text, said) in cases {
            assert_eq!(read(text), Err(said.to_owned()));
        }
    }
}

//! The load of a benchmark, as it is written on the command line.

use std::path::PathBuf;
use std::str::FromStr;

use cellwright_simulator::workload::{LENGTH_MAX, Lengths};
use clap::ValueEnum;

/// The model of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelKind {
    /// Sequences of FP32 rows for one LSTM layer.
    Chain,
    /// Sequences of tokens for one LSTM layer behind an embedding of 10,000 words.
    Tokens,
    /// Trees for a binary TreeLSTM.
    Tree,
}

/// How often requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rate {
    /// The saturation throughput.
    Max,
    /// Half of that.
    Half,
    /// Requests per second, at random.
    PerSecond(f64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "max" => Ok(Self::Max),
            "half" => Ok(Self::Half),
            number => match number.parse() {
                Ok(rate) if rate > 0.0 && rate <= 1e8 => Ok(Self::PerSecond(rate)),
                _ => Err("give a number of requests per second, `max` or `half`".to_owned()),
            },
        }
    }
}

/// Where lengths come from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LengthSource {
    /// They are drawn.
    Random(Lengths),
    /// One per line of a file, in its order, again and again. A column is named by the file's first line, or counted from 1.
    File { path: PathBuf, column: Option<String> },
}

impl FromStr for LengthSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        match (kind, rest) {
            ("lognormal", None) => Ok(Self::Random(Lengths::EUROPARL)),
            ("lognormal", Some(numbers)) => {
                lognormal(numbers).map(Self::Random).ok_or_else(|| format!("`{numbers}` is not MU:SIGMA:MAX, such as 2.95:0.68:330"))
            }
            ("fixed", Some(number)) => length(number)
                .map(|length| Self::Random(Lengths::Fixed(length)))
                .ok_or_else(|| format!("`{number}` is not a length from 1 to {LENGTH_MAX}")),
            ("file", Some(rest)) if !rest.is_empty() => {
                let (path, column) = rest.rsplit_once(':').map_or((rest, None), |(path, column)| (path, Some(column.to_owned())));
                Ok(Self::File { path: path.into(), column })
            }
            _ => Err("lengths are `fixed:N`, `lognormal`, `lognormal:MU:SIGMA:MAX`, `file:PATH` or `file:PATH:COLUMN`".to_owned()),
        }
    }
}

fn length(text: &str) -> Option<u32> {
    text.parse().ok().filter(|length| (1..=LENGTH_MAX).contains(length))
}

fn lognormal(text: &str) -> Option<Lengths> {
    let mut numbers = text.split(':');
    let (mu, sigma) = (numbers.next()?.parse::<f64>().ok()?, numbers.next()?.parse::<f64>().ok()?);
    let max = length(numbers.next()?)?;
    let sound = mu.is_finite() && (0.0..=10.0).contains(&sigma) && numbers.next().is_none();
    sound.then_some(Lengths::Lognormal { mu, sigma, max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_they_are_written() {
        assert_eq!("fixed:3".parse(), Ok(LengthSource::Random(Lengths::Fixed(3))));
        assert_eq!("lognormal".parse(), Ok(LengthSource::Random(Lengths::EUROPARL)));
        assert_eq!("lognormal:1:0.5:9".parse(), Ok(LengthSource::Random(Lengths::Lognormal { mu: 1.0, sigma: 0.5, max: 9 })));
        assert_eq!("file:a/b.csv:de".parse(), Ok(LengthSource::File { path: "a/b.csv".into(), column: Some("de".into()) }));
        for text in ["", "fixed", "fixed:0", "lognormal:1:2", "lognormal:1:2:3:4", "lognormal:nan:1:3", "file:", "uniform:3"] {
            text.parse::<LengthSource>().unwrap_err();
        }
    }

    #[test]
    fn rates_are_read_as_they_are_written() {
        assert_eq!("max".parse(), Ok(Rate::Max));
        assert_eq!("12.5".parse(), Ok(Rate::PerSecond(12.5)));
        for text in ["0", "-1", "nan", "inf", "fast"] {
            text.parse::<Rate>().unwrap_err();
        }
    }
}

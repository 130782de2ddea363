//! Values that shells complete by name, and that have their own parser and error message.

use std::ffi::OsStr;
use std::fmt::Display;
use std::marker::PhantomData;
use std::str::FromStr;

use cellwright_cell_graph::typed::Precision;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser, ValueParserFactory};
use clap::{Arg, Command, Error};

use crate::policy::PolicySpec;
use cellwright_scheduler::PolicyKind;

/// Reads a value by [`FromStr`] and offers names for completion and help. There may be more values
/// than names.
#[derive(Clone)]
pub struct Completed<T> {
    names: Vec<PossibleValue>,
    reads: PhantomData<fn() -> T>,
}

impl<T> TypedValueParser for Completed<T>
where
    T: FromStr<Err: Display> + Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let read = |text: String| text.parse::<T>().map_err(|error| error.to_string());
        StringValueParser::new().try_map(read).parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().cloned()))
    }
}

impl ValueParserFactory for PolicySpec {
    type Parser = Completed<Self>;

    /// Most policies take numbers besides.
    fn value_parser() -> Completed<Self> {
        let name = |(name, _, does): &(&'static str, _, &'static str)| PossibleValue::new(name).help(does.trim_end_matches('.'));
        Completed { names: PolicyKind::FORMS.iter().map(name).collect(), reads: PhantomData }
    }
}

/// Reads a precision.
#[must_use]
pub fn precision() -> Completed<Precision> {
    Completed { names: ["f32", "f16", "bf16", "int8"].map(PossibleValue::new).into(), reads: PhantomData }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<T>(parser: &Completed<T>) -> Vec<&str> {
        parser.names.iter().map(PossibleValue::get_name).collect()
    }

    #[test]
    fn what_is_completed_is_taken() {
        assert!(names(&PolicySpec::value_parser()).iter().all(|name| name.parse::<PolicySpec>().is_ok()));
        assert_eq!(names(&precision()), Precision::ALL.map(Precision::name));
    }
}

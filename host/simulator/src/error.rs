//! What can be wrong with what a run is told.

use cellwright_recording::RecordingError;
use thiserror::Error;

/// One sentence for each; a file's has its name, line and field.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// A line of a list cannot be used.
    #[error("{file}: line {line}: {field}: {problem}")]
    Line {
        /// The file's name.
        file: String,
        /// Counted from 1.
        line: usize,
        /// Which part of the line.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A list without a usable line.
    #[error("{file}: it holds no {what}")]
    Empty {
        /// The file's name.
        file: String,
        /// What was looked for.
        what: &'static str,
    },
    /// A device's table cannot be read, or says what cannot be.
    #[error("{file}: {problem}")]
    Device {
        /// The file's name.
        file: String,
        /// Line and field, and what is wrong.
        problem: String,
    },
    /// A rate at which nothing can arrive.
    #[error("{0} is no number of requests per second above 0, up to {max}", max = crate::arrivals::RATE_MAX)]
    Rate(String),
    /// A device has no costs for a cell.
    #[error("{file}: the device {device} has no costs for the cell `{cell}`: give it a table [cells.{cell}], or [default]")]
    NoCosts {
        /// What its table was read from.
        file: String,
        /// The device's name.
        device: String,
        /// The cell's name.
        cell: String,
    },
    /// A recording cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
}

//! A recording of a running scheduler: each event, its time, and a fingerprint of each decision.
//!
//! The server writes it and the laboratory reads it. This crate owns the file format and nothing else.
//!
//! A scheduler's decisions follow from its events alone, so a replay of the events makes the same
//! decisions (`cellwright-simulator` does that). A recording holds the structure of requests and
//! never their contents: it leaves out tokens, literals and the state that plugins keep.
//!
//! The file is a mark, the format's number, and then frames. A frame is a length, a checksum and a
//! body in bincode. If the writer was killed in the middle of a frame, the recording is good up to
//! that frame.

mod entry;
pub mod fingerprint;
mod reader;
mod writer;

pub use reader::{Handled, Recording};
use thiserror::Error;
pub use writer::Recorder;

/// How a file begins.
const MARK: &[u8; 20] = b"cellwright recording";
/// The format's number.
const FORMAT: u32 = 7;
/// Bytes of a frame's body, at most: more than the largest graph takes.
const FRAME_BYTES_MAX: usize = 256 << 20;

/// A recording that cannot be written or read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{file}: {problem}")]
pub struct RecordingError {
    /// The file's name.
    pub file: String,
    /// What is wrong with it.
    pub problem: String,
}

#[cfg(test)]
mod tests;

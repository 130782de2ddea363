//! A recording of a running scheduler: everything it was told, when, and a fingerprint of what it decided.
//!
//! A scheduler's decisions follow from its events alone, so that whoever has them can have the decisions again ([`crate::replay()`]). Of
//! requests it holds the structure, never the contents: tokens, literals and what plugins keep are left out.
//!
//! The file: a mark and the format's number, then frames of a length, a checksum and a body that bincode wrote. A recording that ends in the middle of a
//! frame, because its writer was killed, is good up to there.

mod entry;
pub(crate) mod fingerprint;
mod reader;
mod writer;

pub use reader::{Handled, Recording};
pub use writer::Recorder;

/// How a file begins.
const MARK: &[u8; 20] = b"cellwright recording";
/// The format's number.
const FORMAT: u32 = 4;
/// Bytes of a frame's body, at most: more than the largest graph takes.
const FRAME_BYTES_MAX: usize = 256 << 20;

#[cfg(test)]
mod tests;

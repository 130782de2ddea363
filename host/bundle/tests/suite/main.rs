//! The tests of the bundle format.

mod archive;
mod open;

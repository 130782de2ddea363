//! The tests of the engine that need no device.

mod loss;
mod tables;

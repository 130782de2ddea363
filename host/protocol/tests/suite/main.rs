//! The tests of the messages.

mod binary;
mod generate;
mod json;
mod messages;
mod options;
mod rows;

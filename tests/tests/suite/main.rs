//! The tests that need several crates, and the built programs.

mod architecture;
mod attacks;
mod cli;
mod clock;
mod cuda;
mod end_to_end;
mod engine;
mod help;
mod http;
mod lab;
mod odd_servers;
mod platform;
mod random;
mod rebuilt;
mod remote;
mod samples;
mod server;
mod serving;
mod settings;
mod simulate;

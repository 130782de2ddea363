//! `bench`: measures one part of the program on this machine.

mod cell;
pub(crate) mod clients;
mod engine;
pub(crate) mod figures;
pub(crate) mod generator;
pub(crate) mod load;
pub(crate) mod models;
mod scheduler;
pub(crate) mod shapes;
mod steps;
mod unfold;

use std::process::ExitCode;

use crate::cli::Bench;

pub(crate) fn bench(bench: &Bench) -> anyhow::Result<ExitCode> {
    match bench {
        Bench::Unfold(arguments) => unfold::unfold(arguments),
        Bench::Scheduler(arguments) => scheduler::scheduler(arguments).map(|()| ExitCode::SUCCESS),
        Bench::Cell(arguments) => cell::cell(arguments).map(|()| ExitCode::SUCCESS),
        Bench::Engine(arguments) => engine::engine(arguments),
    }
}

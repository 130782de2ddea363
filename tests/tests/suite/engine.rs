//! The engine on CPU workers: right values under every policy and in any company, and nobody lost whatever goes wrong.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod beside;
mod ends;
mod figures;
mod loads;
mod losses;
mod measured;
mod moves;
mod sessions;
mod sharing;
mod turns;
mod values;

use cellwright_backend::Backend;
use cellwright_engine::{Engine, EngineOptions};
use cellwright_scheduler::Config;

fn engine(scheduler: Config, in_flight_max: u32, backends: Vec<Box<dyn Backend>>) -> Engine {
    let options = EngineOptions { scheduler, in_flight_max, batch_max: 32, ..EngineOptions::default() };
    Engine::start(options, backends).unwrap()
}

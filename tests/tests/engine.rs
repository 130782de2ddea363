//! The engine on CPU workers: right values under every policy and in any company, and nobody lost whatever goes wrong.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "engine/beside.rs"]
mod beside;
#[path = "engine/ends.rs"]
mod ends;
#[path = "engine/figures.rs"]
mod figures;
#[path = "engine/loads.rs"]
mod loads;
#[path = "engine/losses.rs"]
mod losses;
#[path = "engine/measured.rs"]
mod measured;
#[path = "engine/moves.rs"]
mod moves;
#[path = "engine/sessions.rs"]
mod sessions;
#[path = "engine/turns.rs"]
mod turns;
#[path = "engine/values.rs"]
mod values;

use cellwright_backend::Backend;
use cellwright_engine::{Engine, EngineOptions};
use cellwright_scheduler::Config;

fn engine(scheduler: Config, in_flight_max: u32, backends: Vec<Box<dyn Backend>>) -> Engine {
    let options = EngineOptions { scheduler, in_flight_max, batch_max: 32, ..EngineOptions::default() };
    Engine::start(options, backends).unwrap()
}

//! The runtime as its users see it, against guests that behave, misbehave and attack.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it does not expect")]

mod answers;
mod cache;
mod faults;
mod guest;
mod imports;
mod models;
mod stock;
mod uploads;
mod wasi;

use std::sync::Arc;

use cellwright_plugin_runtime::{Compiler, Limits, PluginModel, RequestView, Runtime, RuntimeOptions};
use guest::Guest;

/// A runtime without a cache that compiles here, for few instances.
fn runtime() -> Runtime {
    Runtime::new(RuntimeOptions { instances_max: 16, ..RuntimeOptions::new(Compiler::InProcess) }).unwrap()
}

/// A described model of that guest, in a runtime of its own.
fn model(guest: &Guest) -> PluginModel {
    model_with(guest, &Limits::default())
}

fn model_with(guest: &Guest, limits: &Limits) -> PluginModel {
    runtime().compile("acme", "testee", &guest.wasm()).unwrap().with_parameters(&[], Arc::new(Vec::new()), limits).unwrap()
}

/// A request without tensors.
fn nothing() -> Arc<RequestView> {
    Arc::default()
}

//! Plugins: compiled from untrusted bytes, run in a sandbox, asked for cell graphs.
//!
//! This is the only crate that knows wasmtime. [`Runtime`] turns bytes into a [`Plugin`], a plugin and a model's parameters make a
//! [`PluginModel`], and that unfolds requests into the types of `cellwright-cell-graph`. Whatever a plugin does, the call that it does it
//! in ends with an error that names the plugin, the export and the cause, and nobody else notices.
#![expect(
    unsafe_code,
    reason = "wasmtime trusts compiled code that it loads, after authentication, and types of functions that are checked once per plugin"
)]

mod abi;
mod allowance;
mod cache;
mod clock;
mod code;
mod compiler;
mod convert;
mod engine;
mod error;
mod fault;
mod instance;
mod limits;
mod model;
mod plugin;
mod prepare;
mod request;
mod runtime;
mod sentence;
mod warm;
mod wasi;

pub use abi::SERVED_VERSIONS;
pub use allowance::processor_time;
pub use compiler::{ChildCompiler, Compiler, compile_worker_main};
pub use error::{CallError, CompileError, Defect, Export, Fault, LimitReached, RuntimeError, Site};
pub use limits::Limits;
pub use model::{Event, PluginModel};
pub use plugin::Plugin;
pub use request::{BundleView, RequestTensor, RequestView};
pub use runtime::{Runtime, RuntimeOptions};
pub use sentence::of as one_line;

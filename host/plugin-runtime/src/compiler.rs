//! Compilation: in a process of its own, because a compiler cannot be interrupted and its input is hostile; or, where that is accepted, here.
//!
//! At most so many compilations run at once, and one of a tenant. Others wait for their tenant's turn.

mod answer;
mod child;
mod confinement;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use wasmtime::Engine;

use crate::engine::Reservation;
use crate::error::{CompileError, Defect};
use crate::{prepare, sentence};

pub use worker::compile_worker_main;

/// Where plugins are compiled.
#[derive(Clone, Debug)]
pub enum Compiler {
    /// In a child process, which ends when it takes too much.
    Child(ChildCompiler),
    /// In this process, without limits: for tests, and for plugins that are trusted.
    InProcess,
}

/// A program that calls [`compile_worker_main`], and what it may use.
#[derive(Clone, Debug)]
pub struct ChildCompiler {
    /// The program, usually the host's own.
    pub program: PathBuf,
    /// The arguments that make it compile.
    pub arguments: Vec<String>,
    /// Wall time; processor time is bounded to the same for each of the machine's cores.
    pub time: Duration,
    /// Memory, as the sum of its private writable mappings.
    pub memory_bytes: u64,
}

impl ChildCompiler {
    /// A child with the usual limits: a minute, 2 GiB.
    #[must_use]
    pub fn new(program: PathBuf, arguments: Vec<String>) -> Self {
        Self { program, arguments, time: Duration::from_secs(60), memory_bytes: 2 << 30 }
    }
}

impl Compiler {
    /// Tells the log how a compiler is kept from the system.
    pub(crate) fn log_confinement(&self) {
        match self {
            Self::Child(_) if confinement::is_available() => {
                tracing::info!(
                    "plugins are compiled in a process of their own, which seccomp keeps from files, sockets and other processes"
                );
            }
            Self::Child(_) => tracing::warn!(
                "plugins are compiled in a process of their own that may make any system call, because this system has no seccomp"
            ),
            Self::InProcess => {}
        }
    }

    /// Machine code for these bytes and an engine of that reservation, at most `artifact_bytes_max` of it.
    pub(crate) fn compile(
        &self,
        engine: &Engine,
        reservation: Reservation,
        bytes: &[u8],
        artifact_bytes_max: usize,
    ) -> Result<Vec<u8>, CompileError> {
        let artifact = match self {
            Self::Child(child) => child.compile(reservation, bytes, artifact_bytes_max)?,
            Self::InProcess => {
                let compiled = catch_unwind(AssertUnwindSafe(|| machine_code(engine, bytes)));
                compiled.map_err(|_| CompileError::Crashed("it panicked".to_owned()))??
            }
        };
        if artifact.len() > artifact_bytes_max { Err(CompileError::ArtifactTooLarge(artifact_bytes_max)) } else { Ok(artifact) }
    }
}

/// What both ways of compiling have in common.
fn machine_code(engine: &Engine, bytes: &[u8]) -> Result<Vec<u8>, Defect> {
    let component = prepare::component(bytes)?;
    engine.precompile_component(&component).map_err(|error| Defect::Uncompilable(sentence::of_chain(&error)))
}

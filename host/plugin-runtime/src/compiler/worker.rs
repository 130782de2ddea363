//! The compiler's process from inside: it limits itself, reads a plugin, writes machine code, and ends.
//!
//! It trusts its parent and nothing that it reads after the limits. It opens no file and no socket, and where the system has seccomp
//! it cannot.

use std::io::{Read, Write};
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setpriority_process, setrlimit};

use super::{answer, confinement, machine_code};
use crate::engine::{self, Reservation};
use crate::error::{Defect, RuntimeError};

/// How far it stands back behind the server: it has a quarter of a processor that both want.
const NICENESS: i32 = 5;

/// What the parent sends ahead of the plugin's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) memory_bytes: u64,
    pub(super) processor_seconds: u64,
    pub(super) reservation: Reservation,
    /// Whether to give up the system calls that compiling does not need.
    pub(super) is_confined: bool,
}

impl Header {
    pub(super) const SIZE: usize = 32;

    pub(super) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.memory_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.processor_seconds.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.reservation.0.to_le_bytes());
        bytes[24] = u8::from(self.is_confined);
        bytes
    }

    fn read(input: &mut impl Read) -> std::io::Result<Self> {
        let mut number = || {
            let mut bytes = [0; 8];
            input.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
        };
        Ok(Self { memory_bytes: number()?, processor_seconds: number()?, reservation: Reservation(number()?), is_confined: number()? != 0 })
    }
}

/// The whole life of a compiler's process: a plugin comes in on the standard input, machine code leaves on the standard output.
///
/// A program that is named in [`super::ChildCompiler`] calls this before it starts anything of its own.
#[must_use]
pub fn compile_worker_main() -> ExitCode {
    match work(&mut std::io::stdin().lock(), &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error("reading the plugin or writing the code failed: {0}")]
    Pipe(#[from] std::io::Error),
    #[error("the limits could not be set: {0}")]
    Limit(#[from] rustix::io::Errno),
    #[error("the system calls of the compiler could not be confined: {0}")]
    Confinement(#[from] seccompiler::Error),
    #[error(transparent)]
    Engine(#[from] RuntimeError),
}

fn work(input: &mut impl Read, output: &mut impl Write) -> Result<(), WorkError> {
    let header = Header::read(input)?;
    limit_this_process(header)?;
    if header.is_confined {
        confinement::confine_this_thread()?;
    }
    let mut bytes = Vec::new();
    input.read_to_end(&mut bytes)?;
    let engine = engine::for_compiling(header.reservation)?;
    let compiled = machine_code(&engine, &bytes);
    // The system's refusal of memory that is not the allocator's reaches us as a compiler's error; it is not the plugin's defect.
    if let Err(Defect::Uncompilable(text)) = &compiled
        && text.contains("os error 12")
    {
        return Err(std::io::Error::from(std::io::ErrorKind::OutOfMemory).into());
    }
    output.write_all(&answer::encode(compiled))?;
    Ok(output.flush()?)
}

fn limit_this_process(header: Header) -> rustix::io::Result<()> {
    let both = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // Requests go first; where the system allows no more, it is as before.
    let _ = setpriority_process(None, NICENESS);
    setrlimit(Resource::Core, both(0))?;
    // Private writable memory: the address space would also count what the allocator reserves and never touches.
    setrlimit(Resource::Data, both(header.memory_bytes))?;
    // The signal at the soft limit says why the process ends, that at the hard limit does not.
    let hard = header.processor_seconds.saturating_add(1);
    let hard = getrlimit(Resource::Cpu).maximum.map_or(hard, |maximum| maximum.min(hard));
    setrlimit(Resource::Cpu, Rlimit { current: Some(header.processor_seconds), maximum: Some(hard) })?;
    setrlimit(Resource::Fsize, both(0))
}

//! The compiler's process from outside: start it, feed it, read a bounded answer, end it in time, and say how it ended.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Signal, getrlimit};

use super::worker::Header;
use super::{ChildCompiler, answer, confinement};
use crate::engine::Reservation;
use crate::error::CompileError;
use crate::sentence;

/// How much of what the child says on its standard error is kept.
const COMPLAINT_BYTES_MAX: u64 = 64 << 10;

/// How long a child that has answered may take to end.
const ENDING_TIME: Duration = Duration::from_secs(2);

/// What the allocator says before it aborts.
const ALLOCATION_FAILED: &str = "memory allocation of";

struct Outcome {
    status: ExitStatus,
    answer: Vec<u8>,
    complaint: String,
    in_time: bool,
}

impl ChildCompiler {
    pub(super) fn compile(&self, reservation: Reservation, bytes: &[u8], artifact_bytes_max: usize) -> Result<Vec<u8>, CompileError> {
        let answer_bytes_max = artifact_bytes_max.saturating_add(1);
        let outcome = self.run(reservation, bytes, answer_bytes_max).map_err(|source| self.start_error(source))?;
        if outcome.answer.len() > answer_bytes_max {
            return Err(CompileError::ArtifactTooLarge(artifact_bytes_max));
        }
        if !outcome.in_time || outcome.status.signal() == Some(Signal::XCPU.as_raw()) {
            return Err(CompileError::OutOfTime(self.time));
        }
        if !outcome.status.success() {
            return Err(self.crash(&outcome));
        }
        match answer::decode(outcome.answer) {
            Some(answered) => Ok(answered?),
            None => Err(CompileError::Crashed("what it wrote is no answer".to_owned())),
        }
    }

    fn start_error(&self, source: std::io::Error) -> CompileError {
        CompileError::Start { program: self.program.display().to_string(), source }
    }

    fn crash(&self, outcome: &Outcome) -> CompileError {
        let complaint = &outcome.complaint;
        let signal = outcome.status.signal();
        let refused = signal == Some(Signal::ABORT.as_raw()) && complaint.contains(ALLOCATION_FAILED);
        if refused || complaint.contains("out of memory") || complaint.contains("os error 11") || complaint.contains("os error 12") {
            return CompileError::OutOfMemory(at_most(self.memory_bytes, Resource::Data));
        }
        // With a processor limit whose soft and hard values agree the system may kill without the gentler signal first.
        CompileError::Crashed(sentence::of(&format!("{}: {complaint}", outcome.status)))
    }

    fn run(&self, reservation: Reservation, bytes: &[u8], answer_bytes_max: usize) -> std::io::Result<Outcome> {
        let deadline = Instant::now() + self.time;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(mut input), Some(output), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take()) else {
            return Err(std::io::Error::other("its pipes are missing"));
        };
        let header = self.header(reservation).to_bytes();
        std::thread::scope(|scope| {
            // A child that ends before it has read everything makes this fail; its status says more than the broken pipe.
            scope.spawn(move || input.write_all(&header).and_then(|()| input.write_all(bytes)));
            let errors = scope.spawn(move || read_bounded(errors, COMPLAINT_BYTES_MAX));
            let (answered, answer) = sync_channel(1);
            scope.spawn(move || answered.send(read_bounded(output, answer_bytes_max as u64 + 1)));
            let answer = answer.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            let in_time = !matches!(answer, Err(RecvTimeoutError::Timeout));
            let answer = answer.unwrap_or_default();
            let patience = if in_time && answer.len() <= answer_bytes_max { ENDING_TIME } else { Duration::ZERO };
            let status = end(&mut child, patience)?;
            let complaint = String::from_utf8_lossy(&errors.join().unwrap_or_default()).into_owned();
            Ok(Outcome { status, answer, complaint, in_time })
        })
    }

    /// What the child may use: no more than this process could, because a limit cannot be raised.
    fn header(&self, reservation: Reservation) -> Header {
        // Compilation runs on every core, so that its processor time may be that many times its wall time.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
        let processor_seconds = self.time.as_secs().saturating_add(1).saturating_mul(cores);
        Header {
            memory_bytes: at_most(self.memory_bytes, Resource::Data),
            processor_seconds: at_most(processor_seconds, Resource::Cpu),
            reservation,
            is_confined: confinement::is_available(),
        }
    }
}

fn at_most(wanted: u64, resource: Resource) -> u64 {
    getrlimit(resource).maximum.map_or(wanted, |maximum| maximum.min(wanted))
}

fn read_bounded(from: impl Read, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What came before an error is kept: the child's status says whether it is whole.
    let _ = from.take(bytes_max).read_to_end(&mut bytes);
    bytes
}

/// Waits for a child that is about to end; kills one that is not.
fn end(child: &mut Child, patience: Duration) -> std::io::Result<ExitStatus> {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill()?;
    child.wait()
}

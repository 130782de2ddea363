//! How requests from a file ended. Every verb that sends some reports it alike: a line of output for each failed request, and their number.

use std::io::{Write, stderr};
use std::process::ExitCode;

use cellwright_protocol::{BadRequest, RequestFault};
use serde_json::json;

/// How many requests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
}

impl Outcome {
    /// Counts a request that was answered, or that was not.
    pub(crate) const fn count(&mut self, answered: bool) {
        if answered { self.answered += 1 } else { self.failed += 1 }
    }

    /// Says on standard error what is to be said of it, and gives the exit status.
    pub(crate) fn tell(self, json: bool) -> std::io::Result<ExitCode> {
        let Self { answered, failed } = self;
        let total = answered + failed;
        if json {
            writeln!(stderr(), "{}", json!({ "requests": total, "answered": answered, "failed": failed }))?;
        } else if failed > 0 {
            writeln!(stderr(), "error: {failed} of {total} requests failed; their lines of output have the errors")?;
        } else if total == 0 {
            writeln!(stderr(), "the input holds no requests")?;
        }
        Ok(if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// The protocol's error body, with the request's id in front.
pub(crate) fn error_line(id: Option<&str>, message: &str) -> String {
    format!("{{\"id\":{},\"error\":{}}}", json!(id), json!(message))
}

/// Why a line of the input is no request, and which line it is: it may have no id.
pub(crate) fn no_request(line: usize, bad: &BadRequest) -> String {
    let hint = if matches!(bad.fault, RequestFault::Json(_)) { "; each line of the input is one request" } else { "" };
    format!("line {line}: {bad}{hint}")
}

//! Answers on their way out: in the order of their requests, one JSON line each.

use std::collections::VecDeque;
use std::io::Write;

use cellwright_cell_graph::Tensor;
use cellwright_protocol::InferResponse;
use cellwright_serving::{InferError, Reply};
use serde_json::json;

/// How many requests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
}

/// Requests that have been taken or refused and are not printed yet.
pub(crate) struct Answers<W> {
    out: W,
    model: String,
    queue: VecDeque<Entry>,
    outcome: Outcome,
}

enum Entry {
    Pending { id: Option<String>, reply: Reply },
    Refused { id: Option<String>, message: String },
}

impl<W: Write> Answers<W> {
    pub(crate) const fn new(out: W, model: String) -> Self {
        Self { out, model, queue: VecDeque::new(), outcome: Outcome { answered: 0, failed: 0 } }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub(crate) const fn outcome(&self) -> Outcome {
        self.outcome
    }

    pub(crate) fn pending(&mut self, id: Option<String>, reply: Reply) {
        self.queue.push_back(Entry::Pending { id, reply });
    }

    pub(crate) fn refused(&mut self, id: Option<String>, message: String) {
        self.queue.push_back(Entry::Refused { id, message });
    }

    /// Prints the oldest answer, waiting for it; before it the parts of it that are streamed, as they come.
    pub(crate) fn settle_one(&mut self) -> std::io::Result<()> {
        match self.queue.pop_front() {
            None => Ok(()),
            Some(Entry::Refused { id, message }) => self.failure(id.as_deref(), &message),
            Some(Entry::Pending { id, reply }) => {
                while let Some(part) = reply.next_part() {
                    self.part(id.as_deref(), part)?;
                }
                self.result(id.as_deref(), reply.wait())
            }
        }
    }

    /// A piece of an answer.
    pub(crate) fn part(&mut self, id: Option<&str>, part: Tensor) -> std::io::Result<()> {
        let (model_name, echoed) = (self.model.clone(), id.map(str::to_owned));
        match (InferResponse { model_name, id: echoed, outputs: vec![part], ..InferResponse::default() }).to_json() {
            Ok(line) => writeln!(self.out, "{line}")?,
            Err(bad) => writeln!(self.out, "{}", error_line(id, &bad.to_string()))?,
        }
        self.out.flush()
    }

    /// The end of an answer.
    pub(crate) fn result(&mut self, id: Option<&str>, result: Result<InferResponse, InferError>) -> std::io::Result<()> {
        let line = result.map_err(|error| error.to_string()).and_then(|response| response.to_json().map_err(|bad| bad.to_string()));
        match line {
            Ok(line) => {
                self.outcome.answered += 1;
                writeln!(self.out, "{line}")
            }
            Err(message) => self.failure(id, &message),
        }
    }

    pub(crate) fn failure(&mut self, id: Option<&str>, message: &str) -> std::io::Result<()> {
        self.outcome.failed += 1;
        writeln!(self.out, "{}", error_line(id, message))
    }

    pub(crate) fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// The protocol's error body, with the request's id in front.
fn error_line(id: Option<&str>, message: &str) -> String {
    format!("{{\"id\":{},\"error\":{}}}", json!(id), json!(message))
}

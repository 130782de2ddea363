//! Answers as lines: one JSON value each.

use std::io::Write;

use cellwright_cell_graph::Tensor;
use cellwright_protocol::InferResponse;

use crate::commands::outcome::{Outcome, error_line};

/// Prints answers, and counts them.
pub(crate) struct Answers<W> {
    out: W,
    model: String,
    outcome: Outcome,
}

impl<W: Write> Answers<W> {
    pub(crate) const fn new(out: W, model: String) -> Self {
        Self { out, model, outcome: Outcome { answered: 0, failed: 0 } }
    }

    pub(crate) const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// A piece of an answer.
    pub(crate) fn part(&mut self, id: Option<&str>, part: Tensor) -> std::io::Result<()> {
        let (model_name, echoed) = (self.model.clone(), id.map(str::to_owned));
        match (InferResponse { model_name, id: echoed, outputs: vec![part], ..InferResponse::default() }).to_json() {
            Ok(line) => writeln!(self.out, "{line}"),
            Err(bad) => writeln!(self.out, "{}", error_line(id, &bad.to_string())),
        }
    }

    /// The end of an answer.
    pub(crate) fn result(&mut self, id: Option<&str>, result: Result<InferResponse, String>) -> std::io::Result<()> {
        match result.and_then(|response| response.to_json().map_err(|bad| bad.to_string())) {
            Ok(line) => {
                self.outcome.count(true);
                writeln!(self.out, "{line}")
            }
            Err(message) => self.failure(id, &message),
        }
    }

    pub(crate) fn failure(&mut self, id: Option<&str>, message: &str) -> std::io::Result<()> {
        self.outcome.count(false);
        writeln!(self.out, "{}", error_line(id, message))
    }

    pub(crate) fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

//! A session in this process whose test waits on its own thread.

use std::sync::Arc;

use cellwright_cell_graph::Tensor;
use cellwright_engine::Urgency;
use cellwright_protocol::{InferRequest, InferResponse};
use cellwright_serving::{Answer, InferError, Patience, ServedModel, Serving, Session};
use tokio::runtime::Builder;

/// A session and its answer. Dropping it before its end cancels it.
pub struct OpenSession {
    session: Session,
    answer: Answer,
}

/// Begins a session.
///
/// # Errors
/// If its first chunk is refused.
pub fn open_session(serving: &Serving, model: &Arc<ServedModel>, first: InferRequest) -> Result<OpenSession, InferError> {
    let (answer, writer) = Answer::new(model.limits().answer_bytes_max, Patience::endless());
    match serving.begin_session(model, (first, Urgency::default()), writer) {
        Some(session) => Ok(OpenSession { session, answer }),
        None => Err(answer.wait().expect_err("it was refused")),
    }
}

impl OpenSession {
    /// Brings a chunk, waiting until fewer wait than may.
    ///
    /// # Errors
    /// If it is refused.
    ///
    /// # Panics
    /// If there is no runtime to be had.
    pub fn push(&self, chunk: InferRequest) -> Result<(), InferError> {
        Builder::new_current_thread().build().expect("a runtime").block_on(self.session.push(chunk))
    }

    /// The next part of the answer.
    #[must_use]
    pub fn next_part(&self) -> Option<Tensor> {
        self.answer.next_part()
    }

    /// No more input will come.
    pub fn finish(&self) {
        self.session.finish();
    }

    /// The end of the answer.
    ///
    /// # Errors
    /// Why there is none.
    pub fn wait(self) -> Result<InferResponse, InferError> {
        self.finish();
        self.answer.wait()
    }
}

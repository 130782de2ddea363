//! Who hears of one request: its call, or the call that it is a row of.

use std::sync::Arc;

use cellwright_cell_graph::Tensor;
use cellwright_engine::RequestTimes;
use cellwright_protocol::InferResponse;

use crate::answer::{AnswerWriter, Shared};
use crate::answer_room::AnswerShare;
use crate::error::InferError;
use crate::rows::Row;

/// Who hears of one request. A recipient that is dropped hears that the host has stopped.
pub(crate) enum Recipient {
    /// The request is the call.
    Call(Box<AnswerWriter>),
    /// The request is one row of a call.
    Row(Row),
}

impl Recipient {
    /// The answer of its call, if that has not ended.
    pub(crate) fn answer(&self) -> Option<Arc<Shared>> {
        match self {
            Self::Call(writer) => Some(writer.shared()),
            Self::Row(row) => row.with_writer(|writer| writer.shared()),
        }
    }

    /// A piece of a streamed output. Calls of rows are answered whole.
    pub(crate) fn part(&self, part: Tensor) {
        if let Self::Call(writer) = self {
            writer.part(part);
        }
    }

    /// The request has ended in the engine, which took its times.
    pub(crate) fn ran(&mut self, times: &RequestTimes) {
        match self {
            Self::Call(writer) => writer.request_ran(times),
            Self::Row(row) => drop(row.with_writer(|writer| writer.request_ran(times))),
        }
    }

    /// The request, which is about to end, restarted because its worker was lost.
    pub(crate) fn replayed(&mut self) {
        match self {
            Self::Call(writer) => writer.request_replayed(),
            Self::Row(row) => drop(row.with_writer(AnswerWriter::request_replayed)),
        }
    }

    /// What the answer that is about to come holds of the host's memory.
    pub(crate) fn hold(&mut self, share: AnswerShare) {
        match self {
            Self::Call(writer) => writer.hold(share),
            Self::Row(row) => row.hold(share),
        }
    }

    /// The end of the request.
    pub(crate) fn end(self, result: Result<InferResponse, InferError>) {
        match self {
            Self::Call(writer) => writer.end(result),
            Self::Row(row) => row.end(result),
        }
    }
}

//! A call whose rows are requests: each row runs by itself, and the call's answer is all of theirs.
//!
//! The plugin's time is bounded for the call, not for each row. No further row is begun for a
//! client that has left or whose deadline has passed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cellwright_engine::{RequestFailure, Urgency};
use cellwright_protocol::{InferRequest, InferResponse, join_rows, split_rows};

use crate::answer::AnswerWriter;
use crate::answer_room::AnswerShare;
use crate::ending;
use crate::error::InferError;
use crate::model::ServedModel;
use crate::plugin_threads::PluginCalls;
use crate::plugin_time::PluginTime;
use crate::recipient::Recipient;
use crate::request::{Active, Begin};
use crate::serving::Inner;

/// Joining one output of a row with the others costs as much as copying so many bytes more.
const ROW_WORK: usize = 64;

/// How often the thread that begins rows reports that it takes long.
const LONG: Duration = Duration::from_millis(4);

/// The rows of one call.
struct JoinedRows {
    /// Gone once the call has ended.
    writer: Option<Box<AnswerWriter>>,
    id: Option<String>,
    /// Answers so far, by row.
    responses: Vec<Option<InferResponse>>,
    missing: usize,
    /// What all of them hold.
    share: Option<AnswerShare>,
    /// Where a large answer is put together.
    plugin_calls: PluginCalls,
    model: Arc<ServedModel>,
}

fn lock(rows: &Mutex<JoinedRows>) -> MutexGuard<'_, JoinedRows> {
    rows.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins every row of a call. If one is refused, or the client leaves meanwhile, the call ends
/// with that error and its other rows are cancelled.
pub(crate) fn begin(
    serving: &Arc<Inner>,
    model: &Arc<ServedModel>,
    (request, urgency): (InferRequest, Urgency),
    writer: Box<AnswerWriter>,
) -> bool {
    let rows = match split_rows(&request, model.limits.rows_max) {
        Ok(rows) => rows,
        Err(fault) => {
            writer.end(Err(fault.into()));
            return false;
        }
    };
    let responses = rows.iter().map(|_| None).collect();
    let plugin_calls = serving.plugin_threads.calls();
    let missing = rows.len();
    let joined = JoinedRows { writer: Some(writer), id: request.id, responses, missing, share: None, plugin_calls, model: model.clone() };
    let joined = Arc::new(Mutex::new(joined));
    let (room, time) = (model.answer_room(), Arc::new(PluginTime::default()));
    let mut told = Instant::now();
    for (number, request) in rows.into_iter().enumerate() {
        // Each row's call may be a short one.
        if told.elapsed() >= LONG {
            (serving.on_long_call)();
            told = Instant::now();
        }
        let row = Row { rows: joined.clone(), number, ended: false };
        // A row that failed has ended the call, which was taken all the same.
        let Some(given_up) = row.with_writer(|writer| writer.given_up()) else { return true };
        let begun = match (given_up, Begin::row(model, request, (&room, &time))) {
            (Some(error), _) | (None, Err(error)) => {
                row.end(Err(error));
                false
            }
            (None, Ok(begin)) => Active::begin(serving, begin.urgent(urgency), Recipient::Row(row)).is_some(),
        };
        if !begun {
            return false;
        }
    }
    true
}

/// One row of a call.
pub(crate) struct Row {
    rows: Arc<Mutex<JoinedRows>>,
    number: usize,
    ended: bool,
}

impl Row {
    /// Does something with the writer of the call's answer, unless the call has ended.
    pub(crate) fn with_writer<T>(&self, work: impl FnOnce(&mut AnswerWriter) -> T) -> Option<T> {
        lock(&self.rows).writer.as_deref_mut().map(work)
    }

    pub(crate) fn hold(&self, share: AnswerShare) {
        lock(&self.rows).share = Some(share);
    }

    pub(crate) fn end(mut self, result: Result<InferResponse, InferError>) {
        self.finish(result);
    }

    fn finish(&mut self, result: Result<InferResponse, InferError>) {
        self.ended = true;
        let mut rows = lock(&self.rows);
        let response = match result {
            Err(error) => {
                let writer = rows.writer.take();
                drop(rows);
                if let Some(writer) = writer {
                    writer.cancel_requests();
                    writer.end(Err(error));
                }
                return;
            }
            Ok(response) => response,
        };
        rows.responses[self.number] = Some(response);
        rows.missing -= 1;
        if rows.missing > 0 {
            return;
        }
        let (writer, id, calls, model) = (rows.writer.take(), rows.id.take(), rows.plugin_calls.clone(), rows.model.clone());
        let responses: Vec<InferResponse> = rows.responses.drain(..).flatten().collect();
        let share = rows.share.take();
        drop(rows);
        if let Some(writer) = writer {
            let work = responses.iter().flat_map(|row| &row.outputs).map(|output| output.data.len() + ROW_WORK).sum();
            let join = |recipient: &mut Recipient| {
                share.into_iter().for_each(|share| recipient.hold(share));
                Ok(InferResponse { id, ..join_rows(responses)? })
            };
            ending::end((&calls, model.plugin_of(), model.plugin_name()), work, Recipient::Call(writer), join);
        }
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        if !self.ended {
            self.finish(Err(InferError::Engine(RequestFailure::Stopped)));
        }
    }
}

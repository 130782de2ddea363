//! A call whose rows are requests: each row runs by itself, and the call's answer is all of theirs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cellwright_cell_graph::Tensor;
use cellwright_engine::{RequestTimes, Urgency};
use cellwright_protocol::{InferRequest, InferResponse, join_rows, split_rows};

use crate::answer_room::AnswerShare;
use crate::ending;
use crate::error::InferError;
use crate::model::ServedModel;
use crate::plugin_threads::{PluginCalls, PluginOf};
use crate::plugin_time::PluginTime;
use crate::reply::Client;
use crate::request::{Active, Begin, Running};
use crate::serving::Inner;

/// What putting one output of a row to the others costs, as if it were so many bytes more.
const ROW_WORK: usize = 64;

/// How often whoever begins rows is told that it takes long.
const LONG: Duration = Duration::from_millis(4);

/// The rows of one call.
struct Joint {
    /// Gone once the call has ended, one way or the other.
    client: Option<Box<dyn Client>>,
    id: Option<String>,
    /// Answers so far, by row.
    responses: Vec<Option<InferResponse>>,
    missing: usize,
    running: Running,
    /// What all of them hold.
    share: Option<AnswerShare>,
    /// Where a large answer is put together.
    plugin_calls: (PluginCalls, PluginOf),
}

fn lock(joint: &Mutex<Joint>) -> MutexGuard<'_, Joint> {
    joint.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins every row of a call, or none: when one is refused, or the client gives the call up meanwhile, those before are cancelled and `client` hears
/// nothing.
pub(crate) fn begin(
    serving: &Arc<Inner>,
    model: &Arc<ServedModel>,
    (request, urgency): (InferRequest, Urgency),
    client: Box<dyn Client>,
) -> Result<Running, InferError> {
    let rows = split_rows(&request, model.limits.rows_max)?;
    let responses = rows.iter().map(|_| None).collect();
    let plugin_calls = (serving.plugin_threads.calls(), model.plugin_of());
    let (missing, running) = (rows.len(), Running::default());
    let joint = Joint { client: Some(client), id: request.id, responses, missing, running, share: None, plugin_calls };
    let joint = Arc::new(Mutex::new(joint));
    let room = model.answer_room();
    let time = Arc::new(PluginTime::default());
    let mut told = Instant::now();
    for (row, request) in rows.into_iter().enumerate() {
        // Each row's call may be a short one.
        if told.elapsed() >= LONG {
            (serving.on_long_call)();
            told = Instant::now();
        }
        let given_up = lock(&joint).client.as_ref().and_then(|client| client.given_up());
        let begun = match given_up {
            Some(error) => Err(error),
            None => {
                let client = Box::new(RowClient { joint: joint.clone(), row });
                let begin = Begin::row(model, request, (&room, &time));
                begin.and_then(|begin| Active::begin(serving, begin.urgent(urgency), client))
            }
        };
        let mut state = lock(&joint);
        match begun {
            Ok(active) => state.running.add(&active),
            Err(error) => {
                // If a row before it has failed already, the client knows.
                let unheard = state.client.take();
                let running = state.running.clone();
                drop(state);
                running.cancel();
                return if unheard.is_some() { Err(error) } else { Ok(running) };
            }
        }
        if state.client.is_none() {
            // A row has failed: the others need not begin, and this one need not go on.
            let running = state.running.clone();
            drop(state);
            running.cancel();
            return Ok(running);
        }
    }
    let running = lock(&joint).running.clone();
    Ok(running)
}

/// Receives one row's answer.
struct RowClient {
    joint: Arc<Mutex<Joint>>,
    row: usize,
}

impl Client for RowClient {
    fn part(&mut self, _part: Tensor) {}

    fn ran(&mut self, times: &RequestTimes) {
        if let Some(client) = lock(&self.joint).client.as_mut() {
            client.ran(times);
        }
    }

    fn replayed(&mut self) {
        if let Some(client) = lock(&self.joint).client.as_mut() {
            client.replayed();
        }
    }

    fn holds(&mut self, share: AnswerShare) {
        lock(&self.joint).share = Some(share);
    }

    fn end(self: Box<Self>, result: Result<InferResponse, InferError>) {
        let mut joint = lock(&self.joint);
        match result {
            Err(error) => {
                let (client, running) = (joint.client.take(), joint.running.clone());
                drop(joint);
                if let Some(client) = client {
                    running.cancel();
                    client.end(Err(error));
                }
            }
            Ok(response) => {
                joint.responses[self.row] = Some(response);
                joint.missing -= 1;
                if joint.missing > 0 {
                    return;
                }
                let (client, id, (calls, whose)) = (joint.client.take(), joint.id.take(), joint.plugin_calls.clone());
                let rows: Vec<InferResponse> = joint.responses.drain(..).flatten().collect();
                let share = joint.share.take();
                drop(joint);
                if let Some(client) = client {
                    let work = rows.iter().flat_map(|row| &row.outputs).map(|output| output.data.len() + ROW_WORK).sum();
                    let join = |client: &mut dyn Client| {
                        share.into_iter().for_each(|share| client.holds(share));
                        Ok(InferResponse { id, ..join_rows(rows)? })
                    };
                    ending::end((&calls, whose), work, client, join);
                }
            }
        }
    }
}

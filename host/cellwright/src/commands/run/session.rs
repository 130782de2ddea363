//! `run --session`: each line is the next part of one session.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, bail};
use cellwright_gate::{Call, Calls};
use cellwright_protocol::InferRequest;
use cellwright_serving::{Item, ServedModel, Serving};
use tokio::sync::mpsc::{Sender, channel};

use super::answers::Answers;
use crate::bound_lines::Lines;
use crate::trace::Roll;

/// Lines that are read ahead of the part that runs.
const READ_AHEAD: usize = 16;

/// Feeds the session its parts while it takes the parts of the answer, and prints them if they are
/// asked for.
pub(crate) fn run<R: BufRead + Send, W: Write>(
    serving: Serving,
    model: &Arc<ServedModel>,
    mut lines: Lines<R>,
    answers: &mut Answers<W>,
    prints_parts: bool,
    roll: Option<&Roll>,
) -> anyhow::Result<()> {
    let Some((number, line)) = lines.next()? else { bail!("the input is empty, but a session needs at least one chunk") };
    let first = part(number, &line)?;
    let id = first.request.id.clone();
    if let Some(roll) = roll {
        roll.enter(id.clone().unwrap_or_else(|| "session".to_owned()), None);
    }
    let (calls, deployed) = Calls::of_one(serving, model.clone(), model.limits().answer_bytes_max)?;
    let (sender, parts) = channel(READ_AHEAD);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().context("cannot start a thread")?;
    let answer = runtime.block_on(calls.session(&deployed, first, parts))?;
    let read = thread::scope(|scope| {
        let reading = scope.spawn(move || read(&sender, lines));
        let result = runtime.block_on(async {
            while let Some(item) = answer.next().await {
                match item {
                    Item::Part(part) if prints_parts => {
                        answers.part(id.as_deref(), part)?;
                        answers.flush()?;
                    }
                    Item::Part(_) => {}
                    Item::End(result, _) => answers.result(id.as_deref(), result.map_err(|error| error.to_string()))?,
                }
            }
            anyhow::Ok(())
        });
        let read = reading.join().unwrap_or_else(|_| bail!("reading the input failed"));
        result.map(|()| read)
    })?;
    // A line that is no request ends the session, but what came before it has its answer.
    if let Err(error) = read {
        answers.failure(id.as_deref(), &cellwright_command::process::sentence(&error))?;
    }
    answers.flush()?;
    Ok(())
}

fn read<R: BufRead>(sender: &Sender<Call>, mut lines: Lines<R>) -> anyhow::Result<()> {
    while let Some((number, line)) = lines.next()? {
        // A session that is over takes no more.
        if sender.blocking_send(part(number, &line)?).is_err() {
            break;
        }
    }
    Ok(())
}

fn part(number: usize, line: &[u8]) -> anyhow::Result<Call> {
    Ok(Call::new(InferRequest::from_json(line).with_context(|| format!("line {number}"))?))
}

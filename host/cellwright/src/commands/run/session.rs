//! `run --session`: each line is the next chunk of one request.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, bail};
use cellwright_protocol::InferRequest;
use cellwright_serving::{ServedModel, Serving, Session};

use crate::bound_lines::Lines;
use crate::trace::Roll;

use super::answers::Answers;

/// Pushes the chunks while it prints what comes of them.
pub(crate) fn run<R: BufRead + Send, W: Write>(
    serving: &Serving,
    model: &Arc<ServedModel>,
    mut lines: Lines<R>,
    answers: &mut Answers<W>,
    roll: Option<&Roll>,
) -> anyhow::Result<()> {
    let Some((number, line)) = lines.next()? else { bail!("the input holds no chunk, and a session begins with one") };
    let first = chunk(number, &line)?;
    let id = first.id.clone();
    if let Some(roll) = roll {
        roll.enter(id.clone().unwrap_or_else(|| "session".to_owned()), None);
    }
    let session = serving.open_session(model, first).context("the first chunk is refused")?;
    let pushed = thread::scope(|scope| {
        let pushing = scope.spawn(|| push_all(&session, lines));
        while let Some(part) = session.next_part() {
            answers.part(id.as_deref(), part)?;
            answers.flush()?;
        }
        let pushed = pushing.join().unwrap_or_else(|_| bail!("reading the input failed"));
        anyhow::Ok(pushed)
    })?;
    // A chunk that was refused ends the session, but what came before it has its answer.
    answers.result(id.as_deref(), session.wait().map_err(|error| error.to_string()))?;
    if let Err(error) = pushed {
        answers.failure(id.as_deref(), &crate::sentence(&error))?;
    }
    answers.flush()?;
    Ok(())
}

fn push_all<R: BufRead>(session: &Session, mut lines: Lines<R>) -> anyhow::Result<()> {
    let pushed = push_lines(session, &mut lines);
    session.finish();
    pushed
}

fn push_lines<R: BufRead>(session: &Session, lines: &mut Lines<R>) -> anyhow::Result<()> {
    while let Some((number, line)) = lines.next()? {
        session.push(chunk(number, &line)?).with_context(|| format!("line {number}"))?;
    }
    Ok(())
}

fn chunk(number: usize, line: &[u8]) -> anyhow::Result<InferRequest> {
    InferRequest::from_json(line).with_context(|| format!("line {number}"))
}

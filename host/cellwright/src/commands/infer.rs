//! `infer`: requests from a file to a server.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write, stdin, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use anyhow::Context;
use cellwright_client::{Client, ClientError, Form, ModelRef};
use cellwright_protocol::InferRequest;
use serde_json::{Map, Value};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;

use super::outcome::{Outcome, error_line, no_request};
use super::remote::block_on;
use crate::bound_lines::Lines;
use crate::cli::InferArguments;

/// Lines that are read before they are sent, at most.
const READ_AHEAD: usize = 16;

/// A line of the input and its number, or why there are no more.
type Input = anyhow::Result<(usize, Vec<u8>)>;
/// A request's line of output, and whether it is an answer.
type Line = (String, bool);

pub(crate) fn infer(arguments: &InferArguments) -> anyhow::Result<ExitCode> {
    let client = arguments.server.client()?;
    let lines = read(Lines::new(open(&arguments.input)?))?;
    let model = Named::new(&arguments.model)?;
    let outcome = block_on(async {
        if arguments.stream { stream(&client, &model, lines).await } else { answer(&client, &model, arguments, lines).await }
    })?;
    Ok(outcome.tell(false)?)
}

/// A model, and perhaps which version of it.
#[derive(Clone)]
struct Named {
    name: String,
    version: Option<u64>,
}

impl Named {
    fn new(text: &str) -> anyhow::Result<Self> {
        Ok(match text.split_once('/') {
            None => Self { name: text.to_owned(), version: None },
            Some((name, version)) => {
                let version =
                    version.parse().with_context(|| format!("`{version}` is not the number of a version; write MODEL or MODEL/2"))?;
                Self { name: name.to_owned(), version: Some(version) }
            }
        })
    }

    fn as_ref(&self) -> ModelRef<'_> {
        ModelRef { name: &self.name, version: self.version }
    }
}

fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead + Send>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::new(stdin())));
    }
    let file = File::open(path).with_context(|| format!("the input {} cannot be read", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

/// Lines of the input, from a thread of their own: while the next one is waited for, answers come.
fn read(mut lines: Lines<Box<dyn BufRead + Send>>) -> anyhow::Result<Receiver<Input>> {
    let (sender, receiver) = channel(READ_AHEAD);
    let run = move || {
        while let Some(line) = lines.next().transpose() {
            let last = line.is_err();
            if sender.blocking_send(line).is_err() || last {
                break;
            }
        }
    };
    // Nobody waits for it: it may be reading what never comes when the program ends.
    thread::Builder::new().name("input".to_owned()).spawn(run).context("cannot start the thread that reads the input")?;
    Ok(receiver)
}

/// Whole answers, several requests at once, in the order of the input.
async fn answer(client: &Client, model: &Named, arguments: &InferArguments, mut lines: Receiver<Input>) -> anyhow::Result<Outcome> {
    let form = if arguments.binary { Form::Binary } else { Form::Json };
    let mut out = BufWriter::new(stdout().lock());
    let mut waiting: VecDeque<JoinHandle<Result<Line, ClientError>>> = VecDeque::new();
    let mut outcome = Outcome::default();
    // Why nothing more is sent, and how many requests have no answer because of it.
    let (mut gone, mut unanswered, mut last) = (None, 0_u64, 0);
    let mut at_end = false;
    loop {
        let takes_more = !at_end && gone.is_none() && waiting.len() < usize::from(arguments.in_flight_max);
        if !takes_more && waiting.is_empty() {
            break;
        }
        let goes_on = waiting.front().is_some_and(JoinHandle::is_finished) || (takes_more && !lines.is_empty());
        if !goes_on {
            // Whoever asks for one thing after the other waits for this.
            out.flush()?;
        }
        tokio::select! {
            biased;
            answered = async { waiting.front_mut().expect("one waits").await }, if !waiting.is_empty() => {
                waiting.pop_front();
                match answered? {
                    Ok((line, is_answer)) => {
                        outcome.count(is_answer);
                        writeln!(out, "{line}")?;
                    }
                    Err(nobody) => {
                        unanswered += 1;
                        gone.get_or_insert(nobody);
                    }
                }
            }
            next = lines.recv(), if takes_more => match next.transpose()? {
                None => at_end = true,
                Some((number, line)) => {
                    last = number;
                    let (client, model) = (client.clone(), model.clone());
                    waiting.push_back(tokio::spawn(async move { one(&client, &model, (number, &line), form).await }));
                }
            },
        }
    }
    out.flush()?;
    let Some(nobody) = gone else { return Ok(outcome) };
    let failed = if outcome.failed > 0 {
        format!("; {} other requests failed: their lines of output have the errors", outcome.failed)
    } else {
        String::new()
    };
    Err(anyhow::Error::new(nobody).context(format!("stopped at line {last} of the input: {unanswered} requests have no answer{failed}")))
}

async fn one(client: &Client, model: &Named, (number, line): (usize, &[u8]), form: Form) -> Result<Line, ClientError> {
    let request = match InferRequest::from_json(line) {
        Ok(request) => request,
        Err(bad) => return Ok((error_line(bad.id.as_deref(), &no_request(number, &bad)), false)),
    };
    let id = request.id.clone();
    let refused = |what: String| (error_line(id.as_deref(), &what), false);
    Ok(match client.infer(model.as_ref(), request, form).await {
        Ok(response) => match response.to_json() {
            Ok(line) => (line, true),
            Err(error) => refused(error.to_string()),
        },
        Err(nobody @ ClientError::Nobody { .. }) => return Err(nobody),
        Err(error) => refused(error.to_string()),
    })
}

/// Parts as they come, one request after the other: of `generate`, or of the protocol, whose `inputs` are objects, which no value of `generate` is.
async fn stream(client: &Client, model: &Named, mut lines: Receiver<Input>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    while let Some((number, line)) = lines.recv().await.transpose()? {
        let request: Map<String, Value> = match serde_json::from_slice(&line) {
            Ok(request) => request,
            Err(error) => {
                outcome.count(false);
                writeln!(stdout(), "{}", error_line(None, &format!("line {number} of the input is not a JSON object: {error}")))?;
                continue;
            }
        };
        let ended = async {
            let of_protocol = request.get("inputs").and_then(Value::as_array).is_some_and(|inputs| inputs.iter().any(Value::is_object));
            let request = if of_protocol { &InferRequest::from_json(&line)?.to_generate()? } else { &request };
            let mut events = client.generate_stream(model.as_ref(), request).await?;
            while let Some(event) = events.next().await {
                writeln!(stdout(), "{}", Value::Object(event?))?;
            }
            anyhow::Ok(())
        };
        let ended = ended.await;
        outcome.count(ended.is_ok());
        if let Err(error) = ended {
            if matches!(error.downcast_ref(), Some(ClientError::Nobody { .. })) {
                return Err(error.context(format!("stopped at line {number} of the input")));
            }
            let id = request.get("id").and_then(Value::as_str);
            writeln!(stdout(), "{}", error_line(id, &error.to_string()))?;
        }
    }
    Ok(outcome)
}

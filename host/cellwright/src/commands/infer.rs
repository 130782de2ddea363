//! `infer`: requests from a file to a server.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write, stderr, stdin, stdout};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use cellwright_client::{Client, ClientError, Form, ModelRef};
use cellwright_protocol::InferRequest;
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;

use super::remote::block_on;
use crate::bound_lines::Lines;
use crate::cli::InferArguments;

/// A request's line of output, and whether it is an answer.
type Line = (String, bool);

pub(crate) fn infer(arguments: &InferArguments) -> anyhow::Result<ExitCode> {
    let client = arguments.server.client()?;
    let lines = Lines::new(open(&arguments.input)?);
    let model = Named::new(&arguments.model)?;
    let failed = block_on(async {
        if arguments.stream { stream(&client, &model, lines).await } else { answer(&client, &model, arguments, lines).await }
    })?;
    if failed > 0 {
        writeln!(stderr(), "error: {failed} requests failed; each one's line of output says why")?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
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
                let version = version.parse().with_context(|| format!("`{version}` is no version of a model; write MODEL or MODEL/2"))?;
                Self { name: name.to_owned(), version: Some(version) }
            }
        })
    }

    fn as_ref(&self) -> ModelRef<'_> {
        ModelRef { name: &self.name, version: self.version }
    }
}

fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::new(stdin())));
    }
    let file = File::open(path).with_context(|| format!("the input {} cannot be read", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

/// Whole answers, several requests at once, in the order of the input; gives how many failed.
async fn answer(client: &Client, model: &Named, arguments: &InferArguments, mut lines: Lines<Box<dyn BufRead>>) -> anyhow::Result<u64> {
    let form = if arguments.binary { Form::Binary } else { Form::Json };
    let mut out = BufWriter::new(stdout().lock());
    let mut waiting: VecDeque<JoinHandle<Result<Line, ClientError>>> = VecDeque::new();
    let mut failed = 0;
    // Why nothing more is sent, and how many requests have no answer because of it.
    let (mut gone, mut unanswered, mut last) = (None, 0_u64, 0);
    loop {
        let next = if gone.is_none() { lines.next()? } else { None };
        while waiting.len() >= usize::from(arguments.in_flight_max) || (next.is_none() && !waiting.is_empty()) {
            let Some(first) = waiting.pop_front() else { break };
            match first.await? {
                Ok((line, is_answer)) => {
                    failed += u64::from(!is_answer);
                    writeln!(out, "{line}")?;
                }
                Err(nobody) => {
                    unanswered += 1;
                    gone.get_or_insert(nobody);
                }
            }
        }
        let Some((number, line)) = next else { break };
        last = number;
        if gone.is_some() {
            unanswered += 1;
            continue;
        }
        let (client, model) = (client.clone(), model.clone());
        waiting.push_back(tokio::spawn(async move { one(&client, &model, &line, form).await }));
    }
    out.flush()?;
    match gone {
        None => Ok(failed),
        Some(nobody) => {
            let failed = if failed > 0 { format!("; {failed} others failed, whose lines of output say why") } else { String::new() };
            Err(anyhow::Error::new(nobody)
                .context(format!("stopped at line {last} of the input, {unanswered} requests have no answer{failed}")))
        }
    }
}

async fn one(client: &Client, model: &Named, line: &[u8], form: Form) -> Result<Line, ClientError> {
    let request = match InferRequest::from_json(line) {
        Ok(request) => request,
        Err(bad) => return Ok((json!({ "id": bad.id, "error": bad.to_string() }).to_string(), false)),
    };
    let id = request.id.clone();
    let refused = |what: String| (json!({ "id": id, "error": what }).to_string(), false);
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
async fn stream(client: &Client, model: &Named, mut lines: Lines<Box<dyn BufRead>>) -> anyhow::Result<u64> {
    let mut failed = 0;
    while let Some((number, line)) = lines.next()? {
        let request: Map<String, Value> = match serde_json::from_slice(&line) {
            Ok(request) => request,
            Err(error) => {
                failed += 1;
                let error = format!("line {number} of the input is no JSON object: {error}");
                writeln!(stdout(), "{}", json!({ "id": Value::Null, "error": error }))?;
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
        if let Err(error) = ended.await {
            if matches!(error.downcast_ref(), Some(ClientError::Nobody { .. })) {
                return Err(error.context(format!("stopped at line {number} of the input")));
            }
            failed += 1;
            let id = request.get("id").filter(|id| id.is_string());
            writeln!(stdout(), "{}", json!({ "id": id, "error": error.to_string() }))?;
        }
    }
    Ok(failed)
}

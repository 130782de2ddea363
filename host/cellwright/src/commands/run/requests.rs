//! `run`: every line of the input a request of its own, as many in flight at once as may be.
//!
//! A thread reads and hands over; this one prints: answers in the order of the input, or, where
//! they are streamed, whatever comes as it comes.

use std::collections::BTreeMap;
use std::future::pending;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Context, bail};
use cellwright_protocol::{InferRequest, InferResponse, RequestFault, Wanted};
use cellwright_serving::{Answer, Delivery, Item, ServedModel, Serving};
use indicatif::ProgressBar;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::bound_lines::Lines;
use crate::commands::outcome::no_request;
use crate::commands::remote::block_on;
use crate::trace::Roll;

use super::answers::Answers;

/// What it takes to have a request answered.
pub(crate) struct Desk<'a> {
    pub(crate) serving: &'a Serving,
    pub(crate) model: &'a Arc<ServedModel>,
    pub(crate) delivery: Delivery,
    pub(crate) in_flight_max: usize,
    /// Where a trace looks requests up.
    pub(crate) roll: Option<&'a Roll>,
}

/// A request that was read.
struct Asked {
    /// Its position in the input, from 0.
    number: usize,
    id: Option<String>,
    /// The outputs that it asks for.
    wanted: Wanted,
}

/// A request on its way to the printing thread: its answer, or why there is none.
type Open = (Asked, Result<Answer, String>);

impl Desk<'_> {
    /// Answers every line.
    pub(crate) fn run<R: BufRead + Send, W: Write>(
        &self,
        lines: Lines<R>,
        answers: &mut Answers<W>,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let (sender, asked) = mpsc::channel(self.in_flight_max.max(1));
        // A request takes a ticket until its end has been printed.
        let (tickets, printed) = sync_channel(self.in_flight_max.max(1));
        thread::scope(|scope| {
            let reading = scope.spawn(move || self.read(&sender, &tickets, lines));
            let result = block_on(print(asked, (printed, self.delivery), answers, bar));
            let read = reading.join().unwrap_or_else(|_| bail!("reading the input failed"));
            result?;
            read
        })
    }

    fn read<R: BufRead>(&self, sender: &mpsc::Sender<Open>, tickets: &SyncSender<()>, mut lines: Lines<R>) -> anyhow::Result<()> {
        let mut number = 0;
        while let Some((line_number, line)) = lines.next()? {
            // The printing thread is gone if standard output is.
            if tickets.send(()).is_err() || sender.blocking_send(self.ask(number, &line, line_number)).is_err() {
                break;
            }
            number += 1;
        }
        Ok(())
    }

    fn ask(&self, number: usize, line: &[u8], line_number: usize) -> Open {
        // Lines of different requests alternate in a stream: each names its request.
        let streamed = self.delivery == Delivery::Parts;
        let named = |id: Option<String>| id.or_else(|| streamed.then(|| format!("line-{line_number}")));
        let mut request = match InferRequest::from_json(line) {
            Ok(request) => request,
            Err(bad) => {
                let message = no_request(line_number, &bad);
                return (Asked { number, id: named(bad.id), wanted: Wanted::default() }, Err(message));
            }
        };
        request.id = named(request.id.take());
        let id = request.id.clone();
        let wanted = match wanted_of(self.model, &mut request) {
            Ok(wanted) => wanted,
            Err(fault) => return (Asked { number, id, wanted: Wanted::default() }, Err(format!("line {line_number}: {fault}"))),
        };
        if let Some(roll) = self.roll {
            roll.enter(id.clone().unwrap_or_else(|| format!("line-{line_number}")), rows_of(self.model, &request));
        }
        let answer = self.serving.infer(self.model, request, self.delivery);
        if let Some(roll) = self.roll.filter(|_| answer.is_err()) {
            roll.strike_last();
        }
        (Asked { number, id, wanted }, answer.map_err(|error| error.to_string()))
    }
}

/// The outputs that a request asks for, all of them as JSON, whatever form it would have from a
/// server.
fn wanted_of(model: &ServedModel, request: &mut InferRequest) -> Result<Wanted, RequestFault> {
    let outputs = request.take_options()?.wanted.outputs;
    let wanted = Wanted { binary: false, outputs: outputs.into_iter().map(|(name, _)| (name, None)).collect() };
    wanted.check(&model.description().outputs)?;
    Ok(wanted)
}

/// What is wanted of an answer, of which parts may have come before.
fn wanted_in(mut answer: InferResponse, wanted: &Wanted, delivery: Delivery) -> Result<InferResponse, String> {
    match delivery {
        Delivery::Whole => answer.only(wanted).map_err(|bad| bad.to_string()),
        Delivery::Parts => {
            answer.outputs.retain(|output| wanted.takes(&output.name));
            Ok(answer)
        }
    }
}

/// How many requests of the engine's a call is, for models whose rows are requests.
fn rows_of(model: &ServedModel, request: &InferRequest) -> Option<usize> {
    model.description().rows_are_requests.then(|| request.inputs.first().and_then(|input| input.shape.first()).copied().unwrap_or(0))
}

/// Prints the answers in the order of the input. With `--stream` it prints parts and ends as they
/// arrive.
async fn print<W: Write>(
    mut asked: mpsc::Receiver<Open>,
    (printed, delivery): (Receiver<()>, Delivery),
    answers: &mut Answers<W>,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let mut open = JoinSet::new();
    let (mut is_over, mut early, mut turn) = (false, BTreeMap::new(), 0);
    while !is_over || !open.is_empty() {
        let came = tokio::select! {
            came = asked.recv(), if !is_over => came.map(Ok),
            item = next_of(&mut open) => Some(Err(item?)),
        };
        let (of, result) = match came {
            None => {
                is_over = true;
                continue;
            }
            Some(Ok((of, Ok(answer)))) => {
                open.spawn(next_item(of, answer));
                continue;
            }
            Some(Ok((of, Err(refusal)))) => (of, Err(refusal)),
            Some(Err((of, answer, Some(Item::Part(part))))) => {
                if of.wanted.takes(&part.name) {
                    answers.part(of.id.as_deref(), part)?;
                    answers.flush()?;
                }
                open.spawn(next_item(of, answer));
                continue;
            }
            Some(Err((of, _, Some(Item::End(result, _))))) => (of, result.map_err(|error| error.to_string())),
            Some(Err((of, _, None))) => (of, Err("the request was given up without an answer".to_owned())),
        };
        let number = if delivery == Delivery::Parts { turn } else { of.number };
        early.insert(number, (of, result));
        while let Some((of, result)) = early.remove(&turn) {
            answers.result(of.id.as_deref(), result.and_then(|answer| wanted_in(answer, &of.wanted, delivery)))?;
            let _ = printed.try_recv();
            bar.inc(1);
            turn += 1;
        }
        answers.flush()?;
    }
    Ok(())
}

type NextItem = (Asked, Answer, Option<Item>);

async fn next_item(of: Asked, answer: Answer) -> NextItem {
    let item = answer.next().await;
    (of, answer, item)
}

/// The next item of any answer, waiting until there is one.
async fn next_of(open: &mut JoinSet<NextItem>) -> anyhow::Result<NextItem> {
    match open.join_next().await {
        Some(item) => item.context("the task of an answer failed"),
        None => pending().await,
    }
}

//! `run`: every line of the input a request of its own, as many in flight at once as may be.
//!
//! A thread reads and hands over; this one prints: answers in the order of the input, or, where they are streamed, whatever comes as it comes.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::thread;

use anyhow::bail;
use cellwright_protocol::{InferRequest, InferResponse, RequestFault, Wanted};
use cellwright_serving::{Delivery, ServedModel, Serving};
use indicatif::ProgressBar;

use crate::bound_lines::Lines;
use crate::commands::outcome::no_request;
use crate::trace::Roll;

use super::answers::Answers;
use super::inbox::{Asked, Inbox, Reporter, What};

/// What it takes to have a request answered.
pub(crate) struct Desk<'a> {
    pub(crate) serving: &'a Serving,
    pub(crate) model: &'a Arc<ServedModel>,
    pub(crate) delivery: Delivery,
    pub(crate) in_flight_max: usize,
    /// Where a trace looks requests up.
    pub(crate) roll: Option<&'a Roll>,
}

impl Desk<'_> {
    /// Answers every line.
    pub(crate) fn run<R: BufRead + Send, W: Write>(
        &self,
        lines: Lines<R>,
        answers: &mut Answers<W>,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let inbox = Arc::new(Inbox::default());
        thread::scope(|scope| {
            let reading = scope.spawn(|| self.read(&inbox, lines));
            let printed = print(&inbox, self.delivery, answers, bar);
            let read = reading.join().unwrap_or_else(|_| bail!("reading the input failed"));
            printed?;
            read
        })
    }

    fn read<R: BufRead>(&self, inbox: &Arc<Inbox>, mut lines: Lines<R>) -> anyhow::Result<()> {
        let _reading = inbox.reading();
        let mut number = 0;
        while let Some((line_number, line)) = lines.next()? {
            if !inbox.open(self.in_flight_max) {
                break;
            }
            self.hand_over(inbox, number, &line, line_number);
            number += 1;
        }
        Ok(())
    }

    fn hand_over(&self, inbox: &Arc<Inbox>, number: usize, line: &[u8], line_number: usize) {
        // Lines of different requests stand between one another in a stream: each says whose it is.
        let streamed = self.delivery == Delivery::Parts;
        let named = |id: Option<String>| id.or_else(|| streamed.then(|| format!("line-{line_number}")));
        let mut request = match InferRequest::from_json(line) {
            Ok(request) => request,
            Err(bad) => {
                let message = no_request(line_number, &bad);
                return inbox.handed_over(&Asked::new(number, named(bad.id), Wanted::default()), Err(message));
            }
        };
        request.id = named(request.id.take());
        let wanted = match wanted_of(self.model, &mut request) {
            Ok(wanted) => wanted,
            Err(fault) => {
                let asked = Asked::new(number, request.id, Wanted::default());
                return inbox.handed_over(&asked, Err(format!("line {line_number}: {fault}")));
            }
        };
        let asked = Asked::new(number, request.id.clone(), wanted);
        if let Some(roll) = self.roll {
            let id = request.id.clone().unwrap_or_else(|| format!("line-{line_number}"));
            roll.enter(id, rows_of(self.model, &request));
        }
        let client = Box::new(Reporter::new(inbox.clone(), asked.clone()));
        let taken = self.serving.begin(self.model, request, self.delivery, client).map(drop);
        if let Some(roll) = self.roll.filter(|_| taken.is_err()) {
            roll.strike_last();
        }
        inbox.handed_over(&asked, taken.map_err(|error| error.to_string()));
    }
}

/// The outputs that a request asks for, all of them as JSON, whatever form it would have from a server.
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

/// Prints until there is nothing more to come.
fn print<W: Write>(inbox: &Inbox, delivery: Delivery, answers: &mut Answers<W>, bar: &ProgressBar) -> std::io::Result<()> {
    let _printing = inbox.printing();
    // Answers that came before their turn.
    let (mut early, mut turn) = (BTreeMap::new(), 0);
    while let Some(all) = inbox.news() {
        for news in all {
            let result = match news.what {
                What::Part(part) => {
                    if news.of.wanted.takes(&part.name) {
                        answers.part(news.of.id.as_deref(), part)?;
                    }
                    continue;
                }
                What::End(result) => result,
            };
            let number = if delivery == Delivery::Parts { turn } else { news.of.number };
            early.insert(number, (news.of, result));
            while let Some((of, result)) = early.remove(&turn) {
                answers.result(of.id.as_deref(), result.and_then(|answer| wanted_in(answer, &of.wanted, delivery)))?;
                inbox.close();
                bar.inc(1);
                turn += 1;
            }
        }
        answers.flush()?;
    }
    Ok(())
}

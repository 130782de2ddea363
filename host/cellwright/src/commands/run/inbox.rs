//! What requests in flight have to say, on its way from the host's threads to the one that prints.
//!
//! One thread reads the input and hands requests over, one prints; the host's own only leave their news here and go on. How much can lie here is
//! bounded by how many requests are open at once and by what their graphs can stream.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use cellwright_cell_graph::Tensor;
use cellwright_engine::RequestFailure;
use cellwright_protocol::{InferResponse, Wanted};
use cellwright_serving::{Client, InferError};

/// Where the news lie.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    news: VecDeque<News>,
    /// Requests that were read and whose end has not been printed.
    open: usize,
    /// The input has ended.
    no_more: bool,
    /// Nobody prints any more.
    hung_up: bool,
}

/// One request's part or end.
pub(crate) struct News {
    pub(crate) of: Arc<Asked>,
    pub(crate) what: What,
}

pub(crate) enum What {
    Part(Tensor),
    /// Comes once for every request, and nothing after it.
    End(Result<InferResponse, String>),
}

/// A request that was read.
pub(crate) struct Asked {
    /// Its place in the input, from 0.
    pub(crate) number: usize,
    pub(crate) id: Option<String>,
    /// What it wants to be answered.
    pub(crate) wanted: Wanted,
    stage: Mutex<Stage>,
}

#[derive(Clone, Copy)]
enum Stage {
    HandingOver,
    /// The host dropped its client before the hand-over came back, and that says why.
    Dropped,
    Taken,
    Ended,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Asked {
    pub(crate) fn new(number: usize, id: Option<String>, wanted: Wanted) -> Arc<Self> {
        Arc::new(Self { number, id, wanted, stage: Mutex::new(Stage::HandingOver) })
    }
}

impl Inbox {
    /// Waits until fewer than `max` requests are open, and counts one more; false if nobody prints any more.
    pub(crate) fn open(&self, max: usize) -> bool {
        let mut state = lock(&self.state);
        while state.open >= max && !state.hung_up {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.open += 1;
        !state.hung_up
    }

    /// The end of a request has been printed.
    pub(crate) fn close(&self) {
        lock(&self.state).open -= 1;
        self.changed.notify_all();
    }

    /// All news, waiting for some; none once the input has ended and every request has.
    pub(crate) fn news(&self) -> Option<VecDeque<News>> {
        let mut state = lock(&self.state);
        loop {
            if !state.news.is_empty() {
                return Some(std::mem::take(&mut state.news));
            }
            if state.no_more && state.open == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What came of handing a request over, or of not even trying to.
    pub(crate) fn handed_over(&self, asked: &Arc<Asked>, taken: Result<(), String>) {
        let mut stage = lock(&asked.stage);
        let end = match (*stage, taken) {
            (Stage::Ended, _) => None,
            (_, Err(refusal)) => Some(refusal),
            (Stage::Dropped, Ok(())) => Some(stopped()),
            (Stage::HandingOver | Stage::Taken, Ok(())) => None,
        };
        match end {
            Some(message) => {
                *stage = Stage::Ended;
                drop(stage);
                self.push(asked, What::End(Err(message)));
            }
            None if matches!(*stage, Stage::HandingOver) => *stage = Stage::Taken,
            None => {}
        }
    }

    /// For as long as this lives there may be more requests.
    pub(crate) fn reading(&self) -> Reading<'_> {
        Reading(self)
    }

    /// For as long as this lives, what is said here is printed.
    pub(crate) fn printing(&self) -> Printing<'_> {
        Printing(self)
    }

    fn push(&self, of: &Arc<Asked>, what: What) {
        lock(&self.state).news.push_back(News { of: of.clone(), what });
        self.changed.notify_all();
    }
}

fn stopped() -> String {
    InferError::Engine(RequestFailure::Stopped).to_string()
}

pub(crate) struct Reading<'a>(&'a Inbox);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).no_more = true;
        self.0.changed.notify_all();
    }
}

pub(crate) struct Printing<'a>(&'a Inbox);

impl Drop for Printing<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).hung_up = true;
        self.0.changed.notify_all();
    }
}

/// One request's client: it leaves its news and goes.
pub(crate) struct Reporter {
    inbox: Arc<Inbox>,
    asked: Arc<Asked>,
}

impl Reporter {
    pub(crate) const fn new(inbox: Arc<Inbox>, asked: Arc<Asked>) -> Self {
        Self { inbox, asked }
    }
}

impl Client for Reporter {
    fn part(&mut self, part: Tensor) {
        self.inbox.push(&self.asked, What::Part(part));
    }

    fn end(self: Box<Self>, result: Result<InferResponse, InferError>) {
        let before = std::mem::replace(&mut *lock(&self.asked.stage), Stage::Ended);
        if !matches!(before, Stage::Ended) {
            self.inbox.push(&self.asked, What::End(result.map_err(|error| error.to_string())));
        }
    }
}

/// A request that the host gives up without a word has an end all the same.
impl Drop for Reporter {
    fn drop(&mut self) {
        let mut stage = lock(&self.asked.stage);
        match *stage {
            Stage::HandingOver => *stage = Stage::Dropped,
            Stage::Taken => {
                *stage = Stage::Ended;
                drop(stage);
                self.inbox.push(&self.asked, What::End(Err(stopped())));
            }
            Stage::Dropped | Stage::Ended => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What came, as text: parts by name, ends as they are.
    fn said(inbox: &Inbox) -> Vec<String> {
        let news = std::mem::take(&mut lock(&inbox.state).news);
        let text = |what| match what {
            What::Part(part) => part.name,
            What::End(Ok(response)) => response.model_name,
            What::End(Err(message)) => message,
        };
        news.into_iter().map(|news| format!("{}: {}", news.of.number, text(news.what))).collect()
    }

    fn asked(inbox: &Arc<Inbox>) -> (Arc<Asked>, Box<Reporter>) {
        let asked = Asked::new(7, None, Wanted::default());
        (asked.clone(), Box::new(Reporter::new(inbox.clone(), asked)))
    }

    #[test]
    fn a_request_ends_once_whoever_is_first() {
        let inbox = Arc::new(Inbox::default());
        let answer = || Ok(InferResponse { model_name: "answer".to_owned(), ..InferResponse::default() });
        let refused = || Err("refused".to_owned());

        let (request, mut client) = asked(&inbox);
        client.part(Tensor::from_f32("part", &[0], &[]));
        client.end(answer());
        inbox.handed_over(&request, Ok(()));
        assert_eq!(said(&inbox), ["7: part", "7: answer"], "it may be over before the hand-over comes back");

        let (request, client) = asked(&inbox);
        drop(client);
        inbox.handed_over(&request, refused());
        assert_eq!(said(&inbox), ["7: refused"]);

        let (request, client) = asked(&inbox);
        inbox.handed_over(&request, refused());
        drop(client);
        assert_eq!(said(&inbox), ["7: refused"]);

        let (request, client) = asked(&inbox);
        inbox.handed_over(&request, refused());
        client.end(answer());
        assert_eq!(said(&inbox), ["7: refused"]);

        for early in [true, false] {
            let (request, client) = asked(&inbox);
            let client = (!early).then_some(client);
            inbox.handed_over(&request, Ok(()));
            drop(client);
            assert_eq!(said(&inbox), [format!("7: {}", stopped())], "given up without a word");
        }
    }

    #[test]
    fn no_more_than_so_many_are_open_until_nobody_prints() {
        let inbox = Inbox::default();
        assert!(inbox.open(2) && inbox.open(2));
        std::thread::scope(|scope| {
            let third = scope.spawn(|| inbox.open(2));
            inbox.close();
            assert!(third.join().unwrap());
            let fourth = scope.spawn(|| inbox.open(2));
            drop(inbox.printing());
            assert!(!fourth.join().unwrap());
        });
    }
}

//! A call on its way through the host: counted while it runs, bounded by what its model and tenant may have in flight (see `waiting` for what is
//! beyond that), ended by its deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cellwright_cell_graph::Tensor;
use cellwright_engine::{RequestFailure, RequestTimes, Urgency};
use cellwright_protocol::{InferRequest, InferResponse};
use tracing::Span;

use crate::answer_room::AnswerShare;
use crate::catalog::Deployed;
use crate::deadlines::{Deadline, Deadlines};
use crate::error::{InferError, Whose};
use crate::reply::{Client, Delivery};
use crate::waiting;

/// A call, as a front end hands it over.
#[derive(Debug)]
pub struct Call {
    /// What is asked.
    pub request: InferRequest,
    /// How streamed outputs are wanted.
    pub delivery: Delivery,
    /// When it came: its timeout counts from then, and so does what is told of how long it took.
    pub since: Instant,
    /// How long its client waits for it.
    pub timeout: Option<Duration>,
    /// Its rank: 1 goes first; 0 is the default, and goes last.
    pub priority: u32,
}

impl Call {
    /// Of the protocol's priorities 1 is the highest; 0, the default, comes after all others. Of ranks 0 goes first.
    pub(crate) const fn rank(&self) -> u32 {
        self.priority.wrapping_sub(1)
    }

    /// With the time by which it has to be answered.
    pub(crate) const fn urgency(&self, deadline: Option<Instant>) -> Urgency {
        Urgency { rank: self.rank(), deadline }
    }
}

/// One call's place among those in flight; when it is dropped, it is given back and goes to whoever waits for it.
#[derive(Debug)]
pub(crate) struct Place(Option<Arc<Deployed>>);

// These counters and a line's are read in the order in which they are changed, so that nobody comes to wait for a place that has been given back.
fn enter(counter: &AtomicU32, max: u32) -> bool {
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| (count < max).then_some(count + 1)).is_ok()
}

impl Place {
    /// Takes a place in the model's and in its tenant's count.
    pub(crate) fn take(deployed: &Arc<Deployed>) -> Result<Self, InferError> {
        let entry = &deployed.entry;
        let tenant_max = entry.tenant.bounds.in_flight_max();
        if !enter(&entry.tenant.in_flight, tenant_max) {
            return Err(InferError::TooMany { whose: Whose::Tenant, limit: tenant_max });
        }
        let model_max = entry.bounds.in_flight_max();
        if !enter(&entry.in_flight, model_max) {
            entry.tenant.in_flight.fetch_sub(1, Ordering::SeqCst);
            return Err(InferError::TooMany { whose: Whose::Model, limit: model_max });
        }
        deployed.figures.in_flight.fetch_add(1, Ordering::Relaxed);
        Ok(Self(Some(deployed.clone())))
    }

    /// Gives it back for whoever looks next.
    pub(crate) fn leave(mut self) {
        drop(self.give_back());
    }

    fn give_back(&mut self) -> Option<Arc<Deployed>> {
        let deployed = self.0.take()?;
        deployed.entry.in_flight.fetch_sub(1, Ordering::SeqCst);
        deployed.entry.tenant.in_flight.fetch_sub(1, Ordering::SeqCst);
        deployed.figures.in_flight.fetch_sub(1, Ordering::Relaxed);
        Some(deployed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(deployed) = self.give_back() {
            waiting::go_on(&deployed.entry.tenant);
        }
    }
}

/// What is known of a call when it is taken.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) started: Instant,
    /// When its client will not wait any longer.
    pub(crate) until: Option<Instant>,
    pub(crate) priority: u32,
    /// The span of whoever hands it over, in which its end is told.
    pub(crate) span: Span,
}

/// Stands between a request and its client: counts, and tells a client whose time was up why.
pub(crate) struct Tracked {
    client: Option<Box<dyn Client>>,
    deployed: Arc<Deployed>,
    taken: Taken,
    seen: Seen,
    deadline: Option<(Arc<Deadlines>, Arc<Deadline>)>,
    /// Once it has one.
    place: Option<Place>,
}

/// How the requests of a call fared in the engine.
#[derive(Debug, Default)]
struct Seen {
    requests: u64,
    replays: u64,
    submitted: Option<Instant>,
    first_task: Option<Instant>,
    finished: Option<Instant>,
    joins: u64,
    joined_rows: u64,
    batch_max: u32,
}

impl Seen {
    fn add(&mut self, times: &RequestTimes) {
        self.requests += 1;
        self.submitted = self.submitted.into_iter().chain([times.submitted]).min();
        self.first_task = self.first_task.into_iter().chain(times.first_task).min();
        self.finished = self.finished.max(Some(times.finished));
        self.joins += u64::from(times.joins);
        self.joined_rows += times.joined_rows;
        self.batch_max = self.batch_max.max(times.batch_max);
    }

    /// Rows of the batches that its cells ran in, on average.
    fn batch_mean(&self) -> Option<f64> {
        (self.joins > 0).then(|| self.joined_rows as f64 / self.joins as f64)
    }
}

impl Tracked {
    pub(crate) fn new(
        client: Box<dyn Client>,
        deployed: &Arc<Deployed>,
        taken: Taken,
        deadline: Option<(Arc<Deadlines>, Arc<Deadline>)>,
    ) -> Self {
        Self { client: Some(client), deployed: deployed.clone(), taken, seen: Seen::default(), deadline, place: None }
    }

    /// Its place, which it keeps until its end.
    pub(crate) fn take(&mut self, place: Place) {
        self.place = Some(place);
    }

    pub(crate) const fn deployed(&self) -> &Arc<Deployed> {
        &self.deployed
    }

    /// When its time is up.
    pub(crate) const fn until(&self) -> Option<Instant> {
        self.taken.until
    }

    fn is_late(&self) -> bool {
        self.until().is_some_and(|until| until <= Instant::now())
    }

    /// It has waited in line until then.
    pub(crate) fn waited(&self, until: Instant) {
        self.deployed.figures.calls.waited(until.saturating_duration_since(self.taken.started));
    }

    /// Tells its client how it ended, and gives its place back.
    pub(crate) fn over(mut self, result: Result<InferResponse, InferError>) {
        let Some(client) = self.client.take() else { return };
        let mut result = result;
        if let Some((deadlines, deadline)) = self.deadline.take() {
            deadlines.leave(&deadline);
        }
        if was_cancelled(&result)
            && let Some(why) = client.given_up()
        {
            result = Err(why);
        } else if self.is_late() && (result.is_ok() || was_cancelled(&result)) {
            // Whether an answer was there a moment before the clock looked is nothing a client should have to reckon with.
            result = Err(InferError::Late);
        }
        let (figures, took) = (&self.deployed.figures.calls, self.taken.started.elapsed());
        match &mut result {
            Ok(response) => {
                figures.answered(took, self.seen.requests.max(1));
                response.model_version = Some(self.deployed.version_text().to_owned());
            }
            Err(error) => figures.failed(error.kind(), took),
        }
        self.log(result.as_ref().err());
        client.end(result);
    }

    /// A call's timeline, in microseconds since it was admitted; nothing of what it carried.
    fn log(&self, error: Option<&InferError>) {
        let since = |moment: Option<Instant>| {
            let passed = moment.map(|moment| moment.saturating_duration_since(self.taken.started));
            passed.map(|passed| u64::try_from(passed.as_micros()).unwrap_or(u64::MAX))
        };
        let seen = &self.seen;
        tracing::debug!(
            name: "call",
            parent: &self.taken.span,
            tenant = %self.deployed.tenant(),
            model = self.deployed.name(),
            version = self.deployed.version(),
            priority = self.taken.priority,
            requests = seen.requests,
            replays = seen.replays,
            unfolded_us = since(seen.submitted),
            first_cell_us = since(seen.first_task),
            last_cell_us = since(seen.finished),
            replied_us = since(Some(Instant::now())),
            batch_mean = seen.batch_mean(),
            batch_max = seen.batch_max,
            error_kind = error.map(|error| tracing::field::debug(error.kind())),
            error = error.map(tracing::field::display),
            "a call has ended"
        );
    }
}

fn was_cancelled(result: &Result<InferResponse, InferError>) -> bool {
    matches!(result, Err(InferError::Engine(RequestFailure::Cancelled)))
}

impl Client for Tracked {
    fn part(&mut self, part: Tensor) {
        if let Some(client) = self.client.as_mut() {
            client.part(part);
        }
    }

    fn ran(&mut self, times: &RequestTimes) {
        self.seen.add(times);
        self.deployed.figures.calls.ran(times);
    }

    fn replayed(&mut self) {
        self.seen.replays += 1;
        self.deployed.figures.calls.replayed();
    }

    fn given_up(&self) -> Option<InferError> {
        if self.is_late() {
            return Some(InferError::Late);
        }
        self.client.as_ref()?.given_up()
    }

    fn holds(&mut self, share: AnswerShare) {
        if let Some(client) = self.client.as_mut() {
            client.holds(share);
        }
    }

    fn end(self: Box<Self>, result: Result<InferResponse, InferError>) {
        self.over(result);
    }
}

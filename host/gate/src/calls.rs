//! The life of a call: it takes a place among those in flight, waits in its tenant's queue if there
//! is none, is unfolded, counted, bounded by its deadline, and gives its place back.
//!
//! A call that is dropped before its end is cancelled: it leaves the queue, or its requests are
//! cancelled. A plugin that is usually slow to unfold is called on a thread of its own, in turns by
//! tenant. Other plugins are called on the thread that polls the call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cellwright_engine::Urgency;
use cellwright_protocol::{InferRequest, InferResponse};
use cellwright_registry::{TenantName, TenantSettings};
use cellwright_serving::{
    Answer, AnswerWriter, CallTimes, Delivery, ErrorKind, InferError, Lateness, Observer, Patience, ServedModel, Serving, StartError,
};
use tracing::Span;

use crate::budget::RequestShare;
use crate::catalog::{Catalog, Deployed, ServerBounds};
use crate::deadlines::{DeadlineKey, Deadlines};
use crate::error::Error;
use crate::handover::keeping;
use crate::limiter::{TenantLimiter, WorkPermit};
use crate::limits::{Limit, LimitReached};
use crate::plugin_log::REQUEST_BYTES_MAX;
use crate::queue;
use crate::reading::LARGE;
use crate::retired::RetiredVersions;

/// A plugin that usually takes longer to unfold a call is called on a thread of its own, so that it
/// delays no other connection.
const UNFOLD_QUICK_MAX: Duration = Duration::from_millis(1);

/// A call, or a part of a session, as a transport hands it over.
#[derive(Debug)]
pub struct Call {
    /// What is asked.
    pub request: InferRequest,
    /// How streamed outputs are wanted. A session sends all of them as they come.
    pub delivery: Delivery,
    /// When it came: its timeout counts from then, and so does what is told of how long it took.
    pub since: Instant,
    /// How long its client waits for it.
    pub timeout: Option<Duration>,
    /// 1 goes first; 0 is the default, and goes last.
    pub priority: u32,
    /// What it holds of the host's memory until it has ended, or the part has run.
    pub share: Option<RequestShare>,
    /// The name by which its client is told of it, unless the request has an id.
    pub name: Arc<str>,
}

impl Call {
    /// A call that comes now, has no timeout and the lowest priority, and wants its answer whole.
    #[must_use]
    pub fn new(request: InferRequest) -> Self {
        Self { request, delivery: Delivery::Whole, since: Instant::now(), timeout: None, priority: 0, share: None, name: Arc::default() }
    }

    /// The id by which its client is told of it.
    pub(crate) fn id(&self) -> Arc<str> {
        let shown = |id: &str| Arc::from(&id[..id.floor_char_boundary(REQUEST_BYTES_MAX)]);
        self.request.id.as_deref().map_or_else(|| self.name.clone(), shown)
    }

    /// Of ranks 0 goes first.
    pub(crate) const fn rank(&self) -> u32 {
        self.priority.wrapping_sub(1)
    }

    pub(crate) fn patience(&self) -> Result<Patience, Error> {
        let until =
            self.timeout.map(|timeout| self.since.checked_add(timeout).ok_or_else(|| Error::Invalid("the timeout is too long".to_owned())));
        Ok(Patience { since: self.since, until: until.transpose()? })
    }

    pub(crate) fn input_bytes(&self) -> u64 {
        self.request.inputs.iter().map(|tensor| tensor.data.len() as u64).sum()
    }
}

/// A call's place among those in flight. When it is dropped, it goes to the next call of the queue.
#[derive(Debug)]
pub(crate) struct InFlight(Option<Arc<Deployed>>);

/// A place in flight, and a permit to begin on a thread of its own where that is needed.
pub(crate) type Place = (InFlight, Option<WorkPermit>);

// These counters and a queue's are read in the order in which they are changed, so that no call
// waits for a place that has been given back.
fn enter(counter: &AtomicU32, max: u32) -> bool {
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| (count < max).then_some(count + 1)).is_ok()
}

impl InFlight {
    /// Takes a place in the model's and in its tenant's count.
    pub(crate) fn take(deployed: &Arc<Deployed>) -> Result<Self, LimitReached> {
        let entry = &deployed.entry;
        let tenant_max = entry.tenant.bounds.in_flight_max();
        if !enter(&entry.tenant.in_flight, tenant_max) {
            return Err(Limit::TenantInFlight.reached(u64::from(tenant_max)));
        }
        let model_max = entry.bounds.in_flight_max();
        if !enter(&entry.in_flight, model_max) {
            entry.tenant.in_flight.fetch_sub(1, Ordering::SeqCst);
            return Err(Limit::ModelInFlight.reached(u64::from(model_max)));
        }
        deployed.figures.in_flight.fetch_add(1, Ordering::Relaxed);
        Ok(Self(Some(deployed.clone())))
    }

    /// Gives it back, and leaves it to the caller to look for the next call.
    pub(crate) fn give_back(mut self) {
        drop(self.vacate());
    }

    fn vacate(&mut self) -> Option<Arc<Deployed>> {
        let deployed = self.0.take()?;
        deployed.entry.in_flight.fetch_sub(1, Ordering::SeqCst);
        deployed.entry.tenant.in_flight.fetch_sub(1, Ordering::SeqCst);
        deployed.figures.in_flight.fetch_sub(1, Ordering::Relaxed);
        Some(deployed)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(deployed) = self.vacate() {
            queue::begin_next(&deployed.entry.tenant);
        }
    }
}

/// Models that serve, and their calls. It knows no registry: its owner deploys versions here.
#[derive(Debug)]
pub struct Calls {
    // Dropped first: its requests hold versions, which hold nothing of what follows.
    pub(crate) serving: Serving,
    pub(crate) catalog: Catalog,
    pub(crate) deadlines: Arc<Deadlines>,
    pub(crate) draining: AtomicBool,
    slow_begins: Arc<TenantLimiter>,
    /// Bytes of a streamed answer that may wait for its reader.
    pub(crate) part_bytes_max: u64,
}

/// A call that has no place yet. If it never gets one, its end is counted and logged here.
pub(crate) struct Arriving<'a> {
    deployed: &'a Deployed,
    since: Instant,
    priority: u32,
    /// None: it goes on elsewhere.
    end: Option<(ErrorKind, String)>,
}

impl<'a> Arriving<'a> {
    pub(crate) fn new(deployed: &'a Deployed, since: Instant, priority: u32) -> Self {
        let left = InferError::left();
        Self { deployed, since, priority, end: Some((left.kind(), left.to_string())) }
    }

    /// It has a place, or ends with that error.
    pub(crate) fn ends(mut self, error: Option<&Error>) {
        self.end = error.map(|error| (error.kind(), error.to_string()));
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        if let Some((kind, error)) = self.end.take() {
            self.deployed.ended_before(kind, self.since);
            log_end(self.deployed, (self.since, self.priority), &Span::current(), Some((kind, &error)), &CallTimes::default());
        }
    }
}

impl Calls {
    pub(crate) fn new(
        serving: Serving,
        (model_in_flight_max, slow_begins_max, part_bytes_max): (u32, usize, u64),
    ) -> Result<Self, StartError> {
        let deadlines = Arc::new(Deadlines::start().map_err(StartError::Thread)?);
        let devices = serving.engine().devices().count() as u64;
        let retired = RetiredVersions::default();
        let catalog = Catalog::new(ServerBounds { clock: deadlines.clock(), devices, model_in_flight_max, retired });
        let slow_begins = Arc::new(TenantLimiter::new(Limit::TenantSlowBegins, slow_begins_max, Arc::default()));
        Ok(Self { serving, catalog, deadlines, draining: AtomicBool::new(false), slow_begins, part_bytes_max })
    }

    /// Calls of one model that serves without a registry. `part_bytes_max`: bytes of a streamed
    /// answer that may wait for its reader.
    ///
    /// # Errors
    /// If a thread cannot be had.
    pub fn of_one(serving: Serving, model: Arc<ServedModel>, part_bytes_max: u64) -> Result<(Arc<Self>, Arc<Deployed>), StartError> {
        let calls = Arc::new(Self::new(serving, (u32::MAX, 1, part_bytes_max))?);
        let tenant = calls.catalog.enter_tenant(&TenantName::default_tenant(), &TenantSettings::default());
        let deployed = Deployed::without_registry(&tenant, model);
        Ok((calls, deployed))
    }

    /// Takes a call and unfolds it. If its tenant or model has as many in flight as it may, or has
    /// used its share of the devices, it waits first.
    ///
    /// A call that waits stays with the version that it was given, whatever serves meanwhile.
    /// Draining lets it begin and end.
    ///
    /// # Errors
    /// If the call is refused before its request is looked at. Later errors come through the answer.
    pub async fn call(self: &Arc<Self>, deployed: &Arc<Deployed>, mut call: Call) -> Result<Answer, Error> {
        let arriving = Arriving::new(deployed, call.since, call.priority);
        let arrived = self.arrive(deployed, &call).await;
        arriving.ends(arrived.as_ref().err());
        let ((in_flight, permit), patience) = arrived?;
        let (answer, mut writer) = Answer::new(self.part_bytes_max, patience);
        let deadline = patience.until.map(|at| (self.deadlines.clone(), self.deadlines.enter(at, answer.canceller())));
        let (deployed, priority, id, span) = (deployed.clone(), call.priority, call.id(), Span::current());
        let share = call.share.take();
        writer.observe(Box::new(CallRecord {
            deployed: deployed.clone(),
            patience,
            priority,
            id,
            span,
            deadline,
            share,
            _in_flight: in_flight,
        }));
        let Some(permit) = permit else {
            keeping(&deployed.entry.tenant, &self.slow_begins, || self.begin(&deployed, call, writer));
            return Ok(answer);
        };
        // The answer stays here: if the client leaves meanwhile, it is dropped, and nothing more of
        // the call is begun.
        let (calls, span) = (self.clone(), Span::current());
        let begun = tokio::task::spawn_blocking(move || {
            span.in_scope(|| calls.begin(&deployed, call, writer));
            drop(permit);
        });
        begun.await.map_err(Error::internal)?;
        Ok(answer)
    }

    pub(crate) fn check_not_draining(&self) -> Result<(), Error> {
        if self.draining.load(Ordering::Acquire) { Err(Error::Draining) } else { Ok(()) }
    }

    /// Waits for a place in flight, and for a thread where the plugin is usually slow or the request
    /// is large.
    pub(crate) async fn arrive(&self, deployed: &Arc<Deployed>, call: &Call) -> Result<(Place, Patience), Error> {
        self.check_not_draining()?;
        let patience = call.patience()?;
        Ok((within(patience, self.admit(deployed, call)).await?, patience))
    }

    async fn admit(&self, deployed: &Arc<Deployed>, call: &Call) -> Result<Place, Error> {
        let has_long = deployed.entry.tenant.long_begins.load(Ordering::Relaxed) > 0;
        // To look at inputs, to copy them or to drop them takes as long as they are large.
        let is_large = call.request.inputs.len() > deployed.description().inputs.len() || call.input_bytes() > LARGE as u64;
        if deployed.unfold_usual() <= UNFOLD_QUICK_MAX && !has_long && !is_large {
            return Ok((take_in_flight(deployed, call).await?, None));
        }
        // Calls that wait for a thread take no place from others. A call that waits for a place
        // takes no thread.
        let permit = self.slow_begins.take(deployed.tenant()).await?;
        if let Some(in_flight) = take_at_once(deployed) {
            return Ok((in_flight, Some(permit)));
        }
        drop(permit);
        let in_flight = queue::wait(deployed, call.rank(), call.input_bytes()).await?;
        Ok((in_flight, Some(self.slow_begins.take(deployed.tenant()).await?)))
    }

    /// Unfolds a call on this thread, and submits its requests.
    fn begin(&self, deployed: &Arc<Deployed>, call: Call, writer: Box<AnswerWriter>) {
        let begun = Instant::now();
        deployed.figures.calls.record_wait(begun.saturating_duration_since(call.since));
        if let Some(error) = writer.given_up() {
            return writer.end(Err(error));
        }
        let urgency = Urgency { rank: call.rank(), deadline: writer.patience().until, is_session: false };
        let taken = self.serving.begin(&deployed.served, (call.request, urgency), call.delivery, writer);
        let took = begun.elapsed();
        // A plugin that only fails keeps its caller's thread as well.
        deployed.unfold_usual.record(took);
        if taken {
            deployed.figures.calls.record_unfold(took);
        }
    }
}

/// Waits no longer than a client does.
pub(crate) async fn within<T>(patience: Patience, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let Some(until) = patience.until else { return work.await };
    tokio::time::timeout_at(until.into(), work).await.unwrap_or_else(|_| {
        let lateness = Lateness { timeout: patience.timeout(), waited: patience.since.elapsed(), ran: None };
        Err(InferError::Late(lateness).into())
    })
}

/// A place for a call, now or in its turn.
pub(crate) async fn take_in_flight(deployed: &Arc<Deployed>, call: &Call) -> Result<InFlight, Error> {
    match take_at_once(deployed) {
        Some(in_flight) => Ok(in_flight),
        None => queue::wait(deployed, call.rank(), call.input_bytes()).await,
    }
}

/// A place, if there is one. No call overtakes those that wait, unless it has a higher priority.
fn take_at_once(deployed: &Arc<Deployed>) -> Option<InFlight> {
    (deployed.entry.tenant.queue.len() == 0).then(|| deployed.take_in_flight().ok())?
}

/// Counts and logs a call when it ends, and holds its place until then.
struct CallRecord {
    deployed: Arc<Deployed>,
    patience: Patience,
    priority: u32,
    id: Arc<str>,
    /// The span in which the call came. Its end is told there.
    span: Span,
    deadline: Option<(Arc<Deadlines>, DeadlineKey)>,
    share: Option<RequestShare>,
    /// Given back when the answer can be read.
    _in_flight: InFlight,
}

impl Observer for CallRecord {
    fn ended(&mut self, result: &mut Result<InferResponse, InferError>, times: &CallTimes) {
        if let Some((deadlines, deadline)) = self.deadline.take() {
            deadlines.take_back(deadline);
        }
        // A client that reads the answer finds it given back.
        self.share = None;
        let (figures, took) = (&self.deployed.figures.calls, self.patience.since.elapsed());
        figures.record_requests(times);
        match result {
            Ok(response) => {
                figures.record_answer(took, times.requests.max(1));
                response.model_version = Some(self.deployed.version_text().to_owned());
            }
            Err(error) => figures.record_failure(error.kind(), took),
        }
        let error = result.as_ref().err().map(|error| (error.kind(), error.to_string()));
        let error = error.as_ref().map(|(kind, error)| (*kind, error.as_str()));
        self.deployed.keep_failure(&self.id, error);
        log_end(&self.deployed, (self.patience.since, self.priority), &self.span, error, times);
    }
}

/// A call's timeline, in microseconds since it came; nothing of what it carried.
pub(crate) fn log_end(
    deployed: &Deployed,
    (came, priority): (Instant, u32),
    span: &Span,
    error: Option<(ErrorKind, &str)>,
    times: &CallTimes,
) {
    let since = |moment: Option<Instant>| {
        let passed = moment.map(|moment| moment.saturating_duration_since(came));
        passed.map(|passed| u64::try_from(passed.as_micros()).unwrap_or(u64::MAX))
    };
    tracing::debug!(
        name: "call",
        parent: span,
        tenant = %deployed.tenant(),
        model = deployed.name(),
        version = deployed.version(),
        priority,
        requests = times.requests,
        replays = times.replays,
        unfolded_us = since(times.submitted),
        first_cell_us = since(times.first_task),
        last_cell_us = since(times.finished),
        replied_us = since(Some(Instant::now())),
        batch_mean = times.batch_mean(),
        batch_max = times.batch_max,
        error_kind = error.map(|(kind, _)| tracing::field::debug(kind)),
        error = error.map(|(_, error)| error),
        "a call has ended"
    );
}

//! Sessions: calls whose inputs keep arriving.
//!
//! A session is admitted once, against bounds on its tenant's open sessions and their bytes. Each
//! of its parts takes a place, a turn in the queue, a deadline and a share of the devices while it
//! runs, as a call does. An idle session holds none of these. Parts run one after the other: a part
//! has run when its plugin waits for the next one and has all values that its graph delivers. Cells
//! whose values nothing reads may still run then.
//!
//! A session ends with the first part that fails, when its client says that no part will follow, or
//! when its client leaves.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cellwright_engine::{RequestFailure, Urgency};
use cellwright_protocol::InferResponse;
use cellwright_serving::{Answer, CallTimes, InferError, Lateness, Observer, Patience, Session};
use tokio::sync::mpsc::Receiver;
use tracing::Span;

use crate::budget::RequestShare;
use crate::calls::{Arriving, Call, Calls, InFlight, Place, log_end, take_in_flight, within};
use crate::catalog::Deployed;
use crate::error::Error;
use crate::limits::{Limit, LimitReached};

/// What the open sessions of a tenant hold.
#[derive(Debug, Default)]
pub(crate) struct OpenSessions {
    count: AtomicU32,
    bytes: AtomicU64,
}

/// One session's place among those that are open, and the bytes of its inputs.
struct Admitted {
    deployed: Arc<Deployed>,
    bytes: u64,
}

impl Admitted {
    fn new(deployed: &Arc<Deployed>) -> Result<Self, LimitReached> {
        let max = Limit::TenantSessions.default();
        let open = &deployed.entry.tenant.sessions.count;
        let taken = open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (u64::from(count) < max).then_some(count + 1));
        taken.map_err(|_| Limit::TenantSessions.reached(max))?;
        Ok(Self { deployed: deployed.clone(), bytes: 0 })
    }

    /// Holds so many bytes from now on. To hold less always succeeds.
    fn hold(&mut self, bytes: u64) -> Result<(), LimitReached> {
        let (max, before) = (Limit::TenantSessionBytes.default(), self.bytes);
        let changed = |held: u64| {
            let sum = held.saturating_sub(before).saturating_add(bytes);
            (bytes <= before || sum <= max).then_some(sum)
        };
        let held = &self.deployed.entry.tenant.sessions.bytes;
        held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed).map_err(|_| Limit::TenantSessionBytes.reached(max))?;
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        // To hold less always succeeds.
        let _ = self.hold(0);
        self.deployed.entry.tenant.sessions.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts and tells how a session ended. Its parts are counted when they have run.
struct SessionRecord {
    deployed: Arc<Deployed>,
    since: Instant,
    priority: u32,
    id: Arc<str>,
    span: Span,
    /// Set if the session ends with an error.
    failed: Arc<AtomicBool>,
}

impl Observer for SessionRecord {
    fn ended(&mut self, result: &mut Result<InferResponse, InferError>, times: &CallTimes) {
        let error = match result {
            Ok(response) => {
                response.model_version = Some(self.deployed.version_text().to_owned());
                None
            }
            Err(error) => {
                self.failed.store(true, Ordering::Release);
                self.deployed.ended_before(error.kind(), self.since);
                Some((error.kind(), error.to_string()))
            }
        };
        let error = error.as_ref().map(|(kind, error)| (*kind, error.as_str()));
        self.deployed.keep_failure(&self.id, error);
        log_end(&self.deployed, (self.since, self.priority), &self.span, error, times);
    }
}

impl Calls {
    /// Opens a session with its first part. The other parts come through the channel, which is
    /// closed when no part will follow. Parts of the answer can be read as they come.
    ///
    /// # Errors
    /// If the session is not admitted. Later errors come through the answer.
    pub async fn session(self: &Arc<Self>, deployed: &Arc<Deployed>, mut first: Call, parts: Receiver<Call>) -> Result<Answer, Error> {
        let arriving = Arriving::new(deployed, first.since, first.priority);
        let arrived = self.open(deployed, &first).await;
        arriving.ends(arrived.as_ref().err());
        let (admitted, ((in_flight, permit), patience)) = arrived?;
        let (answer, mut writer) = Answer::new(self.part_bytes_max, Patience { since: first.since, until: None });
        let failed = Arc::<AtomicBool>::default();
        let record = SessionRecord {
            deployed: deployed.clone(),
            since: first.since,
            priority: first.priority,
            id: first.id(),
            span: Span::current(),
            failed: failed.clone(),
        };
        writer.observe(Box::new(record));
        let urgency = Urgency { rank: first.rank(), deadline: None, is_session: true };
        let share = first.share.take();
        let calls = self.clone();
        // What the part takes stays with its work, also if the client leaves meanwhile.
        let begun = tokio::task::spawn_blocking(move || {
            let session = calls.serving.begin_session(&admitted.deployed.served, (first.request, urgency), writer);
            drop(permit);
            let (part_time_max, calls) = (calls.serving.engine().request_time_max(), Arc::downgrade(&calls));
            session.map(|session| (Driver { session, admitted, calls, failed, part_time_max }, (in_flight, share, patience)))
        });
        if let Some((driver, first)) = begun.await.map_err(Error::internal)? {
            tokio::spawn(driver.run(first, parts));
        }
        Ok(answer)
    }

    async fn open(&self, deployed: &Arc<Deployed>, first: &Call) -> Result<(Admitted, (Place, Patience)), Error> {
        let mut admitted = Admitted::new(deployed)?;
        admitted.hold(first.input_bytes())?;
        Ok((admitted, self.arrive(deployed, first).await?))
    }
}

/// Feeds a session its parts.
struct Driver {
    session: Session,
    admitted: Admitted,
    /// An idle session does not keep its host.
    calls: Weak<Calls>,
    failed: Arc<AtomicBool>,
    /// How long a part may run; none: no bound.
    part_time_max: Option<Duration>,
}

impl Driver {
    async fn run(mut self, first: (InFlight, Option<RequestShare>, Patience), mut parts: Receiver<Call>) {
        self.ran(first).await;
        while !self.session.is_over() {
            // An idle session waits for its client and holds nothing of the host's but its memory.
            let part = tokio::select! {
                part = parts.recv() => part,
                () = self.session.wait_until_over() => return,
            };
            let Some(part) = part else {
                // The end of the input asks for no place: nothing may refuse an answer that has
                // been computed.
                self.session.finish();
                return self.session.wait_until_over().await;
            };
            match self.feed(part).await {
                // It ended by itself before the part came.
                Ok(()) | Err(InferError::SessionOver) => {}
                Err(error) => self.session.fail(error),
            }
        }
    }

    /// Waits until a part has run, and counts it.
    async fn ran(&mut self, (in_flight, share, patience): (InFlight, Option<RequestShare>, Patience)) {
        let idle = async {
            self.session.wait_until_idle().await;
            Ok(())
        };
        let ran = within(patience, idle);
        let ran = match self.part_time_max {
            Some(max) => tokio::time::timeout(max, ran).await.unwrap_or(Err(InferError::Engine(RequestFailure::Overdue { max }).into())),
            None => ran.await,
        };
        match ran {
            Ok(()) if self.failed.load(Ordering::Acquire) => {}
            Ok(()) => self.admitted.deployed.figures.calls.record_answer(patience.since.elapsed(), 1),
            Err(Error::Infer(error @ InferError::Engine(RequestFailure::Overdue { .. }))) => self.session.fail(error),
            Err(_) => {
                let lateness = Lateness { timeout: patience.timeout(), waited: Duration::ZERO, ran: Some(patience.since.elapsed()) };
                self.session.fail(InferError::Late(lateness));
            }
        }
        drop((in_flight, share));
        // It keeps no more than it held.
        let _ = self.admitted.hold(self.session.kept_bytes());
    }

    async fn feed(&mut self, part: Call) -> Result<(), InferError> {
        let calls = self.calls.upgrade().ok_or(InferError::Engine(RequestFailure::Stopped))?;
        calls.check_not_draining().map_err(refused)?;
        drop(calls);
        self.admitted.hold(self.session.kept_bytes().saturating_add(part.input_bytes())).map_err(|reached| refused(reached.into()))?;
        let (deployed, patience) = (&self.admitted.deployed, part.patience().map_err(refused)?);
        let in_flight = tokio::select! {
            in_flight = within(patience, take_in_flight(deployed, &part)) => in_flight.map_err(refused)?,
            () = self.session.wait_until_over() => return Err(InferError::SessionOver),
        };
        self.session.push(part.request).await?;
        self.ran((in_flight, part.share, patience)).await;
        Ok(())
    }
}

/// The end of a session of which a part was refused.
fn refused(error: Error) -> InferError {
    match error {
        Error::Infer(error) => error,
        error => InferError::Refused { kind: error.kind(), sentence: error.to_string() },
    }
}

//! Calls that wait because their tenant or their model has as many in flight as it may, or has had its share of the devices.
//!
//! Each tenant has a line. Those of higher priority stand first in it, then those that came first; whoever's model has no room lets others pass.
//! A call in line holds its request and its version, and no thread: whoever gives a place back hands the next one to the threads on which plugins
//! are called, which unfold it. The lock of a line is held for looking and moving only: never while a plugin, a client or the engine is called.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use cellwright_cell_graph::Tensor;
use cellwright_engine::{RequestFailure, RequestTimes, SubmitError};
use cellwright_protocol::InferResponse;

use crate::answer_room::AnswerShare;
use crate::calls::{Call, Place, Tracked};
use crate::catalog::{ModelEntry, TenantEntry};
use crate::deadlines::Clock;
use crate::error::{InferError, Whose};
use crate::plugin_threads::{NotTaken, PluginCalls};
use crate::reply::Client;
use crate::request::Running;
use crate::serving::Inner;

/// Bytes of inputs that one tenant's waiting calls may hold together.
const BYTES_MAX: u64 = 256 << 20;
/// The clock is asked no more often than the first, and no less often than the second, whether a tenant may use the devices again.
const SHARE_WAIT_MIN: Duration = Duration::from_millis(1);
const SHARE_WAIT_MAX: Duration = Duration::from_secs(1);

/// What beginning a call takes when its client's thread is gone.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// For plugin threads only, as a request's own (see `request`).
    pub(crate) serving: Weak<Inner>,
    pub(crate) plugin_calls: PluginCalls,
    pub(crate) clock: Clock,
    /// Devices, of which tenants may have shares.
    pub(crate) devices: u64,
    /// Calls that one model may have in flight, unless it asks for fewer.
    pub(crate) model_in_flight_max: u32,
}

/// Where a call stands: by model, then by rank, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    model: u32,
    order: (u32, u64),
}

/// The calls of one tenant that wait.
#[derive(Debug, Default)]
pub(crate) struct Line {
    state: Mutex<State>,
    /// Those that wait and those that are about to. Whoever gives a place back looks here, so it is raised before room is looked for.
    count: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    models: BTreeMap<u32, ModelLine>,
    arrivals: u64,
    bytes: u64,
    /// When the clock will look at this line next.
    watched: Option<Instant>,
}

#[derive(Debug)]
struct ModelLine {
    entry: Arc<ModelEntry>,
    calls: BTreeMap<(u32, u64), Waiting>,
}

/// A call in line.
pub(crate) struct Waiting {
    call: Call,
    tracked: Box<Tracked>,
    bytes: u64,
    ticket: Arc<Ticket>,
}

/// What the client of a waiting call holds: the means to leave.
#[derive(Debug)]
pub(crate) struct Ticket {
    tenant: Weak<TenantEntry>,
    turn: Turn,
    stage: Mutex<Stage>,
}

#[derive(Debug)]
enum Stage {
    /// It waits, or is on its way.
    Before,
    /// Nobody wants it any more.
    Unwanted,
    Begun(Running),
}

/// What became of a call that came to a line.
pub(crate) enum Joined {
    /// There was room after all: its client's thread may begin it.
    Now(Call, Box<Tracked>),
    Waits(Arc<Ticket>),
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("turn", &self.ticket.turn).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Line {
    /// Calls that wait.
    pub(crate) fn len(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    fn push(&self, state: &mut State, call: Call, tracked: Box<Tracked>) -> Arc<Ticket> {
        state.arrivals += 1;
        let entry = &tracked.deployed().entry;
        let turn = Turn { model: entry.number, order: (call.rank(), state.arrivals) };
        let ticket = Arc::new(Ticket { tenant: Arc::downgrade(&entry.tenant), turn, stage: Mutex::new(Stage::Before) });
        let bytes = call.request.inputs.iter().map(|tensor| tensor.data.len() as u64).sum();
        // Whoever gives a place back from now on finds this call; what was given back before is found by whoever looks for room next.
        self.count.fetch_add(1, Ordering::SeqCst);
        tracked.deployed().figures.queued.fetch_add(1, Ordering::Relaxed);
        state.bytes = state.bytes.saturating_add(bytes);
        let line = state.models.entry(turn.model).or_insert_with(|| ModelLine { entry: entry.clone(), calls: BTreeMap::new() });
        line.calls.insert(turn.order, Waiting { call, tracked, bytes, ticket: ticket.clone() });
        ticket
    }

    /// Whether more wait than may, of the model or of the tenant.
    fn full(&self, state: &State, entry: &ModelEntry) -> Option<InferError> {
        let limit = entry.tenant.bounds.queued_max();
        if self.len() > limit {
            return Some(InferError::TooManyWait { whose: Whose::Tenant, limit });
        }
        let (limit, wait) = (entry.bounds.queued_max(), state.models.get(&entry.number).map_or(0, |line| line.calls.len()));
        if wait > limit as usize {
            return Some(InferError::TooManyWait { whose: Whose::Model, limit });
        }
        (state.bytes > BYTES_MAX).then_some(InferError::TooMuchWaits { limit: BYTES_MAX })
    }

    /// Takes a call out of the line, if it still stands there.
    fn leave(&self, turn: Turn) -> Option<Waiting> {
        let mut state = lock(&self.state);
        self.remove(&mut state, turn)
    }

    fn remove(&self, state: &mut State, turn: Turn) -> Option<Waiting> {
        let line = state.models.get_mut(&turn.model)?;
        let waiting = line.calls.remove(&turn.order)?;
        waiting.tracked.deployed().figures.queued.fetch_sub(1, Ordering::Relaxed);
        if line.calls.is_empty() {
            state.models.remove(&turn.model);
        }
        state.bytes -= waiting.bytes;
        self.count.fetch_sub(1, Ordering::SeqCst);
        Some(waiting)
    }

    /// Takes out whoever may begin now, each with its place.
    fn pick(&self, state: &mut State, tenant: &Arc<TenantEntry>) -> Vec<(Waiting, Place)> {
        let mut picked = Vec::new();
        if state.models.is_empty() {
            return picked;
        }
        let now = Instant::now();
        if let Err(used) = tenant.check_share(now) {
            state.watch(tenant, used.wait);
            return picked;
        }
        let waits: Vec<(u32, Duration)> =
            state.models.iter().filter_map(|(model, line)| Some((*model, line.entry.check_share(now).err()?.wait))).collect();
        while tenant.in_flight.load(Ordering::SeqCst) < tenant.bounds.in_flight_max()
            && let Some((turn, place)) = state.first_with_room(&waits)
        {
            picked.extend(self.remove(state, turn).map(|waiting| (waiting, place)));
        }
        if let Some(wait) = waits.iter().map(|(_, wait)| *wait).min() {
            state.watch(tenant, wait);
        }
        picked
    }
}

impl State {
    /// The first in line whose model and tenant have room, with the place that it takes. Models that wait for the devices are passed over.
    fn first_with_room(&self, wait: &[(u32, Duration)]) -> Option<(Turn, Place)> {
        let may_begin = |(model, _): &(&u32, &ModelLine)| wait.iter().all(|(waits, _)| waits != *model);
        let mut firsts: Vec<_> = self.models.iter().filter(may_begin).filter_map(|(_, line)| line.calls.first_key_value()).collect();
        firsts.sort_unstable_by_key(|(order, _)| **order);
        firsts.into_iter().find_map(|(_, first)| Some((first.ticket.turn, Place::take(first.tracked.deployed()).ok()?)))
    }

    /// Has the clock look at the line when the tenant, or a model of it, may use the devices again.
    fn watch(&mut self, tenant: &Arc<TenantEntry>, wait: Duration) {
        let at = Instant::now() + wait.clamp(SHARE_WAIT_MIN, SHARE_WAIT_MAX);
        if self.watched.is_none_or(|watched| at < watched) && tenant.beginning.clock.look_at(tenant, at) {
            self.watched = Some(at);
        }
    }
}

/// A call has come that could not begin at once: puts it in line, unless there is room by now or too many wait.
pub(crate) fn join(call: Call, tracked: Box<Tracked>) -> Result<Joined, InferError> {
    let deployed = tracked.deployed().clone();
    let (tenant, line) = (&deployed.entry.tenant, &deployed.entry.tenant.line);
    let mut state = lock(&line.state);
    let ticket = line.push(&mut state, call, tracked);
    let mut picked = line.pick(&mut state, tenant);
    let own = picked.iter().position(|(waiting, _)| Arc::ptr_eq(&waiting.ticket, &ticket)).map(|position| picked.remove(position));
    let full = if own.is_none() { line.full(&state, &deployed.entry) } else { None };
    let refused = full.and_then(|full| Some((line.remove(&mut state, ticket.turn)?, full)));
    drop(state);
    begin_all(tenant, picked);
    match (own, refused) {
        (Some((waiting, place)), _) => Ok(waiting.now(place)),
        (None, None) => Ok(Joined::Waits(ticket)),
        // Where nobody may wait, what there is too much of is not those that wait.
        (None, Some((waiting, InferError::TooManyWait { limit: 0, .. }))) => match deployed.enter() {
            Ok(place) => Ok(waiting.now(place)),
            Err(error) => {
                // Another model's call may have been turned away while this one tried.
                go_on(tenant);
                Err(error)
            }
        },
        (None, Some((_, full))) => Err(full),
    }
}

/// A place has been given back, or there may be more of them: begins whoever has waited for that.
pub(crate) fn go_on(tenant: &Arc<TenantEntry>) {
    if tenant.line.len() > 0 {
        let picked = tenant.line.pick(&mut lock(&tenant.line.state), tenant);
        begin_all(tenant, picked);
    }
}

/// The clock looks at a line, as [`State::watch`] asked.
pub(crate) fn look(tenant: &Arc<TenantEntry>) {
    {
        let mut state = lock(&tenant.line.state);
        // It may have been told to come earlier since, and has; what it was told first is of no use then.
        state.watched = state.watched.filter(|watched| Instant::now() < *watched);
    }
    go_on(tenant);
}

/// Nothing will begin any more: everybody in line hears it.
pub(crate) fn end_all(tenant: &TenantEntry) {
    let all: Vec<Waiting> = {
        let mut state = lock(&tenant.line.state);
        let turns = |(model, line): (&u32, &ModelLine)| -> Vec<Turn> {
            line.calls.keys().map(|order| Turn { model: *model, order: *order }).collect()
        };
        let turns: Vec<Turn> = state.models.iter().flat_map(turns).collect();
        turns.into_iter().filter_map(|turn| tenant.line.remove(&mut state, turn)).collect()
    };
    all.into_iter().for_each(|waiting| waiting.tracked.over(Err(InferError::Engine(RequestFailure::Stopped))));
}

/// Hands calls over to the threads that begin them. Where one cannot be, its client hears so and its place goes to the next.
fn begin_all(tenant: &Arc<TenantEntry>, mut picked: Vec<(Waiting, Place)>) {
    while !picked.is_empty() {
        let mut places_left = false;
        for (waiting, place) in picked {
            places_left |= !hand_over(tenant, waiting, place);
        }
        if !places_left {
            return;
        }
        picked = tenant.line.pick(&mut lock(&tenant.line.state), tenant);
    }
}

/// A call on its way to a plugin thread. If that never takes it, its client hears that the host has stopped.
struct HandedOver(Option<(Waiting, Place)>);

impl HandedOver {
    fn refuse(&mut self, error: InferError) {
        if let Some((waiting, place)) = self.0.take() {
            waiting.tracked.over(Err(error));
            place.leave();
        }
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        self.refuse(InferError::Engine(RequestFailure::Stopped));
    }
}

/// Whether a plugin thread will begin the call. If not, it has ended and its place is free.
fn hand_over(tenant: &Arc<TenantEntry>, waiting: Waiting, place: Place) -> bool {
    let whose = waiting.tracked.deployed().served.plugin_of();
    let beginning = tenant.beginning.clone();
    let handed = Arc::new(Mutex::new(HandedOver(Some((waiting, place)))));
    let job = {
        let handed = handed.clone();
        Box::new(move || {
            let taken = lock(&handed).0.take();
            if let Some((waiting, place)) = taken {
                waiting.begin(&beginning, place);
            }
        })
    };
    let error = match tenant.beginning.plugin_calls.call(whose, job) {
        Ok(()) => return true,
        Err(NotTaken::Full) => InferError::Submit(SubmitError::Full),
        Err(NotTaken::Gone) => InferError::Engine(RequestFailure::Stopped),
    };
    let mut refused = HandedOver(lock(&handed).0.take());
    refused.refuse(error);
    false
}

impl Waiting {
    fn now(self, place: Place) -> Joined {
        let mut tracked = self.tracked;
        tracked.take(place);
        Joined::Now(self.call, tracked)
    }

    /// On a plugin thread: what the client's thread would have done, had there been room.
    fn begin(self, beginning: &Beginning, place: Place) {
        let Self { call, mut tracked, ticket, .. } = self;
        tracked.take(place);
        if ticket.is_unwanted() {
            return tracked.over(Err(InferError::Engine(RequestFailure::Cancelled)));
        }
        let Some(serving) = beginning.serving.upgrade() else {
            return tracked.over(Err(InferError::Engine(RequestFailure::Stopped)));
        };
        let (deployed, begun) = (tracked.deployed().clone(), Instant::now());
        tracked.waited(begun);
        let urgency = call.urgency(tracked.until());
        let kept = Arc::new(Mutex::new(Some(tracked)));
        let client = Box::new(Lent(kept.clone(), ticket.clone()));
        let running = serving.begin(&deployed.served, (call.request, urgency), call.delivery, client);
        deployed.unfold_usual.took(begun.elapsed());
        match running {
            Ok(running) => {
                ticket.has_begun(running);
                deployed.figures.calls.unfolded(begun.elapsed());
            }
            Err(error) => {
                let tracked = lock(&kept).take();
                if let Some(tracked) = tracked {
                    tracked.over(Err(error));
                }
            }
        }
    }
}

/// A client that is lent to a request: if the request is refused, whoever lent it tells it why. It leaves by its ticket.
struct Lent(Arc<Mutex<Option<Box<Tracked>>>>, Arc<Ticket>);

impl Client for Lent {
    fn part(&mut self, part: Tensor) {
        if let Some(tracked) = lock(&self.0).as_mut() {
            tracked.part(part);
        }
    }

    fn ran(&mut self, times: &RequestTimes) {
        if let Some(tracked) = lock(&self.0).as_mut() {
            tracked.ran(times);
        }
    }

    fn replayed(&mut self) {
        if let Some(tracked) = lock(&self.0).as_mut() {
            tracked.replayed();
        }
    }

    fn given_up(&self) -> Option<InferError> {
        let given_up = lock(&self.0).as_ref().and_then(|tracked| tracked.given_up());
        given_up.or_else(|| self.1.is_unwanted().then(InferError::left))
    }

    fn holds(&mut self, share: AnswerShare) {
        if let Some(tracked) = lock(&self.0).as_mut() {
            tracked.holds(share);
        }
    }

    fn end(self: Box<Self>, result: Result<InferResponse, InferError>) {
        let tracked = lock(&self.0).take();
        if let Some(tracked) = tracked {
            tracked.over(result);
        }
    }
}

impl Ticket {
    fn is_unwanted(&self) -> bool {
        matches!(*lock(&self.stage), Stage::Unwanted)
    }

    fn has_begun(&self, running: Running) {
        let mut stage = lock(&self.stage);
        if matches!(*stage, Stage::Unwanted) {
            drop(stage);
            return running.cancel();
        }
        *stage = Stage::Begun(running);
    }

    /// Nobody wants the answer any more: a call that waits leaves the line at once. Never waits.
    pub(crate) fn cancel(&self) {
        let mut stage = lock(&self.stage);
        if let Stage::Begun(running) = &*stage {
            let running = running.clone();
            drop(stage);
            return running.cancel();
        }
        *stage = Stage::Unwanted;
        drop(stage);
        if let Some(waiting) = self.tenant.upgrade().and_then(|tenant| tenant.line.leave(self.turn)) {
            waiting.tracked.over(Err(InferError::Engine(RequestFailure::Cancelled)));
        }
    }
}

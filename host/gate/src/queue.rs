//! The queue of a tenant: calls that wait because their tenant or model has as many calls in flight
//! as it may, or has used its share of the devices.
//!
//! The queue is bounded in calls and in bytes. Higher priority goes first, then the older call;
//! calls of a model without room let others pass. A queued call holds its request and the version
//! that it found when it came, and no thread: its task waits for a place. A place that is given
//! back goes to the next call. The queue's lock is held for looking and moving only.
//!
//! A call whose task is dropped leaves the queue at once. Draining counts queued calls as begun.
//! For a tenant or model that has used its share (`bounds`), the clock looks again in time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cellwright_engine::RequestFailure;
use cellwright_serving::InferError;
use tokio::sync::oneshot;

use crate::calls::InFlight;
use crate::catalog::{Deployed, ModelEntry, TenantEntry};
use crate::error::Error;
use crate::limits::{Limit, LimitReached};

/// The clock looks no more often than the first, and no less often than the second, whether a
/// tenant may use the devices again.
const SHARE_WAIT_MIN: Duration = Duration::from_millis(1);
const SHARE_WAIT_MAX: Duration = Duration::from_secs(1);

/// A call's position: by model, then by rank, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    model: u32,
    order: (u32, u64),
}

/// The calls of one tenant that wait.
#[derive(Debug, Default)]
pub(crate) struct TenantQueue {
    calls: Mutex<QueuedCalls>,
    /// Calls that wait or are about to. A place that is given back looks here, so it is raised
    /// before the queue looks for room.
    count: AtomicU32,
}

#[derive(Debug, Default)]
struct QueuedCalls {
    models: BTreeMap<u32, ModelQueue>,
    arrivals: u64,
    bytes: u64,
    /// When the clock will look at this queue next.
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct ModelQueue {
    entry: Arc<ModelEntry>,
    calls: BTreeMap<(u32, u64), QueuedCall>,
}

#[derive(Debug)]
struct QueuedCall {
    deployed: Arc<Deployed>,
    bytes: u64,
    /// Where its task waits for a place.
    place: oneshot::Sender<InFlight>,
}

/// Takes a call out of the queue when its task is dropped.
struct LeaveOnDrop<'a> {
    queue: &'a TenantQueue,
    position: Position,
}

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        self.queue.remove(&mut self.queue.lock(), self.position);
    }
}

impl TenantQueue {
    /// Calls that wait.
    pub(crate) fn len(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, QueuedCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, calls: &mut QueuedCalls, rank: u32, call: QueuedCall) -> Position {
        calls.arrivals += 1;
        let entry = call.deployed.entry.clone();
        let position = Position { model: entry.number, order: (rank, calls.arrivals) };
        // A place that is given back from now on finds this call; one that was given back before is
        // found by `pick`.
        self.count.fetch_add(1, Ordering::SeqCst);
        call.deployed.figures.queued.fetch_add(1, Ordering::Relaxed);
        calls.bytes = calls.bytes.saturating_add(call.bytes);
        let model = calls.models.entry(position.model).or_insert_with(|| ModelQueue { entry, calls: BTreeMap::new() });
        model.calls.insert(position.order, call);
        position
    }

    /// Whether more wait than may, of the model or of the tenant.
    fn full(&self, calls: &QueuedCalls, entry: &ModelEntry) -> Option<LimitReached> {
        let max = entry.tenant.bounds.queued_max();
        if self.len() > max {
            return Some(Limit::TenantQueued.reached(u64::from(max)));
        }
        let (max, waiting) = (entry.bounds.queued_max(), calls.models.get(&entry.number).map_or(0, |model| model.calls.len()));
        if waiting > max as usize {
            return Some(Limit::ModelQueued.reached(u64::from(max)));
        }
        let max = Limit::TenantQueuedBytes.default();
        (calls.bytes > max).then_some(Limit::TenantQueuedBytes.reached(max))
    }

    /// Takes a call out of the queue, if it is still there.
    fn remove(&self, calls: &mut QueuedCalls, position: Position) -> Option<QueuedCall> {
        let model = calls.models.get_mut(&position.model)?;
        let call = model.calls.remove(&position.order)?;
        call.deployed.figures.queued.fetch_sub(1, Ordering::Relaxed);
        if model.calls.is_empty() {
            calls.models.remove(&position.model);
        }
        calls.bytes -= call.bytes;
        self.count.fetch_sub(1, Ordering::SeqCst);
        Some(call)
    }

    /// Takes out the calls that may begin now, each with its place.
    fn pick(&self, calls: &mut QueuedCalls, tenant: &Arc<TenantEntry>) -> Vec<(QueuedCall, InFlight)> {
        let mut picked = Vec::new();
        if calls.models.is_empty() {
            return picked;
        }
        let now = Instant::now();
        if let Err(used) = tenant.check_share(now) {
            calls.look_in(tenant, used.wait);
            return picked;
        }
        let waits: Vec<(u32, Duration)> =
            calls.models.iter().filter_map(|(number, model)| Some((*number, model.entry.check_share(now).err()?.wait))).collect();
        while tenant.in_flight.load(Ordering::SeqCst) < tenant.bounds.in_flight_max()
            && let Some((position, place)) = calls.first_with_room(&waits)
        {
            picked.extend(self.remove(calls, position).map(|call| (call, place)));
        }
        if let Some(wait) = waits.iter().map(|(_, wait)| *wait).min() {
            calls.look_in(tenant, wait);
        }
        picked
    }
}

impl QueuedCalls {
    /// The first call whose model and tenant have room, with the place that it takes. Models that
    /// wait for the devices are passed over.
    fn first_with_room(&self, waits: &[(u32, Duration)]) -> Option<(Position, InFlight)> {
        let may_begin = |(number, _): &(&u32, &ModelQueue)| waits.iter().all(|(waits, _)| waits != *number);
        let first = |(number, model): (&u32, &'_ ModelQueue)| {
            let (order, call) = model.calls.first_key_value()?;
            Some((*order, *number, call.deployed.clone()))
        };
        let mut firsts: Vec<_> = self.models.iter().filter(may_begin).filter_map(first).collect();
        firsts.sort_unstable_by_key(|(order, ..)| *order);
        firsts.into_iter().find_map(|(order, model, deployed)| Some((Position { model, order }, InFlight::take(&deployed).ok()?)))
    }

    /// Has the clock look at the queue when the tenant, or a model of it, may use the devices
    /// again.
    fn look_in(&mut self, tenant: &Arc<TenantEntry>, wait: Duration) {
        let at = Instant::now() + wait.clamp(SHARE_WAIT_MIN, SHARE_WAIT_MAX);
        if self.looked_at.is_none_or(|looked_at| at < looked_at) && tenant.server.clock.look_at(tenant, at) {
            self.looked_at = Some(at);
        }
    }
}

/// Waits for a place for a call that could not have one at once. Of ranks 0 goes first. `bytes`: of
/// its inputs.
///
/// # Errors
/// If too many calls wait, or the host has stopped.
pub(crate) async fn wait(deployed: &Arc<Deployed>, rank: u32, bytes: u64) -> Result<InFlight, Error> {
    let tenant = &deployed.entry.tenant;
    let (sender, place) = oneshot::channel();
    let _leaving = {
        let mut calls = tenant.queue.lock();
        let position = tenant.queue.push(&mut calls, rank, QueuedCall { deployed: deployed.clone(), bytes, place: sender });
        let picked = tenant.queue.pick(&mut calls, tenant);
        let full = tenant.queue.full(&calls, &deployed.entry);
        let refused = full.and_then(|full| Some((tenant.queue.remove(&mut calls, position)?, full)));
        drop(calls);
        hand_out(tenant, picked);
        match refused {
            None => LeaveOnDrop { queue: &tenant.queue, position },
            // Where no call may wait, the limit that counts is that of calls in flight.
            Some((_, LimitReached { limit: Limit::TenantQueued | Limit::ModelQueued, max: 0 })) => {
                return deployed.take_in_flight().map_err(|reached| {
                    // Another call may have been refused for the place that this one tried.
                    begin_next(tenant);
                    reached.into()
                });
            }
            Some((_, full)) => return Err(full.into()),
        }
    };
    place.await.map_err(|_| InferError::Engine(RequestFailure::Stopped).into())
}

/// A place has been given back, or there may be more of them: calls that waited for that begin.
pub(crate) fn begin_next(tenant: &Arc<TenantEntry>) {
    if tenant.queue.len() > 0 {
        let picked = tenant.queue.pick(&mut tenant.queue.lock(), tenant);
        hand_out(tenant, picked);
    }
}

/// The clock looks at a queue, as [`QueuedCalls::look_in`] asked.
pub(crate) fn look(tenant: &Arc<TenantEntry>) {
    {
        let mut calls = tenant.queue.lock();
        // An earlier time may have been asked for since, and has passed; this one is of no use
        // then.
        calls.looked_at = calls.looked_at.filter(|looked_at| Instant::now() < *looked_at);
    }
    begin_next(tenant);
}

/// The host stops: tasks that wait for places hear it.
pub(crate) fn end_all(tenant: &TenantEntry) {
    let mut calls = tenant.queue.lock();
    let position = |model: u32| move |order: &(u32, u64)| Position { model, order: *order };
    let all: Vec<Position> = calls.models.iter().flat_map(|(number, model)| model.calls.keys().map(position(*number))).collect();
    let ended: Vec<_> = all.into_iter().filter_map(|position| tenant.queue.remove(&mut calls, position)).collect();
    drop(calls);
    drop(ended);
}

/// Hands places to the tasks of calls. A place whose task is gone goes to the next call.
fn hand_out(tenant: &Arc<TenantEntry>, mut picked: Vec<(QueuedCall, InFlight)>) {
    while !picked.is_empty() {
        let mut given_back = false;
        for (call, place) in picked {
            if let Err(place) = call.place.send(place) {
                place.give_back();
                given_back = true;
            }
        }
        if !given_back {
            return;
        }
        picked = tenant.queue.pick(&mut tenant.queue.lock(), tenant);
    }
}

//! Requests in flight, as the engine's thread sees them.

use std::hint::black_box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cellwright_backend::RowError;
use cellwright_cell_graph::Tensor;
use cellwright_scheduler::{ModelId, Parts, RequestId};

use crate::core::NewRequest;
use crate::engine::SubmitError;
use crate::figures::RequestTimes;
use crate::growths::Growths;
use crate::sink::Sink;

/// Names a request in flight. A handle of a request that has ended names nothing, even when its place is taken by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    pub(crate) id: RequestId,
    pub(crate) generation: u32,
}

impl Handle {
    /// Whether it was given out after the one of that generation of its id. Generations start over, but never twice while one is in use.
    pub(crate) const fn is_after(self, generation: u32) -> bool {
        self.generation.wrapping_sub(generation).wrapping_sub(1) < u32::MAX / 2
    }
}

/// Handles that may be given out: the bound on requests in flight. Tenants share them.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    /// None once no more are given out.
    pool: Mutex<Option<HandlePool>>,
}

#[derive(Debug)]
struct HandlePool {
    free: Vec<Handle>,
    parts: Parts,
    /// Whose each is or was, by id.
    tenants: Vec<u32>,
}

impl Handles {
    pub(crate) fn new(count: u32) -> Self {
        let free = (0..count).rev().map(|id| Handle { id: RequestId(id), generation: 0 }).collect();
        let pool = HandlePool { free, parts: Parts::new(u64::from(count)), tenants: vec![0; count as usize] };
        Self { pool: Mutex::new(Some(pool)) }
    }

    /// A tenant has models, and a part by its weight; none with a weight of 0.
    pub(crate) fn set_weight(&self, tenant: u32, weight: u32) {
        if let Some(pool) = self.pool().as_mut() {
            pool.parts.set_weight(tenant, weight);
        }
    }

    /// A tenant's weight changes. Nothing happens if it has no models.
    pub(crate) fn change_weight(&self, tenant: u32, weight: u32) {
        if let Some(pool) = self.pool().as_mut().filter(|pool| pool.parts.weight(tenant) > 0) {
            pool.parts.set_weight(tenant, weight);
        }
    }

    pub(crate) fn take(&self, tenant: u32) -> Result<Handle, SubmitError> {
        let mut pool = self.pool();
        let pool = pool.as_mut().ok_or(SubmitError::Stopped)?;
        let handle = pool.parts.take(tenant, 1).then(|| pool.free.pop()).flatten().ok_or(SubmitError::Full)?;
        pool.tenants[handle.id.index()] = tenant;
        Ok(handle)
    }

    pub(crate) fn give_back(&self, handle: Handle) {
        self.give_back_all(std::iter::once(handle));
    }

    /// Those of requests that are gone: together, because whoever submits takes the same lock, for each of them.
    pub(crate) fn give_back_all(&self, handles: impl Iterator<Item = Handle>) {
        if let Some(HandlePool { free, parts, tenants }) = self.pool().as_mut() {
            for Handle { id, generation } in handles {
                parts.give_back(tenants[id.index()], 1);
                free.push(Handle { id, generation: generation.wrapping_add(1) });
            }
        }
    }

    /// Nobody would serve another request.
    pub(crate) fn close(&self) {
        *self.pool() = None;
    }

    pub(crate) fn are_closed(&self) -> bool {
        self.pool().is_none()
    }

    fn pool(&self) -> MutexGuard<'_, Option<HandlePool>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tensors a growth may refer to.
#[derive(Clone, Debug, Default)]
pub struct RequestTensors {
    /// Number of the first.
    pub first: u32,
    /// They, in order.
    pub tensors: Vec<Arc<Tensor>>,
}

/// A request in flight.
pub(crate) struct RequestEntry {
    /// Gone once the request has ended.
    pub(crate) sink: Option<Box<dyn Sink>>,
    pub(crate) times: RequestTimes,
    pub(crate) growths: Growths,
    pub(crate) handle: Handle,
    /// Counted from 0 in order of arrival, for people.
    pub(crate) number: u64,
    /// Which it is as long as there are requests of it.
    pub(crate) model: ModelId,
    /// Lanes of all growths that are placed.
    pub(crate) lanes: u32,
    /// What a kernel said of one of its rows.
    pub(crate) row_error: Option<Box<RowError>>,
    /// A worker was lost that had its state in hand.
    pub(crate) worker_lost: bool,
    is_session: bool,
    /// It was cancelled because it took longer than it may.
    pub(crate) overdue: bool,
    /// Its memory is counted when it ends, because a chain of it may stop.
    pub(crate) counts_at_end: bool,
}

impl RequestEntry {
    pub(crate) fn new(request: NewRequest, number: u64) -> Self {
        let NewRequest { handle, model, growth, tensors, sink, submitted, is_session } = request;
        Self {
            sink: Some(sink),
            times: RequestTimes::new(submitted),
            growths: Growths::new(growth, tensors),
            handle,
            number,
            model,
            lanes: 0,
            row_error: None,
            worker_lost: false,
            is_session,
            overdue: false,
            counts_at_end: false,
        }
    }

    /// Whether its time is bounded, and it goes on.
    pub(crate) fn may_be_overdue(&self) -> bool {
        self.sink.is_some() && !self.is_session && !self.overdue
    }

    /// Whether it has ended, and nothing in flight names it.
    pub(crate) fn is_over(&self) -> bool {
        self.sink.is_none() && self.lanes == 0
    }

    /// So many lanes of a growth are placed.
    pub(crate) fn add_lanes(&mut self, growth: u32, count: u32) {
        self.lanes += count;
        self.growths.add_lanes(growth, count);
    }

    /// One lane less. Growths in front that have none left are forgotten.
    pub(crate) fn release_lane(&mut self, growth: u32) {
        self.lanes = self.lanes.saturating_sub(1);
        self.growths.release_lane(growth);
    }
}

/// Requests in flight, by id.
#[derive(Default)]
pub(crate) struct Requests {
    entries: Vec<HandleEntry>,
}

/// What an id names.
#[derive(Default)]
struct HandleEntry {
    entry: Option<RequestEntry>,
    /// The generation of the last request that arrived under it.
    arrived: Option<u32>,
}

impl Requests {
    pub(crate) fn insert(&mut self, entry: RequestEntry) {
        let handle = entry.handle;
        self.arrived(handle);
        self.entries[handle.id.index()].entry = Some(entry);
    }

    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut RequestEntry> {
        self.entries.get_mut(id.index())?.entry.as_mut()
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<&RequestEntry> {
        self.entries.get(id.index())?.entry.as_ref()
    }

    /// The request that the handle names, if it is still going on.
    pub(crate) fn live(&mut self, handle: Handle) -> Option<&mut RequestEntry> {
        self.get_mut(handle.id).filter(|entry| entry.handle == handle && entry.sink.is_some())
    }

    /// Notes the arrival of a request, whether it is taken or not.
    pub(crate) fn arrived(&mut self, handle: Handle) {
        let index = handle.id.index();
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, HandleEntry::default);
        }
        self.entries[index].arrived = Some(handle.generation);
    }

    /// Whether the handle's request is still on its way to the engine's thread.
    pub(crate) fn is_yet_to_come(&self, handle: Handle) -> bool {
        self.entries.get(handle.id.index()).and_then(|place| place.arrived).is_none_or(|arrived| handle.is_after(arrived))
    }

    pub(crate) fn remove(&mut self, id: RequestId) {
        if let Some(place) = self.entries.get_mut(id.index()) {
            place.entry = None;
        }
    }

    /// Reads those requests, so that whoever goes through them does not wait for each by itself: where many are in flight, none is in a cache.
    pub(crate) fn read_ahead(&self, ids: impl Iterator<Item = RequestId>) {
        let read = |entry: &RequestEntry| entry.lanes ^ entry.times.batch_max ^ entry.growths.len() as u32 ^ entry.number as u32;
        black_box(ids.filter_map(|id| self.get(id)).fold(0, |all, entry| all ^ read(entry)));
    }

    /// Reads what counts who has their places, which is looked at when they go.
    pub(crate) fn read_places_ahead(&self, ids: impl Iterator<Item = RequestId>) {
        black_box(ids.filter_map(|id| self.get(id)).fold(0, |all, entry| all ^ entry.growths.read_ahead()));
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RequestEntry> {
        self.entries.iter_mut().filter_map(|place| place.entry.as_mut())
    }
}

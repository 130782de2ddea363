//! Requests in flight, as the engine's thread sees them.

use std::hint::black_box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cellwright_backend::RowError;
use cellwright_cell_graph::Tensor;
use cellwright_scheduler::{ModelId, RequestId};

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

/// Handles that may be given out: the bound on requests in flight.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    /// None once no more are given out.
    free: Mutex<Option<Vec<Handle>>>,
}

impl Handles {
    pub(crate) fn new(count: u32) -> Self {
        Self { free: Mutex::new(Some((0..count).rev().map(|id| Handle { id: RequestId(id), generation: 0 }).collect())) }
    }

    pub(crate) fn take(&self) -> Result<Handle, SubmitError> {
        self.free().as_mut().ok_or(SubmitError::Stopped)?.pop().ok_or(SubmitError::Full)
    }

    pub(crate) fn give_back(&self, handle: Handle) {
        self.give_back_all(std::iter::once(handle));
    }

    /// Those of requests that are gone: together, because whoever submits takes the same lock, for each of them.
    pub(crate) fn give_back_all(&self, handles: impl Iterator<Item = Handle>) {
        if let Some(free) = self.free().as_mut() {
            free.extend(handles.map(|Handle { id, generation }| Handle { id, generation: generation.wrapping_add(1) }));
        }
    }

    /// Nobody would serve another request.
    pub(crate) fn close(&self) {
        *self.free() = None;
    }

    pub(crate) fn are_closed(&self) -> bool {
        self.free().is_none()
    }

    fn free(&self) -> MutexGuard<'_, Option<Vec<Handle>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
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
}

impl RequestEntry {
    pub(crate) fn new(request: NewRequest, number: u64) -> Self {
        let NewRequest { handle, model, growth, tensors, sink, submitted } = request;
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
        }
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

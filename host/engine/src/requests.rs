//! Requests in flight, as the engine's thread sees them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cellwright_backend::{EarlierChain, FirstSlots, PlacedGrowth, RequestFlags, RowError};
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Tensor, UnfoldedGrowth};
use cellwright_scheduler::RequestId;

use crate::core::Arrival;
use crate::engine::SubmitError;
use crate::figures::RequestTimes;
use crate::model::LoadedModel;
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
        if let Some(free) = self.free().as_mut() {
            free.push(Handle { id: handle.id, generation: handle.generation.wrapping_add(1) });
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

/// A growth of a request.
pub(crate) struct GrowthEntry {
    pub(crate) growth: Arc<UnfoldedGrowth>,
    tensors: RequestTensors,
    executed: Arc<[AtomicU32]>,
    pub(crate) placed: Option<Arc<PlacedGrowth>>,
    /// Lanes of it that are placed.
    pub(crate) lanes: u32,
}

impl GrowthEntry {
    pub(crate) fn new(growth: Arc<UnfoldedGrowth>, tensors: RequestTensors) -> Self {
        let executed = growth.chains.iter().map(|chain| AtomicU32::new(chain.length.bound)).collect();
        Self { growth, tensors, executed, placed: None, lanes: 0 }
    }

    /// Whether nothing of it is left that anybody could name: it had its place, or never needs one, and its lanes are released.
    fn is_over(&self) -> bool {
        self.lanes == 0 && (self.placed.is_some() || self.growth.chains.is_empty())
    }
}

/// The place of a growth among those of its request.
struct HeldGrowth {
    first_chain: u32,
    /// None once nobody can name it any more: what it referred to is not held because an older growth is kept.
    entry: Option<Box<GrowthEntry>>,
}

impl HeldGrowth {
    fn new(entry: GrowthEntry) -> Self {
        Self { first_chain: entry.growth.first_chain, entry: Some(Box::new(entry)) }
    }

    fn is_over(&self) -> bool {
        self.entry.as_ref().is_none_or(|entry| entry.is_over())
    }
}

/// A request in flight.
pub(crate) struct RequestEntry {
    pub(crate) handle: Handle,
    /// Counted from 0 in order of arrival, for people.
    pub(crate) number: u64,
    /// Gone once the request has ended.
    pub(crate) sink: Option<Box<dyn Sink>>,
    pub(crate) flags: Arc<RequestFlags>,
    pub(crate) model: Arc<LoadedModel>,
    pub(crate) times: RequestTimes,
    /// What a kernel said of one of its rows.
    pub(crate) row_error: Option<RowError>,
    /// A worker was lost that had its state in hand.
    pub(crate) worker_lost: bool,
    /// Growths that still have lanes, or may get some; element 0 is number `first_growth`.
    /// How many there can be is bounded by the graph's limits (chains since the oldest one that is kept) and by how often a plugin is called back.
    growths: VecDeque<HeldGrowth>,
    first_growth: u32,
    /// Lanes of all growths that are placed.
    pub(crate) lanes: u32,
}

impl RequestEntry {
    pub(crate) fn new(arrival: Arrival, number: u64) -> Self {
        let growth = GrowthEntry::new(arrival.growth, arrival.tensors);
        Self {
            handle: arrival.handle,
            number,
            sink: Some(arrival.sink),
            flags: Arc::default(),
            model: arrival.model,
            times: RequestTimes::new(arrival.submitted),
            row_error: None,
            worker_lost: false,
            growths: VecDeque::from([HeldGrowth::new(growth)]),
            first_growth: 0,
            lanes: 0,
        }
    }

    pub(crate) fn grow(&mut self, growth: GrowthEntry) {
        self.growths.push_back(HeldGrowth::new(growth));
        // The one before stayed because it was the last.
        self.forget_over(self.first_growth + self.growths.len() as u32 - 2);
    }

    pub(crate) fn growth_mut(&mut self, number: u32) -> Option<&mut GrowthEntry> {
        self.growths.get_mut(number.checked_sub(self.first_growth)? as usize)?.entry.as_deref_mut()
    }

    /// Gives a growth its place.
    pub(crate) fn place(&mut self, number: u32, slots: FirstSlots) -> Option<Arc<PlacedGrowth>> {
        let position = number.checked_sub(self.first_growth)? as usize;
        let earlier = self.earlier(self.growths.get(position)?.entry.as_ref()?.growth.clone().as_ref());
        let (flags, cells) = (self.flags.clone(), self.model.indices.clone());
        let entry = self.growths.get_mut(position)?.entry.as_mut()?;
        // It may have had another place before.
        let tensors = match &entry.placed {
            Some(placed) => placed.tensors.clone(),
            None => std::mem::take(&mut entry.tensors.tensors),
        };
        let placed = Arc::new(PlacedGrowth {
            growth: entry.growth.clone(),
            cells,
            slots,
            executed: entry.executed.clone(),
            earlier,
            tensors,
            first_tensor: entry.tensors.first,
            flags,
        });
        entry.placed = Some(placed.clone());
        Some(placed)
    }

    /// Where the chains of earlier growths lie that a growth refers to.
    fn earlier(&self, growth: &UnfoldedGrowth) -> Vec<EarlierChain> {
        if growth.first_chain == 0 {
            return Vec::new();
        }
        let mut chains: Vec<u32> = Vec::new();
        for chain in &growth.chains {
            chains.extend(chain.length.like);
            for source in chain.stages.iter().flat_map(|stage| &stage.inputs).map(|input| &input.source) {
                match source {
                    Source::Steps { chain, .. } | Source::Last { chain, .. } => chains.push(*chain),
                    Source::Nodes { of, .. } => chains.extend(of.iter().map(|node| node.chain)),
                    Source::Zeros
                    | Source::Literal(_)
                    | Source::Ints(_)
                    | Source::Index(_)
                    | Source::Rows { .. }
                    | Source::Sibling { .. } => {}
                }
            }
        }
        chains.retain(|chain| *chain < growth.first_chain);
        chains.sort_unstable();
        chains.dedup();
        chains.into_iter().filter_map(|chain| self.earlier_chain(chain)).collect()
    }

    fn earlier_chain(&self, chain: u32) -> Option<EarlierChain> {
        // Chains are numbered over the whole request, growth by growth.
        let after = self.growths.partition_point(|held| held.first_chain <= chain);
        let held = self.growths.get(after.checked_sub(1)?)?;
        let (entry, local) = (held.entry.as_ref()?, chain.checked_sub(held.first_chain)?);
        let unfolded = entry.growth.chains.get(local as usize)?;
        let slots = entry.placed.as_ref()?.slots.get(local as usize)?;
        let stages = unfolded.stages.iter().zip(slots).map(|(stage, slot)| (*slot, stage.retention, stage.cell)).collect();
        Some(EarlierChain { chain, stages, executed: (entry.executed.clone(), local) })
    }

    /// Growths that are held.
    pub(crate) fn growths(&self) -> usize {
        self.growths.len()
    }

    /// So many lanes of a growth are placed.
    pub(crate) fn add_lanes(&mut self, growth: u32, count: u32) {
        self.lanes += count;
        if let Some(entry) = self.growth_mut(growth) {
            entry.lanes += count;
        }
    }

    /// One lane less. Growths in front that have none left are forgotten.
    pub(crate) fn release_lane(&mut self, growth: u32) {
        self.lanes = self.lanes.saturating_sub(1);
        if let Some(entry) = self.growth_mut(growth) {
            entry.lanes = entry.lanes.saturating_sub(1);
        }
        self.forget_over(growth);
        while self.growths.len() > 1 && self.growths.front().is_some_and(HeldGrowth::is_over) {
            self.growths.pop_front();
            self.first_growth += 1;
        }
    }

    /// Empties a growth that is over, if it is not the last.
    fn forget_over(&mut self, growth: u32) {
        let Some(position) = growth.checked_sub(self.first_growth).map(|position| position as usize) else { return };
        if position + 1 < self.growths.len()
            && let Some(held) = self.growths.get_mut(position)
        {
            held.entry.take_if(|entry| entry.is_over());
        }
    }

    /// Nothing more of it is worth computing.
    pub(crate) fn mark_dead(&self) {
        self.flags.dead.store(true, Ordering::Relaxed);
    }
}

/// Requests in flight, by id.
#[derive(Default)]
pub(crate) struct Requests {
    entries: Vec<Place>,
}

/// What an id names.
#[derive(Default)]
struct Place {
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
            self.entries.resize_with(index + 1, Place::default);
        }
        self.entries[index].arrived = Some(handle.generation);
    }

    /// Whether the handle's request is still on its way to the engine's thread.
    pub(crate) fn is_yet_to_come(&self, handle: Handle) -> bool {
        self.entries.get(handle.id.index()).and_then(|place| place.arrived).is_none_or(|arrived| handle.is_after(arrived))
    }

    pub(crate) fn remove(&mut self, id: RequestId) -> Option<RequestEntry> {
        self.entries.get_mut(id.index())?.entry.take()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RequestEntry> {
        self.entries.iter_mut().filter_map(|place| place.entry.as_mut())
    }
}

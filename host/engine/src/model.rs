//! Models as the engine holds them: cells registered under dense cell type ids, shared where they are the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cellwright_backend::TableInfo;
use cellwright_cell_graph::{CellTypeKey, TypedCell};
use cellwright_scheduler::{CellTypeId, ModelId, PolicyKind};

use crate::calibration::{BatchLimits, Calibration};
use crate::figures::{CellCounters, ModelCounters};
use crate::weight_room::WeightGrant;

/// What an operator or a bundle may say of a cell, above the plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct CellOverride {
    pub batch_max: Option<u32>,
    pub priority: Option<i32>,
}

/// A model to load.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// For people.
    pub name: String,
    /// Whose it is, as a dense number of the caller's.
    pub tenant: u32,
    /// Its tenant's share of device time relative to other tenants', at least 1, however many models either has. What was said last holds.
    pub weight: u32,
    /// Who decides what of it runs together; none: as the engine's options say.
    pub policy: Option<PolicyKind>,
    /// Its cells, by position.
    pub cells: Vec<Arc<TypedCell>>,
    /// One for each cell, or none.
    pub overrides: Vec<CellOverride>,
    /// The most values (nodes) a request may hold at once, for models that grow.
    pub live_max: Option<u32>,
    /// Counters of the caller's to which its device time is added, in nanoseconds.
    pub charged: Vec<Arc<AtomicU64>>,
}

/// A cell that is loaded.
#[derive(Clone, Debug)]
pub struct LoadedCell {
    /// The cell, without its body: that is with the devices.
    pub cell: Arc<TypedCell>,
    /// Its type's dense id.
    pub cell_type: CellTypeId,
    /// Arena slots that one node takes.
    pub slots: u32,
    /// Its rank among the model's types.
    pub priority: i32,
    /// What was measured.
    pub calibration: Arc<Calibration>,
    /// What holds: what the bundle asks for, or else the calibrated knee; lowered to what the plugin asks for, to the largest batch that was measured
    /// to take no longer than a task may, and to what a task may deliver.
    pub limits: BatchLimits,
    /// What its type has done, for all models that share it.
    pub counters: Arc<CellCounters>,
    /// The tables by which workers look up what it computes of a token.
    pub tables: Tables,
    /// As [`cellwright_backend::Backend::steps_together`].
    pub steps_together: bool,
    /// Bytes that its type's weights take in all memories, as devices hold them.
    pub held_bytes: u64,
}

/// Tables of a cell: those of each memory, whose workers share them.
#[derive(Clone, Debug, Default)]
pub struct Tables(Vec<Arc<TableInfo>>);

/// What all tables of a cell have between them, as in [`TableInfo`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct TableCounts {
    pub bytes: u64,
    pub tokens: u64,
    pub filled: u64,
}

impl Tables {
    /// Those that a worker has too.
    pub(crate) fn add(&mut self, table: Option<&Arc<TableInfo>>) {
        self.0.extend(table.filter(|table| self.0.iter().all(|known| !Arc::ptr_eq(known, table))).cloned());
    }

    /// How they stand, if there are some or may come to be.
    #[must_use]
    pub fn counts(&self) -> Option<TableCounts> {
        let sum = |figure: fn(&TableInfo) -> &AtomicU64| self.0.iter().map(|table| figure(table).load(Ordering::Relaxed)).sum();
        let counts = || TableCounts { bytes: sum(|of| &of.bytes), tokens: sum(|of| &of.tokens), filled: sum(|of| &of.filled) };
        (!self.0.is_empty()).then(counts)
    }
}

/// A model that is loaded. Requests name it; it stays until [`crate::Engine::unload`].
#[derive(Clone, Debug)]
pub struct LoadedModel {
    /// Its id.
    pub id: ModelId,
    /// Tells it from others that have had the id, and from those of other engines.
    pub(crate) load: u64,
    /// For people.
    pub name: String,
    /// Whose it is.
    pub(crate) tenant: u32,
    /// Its cells, by position.
    pub cells: Vec<LoadedCell>,
    /// The same, as backends know them.
    pub indices: Arc<[CellTypeId]>,
    /// What it has had.
    pub counters: Arc<ModelCounters>,
}

impl LoadedModel {
    /// Bytes that its cells' weights take, a cell that it has twice counted once. What it shares with other models is counted with each of them.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        let distinct: BTreeMap<_, _> = self.cells.iter().map(|cell| (cell.cell_type, cell.held_bytes)).collect();
        distinct.into_values().sum()
    }
}

/// Which cell types are loaded, and how many models use each.
#[derive(Debug, Default)]
pub(crate) struct CellTypes {
    by_key: BTreeMap<CellTypeKey, CellTypeId>,
    entries: Vec<Option<TypeEntry>>,
}

#[derive(Debug)]
pub(crate) struct TypeEntry {
    pub(crate) key: CellTypeKey,
    pub(crate) users: u32,
    pub(crate) shared: TypeShared,
    /// What devices hold of it.
    _weights: Vec<WeightGrant>,
}

/// What all models that use a type have in common.
#[derive(Clone, Debug)]
pub(crate) struct TypeShared {
    pub(crate) calibration: Arc<Calibration>,
    pub(crate) counters: Arc<CellCounters>,
    pub(crate) tables: Tables,
    pub(crate) steps_together: bool,
    pub(crate) held_bytes: u64,
}

/// What a backend says of how it runs a cell.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) table: Option<Arc<TableInfo>>,
    pub(crate) steps_together: bool,
}

impl CellTypes {
    /// The type of that key, if it is loaded.
    pub(crate) fn find(&self, key: &CellTypeKey) -> Option<(CellTypeId, &TypeEntry)> {
        let id = *self.by_key.get(key)?;
        Some((id, self.entries.get(id.index())?.as_ref()?))
    }

    /// Bytes that all weights take which are loaded, each type counted once.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.entries.iter().flatten().map(|entry| entry.shared.held_bytes).sum()
    }

    /// The id the next new type gets.
    pub(crate) fn vacant(&self) -> CellTypeId {
        let index = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        CellTypeId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// Enters a type under the id that [`CellTypes::vacant`] gave.
    pub(crate) fn insert(&mut self, id: CellTypeId, key: CellTypeKey, shared: TypeShared, weights: Vec<WeightGrant>) {
        if self.entries.len() <= id.index() {
            self.entries.resize_with(id.index() + 1, || None);
        }
        self.by_key.insert(key, id);
        self.entries[id.index()] = Some(TypeEntry { key, users: 0, shared, _weights: weights });
    }

    /// One more model uses it.
    pub(crate) fn retain(&mut self, id: CellTypeId) {
        if let Some(Some(entry)) = self.entries.get_mut(id.index()) {
            entry.users += 1;
        }
    }

    /// One model less uses it; the type if it was the last, which is forgotten.
    pub(crate) fn release(&mut self, id: CellTypeId) -> Option<TypeEntry> {
        let slot = self.entries.get_mut(id.index())?;
        let entry = slot.as_mut()?;
        entry.users = entry.users.saturating_sub(1);
        if entry.users > 0 {
            return None;
        }
        self.by_key.remove(&entry.key);
        slot.take()
    }
}

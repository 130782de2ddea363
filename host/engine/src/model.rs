//! Models as the engine holds them: cells registered under dense cell type ids, shared where they are the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use cellwright_backend::CellIndex;
use cellwright_cell_graph::{CellTypeKey, TypedCell};
use cellwright_scheduler::{CellTypeId, ModelId};

use crate::calibration::{BatchLimits, Calibration};
use crate::figures::{CellCounters, ModelCounters};

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
    /// Its cells, by position.
    pub cells: Vec<Arc<TypedCell>>,
    /// One for each cell, or none.
    pub overrides: Vec<CellOverride>,
    /// The most values (nodes) a request may hold at once, for models that grow.
    pub live_max: Option<u32>,
}

/// A cell that is loaded.
#[derive(Clone, Debug)]
pub struct LoadedCell {
    /// The cell.
    pub cell: Arc<TypedCell>,
    /// Its type's dense id.
    pub cell_type: CellTypeId,
    /// Arena slots that one node takes.
    pub slots: u32,
    /// Its rank among the model's types.
    pub priority: i32,
    /// What was measured.
    pub calibration: Arc<Calibration>,
    /// What holds: the calibrated limit, lowered by the plugin's or the bundle's.
    pub limits: BatchLimits,
    /// What its type has done, for all models that share it.
    pub counters: Arc<CellCounters>,
}

/// A model that is loaded. Requests name it; it stays until [`crate::Engine::unload`].
#[derive(Clone, Debug)]
pub struct LoadedModel {
    /// Its id.
    pub id: ModelId,
    /// For people.
    pub name: String,
    /// Its cells, by position.
    pub cells: Vec<LoadedCell>,
    /// The same, as backends know them.
    pub indices: Arc<[CellIndex]>,
    /// What it has had.
    pub counters: Arc<ModelCounters>,
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
}

/// What all models that use a type have in common.
#[derive(Clone, Debug)]
pub(crate) struct TypeShared {
    pub(crate) calibration: Arc<Calibration>,
    pub(crate) counters: Arc<CellCounters>,
}

impl CellTypes {
    /// The type of that key, if it is loaded.
    pub(crate) fn find(&self, key: &CellTypeKey) -> Option<(CellTypeId, &TypeEntry)> {
        let id = *self.by_key.get(key)?;
        Some((id, self.entries.get(id.index())?.as_ref()?))
    }

    /// The id the next new type gets.
    pub(crate) fn vacant(&self) -> CellTypeId {
        let index = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        CellTypeId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// Enters a type under the id that [`CellTypes::vacant`] gave.
    pub(crate) fn insert(&mut self, id: CellTypeId, key: CellTypeKey, shared: TypeShared) {
        if self.entries.len() <= id.index() {
            self.entries.resize_with(id.index() + 1, || None);
        }
        self.by_key.insert(key, id);
        self.entries[id.index()] = Some(TypeEntry { key, users: 0, shared });
    }

    /// One more model uses it.
    pub(crate) fn retain(&mut self, id: CellTypeId) {
        if let Some(Some(entry)) = self.entries.get_mut(id.index()) {
            entry.users += 1;
        }
    }

    /// One model less uses it; true if it was the last and the type is forgotten.
    pub(crate) fn release(&mut self, id: CellTypeId) -> bool {
        let Some(slot) = self.entries.get_mut(id.index()) else { return false };
        let Some(entry) = slot else { return false };
        entry.users = entry.users.saturating_sub(1);
        if entry.users > 0 {
            return false;
        }
        self.by_key.remove(&entry.key);
        *slot = None;
        true
    }
}

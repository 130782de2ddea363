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
struct TypeEntry {
    key: CellTypeKey,
    users: u32,
    state: TypeState,
}

/// How far a type is that models use or want to use.
#[derive(Debug)]
pub(crate) enum TypeState {
    /// No worker has it.
    New,
    /// A model's load is at it.
    Loading,
    /// All workers have it.
    Loaded {
        shared: TypeShared,
        /// What devices hold of it.
        _weights: Vec<WeightGrant>,
    },
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
    /// Bytes that all weights take which are loaded, each type counted once.
    pub(crate) fn weight_bytes(&self) -> u64 {
        let held = |entry: &TypeEntry| if let TypeState::Loaded { shared, .. } = &entry.state { shared.held_bytes } else { 0 };
        self.entries.iter().flatten().map(held).sum()
    }

    /// One more model uses the type of that cell, which is entered if it is not there.
    pub(crate) fn retain(&mut self, cell: &TypedCell) -> CellTypeId {
        let key = cell.key;
        let vacant = || self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        let index = self.by_key.get(&key).map_or_else(vacant, |id| id.index());
        let id = CellTypeId(u32::try_from(index).unwrap_or(u32::MAX));
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        match &mut self.entries[index] {
            Some(entry) => entry.users += 1,
            vacant => {
                *vacant = Some(TypeEntry { key, users: 1, state: TypeState::New });
                self.by_key.insert(key, id);
            }
        }
        id
    }

    /// How far a type is that a model uses.
    pub(crate) fn state(&mut self, id: CellTypeId) -> &mut TypeState {
        let entry = self.entries.get_mut(id.index()).and_then(Option::as_mut);
        &mut entry.expect("a model uses it").state
    }

    /// One model less uses each. Gives those that nobody uses any more and that workers may have. They are not found any more, and keep their ids until
    /// [`CellTypes::remove`].
    pub(crate) fn release(&mut self, ids: &[CellTypeId]) -> Vec<CellTypeId> {
        let (mut loaded, mut new) = (Vec::new(), Vec::new());
        for id in ids {
            let Some(Some(entry)) = self.entries.get_mut(id.index()) else { continue };
            entry.users = entry.users.saturating_sub(1);
            if entry.users == 0 {
                self.by_key.remove(&entry.key);
                if matches!(entry.state, TypeState::New) { new.push(*id) } else { loaded.push(*id) }
            }
        }
        self.remove(&new);
        loaded
    }

    /// No worker has these any more.
    pub(crate) fn remove(&mut self, ids: &[CellTypeId]) {
        for id in ids {
            if let Some(entry) = self.entries.get_mut(id.index()) {
                *entry = None;
            }
        }
    }
}

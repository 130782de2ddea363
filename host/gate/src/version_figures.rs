//! What each version of a model has done since the host started. It stays while the version exists,
//! whether or not it serves, so that a change of versions neither mixes two of them nor takes
//! anything back.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cellwright_engine::{LoadedCell, ModelCounters, ModelCounts};
use cellwright_serving::ServedModel;

use crate::figures::CallFigures;
use crate::platform::CellFigures;

/// One version's figures.
#[derive(Debug, Default)]
pub(crate) struct VersionFigures {
    pub(crate) calls: CallFigures,
    /// Calls that were given this version and are in flight, or in line.
    pub(crate) in_flight: AtomicU32,
    pub(crate) queued: AtomicU32,
    loads: Mutex<Loads>,
}

/// A version is loaded anew whenever it comes into service again; calls of the time before may
/// still go on.
#[derive(Debug, Default)]
struct Loads {
    /// Counts of loads that have ended.
    gone: ModelCounts,
    there: Vec<Load>,
    cells: Vec<CellFigures>,
}

#[derive(Debug)]
struct Load {
    counters: Arc<ModelCounters>,
    /// What it had before it served: its samples were nobody's calls.
    before: ModelCounts,
}

impl Loads {
    /// Adds up and forgets loads that nothing else holds.
    fn settle(&mut self) {
        let gone = &mut self.gone;
        self.there.retain_mut(|load| match Arc::get_mut(&mut load.counters) {
            Some(counters) => {
                *gone = gone.plus(counters.counts().since(load.before));
                false
            }
            None => true,
        });
    }
}

impl VersionFigures {
    /// The version serves from now on, loaded as that.
    pub(crate) fn serves(&self, served: &ServedModel) {
        let (counters, mut loads) = (served.loaded().counters.clone(), self.loads.lock().unwrap_or_else(PoisonError::into_inner));
        loads.settle();
        loads.there.push(Load { before: counters.counts(), counters });
        loads.cells = served.loaded().cells.iter().map(cell).collect();
    }

    /// What its calls have had of the devices, and its cells as they were loaded last.
    pub(crate) fn of_devices(&self) -> (ModelCounts, Vec<CellFigures>) {
        let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        loads.settle();
        let counts = loads.there.iter().fold(loads.gone, |sum, load| sum.plus(load.counters.counts().since(load.before)));
        (counts, loads.cells.clone())
    }
}

fn cell(loaded: &LoadedCell) -> CellFigures {
    CellFigures {
        name: loaded.cell.name.clone(),
        key: loaded.cell.key.to_string(),
        batch_max: loaded.limits.max,
        counters: loaded.counters.clone(),
        tables: loaded.tables.clone(),
    }
}

/// A model's versions that have served, by number.
#[derive(Debug, Default)]
pub(crate) struct Versions(RwLock<BTreeMap<u64, Arc<VersionFigures>>>);

impl Versions {
    /// That version's, from nothing if it has never served.
    pub(crate) fn of(&self, version: u64) -> Arc<VersionFigures> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).entry(version).or_default().clone()
    }

    pub(crate) fn all(&self) -> Vec<(u64, Arc<VersionFigures>)> {
        let versions = self.0.read().unwrap_or_else(PoisonError::into_inner);
        versions.iter().map(|(version, figures)| (*version, figures.clone())).collect()
    }

    /// The version is deleted.
    pub(crate) fn forget(&self, version: u64) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&version);
    }
}

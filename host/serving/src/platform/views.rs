//! What can be seen of a platform from outside: which models serve, and how they fare.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_engine::{CellCounters, ModelCounters, Snapshot};
use cellwright_registry::TenantName;

use super::Platform;
use crate::catalog::Reason;
use crate::figures::CallFiguresView;

/// How a model stands, in the words of the repository extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelState {
    /// It serves.
    Ready,
    /// It will, soon.
    Loading,
    /// It does not.
    Unavailable {
        /// Why.
        reason: String,
    },
}

/// A model in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Whose it is.
    pub tenant: TenantName,
    /// Its name.
    pub name: String,
    /// The version that serves, if one does.
    pub version: Option<u64>,
    /// How it stands.
    pub state: ModelState,
}

/// A cell of a model that serves.
#[derive(Clone, Debug)]
pub struct CellFigures {
    /// The plugin's name for it.
    pub name: String,
    /// Its type, short.
    pub key: String,
    /// The batch limit in force.
    pub batch_max: u32,
    /// What its type has done, whichever models' nodes they were.
    pub counters: Arc<CellCounters>,
}

/// How a model fares.
#[derive(Clone, Debug)]
pub struct ModelFigures {
    /// Whose it is.
    pub tenant: TenantName,
    /// Its name.
    pub name: String,
    /// The version that serves, if one does.
    pub version: Option<u64>,
    /// Calls in flight now.
    pub in_flight: u32,
    /// Calls that wait for a place among them.
    pub queued: u32,
    /// What became of the others.
    pub calls: CallFiguresView,
    /// Its cells, if it serves.
    pub cells: Vec<CellFigures>,
    /// Its device time, if it serves.
    pub device: Option<Arc<ModelCounters>>,
}

/// Everything that can be counted.
#[derive(Clone, Debug)]
pub struct Figures {
    /// By tenant and name.
    pub models: Vec<ModelFigures>,
    /// The engine.
    pub engine: Snapshot,
}

impl Platform {
    /// The models of a tenant, or all.
    #[must_use]
    pub fn index(&self, tenant: Option<&TenantName>) -> Vec<IndexEntry> {
        let entry = |model: &Arc<crate::catalog::ModelEntry>| {
            let (version, state) = match model.serving() {
                Ok(deployed) => (Some(deployed.version()), ModelState::Ready),
                Err(Reason::Loading) => (None, ModelState::Loading),
                Err(reason) => (None, ModelState::Unavailable { reason: reason.to_string() }),
            };
            IndexEntry { tenant: model.tenant.name.clone(), name: model.name.as_str().to_owned(), version, state }
        };
        self.catalog.models(tenant).iter().map(entry).collect()
    }

    /// How a tenant's models fare, or all, and the engine.
    #[must_use]
    pub fn figures(&self, tenant: Option<&TenantName>) -> Figures {
        let figures = |model: &Arc<crate::catalog::ModelEntry>| {
            let serving = model.serving().ok();
            let loaded = serving.as_ref().map(|deployed| deployed.served.loaded().clone());
            let cell = |cell: &cellwright_engine::LoadedCell| CellFigures {
                name: cell.cell.name.clone(),
                key: cell.cell.key.to_string(),
                batch_max: cell.limits.max,
                counters: cell.counters.clone(),
            };
            ModelFigures {
                tenant: model.tenant.name.clone(),
                name: model.name.as_str().to_owned(),
                version: serving.map(|deployed| deployed.version()),
                in_flight: model.in_flight.load(Ordering::Relaxed),
                queued: model.queued.load(Ordering::Relaxed),
                calls: model.figures.view(),
                cells: loaded.as_ref().map(|loaded| loaded.cells.iter().map(cell).collect()).unwrap_or_default(),
                device: loaded.map(|loaded| loaded.counters.clone()),
            }
        };
        Figures { models: self.catalog.models(tenant).iter().map(figures).collect(), engine: self.serving.engine().snapshot() }
    }
}

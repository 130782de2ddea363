//! What can be seen of a platform from outside: which models serve, and how they fare.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_engine::{CellCounters, ModelCounts, Snapshot, Tables};
use cellwright_protocol::messages::repository::{IndexEntry, ModelState};
use cellwright_registry::TenantName;

use super::Platform;
use crate::catalog::{ModelEntry, Reason};
use crate::figures::{CallFiguresView, by_size};
use crate::version_figures::VersionFigures;

/// A cell of a model.
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
    /// The tables by which workers look up what it computes of a token.
    pub tables: Tables,
}

/// How a version of a model has fared since the host started, if it has served since.
#[derive(Clone, Debug)]
pub struct ModelFigures {
    /// The tenant that owns it.
    pub tenant: TenantName,
    /// The model's name.
    pub name: String,
    /// The version.
    pub version: u64,
    /// Calls of it in flight now.
    pub in_flight: u32,
    /// Calls that wait for a place among them.
    pub queued: u32,
    /// What became of the others.
    pub calls: CallFiguresView,
    /// What they had of the devices.
    pub device: ModelCounts,
    /// Its cells, as they were loaded last.
    pub cells: Vec<CellFigures>,
}

/// Everything that can be counted.
#[derive(Clone, Debug)]
pub struct Figures {
    /// By tenant, name and version.
    pub models: Vec<ModelFigures>,
    /// The engine.
    pub engine: Snapshot,
}

impl AddAssign<&Self> for ModelFigures {
    /// Adds what other versions have done. Its cells stay.
    fn add_assign(&mut self, other: &Self) {
        self.in_flight += other.in_flight;
        self.queued += other.queued;
        self.calls += &other.calls;
        self.device = self.device.plus(other.device);
    }
}

impl ModelFigures {
    /// Batches in which nodes of its calls ran, by size.
    pub fn batches(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        by_size(self.device.batches.iter().copied())
    }

    /// Batches of all sizes.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.device.batches.iter().sum()
    }
}

impl CellFigures {
    /// Batches of its type, by size.
    pub fn batches(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        by_size(self.counters.batches.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

impl Platform {
    /// The models of a tenant, or all, with their tenants.
    #[must_use]
    pub fn index(&self, tenant: Option<&TenantName>) -> Vec<(TenantName, IndexEntry)> {
        let entry = |model: &Arc<ModelEntry>| {
            let (version, state, reason) = match model.serving() {
                Ok(deployed) => (Some(deployed.version().to_string()), ModelState::Ready, String::new()),
                Err(Reason::Loading) => (None, ModelState::Loading, String::new()),
                Err(reason) => (None, ModelState::Unavailable, reason.to_string()),
            };
            (model.tenant.name.clone(), IndexEntry { name: model.name.as_str().to_owned(), version, state, reason })
        };
        self.catalog().models(tenant).iter().map(entry).collect()
    }

    /// How a tenant's models fare, or all, and the engine.
    #[must_use]
    pub fn figures(&self, tenant: Option<&TenantName>) -> Figures {
        let figures = |model: Arc<ModelEntry>| {
            let of_version = |(version, figures): (u64, Arc<VersionFigures>)| {
                let (device, cells) = figures.of_devices();
                ModelFigures {
                    tenant: model.tenant.name.clone(),
                    name: model.name.as_str().to_owned(),
                    version,
                    in_flight: figures.in_flight.load(Ordering::Relaxed),
                    queued: figures.queued.load(Ordering::Relaxed),
                    calls: figures.calls.view(),
                    device,
                    cells,
                }
            };
            model.versions.all().into_iter().map(of_version).collect::<Vec<_>>()
        };
        let models = self.catalog().models(tenant).into_iter().flat_map(figures).collect();
        Figures { models, engine: self.serving().engine().snapshot() }
    }
}

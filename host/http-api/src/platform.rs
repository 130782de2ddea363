//! `serving`'s platform as the [`Host`] of the server: errors become refusals, figures plain numbers.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_cell_graph::Description;
use cellwright_protocol::messages::admin::{Activated, SampleResult, Uploaded};
use cellwright_protocol::messages::repository::ModelState;
use cellwright_registry::{ModelName, Registry, Tenant, TenantName, TenantSettings};
use cellwright_serving::figures::{CallFiguresView, TotalView, latency_bound};
use cellwright_serving::{
    Call, ChangeError, Client, Deployed, ErrorKind, InferError, LookupError, NewUpload, Platform, Readiness, platform,
};

use crate::figures::{CellFigures, DomainFigures, Figures, ModelFigures, TableFigures, Total, WorkerFigures};
use crate::host::{Answering, Endpoint, Host, IndexEntry};
use crate::refusal::Refusal;

/// A platform as the host of a server.
#[must_use]
pub fn host_of(platform: Arc<Platform>) -> Arc<dyn Host> {
    Arc::new(OnPlatform(platform))
}

/// A plugin that usually takes longer to unfold a call is called on a thread of its own, so that it delays nobody else's requests.
const UNFOLD_QUICK_MAX: Duration = Duration::from_millis(1);

struct OnPlatform(Arc<Platform>);

struct OnDeployed {
    platform: Arc<Platform>,
    deployed: Arc<Deployed>,
}

impl From<LookupError> for Refusal {
    fn from(error: LookupError) -> Self {
        Self::new(error.kind(), error)
    }
}

impl From<ChangeError> for Refusal {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Registry(error) => error.into(),
            error => Self::new(error.kind(), error),
        }
    }
}

impl Host for OnPlatform {
    fn registry(&self) -> &Registry {
        self.0.registry()
    }

    fn readiness(&self) -> Readiness {
        self.0.readiness()
    }

    fn find(&self, tenant: &TenantName, model: &str, version: Option<&str>) -> Result<Arc<dyn Endpoint>, Refusal> {
        let deployed = self.0.find(tenant, model, version)?;
        Ok(Arc::new(OnDeployed { platform: self.0.clone(), deployed }))
    }

    fn index(&self, tenant: Option<&TenantName>) -> Vec<IndexEntry> {
        self.0.index(tenant).into_iter().map(index_entry).collect()
    }

    fn figures(&self, tenant: Option<&TenantName>) -> Figures {
        let figures = self.0.figures(tenant);
        let engine = figures.engine;
        Figures {
            models: figures.models.into_iter().map(model_figures).collect(),
            waiting: u64::from(engine.waiting),
            domains: engine
                .domains
                .into_iter()
                .map(|domain| DomainFigures { name: domain.name, slots_used: u64::from(domain.slots_used), slots: u64::from(domain.slots) })
                .collect(),
            workers: engine
                .workers
                .iter()
                .map(|worker| WorkerFigures { up: worker.up, outstanding: u64::from(worker.outstanding) })
                .collect(),
        }
    }

    fn upload(&self, tenant: &TenantName, model: &ModelName, archive: &mut dyn Read, upload: NewUpload) -> Result<Uploaded, Refusal> {
        let uploaded = self.0.upload(tenant, model, archive, upload)?;
        let sample = |report: cellwright_serving::samples::SampleReport| SampleResult {
            name: report.name,
            ok: report.fault.is_none(),
            compared: Some(report.compared),
            error: report.fault,
        };
        Ok(Uploaded {
            model: model.as_str().to_owned(),
            version: uploaded.version,
            digest: uploaded.digest.to_string(),
            samples: uploaded.samples.into_iter().map(sample).collect(),
            existed: uploaded.existed,
            activated: uploaded.active,
        })
    }

    fn activate(&self, tenant: &TenantName, model: &ModelName, version: u64) -> Result<Activated, Refusal> {
        let activated = self.0.activate(tenant, model, version)?;
        self.activated(tenant, model, activated.version)
    }

    fn roll_back(&self, tenant: &TenantName, model: &ModelName) -> Result<Activated, Refusal> {
        let activated = self.0.roll_back(tenant, model)?;
        self.activated(tenant, model, activated.version)
    }

    fn load(&self, tenant: &TenantName, model: &ModelName) -> Result<(), Refusal> {
        self.0.load(tenant, model)?;
        Ok(())
    }

    fn unload(&self, tenant: &TenantName, model: &ModelName) -> Result<(), Refusal> {
        Ok(self.0.unload(tenant, model)?)
    }

    fn delete_version(&self, tenant: &TenantName, model: &ModelName, version: u64) -> Result<(), Refusal> {
        Ok(self.0.delete_version(tenant, model, version)?)
    }

    fn delete_model(&self, tenant: &TenantName, model: &ModelName) -> Result<(), Refusal> {
        Ok(self.0.delete_model(tenant, model)?)
    }

    fn set_tenant(&self, name: &TenantName, settings: &TenantSettings) -> Result<Tenant, Refusal> {
        Ok(self.0.set_tenant(name, settings)?)
    }

    fn delete_tenant(&self, name: &TenantName) -> Result<(), Refusal> {
        Ok(self.0.delete_tenant(name)?)
    }

    fn drain(&self, limit: Duration) {
        let drained = self.0.drain(limit);
        if drained.left > 0 {
            tracing::warn!(left = drained.left, "calls had not ended when the time to stop was over");
        }
    }
}

impl OnPlatform {
    fn activated(&self, tenant: &TenantName, model: &ModelName, active: u64) -> Result<Activated, Refusal> {
        let previous = self.0.registry().model(tenant, model)?.and_then(|model| model.previous);
        Ok(Activated { model: model.as_str().to_owned(), active, previous })
    }
}

impl Endpoint for OnDeployed {
    fn tenant(&self) -> &TenantName {
        self.deployed.tenant()
    }

    fn name(&self) -> &str {
        self.deployed.name()
    }

    fn version(&self) -> u64 {
        self.deployed.version()
    }

    fn digest(&self) -> String {
        self.deployed.digest().to_string()
    }

    fn rows_max(&self) -> usize {
        self.deployed.rows_max()
    }

    fn description(&self) -> &Description {
        self.deployed.description()
    }

    fn is_slow_to_begin(&self) -> bool {
        self.deployed.unfold_usual() > UNFOLD_QUICK_MAX
    }

    fn ended_before(&self, kind: ErrorKind, since: Instant) {
        self.deployed.ended_before(kind, since);
    }

    fn infer(self: Arc<Self>, call: Call, client: Box<dyn Client>) -> Result<Answering, InferError> {
        let running = self.platform.infer(&self.deployed, call, client)?;
        Ok(Answering::new(move || running.cancel()))
    }
}

fn index_entry(entry: platform::IndexEntry) -> IndexEntry {
    let (state, reason) = match entry.state {
        platform::ModelState::Ready => (ModelState::Ready, String::new()),
        platform::ModelState::Loading => (ModelState::Loading, String::new()),
        platform::ModelState::Unavailable { reason } => (ModelState::Unavailable, reason),
    };
    IndexEntry { tenant: entry.tenant, name: entry.name, version: entry.version, state, reason }
}

fn model_figures(model: platform::ModelFigures) -> ModelFigures {
    let CallFiguresView {
        success,
        failure,
        queue,
        unfold,
        compute,
        requests,
        replayed,
        faults,
        shed,
        cancelled,
        expired,
        last_ms,
        latency,
    } = model.calls;
    let nanoseconds = |bucket| latency_bound(bucket).map(|bound| u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX));
    ModelFigures {
        tenant: model.tenant,
        name: model.name,
        version: model.version,
        in_flight: u64::from(model.in_flight),
        queued: u64::from(model.queued),
        success: total(success),
        failure: total(failure),
        queue: total(queue),
        unfold: total(unfold),
        compute: total(compute),
        requests,
        replayed,
        faults,
        shed,
        cancelled,
        expired,
        last_ms,
        latency: latency.iter().enumerate().map(|(bucket, count)| (nanoseconds(bucket), *count)).collect(),
        device_ns: model.device.device_ns,
        batches: by_size(&model.device.batches),
        cells: model.cells.iter().map(cell_figures).collect(),
    }
}

/// With the bounds of the sizes that each of them counts.
fn by_size(batches: &[u64]) -> Vec<(Option<u64>, u64)> {
    let last = batches.len().saturating_sub(1);
    batches.iter().enumerate().map(|(exponent, count)| ((exponent < last).then(|| 1 << exponent), *count)).collect()
}

fn cell_figures(cell: &platform::CellFigures) -> CellFigures {
    let counters = &cell.counters;
    let batches: Vec<u64> = counters.batches.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    CellFigures {
        name: cell.name.clone(),
        key: cell.key.clone(),
        batch_max: u64::from(cell.batch_max),
        tasks: counters.tasks.load(Ordering::Relaxed),
        rows: counters.rows.load(Ordering::Relaxed),
        busy_ns: counters.busy_ns.load(Ordering::Relaxed),
        batches: by_size(&batches),
        table: cell.tables.counts().map(|tables| TableFigures { bytes: tables.bytes, tokens: tables.tokens, filled: tables.filled }),
    }
}

fn total(view: TotalView) -> Total {
    Total { count: view.count, ns: view.ns }
}

//! Models of many tenants, as the registry remembers them, serving.
//!
//! [`Platform`] finds the version that answers under a name, and changes versions while calls go
//! on: a call keeps the version that it found until it has ended.

mod changes;
mod receiving;
mod report;
mod views;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use cellwright_backend::Backend;
use cellwright_bundle::ArchiveLimits;
use cellwright_protocol::messages::admin::PluginLog;
use cellwright_registry::{Registry, TenantName};
use cellwright_serving::{Serving, ServingOptions, StartError};

pub use self::changes::NewUpload;
use self::receiving::Arriving;
pub use self::views::{CellFigures, Figures, ModelFigures};
use crate::calls::Calls;
use crate::catalog::{Catalog, Deployed, ModelEntry, Reason, ServerBounds};
use crate::error::{LookupError, PlatformError};
use crate::limits::Limit;
use crate::queue;

/// How often draining looks whether all calls have ended.
const DRAIN_POLL: Duration = Duration::from_millis(5);

/// A platform's configuration.
#[derive(Debug)]
pub struct PlatformOptions {
    /// The host's.
    pub serving: ServingOptions,
    /// What a bundle may hold.
    pub archive: ArchiveLimits,
    /// Calls of one model in flight at once, unless its bundle asks for fewer.
    pub model_in_flight_max: u32,
    /// Calls of one tenant whose plugins take long that are unfolded at once.
    pub slow_begins_max: usize,
    /// Bytes of a streamed answer that may wait for its reader.
    pub part_bytes_max: u64,
}

impl PlatformOptions {
    /// The defaults, with a host of those options.
    #[must_use]
    pub fn new(serving: ServingOptions) -> Self {
        Self {
            model_in_flight_max: serving.engine.in_flight_max,
            serving,
            archive: ArchiveLimits::default(),
            slow_begins_max: std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)),
            part_bytes_max: Limit::PartBytes.default(),
        }
    }
}

/// How far a platform is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It loads the models that served when it stopped.
    Starting {
        /// So many are loaded.
        loaded: usize,
        /// Of so many.
        total: usize,
    },
    /// It serves.
    Ready,
    /// It takes nothing new.
    Draining,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Calls that had not ended in time.
    pub left: u32,
}

/// Models of many tenants, serving.
#[derive(Debug)]
pub struct Platform {
    // Dropped first: its requests hold versions, which hold nothing of what follows.
    calls: Arc<Calls>,
    registry: Registry,
    /// Held where the registry and the catalog must say the same of a tenant: while it is looked
    /// up, changed, deleted, or given a version.
    tenants: Mutex<()>,
    archive: ArchiveLimits,
    arriving: Arriving,
    starting: Starting,
}

/// How long a server that starts is not ready because models of several tenants load. After that a
/// model which takes longer is alone not ready, so that no tenant keeps a balancer from the others.
const STARTING_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Starting {
    since: Instant,
    /// Models that are meant to serve, and the tenants that have them.
    total: AtomicUsize,
    tenants: AtomicUsize,
    loaded: AtomicUsize,
    over: AtomicBool,
}

impl Starting {
    fn now() -> Self {
        let [total, tenants, loaded] = [(); 3].map(|()| AtomicUsize::default());
        Self { since: Instant::now(), total, tenants, loaded, over: AtomicBool::default() }
    }

    fn count(&self, models: &[(Arc<ModelEntry>, u64)]) {
        let tenants: BTreeSet<&TenantName> = models.iter().map(|(model, _)| &model.tenant.name).collect();
        self.total.store(models.len(), Ordering::Release);
        self.tenants.store(tenants.len(), Ordering::Release);
    }

    fn readiness(&self, now: Instant) -> Readiness {
        let is_long = self.tenants.load(Ordering::Acquire) > 1 && now.duration_since(self.since) >= STARTING_MAX;
        if is_long || self.over.load(Ordering::Acquire) {
            return Readiness::Ready;
        }
        Readiness::Starting { loaded: self.loaded.load(Ordering::Acquire), total: self.total.load(Ordering::Acquire) }
    }
}

impl Platform {
    /// Starts a host on those devices and loads, in threads of their own, what is meant to serve.
    ///
    /// # Errors
    /// If the host does not start or the registry cannot be read.
    pub fn start(options: PlatformOptions, registry: Registry, backends: Vec<Box<dyn Backend>>) -> Result<Arc<Self>, PlatformError> {
        let serving = Serving::start(options.serving, backends)?;
        let bounds = (options.model_in_flight_max, options.slow_begins_max, options.part_bytes_max);
        let platform = Arc::new(Self {
            calls: Arc::new(Calls::new(serving, bounds)?),
            registry,
            tenants: Mutex::default(),
            archive: options.archive,
            arriving: Arriving::default(),
            starting: Starting::now(),
        });
        let models = platform.remembered()?;
        platform.starting.count(&models);
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let (weak, server) = (Arc::downgrade(&platform), platform.catalog().server.clone());
        thread("retiring").spawn(move || Self::unload_retired(&weak, &server)).map_err(StartError::Thread)?;
        let starter = platform.clone();
        thread("loading").spawn(move || starter.load_remembered(models)).map_err(StartError::Thread)?;
        Ok(platform)
    }

    /// What is remembered.
    #[must_use]
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The host.
    #[must_use]
    pub fn serving(&self) -> &Serving {
        &self.calls.serving
    }

    /// The models that serve, for calls.
    #[must_use]
    pub const fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    fn catalog(&self) -> &Catalog {
        &self.calls.catalog
    }

    /// How far it is.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        if self.calls.draining.load(Ordering::Acquire) {
            return Readiness::Draining;
        }
        self.starting.readiness(Instant::now())
    }

    /// The version that answers under that name. It stays loaded as long as it is held.
    ///
    /// # Errors
    /// If there is no such model, or not that version of it serves.
    pub fn find(&self, tenant: &TenantName, model: &str, version: Option<&str>) -> Result<Arc<Deployed>, LookupError> {
        self.catalog().find(tenant, model, version)
    }

    /// How the plugin of a model has failed since that time, as far as it is remembered.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn plugin_log(&self, tenant: &TenantName, model: &str, after_ms: u64) -> Result<PluginLog, LookupError> {
        let entry = self.catalog().model(tenant, model).ok_or_else(|| LookupError::Unknown { model: model.to_owned() })?;
        Ok(PluginLog { failures: entry.tenant.plugin_log.after(entry.number, after_ms) })
    }

    /// Takes no new calls and waits until those in flight and those that wait have ended, or until
    /// the time is up.
    pub fn drain(&self, limit: Duration) -> Drained {
        self.calls.draining.store(true, Ordering::Release);
        let end = Instant::now() + limit;
        loop {
            let left = self.catalog().calls();
            if left == 0 || Instant::now() >= end {
                return Drained { left };
            }
            std::thread::sleep(DRAIN_POLL);
        }
    }

    /// Unloads versions as their last calls end, until the platform goes. One whose requests end slowly holds up no other.
    fn unload_retired(platform: &Weak<Self>, server: &ServerBounds) {
        let mut closed = Vec::new();
        while let Some(versions) = server.retired.next(closed.is_empty()) {
            // If the platform goes first, all of its models go with it.
            let Some(platform) = platform.upgrade() else { return };
            closed.extend(versions.iter().filter_map(|version| platform.serving().close(version)));
            closed.retain(|closed| !platform.serving().engine().forget_if_left(closed));
        }
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        // Those that run hear it from the engine.
        self.catalog().all_tenants().iter().for_each(|tenant| queue::end_all(tenant));
        // A model's entry and its version hold each other.
        self.catalog().models(None).iter().for_each(|model| model.take_out_of_service(Reason::Nothing));
        self.catalog().server.retired.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_of_several_tenants_keep_a_server_from_being_ready_for_a_while() {
        let is_ready = |tenants: usize, after: Duration| {
            let starting = Starting { tenants: tenants.into(), ..Starting::now() };
            starting.readiness(starting.since + after) == Readiness::Ready
        };
        assert!(!is_ready(2, STARTING_MAX / 2) && is_ready(2, STARTING_MAX));
        assert!(!is_ready(1, 100 * STARTING_MAX), "nobody else waits");
    }
}

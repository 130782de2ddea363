//! A host with its models: what the registry remembers, as it serves.
//!
//! [`Platform`] is what front ends talk to. It finds the version that answers under a name, takes calls for it within what its tenant may
//! use, and changes versions while calls go on: who has found a version keeps it until its call has ended.

mod changes;
mod receiving;
mod report;
mod views;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cellwright_backend::Backend;
use cellwright_bundle::ArchiveLimits;
use cellwright_registry::{Registry, TenantName};

pub use self::changes::{Activated, NewUpload, Uploaded};
pub use self::views::{CellFigures, Figures, IndexEntry, ModelFigures, ModelState};
use crate::calls::{Call, Taken, Tracked};
use crate::catalog::{Catalog, Deployed, Reason, Retiring};
use crate::deadlines::{Deadline, Deadlines};
use crate::error::{InferError, LookupError, PlatformError, StartError};
use crate::reply::Client;
use crate::request::Running;
use crate::serving::{Serving, ServingOptions};
use crate::waiting::{self, Beginning, Joined};

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
    serving: Serving,
    registry: Registry,
    catalog: Catalog,
    /// Held where the registry and the catalog must say the same of a tenant: while it is looked up, changed, deleted, or given a version.
    tenants: Mutex<()>,
    deadlines: Arc<Deadlines>,
    archive: ArchiveLimits,
    draining: AtomicBool,
    starting: Starting,
}

#[derive(Debug, Default)]
struct Starting {
    total: AtomicUsize,
    loaded: AtomicUsize,
    over: AtomicBool,
}

impl Platform {
    /// Starts a host on those devices and loads, in a thread of its own, what is meant to serve.
    ///
    /// # Errors
    /// If the host does not start or the registry cannot be read.
    pub fn start(options: PlatformOptions, registry: Registry, backends: Vec<Box<dyn Backend>>) -> Result<Arc<Self>, PlatformError> {
        let serving = Serving::start(options.serving, backends)?;
        let deadlines = Arc::new(Deadlines::start().map_err(StartError::Thread)?);
        let catalog = Catalog::new(Beginning {
            serving: Arc::downgrade(serving.inner()),
            plugin_calls: serving.inner().plugin_threads.calls(),
            clock: deadlines.clock(),
            devices: serving.engine().devices().count() as u64,
            model_in_flight_max: options.model_in_flight_max,
        });
        let platform = Arc::new(Self {
            serving,
            registry,
            catalog,
            tenants: Mutex::default(),
            deadlines,
            archive: options.archive,
            draining: AtomicBool::new(false),
            starting: Starting::default(),
        });
        let models = platform.remembered()?;
        platform.starting.total.store(models.len(), Ordering::Release);
        let starter = platform.clone();
        let load = move || starter.load_remembered(models);
        std::thread::Builder::new().name("loading".to_owned()).spawn(load).map_err(StartError::Thread)?;
        Ok(platform)
    }

    /// What is remembered.
    #[must_use]
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The host.
    #[must_use]
    pub const fn serving(&self) -> &Serving {
        &self.serving
    }

    /// How far it is.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        if self.draining.load(Ordering::Acquire) {
            return Readiness::Draining;
        }
        if self.starting.over.load(Ordering::Acquire) {
            return Readiness::Ready;
        }
        let (loaded, total) = (&self.starting.loaded, &self.starting.total);
        Readiness::Starting { loaded: loaded.load(Ordering::Acquire), total: total.load(Ordering::Acquire) }
    }

    /// The version that answers under that name. It stays loaded as long as it is held.
    ///
    /// # Errors
    /// If there is no such model, or not that version of it serves.
    pub fn find(&self, tenant: &TenantName, model: &str, version: Option<&str>) -> Result<Arc<Deployed>, LookupError> {
        self.catalog.find(tenant, model, version)
    }

    /// Takes a call. It is unfolded on the calling thread, or on one of the plugins' where it has to wait because its tenant or its model has as many
    /// in flight as it may, or its tenant has had its share of the devices; the answer goes to `client`.
    ///
    /// A call that waits stays with the version it was given, whatever serves meanwhile, and counts as taken: draining lets it begin and end.
    ///
    /// # Errors
    /// If the call is refused before anything of it runs or waits; `client` hears nothing then.
    pub fn infer(&self, model: &Arc<Deployed>, call: Call, client: Box<dyn Client>) -> Result<Running, InferError> {
        let since = call.since;
        let begun = self.begin(model, call, client);
        if let Err(error) = &begun {
            model.ended_before(error.kind(), since);
        }
        begun
    }

    fn begin(&self, model: &Arc<Deployed>, call: Call, client: Box<dyn Client>) -> Result<Running, InferError> {
        let started = call.since;
        if self.draining.load(Ordering::Acquire) {
            return Err(InferError::Draining);
        }
        let until = call.timeout.map(|timeout| started.checked_add(timeout).ok_or(InferError::Timeout)).transpose()?;
        let deadline = until.map(|at| (at, Arc::new(Deadline::default())));
        let watch = deadline.as_ref().map(|(_, deadline)| (self.deadlines.clone(), deadline.clone()));
        let taken = Taken { started, until, priority: call.priority, span: tracing::Span::current() };
        let mut tracked = Box::new(Tracked::new(client, model, taken, watch));
        // Nobody overtakes those that wait, unless it is by priority.
        let place = if model.entry.tenant.line.len() == 0 { model.enter().ok() } else { None };
        let joined = match place {
            Some(place) => {
                tracked.take(place);
                Joined::Now(call, tracked)
            }
            None => waiting::join(call, tracked)?,
        };
        let running = match joined {
            Joined::Waits(ticket) => Running::of_waiting(ticket),
            Joined::Now(call, tracked) => {
                let urgency = call.urgency(until);
                let unfolding = Instant::now();
                // Somebody may have kept it until now; of one that stood in line, that is told by whoever took it out.
                model.figures.calls.waited(unfolding.saturating_duration_since(started));
                let begun = self.serving.inner().begin(&model.served, (call.request, urgency), call.delivery, tracked);
                let took = unfolding.elapsed();
                // A plugin that only fails keeps its caller's thread as well.
                model.unfold_usual.took(took);
                let running = begun?;
                model.figures.calls.unfolded(took);
                running
            }
        };
        if let Some((at, deadline)) = deadline {
            self.deadlines.enter(at, running.clone(), &deadline);
        }
        Ok(running)
    }

    /// Takes no new calls and waits until those in flight and those that wait have ended, or until the time is up.
    pub fn drain(&self, limit: Duration) -> Drained {
        self.draining.store(true, Ordering::Release);
        let end = Instant::now() + limit;
        loop {
            let left = self.catalog.calls();
            if left == 0 || Instant::now() >= end {
                return Drained { left };
            }
            std::thread::sleep(DRAIN_POLL);
        }
    }

    /// Unloads a version when its last call has ended.
    fn retire(self: &Arc<Self>, retiring: Option<Retiring>) {
        let Some(retiring) = retiring else { return };
        // What is on its way out does not keep the platform: if that goes first, all of its models go with it.
        let platform = Arc::downgrade(self);
        let name = format!("retiring {}", retiring.served.name());
        let wait = move || {
            retiring.wait();
            if let Some(platform) = platform.upgrade() {
                platform.serving.unload(&retiring.served);
            }
        };
        if let Err(error) = std::thread::Builder::new().name(name).spawn(wait) {
            tracing::error!(%error, "a version stays loaded, because a thread could not be started");
        }
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        // Those that run hear it from the engine.
        self.catalog.all_tenants().iter().for_each(|tenant| waiting::end_all(tenant));
        // A model's entry and its version hold each other.
        self.catalog.models(None).iter().for_each(|model| drop(model.take_out_of_service(Reason::Nothing)));
    }
}

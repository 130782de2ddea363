//! What is in service now: tenants, their models, and the version of each model that answers.
//!
//! The registry remembers; requests look here. A tenant is changed in both under one lock. A model
//! is visible to others once it has a version.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use cellwright_cell_graph::Description;
use cellwright_registry::{Digest, ModelName, TenantName, TenantSettings};
use cellwright_serving::{Abandoned, CallBounds, ErrorKind, ServedModel};

use crate::bounds::{Bounds, ShareUsed};
use crate::calls::InFlight;
use crate::deadlines::Clock;
use crate::error::LookupError;
use crate::figures::UsualTime;
use crate::limits::{Limit, LimitReached};
use crate::plugin_log::PluginLog;
use crate::queue::TenantQueue;
use crate::retired::RetiredVersions;
use crate::session::OpenSessions;
use crate::version_figures::{VersionFigures, Versions};

/// Tenants that have, or had, models.
#[derive(Debug)]
pub(crate) struct Catalog {
    tenants: RwLock<HashMap<TenantName, Arc<TenantEntry>>>,
    /// Tenants that are no more, as long as calls of theirs go on.
    gone: Mutex<Vec<Weak<TenantEntry>>>,
    numbers: AtomicU32,
    pub(crate) server: Arc<ServerBounds>,
}

/// What holds for the calls of all tenants.
#[derive(Debug)]
pub(crate) struct ServerBounds {
    pub(crate) clock: Clock,
    /// Devices, of which tenants may have shares.
    pub(crate) devices: u64,
    /// Calls that one model may have in flight, unless it asks for fewer.
    pub(crate) model_in_flight_max: u32,
    pub(crate) retired: RetiredVersions,
}

/// A tenant, as far as requests are concerned.
#[derive(Debug)]
pub(crate) struct TenantEntry {
    pub(crate) name: TenantName,
    /// As the engine knows it.
    pub(crate) number: u32,
    pub(crate) weight: AtomicU32,
    pub(crate) in_flight: AtomicU32,
    pub(crate) bounds: Bounds,
    pub(crate) queue: TenantQueue,
    pub(crate) sessions: OpenSessions,
    pub(crate) plugin_log: PluginLog,
    /// Calls that keep a thread that served connections.
    pub(crate) long_begins: AtomicU32,
    pub(crate) server: Arc<ServerBounds>,
    /// Models it has had.
    model_numbers: AtomicU32,
    /// Device time and processor time of plugins that all its models have had, their checks
    /// included, in nanoseconds.
    pub(crate) used_ns: Arc<AtomicU64>,
    models: RwLock<HashMap<ModelName, Arc<ModelEntry>>>,
}

/// A model of a tenant, whatever version of it serves.
#[derive(Debug)]
pub(crate) struct ModelEntry {
    pub(crate) tenant: Arc<TenantEntry>,
    pub(crate) name: ModelName,
    /// Which of its tenant's models it is, so that a later model of that name is told apart.
    pub(crate) number: u32,
    pub(crate) in_flight: AtomicU32,
    /// As the version says that serves, or did last.
    pub(crate) bounds: Bounds,
    /// The same as its tenant's, of its versions.
    pub(crate) used_ns: Arc<AtomicU64>,
    pub(crate) versions: Versions,
    status: RwLock<ServingStatus>,
    /// Held while a version of it is checked or changed: one change at a time.
    changing: Mutex<()>,
    /// Ends the change that has that lock, or had it last.
    under_way: Mutex<Abandoned>,
    /// Clients that wait to take it out of service, for which no change goes on.
    overtaking: AtomicU32,
}

#[derive(Debug)]
struct ServingStatus {
    serving: Option<Arc<Deployed>>,
    /// Why it does not serve.
    reason: Reason,
}

/// Why a model does not serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Reason {
    /// Its first version is being checked, so the model is not in the registry yet.
    #[error("its first version is still being checked")]
    Absent,
    /// It has no version that was activated.
    #[error("none of its versions is active")]
    Nothing,
    /// The host has just started and comes to it.
    #[error("it is being loaded")]
    Loading,
    /// A client unloaded it.
    #[error("it was unloaded")]
    Unloaded,
    /// Its version did not load.
    #[error("its active version did not load: {0}")]
    Broken(String),
}

/// A version that answers. Who holds it keeps it loaded; dropped by the last one, it is unloaded.
#[derive(Debug)]
pub struct Deployed {
    pub(crate) entry: Arc<ModelEntry>,
    pub(crate) served: Arc<ServedModel>,
    version: u64,
    /// The same, as responses carry it.
    version_text: String,
    digest: Digest,
    pub(crate) figures: Arc<VersionFigures>,
    pub(crate) unfold_usual: UsualTime,
}

impl Drop for Deployed {
    fn drop(&mut self) {
        self.entry.tenant.server.retired.add(self.served.clone());
    }
}

impl Deployed {
    pub(crate) fn new(entry: Arc<ModelEntry>, served: Arc<ServedModel>, version: u64, digest: Digest) -> Arc<Self> {
        let figures = entry.versions.of(version);
        figures.serves(&served);
        let (version_text, unfold_usual) = (version.to_string(), UsualTime::default());
        Arc::new(Self { entry, served, version, version_text, digest, figures, unfold_usual })
    }

    /// A model's only version, which no registry knows.
    pub(crate) fn without_registry(tenant: &Arc<TenantEntry>, served: Arc<ServedModel>) -> Arc<Self> {
        let name = ModelName::parse(served.name()).unwrap_or_else(|_| ModelName::parse("model").expect("it is a name"));
        let entry = Catalog::enter_model(tenant, &name, Reason::Nothing);
        let deployed = Self::new(entry.clone(), served, 1, Digest::of_version(&[]));
        // Its entry keeps it until the process ends.
        entry.put_in_service(deployed.clone());
        deployed
    }

    /// The tenant whose it is.
    #[must_use]
    pub fn tenant(&self) -> &TenantName {
        &self.entry.tenant.name
    }

    /// The model's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.entry.name.as_str()
    }

    /// What serves it.
    #[must_use]
    pub const fn served(&self) -> &Arc<ServedModel> {
        &self.served
    }

    /// Which version of it this is.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The same as text.
    #[must_use]
    pub fn version_text(&self) -> &str {
        &self.version_text
    }

    /// What the version consists of.
    #[must_use]
    pub const fn digest(&self) -> &Digest {
        &self.digest
    }

    /// What its plugin says of it.
    #[must_use]
    pub fn description(&self) -> &Description {
        self.served.description()
    }

    /// Rows one call may bring; 0 where a call is one request.
    #[must_use]
    pub fn rows_max(&self) -> usize {
        if self.description().rows_are_requests { self.served.limits().rows_max } else { 0 }
    }

    /// How long taking a call has lately kept the thread that hands it over; long for a version
    /// that has taken few.
    #[must_use]
    pub fn unfold_usual(&self) -> Duration {
        self.unfold_usual.get()
    }

    /// A call that was given this version ended, that way, before it began: it came then.
    pub(crate) fn ended_before(&self, kind: ErrorKind, since: Instant) {
        self.figures.calls.record_failure(kind, since.elapsed());
    }

    /// Keeps how a request ended, if that was the plugin's fault.
    pub(crate) fn keep_failure(&self, request: &str, error: Option<(ErrorKind, &str)>) {
        if let Some((ErrorKind::PluginFault, error)) = error {
            self.entry.tenant.plugin_log.add((self.entry.number, self.version), request, error);
        }
    }

    /// Takes a place for a call that begins now.
    pub(crate) fn take_in_flight(self: &Arc<Self>) -> Result<InFlight, LimitReached> {
        let now = Instant::now();
        self.entry.tenant.check_share(now).map_err(|used| used.of(Limit::TenantDeviceShare))?;
        self.entry.check_share(now).map_err(|used| used.of(Limit::ModelDeviceShare))?;
        InFlight::take(self)
    }
}

impl TenantEntry {
    pub(crate) fn set(&self, settings: &TenantSettings) {
        self.weight.store(settings.weight, Ordering::Relaxed);
        let &TenantSettings { in_flight_max, queued_max, device_share, .. } = settings;
        self.bounds.set(&CallBounds { in_flight_max, queued_max, device_share });
    }

    /// Whether the tenant may use the devices, or has had its share of them.
    pub(crate) fn check_share(&self, now: Instant) -> Result<(), ShareUsed> {
        self.bounds.check_share(now, self.server.devices, || self.used_ns.load(Ordering::Relaxed))
    }

    fn model(&self, name: &str) -> Option<Arc<ModelEntry>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn models(&self) -> Vec<Arc<ModelEntry>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

impl ModelEntry {
    fn new(tenant: Arc<TenantEntry>, name: ModelName, reason: Reason) -> Self {
        Self {
            number: tenant.model_numbers.fetch_add(1, Ordering::Relaxed),
            tenant,
            name,
            in_flight: AtomicU32::new(0),
            bounds: Bounds::default(),
            used_ns: Arc::default(),
            versions: Versions::default(),
            status: RwLock::new(ServingStatus { serving: None, reason }),
            changing: Mutex::default(),
            under_way: Mutex::default(),
            overtaking: AtomicU32::new(0),
        }
    }

    /// Whether the model may use the devices, or has had its share of them.
    pub(crate) fn check_share(&self, now: Instant) -> Result<(), ShareUsed> {
        self.bounds.check_share(now, self.tenant.server.devices, || self.used_ns.load(Ordering::Relaxed))
    }

    /// One change of its versions at a time, which goes on unless it is given up.
    pub(crate) fn change(&self, abandoned: &Abandoned) -> MutexGuard<'_, ()> {
        let changing = self.lock();
        self.under_way().clone_from(abandoned);
        if self.is_overtaken() {
            abandoned.give_up();
        }
        changing
    }

    /// A change that takes the model out of service. It waits for none that is under way or waits.
    pub(crate) fn overtake(&self) -> MutexGuard<'_, ()> {
        self.overtaking.fetch_add(1, Ordering::SeqCst);
        self.under_way().give_up();
        let changing = self.lock();
        self.overtaking.fetch_sub(1, Ordering::SeqCst);
        changing
    }

    /// Whether somebody waits to take it out of service.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.overtaking.load(Ordering::SeqCst) > 0
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn under_way(&self) -> MutexGuard<'_, Abandoned> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has had no version yet.
    pub(crate) fn is_absent(&self) -> bool {
        let status = self.status.read().unwrap_or_else(PoisonError::into_inner);
        status.serving.is_none() && status.reason == Reason::Absent
    }

    /// Marks that it has a version, whether or not that serves.
    pub(crate) fn mark_present(&self) {
        let mut status = self.status.write().unwrap_or_else(PoisonError::into_inner);
        if status.reason == Reason::Absent {
            status.reason = Reason::Nothing;
        }
    }

    /// The model is no more, or never was.
    pub(crate) fn forget(&self) {
        self.tenant.models.write().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }

    /// What serves, or why nothing does.
    pub(crate) fn serving(&self) -> Result<Arc<Deployed>, Reason> {
        let status = self.status.read().unwrap_or_else(PoisonError::into_inner);
        status.serving.clone().ok_or_else(|| status.reason.clone())
    }

    /// That version serves from now on.
    pub(crate) fn put_in_service(&self, deployed: Arc<Deployed>) {
        let settings = deployed.served.bounds();
        let in_flight_max = settings.in_flight_max.min(self.tenant.server.model_in_flight_max);
        self.bounds.set(&CallBounds { in_flight_max, ..settings });
        let before = self.status.write().unwrap_or_else(PoisonError::into_inner).serving.replace(deployed);
        // Without the lock.
        drop(before);
    }

    /// Nothing serves from now on.
    pub(crate) fn take_out_of_service(&self, reason: Reason) {
        let before = {
            let mut status = self.status.write().unwrap_or_else(PoisonError::into_inner);
            status.reason = reason;
            status.serving.take()
        };
        drop(before);
    }
}

impl Catalog {
    pub(crate) fn new(server: ServerBounds) -> Self {
        Self { tenants: RwLock::default(), gone: Mutex::default(), numbers: AtomicU32::new(0), server: Arc::new(server) }
    }

    fn tenant(&self, name: &TenantName) -> Option<Arc<TenantEntry>> {
        self.tenants.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// The tenant's entry, made if it is not there, with these settings from now on.
    pub(crate) fn enter_tenant(&self, name: &TenantName, settings: &TenantSettings) -> Arc<TenantEntry> {
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        let entry = tenants.entry(name.clone()).or_insert_with(|| {
            Arc::new(TenantEntry {
                name: name.clone(),
                number: self.numbers.fetch_add(1, Ordering::Relaxed),
                weight: AtomicU32::new(1),
                in_flight: AtomicU32::new(0),
                bounds: Bounds::default(),
                queue: TenantQueue::default(),
                sessions: OpenSessions::default(),
                plugin_log: PluginLog::default(),
                long_begins: AtomicU32::new(0),
                server: self.server.clone(),
                model_numbers: AtomicU32::new(0),
                used_ns: Arc::default(),
                models: RwLock::default(),
            })
        });
        entry.set(settings);
        entry.clone()
    }

    /// The model's entry, made if it is not there.
    pub(crate) fn enter_model(tenant: &Arc<TenantEntry>, name: &ModelName, reason: Reason) -> Arc<ModelEntry> {
        let mut models = tenant.models.write().unwrap_or_else(PoisonError::into_inner);
        models.entry(name.clone()).or_insert_with(|| Arc::new(ModelEntry::new(tenant.clone(), name.clone(), reason))).clone()
    }

    /// The tenant is no more; gives its entry, if there was one.
    pub(crate) fn forget_tenant(&self, name: &TenantName) -> Option<Arc<TenantEntry>> {
        let gone = self.tenants.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        let mut all = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|tenant| tenant.strong_count() > 0);
        all.extend(gone.as_ref().map(Arc::downgrade));
        gone
    }

    /// Whether the model is still known under its name, as that entry.
    pub(crate) fn has(&self, entry: &Arc<ModelEntry>) -> bool {
        let known = self.tenant(&entry.tenant.name).and_then(|tenant| tenant.model(entry.name.as_str()));
        known.is_some_and(|known| Arc::ptr_eq(&known, entry))
    }

    /// The model of that name, if it has a version.
    pub(crate) fn model(&self, tenant: &TenantName, name: &str) -> Option<Arc<ModelEntry>> {
        self.tenant(tenant)?.model(name).filter(|entry| !entry.is_absent())
    }

    /// All models, or a tenant's.
    pub(crate) fn models(&self, tenant: Option<&TenantName>) -> Vec<Arc<ModelEntry>> {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        let chosen = tenants.values().filter(|entry| tenant.is_none_or(|name| entry.name == *name));
        let mut models: Vec<Arc<ModelEntry>> = chosen.flat_map(|entry| entry.models()).filter(|model| !model.is_absent()).collect();
        models.sort_by(|a, b| (&a.tenant.name, &a.name).cmp(&(&b.tenant.name, &b.name)));
        models
    }

    /// All tenants, and those that are no more but have calls that go on.
    pub(crate) fn all_tenants(&self) -> Vec<Arc<TenantEntry>> {
        let mut tenants: Vec<_> = self.tenants.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        tenants.extend(self.gone.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade));
        tenants
    }

    /// Calls that have been taken and not ended, over all tenants.
    pub(crate) fn calls(&self) -> u32 {
        // A call takes its place before it leaves the queue: it is counted twice rather than not at
        // all.
        let calls = |entry: &Arc<TenantEntry>| entry.queue.len() + entry.in_flight.load(Ordering::SeqCst);
        self.all_tenants().iter().map(calls).sum()
    }

    /// What answers under that name, if it is that version.
    pub(crate) fn find(&self, tenant: &TenantName, name: &str, version: Option<&str>) -> Result<Arc<Deployed>, LookupError> {
        let unknown = || LookupError::Unknown { model: shown(name) };
        let entry = self.model(tenant, name).ok_or_else(unknown)?;
        let model = || entry.name.as_str().to_owned();
        // A plugin's words are for its owner, who sees them in the list of models.
        let told =
            |reason| if matches!(reason, Reason::Broken(_)) { "its active version did not load".to_owned() } else { reason.to_string() };
        let deployed = entry.serving().map_err(|reason| LookupError::NotServing { model: model(), reason: told(reason) })?;
        match version {
            Some(asked) if asked != deployed.version_text => {
                Err(LookupError::OtherVersion { model: model(), asked: shown(asked), serving: deployed.version })
            }
            _ => Ok(deployed),
        }
    }
}

/// What a client wrote, fit to be shown.
fn shown(text: &str) -> String {
    const CHARACTERS_MAX: usize = 128;
    text.chars().take(CHARACTERS_MAX).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadlines::Deadlines;

    #[test]
    fn a_model_is_there_when_it_has_a_version() {
        let deadlines = Deadlines::start().unwrap();
        let server = ServerBounds { clock: deadlines.clock(), devices: 1, model_in_flight_max: 1, retired: RetiredVersions::default() };
        let (catalog, tenant) = (Catalog::new(server), TenantName::default_tenant());
        let owner = catalog.enter_tenant(&tenant, &TenantSettings::default());
        let entry = Catalog::enter_model(&owner, &ModelName::parse("m").unwrap(), Reason::Absent);
        assert!(catalog.has(&entry) && catalog.model(&tenant, "m").is_none() && catalog.models(None).is_empty());
        assert_eq!(catalog.find(&tenant, "m", None).unwrap_err(), LookupError::Unknown { model: "m".to_owned() });
        entry.mark_present();
        assert_eq!(catalog.models(None).len(), 1);
        assert!(matches!(catalog.find(&tenant, "m", None), Err(LookupError::NotServing { .. })));
        entry.forget();
        assert!(!catalog.has(&entry));
    }
}

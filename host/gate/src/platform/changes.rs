//! What changes which version answers: uploads, activation, rolling back, loading, unloading,
//! deleting.
//!
//! The order is always the same: check, then make it durable, then switch. So what was acknowledged
//! survives, what fails its checks changes nothing, and calls find either the old version or the
//! new one. One change of a model at a time; whoever takes it out of service ends the one that is
//! under way. Every call here may take seconds and belongs on a thread that may block.

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cellwright_bundle::{ArchiveError, ArchiveLimits, Bundle, Folder, unpack};
use cellwright_protocol::messages::admin::{Activated, SampleResult, Uploaded};
use cellwright_registry::{
    Committed, Digest, Model, ModelName, NewVersion, RegistryError, Tenant, TenantName, TenantSettings, VersionFile,
};
use cellwright_serving::samples::{self, SampleBounds, SampleReport};
use cellwright_serving::{Abandoned, LoadError, Owner, ServedModel};

use super::Platform;
use super::receiving::{self, Receiving};
use super::report;
use crate::catalog::{Catalog, Deployed, ModelEntry, Reason, TenantEntry};
use crate::error::ChangeError;
use crate::queue;

/// How often an upload may find that its model was deleted while it waited for it.
const ENTRIES_MAX: usize = 100;

/// Tenants one of whose models is loaded at once after a start.
const LOADING_AT_ONCE: usize = 8;

/// What an upload is to become.
#[derive(Clone, Debug)]
pub struct NewUpload {
    /// Whether it is to answer from then on.
    pub activate: bool,
    /// Whether whoever sent it still waits.
    pub abandoned: Abandoned,
}

impl Default for NewUpload {
    fn default() -> Self {
        Self { activate: true, abandoned: Abandoned::default() }
    }
}

/// Uploads.
impl Platform {
    /// Receives a bundle (`.tar`, `.tar.zst`) as the model's next version: unpacks it to disk while
    /// it comes, loads it, runs its samples, and makes it a version if they pass.
    ///
    /// # Errors
    /// If the archive or the bundle does not hold, a sample fails, there is no room, or nobody waited for it any more before it was a version; nothing has
    /// changed then, and the version that answered goes on.
    pub fn upload(&self, tenant: &TenantName, model: &ModelName, archive: impl Read, upload: NewUpload) -> Result<Uploaded, ChangeError> {
        let (owner, room) = (self.tenant(tenant)?, self.registry.room(tenant, model)?);
        let limits = ArchiveLimits { bytes_max: self.archive.bytes_max.min(room.bytes_max), ..self.archive };
        let mut receiving = Receiving::new(&self.registry, &owner, &self.arriving, room);
        if let Err(error) = unpack(archive, &limits, &mut receiving) {
            let fault = receiving.fault.take();
            let stored = receiving::stored(&receiving.take_files());
            self.collect_garbage_of(&stored);
            return Err(match (fault, error) {
                (Some(fault), _) => fault.into(),
                (None, ArchiveError::TooLarge { .. }) if limits.bytes_max < self.archive.bytes_max => {
                    self.registry.check_room(tenant, model)?;
                    Receiving::too_many_bytes(&owner).into()
                }
                (None, error) => error.into(),
            });
        }
        let files = receiving.take_files();
        let stored = receiving::stored(&files);
        for _ in 0..ENTRIES_MAX {
            let entry = match self.enter(tenant, model) {
                Ok(entry) => entry,
                Err(error) => {
                    drop(files);
                    self.collect_garbage_of(&stored);
                    return Err(error.into());
                }
            };
            let _changing = entry.change(&upload.abandoned);
            // Whoever changed it before may have deleted it, or its first upload may have failed.
            if !self.catalog().has(&entry) {
                continue;
            }
            let uploaded = self.take_in(&entry, files, &upload);
            match &uploaded {
                Ok(_) => entry.mark_present(),
                Err(_) => {
                    self.forget_if_unknown(&entry);
                    self.collect_garbage_of(&stored);
                }
            }
            return uploaded;
        }
        drop(files);
        self.collect_garbage_of(&stored);
        Err(ChangeError::Contended { model: model.clone() })
    }

    fn take_in(&self, entry: &Arc<ModelEntry>, files: Vec<VersionFile>, upload: &NewUpload) -> Result<Uploaded, ChangeError> {
        let NewUpload { activate, abandoned } = upload;
        let activate = *activate;
        let (tenant, name) = (&entry.tenant.name, &entry.name);
        let digest = receiving::digest(&files);
        if let Some(known) = self.registry.find_digest(tenant, name, &digest)? {
            if activate {
                self.switch_to(entry, known.number, abandoned)?;
            }
            let activated = entry.serving().is_ok_and(|deployed| deployed.version() == known.number);
            return Ok(uploaded(name, (known.number, &digest), (true, activated), Vec::new()));
        }
        wanted(entry, abandoned)?;
        self.registry.check_room(tenant, name)?;
        let folder = Folder::of_files(receiving::paths(&self.registry, &files));
        // Its samples and its plugin are in memory until they were tried.
        let mut room = self.serving().engine().weight_grant(entry.tenant.number);
        room.hold(Bundle::reading_bytes(&folder)?).map_err(LoadError::from)?;
        let bundle = Bundle::read(folder)?;
        let served = self.load_bundle(entry, &bundle, abandoned)?;
        let tried = self.try_out(entry, &served, (&bundle, abandoned));
        let committed = tried.and_then(|samples| {
            let version = NewVersion { files, report: report::of(&samples), activate };
            Ok((self.commit(entry, version)?, samples))
        });
        let (committed, samples) = match committed {
            Ok(committed) => committed,
            Err(error) => {
                self.serving().unload(&served);
                return Err(error);
            }
        };
        let version = committed.version.number;
        if activate {
            Self::put_in_service(entry, served, version, digest);
        } else {
            self.serving().unload(&served);
        }
        Ok(uploaded(name, (version, &digest), (committed.existed, activate), samples))
    }

    /// Makes it a version, unless the tenant was deleted while it was checked: another of the same
    /// name may have come.
    fn commit(&self, entry: &Arc<ModelEntry>, version: NewVersion) -> Result<Committed, ChangeError> {
        let (tenant, name) = (&entry.tenant.name, &entry.name);
        let _tenants = self.lock_tenants();
        if !self.catalog().has(entry) {
            return Err(RegistryError::TenantMissing(tenant.clone()).into());
        }
        Ok(self.registry.commit_version(tenant, name, version)?)
    }

    /// Runs the samples, all of which must pass.
    fn try_out(
        &self,
        entry: &ModelEntry,
        served: &Arc<ServedModel>,
        (bundle, abandoned): (&Bundle, &Abandoned),
    ) -> Result<Vec<SampleReport>, ChangeError> {
        let bounds = SampleBounds { abandoned: abandoned.clone(), ..SampleBounds::default() };
        let reports = samples::run(self.serving(), served, bundle, &bounds);
        wanted(entry, abandoned)?;
        report::passed(reports)
    }
}

/// Which version answers.
impl Platform {
    /// Has that version answer.
    ///
    /// # Errors
    /// If there is no such version or it does not load; the one that answered goes on.
    pub fn activate(&self, tenant: &TenantName, model: &ModelName, version: u64, abandoned: &Abandoned) -> Result<Activated, ChangeError> {
        self.changing((tenant, model), Some(abandoned), |entry| self.switch_to(entry, version, abandoned))
    }

    /// Has the version answer that did before the one that does.
    ///
    /// # Errors
    /// If there is none, or it does not load; the one that answers goes on.
    pub fn roll_back(&self, tenant: &TenantName, model: &ModelName, abandoned: &Abandoned) -> Result<Activated, ChangeError> {
        self.changing((tenant, model), Some(abandoned), |entry| {
            let known = self.registry.model(tenant, model)?.ok_or_else(|| RegistryError::ModelMissing(model.clone()))?;
            let version = known.previous.ok_or_else(|| RegistryError::NothingToRollBack(model.clone()))?;
            self.switch_with(entry, (version, abandoned), |platform| platform.registry.roll_back(tenant, model))
        })
    }

    /// Puts the model's active version into service, if it is not; also after a restart.
    ///
    /// # Errors
    /// If there is no active version or it does not load.
    pub fn load(&self, tenant: &TenantName, model: &ModelName, abandoned: &Abandoned) -> Result<Activated, ChangeError> {
        self.changing((tenant, model), Some(abandoned), |entry| {
            let known = self.registry.model(tenant, model)?.ok_or_else(|| RegistryError::ModelMissing(model.clone()))?;
            let version = known.active.ok_or_else(|| ChangeError::NoActiveVersion { model: model.clone() })?;
            self.switch_with(entry, (version, abandoned), |platform| platform.registry.set_loaded(tenant, model, true))
        })
    }

    /// Takes the model out of service until it is loaded again; also after a restart. Calls that
    /// have found it end in peace. A load of it ends without a result.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn unload(&self, tenant: &TenantName, model: &ModelName) -> Result<(), ChangeError> {
        self.changing((tenant, model), None, |entry| {
            let known = self.registry.set_loaded(tenant, model, false)?;
            // As the next start will say.
            let reason = if known.active.is_some() { Reason::Unloaded } else { Reason::Nothing };
            entry.take_out_of_service(reason);
            Ok(())
        })
    }

    /// Deletes a version that does not answer.
    ///
    /// # Errors
    /// If there is none, or it is the active one.
    pub fn delete_version(&self, tenant: &TenantName, model: &ModelName, version: u64) -> Result<(), ChangeError> {
        self.changing((tenant, model), Some(&Abandoned::default()), |entry| {
            let blobs = self.registry.delete_version(tenant, model, version)?;
            entry.versions.forget(version);
            self.collect_garbage_of(&blobs);
            Ok(())
        })
    }

    /// Deletes a model with all its versions. Calls that have found it end in peace. A load of it
    /// ends without a result.
    ///
    /// # Errors
    /// If there is no such model.
    pub fn delete_model(&self, tenant: &TenantName, model: &ModelName) -> Result<(), ChangeError> {
        self.changing((tenant, model), None, |entry| {
            let blobs = self.registry.delete_model(tenant, model)?;
            entry.take_out_of_service(Reason::Nothing);
            entry.forget();
            self.collect_garbage_of(&blobs);
            Ok(())
        })
    }

    /// Changes a model that has a version, when whoever changes it now is done. `abandoned` gives the
    /// change up; without it, it takes the model out of service and waits for no load.
    fn changing<T>(
        &self,
        (tenant, model): (&TenantName, &ModelName),
        abandoned: Option<&Abandoned>,
        change: impl FnOnce(&Arc<ModelEntry>) -> Result<T, ChangeError>,
    ) -> Result<T, ChangeError> {
        let missing = || RegistryError::ModelMissing(model.clone());
        let entry = self.catalog().model(tenant, model.as_str()).ok_or_else(missing)?;
        let _changing = abandoned.map_or_else(|| entry.overtake(), |abandoned| entry.change(abandoned));
        // Whoever changed it before may have deleted it.
        if self.catalog().has(&entry) { change(&entry) } else { Err(missing().into()) }
    }

    fn switch_to(&self, entry: &Arc<ModelEntry>, version: u64, abandoned: &Abandoned) -> Result<Activated, ChangeError> {
        self.switch_with(entry, (version, abandoned), |platform| platform.registry.activate(&entry.tenant.name, &entry.name, version))
    }

    /// Loads a version, makes the change durable, and switches.
    fn switch_with(
        &self,
        entry: &Arc<ModelEntry>,
        (version, abandoned): (u64, &Abandoned),
        commit: impl FnOnce(&Self) -> Result<Model, RegistryError>,
    ) -> Result<Activated, ChangeError> {
        let before = entry.serving().ok().map(|deployed| deployed.version());
        if before == Some(version) {
            let model = commit(self)?;
            return Ok(activated(&model, version));
        }
        let (served, digest) = self.load_version(entry, (version, abandoned))?;
        let model = match commit(self) {
            Ok(model) => model,
            Err(error) => {
                self.serving().unload(&served);
                return Err(error.into());
            }
        };
        Self::put_in_service(entry, served, version, digest);
        Ok(activated(&model, version))
    }

    fn put_in_service(entry: &Arc<ModelEntry>, served: Arc<ServedModel>, version: u64, digest: Digest) {
        entry.put_in_service(Deployed::new(entry.clone(), served, version, digest));
        // Its bounds may be wider than those of the version before.
        queue::begin_next(&entry.tenant);
    }

    fn load_version(&self, entry: &ModelEntry, (version, abandoned): (u64, &Abandoned)) -> Result<(Arc<ServedModel>, Digest), ChangeError> {
        let (tenant, name) = (&entry.tenant.name, &entry.name);
        let missing = || RegistryError::VersionMissing { model: name.clone(), version };
        let files = self.registry.files(tenant, name, version)?;
        let known = self.registry.model(tenant, name)?.ok_or_else(|| RegistryError::ModelMissing(name.clone()))?;
        let digest = known.version(version).ok_or_else(missing)?.digest;
        // Samples have passed, of the bytes that were uploaded then.
        self.registry.verify(&files)?;
        let bundle = Bundle::read_untried(Folder::of_files(receiving::paths(&self.registry, &files)))?;
        Ok((self.load_bundle(entry, &bundle, abandoned)?, digest))
    }

    fn load_bundle(&self, entry: &ModelEntry, bundle: &Bundle, abandoned: &Abandoned) -> Result<Arc<ServedModel>, ChangeError> {
        let tenant = &entry.tenant;
        let weight = tenant.weight.load(Ordering::Relaxed);
        let charged = [tenant.used_ns.clone(), entry.used_ns.clone()];
        let owner = Owner { tenant: tenant.name.as_str(), number: tenant.number, weight, charged: &charged };
        let served = self.serving().load_as(bundle, entry.name.as_str(), owner, abandoned);
        let served = served.or_else(|error| wanted(entry, abandoned).and(Err(error.into())))?;
        // It may have changed while that took its time.
        let _tenants = self.lock_tenants();
        self.serving().set_tenant_weight(tenant.number, tenant.weight.load(Ordering::Relaxed));
        Ok(served)
    }
}

/// Tenants.
impl Platform {
    /// Makes a tenant, which has its part of what tenants share from now on.
    ///
    /// # Errors
    /// If there is one of that name, or the settings make no sense.
    pub fn create_tenant(&self, name: &TenantName, settings: &TenantSettings) -> Result<Tenant, ChangeError> {
        let _tenants = self.lock_tenants();
        let tenant = self.registry.create_tenant(name, settings)?;
        self.enter_tenant(&tenant);
        Ok(tenant)
    }

    /// Changes what a tenant may use, from now on.
    ///
    /// # Errors
    /// If there is no such tenant, or the settings make no sense.
    pub fn set_tenant(&self, name: &TenantName, settings: &TenantSettings) -> Result<Tenant, ChangeError> {
        let _tenants = self.lock_tenants();
        let tenant = self.registry.set_tenant(name, settings)?;
        // It may have more in flight now.
        queue::begin_next(&self.enter_tenant(&tenant));
        Ok(tenant)
    }

    /// Deletes a tenant that has no models, and its keys.
    ///
    /// # Errors
    /// If there is no such tenant, or it has models.
    pub fn delete_tenant(&self, name: &TenantName) -> Result<(), ChangeError> {
        let _tenants = self.lock_tenants();
        self.registry.delete_tenant(name)?;
        if let Some(gone) = self.catalog().forget_tenant(name) {
            self.serving().set_tenant_weight(gone.number, 0);
        }
        Ok(())
    }

    fn tenant(&self, name: &TenantName) -> Result<Tenant, RegistryError> {
        self.registry.tenant(name)?.ok_or_else(|| RegistryError::TenantMissing(name.clone()))
    }

    /// The model's entry, made if it is not there. It is the tenant's who has that name now.
    fn enter(&self, tenant: &TenantName, model: &ModelName) -> Result<Arc<ModelEntry>, RegistryError> {
        let _tenants = self.lock_tenants();
        let owner = self.enter_tenant(&self.tenant(tenant)?);
        Ok(Catalog::enter_model(&owner, model, Reason::Absent))
    }

    /// The tenant's entry, made if it is not there, as the tenant is now.
    fn enter_tenant(&self, tenant: &Tenant) -> Arc<TenantEntry> {
        let entry = self.catalog().enter_tenant(&tenant.name, &tenant.settings);
        self.serving().set_tenant_weight(entry.number, tenant.settings.weight);
        entry
    }

    fn lock_tenants(&self) -> MutexGuard<'_, ()> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starting.
impl Platform {
    /// The models of all tenants, as they are remembered, entered in the catalog.
    pub(super) fn remembered(&self) -> Result<Vec<(Arc<ModelEntry>, u64)>, RegistryError> {
        let mut meant_to_serve = Vec::new();
        for tenant in self.registry.tenants()? {
            let owner = self.enter_tenant(&tenant);
            for model in self.registry.models(Some(&tenant.name))? {
                let reason = match (model.active, model.loaded) {
                    (None, _) => Reason::Nothing,
                    (Some(_), false) => Reason::Unloaded,
                    (Some(_), true) => Reason::Loading,
                };
                let entry = Catalog::enter_model(&owner, &model.name, reason.clone());
                if let (Some(version), Reason::Loading) = (model.active, reason) {
                    meant_to_serve.push((entry, version));
                }
            }
        }
        Ok(meant_to_serve)
    }

    /// Loads them: a tenant's one after the other, those of several tenants side by side, in turns.
    /// One that does not load leaves the others alone.
    pub(super) fn load_remembered(&self, models: Vec<(Arc<ModelEntry>, u64)>) {
        let mut by_tenant: BTreeMap<TenantName, VecDeque<_>> = BTreeMap::new();
        models.into_iter().for_each(|model| by_tenant.entry(model.0.tenant.name.clone()).or_default().push_back(model));
        let threads = by_tenant.len().min(LOADING_AT_ONCE);
        let queue = Mutex::new(by_tenant.into_values().collect::<VecDeque<_>>());
        let queue = || queue.lock().unwrap_or_else(PoisonError::into_inner);
        let load = || {
            // Not with the lock: it is to be free while a model loads.
            while let Some(mut of_tenant) = { queue().pop_front() } {
                if let Some((entry, version)) = of_tenant.pop_front() {
                    self.load_one_remembered(&entry, version);
                    queue().push_back(of_tenant);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Without it, others load what it would.
                let _ = std::thread::Builder::new().name("loading".to_owned()).spawn_scoped(scope, load);
            }
            load();
        });
        self.starting.over.store(true, Ordering::Release);
        if let Err(error) = self.registry.collect_garbage() {
            tracing::warn!("unused files could not be deleted: {error}");
        }
    }

    fn load_one_remembered(&self, entry: &Arc<ModelEntry>, version: u64) {
        let abandoned = Abandoned::default();
        let _changing = entry.change(&abandoned);
        // Somebody may have changed it meanwhile, or be about to.
        if entry.serving().err() == Some(Reason::Loading) {
            match self.load_version(entry, (version, &abandoned)) {
                Ok((served, digest)) => Self::put_in_service(entry, served, version, digest),
                Err(error) => {
                    tracing::error!(model = %entry.name, tenant = %entry.tenant.name, version, "a model could not be loaded: {error}");
                    entry.take_out_of_service(Reason::Broken(error.told()));
                }
            }
        }
        self.starting.loaded.fetch_add(1, Ordering::AcqRel);
    }

    /// A model whose first upload failed was never there.
    fn forget_if_unknown(&self, entry: &ModelEntry) {
        if let Ok(None) = self.registry.model(&entry.tenant.name, &entry.name) {
            entry.forget();
        }
    }

    /// What an upload that failed has stored or a version had, and nothing else: that may be as often
    /// as somebody likes, and there may be any number of blobs.
    fn collect_garbage_of(&self, stored: &[Digest]) {
        if let Err(error) = self.registry.collect_garbage_of(stored) {
            tracing::warn!("unused files could not be deleted: {error}");
        }
    }
}

fn activated(model: &Model, active: u64) -> Activated {
    Activated { model: model.name.as_str().to_owned(), active, previous: model.previous }
}

fn uploaded(
    model: &ModelName,
    (version, digest): (u64, &Digest),
    (existed, activated): (bool, bool),
    samples: Vec<SampleReport>,
) -> Uploaded {
    let sample = |report: SampleReport| SampleResult {
        name: report.name,
        ok: report.fault.is_none(),
        compared: Some(report.compared),
        error: report.fault,
    };
    let samples = samples.into_iter().map(sample).collect();
    Uploaded { model: model.as_str().to_owned(), version, digest: digest.to_string(), samples, existed, activated }
}

/// Whether somebody still waits for a change of that model.
fn wanted(entry: &ModelEntry, abandoned: &Abandoned) -> Result<(), ChangeError> {
    match (abandoned.is_so(), entry.is_overtaken()) {
        (false, _) => Ok(()),
        (true, true) => Err(ChangeError::Overtaken { model: entry.name.clone() }),
        (true, false) => Err(ChangeError::Abandoned),
    }
}

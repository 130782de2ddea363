//! What the server needs of whatever stands behind it, so that its own tests can stand there too.
//!
//! In production this is `cellwright_serving`'s platform; the words here are its words.

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_cell_graph::Description;
use cellwright_protocol::messages::admin::{Activated, Uploaded};
use cellwright_protocol::messages::repository::ModelState;
use cellwright_registry::{ModelName, Registry, Tenant, TenantName, TenantSettings};
use cellwright_serving::{Call, Client, ErrorKind, InferError, NewUpload, Readiness};

use crate::figures::Figures;
use crate::refusal::Refusal;

/// Everything behind the HTTP layer.
///
/// Calls that change something may take seconds and are made on threads that may block; looking up, asking how it goes and `infer` are called on
/// threads that serve others too and return at once.
pub trait Host: Send + Sync + 'static {
    /// Tenants and keys.
    fn registry(&self) -> &Registry;

    /// Whether requests can be served.
    fn readiness(&self) -> Readiness;

    /// The version of a model that a request means: that one, or without one the active one. Holding it keeps it alive.
    ///
    /// # Errors
    /// There is no such model or version, or it does not serve now.
    fn find(&self, tenant: &TenantName, model: &str, version: Option<&str>) -> Result<Arc<dyn Endpoint>, Refusal>;

    /// Which models there are: a tenant's, or all.
    fn index(&self, tenant: Option<&TenantName>) -> Vec<IndexEntry>;

    /// How models fare, and what they run on: a tenant's models, or all.
    fn figures(&self, tenant: Option<&TenantName>) -> Figures;

    /// Takes a bundle's archive as a model's next version, and gives up soon after that was abandoned; blocks.
    ///
    /// # Errors
    /// The archive, the bundle in it or one of its samples does not hold; nothing has changed then.
    fn upload(&self, tenant: &TenantName, model: &ModelName, archive: &mut dyn Read, upload: NewUpload) -> Result<Uploaded, Refusal>;

    /// Lets a version answer from now on; blocks.
    ///
    /// # Errors
    /// There is no such version, or it does not load.
    fn activate(&self, tenant: &TenantName, model: &ModelName, version: u64) -> Result<Activated, Refusal>;

    /// Lets the version answer that did before; blocks.
    ///
    /// # Errors
    /// There is none, or it does not load.
    fn roll_back(&self, tenant: &TenantName, model: &ModelName) -> Result<Activated, Refusal>;

    /// Puts a model's active version into service; blocks.
    ///
    /// # Errors
    /// There is none, or it does not load.
    fn load(&self, tenant: &TenantName, model: &ModelName) -> Result<(), Refusal>;

    /// Takes a model out of service; blocks.
    ///
    /// # Errors
    /// There is no such model.
    fn unload(&self, tenant: &TenantName, model: &ModelName) -> Result<(), Refusal>;

    /// Deletes a version that does not answer; blocks.
    ///
    /// # Errors
    /// There is no such version, or it is the active one.
    fn delete_version(&self, tenant: &TenantName, model: &ModelName, version: u64) -> Result<(), Refusal>;

    /// Deletes a model and its versions; blocks.
    ///
    /// # Errors
    /// There is no such model.
    fn delete_model(&self, tenant: &TenantName, model: &ModelName) -> Result<(), Refusal>;

    /// Changes what a tenant may use; blocks.
    ///
    /// # Errors
    /// There is no such tenant, or the settings make no sense.
    fn set_tenant(&self, name: &TenantName, settings: &TenantSettings) -> Result<Tenant, Refusal>;

    /// Deletes a tenant that has no models; blocks.
    ///
    /// # Errors
    /// There is no such tenant, or it has models.
    fn delete_tenant(&self, name: &TenantName) -> Result<(), Refusal>;

    /// Refuses new work and waits for what runs; blocks.
    fn drain(&self, limit: Duration);
}

/// A model, and how it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Whose it is.
    pub tenant: TenantName,
    /// Its name.
    pub name: String,
    /// The version that serves, if one does.
    pub version: Option<u64>,
    /// Whether it takes requests.
    pub state: ModelState,
    /// Why not, if it does not.
    pub reason: String,
}

/// One version of a model that serves.
pub trait Endpoint: Send + Sync {
    /// Whose it is.
    fn tenant(&self) -> &TenantName;

    /// Its model's name.
    fn name(&self) -> &str;

    /// Its number.
    fn version(&self) -> u64;

    /// What it consists of, in hexadecimal.
    fn digest(&self) -> String;

    /// Rows that one call may bring; 0 where a call is one request.
    fn rows_max(&self) -> usize;

    /// What its plugin says of it.
    fn description(&self) -> &Description;

    /// Whether taking a request takes so long that others would wait for the thread.
    fn is_slow_to_begin(&self) -> bool;

    /// A call that was to be handed to it ended before, that way: it came then.
    fn ended_before(&self, kind: ErrorKind, since: Instant);

    /// Takes a request; the answer goes to `client`, on another thread, unless it is refused here.
    ///
    /// # Errors
    /// If nothing of it runs; `client` hears nothing then.
    fn infer(self: Arc<Self>, call: Call, client: Box<dyn Client>) -> Result<Answering, InferError>;
}

/// A request that runs. Dropping it before [`Answering::ended`] cancels the request.
pub struct Answering(Option<Box<dyn FnOnce() + Send>>);

impl Answering {
    /// `cancel` must not block.
    #[must_use]
    pub fn new(cancel: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(cancel)))
    }

    /// The answer has come; there is nothing left to cancel.
    pub fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take() {
            cancel();
        }
    }
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").finish_non_exhaustive()
    }
}

//! The front door: every request of every transport comes through here.
//!
//! A transport authenticates its caller, has it admitted, and hands its request over:
//! [`Gate::authenticate`], [`Gate::admit`], [`Permit::call`]. What a caller changes or lists waits
//! for its tenant's turn. The limits are those of [`crate::limits`].

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use cellwright_protocol::messages::admin::Uploaded;
use cellwright_registry::{ModelName, RegistryError, Scope, TenantName};
use cellwright_serving::{Abandoned, Answer, ErrorKind};
use tokio::sync::mpsc::Receiver;

use crate::budget::{Budget, RequestShare};
use crate::caller::Caller;
use crate::calls::Call;
use crate::catalog::Deployed;
use crate::error::Error;
use crate::limiter::{TenantLimiter, WorkPermit};
use crate::limits::{Bounds, Limit};
use crate::platform::{NewUpload, Platform, Readiness};
use crate::reading::Readers;
use crate::shed::Shed;

/// See the module.
#[derive(Debug)]
pub struct Gate {
    platform: Arc<Platform>,
    bounds: Bounds,
    bodies: Arc<Budget>,
    readers: Readers,
    /// Uploads that are received and checked.
    tenant_uploads: TenantLimiter,
    /// Changes of models, each of which may wait for others of the same model, and of keys.
    changes: TenantLimiter,
    /// Answers that are read from the registry and may be long.
    lists: TenantLimiter,
    /// Held while a tenant's settings are read, merged and written, and while a tenant is deleted:
    /// of two changes at once neither undoes the other, and none is made to a tenant that came
    /// under the same name meanwhile.
    tenant_changes: Mutex<()>,
    shed: Arc<Shed>,
    /// Whether the server was told to stop: it is not ready, and each answer is the last of its
    /// connection.
    stopping: AtomicBool,
    /// No key exists. It ends with the first key, and does not come back by revoking: an operator
    /// who locked the door did not mean to open it.
    keyless: AtomicBool,
}

/// What a caller wants to ask a model.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The model.
    pub model: &'a str,
    /// The version, if it may be no other.
    pub version: Option<&'a str>,
    /// Bytes of the request, as far as they are known before it comes.
    pub bytes: u64,
}

/// A caller may ask a model. It holds the version, and the bytes of the request that it has been
/// told of. Priority and deadline come with the request, whose place in flight is taken when it is
/// handed over.
#[derive(Debug)]
pub struct Permit {
    deployed: Arc<Deployed>,
    share: RequestShare,
    name: Arc<str>,
}

impl Permit {
    /// The version that will answer.
    #[must_use]
    pub const fn deployed(&self) -> &Arc<Deployed> {
        &self.deployed
    }

    /// What the request holds of the host's memory.
    pub const fn share(&mut self) -> &mut RequestShare {
        &mut self.share
    }

    /// Takes what the caller asks: one request, or the parts of a session. See
    /// [`crate::Calls::call`] and [`crate::Calls::session`].
    ///
    /// # Errors
    /// If it is refused before its request is looked at. Later errors come through the answer.
    pub async fn call(self, gate: &Gate, input: Input) -> Result<Answer, Error> {
        let (calls, share) = (gate.platform.calls(), Some(self.share));
        match input {
            Input::One(call) => calls.call(&self.deployed, Call { share, name: self.name, ..call }).await,
            Input::Session(first, parts) => calls.session(&self.deployed, Call { share, name: self.name, ..first }, parts).await,
        }
    }
}

/// What a caller asks a model.
#[derive(Debug)]
pub enum Input {
    /// One request.
    One(Call),
    /// The first part of a session, and the others as they come.
    Session(Call, Receiver<Call>),
}

/// An upload's permit. Its work keeps it until it is done, even if its client has left.
#[derive(Debug)]
pub struct UploadPermit {
    _turn: WorkPermit,
}

impl Gate {
    /// The front door of a platform.
    ///
    /// # Errors
    /// If keys cannot be looked up.
    pub fn new(platform: Arc<Platform>, bounds: Bounds) -> Result<Arc<Self>, RegistryError> {
        let keyless = !platform.registry().has_keys()?;
        let shed = Arc::<Shed>::default();
        let limiter = |limit, at_once| TenantLimiter::new(limit, at_once, shed.clone());
        let at_once = |limit: Limit| usize::try_from(limit.default()).unwrap_or(usize::MAX);
        Ok(Arc::new(Self {
            platform,
            bodies: Budget::new(bounds.bodies_bytes_max, shed.clone()),
            readers: Readers::new(&shed),
            tenant_uploads: limiter(Limit::TenantUploads, bounds.tenant_uploads_max),
            changes: limiter(Limit::TenantChanges, at_once(Limit::TenantChanges)),
            lists: limiter(Limit::TenantLists, at_once(Limit::TenantLists)),
            tenant_changes: Mutex::default(),
            shed,
            bounds,
            stopping: AtomicBool::new(false),
            keyless: AtomicBool::new(keyless),
        }))
    }

    /// The models behind it.
    #[must_use]
    pub const fn platform(&self) -> &Arc<Platform> {
        &self.platform
    }

    /// What an operator has set.
    #[must_use]
    pub const fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// What was refused before a version of a model saw it.
    #[must_use]
    pub fn shed(&self) -> &Shed {
        &self.shed
    }

    /// Whether no key exists.
    #[must_use]
    pub fn is_keyless(&self) -> bool {
        self.keyless.load(Ordering::Acquire)
    }

    /// A key exists from now on.
    pub fn require_keys(&self) {
        self.keyless.store(false, Ordering::Release);
    }

    /// Says from now on that the server is not ready.
    pub fn mark_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether the server was told to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Whether new requests should be sent here.
    ///
    /// # Errors
    /// If the server is starting or about to stop.
    pub fn check_ready(&self) -> Result<(), Error> {
        self.check_not_stopping()?;
        match self.platform.readiness() {
            Readiness::Ready => Ok(()),
            Readiness::Starting { loaded, total } => Err(Error::Starting { loaded, total }),
            Readiness::Draining => Err(Error::Draining),
        }
    }

    /// # Errors
    /// If the server was told to stop, so that clients send new requests to another one.
    pub fn check_not_stopping(&self) -> Result<(), Error> {
        if self.is_stopping() { Err(Error::Stopping) } else { Ok(()) }
    }

    /// The version of a model that a caller means.
    ///
    /// # Errors
    /// If there is no such model or version, or it does not serve.
    pub fn find(&self, caller: &Caller, model: &str, version: Option<&str>) -> Result<Arc<Deployed>, Error> {
        Ok(self.platform.find(&caller.tenant, model, version)?)
    }

    /// Lets a caller ask a model.
    ///
    /// # Errors
    /// If its key does not allow that, nothing answers under the name, or the request is or would be too large.
    pub fn admit(&self, caller: &Caller, ask: Ask<'_>) -> Result<Permit, Error> {
        caller.require(Scope::Infer)?;
        let deployed = self.find(caller, ask.model, ask.version)?;
        let mut share = self.share(&caller.tenant);
        let max = self.bounds.body_bytes_max;
        let bytes = usize::try_from(ask.bytes).ok().filter(|bytes| *bytes <= max);
        share.hold(bytes.ok_or_else(|| Limit::BodyBytes.reached(max as u64))?)?;
        Ok(Permit { deployed, share, name: caller.request.clone() })
    }

    /// A share of the host's memory for a tenant's request, or for an answer to one, which holds
    /// nothing yet.
    #[must_use]
    pub fn share(&self, tenant: &TenantName) -> RequestShare {
        self.bodies.share(tenant)
    }

    /// Reads a tenant's message of which so many bytes are JSON: a large one on a thread of its
    /// own, in the tenant's turn.
    ///
    /// # Errors
    /// If too many of the tenant's wait, or `parse` refuses it.
    pub async fn read<T, E>(
        &self,
        tenant: &TenantName,
        message: (&Bytes, usize),
        parse: impl FnOnce(&[u8]) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.readers.read(tenant, message, parse).await
    }

    /// Unpacks a tenant's body or writes an answer to it, on a thread of its own, in the tenant's
    /// turn.
    ///
    /// # Errors
    /// If too many of the tenant's wait, or `work` fails.
    pub async fn convert<T, E>(&self, tenant: &TenantName, work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.readers.work(tenant, 0, work).await
    }

    /// Waits until an upload may be received. Only uploads of the same tenant come before it.
    ///
    /// # Errors
    /// If too many wait.
    pub async fn upload_permit(&self, caller: &Caller) -> Result<UploadPermit, Error> {
        caller.require(Scope::Upload)?;
        Ok(UploadPermit { _turn: self.tenant_uploads.take(&caller.tenant).await? })
    }

    /// Takes a bundle's archive; see [`Platform::upload`]. Counts it as refused if the host has too
    /// much to do. Blocks.
    ///
    /// # Errors
    /// The platform's.
    pub fn upload(&self, tenant: &TenantName, model: &ModelName, archive: impl Read, upload: NewUpload) -> Result<Uploaded, Error> {
        let uploaded = self.platform.upload(tenant, model, archive, upload);
        if uploaded.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy) {
            self.shed.count(tenant, Limit::TenantUploads.reached(Limit::TenantUploads.waiting_max() as u64));
        }
        Ok(uploaded?)
    }

    /// Held while a tenant's settings are read, changed and written.
    pub fn changing_tenants(&self) -> MutexGuard<'_, ()> {
        self.tenant_changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes one of the tenant's models or keys, in its turn, on a thread that may block. A client that
    /// leaves gives it up.
    ///
    /// # Errors
    /// If too many wait, or the change's own.
    pub async fn changing<T: Send + 'static, E: From<Error> + Send + 'static>(
        self: &Arc<Self>,
        tenant: &TenantName,
        change: impl FnOnce(&Arc<Platform>, &Abandoned) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let abandoned = Abandoned::default();
        let _leaving = abandoned.on_drop();
        self.in_turn(&self.changes, tenant, move |platform| change(platform, &abandoned)).await
    }

    /// Looks up what may be much and writes it down, in the tenant's turn, on a thread that may
    /// block.
    ///
    /// # Errors
    /// If too many wait, or the list's own.
    pub async fn listing<T: Send + 'static, E: From<Error> + Send + 'static>(
        self: &Arc<Self>,
        tenant: &TenantName,
        list: impl FnOnce(&Arc<Platform>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        self.in_turn(&self.lists, tenant, list).await
    }

    /// Does what may block in a turn of the tenant's. A client that leaves keeps the turn until it
    /// is done.
    async fn in_turn<T: Send + 'static, E: From<Error> + Send + 'static>(
        self: &Arc<Self>,
        turns: &TenantLimiter,
        tenant: &TenantName,
        work: impl FnOnce(&Arc<Platform>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let turn = turns.take(tenant).await.map_err(Error::from)?;
        let working = self.blocking(move |gate| {
            let done = work(&gate.platform);
            drop(turn);
            done
        });
        working.await
    }

    /// Runs what may block, on a thread that may.
    ///
    /// # Errors
    /// Its own.
    pub async fn blocking<T: Send + 'static, E: From<Error> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let gate = self.clone();
        let span = tracing::Span::current();
        let done = tokio::task::spawn_blocking(move || span.in_scope(|| work(&gate))).await;
        done.map_err(Error::internal)?
    }
}

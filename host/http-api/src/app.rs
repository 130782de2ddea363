//! What every request shares.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cellwright_registry::{RegistryError, TenantName};
use cellwright_serving::ErrorKind;
use tokio::sync::Semaphore;

use crate::budget::Budget;
use crate::host::Host;
use crate::limits::Limits;
use crate::metrics::HttpFigures;
use crate::reading::Readers;
use crate::refusal::Refusal;
use crate::request_id::IdSource;
use crate::turns::Turns;

/// Uploads of one tenant that may wait for their turn.
const UPLOADS_WAITING_MAX: usize = 64;
/// Changes of one tenant's models that may be made at once, and those that may wait for their turn.
const CHANGES_MAX: usize = 4;
const CHANGES_WAITING_MAX: usize = 64;
/// Lists of one tenant's models, versions and keys that may be made at once, and those that may wait for their turn: each may be of a million versions.
const LISTS_MAX: usize = 2;
const LISTS_WAITING_MAX: usize = 256;
/// Calls of one tenant that may wait for their turn to be begun by a plugin that takes its time: as many as a model usually has under way, for a busy machine
/// can make any plugin take its time for a moment. What their bodies hold has a bound of its own.
const SLOW_WAITING_MAX: usize = 16_384;

pub(crate) struct App {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) limits: Limits,
    pub(crate) ids: IdSource,
    pub(crate) bodies: Arc<Budget>,
    pub(crate) readers: Readers,
    /// Uploads that may be received and checked at once, over all tenants and of each.
    pub(crate) uploads: Arc<Semaphore>,
    pub(crate) tenant_uploads: Turns,
    /// Calls that plugins which take their time may begin.
    pub(crate) slow_begins: Turns,
    /// Changes of models, each of which may wait for others of the same model.
    changes: Turns,
    /// Answers that are read from the registry and may be long.
    lists: Turns,
    /// Held while a tenant's settings are read, merged with what is asked for and written, and while one is deleted: of two changes at once neither
    /// takes the other back, and none is made to a tenant that came under the same name meanwhile.
    tenant_changes: Mutex<()>,
    pub(crate) figures: HttpFigures,
    /// Whether something was still under way on a connection when the time to stop was over.
    pub(crate) cut_off: AtomicBool,
    /// Nobody has a key, so everyone who reaches the server (from this machine alone) may do everything. It ends with the first key, and does
    /// not come back by revoking: who locked a door did not mean to open it.
    keyless: AtomicBool,
}

impl App {
    pub(crate) fn new(host: Arc<dyn Host>, limits: Limits) -> Result<Self, RegistryError> {
        let keyless = !host.registry().has_keys()?;
        let bodies = Budget::new(limits.bodies_bytes_max);
        let uploads = Arc::new(Semaphore::new(limits.uploads_max));
        let tenant_uploads = Turns::new(limits.tenant_uploads_max, UPLOADS_WAITING_MAX);
        let keyless = AtomicBool::new(keyless);
        let changes = Turns::new(CHANGES_MAX, CHANGES_WAITING_MAX);
        let slow_begins = Turns::new(limits.slow_begins_max, SLOW_WAITING_MAX);
        Ok(Self {
            host,
            limits,
            ids: IdSource::new(),
            bodies,
            readers: Readers::default(),
            uploads,
            tenant_uploads,
            slow_begins,
            changes,
            lists: Turns::new(LISTS_MAX, LISTS_WAITING_MAX),
            tenant_changes: Mutex::default(),
            figures: HttpFigures::default(),
            cut_off: AtomicBool::new(false),
            keyless,
        })
    }

    pub(crate) fn changing_tenants(&self) -> MutexGuard<'_, ()> {
        self.tenant_changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_keyless(&self) -> bool {
        self.keyless.load(Ordering::Acquire)
    }

    pub(crate) fn has_a_key_now(&self) {
        self.keyless.store(false, Ordering::Release);
    }

    /// Changes one of the tenant's models, in its turn, on a thread that may block.
    pub(crate) async fn changing<T: Send + 'static>(
        self: &Arc<Self>,
        tenant: &TenantName,
        change: impl FnOnce(&Self) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let full = "too many changes of this tenant's models wait for their turn: try again later";
        self.in_turn(&self.changes, tenant, full, change).await
    }

    /// Looks up what may be much and writes it down, in the tenant's turn, on a thread that may block.
    pub(crate) async fn listing<T: Send + 'static>(
        self: &Arc<Self>,
        tenant: &TenantName,
        list: impl FnOnce(&Self) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.in_turn(&self.lists, tenant, "too many lists for this tenant wait for their turn: try again later", list).await
    }

    /// Does what may block in a turn of the tenant's, which whoever leaves keeps until it is done; `full` says that too many wait.
    async fn in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        turns: &Turns,
        tenant: &TenantName,
        full: &'static str,
        work: impl FnOnce(&Self) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = turns.take(tenant).await.ok_or_else(|| Refusal::new(ErrorKind::Busy, full))?;
        let working = self.blocking(move |app| {
            let done = work(app);
            drop(turn);
            done
        });
        working.await
    }

    /// Runs what may block, on a thread that may.
    pub(crate) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let app = self.clone();
        let span = tracing::Span::current();
        let done = tokio::task::spawn_blocking(move || span.in_scope(|| work(&app))).await;
        done.map_err(Refusal::internal)?
    }
}

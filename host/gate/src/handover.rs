//! Gives the place of a connection's thread to another thread while something keeps it busy.
//!
//! Connections have few threads: one for each processor, and a single one where there are two,
//! because a second would only take turns with the workers. A plugin may keep such a thread for
//! long. A large request, or one of a model that is usually slow to begin, gets a thread of its own.
//! For a model that is slow for once, `plugin-runtime` and `serving` report after some milliseconds,
//! again and again (`RuntimeOptions::on_long_call`), and another thread takes the connection
//! thread's place. From then on the call goes on in its tenant's turn, as those do that are usually
//! slow. While a tenant has such calls, its others begin in turns too: so no tenant keeps many
//! threads.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use crate::catalog::TenantEntry;
use crate::limiter::{TenantLimiter, WorkPermit};

/// How long to wait until another thread takes over.
const TAKEN_WITHIN: Duration = Duration::from_millis(5);

thread_local! {
    /// The call that keeps this thread, which is one that serves connections.
    static KEPT: RefCell<Option<KeptBy>> = const { RefCell::new(None) };
}

/// A call that keeps a thread that serves connections.
struct KeptBy {
    tenant: Arc<TenantEntry>,
    turns: Arc<TenantLimiter>,
    /// Once it takes long: its turn, or none if too many wait for theirs.
    turn: Option<Option<WorkPermit>>,
}

impl KeptBy {
    /// Another thread has taken this one's place. Waits for the tenant's turn.
    fn takes_long(&mut self, handle: &Handle) {
        if self.turn.is_none() {
            self.tenant.long_begins.fetch_add(1, Ordering::Relaxed);
            // It is counted, whatever becomes of its turn.
            self.turn = Some(None);
            self.turn = Some(handle.block_on(self.turns.take(&self.tenant.name)).ok());
        }
    }
}

impl Drop for KeptBy {
    fn drop(&mut self) {
        if self.turn.take().is_some() {
            self.tenant.long_begins.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Begins a call of a tenant on a thread that serves connections.
pub(crate) fn keeping<R>(tenant: &Arc<TenantEntry>, turns: &Arc<TenantLimiter>, begin: impl FnOnce() -> R) -> R {
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            KEPT.set(None);
        }
    }
    KEPT.set(Some(KeptBy { tenant: tenant.clone(), turns: turns.clone(), turn: None }));
    let _over = Over;
    begin()
}

/// Lets another thread serve connections while a plugin keeps this one. Does nothing on other
/// threads. Call it again if none took over in time.
pub fn let_others_go_on() {
    let Ok(handle) = Handle::try_current() else { return };
    if handle.runtime_flavor() != RuntimeFlavor::MultiThread {
        return;
    }
    let Some(mut kept) = KEPT.take() else { return };
    block_in_place(|| {
        // `block_in_place` returns the worker's slot unless another thread took it. If this task
        // runs, one did.
        let (sender, taken) = sync_channel(1);
        handle.spawn(async move { sender.try_send(()) });
        let _ = taken.recv_timeout(TAKEN_WITHIN);
        kept.takes_long(&handle);
    });
    KEPT.set(Some(kept));
}

#[cfg(test)]
mod tests {
    use cellwright_registry::{TenantName, TenantSettings};

    use super::*;
    use crate::catalog::{Catalog, ServerBounds};
    use crate::deadlines::Deadlines;
    use crate::limits::Limit;

    #[test]
    fn a_thread_that_serves_no_connections_asks_nobody() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (release, released) = sync_channel::<()>(1);
        let (begun, begins) = sync_channel(1);
        // Whatever is asked of the only thread now stays asked.
        runtime.spawn(async move {
            begun.send(()).unwrap();
            let _ = released.recv();
        });
        begins.recv().unwrap();
        let deadlines = Deadlines::start().unwrap();
        let server = ServerBounds { clock: deadlines.clock(), devices: 1, model_in_flight_max: 1, retired: Default::default() };
        let tenant = Catalog::new(server).enter_tenant(&TenantName::default_tenant(), &TenantSettings::default());
        let turns = Arc::new(TenantLimiter::new(Limit::TenantSlowBegins, 1, Arc::default()));
        let long = || tenant.long_begins.load(Ordering::Relaxed);
        let asked = |work: fn(&Arc<TenantEntry>, &Arc<TenantLimiter>)| {
            let (before, tenant, turns) = (runtime.metrics().num_alive_tasks(), tenant.clone(), turns.clone());
            runtime.block_on(runtime.spawn_blocking(move || work(&tenant, &turns))).unwrap();
            runtime.metrics().num_alive_tasks() - before
        };
        assert_eq!(asked(|_, _| let_others_go_on()), 0);
        assert_eq!(
            asked(|tenant, turns| keeping(tenant, turns, || {
                assert_eq!(tenant.long_begins.load(Ordering::Relaxed), 0);
                let_others_go_on();
                assert_eq!(tenant.long_begins.load(Ordering::Relaxed), 1);
            })),
            1
        );
        assert_eq!(
            asked(|tenant, turns| {
                keeping(tenant, turns, || ());
                let_others_go_on();
            }),
            0,
            "what it kept is over"
        );
        assert_eq!(long(), 0);
        drop(release);
    }
}

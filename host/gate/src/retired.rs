//! Versions that no call holds any more. One thread unloads them all.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cellwright_serving::ServedModel;

/// How often it is looked whether the requests of a version have ended.
const LOOK: Duration = Duration::from_millis(2);
const IDLE: Duration = Duration::from_secs(3600);

/// Each version comes here once, so there are never more than are loaded.
#[derive(Debug, Default)]
pub(crate) struct RetiredVersions {
    list: Mutex<List>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct List {
    versions: Vec<Arc<ServedModel>>,
    is_over: bool,
}

impl RetiredVersions {
    /// Never waits: the last who holds a version may be the engine's thread.
    pub(crate) fn add(&self, version: Arc<ServedModel>) {
        let mut list = self.lock();
        if !list.is_over {
            list.versions.push(version);
            self.changed.notify_one();
        }
    }

    /// All that wait, waiting for the first, or a moment if there is something else to look after; none at the end.
    pub(crate) fn next(&self, is_idle: bool) -> Option<Vec<Arc<ServedModel>>> {
        let waits = |list: &mut List| list.versions.is_empty() && !list.is_over;
        let time = if is_idle { IDLE } else { LOOK };
        let mut list = self.changed.wait_timeout_while(self.lock(), time, waits).unwrap_or_else(PoisonError::into_inner).0;
        (!list.is_over).then(|| std::mem::take(&mut list.versions))
    }

    /// What is loaded goes with its host from now on.
    pub(crate) fn end(&self) {
        let left = {
            let mut list = self.lock();
            list.is_over = true;
            std::mem::take(&mut list.versions)
        };
        self.changed.notify_all();
        drop(left);
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

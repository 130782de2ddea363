//! Gives the place of a connection's thread to another thread while something keeps it busy.
//!
//! Connections have few threads: one for each processor, and a single one where there are two,
//! because a second would only take turns with the workers. A plugin may keep such a thread for
//! long. A request of a model that is usually slow to begin gets a thread of its own. For a model
//! that is slow for once, `plugin-runtime` and `serving` report after some milliseconds, again and
//! again (`RuntimeOptions::on_long_call`), and another thread takes the connection thread's place.

use std::cell::Cell;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// How long to wait until another thread takes over.
const TAKEN_WITHIN: Duration = Duration::from_millis(5);

thread_local! {
    /// Whether this thread is one that serves connections, and does something else.
    static IS_KEPT: Cell<bool> = const { Cell::new(false) };
}

/// Does what may take long on a thread that serves connections.
pub(crate) fn keeping<R>(work: impl FnOnce() -> R) -> R {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IS_KEPT.set(self.0);
        }
    }
    let _before = Before(IS_KEPT.replace(true));
    work()
}

/// Lets another thread serve connections while a plugin keeps this one. Does nothing on other
/// threads. Call it again if none took over in time.
pub fn let_others_go_on() {
    let Ok(handle) = Handle::try_current() else { return };
    if !IS_KEPT.get() || handle.runtime_flavor() != RuntimeFlavor::MultiThread {
        return;
    }
    block_in_place(|| {
        // `block_in_place` returns the worker's slot unless another thread took it. If this task
        // runs, one did.
        let (sender, taken) = sync_channel(1);
        handle.spawn(async move { sender.try_send(()) });
        let _ = taken.recv_timeout(TAKEN_WITHIN);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let asked = |work: fn()| {
            let before = runtime.metrics().num_alive_tasks();
            runtime.block_on(runtime.spawn_blocking(work)).unwrap();
            runtime.metrics().num_alive_tasks() - before
        };
        assert_eq!(asked(let_others_go_on), 0);
        assert_eq!(asked(|| keeping(let_others_go_on)), 1);
        assert_eq!(
            asked(|| {
                keeping(|| ());
                let_others_go_on()
            }),
            0,
            "what it kept is over"
        );
        drop(release);
    }
}

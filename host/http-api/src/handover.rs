//! Handing a connection's thread to others while something keeps it.

use std::cell::Cell;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// How long it may take until somebody else has the thread's place.
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

/// Called by a thread that begins a request and will not be done with that for a while. If it serves connections, and no other is free to, another takes its
/// place, so that nobody waits for it, however few threads there are for them; if none comes in time, it may be called again. On other threads nothing comes of it.
pub fn let_others_go_on() {
    let Ok(handle) = Handle::try_current() else { return };
    if !IS_KEPT.get() || handle.runtime_flavor() != RuntimeFlavor::MultiThread {
        return;
    }
    block_in_place(|| {
        // Whoever leaves here gets its place back unless somebody has it already. Whoever runs this has, or is free to serve connections itself.
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

//! Handing a connection's thread to others while something keeps it.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// How long it may take until somebody else has the thread's place.
const TAKEN_WITHIN: Duration = Duration::from_millis(5);

/// Called by a thread of an asynchronous runtime that will do nothing else for a while: another takes its place, so that connections do not wait for it,
/// however few threads there are for them. On other threads nothing comes of it.
pub fn let_others_go_on() {
    let Ok(handle) = Handle::try_current() else { return };
    if handle.runtime_flavor() != RuntimeFlavor::MultiThread {
        return;
    }
    block_in_place(|| {
        // Whoever leaves here gets its place back unless somebody has it already: who runs this has.
        let (sender, taken) = sync_channel(1);
        handle.spawn(async move { sender.try_send(()) });
        let _ = taken.recv_timeout(TAKEN_WITHIN);
    });
}

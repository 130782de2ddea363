//! What is under way on one connection, so that only connections at rest, and those whose request never comes, are ended before their time.
//!
//! Under way is an exchange, from its request's head to the last of its answer, and whatever is written while the client keeps it waiting: an
//! answer that hyper has taken over is not yet one that has been sent.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

/// See the module.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<ConnectionState>);

#[derive(Debug)]
struct ConnectionState {
    under_way: usize,
    /// A request has come.
    has_asked: bool,
    /// When the last of them ended, or the connection began.
    ended: Instant,
    /// When the head of the next request began to come.
    head_began: Option<Instant>,
}

/// One thing that is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct Active(Arc<Activity>);

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(ConnectionState { under_way: 0, has_asked: false, ended: Instant::now(), head_began: None })))
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Active {
        let mut state = self.state();
        state.under_way += 1;
        state.has_asked = true;
        state.head_began = None;
        drop(state);
        Active(self.clone())
    }

    /// Bytes have come: those of a head, if nothing is under way.
    pub(crate) fn note_bytes(&self) {
        let mut state = self.state();
        if state.under_way == 0 {
            state.head_began.get_or_insert_with(Instant::now);
        }
    }

    /// Whether a request has come, and since when nothing is under way. None: something is.
    pub(super) fn rest(&self) -> Option<(bool, Instant)> {
        let state = self.state();
        (state.under_way == 0).then_some((state.has_asked, state.ended))
    }

    /// Waits until nothing has been under way for so long.
    pub(super) async fn rests_for(&self, limit: Duration) {
        self.waits_for(limit, limit).await;
    }

    /// Waits until nothing has been under way for `idle`, or a head has been coming for `head`.
    pub(super) async fn waits_for(&self, idle: Duration, head: Duration) {
        loop {
            let left = self.left(idle, head);
            if left.is_zero() {
                return;
            }
            // A head may begin meanwhile, and then has no less than `head`.
            tokio::time::sleep(left.min(head)).await;
        }
    }

    fn left(&self, idle: Duration, head: Duration) -> Duration {
        let state = self.state();
        match state.head_began {
            _ if state.under_way > 0 => idle,
            None => idle.saturating_sub(state.ended.elapsed()),
            Some(began) => head.saturating_sub(began.elapsed()),
        }
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.under_way -= 1;
        state.ended = Instant::now();
    }
}

/// An answer's body, which is under way until hyper has all of it.
pub(super) struct Answer<B> {
    pub(super) body: B,
    pub(super) _active: Active,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

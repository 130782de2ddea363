//! HTTP/2's streams, each of which has to be read: a client that opens no window for an answer does not keep it for ever.
//!
//! Whether a connection's socket takes bytes says nothing of one stream, and hyper has no time limit for those. So each stream runs
//! beside a clock that ends it, and the answer tells the clock when it waits for the client and when the client waits for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::Instant;

use crate::lent::AnswerGuard;

/// What is handed to a stream at once. Of an answer's last piece nothing is known once the stream has it.
const PIECE_MAX: usize = 16 << 10;

tokio::task_local! {
    static PROGRESS: Arc<Progress>;
}

/// Since when an answer waits to be read.
#[derive(Debug, Default)]
struct Progress(Mutex<Option<Instant>>);

impl Progress {
    fn set(&self, waits_since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = waits_since;
    }

    /// Waits until the answer has waited for so long.
    async fn stands_still(&self, limit: Duration) {
        loop {
            let waits_since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let left = waits_since.map_or(limit, |since| limit.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}

/// Runs each stream of a connection as a task of its own.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    /// How long a client may leave an answer unread.
    pub(crate) unread_max: Duration,
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let unread_max = self.unread_max;
        let progress = Arc::new(Progress::default());
        let watched = progress.clone();
        let run = async move {
            tokio::select! {
                biased;
                _ = stream => {}
                () = watched.stands_still(unread_max) => tracing::debug!("a stream was closed: its client does not read the answer"),
            }
        };
        drop(tokio::spawn(PROGRESS.scope(progress, run)));
    }
}

/// An answer's body as its stream sends it.
pub(crate) fn watched(body: Body, answering: Option<AnswerGuard>) -> Body {
    match PROGRESS.try_with(Arc::clone) {
        Ok(progress) => Body::new(Watched { body, left: Bytes::new(), progress, _answering: answering }),
        // An HTTP/1 connection has one answer at a time, and its socket is watched.
        Err(_) => body,
    }
}

struct Watched {
    body: Body,
    /// What is left of the frame that came last.
    left: Bytes,
    progress: Arc<Progress>,
    _answering: Option<AnswerGuard>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Who is asked for more has found a taker for what came before.
        self.progress.set(None);
        if self.left.is_empty() {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else { return Poll::Pending };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.left = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(cause)) => return Poll::Ready(Some(Err(cause))),
                None => return Poll::Ready(None),
            }
        }
        self.progress.set(Some(Instant::now()));
        let length = self.left.len().min(PIECE_MAX);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, left) = (self.body.size_hint(), self.left.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(left));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(left));
        }
        hint
    }
}

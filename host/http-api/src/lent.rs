//! Request bodies on loan: a body that whoever answers did not read to its end comes back when it is dropped.
//!
//! A client that is still sending may not read its answer: over HTTP/2 a dropped body resets the stream before the answer's head, over HTTP/1.1
//! the connection closes under the client's writing. So what nobody reads is read here for a while: over HTTP/1.1 before the answer, over HTTP/2 beside
//! it, because there a client may send for as long as it likes before it ends its request.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, Version};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::oneshot;

use crate::body::discard;

/// Where a lent body comes back to.
pub(crate) struct Loan {
    returned: Arc<Mutex<Option<Returned>>>,
    version: Version,
    /// Who asks first whether to send a body has not sent it.
    asks_first: bool,
}

/// Kept while an answer is on its way: until then nothing resets its stream.
pub(crate) type AnswerGuard = oneshot::Sender<Infallible>;

struct Returned {
    body: Incoming,
    begun: bool,
}

struct LentBody {
    /// None after its end.
    body: Option<Returned>,
    owner: Arc<Mutex<Option<Returned>>>,
}

/// Lends a request's body, if it has one.
pub(crate) fn lend(request: Request<Incoming>) -> (Request<Body>, Option<Loan>) {
    let (head, body) = request.into_parts();
    if body.is_end_stream() {
        return (Request::from_parts(head, Body::empty()), None);
    }
    let returned = Arc::default();
    let asks_first = head.version < Version::HTTP_2 && head.headers.contains_key(EXPECT);
    let lent = LentBody { body: Some(Returned { body, begun: false }), owner: Arc::clone(&returned) };
    let version = head.version;
    (Request::from_parts(head, Body::new(lent)), Some(Loan { returned, version, asks_first }))
}

impl Loan {
    /// Reads on for a while in what nobody has read.
    pub(crate) async fn settle(self) -> Option<AnswerGuard> {
        let returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Returned { mut body, begun } = returned?;
        if self.version == Version::HTTP_2 {
            let (answering, answered) = oneshot::channel();
            drop(tokio::spawn(async move {
                discard(&mut body).await;
                let _ = answered.await;
                drop(body);
            }));
            return Some(answering);
        }
        if begun || !self.asks_first {
            discard(&mut body).await;
        }
        None
    }
}

impl http_body::Body for LentBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(lent) = &mut self.body else { return Poll::Ready(None) };
        lent.begun = true;
        let frame = Pin::new(&mut lent.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(|lent| lent.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), |lent| lent.body.size_hint())
    }
}

impl Drop for LentBody {
    fn drop(&mut self) {
        if let Some(lent) = self.body.take().filter(|lent| !lent.body.is_end_stream()) {
            *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = Some(lent);
        }
    }
}

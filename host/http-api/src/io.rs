//! A connection that does not let its peer stand still: what is written must be read.
//!
//! Its reading is watched by hyper's own timeouts, and by the server's, which ends connections at rest.
//!
//! What hyper refuses by itself, a head that is none or too large, it refuses without a word. Such an answer is given its sentence and its id here:
//! nothing else sees it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use cellwright_protocol::messages::ErrorBody;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::app::App;
use crate::request_id::{HEADER, IdSource};
use crate::server::activity::{Active, Activity};

/// See the module.
pub(crate) struct Watched<T> {
    inner: T,
    app: Arc<App>,
    activity: Arc<Activity>,
    /// Runs while a write waits; made when one first does.
    writing: Option<Pin<Box<Sleep>>>,
    write_waits: Option<Active>,
    /// Whether the peer speaks HTTP/2, of which not every byte is a request's; not known before its first bytes.
    is_http2: Option<bool>,
    explaining: Option<Explaining>,
}

/// What an HTTP/2 client says first (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An answer that is written instead of another.
struct Explaining {
    answer: Vec<u8>,
    written: usize,
    /// Bytes that it stands for.
    instead_of: usize,
}

/// Hyper's own answer with a sentence, if these bytes are one. Every other answer carries its request's id.
fn explained(head: &[u8], ids: &IdSource) -> Option<Vec<u8>> {
    const EMPTY: &str = "content-length: 0\r\n";
    const LENGTH_MAX: usize = 256;
    if head.len() > LENGTH_MAX || !head.starts_with(b"HTTP/1.1 4") || !head.ends_with(b"\r\n\r\n") {
        return None;
    }
    let head = std::str::from_utf8(head).ok()?;
    if !head.contains(EMPTY) || head.contains(HEADER.as_str()) {
        return None;
    }
    let error = match head.get(9..12)? {
        "400" => "this is not an HTTP request: its first line or a header is malformed, or its lengths contradict each other",
        "431" => "the request's head has more headers or bytes than this server takes",
        _ => return None,
    };
    let id = ids.make();
    let json = serde_json::to_string(&ErrorBody { error: format!("{error} (request `{}`)", id.as_str()) }).ok()?;
    let headers = format!("content-type: application/json\r\ncontent-length: {}\r\n{HEADER}: {}\r\n", json.len(), id.as_str());
    Some((head.replacen(EMPTY, &headers, 1) + &json).into_bytes())
}

impl<T: AsyncWrite + Unpin> Watched<T> {
    /// Writes a sentence where one is due; none where these bytes are to be written as they are.
    fn poll_explain(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Option<Poll<io::Result<usize>>> {
        if self.explaining.is_none() {
            let answer = explained(bytes, &self.app.ids)?;
            self.explaining = Some(Explaining { answer, written: 0, instead_of: bytes.len() });
        }
        let explaining = self.explaining.as_mut()?;
        while explaining.written < explaining.answer.len() {
            match Pin::new(&mut self.inner).poll_write(context, &explaining.answer[explaining.written..]) {
                Poll::Ready(Ok(0)) => return Some(Poll::Ready(Ok(0))),
                Poll::Ready(Ok(count)) => explaining.written += count,
                other => return Some(other),
            }
        }
        let instead_of = explaining.instead_of;
        self.explaining = None;
        Some(Poll::Ready(Ok(instead_of)))
    }
}

impl<T> Watched<T> {
    pub(crate) fn new(inner: T, app: Arc<App>, activity: Arc<Activity>) -> Self {
        Self { inner, app, activity, writing: None, write_waits: None, is_http2: None, explaining: None }
    }

    fn watch_writing<R>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.write_waits = None;
            return written;
        }
        let until = Instant::now() + self.app.limits.write_timeout;
        let sleep = self.writing.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if self.write_waits.is_none() {
            self.write_waits = Some(self.activity.begin());
            sleep.as_mut().reset(until);
        }
        sleep.as_mut().poll(context).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read the answer")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        let bytes = &buffer.filled()[before..];
        // The first bytes of HTTP/2 are read by themselves, to know the protocol.
        if !bytes.is_empty() && !*self.is_http2.get_or_insert(HTTP2_PREFACE.starts_with(bytes)) {
            self.activity.note_bytes();
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.poll_explain(context, bytes).unwrap_or_else(|| Pin::new(&mut self.inner).poll_write(context, bytes));
        self.watch_writing(context, written)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let first = slices.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| &**slice);
        let written = self.poll_explain(context, first);
        let written = written.unwrap_or_else(|| Pin::new(&mut self.inner).poll_write_vectored(context, slices));
        self.watch_writing(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        if flushed.is_ready() && self.write_waits.is_none() {
            return flushed;
        }
        self.watch_writing(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

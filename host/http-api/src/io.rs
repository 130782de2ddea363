//! A connection that does not let its peer stand still: what comes first must come soon, and what is written must be read.
//!
//! Once a connection has shown which HTTP it speaks, hyper's own timeouts watch its reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// So many bytes tell HTTP/2 from HTTP/1.
const PREFACE: usize = 24;

/// See the module.
pub(crate) struct Watched<T> {
    inner: T,
    /// Until when the first bytes must have come; none once they have.
    opening: Option<Pin<Box<Sleep>>>,
    received: usize,
    write_timeout: Duration,
    /// Runs while a write waits; made when one first does.
    writing: Option<Pin<Box<Sleep>>>,
    write_waits: bool,
}

impl<T> Watched<T> {
    pub(crate) fn new(inner: T, opening: Duration, write_timeout: Duration) -> Self {
        let opening = Some(Box::pin(tokio::time::sleep(opening)));
        Self { inner, opening, received: 0, write_timeout, writing: None, write_waits: false }
    }

    fn watch_writing<R>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.write_waits = false;
            return written;
        }
        let until = Instant::now() + self.write_timeout;
        let sleep = self.writing.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if !self.write_waits {
            self.write_waits = true;
            sleep.as_mut().reset(until);
        }
        sleep.as_mut().poll(context).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read what it is sent")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(context, buffer);
        let Some(opening) = &mut this.opening else { return read };
        if read.is_ready() {
            this.received += buffer.filled().len() - before;
            if this.received >= PREFACE {
                this.opening = None;
            }
            return read;
        }
        opening.as_mut().poll(context).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "nothing was asked in time")))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // Who is answered has asked.
        self.opening = None;
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch_writing(context, written)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.opening = None;
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.watch_writing(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        if flushed.is_ready() && !self.write_waits {
            return flushed;
        }
        self.watch_writing(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

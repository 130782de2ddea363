//! One connection, from its first byte until it ends by itself, or is ended because nothing is under way on it or the server stops.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_rustls::TlsAcceptor;

use super::Phase;
use super::activity::{Activity, Answer};
use crate::app::App;
use crate::exchange;
use crate::io::Watched;
use crate::limits::Limits;
use crate::streams::Streams;

const TLS_HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long a connection that was asked to end may take to, while nothing is under way on it.
const ENDING_MAX: Duration = Duration::from_millis(1500);

/// One connection and its place among those that may be open.
pub(super) struct Connection {
    app: Arc<App>,
    router: axum::Router,
    phase: watch::Receiver<Phase>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    pub(super) fn new(app: Arc<App>, router: axum::Router, phase: watch::Receiver<Phase>, permit: OwnedSemaphorePermit) -> Self {
        app.figures.accepted.fetch_add(1, Ordering::Relaxed);
        app.figures.connections.fetch_add(1, Ordering::Relaxed);
        Self { app, router, phase, _permit: permit }
    }

    pub(super) async fn run_tls(self, tls: TlsAcceptor, stream: TcpStream) {
        let stops = async {
            self.reaches(Phase::Finishing).await;
            tokio::time::sleep(ENDING_MAX).await;
        };
        let shaken = tokio::select! {
            shaken = tokio::time::timeout(TLS_HANDSHAKE_MAX, tls.accept(stream)) => shaken,
            () = stops => return,
        };
        match shaken {
            Ok(Ok(stream)) => self.run(stream).await,
            Ok(Err(cause)) => tracing::debug!(%cause, "no TLS came about"),
            Err(_) => tracing::debug!("no TLS came about in time"),
        }
    }

    pub(super) async fn run<S: AsyncRead + AsyncWrite + Unpin + 'static>(self, stream: S) {
        let limits = &self.app.limits;
        let activity = Activity::new();
        let stream = Watched::new(stream, self.app.clone(), activity.clone());
        let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
            let active = activity.begin();
            let answer = exchange::serve(self.app.clone(), self.router.clone(), request);
            async { Ok::<_, Infallible>(answer.await.map(|body| Answer { body, _active: active })) }
        });
        let builder = protocols(limits);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = activity.rests_for(limits.idle_timeout) => None,
            () = self.reaches(Phase::Finishing) => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = lingers(&activity) => return tracing::debug!("a connection at rest was ended"),
                    () = self.reaches(Phase::Killed) => return self.cut_off(&activity),
                }
            }
        };
        if let Err(cause) = ended {
            tracing::debug!(%cause, "a connection ended early");
        }
    }

    /// Waits until the server has come so far in stopping, or is gone.
    async fn reaches(&self, phase: Phase) {
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }

    fn cut_off(&self, activity: &Activity) {
        if activity.rests_since().is_none() {
            self.app.cut_off.store(true, Ordering::Release);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.app.figures.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until a connection that was asked to end has had its time to. What it begins meanwhile was on its way, and is not cut off.
async fn lingers(activity: &Activity) {
    tokio::time::sleep(ENDING_MAX).await;
    activity.rests_for(ENDING_MAX).await;
}

/// Bytes of the fields of one head in HTTP/2. In HTTP/1 a head is bounded by its connection's read buffer.
const HEADERS_MAX: u32 = 32 << 10;
const READ_BUFFER_MAX: usize = 64 << 10;
/// Bytes that an HTTP/2 client may send ahead, on one stream and on all of a connection's.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Bytes written ahead of what an HTTP/2 client takes.
const SEND_BUFFER_MAX: usize = 1 << 20;

fn protocols(limits: &Limits) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(Streams { unread_max: limits.write_timeout });
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.idle_timeout).max_buf_size(READ_BUFFER_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_max)
        .max_header_list_size(HEADERS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER_MAX)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

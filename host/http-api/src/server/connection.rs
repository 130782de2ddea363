//! One connection, from its first byte until it ends by itself, or is ended because nothing is under way on it or the server stops.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;

use super::Phase;
use super::activity::{Activity, Answer};
use super::places::Place;
use crate::app::App;
use crate::exchange;
use crate::io::Watched;
use crate::streams::Streams;

const TLS_HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long a connection that was asked to end may take to, while nothing is under way on it. A stopping server gives each connection that much first:
/// a request may be on its way, and its client cannot tell whether one that is cut off was begun.
const ENDING_MAX: Duration = Duration::from_millis(1500);

/// One connection and its place among those that may be open.
pub(super) struct Connection {
    app: Arc<App>,
    router: axum::Router,
    phase: watch::Receiver<Phase>,
    activity: Arc<Activity>,
    place: Place,
}

impl Connection {
    pub(super) fn new(
        app: Arc<App>,
        router: axum::Router,
        phase: watch::Receiver<Phase>,
        (activity, place): (Arc<Activity>, Place),
    ) -> Self {
        app.figures.accepted.fetch_add(1, Ordering::Relaxed);
        app.figures.connections.fetch_add(1, Ordering::Relaxed);
        Self { app, router, phase, activity, place }
    }

    pub(super) async fn run_tls(self, tls: TlsAcceptor, stream: TcpStream) {
        let shaken = tokio::select! {
            shaken = tokio::time::timeout(TLS_HANDSHAKE_MAX, tls.accept(stream)) => shaken,
            () = self.ending() => return,
            () = self.place.is_needed() => return,
        };
        match shaken {
            Ok(Ok(stream)) => self.run(stream).await,
            Ok(Err(cause)) => tracing::debug!(%cause, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    pub(super) async fn run<S: AsyncRead + AsyncWrite + Unpin + 'static>(self, stream: S) {
        let limits = &self.app.limits;
        let activity = self.activity.clone();
        let stream = Watched::new(stream, self.app.clone(), activity.clone());
        // Told when an answer of HTTP/2 is the last: it says so by a frame of the connection, not by a header.
        let last = Arc::new(Notify::new());
        let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
            let active = activity.begin();
            let is_http2 = request.version() == http::Version::HTTP_2;
            let answer = exchange::serve(self.app.clone(), self.router.clone(), request);
            let (app, last) = (self.app.clone(), last.clone());
            async move {
                let mut answer = answer.await.map(|body| Answer { body, _active: active });
                if app.gate.is_stopping() {
                    if is_http2 {
                        last.notify_one();
                    } else {
                        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    }
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let builder = protocols(&self.app, self.place.address());
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = activity.waits_for(limits.idle_timeout, limits.header_timeout) => None,
            () = last.notified() => None,
            () = self.ending() => None,
            () = self.place.is_needed() => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = lingers(&activity) => return tracing::debug!("an idle connection was closed"),
                    () = self.reaches(Phase::Killed) => return self.cut_off(&activity),
                }
            }
        };
        if let Err(cause) = ended {
            tracing::debug!(%cause, "a connection ended early");
        }
    }

    /// Waits until the server has stopped accepting, and a request that was on its way then has had its time to come.
    async fn ending(&self) {
        self.reaches(Phase::Finishing).await;
        let _ = tokio::time::timeout(ENDING_MAX, self.reaches(Phase::Killed)).await;
    }

    /// Waits until the server has come so far in stopping, or is gone.
    async fn reaches(&self, phase: Phase) {
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }

    fn cut_off(&self, activity: &Activity) {
        if activity.rest().is_none() {
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

fn protocols(app: &App, address: IpAddr) -> auto::Builder<Streams> {
    let limits = &app.limits;
    let mut builder = auto::Builder::new(Streams { open: app.streams.clone(), address, unread_max: limits.write_timeout });
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(READ_BUFFER_MAX);
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

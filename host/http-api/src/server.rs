//! The server: it listens, gives every connection its limits, and stops in order.

pub(crate) mod activity;
mod connection;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_gate::{Gate, Limit};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::app::App;
use crate::limits::Limits;
use crate::tls::{TlsError, TlsFiles};
use crate::{descriptors, routes};
use connection::Connection;

/// Connections that may wait to be accepted; more are left to try again by themselves. The system may allow fewer.
const BACKLOG: u32 = 1024;
/// Descriptors that are left to the rest of the process.
const DESCRIPTORS_BESIDE: u64 = 512;
/// After an error of accepting: most often there are no descriptors left, and some must be closed first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Where connections come and go at their limit it is told so often, not for each.
const FULL_TOLD: Duration = Duration::from_secs(60);
/// What has not ended when a stop's time is over is given this long to notice.
const KILLED_MAX: Duration = Duration::from_secs(1);

/// Where and how to serve.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Where to listen; port 0 is any that is free.
    pub addresses: Vec<SocketAddr>,
    /// A certificate, to speak TLS and nothing else.
    pub tls: Option<TlsFiles>,
    /// What clients may use.
    pub limits: Limits,
}

/// Why a server does not listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Nobody has a key, and others than this machine could come.
    #[error("no key exists, so anyone who reaches {0} could do everything: create one first, or listen on 127.0.0.1")]
    NoKeys(SocketAddr),
    /// No address.
    #[error("there is no address to listen on")]
    NoAddress,
    /// The address cannot be had.
    #[error("cannot listen on {address}: {cause}")]
    Address {
        /// Which one.
        address: SocketAddr,
        /// Why not.
        cause: io::Error,
    },
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A server that listens and does not answer yet.
pub struct Server {
    app: Arc<App>,
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    tls: Option<TlsAcceptor>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// How far a server has come in stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Also while a server that was told to stop says that it is not ready.
    Serving,
    /// Nothing new is taken, what has begun is finished.
    Finishing,
    /// Its time is over.
    Killed,
}

impl Server {
    /// Listens. Connections wait from now on, and are answered by [`Server::serve`].
    ///
    /// # Errors
    /// If an address cannot be had, the certificate cannot be used, or the server would be open to everyone.
    pub async fn bind(options: ServerOptions, gate: Arc<Gate>) -> Result<Self, BindError> {
        let mut limits = options.limits;
        if options.addresses.is_empty() {
            return Err(BindError::NoAddress);
        }
        let wanted = (limits.connections_max as u64).saturating_add(DESCRIPTORS_BESIDE);
        let descriptors = descriptors::raise_to(wanted);
        if descriptors < wanted {
            let possible = usize::try_from(descriptors.saturating_sub(DESCRIPTORS_BESIDE)).unwrap_or(usize::MAX).max(16);
            tracing::warn!(
                wanted = limits.connections_max,
                possible,
                "this process may open only {descriptors} files, so it accepts fewer connections at once: raise `ulimit -n`"
            );
            limits.connections_max = possible;
        }
        let app = Arc::new(App::new(gate, limits));
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for address in options.addresses {
            if app.gate.is_keyless() && !address.ip().is_loopback() {
                return Err(BindError::NoKeys(address));
            }
            let listener = listen(address).map_err(|cause| BindError::Address { address, cause })?;
            addresses.push(listener.local_addr().map_err(|cause| BindError::Address { address, cause })?);
            listeners.push(listener);
        }
        let tls = options.tls.map(|files| files.acceptor()).transpose()?;
        Ok(Self { app, listeners, addresses, tls })
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Answers until `stop` ends. Then says for the delay that it is not ready, and goes on answering, once on each connection. After that it takes no
    /// more connections than had been made, and finishes what has begun, within the limit for that. Gives whether every request whose head had come was
    /// answered, or left by its client. Connections without one are not waited for.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> bool {
        let (phase, _) = watch::channel(Phase::Serving);
        let permits = Arc::new(Semaphore::new(self.app.limits.connections_max));
        for listener in self.listeners {
            let acceptor = Acceptor {
                app: self.app.clone(),
                router: routes::router(&self.app),
                tls: self.tls.clone(),
                permits: permits.clone(),
                phase: phase.subscribe(),
                told_full: None,
            };
            tokio::spawn(acceptor.run(listener));
        }
        stop.await;
        self.app.gate.mark_stopping();
        tokio::time::sleep(self.app.limits.drain_delay).await;
        phase.send_replace(Phase::Finishing);
        let limit = self.app.limits.drain;
        let finishing = Instant::now();
        // Every acceptor and every connection holds a receiver. What has begun to arrive on one is still taken, if it comes soon.
        let _ = tokio::time::timeout(limit, phase.closed()).await;
        phase.send_replace(Phase::Killed);
        let ended = tokio::time::timeout(KILLED_MAX, phase.closed()).await.is_ok();
        let finished = ended && !self.app.cut_off.load(Ordering::Acquire);
        let app = self.app.clone();
        let left = limit.saturating_sub(finishing.elapsed());
        let drained = tokio::task::spawn_blocking(move || app.gate.platform().drain(left)).await;
        if let Some(left) = drained.ok().map(|drained| drained.left).filter(|left| *left > 0) {
            tracing::warn!(left, "calls were still running at the end of the drain time");
        }
        finished
    }
}

/// Takes the connections of one listener.
struct Acceptor {
    app: Arc<App>,
    router: axum::Router,
    tls: Option<TlsAcceptor>,
    permits: Arc<Semaphore>,
    phase: watch::Receiver<Phase>,
    told_full: Option<Instant>,
}

impl Acceptor {
    async fn run(mut self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                _ = self.phase.wait_for(|phase| *phase >= Phase::Finishing) => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => self.admit(stream).await,
                Err(cause) => pause(&cause).await,
            }
        }
        // To its client a connection in the listener's queue is open: closing the listener would reset it.
        let Ok(listener) = listener.into_std() else { return };
        // A client that goes on connecting does not keep the server.
        for _ in 0..BACKLOG {
            match listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                TcpStream::from_std(stream)
            }) {
                Ok(stream) => self.admit(stream).await,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                Err(cause) => pause(&cause).await,
            }
        }
    }

    async fn admit(&mut self, stream: TcpStream) {
        // Beyond the limit one waits here, the others in the listener's queue.
        if self.permits.available_permits() == 0 {
            self.say_full();
        }
        let permit = tokio::select! {
            _ = self.phase.wait_for(|phase| *phase == Phase::Killed) => Err(()),
            permit = self.permits.clone().acquire_owned() => permit.map_err(drop),
        };
        match permit {
            Ok(permit) => self.connect(stream, permit),
            // Its request may have come.
            Err(()) => self.app.cut_off.store(true, Ordering::Release),
        }
    }

    fn say_full(&mut self) {
        if self.told_full.is_none_or(|told| told.elapsed() >= FULL_TOLD) {
            self.told_full = Some(Instant::now());
            let connections = self.app.limits.connections_max;
            tracing::warn!(connections, "{}", Limit::Connections.row().sentence);
        }
    }

    fn connect(&self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        let _ = stream.set_nodelay(true);
        let connection = Connection::new(self.app.clone(), self.router.clone(), self.phase.clone(), permit);
        match self.tls.clone() {
            None => drop(tokio::spawn(connection.run(stream))),
            Some(tls) => drop(tokio::spawn(connection.run_tls(tls, stream))),
        }
    }
}

/// After an error of accepting.
async fn pause(cause: &io::Error) {
    tracing::warn!(%cause, "a connection could not be accepted");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A server that starts again need not wait until the connections of the one before are forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

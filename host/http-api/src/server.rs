//! The server: it listens, gives every connection its limits, and stops in order.

pub(crate) mod activity;
mod connection;
mod places;

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_gate::{Gate, Limit};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::app::App;
use crate::limits::Limits;
use crate::tls::{TlsError, TlsFiles};
use crate::{descriptors, routes};
use activity::Activity;
use connection::Connection;
use places::{Place, Places};

/// Connections that may wait to be accepted; more are left to try again by themselves. The system may allow fewer.
const BACKLOG: u32 = 1024;
/// Connections of health probes.
const HEALTH_CONNECTIONS_MAX: usize = 64;
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
    /// Where to listen for health probes alone, without TLS.
    pub health: Option<SocketAddr>,
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
    health: Option<TcpListener>,
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
            limits.lower_connections(possible);
        }
        let app = Arc::new(App::new(gate, limits));
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for address in options.addresses {
            if app.gate.is_keyless() && !address.ip().is_loopback() {
                return Err(BindError::NoKeys(address));
            }
            let listener = listen(address)?;
            addresses.push(listener.local_addr().map_err(|cause| BindError::Address { address, cause })?);
            listeners.push(listener);
        }
        let health = options.health.map(listen).transpose()?;
        let tls = options.tls.map(|files| files.acceptor()).transpose()?;
        Ok(Self { app, listeners, health, addresses, tls })
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where it listens for health probes alone.
    #[must_use]
    pub fn health_address(&self) -> Option<SocketAddr> {
        self.health.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Answers until `stop` ends. Then says for the delay that it is not ready, and goes on answering, once on each connection. After that it takes no
    /// more connections than had been made, and finishes what has begun, within the limit for that. Gives whether every request whose head had come was
    /// answered, or left by its client. Connections without one are not waited for.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> bool {
        let (phase, _) = watch::channel(Phase::Serving);
        let start = |listener, router, tls, places| {
            let acceptor = Acceptor { app: self.app.clone(), router, tls, places, phase: phase.subscribe(), told: [None; 2] };
            drop(tokio::spawn(acceptor.run(listener)));
        };
        let places = Places::new(self.app.limits.connections_max, self.app.limits.address_connections_max);
        for listener in self.listeners {
            start(listener, routes::router(&self.app), self.tls.clone(), places.clone());
        }
        if let Some(listener) = self.health {
            start(listener, routes::health(&self.app), None, Places::new(HEALTH_CONNECTIONS_MAX, HEALTH_CONNECTIONS_MAX));
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
    places: Arc<Places>,
    phase: watch::Receiver<Phase>,
    /// When it was last told that connections wait, or were refused.
    told: [Option<Instant>; 2],
}

impl Acceptor {
    async fn run(mut self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                _ = self.phase.wait_for(|phase| *phase >= Phase::Finishing) => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.admit(stream, peer.ip()).await,
                Err(cause) => pause(&cause).await,
            }
        }
        // To its client a connection in the listener's queue is open: closing the listener would reset it.
        let Ok(listener) = listener.into_std() else { return };
        // A client that goes on connecting does not keep the server.
        for _ in 0..BACKLOG {
            match listener.accept().and_then(|(stream, peer)| {
                stream.set_nonblocking(true)?;
                Ok((TcpStream::from_std(stream)?, peer))
            }) {
                Ok((stream, peer)) => self.admit(stream, peer.ip()).await,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                Err(cause) => pause(&cause).await,
            }
        }
    }

    async fn admit(&mut self, stream: TcpStream, address: IpAddr) {
        // Beyond the limit one waits here, the others in the listener's queue.
        if self.places.are_taken() {
            self.tell(Limit::Connections, address);
        }
        let (places, activity) = (self.places.clone(), Activity::new());
        let place = tokio::select! {
            _ = self.phase.wait_for(|phase| *phase == Phase::Killed) => Err(()),
            place = places.take(address, &activity) => Ok(place),
        };
        match place {
            Ok(Some(place)) => self.connect(stream, activity, place),
            Ok(None) => self.tell(Limit::AddressConnections, address),
            // Its request may have come.
            Err(()) => self.app.cut_off.store(true, Ordering::Release),
        }
    }

    fn tell(&mut self, limit: Limit, address: IpAddr) {
        let told = &mut self.told[usize::from(limit == Limit::AddressConnections)];
        if told.is_none_or(|told| told.elapsed() >= FULL_TOLD) {
            *told = Some(Instant::now());
            tracing::warn!(%address, "{}", limit.row().sentence);
        }
    }

    fn connect(&self, stream: TcpStream, activity: Arc<Activity>, place: Place) {
        let _ = stream.set_nodelay(true);
        let connection = Connection::new(self.app.clone(), self.router.clone(), self.phase.clone(), (activity, place));
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

fn listen(address: SocketAddr) -> Result<TcpListener, BindError> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A server that starts again need not wait until the connections of the one before are forgotten.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|cause| BindError::Address { address, cause })
}

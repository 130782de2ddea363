//! Load: requests that arrive by the clock, not by the answers, and what becomes of them.
//!
//! An open loop: every request has a moment at which it is meant to arrive, drawn beforehand, and its latency counts from there. A server that stalls is
//! therefore charged for everyone who would have come in the meantime, and not only for those whom the generator got round to sending. The
//! closed loop ([`Arrivals::Closed`]) finds the most a server can do; its latencies say nothing about any other load.
//!
//! Requests are bytes, made before the run. The generator's threads run one small executor each, with connections and arrivals of their own, so that they share nothing.
//! When all connections are busy, arrivals wait in order, and that wait counts.

mod arrivals;
mod connection;
mod pace;
mod report;
mod target;
mod worker;

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub use report::{Figures, Latency, Report};
pub use target::Target;

use crate::address::Address;
use crate::error::ClientError;
use crate::trust::{Tls, Trust};
use worker::{Part, Worker};

/// How long answers are waited for once no more requests are sent.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// More connections are refused: a process may not have so many files open.
const CONNECTIONS_MAX: usize = 60_000;

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// At random, independently of one another, so many per second on average.
    Poisson(f64),
    /// At equal distances, so many per second.
    Constant(f64),
    /// On each connection, as soon as the one before was answered.
    Closed,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server.
    pub address: Address,
    /// Whose certificates are trusted, if the server is spoken to by TLS.
    pub trust: Trust,
    /// What is asked of it, in which proportions.
    pub targets: Vec<Target>,
    /// How requests arrive, in all.
    pub arrivals: Arrivals,
    /// Connections, each with at most one request on it.
    pub connections: usize,
    /// Threads that send; more than one only where one core is not enough.
    pub threads: usize,
    /// Time that does not count.
    pub warm_up: Duration,
    /// Time that does.
    pub measured: Duration,
    /// What arrivals are drawn from: equal seeds offer equal load.
    pub seed: u64,
}

/// Why there was no run.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum LoadError {
    #[error("there is nothing to send: give at least one target with a request and a weight above 0")]
    NoTargets,
    #[error("{0} is not a rate: give requests per second, 0.000001 to 10 million")]
    Rate(f64),
    #[error("{found} connections on {threads} threads are not possible: give 1 to {CONNECTIONS_MAX} connections, and no more threads")]
    Connections { found: usize, threads: usize },
    #[error("{address}: {source}")]
    Unreachable { address: Address, source: std::io::Error },
    #[error(transparent)]
    Trust(ClientError),
    #[error("a thread of the load generator failed: {0}")]
    Thread(std::io::Error),
}

/// Offers the load and says what became of it. Blocks the calling thread for about as long as the plan says.
///
/// # Errors
/// If the plan makes no sense, or the server cannot be reached to begin with.
pub fn run(plan: &Plan) -> Result<Report, LoadError> {
    check(plan)?;
    let tls = Tls::of(&plan.address, &plan.trust).map_err(LoadError::Trust)?;
    let server = reach(&plan.address)?;
    let threads = plan.threads.max(1);
    let targets: Arc<[Target]> = plan.targets.clone().into();
    let start = Instant::now();
    let running: Vec<_> = (0..threads)
        .map(|number| {
            let part = Part { server, tls: tls.clone(), targets: Arc::clone(&targets), number, threads, start };
            let worker = Worker::new(plan, part);
            thread::Builder::new().name(format!("load-{number}")).spawn(move || worker.run()).map_err(LoadError::Thread)
        })
        .collect();
    let mut parts = Vec::with_capacity(threads);
    for thread in running {
        let panicked = |_| LoadError::Thread(std::io::Error::other("it panicked"));
        parts.push(thread?.join().map_err(panicked)?.map_err(LoadError::Thread)?);
    }
    Ok(Report::of(plan, parts))
}

fn check(plan: &Plan) -> Result<(), LoadError> {
    let sound = |target: &Target| target.weight.is_finite() && target.weight > 0.0 && !target.requests.is_empty();
    if plan.targets.is_empty() || !plan.targets.iter().all(sound) {
        return Err(LoadError::NoTargets);
    }
    if let Arrivals::Poisson(rate) | Arrivals::Constant(rate) = plan.arrivals
        && !(1e-6..=1e7).contains(&rate)
    {
        return Err(LoadError::Rate(rate));
    }
    let (found, threads) = (plan.connections, plan.threads.max(1));
    if !(threads..=CONNECTIONS_MAX).contains(&found) {
        return Err(LoadError::Connections { found, threads });
    }
    Ok(())
}

/// An address at which the server takes connections.
fn reach(address: &Address) -> Result<SocketAddr, LoadError> {
    let unreachable = |source| LoadError::Unreachable { address: address.clone(), source };
    let mut last = std::io::Error::other("its name has no address");
    for candidate in address.authority().to_socket_addrs().map_err(unreachable)? {
        match std::net::TcpStream::connect_timeout(&candidate, Duration::from_secs(10)) {
            Ok(_) => return Ok(candidate),
            Err(cause) => last = cause,
        }
    }
    Err(unreachable(last))
}

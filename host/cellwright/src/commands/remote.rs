//! What the verbs that speak to a server share.

use std::future::Future;
use std::io::{ErrorKind, Write, stderr};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use cellwright_client::{Address, Client, ClientOptions, Trust};

use crate::cli::ServerArguments;

/// How long a server on this machine may take until it listens.
const START_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

impl ServerArguments {
    /// A client of that server.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let options = ClientOptions { key: self.key.clone(), tenant: self.tenant.clone(), trust: trust(self.ca.as_deref()) };
        connect(&self.server, &options)
    }
}

/// Whose certificates are trusted: those of that file, or the system's.
pub(crate) fn trust(authorities: Option<&Path>) -> Trust {
    authorities.map_or(Trust::System, |file| Trust::File(file.to_owned()))
}

/// A client of a server, which on this machine may have been started just now (`cellwright serve & cellwright push …`).
pub(crate) fn connect(server: &str, options: &ClientOptions) -> anyhow::Result<Client> {
    let client = Client::with_options(server, options)?;
    if client.address().is_loopback() {
        wait_for_listener(client.address())?;
    }
    Ok(client)
}

/// Waits while connections are refused. The call itself reports every other fault, and that no server came to listen.
fn wait_for_listener(address: &Address) -> anyhow::Result<()> {
    let refuses =
        |at: SocketAddr| TcpStream::connect_timeout(&at, START_MAX).is_err_and(|cause| cause.kind() == ErrorKind::ConnectionRefused);
    let end = Instant::now() + START_MAX;
    let mut told = false;
    while address.authority().to_socket_addrs().is_ok_and(|mut found| found.all(refuses)) && Instant::now() < end {
        if !told {
            writeln!(stderr(), "no server listens at {address} yet; waiting up to {} s", START_MAX.as_secs())?;
            told = true;
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// Runs to its end what speaks to a server.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the client")?;
    runtime.block_on(work)
}

//! A server in this process and clients beside it, as they are where one machine does everything: what connections and clients take of the processors
//! is in the times of tasks then. It is a server as `serve` starts it, but its engine can be watched.

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, bail};
use cellwright_client::load::{self, Plan, Target};
use cellwright_client::{Address, Client, Form, PushOptions, Trust};
use cellwright_command::host::{self, Setup};
use cellwright_command::options::HostArguments;
use cellwright_command::requests::ModelRequests;
use cellwright_command::worker;
use cellwright_gate::{Bounds, Gate, Platform, PlatformOptions};
use cellwright_http_api::{Server, ServerOptions};
use cellwright_registry::{Registry, TenantName};
use cellwright_serving::ServedModel;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::{Answered, Load};

/// A server with its data in a temporary folder. Dropping it stops it.
pub(super) struct Service {
    platform: Arc<Platform>,
    address: Address,
    /// How many devices it has.
    pub(super) workers: usize,
    /// The first one's name.
    pub(super) device: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _data: TempDir,
}

impl Service {
    /// Starts it on a free port of this machine.
    pub(super) fn start(arguments: &HostArguments, setup: Setup) -> anyhow::Result<Self> {
        let data = tempfile::tempdir().context("cannot create a temporary folder for the server's data")?;
        let options = PlatformOptions::new(host::serving_options(setup, arguments.cache_dir())?);
        let backends = worker::backends(&arguments.workers)?;
        let workers = backends.len();
        let device = backends.first().map_or("cpu".to_owned(), |backend| backend.info().name);
        let platform = Platform::start(options, Registry::open(data.path())?, backends)?;
        let runtime = host::connections()?;
        let options = ServerOptions { addresses: vec![([127, 0, 0, 1], 0).into()], ..ServerOptions::default() };
        let server = runtime.block_on(Server::bind(options, Gate::new(platform.clone(), Bounds::default())?))?;
        let port = server.addresses().first().context("the server has no address")?.port();
        let address = Address::parse(&format!("http://127.0.0.1:{port}"))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = move || {
            runtime.block_on(server.serve(async {
                // Whoever hangs up wants the same.
                let _ = stopped.await;
            }));
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("server".to_owned()).spawn(serve).context("cannot start the server's thread")?;
        Ok(Self { platform, address, workers, device, stop: Some(stop), thread: Some(thread), _data: data })
    }

    /// Uploads a bundle, which serves from then on.
    pub(super) fn push(&self, folder: &Path, name: &str) -> anyhow::Result<Arc<ServedModel>> {
        let client = Client::new(&self.address.to_string(), None)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the client that uploads the bundle")?;
        runtime.block_on(client.push(name, folder, PushOptions::default(), |_| {}))?;
        Ok(Arc::clone(self.platform.find(&TenantName::default_tenant(), name, None)?.served()))
    }

    /// Makes that load, with a connection for each request under way.
    pub(super) fn load(&self, asked: &ModelRequests, load: Load, measured: Duration, seed: u64) -> anyhow::Result<Answered> {
        let (arrivals, connections) = match load {
            Load::InFlight(in_flight) => (load::Arrivals::Closed, in_flight),
            Load::Rate(rate, in_flight_max) => (load::Arrivals::Poisson(rate), in_flight_max),
        };
        let plan = Plan {
            address: self.address.clone(),
            trust: Trust::System,
            targets: vec![Target::infer(&self.address, None, asked.name.as_str(), asked.requests.iter().cloned(), Form::Binary)?],
            arrivals,
            connections,
            threads: 1,
            warm_up: load.warm_up(measured),
            measured,
            seed,
        };
        let total = load::run(&plan)?.total;
        match total.first_fault {
            None => {
                // Of no answers there is no mean.
                let latency = if total.ok == 0 { Duration::ZERO } else { Duration::from_secs_f64(total.latency.mean_us / 1e6) };
                Ok(Answered { throughput: total.throughput, count: total.ok, latency })
            }
            Some(fault) => bail!("some requests failed, the first because {fault}"),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

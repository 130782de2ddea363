//! Arguments of `serve`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use cellwright_command::logs::LogFormat;
use cellwright_command::options::{ReleaseRule, WORKER_FORMS, WORKERS_DEFAULT, one_or_more, policies};
use cellwright_command::policy::PolicySpec;
use cellwright_command::worker::WorkerSpec;
use clap::Args;

use crate::telemetry::CollectorUrl;

const EXAMPLES: &str = "Examples:
  cellwright serve
  cellwright serve --listen 0.0.0.0:8000 --tls-certificate server.pem --tls-key server.key
  cellwright serve --config cellwright.toml --print-config

A setting is a flag, a variable (CELLWRIGHT_LISTEN, …) or a line of the configuration file (`listen = \"127.0.0.1:8000\"`). Keys of the file have `_` \
for `-`. `--worker` is CELLWRIGHT_WORKERS and `workers`; `--log` has no key in the file. A flag wins over the environment, and the environment over the \
file. `--print-config` shows the settings in force and their sources. An empty variable counts as not set.

Without keys the server listens on loopback only, and every program on this machine may do everything. `cellwright keys create --admin` creates the \
first key.";

/// The largest value of `--in-flight-max`.
pub(crate) const IN_FLIGHT_MAX: u32 = 1 << 20;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArguments {
    /// Configuration file (TOML)
    #[arg(long, env = "CELLWRIGHT_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print every setting and its source, and exit
    #[arg(long)]
    pub(crate) print_config: bool,
    /// Stop when standard input ends; then remove this folder, if the parent process is gone
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub(crate) temporary: Option<PathBuf>,
    /// Address and port to listen on, or `localhost:PORT`; separate several by commas [default: 127.0.0.1:8000]
    #[arg(long, env = "CELLWRIGHT_LISTEN", value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) listen: Option<Vec<ListenAddress>>,
    /// Address and port for health probes alone, which find a place however many clients there are [default: none]
    #[arg(long, env = "CELLWRIGHT_HEALTH", value_name = "ADDRESS")]
    pub(crate) health: Option<ListenAddress>,
    /// Folder for models, tenants and keys [default: the user's data folder]
    #[arg(long, env = "CELLWRIGHT_DATA", value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    #[arg(
        long = "worker", env = "CELLWRIGHT_WORKERS", value_name = "SPEC", value_delimiter = ' ',
        help = format!("A worker: {WORKER_FORMS}. May be given several times; CELLWRIGHT_WORKERS separates workers by blanks {WORKERS_DEFAULT}")
    )]
    pub(crate) workers: Option<Vec<WorkerSpec>>,
    #[arg(long, env = "CELLWRIGHT_POLICY", value_name = "POLICY", help = format!("{} [default: adaptive]", policies()))]
    pub(crate) policy: Option<PolicySpec>,
    /// When the scheduler may queue a cell [default: node]
    #[arg(long, env = "CELLWRIGHT_RELEASE", value_enum)]
    pub(crate) release: Option<ReleaseRule>,
    /// Certificate chain (PEM); turns TLS on, and needs `--tls-key`
    #[arg(long, env = "CELLWRIGHT_TLS_CERTIFICATE", value_name = "FILE")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, env = "CELLWRIGHT_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Maximum number of requests in flight, over all models, 1 to 1048576 [default: 16384]
    #[arg(long, env = "CELLWRIGHT_IN_FLIGHT_MAX", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(IN_FLIGHT_MAX)))]
    pub(crate) in_flight_max: Option<u32>,
    /// Maximum number of open connections [default: 16384]
    #[arg(long, env = "CELLWRIGHT_CONNECTIONS_MAX", value_name = "N", value_parser = one_or_more)]
    pub(crate) connections_max: Option<usize>,
    /// Maximum number of open connections of one address; 0: no bound, as behind a proxy [default: half of all]
    #[arg(long, env = "CELLWRIGHT_ADDRESS_CONNECTIONS_MAX", value_name = "N")]
    pub(crate) address_connections_max: Option<usize>,
    /// Maximum bytes of a request's body [default: 64 MiB]
    #[arg(long, env = "CELLWRIGHT_BODY_BYTES_MAX", value_name = "BYTES", value_parser = one_or_more)]
    pub(crate) body_bytes_max: Option<usize>,
    /// Maximum bytes of an uploaded bundle, as sent and unpacked [default: 16 GiB]
    #[arg(long, env = "CELLWRIGHT_UPLOAD_BYTES_MAX", value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) upload_bytes_max: Option<u64>,
    /// Address space to reserve for plugins; below 2.3 TB their code is slower, below 280 GB none has more
    /// than 64 MiB of memory, and below 36 GB there are fewer instances [default: 2.3 TB, or half of
    /// `ulimit -v`]
    #[arg(long, env = "CELLWRIGHT_PLUGIN_ADDRESS_BYTES", value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) plugin_address_bytes: Option<u64>,
    /// Seconds that a connection may stay open without a request [default: 75]
    #[arg(long, env = "CELLWRIGHT_IDLE_SECONDS", value_name = "SECONDS", value_parser = some_seconds)]
    pub(crate) idle_seconds: Option<u64>,
    /// Seconds that the head of a request may take [default: 75]
    #[arg(long, env = "CELLWRIGHT_HEADER_SECONDS", value_name = "SECONDS", value_parser = some_seconds)]
    pub(crate) header_seconds: Option<u64>,
    /// Seconds before the rate of a body counts [default: 10]
    #[arg(long, env = "CELLWRIGHT_BODY_SECONDS", value_name = "SECONDS", value_parser = some_seconds)]
    pub(crate) body_seconds: Option<u64>,
    /// Seconds that a request may take once it has begun, and each part of a session [default: 600]
    #[arg(long, env = "CELLWRIGHT_REQUEST_SECONDS_MAX", value_name = "SECONDS", value_parser = some_seconds)]
    pub(crate) request_seconds_max: Option<u64>,
    /// Seconds that a client may leave an answer unread [default: 60]
    #[arg(long, env = "CELLWRIGHT_WRITE_SECONDS", value_name = "SECONDS", value_parser = some_seconds)]
    pub(crate) write_seconds: Option<u64>,
    /// Seconds that a server serves on after it was told to stop, and says that it is not ready [default: 0]
    #[arg(long, env = "CELLWRIGHT_DRAIN_DELAY", value_name = "SECONDS", value_parser = whole_seconds)]
    pub(crate) drain_delay: Option<u64>,
    /// Seconds that a stopping server then waits for running calls [default: 30]
    #[arg(long, env = "CELLWRIGHT_DRAIN_SECONDS", value_name = "SECONDS", value_parser = whole_seconds)]
    pub(crate) drain_seconds: Option<u64>,
    /// Format of logs: text for people, or one JSON object per line [default: human]
    #[arg(long, env = "CELLWRIGHT_LOG_FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,
    /// Collector of traces (OTLP over HTTP), such as http://localhost:4318 [default: none]
    #[arg(long, env = "CELLWRIGHT_OTLP_ENDPOINT", value_name = "URL")]
    pub(crate) otlp_endpoint: Option<CollectorUrl>,
    /// Record every event of the scheduler in a new file, for `cellwright-lab replay`: structures and
    /// times, no contents of requests. If the disk is too slow, the recording ends early with a warning
    /// [default: none]
    #[arg(long, env = "CELLWRIGHT_RECORD", value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
}

fn whole_seconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is not a whole number of seconds"))
}

fn some_seconds(text: &str) -> Result<u64, String> {
    whole_seconds(text).ok().filter(|seconds| *seconds > 0).ok_or_else(|| format!("`{text}` is not a whole number of seconds from 1 on"))
}

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListenAddress(pub(crate) SocketAddr);

impl ListenAddress {
    pub(crate) const DEFAULT: Self = Self(SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8000));
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()).map(|port| (Ipv4Addr::LOCALHOST, port).into());
        local
            .or_else(|| text.parse().ok())
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not an address and a port, such as 127.0.0.1:8000, 0.0.0.0:8000 or [::1]:8000"))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

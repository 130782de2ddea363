//! Arguments of `serve`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::{POLICIES, ReleaseRule, WORKER_FORMS, WORKERS_DEFAULT, one_or_more};
use crate::policy::PolicySpec;
use crate::telemetry::CollectorUrl;
use crate::worker::WorkerSpec;

const EXAMPLES: &str = "Examples:
  cellwright serve
  cellwright serve --listen 0.0.0.0:8000 --tls-certificate server.pem --tls-key server.key
  cellwright serve --config cellwright.toml --print-config

Every setting can be given as a flag, in the environment (CELLWRIGHT_LISTEN, …) or, but for `--log`, in the configuration file (`listen = \"127.0.0.1:8000\"`, with \
`_` for `-`); several workers are CELLWRIGHT_WORKERS and `workers`. A flag goes before the environment, the environment before the file. `--print-config` shows \
what holds and where it comes from. A variable that is set to nothing counts as not set.

Without keys the server listens on loopback only, and everyone there may do everything. `cellwright keys create --admin` makes the first key.";

/// Requests in flight at once that may be asked for, at most.
pub(crate) const IN_FLIGHT_MAX: u32 = 1 << 20;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArguments {
    /// A file of settings, in TOML
    #[arg(long, env = "CELLWRIGHT_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print every setting and where it comes from, and do nothing else
    #[arg(long)]
    pub(crate) print_config: bool,
    /// Ends with standard input, and with whoever started it: if that is gone by then, this folder is removed
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub(crate) temporary: Option<PathBuf>,
    /// Where to listen: an address and a port, or `localhost:PORT`; several with commas between them [default: 127.0.0.1:8000]
    #[arg(long, env = "CELLWRIGHT_LISTEN", value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) listen: Option<Vec<ListenAddress>>,
    /// Where models, tenants and keys are kept [default: the user's data folder]
    #[arg(long, env = "CELLWRIGHT_DATA", value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    #[arg(
        long = "worker", env = "CELLWRIGHT_WORKERS", value_name = "SPEC", value_delimiter = ' ',
        help = format!("A worker: {WORKER_FORMS}; may be given several times, in the environment with blanks {WORKERS_DEFAULT}")
    )]
    pub(crate) workers: Option<Vec<WorkerSpec>>,
    #[arg(long, env = "CELLWRIGHT_POLICY", value_name = "POLICY", hide_possible_values = true, help = format!("{POLICIES} [default: adaptive]"))]
    pub(crate) policy: Option<PolicySpec>,
    /// When a cell may be queued behind cells it waits for: one by one, or when its whole subgraph may run [default: node]
    #[arg(long, env = "CELLWRIGHT_RELEASE", value_enum)]
    pub(crate) release: Option<ReleaseRule>,
    /// A certificate chain (PEM), to speak TLS
    #[arg(long, env = "CELLWRIGHT_TLS_CERTIFICATE", value_name = "FILE")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, env = "CELLWRIGHT_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Requests in flight at once, over all models [default: 16384]
    #[arg(long, env = "CELLWRIGHT_IN_FLIGHT_MAX", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(IN_FLIGHT_MAX)))]
    pub(crate) in_flight_max: Option<u32>,
    /// Connections open at once [default: 16384]
    #[arg(long, env = "CELLWRIGHT_CONNECTIONS_MAX", value_name = "N", value_parser = one_or_more)]
    pub(crate) connections_max: Option<usize>,
    /// Bytes of one request's body [default: 64 MiB]
    #[arg(long, env = "CELLWRIGHT_BODY_BYTES_MAX", value_name = "BYTES", value_parser = one_or_more)]
    pub(crate) body_bytes_max: Option<usize>,
    /// Bytes of an uploaded bundle, as it comes and unpacked [default: 16 GiB]
    #[arg(long, env = "CELLWRIGHT_UPLOAD_BYTES_MAX", value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) upload_bytes_max: Option<u64>,
    /// How long a stopping server waits for what it has begun [default: 30]
    #[arg(long, env = "CELLWRIGHT_DRAIN_SECONDS", value_name = "SECONDS", value_parser = whole_seconds)]
    pub(crate) drain_seconds: Option<u64>,
    /// How logs are written: for people, or one JSON object a line [default: human]
    #[arg(long, env = "CELLWRIGHT_LOG_FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,
    /// A collector of traces that speaks OTLP over HTTP, such as http://localhost:4318 [default: none]
    #[arg(long, env = "CELLWRIGHT_OTLP_ENDPOINT", value_name = "URL")]
    pub(crate) otlp_endpoint: Option<CollectorUrl>,
    /// Record every event of the scheduler in a new file, for `cellwright replay`: structures and times, nothing of what requests contain. It ends early, and the log says so, if the disk cannot keep up [default: none]
    #[arg(long, env = "CELLWRIGHT_RECORD", value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
}

fn whole_seconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is no whole number of seconds"))
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
            .ok_or_else(|| format!("`{text}` is no address and port, such as 127.0.0.1:8000, 0.0.0.0:8000 or [::1]:8000"))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Human,
    Json,
}

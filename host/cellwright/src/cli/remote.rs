//! Arguments of the verbs that speak to a server.

use std::path::PathBuf;

use cellwright_command::worker::WorkerSpec;
use clap::{Args, Subcommand, ValueEnum};

use super::{BEHIND_ITS_OWN, WORKER_FORMS, WORKERS_DEFAULT};

/// The server, and the caller's key and tenant.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArguments {
    /// The server's address
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN, env = "CELLWRIGHT_SERVER", value_name = "URL", default_value = "http://127.0.0.1:8000")]
    pub(crate) server: String,
    /// Key to send to the server (safer in the environment: other users can see the command line)
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 1, env = "CELLWRIGHT_KEY", value_name = "KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
    /// PEM file of the certificate authorities to trust for https://, instead of the system's
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 2, env = "CELLWRIGHT_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Tenant whose models to use; only an operator's key may name another one [default: the key's own
    /// tenant; `default` for an operator's key and without keys]
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 3, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
}

const DEMO_EXAMPLES: &str = "Examples:
  cellwright demo
  cellwright demo --once --json | tail -1 | jq .ok

Starts a server on this machine, with its data in a temporary folder. Uploads the models of `examples/` through the public API, shows their answers, \
and offers some load. Then the server runs until Ctrl-C.";

#[derive(Debug, Args)]
#[command(after_help = DEMO_EXAMPLES)]
pub(crate) struct DemoArguments {
    /// Exit after the demonstration; the exit status is 0 if all checks passed
    #[arg(long)]
    pub(crate) once: bool,
    /// Print a summary as JSON on the last line
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds of load under each policy, 0.5 to 3600
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Folder with the bundles `digits`, `dates` and `listops` [default: `examples` here or above]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) examples: Option<PathBuf>,
    #[arg(long = "worker", value_name = "SPEC", help = format!("A worker: {WORKER_FORMS}. May be given several times {WORKERS_DEFAULT}"))]
    pub(crate) workers: Vec<WorkerSpec>,
}

impl DemoArguments {
    /// The options of a server under that policy.
    pub(crate) fn options(&self, policy: &str) -> Vec<String> {
        let workers = self.workers.iter().flat_map(|worker| ["--worker".to_owned(), worker.to_string()]);
        ["--policy".to_owned(), policy.to_owned()].into_iter().chain(workers).collect()
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.5..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0.5 to 3600".to_owned()),
    }
}

const PUSH_EXAMPLES: &str = "Examples:
  cellwright push examples/digits
  cellwright push examples/digits --name digits-eu --no-activate

The server checks the bundle and runs its samples. If they pass, the bundle becomes a new version and serves. Until then, or if they fail, the \
version before it goes on serving.";

#[derive(Debug, Args)]
#[command(after_help = PUSH_EXAMPLES)]
pub(crate) struct PushArguments {
    /// The bundle: a folder with a model.toml
    pub(crate) bundle: PathBuf,
    /// Name of the model on the server [default: the name in its model.toml]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Store the version without activating it; the active version goes on serving
    #[arg(long)]
    pub(crate) no_activate: bool,
    /// Print the server's answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsArguments {
    #[command(subcommand)]
    pub(crate) action: Option<ModelsAction>,
    /// Print JSON
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 5)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsAction {
    /// List models and their active versions (the default)
    List,
    /// Show a model's versions, inputs and outputs
    Show {
        /// Name of the model
        model: String,
    },
    /// Activate a version, which then serves
    Activate {
        /// Name of the model
        model: String,
        /// Number of the version
        version: u64,
    },
    /// Activate the version that was active before
    Rollback {
        /// Name of the model
        model: String,
    },
    /// Load a model that was unloaded, so that it serves again
    Load {
        /// Name of the model
        model: String,
    },
    /// Unload a model: it does not serve until it is loaded again
    Unload {
        /// Name of the model
        model: String,
    },
    /// Delete a version, or a model with all its versions
    Delete {
        /// Name of the model
        model: String,
        /// Number of the version [default: the whole model]
        version: Option<u64>,
    },
}

const LOGS_EXAMPLES: &str = "Examples:
  cellwright logs digits
  cellwright logs digits --follow

Each line is a call that failed because of the plugin: its time (UTC), the model's version, and the request's id, which its client was told. The server keeps the latest failures of a tenant in memory, at most 1 MiB and 1,024. A key needs the scope `upload`.";

#[derive(Debug, Args)]
#[command(after_help = LOGS_EXAMPLES)]
pub(crate) struct LogsArguments {
    /// Name of the model
    pub(crate) model: String,
    /// Go on, and print failures as they come
    #[arg(long)]
    pub(crate) follow: bool,
    /// Print each failure as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

const INFER_EXAMPLES: &str = "Examples:
  cellwright infer digits --input examples/digits/samples.jsonl
  cellwright infer dates --input examples/dates/samples.jsonl --stream
  echo '{\"text\":\"28 agosto 1908\"}' | cellwright infer dates --input - --stream

The input holds one Open Inference Protocol v2 request per line. Answers are printed in the order of the input, one line each. With `--stream`, a line \
may also be a `generate` request (inputs by name). Requests then run one after the other, and parts of answers are printed as `generate_stream` sends \
them. A failed request prints {\"id\":…,\"error\":…} and the other requests go on. The exit status is then 1.";

#[derive(Debug, Args)]
#[command(after_help = INFER_EXAMPLES)]
pub(crate) struct InferArguments {
    /// The model, as MODEL or MODEL/VERSION
    pub(crate) model: String,
    /// A file of requests, one JSON object per line; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// Send and receive tensors as raw bytes behind the JSON
    #[arg(long)]
    pub(crate) binary: bool,
    /// Print each part of an answer as it comes, outputs by name; input lines may also be `generate` requests
    #[arg(long, conflicts_with = "binary")]
    pub(crate) stream: bool,
    /// Maximum number of requests in flight, 1 to 65535
    #[arg(long, alias = "max-in-flight", value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) in_flight_max: u16,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

/// Where tenants and keys are changed: in a data folder that no server has open, or through a server.
#[derive(Clone, Debug, Args)]
pub(crate) struct AdminArguments {
    /// Address of a running server; without it, or with `--data`, the command works on the data folder,
    /// which no server may have open
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN, env = "CELLWRIGHT_SERVER", value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Key to send to the server (safer in the environment: other users can see the command line)
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 1, env = "CELLWRIGHT_KEY", value_name = "KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
    /// PEM file of the certificate authorities to trust for https://, instead of the system's
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 2, env = "CELLWRIGHT_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Data folder of a server that is not running [default: the user's data folder]
    #[arg(long, env = "CELLWRIGHT_DATA", value_name = "FOLDER", global = true, display_order = BEHIND_ITS_OWN + 4)]
    pub(crate) data: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 5)]
    pub(crate) json: bool,
}

const KEYS_EXAMPLES: &str = "Examples:
  cellwright keys create --admin
  cellwright keys create --tenant acme --scope infer --label 'the web shop'
  cellwright keys list --server https://models.example

A key's secret is shown once, when the key is created. The tenant `operator` holds the operator's keys. An operator's key sees the models of every \
tenant, and its scopes hold for all of them. With the scope `admin` it may change everything.";

#[derive(Debug, Args)]
#[command(after_help = KEYS_EXAMPLES)]
pub(crate) struct KeysArguments {
    #[command(subcommand)]
    pub(crate) action: KeysAction,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeysAction {
    /// Create a key and print its secret, once
    Create {
        /// Create an operator's key: every scope, every tenant
        #[arg(long, conflicts_with_all = ["tenant", "scopes"])]
        admin: bool,
        /// Tenant that owns the key
        #[arg(long, default_value = "default")]
        tenant: String,
        /// Scopes of the key, separated by commas
        #[arg(long = "scope", value_enum, value_delimiter = ',', default_value = "infer,upload")]
        scopes: Vec<KeyScope>,
        /// Text that tells keys apart, at most 200 characters
        #[arg(long, default_value = "")]
        label: String,
    },
    /// List keys, without their secrets
    List {
        /// List this tenant's keys only
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Revoke a key, at once
    Revoke {
        /// Id of the key, as `keys list` prints it
        id: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyScope {
    /// Send requests
    Infer,
    /// Upload models and change their versions
    Upload,
    /// Manage the tenant's keys; for the tenant `operator`: everything
    Admin,
}

#[derive(Debug, Args)]
pub(crate) struct TenantsArguments {
    #[command(subcommand)]
    pub(crate) action: TenantsAction,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TenantsAction {
    /// List tenants and their limits
    List,
    /// Create a tenant
    Create {
        /// Name of the tenant
        name: String,
        #[command(flatten)]
        settings: SettingsArguments,
    },
    /// Change a tenant's limits; those that are not given stay
    Set {
        /// Name of the tenant
        name: String,
        #[command(flatten)]
        settings: SettingsArguments,
    },
    /// Delete a tenant that has no models, and its keys
    Delete {
        /// Name of the tenant
        name: String,
    },
}

/// What a tenant may use.
#[derive(Clone, Debug, Args)]
pub(crate) struct SettingsArguments {
    /// Share of contended device time relative to other tenants' weights, 1 to 1000000 [new tenants: 1]
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u32>,
    /// Calls that may run at once, at least 1; further calls wait [new tenants: 4096]
    #[arg(long, value_name = "N")]
    pub(crate) in_flight_max: Option<u32>,
    /// Calls that may wait; further calls are refused with 429 [new tenants: 4096]
    #[arg(long, value_name = "N")]
    pub(crate) queued_max: Option<u32>,
    /// Maximum fraction of device time, 0 to 1, plugins' processor time included, even while devices are
    /// idle. Calls wait for it. 0 removes the limit [new tenants: no limit]
    #[arg(long, value_name = "FRACTION", value_parser = share)]
    pub(crate) device_share: Option<f64>,
    /// Maximum number of models [new tenants: 1000]
    #[arg(long, value_name = "N")]
    pub(crate) models_max: Option<u32>,
    /// Maximum number of versions of each model [new tenants: 1000]
    #[arg(long, value_name = "N")]
    pub(crate) versions_max: Option<u32>,
    /// Maximum bytes that all versions take of the disk [new tenants: 256 GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) bytes_max: Option<u64>,
}

/// A fraction of device time; 0 is no limit.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "give a number from 0 (no limit) to 1".to_owned())
}

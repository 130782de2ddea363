//! Arguments of the verbs that speak to a server.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{BEHIND_ITS_OWN, WORKER_FORMS, WORKERS_DEFAULT};
use crate::worker::WorkerSpec;

/// Which server, and who is asking.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArguments {
    /// The server's address
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN, env = "CELLWRIGHT_SERVER", value_name = "URL", default_value = "http://127.0.0.1:8000")]
    pub(crate) server: String,
    /// The key to show it (better given in the environment, where other users do not see it)
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 1, env = "CELLWRIGHT_KEY", value_name = "KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
    /// Authorities (PEM) whose certificates are trusted, instead of the system's, where the address begins with https://
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 2, env = "CELLWRIGHT_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// The tenant whose models are meant, which an operator's key may choose [default: the key's own, or `default`]
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 3, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
}

const DEMO_EXAMPLES: &str = "Examples:
  cellwright demo
  cellwright demo --once --json | tail -1 | jq .ok

Starts a server on this machine with its data in a temporary folder, uploads the models of `examples/` through the public API, shows their answers, \
offers some load, and goes on serving until Ctrl-C.";

#[derive(Debug, Args)]
#[command(after_help = DEMO_EXAMPLES)]
pub(crate) struct DemoArguments {
    /// Stop when everything was shown; the exit status is 0 if every answer was the expected one
    #[arg(long)]
    pub(crate) once: bool,
    /// Print a summary as JSON, as the last line
    #[arg(long)]
    pub(crate) json: bool,
    /// How long load is offered under each policy
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// The folder with the bundles `digits`, `dates` and `listops` [default: `examples` here or above]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) examples: Option<PathBuf>,
    #[arg(long = "worker", value_name = "SPEC", help = format!("A worker: {WORKER_FORMS}; may be given several times {WORKERS_DEFAULT}"))]
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

The server checks the bundle and runs its samples; only if they pass is it a version. Until then, and if not, the version that served goes on.";

#[derive(Debug, Args)]
#[command(after_help = PUSH_EXAMPLES)]
pub(crate) struct PushArguments {
    /// The bundle: a folder with a model.toml
    pub(crate) bundle: PathBuf,
    /// What the model is called on the server [default: the name in its model.toml]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Keep the version for later: what serves goes on serving
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
    /// List models and which of their versions serve (without an action, this)
    List,
    /// Show a model's versions, inputs and outputs
    Show {
        /// Which model
        model: String,
    },
    /// Have a version serve
    Activate {
        /// Which model
        model: String,
        /// Which version
        version: u64,
    },
    /// Have the version serve that did before
    Rollback {
        /// Which model
        model: String,
    },
    /// Put a model into service that was taken out of it
    Load {
        /// Which model
        model: String,
    },
    /// Take a model out of service until it is loaded again
    Unload {
        /// Which model
        model: String,
    },
    /// Delete a version, or a model with all of them
    Delete {
        /// Which model
        model: String,
        /// Which version; none: the model
        version: Option<u64>,
    },
}

const INFER_EXAMPLES: &str = "Examples:
  cellwright infer digits --input examples/digits/samples.jsonl
  cellwright infer dates --input examples/dates/samples.jsonl --stream
  echo '{\"text\":\"28 agosto 1908\"}' | cellwright infer dates --input - --stream

The input holds one Open Inference Protocol v2 request per line; answers are printed in the order of the input, one line each. With --stream a line may \
also be a request of `generate` (inputs by name), and parts of answers are printed as `generate_stream` gives them, one request after the other. A \
request that fails prints {\"id\":…,\"error\":…} and lets the others be; the exit status is 1 then.";

#[derive(Debug, Args)]
#[command(after_help = INFER_EXAMPLES)]
pub(crate) struct InferArguments {
    /// Which model, or MODEL/VERSION
    pub(crate) model: String,
    /// A file of requests, one JSON object per line; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// Send tensors as raw bytes behind the JSON, and have them sent back so
    #[arg(long)]
    pub(crate) binary: bool,
    /// Print each part of the answer as it comes, outputs by name; lines may also be `generate` requests (inputs by name)
    #[arg(long, conflicts_with = "binary")]
    pub(crate) stream: bool,
    /// Requests in flight at once
    #[arg(long, alias = "max-in-flight", value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) in_flight_max: u16,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

/// Where tenants and keys are changed: in a data folder that no server has open, or through a server.
#[derive(Clone, Debug, Args)]
pub(crate) struct AdminArguments {
    /// A server's address; without one, or where `--data` is given, the data folder is changed, which no server may have open
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN, env = "CELLWRIGHT_SERVER", value_name = "URL")]
    pub(crate) server: Option<String>,
    /// The key to show it
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 1, env = "CELLWRIGHT_KEY", value_name = "KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
    /// Authorities (PEM) whose certificates are trusted, instead of the system's, where the address begins with https://
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 2, env = "CELLWRIGHT_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// The data folder [default: the user's]
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

A key's secret is shown once, when it is made. The tenant `operator` holds the operator's keys: they see every tenant's \
models and may ask each of them, and with the scope `admin` change all of it.";

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
    /// Make a key and show its secret, this once
    Create {
        /// The operator's key: every scope, every tenant
        #[arg(long, conflicts_with_all = ["tenant", "scopes"])]
        admin: bool,
        /// Whose it is
        #[arg(long, default_value = "default")]
        tenant: String,
        /// What it allows; several with commas between them
        #[arg(long = "scope", value_enum, value_delimiter = ',', default_value = "infer,upload")]
        scopes: Vec<KeyScope>,
        /// What it is for, to tell keys apart
        #[arg(long, default_value = "")]
        label: String,
    },
    /// List keys, without their secrets
    List {
        /// Of that tenant only
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Make a key worthless, at once
    Revoke {
        /// Its id
        id: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyScope {
    /// Send requests
    Infer,
    /// Upload and change versions
    Upload,
    /// Manage the tenant's keys; the operator's: everything
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
    /// List tenants and what each may use
    List,
    /// Make a tenant
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        settings: SettingsArguments,
    },
    /// Change what a tenant may use; what is not given stays
    Set {
        /// Its name
        name: String,
        #[command(flatten)]
        settings: SettingsArguments,
    },
    /// Delete a tenant that has no models, and its keys
    Delete {
        /// Its name
        name: String,
    },
}

/// What a tenant may use.
#[derive(Clone, Debug, Args)]
pub(crate) struct SettingsArguments {
    /// Its share of contended device time, relative to other tenants' weights
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u32>,
    /// Requests that may be in flight at once
    #[arg(long, value_name = "N")]
    pub(crate) in_flight_max: Option<u32>,
    /// Requests beyond those that may wait; more are refused
    #[arg(long, value_name = "N")]
    pub(crate) queued_max: Option<u32>,
    /// Fraction of device time it may use at most, its plugins' time included, even if nobody else wants it; its requests wait for it; 0: no bound
    #[arg(long, value_name = "FRACTION", value_parser = share)]
    pub(crate) device_share: Option<f64>,
    /// Models it may have
    #[arg(long, value_name = "N")]
    pub(crate) models_max: Option<u32>,
    /// Versions that each of its models may have
    #[arg(long, value_name = "N")]
    pub(crate) versions_max: Option<u32>,
    /// Bytes that its versions may hold together
    #[arg(long, value_name = "BYTES")]
    pub(crate) bytes_max: Option<u64>,
}

/// A fraction of device time, or no bound.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share is a number from 0, for no bound, to 1".to_owned())
}

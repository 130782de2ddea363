//! The command line: verbs, options and their help.

mod remote;
mod serve;

use std::path::PathBuf;
use std::str::FromStr;

use cellwright_cell_graph::typed::Precision;
use cellwright_command::completed;
use cellwright_command::options::{
    BEHIND_ITS_OWN, HostArguments, ReleaseRule, WORKER_FORMS, WORKERS_DEFAULT, at_most_a_week, file_to_write, one_or_more, policies,
};
use cellwright_command::policy::PolicySpec;
use cellwright_command::worker::WorkerSpec;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

pub(crate) use remote::{
    AdminArguments, DemoArguments, InferArguments, KeyScope, KeysAction, KeysArguments, LogsArguments, ModelsAction, ModelsArguments,
    PushArguments, ServerArguments, SettingsArguments, TenantsAction, TenantsArguments,
};
pub(crate) use serve::{IN_FLIGHT_MAX, ListenAddress, ServeArguments};

const EXAMPLES: &str = "Examples:
  cellwright demo                                  shows a server, three models and some load
  cellwright serve                                 serves on http://127.0.0.1:8000
  cellwright push examples/digits                  uploads a model to it
  cellwright infer digits --input examples/digits/samples.jsonl";

/// Serves recurrent and dynamically structured neural networks, batched cell by cell.
#[derive(Debug, Parser)]
#[command(name = "cellwright", version, max_term_width = 120, propagate_version = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Log filter: `off`, `error`, `warn`, `info`, `debug`, `trace`, or a level for one crate
    /// (`cellwright_engine=debug`); separate several by commas
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 100, env = "CELLWRIGHT_LOG", value_name = "FILTER", default_value = "warn")]
    pub(crate) log: String,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a server, upload three models, show their answers, offer some load
    Demo(DemoArguments),
    /// Serve models over HTTP (Open Inference Protocol v2)
    Serve(Box<ServeArguments>),
    /// Send a model bundle to a server
    Push(PushArguments),
    /// List a server's models; activate, roll back, load, unload or delete them
    Models(ModelsArguments),
    /// Print how a model's plugin failed lately: its words, its notes, the functions in which it was
    Logs(LogsArguments),
    /// Send requests to a server and print the answers
    Infer(InferArguments),
    /// Create, list and revoke keys
    Keys(KeysArguments),
    /// Create, list, change and delete tenants
    Tenants(TenantsArguments),
    /// Run requests through a model bundle in this process and print the answers
    Run(RunArguments),
    /// Check a model bundle: load it as a server would, run its samples, print its cells and limits
    Check(CheckArguments),
    /// Measure a server
    Bench {
        #[command(subcommand)]
        bench: Bench,
    },
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  cellwright completions bash > /etc/bash_completion.d/cellwright")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Compile a plugin from standard input to standard output (the host calls this itself, to compile under limits)
    #[command(hide = true)]
    CompilePlugin,
}

const RUN_EXAMPLES: &str = "Examples:
  cellwright run examples/digits --input examples/digits/samples.jsonl
  cellwright run examples/dates --input requests.jsonl --stream
  head -1 requests.jsonl | cellwright run examples/listops --input - --trace

The input holds one Open Inference Protocol v2 request per line. Blank lines are skipped. Up to `--in-flight-max` requests are in flight at once. \
Answers are printed in the order of the input, one line each. With `--stream`, each part and each end of an answer is printed as it comes, of a session too. Its line \
has the request's id, or `line-N` if the request has none. A request may choose outputs, as on a server; its `timeout` and `priority` have no \
effect. A failed request prints {\"id\":…,\"error\":…} and the other requests go on. The exit status is then 1.";

#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct RunArguments {
    /// The bundle: a folder with a model.toml
    pub(crate) bundle: PathBuf,
    /// A file of requests, one JSON object per line; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// Compute at this precision instead of the bundle's: `f32`, `f16`, `bf16` or `int8`
    #[arg(long, value_name = "PRECISION", value_parser = completed::precision(), hide_possible_values = true)]
    pub(crate) precision: Option<Precision>,
    /// Send all lines as chunks of one session, instead of one request per line
    #[arg(long)]
    pub(crate) session: bool,
    /// Print each part of a streamed output on its own line, as it comes
    #[arg(long)]
    pub(crate) stream: bool,
    /// Print each batch to standard error as it runs: its worker, its cell and its rows
    #[arg(long)]
    pub(crate) trace: bool,
    /// Print the trace and the summary as JSON lines (answers are always JSON)
    #[arg(long)]
    pub(crate) json: bool,
    /// Maximum number of requests in flight, 1 to 65536
    #[arg(long, alias = "max-in-flight", value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) in_flight_max: u32,
    #[arg(long, value_name = "POLICY", default_value_t = PolicySpec::default(), help = policies())]
    pub(crate) policy: PolicySpec,
    /// When the scheduler may queue a cell
    #[arg(long, value_enum, default_value_t = ReleaseRule::Node)]
    pub(crate) release: ReleaseRule,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

const CHECK_EXAMPLES: &str = "Examples:
  cellwright check examples/digits
  cellwright check examples/digits --json | jq .cells
  cellwright check examples/digits --recalibrate
  cellwright check my-model --notes

Exit status 0 means that a server would accept this bundle: it loads, its samples run, and their answers match the expected ones within the \
tolerance. The samples also run at every precision. `error` is the largest difference of a float from its value in f32, |a - b| / (1 + |b|). `same` \
counts samples whose other outputs are the same as in f32. `right` counts samples whose labels (outputs that are not floats) are the expected ones. \
These figures do not change the exit status, and neither does a precision at which the bundle does not load.";

#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckArguments {
    /// The bundle: a folder with a model.toml
    pub(crate) bundle: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Measure batch sizes again, and store them in the cache, even if it has some; a server measures and
    /// stores its own
    #[arg(long)]
    pub(crate) recalibrate: bool,
    /// Print what the plugin notes in calls that succeed, each note once
    #[arg(long)]
    pub(crate) notes: bool,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Offer load to a server over HTTP; print requests per second and latency
    Serve(ServeBenchArguments),
}

const SERVE_BENCH_EXAMPLES: &str = "Examples:
  cellwright bench serve examples/digits
  cellwright bench serve examples/digits examples/dates --rate sweep --plot sweep.svg
  cellwright bench serve examples/digits --rate 500,1000,2000 --connections 64 --server http://models.example:8000
  cellwright bench serve examples/dates --policy cellular,adaptive,graph:10 --rate 200,400

The bundles are uploaded first. Their samples are the requests, again and again. Requests arrive at random (Poisson), whether or not earlier ones \
are done. Latency counts from the moment a request was meant to arrive. A request that still waits at the end counts with its wait so far. With \
several policies, each one has its own server on this machine. They take turns at every rate, and only one server has load at a time.";

#[derive(Debug, Args)]
#[command(after_help = SERVE_BENCH_EXAMPLES)]
pub(crate) struct ServeBenchArguments {
    /// Bundles to upload and measure; each gets an equal share of the requests
    #[arg(required = true)]
    pub(crate) bundles: Vec<PathBuf>,
    /// Address of a running server; CELLWRIGHT_SERVER is ignored [default: a server that is started for the run]
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Key to send to the server
    #[arg(long, env = "CELLWRIGHT_KEY", value_name = "KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
    /// PEM file of the certificate authorities to trust for https://, instead of the system's
    #[arg(long, env = "CELLWRIGHT_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// File of requests, one JSON object per line [default: the bundles' samples]
    #[arg(long, alias = "requests", value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Requests per second (0.000001 to 10 million), `max` (each connection sends its next request when
    /// it has an answer), or `sweep` (ten rates, from 10 to 95 % of `max`); separate several by commas
    #[arg(long, default_value = "max", value_delimiter = ',')]
    pub(crate) rate: Vec<SweepRate>,
    /// Number of connections, each with one request at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = one_or_more)]
    pub(crate) connections: usize,
    /// Number of threads that send
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = one_or_more)]
    pub(crate) threads: usize,
    /// Seconds to measure at each rate, at most 604800, after a warm-up of a fifth of that time
    #[arg(long, alias = "duration", default_value_t = 5.0, value_name = "SECONDS", value_parser = at_most_a_week)]
    pub(crate) seconds: f64,
    /// Send tensors as JSON, not as raw bytes
    #[arg(long)]
    pub(crate) json_tensors: bool,
    /// Draw latency against throughput as an SVG (not for `--rate max` alone)
    #[arg(long, value_name = "FILE.svg", value_parser = file_to_write)]
    pub(crate) plot: Option<PathBuf>,
    /// Seed of the random arrivals, which differ for each rate and are the same for every policy
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    #[arg(
        long = "worker", value_name = "SPEC", conflicts_with = "server",
        help = format!("A worker of the started server: {WORKER_FORMS}. May be given several times {WORKERS_DEFAULT}")
    )]
    pub(crate) workers: Vec<WorkerSpec>,
    /// Batching policy of the started server, as for `serve`. With several, separated by commas, each one
    /// has its own server, and they take turns
    #[arg(long, value_name = "POLICY", hide_possible_values = true, default_values_t = [PolicySpec::default()], value_delimiter = ',', conflicts_with = "server")]
    pub(crate) policy: Vec<PolicySpec>,
}

impl ServeBenchArguments {
    /// The options of the server that is started for a policy.
    pub(crate) fn options(&self, policy: PolicySpec) -> Vec<String> {
        let workers = self.workers.iter().flat_map(|worker| ["--worker".to_owned(), worker.to_string()]);
        ["--policy".to_owned(), policy.to_string()].into_iter().chain(workers).collect()
    }
}

/// A rate, or several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SweepRate {
    /// Requests per second.
    PerSecond(f64),
    /// The saturation throughput.
    Max,
    /// Ten rates up to the saturation throughput.
    Sweep,
}

impl FromStr for SweepRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "max" => Ok(Self::Max),
            "sweep" => Ok(Self::Sweep),
            number => match number.parse() {
                Ok(rate) if (1e-6..=1e7).contains(&rate) => Ok(Self::PerSecond(rate)),
                _ => Err("give requests per second (0.000001 to 10 million), `max` or `sweep`".to_owned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn paragraphs_are_broken_by_the_terminal_alone() {
        cellwright_command::options::check_help(&Cli::command());
    }
}

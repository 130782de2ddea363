//! The command line: verbs, options and their help.

mod calibrate;
mod cell;
mod completed;
mod remote;
mod replay;
mod serve;
mod simulate;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use cellwright_cell_graph::typed::Precision;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::commands::bench::load::{LengthSource, ModelKind, Rate};
use crate::policy::PolicySpec;
use crate::worker::WorkerSpec;

pub(crate) use calibrate::CalibrateArguments;
pub(crate) use cell::{CellArguments, CellKind};
pub(crate) use remote::{
    AdminArguments, DemoArguments, InferArguments, KeyScope, KeysAction, KeysArguments, ModelsAction, ModelsArguments, PushArguments,
    ServerArguments, SettingsArguments, TenantsAction, TenantsArguments,
};
pub(crate) use replay::ReplayArguments;
pub(crate) use serve::{IN_FLIGHT_MAX, ListenAddress, LogFormat, ServeArguments};
pub(crate) use simulate::{FiguresArguments, SimulateArguments, WorkloadKind};

/// Where options that several verbs have stand in a verb's help: behind its own, before `--help`.
pub(crate) const BEHIND_ITS_OWN: usize = 800;
/// What a worker may be.
const WORKER_FORMS: &str = "`cpu`, `cpu:threads=N`, with `node=N` on the cores and in the memory of a NUMA node, with `table_mib=N` MiB for tables by token (`cpu:threads=2,table_mib=0`: none), with `amx=true` for products of 32-bit floats by AMX, `cuda:N` or `cuda:all`, with `tf32=true` for products of 32-bit floats in tf32 and `debug=true` to find faults (`cuda:0,tf32=true`), or `auto` for every GPU, and the CPU where there is none";
/// What workers there are where nothing is said.
const WORKERS_DEFAULT: &str =
    "[default: one of one thread for each core, at most 8 for each NUMA node, which lend each other their threads]";
/// What a policy is, and which there are.
const POLICIES: &str = "Who decides what runs together: `adaptive`, `cellular`, or whole graphs (`graph`, `graph:WIDTH` in steps per bucket, `graph:WIDTH:WINDOW_MS`, `serial`), or graphs merged level by level (`merge`, `merge:REQUESTS`), or LazyBatching (`lazy`, `lazy:OBJECTIVE_MS:PERCENTILE`)";

/// Serves recurrent and dynamically structured neural networks, batched cell by cell.
#[derive(Debug, Parser)]
#[command(name = "cellwright", version, max_term_width = 120, propagate_version = true)]
pub(crate) struct Cli {
    /// What to log to standard error: `error`, `warn`, `info`, `debug`, `trace`, or such a level for single crates (`cellwright_engine=debug`)
    #[arg(long, global = true, display_order = BEHIND_ITS_OWN + 100, env = "CELLWRIGHT_LOG", value_name = "FILTER", default_value = "warn")]
    pub(crate) log: String,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what this program does: a server, three models, their answers, some load
    Demo(DemoArguments),
    /// Serve models over HTTP (Open Inference Protocol v2)
    Serve(ServeArguments),
    /// Send a model bundle to a server
    Push(PushArguments),
    /// List a server's models, and change which version of one serves
    Models(ModelsArguments),
    /// Send requests to a server and print the answers
    Infer(InferArguments),
    /// Make, list and revoke keys
    Keys(KeysArguments),
    /// Make, list and change tenants
    Tenants(TenantsArguments),
    /// Run requests through a model bundle in this process and print the answers
    Run(RunArguments),
    /// Check a model bundle: load it as a server would, run its samples, print its cells and limits
    Check(CheckArguments),
    /// Measure this machine
    Bench {
        #[command(subcommand)]
        bench: Bench,
    },
    /// Run the scheduler in virtual time, on any device's cost curve
    Simulate(SimulateArguments),
    /// Measure what tasks cost on this machine, as a device for `simulate`
    Calibrate(CalibrateArguments),
    /// Make a recording's decisions again (`serve --record`), and see what others would have come to
    Replay(ReplayArguments),
    /// Run the published figures again, and write them with what was published beside what came out
    Figures(FiguresArguments),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  cellwright completions bash > /etc/bash_completion.d/cellwright")]
    Completions {
        /// Which shell
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

The input holds one Open Inference Protocol v2 request per line; blank lines are skipped. All of them are in flight at once, up to \
--in-flight-max; answers are printed in the order of the input, one line each. With --stream, parts and ends are printed as they come, whoever's \
they are: each line has its request's id (`line-N` for one without). What a request says of outputs holds here as on a server, its `timeout` and `priority` do not. A request that fails prints {\"id\":…,\"error\":…} and lets the others be; the \
exit status is 1 then.";

#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct RunArguments {
    /// The bundle: a folder with a model.toml
    pub(crate) bundle: PathBuf,
    /// A file of requests, one JSON object per line; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// Compute at this precision, whatever the bundle says: `f32`, `f16`, `bf16` or `int8`
    #[arg(long, value_name = "PRECISION", value_parser = completed::precision(), hide_possible_values = true)]
    pub(crate) precision: Option<Precision>,
    /// Take the lines as the chunks of one session, not as requests of their own
    #[arg(long)]
    pub(crate) session: bool,
    /// Print each part of a streamed output as a line of its own, as it comes
    #[arg(long)]
    pub(crate) stream: bool,
    /// Say on standard error which cells run in which batch, while they run
    #[arg(long)]
    pub(crate) trace: bool,
    /// Write the trace and the summary as JSON lines (answers always are)
    #[arg(long)]
    pub(crate) json: bool,
    /// Requests in flight at once
    #[arg(long, alias = "max-in-flight", value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) in_flight_max: u32,
    #[arg(long, value_name = "POLICY", hide_possible_values = true, default_value_t = PolicySpec::default(), help = POLICIES)]
    pub(crate) policy: PolicySpec,
    /// When a cell may be queued behind cells it waits for: one by one (`node`), or when its whole subgraph may run (`subgraph`)
    #[arg(long, value_enum, default_value_t = ReleaseRule::Node)]
    pub(crate) release: ReleaseRule,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

const CHECK_EXAMPLES: &str = "Examples:
  cellwright check examples/digits
  cellwright check examples/digits --json | jq .cells
  cellwright check examples/digits --recalibrate

Exit status 0 means that a server would take this bundle: it loads, its samples run, and their answers are the expected ones within the tolerance. \
The samples are also run at every precision: `error` is the largest difference of a float from what it is in f32, |a - b| / (1 + |b|); `same` counts \
samples whose other outputs are as in f32; `right` counts those with the labels they are expected to have, outputs that are no floats. That is for \
information: neither these figures nor a precision at which the bundle cannot be loaded changes the exit status.";

#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckArguments {
    /// The bundle: a folder with a model.toml
    pub(crate) bundle: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Measure batch sizes again, and keep the new ones in this cache, even if they are known from an earlier start (a server measures for itself, and keeps what it measured in its data folder)
    #[arg(long)]
    pub(crate) recalibrate: bool,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

/// What every verb that runs models takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct HostArguments {
    #[arg(long = "worker", value_name = "SPEC", help = format!("A worker: {WORKER_FORMS}; may be given several times {WORKERS_DEFAULT}"))]
    pub(crate) workers: Vec<WorkerSpec>,
    /// Where compiled plugins and measured batch sizes are kept; `none` keeps nothing [default: the user's cache folder]
    #[arg(long, env = "CELLWRIGHT_CACHE", value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReleaseRule {
    Node,
    Subgraph,
}

impl fmt::Display for ReleaseRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "node",
            Self::Subgraph => "subgraph",
        })
    }
}

impl FromStr for ReleaseRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false).map_err(|_| format!("`{text}` is no release rule; the rules are `node` and `subgraph`"))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Time from the call of a plugin to a checked graph, on warm and on fresh instances
    Unfold(UnfoldArguments),
    /// What deciding costs: nodes per second of the scheduler, with a device that completes every task at once
    Scheduler(SchedulerBenchArguments),
    /// One step of a cell on the CPU worker, against what the processor can do at most
    Cell(CellArguments),
    /// Requests per second and latency of the engine under open-loop load, in this process
    Engine(EngineArguments),
    /// Requests per second and latency of a server under open-loop load, over HTTP
    Serve(ServeBenchArguments),
}

const SCHEDULER_BENCH_EXAMPLES: &str = "Examples:
  cellwright bench scheduler
  cellwright bench scheduler --json | jq .chains.nodes_per_s

Crowds of requests are kept in flight: chains of sentences' lengths (a batch limit of 512), trees of sentences (64), sentence pairs (512 and 256), and all \
of them by 200 models of 40 tenants. Only the time in the scheduler counts; of 50 parts of a crowd's time the middle one, by its cost, is reported. Bytes are those of \
requests that have just arrived, beside their graphs.";

#[derive(Debug, Args)]
#[command(after_help = SCHEDULER_BENCH_EXAMPLES)]
pub(crate) struct SchedulerBenchArguments {
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds for each crowd, and as long before to warm up
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = at_most_an_hour)]
    pub(crate) seconds: f64,
    /// Which requests come
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// A file that is written when everything has been measured, which would be in vain without a folder for it.
fn file_to_write(text: &str) -> Result<PathBuf, String> {
    let file = PathBuf::from(text);
    if text.is_empty() || file.is_dir() {
        return Err("it is no name of a file".to_owned());
    }
    match file.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => Err(format!("there is no folder {}", folder.display())),
        None => Ok(file),
    }
}

fn one_or_more(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("`{text}` is no whole number from 1 on")),
    }
}

fn a_tenth_to_an_hour(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0.1 to 3600".to_owned()),
    }
}

fn at_most_a_week(text: &str) -> Result<f64, String> {
    seconds(text, 604_800.0)
}

fn at_most_an_hour(text: &str) -> Result<f64, String> {
    seconds(text, 3600.0)
}

fn seconds(text: &str, most: f64) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("\"{text}\" is not a number of seconds"))?;
    if seconds > 0.0 && seconds <= most { Ok(seconds) } else { Err(format!("{text} is not above 0 and at most {most}")) }
}

const SERVE_BENCH_EXAMPLES: &str = "Examples:
  cellwright bench serve examples/digits
  cellwright bench serve examples/digits examples/dates --rate sweep --plot sweep.svg
  cellwright bench serve examples/digits --rate 500,1000,2000 --connections 64 --server http://models.example:8000
  cellwright bench serve examples/dates --policy cellular,adaptive,graph:10 --rate 200,400

Bundles are uploaded first; their samples are what is asked, again and again. Requests arrive at random (Poisson) whether or not earlier ones are \
done, and latency counts from the moment a request was meant to arrive; one that still waits at the end counts as long as it \
has. Of several policies each has a server of its own, all of them on this machine; they take turns at every rate, and the others have nothing to do \
meanwhile.";

#[derive(Debug, Args)]
#[command(after_help = SERVE_BENCH_EXAMPLES)]
pub(crate) struct ServeBenchArguments {
    /// Bundles to ask, in equal shares
    #[arg(required = true)]
    pub(crate) bundles: Vec<PathBuf>,
    /// A server to ask [default: one that is started on this machine for the run; never that of CELLWRIGHT_SERVER, which may have other things to do]
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// The key to show it
    #[arg(long, env = "CELLWRIGHT_KEY", value_name = "KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
    /// Authorities (PEM) whose certificates are trusted, instead of the system's, where the address begins with https://
    #[arg(long, env = "CELLWRIGHT_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// What is asked, if not the bundles' samples: one request a line
    #[arg(long, alias = "requests", value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Requests per second, or `max` (each connection asks again when it is answered), or `sweep` (ten rates up to that); several with commas between them
    #[arg(long, default_value = "max", value_delimiter = ',')]
    pub(crate) rate: Vec<SweepRate>,
    /// Connections, each with one request at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = one_or_more)]
    pub(crate) connections: usize,
    /// Threads that send
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = one_or_more)]
    pub(crate) threads: usize,
    /// Seconds to measure each rate, after a warm-up of a fifth of it
    #[arg(long, alias = "duration", default_value_t = 5.0, value_name = "SECONDS", value_parser = at_most_a_week)]
    pub(crate) seconds: f64,
    /// Send tensors as JSON, not as raw bytes
    #[arg(long)]
    pub(crate) json_tensors: bool,
    /// Draw latency against throughput
    #[arg(long, value_name = "FILE.svg", value_parser = file_to_write)]
    pub(crate) plot: Option<PathBuf>,
    /// Seeds arrivals, which are others for each rate and the same under every policy
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    #[arg(
        long = "worker", value_name = "SPEC", conflicts_with = "server",
        help = format!("A worker of the server that is started: {WORKER_FORMS}; may be given several times {WORKERS_DEFAULT}")
    )]
    pub(crate) workers: Vec<WorkerSpec>,
    /// The policy of the server that is started; of several, with commas between them, each has a server, and they take turns
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
    /// So many requests per second.
    PerSecond(f64),
    /// As many as are answered.
    Max,
    /// Ten rates up to that.
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

const UNFOLD_EXAMPLES: &str = "Examples:
  cellwright bench unfold
  cellwright bench unfold examples/dates

Without a bundle the stock plugins are measured: chains of 24 and of 330 steps, and a tree of 20 leaves.";

#[derive(Debug, Args)]
#[command(after_help = UNFOLD_EXAMPLES)]
pub(crate) struct UnfoldArguments {
    /// A bundle, whose first sample is unfolded
    pub(crate) bundle: Option<PathBuf>,
    /// Calls on warm instances (a tenth of them on fresh ones)
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(10..))]
    pub(crate) calls: u32,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

const ENGINE_EXAMPLES: &str = "Examples:
  cellwright bench engine --hidden 16 --lengths fixed:1 --rate max
  cellwright bench engine --hidden 1024 --lengths lognormal --rate half --policy cellular,graph:10
  cellwright bench engine --model tree --hidden 128 --lengths file:shapes.tsv --rate 200
  cellwright bench engine --model tokens --precision bf16 --hidden 1024 --rate max --worker cuda:0

Requests arrive at random (Poisson) whether or not earlier ones are done, and latency counts from the moment a request was meant to arrive, so that \
a stall delays everyone who would have come meanwhile. `--rate max` keeps --in-flight-max requests in flight instead, and finds the saturation \
throughput; `--rate half` finds it for the first policy and then offers half of it to each. `busy` is the share of the time in which workers had \
tasks, `of cells` the share that the same batches take by themselves, all of their mean size: run right after it as tasks of as many workers, a second for each \
cell (BatchMaker's figure 11 has 87 % for it; `-` of workers on GPUs, and with `--worker auto`).";

#[derive(Debug, Args)]
#[command(after_help = ENGINE_EXAMPLES)]
pub(crate) struct EngineArguments {
    /// What requests are: sequences for an LSTM, or trees for a binary TreeLSTM; weights are random
    #[arg(long, value_enum, default_value_t = ModelKind::Chain)]
    pub(crate) model: ModelKind,
    /// How cells are computed
    #[arg(long, value_parser = completed::precision(), default_value = "f32")]
    pub(crate) precision: Precision,
    /// Hidden size, and the size of an element of the input
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) hidden: u32,
    /// Lengths (leaves of a balanced tree): `fixed:N`, `lognormal[:MU:SIGMA:MAX]`, or `file:PATH[:COLUMN]` with a number, or for trees a shape
    /// like `BLBLL`, per line
    #[arg(long, default_value = "lognormal", value_name = "SOURCE")]
    pub(crate) lengths: LengthSource,
    /// Requests per second; or `max`, `half`
    #[arg(long, default_value = "half")]
    pub(crate) rate: Rate,
    /// Seconds to measure, after a warm-up of a fifth of it
    #[arg(long, alias = "duration", default_value_t = 10.0, value_name = "SECONDS", value_parser = a_tenth_to_an_hour)]
    pub(crate) seconds: f64,
    /// Whether each request is unfolded by its plugin, or graphs are prepared beforehand
    #[arg(long, value_enum, default_value_t = UnfoldMode::PerRequest)]
    pub(crate) unfold: UnfoldMode,
    /// Requests in flight at once; those that arrive beyond wait, and their waiting counts
    #[arg(long, alias = "max-in-flight", value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) in_flight_max: u32,
    /// Seeds weights, lengths and arrivals
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    #[arg(
        long, value_name = "POLICY", hide_possible_values = true, default_values_t = [PolicySpec::default()], value_delimiter = ',',
        help = format!("{POLICIES}; several, with commas between them, are measured one after the other")
    )]
    pub(crate) policy: Vec<PolicySpec>,
    /// When a cell may be queued behind cells it waits for: one by one (`node`), or when its whole subgraph may run (`subgraph`)
    #[arg(long, value_enum, default_value_t = ReleaseRule::Node)]
    pub(crate) release: ReleaseRule,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnfoldMode {
    PerRequest,
    Prepared,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    fn check(command: &clap::Command) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines: Vec<&str> = help.lines().collect();
        for [line, next] in lines.array_windows() {
            let goes_on = !line.is_empty() && !line.starts_with(' ') && !next.is_empty() && !next.starts_with(' ');
            assert!(!goes_on, "`{}` has a paragraph of several lines, which terminals break again:\n{line}\n{next}", command.get_name());
        }
        command.get_subcommands().for_each(check);
    }

    #[test]
    fn paragraphs_are_broken_by_the_terminal_alone() {
        check(&Cli::command());
    }
}

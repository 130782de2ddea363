//! The command line of the laboratory: verbs, options and their help.

mod calibrate;
mod cell;
mod replay;
mod simulate;

use std::path::PathBuf;

use cellwright_cell_graph::typed::Precision;
use cellwright_command::completed;
use cellwright_command::options::{BEHIND_ITS_OWN, HostArguments, ReleaseRule, a_tenth_to_an_hour, at_most_an_hour, policies};
use cellwright_command::policy::PolicySpec;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::commands::bench::load::{LengthSource, ModelKind, Rate};

pub(crate) use calibrate::CalibrateArguments;
pub(crate) use cell::{CellArguments, CellKind};
pub(crate) use replay::ReplayArguments;
pub(crate) use simulate::{FiguresArguments, SimulateArguments, WorkloadKind};

const EXAMPLES: &str = "Examples:
  cellwright-lab simulate --policy cellular,graph:10 --rate 1000,5000,10000 --plot latency.svg
  cellwright-lab calibrate examples/digits --output digits.toml
  cellwright-lab bench engine --hidden 128 --rate half";

/// Studies the scheduler and the engine of Cellwright: in virtual time, from recordings, and on this machine.
#[derive(Debug, Parser)]
#[command(name = "cellwright-lab", version, max_term_width = 120, propagate_version = true, after_help = EXAMPLES)]
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
    /// Run the scheduler in virtual time, on any device's cost curve
    Simulate(SimulateArguments),
    /// Measure the cost of tasks on this machine, and write it as a device for `simulate`
    Calibrate(CalibrateArguments),
    /// Repeat the decisions of a recording (`cellwright serve --record`), and try other policies on it
    Replay(ReplayArguments),
    /// Run the published figures again, and write them beside the published values
    Figures(FiguresArguments),
    /// Measure one part of the program on this machine
    Bench {
        #[command(subcommand)]
        bench: Bench,
    },
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  cellwright-lab completions bash > /etc/bash_completion.d/cellwright-lab")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Compile a plugin from standard input to standard output (the host calls this itself, to compile under limits)
    #[command(hide = true)]
    CompilePlugin,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Measure the time from the call of a plugin to a checked graph, on warm and on fresh instances
    Unfold(UnfoldArguments),
    /// Measure the cost of the scheduler's decisions, with a device that completes every task at once
    Scheduler(SchedulerBenchArguments),
    /// Measure one step of a cell on the CPU worker, and compare it with the processor's limits
    Cell(CellArguments),
    /// Measure requests per second and latency of the engine, in this process
    Engine(EngineArguments),
}

const SCHEDULER_BENCH_EXAMPLES: &str = "Examples:
  cellwright-lab bench scheduler
  cellwright-lab bench scheduler --json | jq .chains.nodes_per_s

The benchmark keeps crowds of requests in flight. They are chains as long as sentences (batch limit 512), trees of sentences (64), sentence pairs (512 \
and 256), and all of these in 200 models of 40 tenants. Only time in the scheduler counts. The time of a crowd is divided into 50 parts, and the part with \
the median cost is reported. Bytes are those of requests that have just arrived, without their graphs.";

#[derive(Debug, Args)]
#[command(after_help = SCHEDULER_BENCH_EXAMPLES)]
pub(crate) struct SchedulerBenchArguments {
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds to measure each crowd, at most 3600, after a warm-up of the same time
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = at_most_an_hour)]
    pub(crate) seconds: f64,
    /// Seed of the requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

const UNFOLD_EXAMPLES: &str = "Examples:
  cellwright-lab bench unfold
  cellwright-lab bench unfold examples/dates

Without a bundle, the stock plugins are measured: chains of 24 and 330 steps, and a tree of 20 leaves.";

#[derive(Debug, Args)]
#[command(after_help = UNFOLD_EXAMPLES)]
pub(crate) struct UnfoldArguments {
    /// Bundle whose first sample is unfolded [default: the stock plugins]
    pub(crate) bundle: Option<PathBuf>,
    /// Number of calls on warm instances, at least 10; a tenth as many are on fresh ones
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(10..))]
    pub(crate) calls: u32,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

const ENGINE_EXAMPLES: &str = "Examples:
  cellwright-lab bench engine --hidden 16 --lengths fixed:1 --rate max
  cellwright-lab bench engine --hidden 1024 --lengths lognormal --rate half --policy cellular,graph:10
  cellwright-lab bench engine --model tree --hidden 128 --lengths file:shapes.tsv --rate 200
  cellwright-lab bench engine --model tokens --precision bf16 --hidden 1024 --rate max --worker cuda:0

Requests arrive at random (Poisson), whether or not earlier ones are done. Latency counts from the moment a request was meant to arrive, so a stall \
counts for all requests behind it. `--rate max` keeps `--in-flight-max` requests in flight instead, and finds the saturation throughput. `--rate half` \
finds it for the first policy, and offers half of it to each policy. `busy` is the share of the time in which workers have tasks. `of cells` is the \
share that the same batches take by themselves: after the run, as many workers run steps of the mean batch size, for one second per cell. It is `-` for \
GPUs and with `--worker auto`. BatchMaker's figure 11 has 87 % for it.";

#[derive(Debug, Args)]
#[command(after_help = ENGINE_EXAMPLES)]
pub(crate) struct EngineArguments {
    /// Model to measure, with random weights
    #[arg(long, value_enum, default_value_t = ModelKind::Chain)]
    pub(crate) model: ModelKind,
    /// Precision of products
    #[arg(long, value_parser = completed::precision(), default_value = "f32")]
    pub(crate) precision: Precision,
    /// Hidden size and input size, 1 to 8192
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) hidden: u32,
    /// Lengths of requests (leaves of balanced trees): `fixed:N`, `lognormal[:MU:SIGMA:MAX]`, or
    /// `file:PATH[:COLUMN]` with a number per line, or for trees a shape like `BLBLL`
    #[arg(long, default_value = "lognormal", value_name = "SOURCE")]
    pub(crate) lengths: LengthSource,
    /// Requests per second, `max` (saturation) or `half` (half of the saturation throughput)
    #[arg(long, default_value = "half")]
    pub(crate) rate: Rate,
    /// Seconds to measure, 0.1 to 3600, after a warm-up of a fifth of that time
    #[arg(long, alias = "duration", default_value_t = 10.0, value_name = "SECONDS", value_parser = a_tenth_to_an_hour)]
    pub(crate) seconds: f64,
    /// Whether the plugin unfolds each request, or graphs are prepared before the run
    #[arg(long, value_enum, default_value_t = UnfoldMode::PerRequest)]
    pub(crate) unfold: UnfoldMode,
    /// Maximum number of requests in flight, 1 to 65536; further ones wait, and their wait counts
    #[arg(long, alias = "max-in-flight", value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) in_flight_max: u32,
    /// Seed of weights, lengths and arrivals
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    #[arg(
        long, value_name = "POLICY", hide_possible_values = true, default_values_t = [PolicySpec::default()], value_delimiter = ',',
        help = format!("{}. Several, separated by commas, are measured one after the other", policies())
    )]
    pub(crate) policy: Vec<PolicySpec>,
    /// When the scheduler may queue a cell
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

    #[test]
    fn paragraphs_are_broken_by_the_terminal_alone() {
        cellwright_command::options::check_help(&Cli::command());
    }
}

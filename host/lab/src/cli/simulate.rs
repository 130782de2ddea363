//! Arguments of `simulate` and `figures`.

use std::path::PathBuf;
use std::str::FromStr;

use cellwright_command::options;
use cellwright_command::options::ReleaseRule;
use cellwright_command::policy::PolicySpec;
use cellwright_simulator::arrivals::{FASTER_MAX, RATE_MAX};
use clap::{Args, ValueEnum};

const SIMULATE_EXAMPLES: &str = "Examples:
  cellwright-lab simulate --rate 5000 --seconds 4 --seed 7 --json
  cellwright-lab simulate --policy cellular,graph:10 --rate 1000,5000,10000,20000 --plot latency.svg
  cellwright-lab simulate --workload seq2seq --devices 2 --batch-max 512,256 --rate 8000
  cellwright-lab simulate --workload trees --leaves 16 --batch-max 64 --rate 8000
  cellwright-lab simulate --device my-gpu.toml --trace arrivals.csv --timeline who-ran-when.svg

The scheduler is the server's; only devices and time are simulated. The defaults are the settings of BatchMaker's experiments; a server has \
`--low-water 2 --release node`. A device is `v100` (BatchMaker's GPU), `npu` (LazyBatching's accelerator), or a TOML file of times by batch size:

  name = \"my-gpu\"
  [cells.lstm]                                  # or [default], for every cell without a table
  compute_us = [[64, 185], [512, 784]]          # batch, microseconds; linear between, proportional above
  compute_quiet_us = [[64, 120], [512, 700]]    # the same while no other device is busy; optional
  fill_first = true                             # fill a batch before another device with the same memory begins one; optional
  overhead_us = [[64, 65], [512, 117]]          # scheduling and gathering of a task; optional

Optional times go before the cells. handover_us is the time until the scheduler learns of the end of a task, and handover_busy_us the same while every \
device is busy. wake_us is the time until an idle device begins a task, and between_us the time between two tasks of a busy one. request_us is the way of \
a request and its answer between client and scheduler; without it, the scheduler learns of a request as of the end of a task. move_us is the time to move \
a request's state to another device; with shares_memory = true it stays where it is. handover_us, handover_busy_us and wake_us may be lists of equally \
likely times.

A line of JSON has, for each run, policy, rate, throughput, mean_ms, p50_ms, p90_ms, p99_ms, queueing and computation (the same for the time before the \
first cell begins, request_us included, and for the time after it), mean_batch, utilisation, answered, failed, unfinished and sla_violations. Latencies \
are those of answered requests, or null without any. `failed` counts requests that were given up (`given up` in the table), `unfinished` those without \
an answer at the end (`open`). A policy with more of them has latencies of fewer requests.";

#[derive(Debug, Args)]
#[command(after_help = SIMULATE_EXAMPLES)]
pub(crate) struct SimulateArguments {
    /// Batching policy, as for `cellwright serve`; several, separated by commas, meet the same requests
    #[arg(long, value_name = "POLICY", hide_possible_values = true, default_values_t = [PolicySpec::default()], value_delimiter = ',')]
    pub(crate) policy: Vec<PolicySpec>,
    /// Device: `v100` (cells of lstm, seq2seq and trees), `npu` (cells of resnet, deepspeech, transformer
    /// and gnmt), or a file
    #[arg(long, default_value = "v100", value_name = "NAME|FILE.toml")]
    pub(crate) device: String,
    /// Number of devices, 1 to 64, each with its own memory. Policies that batch whole requests run them on
    /// any idle device
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) devices: u32,
    /// Kind of requests
    #[arg(long, value_enum, default_value_t = WorkloadKind::Lstm)]
    pub(crate) workload: WorkloadKind,
    /// Requests per second, at random (Poisson); separate several by commas
    #[arg(
        long,
        default_value = "5000",
        value_delimiter = ',',
        allow_negative_numbers = true,
        value_name = "RATE",
        conflicts_with = "trace"
    )]
    pub(crate) rate: Vec<RequestRate>,
    /// Number of clients that send their next request after an answer, 1 to 1000000; instead of `--rate`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with_all = ["rate", "trace"])]
    pub(crate) clients: Option<u32>,
    /// File of arrivals, instead of `--rate`: `microseconds[,length[,target length]]` per line, in order of
    /// time. The first line may name the columns so, or `t_us,in,out`
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Play the trace this many times as fast
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", value_parser = factor, requires = "trace", conflicts_with_all = ["rate", "clients"])]
    pub(crate) faster: f64,
    /// Seconds of virtual time in which requests arrive; the first fifth is a warm-up [default: 4, or the
    /// whole trace without a warm-up]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Seed of arrivals and shapes
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Length of all requests, in steps
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) fixed_length: Option<u32>,
    /// Clip lengths to this many steps
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) length_max: Option<u32>,
    /// File of lengths to draw from: `length[,count]` per line; for models with an output, `source,target`;
    /// for trees, a shape like `BLBLL` in the last column. The first line may name the columns so (for
    /// trees, `tree` or `preorder`)
    #[arg(long, value_name = "FILE", conflicts_with = "fixed_length")]
    pub(crate) lengths: Option<PathBuf>,
    /// Make all trees complete, with this many leaves
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "lengths")]
    pub(crate) leaves: Option<u32>,
    /// Only the device knows where a decoder ends: this many steps beyond the input's length at the latest
    /// [default: 50]
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) decode_bound: Option<u32>,
    /// A decoder's length is known when its request comes. Policies of whole graphs batch requests whose
    /// inputs and outputs are equally long
    #[arg(long, conflicts_with = "decode_bound")]
    pub(crate) decode_known: bool,
    /// Maximum rows of a batch for each cell, in the order of the model; the last one holds for further cells
    #[arg(long, default_value = "512", value_delimiter = ',', value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batch_max: Vec<u32>,
    /// Minimum rows of a task, except the first task of a decision
    #[arg(long, default_value_t = 1, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batch_min: u32,
    /// Steps of a bucket, for the policy `graph`; 0 pads a batch to its longest request
    #[arg(long, value_name = "STEPS")]
    pub(crate) bucket_width: Option<u32>,
    /// Maximum number of tasks that one decision submits, 1 to 1024
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) max_tasks: u32,
    /// A device asks for more work when it has this many outstanding tasks or fewer
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) low_water: u32,
    /// When the scheduler may queue a cell
    #[arg(long, value_enum, default_value_t = ReleaseRule::Subgraph)]
    pub(crate) release: ReleaseRule,
    /// Nanoseconds of scheduling for each row. Gathering then costs time for each row that moves. Both
    /// replace the device's overhead (whole graphs have neither)
    #[arg(long, value_name = "NANOSECONDS", value_parser = nanoseconds)]
    pub(crate) scheduling_ns: Option<f64>,
    /// Deadline of requests, in milliseconds. Late requests count as violations, and policies that use
    /// deadlines know it. `lazy` also has its own objective (100 ms; `lazy:MS` changes it)
    #[arg(long, value_name = "MS", value_parser = seconds)]
    pub(crate) objective_ms: Option<f64>,
    /// Run until every request has ended
    #[arg(long)]
    pub(crate) drain: bool,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw latency against throughput as an SVG
    #[arg(long, value_name = "FILE.svg", value_parser = options::file_to_write)]
    pub(crate) plot: Option<PathBuf>,
    /// Draw which request ran when, in the first run, as an SVG
    #[arg(long, value_name = "FILE.svg", value_parser = options::file_to_write)]
    pub(crate) timeline: Option<PathBuf>,
}

const FIGURES_EXAMPLES: &str = "Examples:
  cellwright-lab figures
  cellwright-lab figures --output /tmp/figures --only 7,11

Each figure is written as SVG and as JSON, with the published values beside the simulated ones. README.md gets a table of all comparisons.";

#[derive(Debug, Args)]
#[command(after_help = FIGURES_EXAMPLES)]
pub(crate) struct FiguresArguments {
    /// Folder to write the figures to
    #[arg(long, alias = "out", default_value = "tests/figures", value_name = "FOLDER")]
    pub(crate) output: PathBuf,
    /// Make only figures whose names begin with this; separate several by commas
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) only: Vec<String>,
}

/// A kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkloadKind {
    /// Sequences for one LSTM layer, as long as sentences of Europarl
    Lstm,
    /// Binary TreeLSTMs over trees like those of the Stanford Sentiment Treebank
    Trees,
    /// An LSTM encoder and an LSTM decoder
    Seq2seq,
    /// A line of 50 cells, each of its own kind
    Resnet,
    /// Two convolutions, five recurrent layers, two dense layers
    Deepspeech,
    /// Six encoder layers, and six decoder layers and a projection for each output
    Transformer,
    /// Four recurrent layers over the input, four and a projection for each output
    Gnmt,
}

/// Requests per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RequestRate(pub(crate) f64);

impl FromStr for RequestRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(rate) if rate > 0.0 && rate <= RATE_MAX => Ok(Self(rate)),
            _ => Err(format!("`{text}` is not a number of requests per second above 0, at most {RATE_MAX}")),
        }
    }
}

/// The largest value of a time, in seconds or in milliseconds.
const TIME_MAX: f64 = 1e6;
/// The largest `--scheduling-ns`: a second.
const SCHEDULING_NS_MAX: f64 = 1e9;

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= TIME_MAX => Ok(seconds),
        _ => Err(format!("`{text}` is not a time above 0, at most {TIME_MAX}")),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if factor > 0.0 && factor <= FASTER_MAX => Ok(factor),
        _ => Err(format!("`{text}` is not a factor above 0, at most {FASTER_MAX}")),
    }
}

fn nanoseconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ns) if (0.0..=SCHEDULING_NS_MAX).contains(&ns) => Ok(ns),
        _ => Err(format!("`{text}` is not a number of nanoseconds from 0 to {SCHEDULING_NS_MAX}")),
    }
}

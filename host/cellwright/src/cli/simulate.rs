//! Arguments of `simulate` and `figures`.

use std::path::PathBuf;
use std::str::FromStr;

use cellwright_simulator::arrivals::{FASTER_MAX, RATE_MAX};
use clap::{Args, ValueEnum};

use super::ReleaseRule;
use crate::policy::PolicySpec;

const SIMULATE_EXAMPLES: &str = "Examples:
  cellwright simulate --rate 5000 --seconds 4 --seed 7 --json
  cellwright simulate --policy cellular,graph:10 --rate 1000,5000,10000,20000 --plot latency.svg
  cellwright simulate --workload seq2seq --devices 2 --batch-max 512,256 --rate 8000
  cellwright simulate --workload trees --leaves 16 --batch-max 64 --rate 8000
  cellwright simulate --device my-gpu.toml --trace arrivals.csv --timeline who-ran-when.svg

The scheduler is the one that serves; only devices and time are made up. Its settings are those of BatchMaker's experiments; a server's are \
`--low-water 2 --release node`. A device is `v100` (BatchMaker's GPU), `npu` (LazyBatching's accelerator), or a TOML file of times by batch size:

  name = \"my-gpu\"
  [cells.lstm]                                  # or [default], for every cell that has no table
  compute_us = [[64, 185], [512, 784]]          # batch, microseconds; linear between, proportional above
  compute_quiet_us = [[64, 120], [512, 700]]    # the same while no other device is at work, if that differs; optional
  fill_first = true                             # a device's batch is full before another of the same memory begins one; optional
  overhead_us = [[64, 65], [512, 117]]          # scheduling and gathering of a task; optional

and before the cells, if need be, handover_us (until the end of a task is heard of: a time, or a list of times that are equally likely), \
handover_busy_us (the same while every device is at work), wake_us (until a device begins that has had nothing to do: a time or a list), between_us (until \
one begins that goes on, from when it could), request_us (what a request and its answer take on their ways between client and scheduler; if it is not \
there, a request is heard of as the end of a task is), move_us (of a request's state to another device) and shares_memory = true (devices that need not \
move it).

Lines of JSON have, for each run, policy, rate, throughput, mean_ms, p50_ms, p90_ms, p99_ms, queueing and computation (the same for the time \
before the first cell began, request_us included, and after it), mean_batch, utilisation, answered, failed, unfinished and sla_violations. Latencies \
are of requests that were answered, null where there are none; `failed` were given up (`given up` in the table), `unfinished` were still to be answered at \
the end (`open`): a policy with more of them has latencies of fewer requests.";

#[derive(Debug, Args)]
#[command(after_help = SIMULATE_EXAMPLES)]
pub(crate) struct SimulateArguments {
    /// Who decides what runs together; several, with commas between them, meet the same requests one after the other
    #[arg(long, value_name = "POLICY", hide_possible_values = true, default_values_t = [PolicySpec::default()], value_delimiter = ',')]
    pub(crate) policy: Vec<PolicySpec>,
    /// What batches cost: `v100` (the cells of lstm, seq2seq and trees), `npu` (those of resnet, deepspeech, transformer and gnmt), or a file
    #[arg(long, default_value = "v100", value_name = "NAME|FILE.toml")]
    pub(crate) device: String,
    /// How many of it, each with memory of its own; policies that take whole requests run them on whichever is idle
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) devices: u32,
    /// What requests are
    #[arg(long, value_enum, default_value_t = WorkloadKind::Lstm)]
    pub(crate) workload: WorkloadKind,
    /// Requests per second, at random (Poisson); several, with commas between them
    #[arg(
        long,
        default_value = "5000",
        value_delimiter = ',',
        allow_negative_numbers = true,
        value_name = "RATE",
        conflicts_with = "trace"
    )]
    pub(crate) rate: Vec<RequestRate>,
    /// So many clients instead, each of which asks again when it is answered
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with_all = ["rate", "trace"])]
    pub(crate) clients: Option<u32>,
    /// A file of arrivals instead: `microseconds[,length[,target length]]` a line, in order of time, if need be under a line that names the columns so (or `t_us,in,out`)
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Play a trace so many times as fast
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", value_parser = factor, requires = "trace", conflicts_with_all = ["rate", "clients"])]
    pub(crate) faster: f64,
    /// For how long requests arrive, in seconds of virtual time, a fifth of them a warm-up [default: 4, or the whole trace without a warm-up]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Seeds arrivals and shapes
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// All requests are so long
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) fixed_length: Option<u32>,
    /// Lengths are clipped to so many steps
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) length_max: Option<u32>,
    /// A file of lengths to draw from: `length[,count]` a line; for models with an output, `source,target`; for trees, shapes like `BLBLL` in the last column. The first line may name the columns so (the last of trees `tree` or `preorder`)
    #[arg(long, value_name = "FILE", conflicts_with = "fixed_length")]
    pub(crate) lengths: Option<PathBuf>,
    /// All trees are complete ones of so many leaves
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "lengths")]
    pub(crate) leaves: Option<u32>,
    /// A decoder's length is known to the device alone, and bounded by the input's and so many steps more, where it ends at the latest [default: 50]
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) decode_bound: Option<u32>,
    /// A decoder's length is known when a request comes, and whoever batches whole graphs puts those together that are as long in and out
    #[arg(long, conflicts_with = "decode_bound")]
    pub(crate) decode_known: bool,
    /// Rows of a batch, at most, by cell in the order of the model; the last for all further ones
    #[arg(long, default_value = "512", value_delimiter = ',', value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batch_max: Vec<u32>,
    /// Rows that a task has at least, unless it is a decision's first
    #[arg(long, default_value_t = 1, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batch_min: u32,
    /// Steps of a bucket, for the policy `graph`; 0 pads a batch to its longest
    #[arg(long, value_name = "STEPS")]
    pub(crate) bucket_width: Option<u32>,
    /// Tasks that one decision submits, at most
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) max_tasks: u32,
    /// A device asks for more when so few of its tasks are outstanding
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) low_water: u32,
    /// When a cell may be queued behind cells it waits for: one by one (`node`), or when its whole subgraph may run (`subgraph`)
    #[arg(long, value_enum, default_value_t = ReleaseRule::Subgraph)]
    pub(crate) release: ReleaseRule,
    /// Cost gathering by the rows that change place, and so many nanoseconds of scheduling for each row, instead of by the device's overhead (whole graphs have neither)
    #[arg(long, value_name = "NANOSECONDS", value_parser = nanoseconds)]
    pub(crate) scheduling_ns: Option<f64>,
    /// Requests should be answered within so many milliseconds; who is not counts as a violation, and policies that ask know it. `lazy` keeps to its own objective too, which is 100 ms unless it is written `lazy:MS`
    #[arg(long, value_name = "MS", value_parser = seconds)]
    pub(crate) objective_ms: Option<f64>,
    /// Go on until every request has ended
    #[arg(long)]
    pub(crate) drain: bool,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw latency against throughput
    #[arg(long, value_name = "FILE.svg", value_parser = super::file_to_write)]
    pub(crate) plot: Option<PathBuf>,
    /// Draw who ran when, for the first requests of the first run
    #[arg(long, value_name = "FILE.svg", value_parser = super::file_to_write)]
    pub(crate) timeline: Option<PathBuf>,
}

const FIGURES_EXAMPLES: &str = "Examples:
  cellwright figures
  cellwright figures --output /tmp/figures --only 7,11

Each figure is written as SVG and as JSON, with what was published beside what came out here, and all comparisons as a table in README.md.";

#[derive(Debug, Args)]
#[command(after_help = FIGURES_EXAMPLES)]
pub(crate) struct FiguresArguments {
    /// Where to write them
    #[arg(long, alias = "out", default_value = "tests/figures", value_name = "FOLDER")]
    pub(crate) output: PathBuf,
    /// Figures whose names begin like that alone; several, with commas between them
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
            _ => Err(format!("`{text}` is no number of requests per second above 0 and up to {RATE_MAX}")),
        }
    }
}

/// The longest time that is asked for, in seconds, or in milliseconds.
const TIME_MAX: f64 = 1e6;
/// Of scheduling, for each row: a second.
const SCHEDULING_NS_MAX: f64 = 1e9;

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= TIME_MAX => Ok(seconds),
        _ => Err(format!("`{text}` is no time above 0 and up to {TIME_MAX}")),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if factor > 0.0 && factor <= FASTER_MAX => Ok(factor),
        _ => Err(format!("`{text}` is no factor above 0 and up to {FASTER_MAX}")),
    }
}

fn nanoseconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ns) if (0.0..=SCHEDULING_NS_MAX).contains(&ns) => Ok(ns),
        _ => Err(format!("`{text}` is no number of nanoseconds from 0 to {SCHEDULING_NS_MAX}")),
    }
}

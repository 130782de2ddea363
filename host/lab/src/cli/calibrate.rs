//! Arguments of `calibrate`.

use std::path::PathBuf;

use cellwright_command::options;
use cellwright_command::options::HostArguments;
use cellwright_command::policy::PolicySpec;
use clap::Args;

use crate::commands::bench::load::{LengthSource, ModelKind};

const CALIBRATE_EXAMPLES: &str = "Examples:
  cellwright-lab calibrate --hidden 1024 --worker cpu --worker cpu --output cpu.toml
  cellwright-lab simulate --device cpu.toml --devices 2 --batch-max 32 --low-water 2 --release node --rate 300
  cellwright-lab calibrate examples/digits --output digits.toml
  cellwright-lab calibrate examples/dates --http --worker cpu --worker cpu --output dates.toml
  cellwright-lab calibrate examples/dates --http --policy graph:10 --worker cpu --worker cpu --output dates-graph.toml

The engine gets load at every batch size, on all its workers at once. Then requests arrive at random, at a quarter, half and three quarters of the \
highest throughput. So the times are those of tasks in service: the mean by cell and batch size. The device also has times beside tasks: until the \
scheduler learns of the end of a task, until an idle worker wakes up, and between two tasks. It also has the time of a request and its answer between \
client and scheduler (the mean at a quarter and at half of that throughput). With `--http`, connections and clients run on the same processors, as with `cellwright \
bench serve`, and these times include them. How much they take depends on the policy: answers that end together are sent while a worker is idle, others \
while it computes.";

/// Options of the model with random weights, which exclude a bundle. An option that requires a bundle must exclude them too, because clap does not
/// check the requirement beside them.
const OF_RANDOM_WEIGHTS: [&str; 3] = ["model", "hidden", "lengths"];

#[derive(Debug, Args)]
#[command(after_help = CALIBRATE_EXAMPLES)]
pub(crate) struct CalibrateArguments {
    /// Bundle whose cells to measure [default: a model with random weights]
    pub(crate) bundle: Option<PathBuf>,
    /// File of requests for the bundle, one JSON object per line [default: the bundle's samples]
    #[arg(long, alias = "requests", value_name = "FILE", requires = "bundle", conflicts_with_all = OF_RANDOM_WEIGHTS)]
    pub(crate) input: Option<PathBuf>,
    /// Send requests over HTTP, from clients in this process
    #[arg(long, requires = "bundle", conflicts_with_all = OF_RANDOM_WEIGHTS)]
    pub(crate) http: bool,
    /// Model with random weights, without a bundle
    #[arg(long, value_enum, default_value_t = ModelKind::Chain, conflicts_with = "bundle")]
    pub(crate) model: ModelKind,
    /// Hidden size and input size of that model, 1 to 8192
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=8192), conflicts_with = "bundle")]
    pub(crate) hidden: u32,
    /// Lengths of that model's requests, as for `bench engine`
    #[arg(long, default_value = "lognormal", value_name = "SOURCE", conflicts_with = "bundle")]
    pub(crate) lengths: LengthSource,
    /// Batching policy during the measurement, as for `cellwright serve`
    #[arg(long, value_name = "POLICY", hide_possible_values = true, default_value_t = PolicySpec::default())]
    pub(crate) policy: PolicySpec,
    /// Seconds of each load, 0.1 to 3600: one request alone; 1, 2, 4, … requests in flight per worker, up
    /// to four times the batch limit; and three rates
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = options::a_tenth_to_an_hour)]
    pub(crate) seconds: f64,
    /// File to write the device to [default: standard output]
    #[arg(long, value_name = "FILE.toml", value_parser = options::file_to_write)]
    pub(crate) output: Option<PathBuf>,
    /// Seed of weights and lengths
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

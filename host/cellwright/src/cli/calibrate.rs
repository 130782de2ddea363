//! Arguments of `calibrate`.

use std::path::PathBuf;

use clap::Args;

use super::HostArguments;
use crate::commands::bench::load::{LengthSource, ModelKind};
use crate::policy::PolicySpec;

const CALIBRATE_EXAMPLES: &str = "Examples:
  cellwright calibrate --hidden 1024 --worker cpu --worker cpu --output cpu.toml
  cellwright simulate --device cpu.toml --devices 2 --batch-max 32 --low-water 2 --release node --rate 300
  cellwright calibrate examples/digits --output digits.toml
  cellwright calibrate examples/dates --http --worker cpu --worker cpu --output dates.toml
  cellwright calibrate examples/dates --http --policy graph:10 --worker cpu --worker cpu --output dates-graph.toml

Load at every batch size goes through the engine, on all its workers at once, and then requests come by themselves at a quarter, half and three \
quarters of what was answered at most, so that what is measured is what a task takes in service: the mean by cell and batch size. Besides, what passes beside tasks: until the end of \
one is heard of, until a worker has woken up that had nothing to do, between two tasks, and on a request's and its answer's ways between client \
and scheduler (the mean at a quarter and half of the most). With --http connections and clients are on the same processors, as they are for \
`bench serve`, and what they take of them is in these times. How much that is follows the policy: answers that leave together are sent while a worker has nothing to do, others while it computes.";

/// What is said of a model that is made here: a bundle has its own. An option that requires a bundle is not held to it beside these, which a bundle excludes.
const OF_RANDOM_WEIGHTS: [&str; 3] = ["model", "hidden", "lengths"];

#[derive(Debug, Args)]
#[command(after_help = CALIBRATE_EXAMPLES)]
pub(crate) struct CalibrateArguments {
    /// A bundle whose cells are to be measured, with its samples as requests [default: a model with random weights]
    pub(crate) bundle: Option<PathBuf>,
    /// Requests for it, one JSON object per line [default: the bundle's samples]
    #[arg(long, alias = "requests", value_name = "FILE", requires = "bundle", conflicts_with_all = OF_RANDOM_WEIGHTS)]
    pub(crate) input: Option<PathBuf>,
    /// Ask by HTTP, from clients in this process
    #[arg(long, requires = "bundle", conflicts_with_all = OF_RANDOM_WEIGHTS)]
    pub(crate) http: bool,
    /// The model with random weights: sequences for an LSTM, or trees for a binary TreeLSTM
    #[arg(long, value_enum, default_value_t = ModelKind::Chain, conflicts_with = "bundle")]
    pub(crate) model: ModelKind,
    /// Its hidden size, and the size of an element of the input
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=8192), conflicts_with = "bundle")]
    pub(crate) hidden: u32,
    /// Lengths of its requests, as for `bench engine`
    #[arg(long, default_value = "lognormal", value_name = "SOURCE", conflicts_with = "bundle")]
    pub(crate) lengths: LengthSource,
    /// Who decides what runs together meanwhile, as for `serve`
    #[arg(long, value_name = "POLICY", hide_possible_values = true, default_value_t = PolicySpec::default())]
    pub(crate) policy: PolicySpec,
    /// Seconds for each load: one request alone, 1, 2, 4, … in flight for every worker, up to four times the batch limit, and three rates
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = super::a_tenth_to_an_hour)]
    pub(crate) seconds: f64,
    /// Where to write the table [default: standard output]
    #[arg(long, value_name = "FILE.toml", value_parser = super::file_to_write)]
    pub(crate) output: Option<PathBuf>,
    /// Seeds weights and lengths
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) host: HostArguments,
}

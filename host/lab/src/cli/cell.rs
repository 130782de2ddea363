//! Arguments of `bench cell`.

use std::path::PathBuf;

use cellwright_cell_graph::typed::Precision;
use cellwright_command::options;
use clap::{Args, ValueEnum};

const CELL_EXAMPLES: &str = "Examples:
  cellwright-lab bench cell --cell lstm --hidden 1024 --batch 64 --threads 2
  cellwright-lab bench cell --cell gru --batch 1,4,16,64,512 --plot roofline.svg
  cellwright-lab bench cell --cell projection --vocabulary 30000 --batch 64 --json | jq .gflops

Weights are random. A step gathers its rows from their slots, runs the cell and puts its results back, as in service, but without an engine. Two limits \
of the processor are measured in turns with the steps, by as many threads. One is multiply-adds in registers, by the instruction of products at this \
precision (that of 32-bit floats where products are plain loops). The other is reading a buffer as large as the cell's packed weights. Figures are \
medians over the turns, and so are shares. The times of gathering, products and the rest are medians of further steps, after the turns, on a worker that \
measures its parts.";

/// A cell of a stock plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CellKind {
    /// An LSTM, its input as wide as its state
    Lstm,
    /// A GRU
    Gru,
    /// A vanilla RNN
    Rnn,
    /// An inner node of a binary TreeLSTM
    Tree,
    /// A leaf of a binary TreeLSTM, which looks up its token
    Leaf,
    /// From a state to the most likely token of a vocabulary
    Projection,
}

#[derive(Debug, Args)]
#[command(after_help = CELL_EXAMPLES)]
pub(crate) struct CellArguments {
    /// Cell to measure
    #[arg(long, value_enum, default_value_t = CellKind::Lstm)]
    pub(crate) cell: CellKind,
    /// Hidden size and input size, 1 to 8192
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) hidden: u32,
    /// Rows of a step, 1 to 4096; separate several by commas
    #[arg(long, value_name = "N", default_value = "64", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) batch: Vec<u32>,
    /// Tokens of a projection or of a leaf's table, 2 to 200000
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(2..=200_000))]
    pub(crate) vocabulary: u32,
    /// Precision of products
    #[arg(long, value_name = "PRECISION", value_parser = cellwright_command::completed::precision(), default_value = "f32")]
    pub(crate) precision: Precision,
    /// Threads of the worker, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    /// Multiply 32-bit floats by AMX, as workers with `amx=true` do
    #[arg(long)]
    pub(crate) amx: bool,
    /// Seconds to measure each batch size, at most 3600
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = options::at_most_an_hour)]
    pub(crate) seconds: f64,
    /// Draw the roofline, and the steps below it, as an SVG
    #[arg(long, value_name = "FILE.svg", value_parser = options::file_to_write)]
    pub(crate) plot: Option<PathBuf>,
    /// Seed of weights and rows
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
}

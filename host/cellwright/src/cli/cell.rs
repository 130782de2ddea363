//! Arguments of `bench cell`.

use std::path::PathBuf;

use cellwright_cell_graph::typed::Precision;
use clap::{Args, ValueEnum};

const CELL_EXAMPLES: &str = "Examples:
  cellwright bench cell --cell lstm --hidden 1024 --batch 64 --threads 2
  cellwright bench cell --cell gru --batch 1,4,16,64,512 --plot roofline.svg
  cellwright bench cell --cell projection --vocabulary 30000 --batch 64 --json | jq .gflops

Weights are random. A step gathers its rows from their slots, runs the cell and puts its results back, as in service, without an engine. What the processor can \
do at most is measured in turns with the steps, by as many threads: multiply-adds in registers, by the instruction that products at this precision use on this \
processor (that of 32-bit floats where these are loops), and reading a buffer as large as the cell's packed weights. Figures are medians of those turns, and shares \
medians of the turns' shares. What gathering, products and the rest take are medians of further steps, after the turns, on a worker that keeps account of its time.";

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
    /// A leaf of one, which looks its token up
    Leaf,
    /// From a state to the likeliest of a vocabulary's tokens
    Projection,
}

#[derive(Debug, Args)]
#[command(after_help = CELL_EXAMPLES)]
pub(crate) struct CellArguments {
    /// Which cell
    #[arg(long, value_enum, default_value_t = CellKind::Lstm)]
    pub(crate) cell: CellKind,
    /// Its hidden size, and the size of its input
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) hidden: u32,
    /// Rows of a step; several with commas between them
    #[arg(long, value_name = "N", default_value = "64", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) batch: Vec<u32>,
    /// Tokens of a projection, or of a leaf's table
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(2..=200_000))]
    pub(crate) vocabulary: u32,
    /// How it is computed
    #[arg(long, value_name = "PRECISION", value_parser = super::completed::precision(), default_value = "f32")]
    pub(crate) precision: Precision,
    /// Threads of the worker
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    /// Have AMX multiply at f32 too, as workers with `amx=true` do
    #[arg(long)]
    pub(crate) amx: bool,
    /// Seconds to measure for each batch size
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = super::at_most_an_hour)]
    pub(crate) seconds: f64,
    /// Draw the roofline, and where the steps stand under it
    #[arg(long, value_name = "FILE.svg", value_parser = super::file_to_write)]
    pub(crate) plot: Option<PathBuf>,
    /// Seeds weights and rows
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
}

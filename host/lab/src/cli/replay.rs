//! Arguments of `replay`.

use std::path::PathBuf;

use cellwright_command::policy::PolicySpec;
use clap::Args;

const REPLAY_EXAMPLES: &str = "Examples:
  cellwright serve --record monday.recording
  cellwright-lab replay monday.recording
  cellwright-lab replay monday.recording --policy graph:10,adaptive
  cellwright-lab replay monday.recording --devices 4 --batch-max 128 --json

A recording holds when requests came, their structure, how long tasks took and what was decided, but no contents of requests. `replay` makes every \
decision again, and checks that it is the recorded one. Then it simulates the same requests in virtual time: first unchanged, then with your changes. A \
task takes as long as tasks of its size took in the same second, and the scheduler learns of its end as much later as it did then. The line below the \
table compares the unchanged simulation with the recording. Simulations with changes are no more exact than that.

A recording does not say which request waited for which answer. Often requests come right after answers, from clients that wait for them. Then each \
request also comes as long after an answer in virtual time, and the last line says so. Otherwise requests come at their recorded times, and a \
simulation that is slower has a growing queue. `--clients` chooses between the two.";

#[derive(Debug, Args)]
#[command(after_help = REPLAY_EXAMPLES)]
pub(crate) struct ReplayArguments {
    /// Recording, as `cellwright serve --record` writes it
    #[arg(value_name = "FILE")]
    pub(crate) recording: PathBuf,
    /// Simulate another batching policy for all models; separate several by commas
    #[arg(long, value_name = "POLICY", hide_possible_values = true, value_delimiter = ',')]
    pub(crate) policy: Vec<PolicySpec>,
    /// Simulate another batch limit for all cells, 1 to 65536
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batch_max: Option<u32>,
    /// Simulate another number of devices, 1 to 1024, all like the first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) devices: Option<u32>,
    /// Number of clients that send their next request after an answer; 0: requests come at their recorded
    /// times [default: derived from the recording]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    pub(crate) clients: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

//! Arguments of `replay`.

use std::path::PathBuf;

use clap::Args;

use crate::policy::PolicySpec;

const REPLAY_EXAMPLES: &str = "Examples:
  cellwright serve --record monday.recording
  cellwright replay monday.recording
  cellwright replay monday.recording --policy graph:10,adaptive
  cellwright replay monday.recording --devices 4 --batch-max 128 --json

A recording holds when requests came, their structure, how long tasks took and what was decided, but nothing of what requests contain. `replay` makes \
every decision again and says whether they are the recorded ones; then it meets the same requests in virtual time: as it was, and, where something \
else is asked for, with that. A task then takes as long as tasks of its size took in the same second, and its end is heard of as much later as ends \
were. How far the same again in virtual time is from what was recorded is said as well: what is said of anything else is no better than that.

A recording does not say who waits for whom. Where requests came right after answers, as those of clients do who ask again once they are answered, each \
comes as long after an answer in virtual time too, and that is said; otherwise requests come when they came, so that what is slower than they come has \
a queue that grows. `--clients` says which of the two it is.";

#[derive(Debug, Args)]
#[command(after_help = REPLAY_EXAMPLES)]
pub(crate) struct ReplayArguments {
    /// What `serve --record` wrote
    #[arg(value_name = "FILE")]
    pub(crate) recording: PathBuf,
    /// What another policy would have come to, for all models; several with commas between them
    #[arg(long, value_name = "POLICY", hide_possible_values = true, value_delimiter = ',')]
    pub(crate) policy: Vec<PolicySpec>,
    /// What another batch limit for all cells would have come to
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batch_max: Option<u32>,
    /// What another number of devices, all like the first, would have come to
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) devices: Option<u32>,
    /// Requests come as those of so many clients who ask again once they are answered; 0: when they came, whatever is answered [default: what it looks like]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    pub(crate) clients: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

//! Figures 14 and 15 of BatchMaker (EuroSys'18): TreeLSTMs.

use cellwright_scheduler::{Config, Merge, PolicyKind};

use super::batchmaker::{latency_figure, v100};
use super::{Bench, Compared, Figure, adaptive_over, graph, with_policy};
use crate::error::Error;
use crate::run::{Gathering, Setup};
use crate::workload::{Trees, Workload};

/// Rows of a task, and trees of a set that is merged (section 7.5).
const LIMIT: u32 = 64;
const SEED: u64 = 1;
const SECONDS: f64 = 4.0;
/// What the scheduler takes for a row of trees on one core of a server, rounded up: `cellwright-lab bench scheduler`.
const SCHEDULING_NS_PER_ROW: f64 = 200.0;

const COSTS: &str = "the paper has no times for its TreeLSTM: cells take an LSTM's step, so only ratios can be compared";
const MERGING: &str = "nor for building and merging graphs: they pay for gathering as cellular batching does, and no more";

fn setup() -> Setup {
    Setup { batch_max: vec![LIMIT], seconds: SECONDS, ..v100() }
}

/// What a server does: it asks ahead, and gathers only rows that change place.
fn served() -> Setup {
    let gathering = Gathering::Moved { scheduling_ns_per_row: SCHEDULING_NS_PER_ROW };
    Setup { config: Config::default(), gathering, ..setup() }
}

pub(super) fn figure_14(bench: &mut Bench<'_>) -> Result<Figure, Error> {
    let rates = [500.0, 1e3, 2e3, 3e3, 4e3, 5e3, 6e3, 8e3];
    let workload = Workload::trees(&Trees::treebank(SEED));
    let cellular = bench.curve("cellular", &rates, &setup(), &workload)?;
    let merged = bench.curve("merge", &rates, &with_policy(&setup(), PolicyKind::Merge(Merge { requests: LIMIT })), &workload)?;
    let adaptive = bench.curve("adaptive", &rates, &with_policy(&setup(), PolicyKind::Adaptive), &workload)?;
    let mut compared = vec![
        Compared::new("cellular: p90 at 1000/s", "6.8", cellular.at(1e3).p90_ms, "ms").within(5.4, 8.2),
        Compared::new("merge: p90 at 1000/s", "9.5 (DyNet)", merged.at(1e3).p90_ms, "ms").within(7.6, 11.4),
        Compared::new("most answered, cellular over merge", "1.48 (DyNet)", cellular.peak() / merged.peak(), "times").within(1.2, 1.8),
        Compared::new("cellular: most answered", "3100", cellular.peak(), "/s"),
        Compared::new("merge: most answered", "2100 (DyNet)", merged.peak(), "/s"),
    ];
    compared.extend(adaptive_over(&[(&cellular, &adaptive)]));
    let title = "Figure 14: TreeLSTM on a treebank, tasks of up to 64";
    let assumed = [COSTS, MERGING, "trees are random, with as many leaves and as deep as those of the Stanford Sentiment Treebank"];
    Ok(latency_figure(
        "14",
        title,
        "BatchMaker (EuroSys'18), figure 14 and section 7.5",
        vec![cellular, adaptive, merged],
        compared,
        &assumed,
    ))
}

pub(super) fn figure_15(bench: &mut Bench<'_>) -> Result<Figure, Error> {
    let rates = [500.0, 1e3, 2e3, 4e3, 6e3, 8e3, 10e3, 12e3];
    let workload = Workload::trees(&Trees::identical(16));
    let cellular = bench.curve("cellular, overhead as published", &rates, &setup(), &workload)?;
    let ours = bench.curve("cellular, gathering by moved rows", &rates, &served(), &workload)?;
    let merged = bench.curve("merge", &rates, &with_policy(&setup(), PolicyKind::Merge(Merge { requests: LIMIT })), &workload)?;
    let adaptive = bench.curve("adaptive", &rates, &with_policy(&setup(), PolicyKind::Adaptive), &workload)?;
    let adaptive_ours =
        bench.curve("adaptive, gathering by moved rows", &rates, &with_policy(&served(), PolicyKind::Adaptive), &workload)?;
    // One graph for all: 31 cells one after the other, each with a row for every tree of the batch, and nothing to gather.
    let ideal = bench.curve("ideal", &rates, &with_policy(&setup(), graph(0)), &workload)?;
    let of_ideal = |peak: f64| 100.0 * peak / ideal.peak();
    let mut compared = vec![
        Compared::new("cellular: part of the ideal, overhead as published", "about 70", of_ideal(cellular.peak()), "%").within(65.0, 75.0),
        Compared::new("cellular: part of the ideal, gathering by moved rows", "not in the paper", of_ideal(ours.peak()), "%")
            .within(90.0, 100.0),
        Compared::new("p90 at 1000/s, ideal over cellular", "above 1", ideal.at(1e3).p90_ms / cellular.at(1e3).p90_ms, "times")
            .within(1.0, f64::MAX),
    ];
    compared.extend(adaptive_over(&[(&cellular, &adaptive), (&ours, &adaptive_ours)]));
    let title = "Figure 15: complete trees of 16 leaves, tasks of up to 64";
    let assumed = [
        COSTS,
        MERGING,
        "with 65 us of overhead on 185 us no more than 74 % of the ideal can be had",
        "by moved rows: a row that changes place takes 0.116 us, the slope of the published overhead",
        "two children that change place take twice that",
        "a row takes 200 ns to schedule, on a thread of its own and ahead of the device, as on a server",
    ];
    let source = "BatchMaker (EuroSys'18), figure 15 and section 7.5";
    Ok(latency_figure("15", title, source, vec![cellular, ours, adaptive, adaptive_ours, merged, ideal], compared, &assumed))
}

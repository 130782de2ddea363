//! Figures 15 and 16 of DVABatch (ATC'22): latency at three loads, for models of which requests, operators or neither differ.

use cellwright_scheduler::{Config, Graph, PolicyKind, Stages};

use super::{Bench, Compared, Curve, Figure, Point, against_load, device, graph, with_policy};
use crate::arrivals::Arrivals;
use crate::error::Error;
use crate::outcome::Outcome;
use crate::run::Setup;
use crate::workload::{Layers, Lengths, Pairs, Workload};

/// The largest batch, and the latency that a peak load may have (sections 8.1 and 8.3).
const BATCH_MAX: u32 = 64;
const OBJECTIVE_MS: f64 = 200.0;
const SECONDS: f64 = 6.0;
const MS: u64 = 1_000_000;
/// Low, medium and high, of what batches of the largest size come to.
const LOADS: [(&str, f64); 3] = [("low", 0.2), ("medium", 0.5), ("high", 0.8)];
/// Windows that are tried, and at which loads.
const WINDOWS_MS: [u64; 6] = [1, 2, 5, 10, 20, 50];
const PEAKS: [f64; 2] = [0.9, 0.95];
/// Beyond any load.
const OVERLOAD: f64 = 2.0;

/// What differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Diversity {
    Inputs,
    Sizes,
    Neither,
}

impl Diversity {
    const fn name(self) -> &'static str {
        match self {
            Self::Inputs => "dva-inputs",
            Self::Sizes => "dva-sizes",
            Self::Neither => "dva-neither",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Inputs => "DVABatch: inputs of different length",
            Self::Sizes => "DVABatch: layers that prefer different batch sizes",
            Self::Neither => "DVABatch: equal inputs, layers that prefer one batch size",
        }
    }

    const fn device(self) -> &'static str {
        match self {
            Self::Inputs => include_str!("../../devices/rtx2060.toml"),
            Self::Sizes | Self::Neither => include_str!("../../devices/assumed.toml"),
        }
    }

    fn workload(self) -> Workload {
        match self {
            Self::Inputs => {
                let lengths = Lengths::seen(&(2..=100).map(|length| (length, 1)).collect::<Vec<_>>());
                Workload::layers(Layers::Bert, Pairs::equal(lengths.unwrap_or(Lengths::Fixed(1))))
            }
            Self::Sizes => Workload::layers(Layers::UNet, Pairs::equal(Lengths::Fixed(1))),
            Self::Neither => Workload::layers(Layers::ResNet, Pairs::equal(Lengths::Fixed(1))),
        }
    }
}

pub(super) fn latency(bench: &mut Bench<'_>, diversity: Diversity) -> Result<Figure, Error> {
    let workload = diversity.workload();
    let config = Config { max_tasks_to_submit: 1, low_water: 0, ..Config::default() };
    let setup =
        Setup { config, batch_max: vec![BATCH_MAX], seconds: SECONDS, ..Setup::new(device(diversity.device())?, Arrivals::Poisson(1.0)) };
    let costs_ns = |rows: u32| -> Result<f64, Error> {
        let mut sum = 0;
        for cell in workload.cells() {
            sum += setup.device.costs(&cell.name)?.compute_ns(rows, false);
        }
        Ok(sum as f64)
    };
    // What is surely too much, to find what is just too much.
    let overload = OVERLOAD * 1e9 * f64::from(BATCH_MAX) / costs_ns(BATCH_MAX)?;
    let full = bench.curve("no window", &[overload], &with_policy(&setup, graph(0)), &workload)?.peak();
    let rates = LOADS.map(|(_, part)| (part * full).round());
    let window_ms = tune(bench, &setup, &workload, full)?;
    let window = PolicyKind::Graph(Graph { bucket_width: 0, window_ns: window_ms * MS });
    let curves = [
        bench.curve("no window", &rates, &with_policy(&setup, graph(0)), &workload)?,
        bench.curve(format!("window of {window_ms} ms"), &rates, &with_policy(&setup, window), &workload)?,
        bench.curve("stages", &rates, &with_policy(&setup, PolicyKind::Stages(Stages { count: 8, stretch_ns: None })), &workload)?,
    ];
    let title = diversity.title();
    let mut pictures = Vec::from_iter(against_load("", (title, "average latency, ms"), false, &curves, |outcome| outcome.mean_ms));
    pictures.extend(against_load("-p99", (title, "p99 of latency, ms"), false, &curves, |outcome| outcome.p99_ms));
    Ok(Figure {
        name: diversity.name().to_owned(),
        title: title.to_owned(),
        source: "DVABatch (ATC'22), figures 15 and 16 and section 8.2",
        assumed: ASSUMED.to_vec(),
        pictures,
        compared: compare(&curves, full, window_ms),
        curves: curves.into(),
    })
}

/// The window under which the highest load keeps to the objective; of equals the one with the lowest latency there.
fn tune(bench: &mut Bench<'_>, setup: &Setup, workload: &Workload, full: f64) -> Result<u64, Error> {
    let mut best = (0.0, f64::INFINITY, WINDOWS_MS[0]);
    for window_ms in WINDOWS_MS {
        let policy = PolicyKind::Graph(Graph { bucket_width: 0, window_ns: window_ms * MS });
        let tried = bench.curve("", &PEAKS.map(|part| part * full), &with_policy(setup, policy), workload)?;
        let kept = tried.points.iter().rfind(|point| point.outcome.p99_ms <= OBJECTIVE_MS);
        let Some(Point { rate, outcome }) = kept else { continue };
        if *rate > best.0 || (*rate == best.0 && outcome.mean_ms < best.1) {
            best = (*rate, outcome.mean_ms, window_ms);
        }
    }
    Ok(best.2)
}

fn compare([none, window, stages]: &[Curve; 3], full: f64, window_ms: u64) -> Vec<Compared> {
    let mut compared = vec![
        Compared::new("full load: answered in batches of 64", "not in the paper", full, "/s"),
        Compared::new("the tuned window", "not in the paper", window_ms as f64, "ms"),
    ];
    // One less what the paper says latency is lower by, on average over its six models, at each load.
    let published = [
        ("average latency, stages over no window", none, (|outcome| outcome.mean_ms) as fn(&Outcome) -> f64, ["0.84", "0.61", "0.42"]),
        ("average latency, stages over the tuned window", window, |outcome| outcome.mean_ms, ["0.65", "0.53", "0.52"]),
        ("p99, stages over no window", none, |outcome| outcome.p99_ms, ["0.83", "0.73", "0.46"]),
        ("p99, stages over the tuned window", window, |outcome| outcome.p99_ms, ["0.55", "0.55", "0.71"]),
    ];
    for (what, other, of, said) in published {
        let is_average = what.starts_with("average");
        for (((load, _), said), (ours, theirs)) in LOADS.iter().zip(said).zip(stages.points.iter().zip(&other.points)) {
            let ratio = Compared::new(format!("{what}, {load} load"), said, of(&ours.outcome) / of(&theirs.outcome), "times");
            compared.push(if is_average { ratio.within(0.0, 1.0) } else { ratio });
        }
    }
    compared
}

const ASSUMED: &[&str] = &[
    "published ratios are means over six models, two of each kind, whose times are not known",
    "different lengths: the BERT of TurboTransformers' figure 15, lengths of 2 to 100",
    "different batch sizes: a U-Net of 4, 8 and 4 layers; 8 inputs fill the middle ones, 1 the others",
    "neither: 50 layers that are full with 8 inputs",
    "low, medium and high are 20, 50 and 80 % of what full batches of 64 come to",
    "no window: an idle device takes all who wait; the paper's baseline does far worse at high load",
    "the window, of 1, 2, 5, 10, 20 and 50 ms, is that of the highest load with a p99 below 200 ms",
    "8 stages: the paper tries several; with 4, no window is 2 % better for equal inputs at medium load",
    "averages are in the published order at every load, by much smaller ratios",
    "p99 is not, for different lengths at low load, and by 1 % for equal inputs at low and medium load",
    "a device runs one task at a time: what two batches side by side gain on a GPU is not here",
];

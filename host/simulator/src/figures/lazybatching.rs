//! Figures 12 and 13 of LazyBatching (HPCA'21), and its promise of no violations: models with layers outside the recurrence.

use cellwright_scheduler::{Config, Graph, Lazy, PolicyKind};

use super::{Bench, Compared, Curve, Figure, adaptive_over, against_load, with_policy};
use crate::arrivals::Arrivals;
use crate::device::Device;
use crate::error::Error;
use crate::outcome::Outcome;
use crate::run::Setup;
use crate::workload::{Layers, Lengths, Pairs, Workload};

/// The paper's models, and the one of its figure 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    ResNet,
    Gnmt,
    Transformer,
    DeepSpeech,
}

/// Sentences of WMT-2019 as the paper's figure 11 has them: 70 % below 20 words, 90 % below 30, none above 80.
const WORDS: Lengths = Lengths::Lognormal { mu: 2.715, sigma: 0.535, max: 80 };
const RATES: [f64; 8] = [16.0, 64.0, 128.0, 250.0, 500.0, 1000.0, 1500.0, 2000.0];
const WINDOWS_MS: [u64; 4] = [5, 25, 55, 95];
/// Section VI: the largest batch, and the time within which an answer is worth something.
const BATCH_MAX: u32 = 64;
const OBJECTIVE_MS: u64 = 100;
const SECONDS: f64 = 6.0;
const MS: u64 = 1_000_000;

impl Network {
    const fn layers(self) -> Layers {
        match self {
            Self::ResNet => Layers::ResNet,
            Self::Gnmt => Layers::Gnmt,
            Self::Transformer => Layers::Transformer,
            Self::DeepSpeech => Layers::DeepSpeech,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::ResNet => "resnet",
            Self::Gnmt => "gnmt",
            Self::Transformer => "transformer",
            Self::DeepSpeech => "deepspeech",
        }
    }

    /// Milliseconds that a single request takes, and how much faster than the best window lazy batching is (section VI.A), as the paper says.
    const fn published(self) -> Option<(f64, &'static str, &'static str)> {
        match self {
            Self::ResNet => Some((1.1, "1.1", "5.3")),
            Self::Gnmt => Some((7.2, "7.2", "2.7")),
            Self::Transformer => Some((2.4, "2.4", "2.5")),
            Self::DeepSpeech => None,
        }
    }

    fn workload(self) -> Workload {
        let pairs = match self {
            Self::ResNet => Pairs::equal(Lengths::Fixed(1)),
            Self::Gnmt | Self::Transformer => Pairs::Ratio { source: WORDS, sigma: 0.2, max: 80 },
            Self::DeepSpeech => Pairs::equal(WORDS),
        };
        Workload::layers(self.layers(), pairs)
    }
}

fn setup() -> Setup {
    let device = Device::built_in("npu").unwrap_or_else(|| Device::unit(MS));
    // A node is the unit in which LazyBatching decides: one at a time.
    let config = Config { max_tasks_to_submit: 1, low_water: 0, ..Config::default() };
    let objective_ns = Some(OBJECTIVE_MS * MS);
    Setup { config, batch_max: vec![BATCH_MAX], seconds: SECONDS, objective_ns, ..Setup::new(device, Arrivals::Poisson(1.0)) }
}

pub(super) fn latency(bench: &mut Bench<'_>, network: Network) -> Result<Figure, Error> {
    let workload = network.workload();
    let mut curves = vec![bench.curve("serial", &RATES, &with_policy(&setup(), PolicyKind::Serial), &workload)?];
    for window in WINDOWS_MS {
        let policy = PolicyKind::Graph(Graph { bucket_width: 0, window_ns: window * MS });
        curves.push(bench.curve(format!("graph, window {window} ms"), &RATES, &with_policy(&setup(), policy), &workload)?);
    }
    curves.push(bench.curve("cellular", &RATES, &setup(), &workload)?);
    let lazy = PolicyKind::Lazy(Lazy { objective_ns: OBJECTIVE_MS * MS, percentile: 90 });
    curves.push(bench.curve("lazy", &RATES, &with_policy(&setup(), lazy), &workload)?);
    curves.push(bench.curve("adaptive", &RATES, &with_policy(&setup(), PolicyKind::Adaptive), &workload)?);
    let compared = compare(network, &curves);
    let title = format!("LazyBatching: {}, average latency against load", network.name());
    let mut pictures = Vec::from_iter(against_load("", (&title, "average latency, ms"), true, &curves, |outcome| outcome.mean_ms));
    let throughput = format!("LazyBatching: {}, answers against load", network.name());
    pictures.extend(against_load("-throughput", (&throughput, "answers per second"), true, &curves, |outcome| outcome.throughput));
    let late = format!("LazyBatching: {}, answers later than {OBJECTIVE_MS} ms", network.name());
    pictures.extend(against_load("-late", (&late, "share that is late, %"), true, &curves, late_percent));
    Ok(Figure {
        name: format!("lazy-{}", network.name()),
        title,
        source: "LazyBatching (HPCA'21), figures 12 and 13, table II, sections V and VI",
        assumed: ASSUMED.to_vec(),
        pictures,
        curves,
        compared,
    })
}

/// Of all that were to be answered, those that were late.
fn late_percent(outcome: &Outcome) -> f64 {
    let all = outcome.answered + outcome.failed + outcome.unfinished;
    100.0 * outcome.sla_violations.unwrap_or(0) as f64 / all.max(1) as f64
}

const ASSUMED: &[&str] = &[
    "the paper's times by batch size are of a simulator that is not public",
    "a cell takes the time to read its weights, and for each row the time to compute it (table I)",
    "these times are scaled so that a single request takes what table II says",
    "sentences are lognormal (mu 2.715, sigma 0.535), clipped to 80 words",
    "that puts 70 % of them below 20 words and 90 % below 30, as figure 11 says",
    "an output is exp(N(0, 0.2)) times as long as its input",
    "whole-graph batches are padded to their longest",
    "equation 2 says which requests join a running batch; a new one takes all waiting, up to the limit",
];

fn compare(network: Network, curves: &[Curve]) -> Vec<Compared> {
    let named = |name: &str| curves.iter().find(|curve| curve.name == name).cloned().unwrap_or_default();
    let mut compared = Vec::new();
    let single = named("serial").at(RATES[0]).computation.mean_ms;
    compared.push(match network.published() {
        Some((ms, said, _)) => Compared::new("a single request", said, single, "ms").within(ms * 0.9, ms * 1.1),
        None => Compared::new("a single request", "not in the paper", single, "ms"),
    });
    let lazy = named("lazy");
    let windows: Vec<&Curve> = curves.iter().filter(|curve| curve.name.starts_with("graph")).collect();
    let adaptive = named("adaptive");
    let over = |curve: &Curve| {
        let best = |rate: f64| windows.iter().map(|window| window.at(rate).mean_ms).fold(f64::INFINITY, f64::min);
        RATES.iter().map(|rate| best(*rate) / curve.at(*rate).mean_ms).sum::<f64>() / RATES.len() as f64
    };
    let ratio = over(&lazy);
    compared.push(
        Compared::new("average latency, best window over adaptive (mean over loads)", "ours", over(&adaptive), "times")
            .within(1.0, f64::MAX),
    );
    let published = network.published().map_or("not in the paper", |(_, _, ratio)| ratio);
    let ratio = Compared::new("average latency, best window over lazy (mean over loads)", published, ratio, "times");
    let late = lazy.at(1e3).sla_violations.unwrap_or(u64::MAX) as f64;
    let late = Compared::new("lazy: answers later than 100 ms at 1000/s", "0", late, "requests");
    let given_up = adaptive.at(1e3).sla_violations.unwrap_or(u64::MAX) as f64;
    compared
        .push(Compared::new("adaptive: answers later than 100 ms or given up, at 1000/s", "ours", given_up, "requests").within(0.0, 0.0));
    compared.extend(adaptive_over(&[(&named("cellular"), &adaptive)]));
    compared.extend([ratio.within(1.0, f64::MAX), late.within(0.0, 0.0)]);
    compared
}

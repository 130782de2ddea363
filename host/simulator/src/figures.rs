//! The published figures, run again: the same device and workload models for all of them, what was published beside what came out.
//!
//! A figure owns which runs it consists of, and nothing else: costs are the device's, lengths and shapes the workload's. What a paper does not say
//! and had to be assumed is written down with the figure.

mod batchmaker;
mod deadlines;
mod dvabatch;
mod lazybatching;
mod report;
mod trees;
mod turbotransformers;

use cellwright_plot::{self as plot, Line, Picture};
use cellwright_scheduler::{Graph, PolicyKind};
use serde::Serialize;

use crate::arrivals::Arrivals;
use crate::device::Device;
use crate::error::Error;
use crate::outcome::Outcome;
use crate::run::{Setup, run};
use crate::workload::Workload;

pub use report::table;

/// A figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What it is called: `7a`, `lazy-resnet`.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// Paper and figure.
    pub source: &'static str,
    /// What the paper does not say.
    pub assumed: Vec<&'static str>,
    /// Its lines.
    pub curves: Vec<Curve>,
    /// What was published, beside what came out.
    pub compared: Vec<Compared>,
    /// Pictures, by the ending of their name.
    #[serde(skip)]
    pub pictures: Vec<(&'static str, String)>,
}

impl Figure {
    /// The files that keep the figure: their names and contents.
    ///
    /// # Panics
    /// Never: a figure has nothing that JSON cannot hold.
    #[must_use]
    pub fn files(&self) -> Vec<(String, String)> {
        let numbers = serde_json::to_string_pretty(self).expect("a figure is numbers and text") + "\n";
        let pictures = self.pictures.iter().map(|(ending, svg)| (format!("figure-{}{ending}.svg", self.name), svg.clone()));
        [(format!("figure-{}.json", self.name), numbers)].into_iter().chain(pictures).collect()
    }
}

/// One line: the same setting under one load after the other.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Curve {
    /// What it is of.
    pub name: String,
    /// A run for each load.
    pub points: Vec<Point>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Requests offered per second.
    pub rate: f64,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A published number and ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Of what.
    pub what: String,
    /// As the paper says it.
    pub published: &'static str,
    /// What came out here.
    pub ours: f64,
    /// In which unit.
    pub unit: &'static str,
    /// Where ours must lie; none where the paper's inputs are not known.
    pub within: Option<(f64, f64)>,
}

impl Compared {
    fn new(what: impl Into<String>, published: &'static str, ours: f64, unit: &'static str) -> Self {
        Self { what: what.into(), published, ours, unit, within: None }
    }

    fn within(self, low: f64, high: f64) -> Self {
        Self { within: Some((low, high)), ..self }
    }

    /// Whether ours lies where it must.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.within.is_none_or(|(low, high)| (low..=high).contains(&self.ours))
    }
}

impl Curve {
    /// The run under that load.
    fn at(&self, rate: f64) -> Outcome {
        self.points.iter().find(|point| point.rate == rate).map(|point| point.outcome.clone()).unwrap_or_default()
    }

    /// The most that it answered in a second.
    fn peak(&self) -> f64 {
        self.points.iter().map(|point| point.outcome.throughput).fold(0.0, f64::max)
    }
}

/// A figure's name, and how it is made.
type Maker = (&'static str, fn(&mut Bench<'_>) -> Result<Figure, Error>);

const FIGURES: &[Maker] = &[
    ("5", batchmaker::figure_5),
    ("7a", batchmaker::figure_7a),
    ("7b", batchmaker::figure_7b),
    ("8", batchmaker::figure_8),
    ("9", batchmaker::figure_9),
    ("11-fixed", |bench| batchmaker::figure_11(bench, batchmaker::Variance::Fixed)),
    ("11-50", |bench| batchmaker::figure_11(bench, batchmaker::Variance::UpTo50)),
    ("11-100", |bench| batchmaker::figure_11(bench, batchmaker::Variance::UpTo100)),
    ("13-2", |bench| batchmaker::figure_13(bench, 2)),
    ("13-4", |bench| batchmaker::figure_13(bench, 4)),
    ("14", trees::figure_14),
    ("15", trees::figure_15),
    ("lazy-resnet", |bench| lazybatching::latency(bench, lazybatching::Network::ResNet)),
    ("lazy-gnmt", |bench| lazybatching::latency(bench, lazybatching::Network::Gnmt)),
    ("lazy-transformer", |bench| lazybatching::latency(bench, lazybatching::Network::Transformer)),
    ("lazy-deepspeech", |bench| lazybatching::latency(bench, lazybatching::Network::DeepSpeech)),
    ("turbo-short", |bench| turbotransformers::serving(bench, &turbotransformers::SHORT)),
    ("turbo-long", |bench| turbotransformers::serving(bench, &turbotransformers::LONG)),
    ("dva-inputs", |bench| dvabatch::latency(bench, dvabatch::Diversity::Inputs)),
    ("dva-sizes", |bench| dvabatch::latency(bench, dvabatch::Diversity::Sizes)),
    ("dva-neither", |bench| dvabatch::latency(bench, dvabatch::Diversity::Neither)),
    ("deadlines-lstm", deadlines::lstm),
    ("deadlines-trees", deadlines::trees),
];

/// The names of all figures.
pub fn names() -> impl Iterator<Item = &'static str> {
    FIGURES.iter().map(|(name, _)| *name)
}

/// Makes a figure; `progress` is told after each run.
///
/// # Errors
/// If there is no figure of that name (none is given then), or a device has no costs for a cell.
pub fn make(name: &str, progress: &mut dyn FnMut()) -> Result<Option<Figure>, Error> {
    let Some((_, make)) = FIGURES.iter().find(|(known, _)| *known == name) else { return Ok(None) };
    make(&mut Bench { progress }).map(Some)
}

/// Where figures have their runs made.
struct Bench<'a> {
    progress: &'a mut dyn FnMut(),
}

impl Bench<'_> {
    fn run(&mut self, setup: &Setup, workload: &Workload) -> Result<crate::run::Ran, Error> {
        let ran = run(setup, &mut workload.clone(), &mut |_| ())?;
        (self.progress)();
        Ok(ran)
    }

    /// A curve over loads of so many requests per second.
    fn curve(&mut self, name: impl Into<String>, rates: &[f64], setup: &Setup, workload: &Workload) -> Result<Curve, Error> {
        let mut points = Vec::with_capacity(rates.len());
        for rate in rates {
            let setup = Setup { arrivals: Arrivals::Poisson(*rate), ..setup.clone() };
            points.push(Point { rate: *rate, outcome: self.run(&setup, workload)?.outcome });
        }
        Ok(Curve { name: name.into(), points })
    }
}

/// How much worse adaptive batching is than cellular batching where it is worst: answers in time and p99, each over cellular's, in pairs of curves of
/// the same setting, cellular's first.
fn adaptive_over(pairs: &[(&Curve, &Curve)]) -> [Compared; 2] {
    let points = || pairs.iter().flat_map(|(cellular, adaptive)| cellular.points.iter().zip(&adaptive.points));
    let pairs = || points().map(|(one, other)| (&one.outcome, &other.outcome));
    let in_time = |outcome: &Outcome| (outcome.answered + outcome.failed).saturating_sub(outcome.sla_violations.unwrap_or(0)) as f64;
    let answered = pairs().map(|(one, other)| in_time(other) / in_time(one)).fold(f64::INFINITY, f64::min);
    let p99 = pairs().map(|(one, other)| other.p99_ms / one.p99_ms).fold(0.0, f64::max);
    [
        Compared::new("answered in time, adaptive over cellular, least of all loads", "ours", answered, "times").within(0.98, f64::MAX),
        Compared::new("p99, adaptive over cellular, most of all loads", "ours", p99, "times").within(0.0, 1.02),
    ]
}

fn with_policy(setup: &Setup, policy: PolicyKind) -> Setup {
    let config = cellwright_scheduler::Config { policy, ..setup.config };
    Setup { config, ..setup.clone() }
}

/// A device that only figures know.
fn device(text: &str) -> Result<Device, Error> {
    Device::from_toml("devices", text)
}

const fn graph(bucket_width: u32) -> PolicyKind {
    PolicyKind::Graph(Graph { bucket_width, window_ns: 0 })
}

/// p90 against throughput, with p50 and p99 as bars: how BatchMaker's evaluation is drawn.
fn latency_picture(title: &str, curves: &[Curve]) -> Picture {
    let line = |curve: &Curve| Line {
        name: curve.name.clone(),
        points: curve.points.iter().map(|point| (point.outcome.throughput, point.outcome.p90_ms)).collect(),
        bars: curve.points.iter().map(|point| (point.outcome.p50_ms, point.outcome.p99_ms)).collect(),
    };
    let (x, y) = ("answers per second", "p90 latency, ms (bars: p50 to p99)");
    Picture { title: title.to_owned(), x, y, lines: curves.iter().map(line).collect(), ..Picture::default() }
}

/// One number against the load.
fn against_load(
    ending: &'static str,
    (title, y): (&str, &'static str),
    x_log: bool,
    curves: &[Curve],
    of: impl Fn(&Outcome) -> f64,
) -> Option<(&'static str, String)> {
    let line = |curve: &Curve| Line {
        name: curve.name.clone(),
        points: curve.points.iter().map(|point| (point.rate, of(&point.outcome))).collect(),
        bars: Vec::new(),
    };
    let lines = curves.iter().map(line).collect();
    let picture = Picture { title: title.to_owned(), x: "requests per second", y, x_log, lines, ..Picture::default() };
    plot::draw(&picture).ok().map(|svg| (ending, svg))
}

/// Draws it; a picture without anything is none.
fn drawn(picture: &Picture) -> Vec<(&'static str, String)> {
    plot::draw(picture).map(|svg| vec![("", svg)]).unwrap_or_default()
}

#[cfg(test)]
mod tests;

//! Deadlines, below and above what the device can do: ours, beside policies that do not mind them. Nobody has published such a figure for these models.

use cellwright_scheduler::PolicyKind;

use crate::error::Error;
use crate::outcome::Outcome;
use crate::run::Setup;
use crate::workload::{Lengths, Trees, Workload};

use super::batchmaker::v100;
use super::{Bench, Compared, Curve, Figure, against_load, graph, with_policy};

const MS: u64 = 1_000_000;
/// What part of the time does not count.
const WARM_UP: f64 = 0.2;

/// What is asked, within which time it should be answered, and how often it is.
struct Asked {
    name: &'static str,
    title: &'static str,
    objective_ms: u64,
    batch_max: u32,
    rates: &'static [f64],
    seconds: f64,
}

pub(super) fn lstm(bench: &mut Bench<'_>) -> Result<Figure, Error> {
    let rates = &[5e3, 10e3, 15e3, 18e3, 20e3, 22e3, 25e3, 30e3, 40e3];
    let asked =
        Asked { name: "deadlines-lstm", title: "LSTM, to be answered within 60 ms", objective_ms: 60, batch_max: 512, rates, seconds: 4.0 };
    figure(bench, &asked, &Workload::lstm(Lengths::Lognormal { mu: 2.95, sigma: 0.68, max: 330 }))
}

pub(super) fn trees(bench: &mut Bench<'_>) -> Result<Figure, Error> {
    let rates = &[2e3, 4e3, 5e3, 6e3, 6.5e3, 7e3, 8e3, 10e3, 13e3];
    let asked = Asked {
        name: "deadlines-trees",
        title: "TreeLSTM, to be answered within 30 ms",
        objective_ms: 30,
        batch_max: 64,
        rates,
        seconds: 1.5,
    };
    figure(bench, &asked, &Workload::trees(&Trees::treebank(1)))
}

fn figure(bench: &mut Bench<'_>, asked: &Asked, workload: &Workload) -> Result<Figure, Error> {
    let objective_ns = asked.objective_ms * MS;
    // Until everybody has been answered: a request that still waits at the end is late too.
    let setup = Setup {
        seconds: asked.seconds,
        warm_up: WARM_UP,
        batch_max: vec![asked.batch_max],
        objective_ns: Some(objective_ns),
        drain: true,
        ..v100()
    };
    let mut curve = |name: &str, policy| bench.curve(name, asked.rates, &with_policy(&setup, policy), workload);
    let in_time = |outcome: &Outcome| in_time(outcome, asked.seconds);
    let in_time_peak = |curve: &Curve| curve.points.iter().map(|point| in_time(&point.outcome)).fold(0.0, f64::max);
    let cellular = curve("cellular", PolicyKind::Cellular)?;
    let adaptive = curve("adaptive", PolicyKind::Adaptive)?;
    let graph = curve("graph, buckets of 10", graph(10))?;
    let most = in_time_peak(&cellular);
    let last = asked.rates.last().copied().unwrap_or_default();
    let least = adaptive.points.iter().filter(|point| point.rate > most).map(|point| in_time(&point.outcome)).fold(f64::INFINITY, f64::min);
    let compared = vec![
        Compared::new(
            "adaptive: least answered in time at loads beyond that, of the most that cellular does",
            "ours",
            least / most,
            "times",
        )
        .within(0.85, f64::MAX),
        Compared::new(format!("adaptive: answered in time at {last}/s"), "ours", in_time(&adaptive.at(last)), "/s"),
        Compared::new(format!("cellular: answered in time at {last}/s"), "ours", in_time(&cellular.at(last)), "/s"),
    ];
    let curves = vec![cellular, adaptive, graph];
    let pictures = Vec::from_iter(against_load("", (asked.title, "answers in time per second"), false, &curves, in_time));
    let (name, title) = (asked.name.to_owned(), asked.title.to_owned());
    let assumed = vec!["devices and lengths are those of BatchMaker's figures (7a and 14), with limits of 512 and 64"];
    Ok(Figure { name, title, source: "ours: not in a paper", assumed, curves, compared, pictures })
}

/// Answers in time, per second.
fn in_time(outcome: &Outcome, seconds: f64) -> f64 {
    (outcome.answered + outcome.failed).saturating_sub(outcome.sla_violations.unwrap_or(0)) as f64 / (seconds * (1.0 - WARM_UP))
}

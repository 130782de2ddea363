//! Figures 15 and 16 and tables 4 and 5 of TurboTransformers (PPoPP'21): requests of variable length, batched by dynamic programming.

use cellwright_scheduler::{Config, LengthAware, PolicyKind};

use super::{Bench, Compared, Curve, Figure, against_load, device, graph, with_policy};
use crate::arrivals::Arrivals;
use crate::error::Error;
use crate::run::Setup;
use crate::workload::{Layers, Lengths, Pairs, Workload};

/// Section 6.3.
const BATCH_MAX: u32 = 20;
const SECONDS: f64 = 10.0;
/// A load is met if so much of it is answered while it lasts.
const MET: f64 = 0.98;

/// What the paper measured for a range of lengths.
pub(super) struct Range {
    name: &'static str,
    title: &'static str,
    source: &'static str,
    device: &'static str,
    lengths: (u32, u32),
    rates: &'static [f64],
    /// The most answered in a second without batching, with naive batching and by dynamic programming.
    answered: [(f64, &'static str); 3],
    /// A load, and the average latency there that the paper has for each, in milliseconds.
    latency: (f64, [&'static str; 3]),
    /// The most answered by dynamic programming over that without batching, and over naive batching; and its average latency over that of naive batching.
    ratios: [&'static str; 3],
}

pub(super) const SHORT: Range = Range {
    name: "turbo-short",
    title: "TurboTransformers: lengths of 2 to 100",
    source: "TurboTransformers (PPoPP'21), figure 15, table 4 and section 6.3",
    device: include_str!("../../devices/rtx2060.toml"),
    lengths: (2, 100),
    rates: &[20.0, 60.0, 99.0, 150.0, 200.0, 237.0, 280.0, 323.0, 360.0, 402.0, 450.0, 500.0, 600.0, 800.0, 1500.0],
    answered: [(237.0, "237"), (323.0, "323"), (402.0, "402")],
    latency: (237.0, ["16.68", "10.09", "10.89"]),
    ratios: ["1.70", "1.24", "1.08"],
};

pub(super) const LONG: Range = Range {
    name: "turbo-long",
    title: "TurboTransformers: lengths of 5 to 500",
    source: "TurboTransformers (PPoPP'21), figure 16, table 5 and section 6.3",
    device: include_str!("../../devices/rtx2060-tensor.toml"),
    lengths: (5, 500),
    rates: &[10.0, 30.0, 60.0, 80.0, 90.0, 98.0, 110.0, 120.0, 130.0, 144.0, 160.0, 180.0, 200.0, 300.0, 500.0],
    answered: [(120.0, "120"), (98.0, "98"), (144.0, "144")],
    latency: (98.0, ["24.88", "16.68", "13.79"]),
    ratios: ["1.20", "1.47", "0.83"],
};

pub(super) fn serving(bench: &mut Bench<'_>, range: &Range) -> Result<Figure, Error> {
    let (shortest, longest) = range.lengths;
    let lengths = Lengths::seen(&(shortest..=longest).map(|length| (length, 1)).collect::<Vec<_>>()).unwrap_or(Lengths::Fixed(1));
    let workload = Workload::layers(Layers::Bert, Pairs::equal(lengths));
    // The paper's batches are formed when the device is idle.
    let config = Config { max_tasks_to_submit: 1, low_water: 0, ..Config::default() };
    let setup = Setup { config, batch_max: vec![BATCH_MAX], seconds: SECONDS, ..Setup::new(device(range.device)?, Arrivals::Poisson(1.0)) };
    let dynamic = PolicyKind::LengthAware(LengthAware { timeout_ns: 0, objective_ns: 0 });
    let policies =
        [("no batching", PolicyKind::Serial), ("naive batching", graph(0)), ("length-aware", dynamic), ("cellular", PolicyKind::Cellular)];
    let curves = policies.map(|(name, policy)| bench.curve(name, range.rates, &with_policy(&setup, policy), &workload));
    let curves = Vec::from_iter(curves).into_iter().collect::<Result<Vec<Curve>, Error>>()?;
    let mut pictures = Vec::from_iter(against_load("", (range.title, "answers per second"), true, &curves, |outcome| outcome.throughput));
    let met: Vec<Curve> = curves.iter().map(up_to_critical_point).collect();
    pictures.extend(against_load("-latency", (range.title, "average latency, ms"), true, &met, |outcome| outcome.mean_ms));
    Ok(Figure {
        name: range.name.to_owned(),
        title: range.title.to_owned(),
        source: range.source,
        assumed: ASSUMED.to_vec(),
        pictures,
        compared: compare(range, &curves),
        curves,
    })
}

/// Loads that are met: beyond them requests wait longer and longer.
fn up_to_critical_point(curve: &Curve) -> Curve {
    let met = curve.points.iter().take_while(|point| is_met(curve, point.rate));
    Curve { name: curve.name.clone(), points: met.cloned().collect() }
}

fn is_met(curve: &Curve, rate: f64) -> bool {
    let outcome = curve.at(rate);
    let offered = outcome.answered + outcome.failed + outcome.unfinished;
    outcome.answered as f64 >= MET * offered as f64
}

fn compare(range: &Range, curves: &[Curve]) -> Vec<Compared> {
    let [none, naive, dynamic, cellular] = curves else { return Vec::new() };
    let mut compared = Vec::new();
    let fitted = [true, true, false];
    for ((curve, (answered, said)), fitted) in [none, naive, dynamic].into_iter().zip(range.answered).zip(fitted) {
        let off = if fitted { 0.03 } else { 0.15 };
        let what = format!("{}: most answered{}", curve.name, if fitted { " (an input of the simulation)" } else { "" });
        compared.push(Compared::new(what, said, curve.peak(), "/s").within(answered * (1.0 - off), answered * (1.0 + off)));
    }
    let [over_none, over_naive, later] = range.ratios;
    compared.extend([
        Compared::new("most answered, length-aware over no batching", over_none, dynamic.peak() / none.peak(), "times")
            .within(1.0, f64::MAX),
        Compared::new("most answered, length-aware over naive batching", over_naive, dynamic.peak() / naive.peak(), "times")
            .within(1.0, f64::MAX),
        Compared::new("most answered, cellular over length-aware", "ours", cellular.peak() / dynamic.peak(), "times"),
    ]);
    let critical = |curve: &Curve| up_to_critical_point(curve).points.last().map_or(0.0, |point| point.rate);
    for (curve, (_, said)) in [none, naive, dynamic].into_iter().zip(range.answered) {
        compared.push(Compared::new(format!("{}: critical point", curve.name), said, critical(curve), "/s"));
    }
    compared.push(Compared::new("cellular: critical point", "ours", critical(cellular), "/s"));
    let (rate, said) = range.latency;
    for (curve, said) in [none, naive, dynamic].into_iter().zip(said) {
        compared.push(Compared::new(format!("{}: average latency at {rate}/s", curve.name), said, curve.at(rate).mean_ms, "ms"));
    }
    let ratio = dynamic.at(rate).mean_ms / naive.at(rate).mean_ms;
    compared.push(Compared::new(format!("average latency at {rate}/s, length-aware over naive batching"), later, ratio, "times"));
    compared.push(Compared::new(format!("cellular: average latency at {rate}/s"), "ours", cellular.at(rate).mean_ms, "ms"));
    compared
}

const ASSUMED: &[&str] = &[
    "the paper has no times by length and batch size; its rates say them, and its shortest latency",
    "a batch takes a fixed time, and for each word of its longest request one that grows with its size",
    "so the first two rows are inputs; dynamic programming and cellular batching are predicted",
    "one look takes as many requests as the largest batch has, 20",
    "its batches run in order of length, as the text has it; algorithm 2 emits the longest first",
    "line 23 of algorithm 2 would leave a request out: `i` becomes where the batch starts",
    "published latencies include a client and a network, ours do not",
    "near a critical point latency depends on how long the queue is watched: here 10 s",
    "an order that does not come out: in table 4 naive batching is 8 % faster at 237/s, here slower",
    "for cellular batching each word is a cell, as in a chain: requests join and leave between words",
    "a critical point is the highest load of the picture of which 98 % is answered while it lasts",
];

//! Figures 5 to 13 of BatchMaker (EuroSys'18): sequences and encoder-decoders.

use cellwright_plot::{Line, Picture};
use cellwright_scheduler::{Config, PolicyKind, Release};

use super::{Bench, Compared, Curve, Figure, adaptive_over, drawn, graph, latency_picture, with_policy};
use crate::arrivals::{Arrival, Arrivals};
use crate::device::Device;
use crate::error::Error;
use crate::run::Setup;
use crate::workload::{Decoding, Lengths, Pairs, Workload};

/// Seconds of arrivals of each run.
const SECONDS: f64 = 8.0;
const UNIT_NS: u64 = 1_000_000;

/// BatchMaker's device and settings.
pub(super) fn v100() -> Setup {
    let device = Device::built_in("v100").unwrap_or_else(|| Device::unit(UNIT_NS));
    Setup { seconds: SECONDS, ..Setup::new(device, Arrivals::Poisson(1.0)).as_published() }
}

pub(super) fn figure_5(bench: &mut Bench<'_>) -> Result<Figure, Error> {
    // Arrival and length of the paper's eight requests; it gives lengths in the figure, and arrivals as before and after the first four began.
    let requests = [(0, 2), (0, 3), (0, 3), (0, 5), (1, 5), (1, 7), (1, 3), (1, 1)];
    let arrivals = requests.map(|(at, length)| Arrival { at_ns: at * UNIT_NS, lengths: Some((length, length)) });
    let setup = |policy: PolicyKind| Setup {
        config: Config { policy, release: Release::Subgraph, max_tasks_to_submit: 1, low_water: 0, ..Config::default() },
        batch_max: vec![4],
        drain: true,
        warm_up: 0.0,
        timeline_tasks: 100,
        ..Setup::new(Device::unit(UNIT_NS), Arrivals::Trace(arrivals.to_vec()))
    };
    let workload = Workload::lstm(Lengths::Fixed(1));
    // Ends as the paper's text and picture have them, in units of time.
    let published = [("cellular", PolicyKind::Cellular, [2, 3, 3, 5, 7, 10, 6, 6]), ("graph", graph(0), [5, 5, 5, 5, 12, 12, 12, 12])];
    let (mut compared, mut pictures) = (Vec::new(), Vec::new());
    for (name, policy, ends) in published {
        let ran = bench.run(&setup(policy), &workload)?;
        for (number, _, end) in &ran.timeline.requests {
            let end = *end as f64 / UNIT_NS as f64;
            let expected = f64::from(ends.get(*number as usize).copied().unwrap_or(0));
            let said = Compared::new(format!("{name}: end of request {}", number + 1), "as drawn", end, "units");
            compared.push(said.within(expected, expected));
        }
        pictures.push((
            if name == "graph" { "-graph" } else { "-cellular" },
            crate::timeline::picture(&format!("Figure 5, {name} batching"), &ran.timeline),
        ));
    }
    Ok(Figure {
        name: "5".to_owned(),
        title: "Eight requests under graph batching and under cellular batching".to_owned(),
        source: "BatchMaker (EuroSys'18), figure 5 and section 3.2",
        assumed: vec!["requests 5 to 8 arrive at time 1: after the first four have begun, before any of them is done"],
        curves: Vec::new(),
        compared,
        pictures,
    })
}

pub(super) fn figure_7a(bench: &mut Bench<'_>) -> Result<Figure, Error> {
    let rates = [1e3, 2e3, 4e3, 6e3, 8e3, 10e3, 12e3, 14e3, 16e3, 18e3, 20e3, 22e3];
    let workload = Workload::lstm(Lengths::EUROPARL);
    let cellular = bench.curve("cellular", &rates, &v100(), &workload)?;
    let padded = bench.curve("graph, bucket width 10", &rates[..9], &with_policy(&v100(), graph(10)), &workload)?;
    let adaptive = bench.curve("adaptive", &rates, &with_policy(&v100(), PolicyKind::Adaptive), &workload)?;
    let mut compared: Vec<Compared> = rates[..5]
        .iter()
        .map(|rate| Compared::new(format!("cellular: p90 at {rate}/s"), "12", cellular.at(*rate).p90_ms, "ms").within(10.8, 13.2))
        .collect();
    compared.extend([
        Compared::new("cellular: answered at 20000/s", "20000 sustained", cellular.at(20e3).throughput, "/s").within(19_600.0, 20_400.0),
        Compared::new("cellular: p90 at 20000/s", "about 30", cellular.at(20e3).p90_ms, "ms").within(0.0, 35.0),
        Compared::new("graph: p90 at 16000/s", "beyond 500", padded.at(16e3).p90_ms, "ms").within(500.0, f64::MAX),
        Compared::new("graph: p90 at 1000/s", "25", padded.at(1e3).p90_ms, "ms"),
    ]);
    compared.extend(adaptive_over(&[(&cellular, &adaptive)]));
    let title = "Figure 7(a): LSTM, batches of up to 512";
    let assumed = [
        LENGTHS[0],
        LENGTHS[1],
        "at a low load, whole graphs depend on the rare long sentences: each runs alone, and the rest wait",
        "the paper says how many sentences are longer than 100 (1 %), but not how long they are",
    ];
    Ok(latency_figure(
        "7a",
        title,
        "BatchMaker (EuroSys'18), figure 7(a) and section 7.2",
        vec![cellular, adaptive, padded],
        compared,
        &assumed,
    ))
}

pub(super) fn figure_7b(bench: &mut Bench<'_>) -> Result<Figure, Error> {
    let rates = [1e3, 2e3, 4e3, 6e3, 8e3, 10e3, 11e3];
    let workload = Workload::lstm(Lengths::EUROPARL);
    let narrow = Setup { batch_max: vec![64], ..v100() };
    let cellular = bench.curve("cellular, up to 64", &rates, &narrow, &workload)?;
    let wide = bench.curve("cellular, up to 512", &rates, &v100(), &workload)?;
    let padded = bench.curve("graph, up to 64", &rates[..6], &with_policy(&narrow, graph(10)), &workload)?;
    let adaptive = bench.curve("adaptive, up to 64", &rates, &with_policy(&narrow, PolicyKind::Adaptive), &workload)?;
    let ratio = wide.at(4e3).p90_ms / cellular.at(4e3).p90_ms;
    let mut compared = vec![
        Compared::new("cellular: p90 with 512 over p90 with 64, at 4000/s", "similar", ratio, "times").within(0.9, 1.1),
        // 64 rows in 250 µs, and 24 steps a request: section 7.3 has the two numbers.
        Compared::new("cellular: most answered with 64", "much lower", cellular.peak(), "/s").within(10_000.0, 11_000.0),
    ];
    compared.extend(adaptive_over(&[(&cellular, &adaptive)]));
    let title = "Figure 7(b): LSTM, batches of up to 64";
    let source = "BatchMaker (EuroSys'18), figure 7(b) and section 7.2";
    Ok(latency_figure("7b", title, source, vec![cellular, wide, adaptive, padded], compared, LENGTHS))
}

pub(super) fn figure_8(bench: &mut Bench<'_>) -> Result<Figure, Error> {
    let rates = [1e3, 2e3, 5e3, 8e3, 11e3, 14e3, 17e3];
    let workload = Workload::lstm(Lengths::EUROPARL);
    let mut curves = Vec::new();
    for width in [1, 5, 10, 20, 40] {
        let setup = with_policy(&v100(), graph(width));
        curves.push(bench.curve(format!("bucket width {width}"), &rates, &setup, &workload)?);
    }
    let (first, last) = (curves.first().cloned().unwrap_or_default(), curves.last().cloned().unwrap_or_default());
    let ten = curves.get(2).cloned().unwrap_or_default();
    let compared = vec![
        Compared::new("p90 at 1000/s, width 40 over width 10", "below 1", last.at(1e3).p90_ms / ten.at(1e3).p90_ms, "times")
            .within(0.0, 1.0),
        Compared::new("p90 at 1000/s, width 1 over width 10", "above 1", first.at(1e3).p90_ms / ten.at(1e3).p90_ms, "times")
            .within(1.0, f64::MAX),
        Compared::new("most answered, width 40 over width 10", "below 1", last.peak() / ten.peak(), "times").within(0.0, 1.0),
        Compared::new("most answered, width 1 over width 10", "above 1", first.peak() / ten.peak(), "times"),
    ];
    let title = "Figure 8: whole graphs, bucket widths";
    let assumed =
        vec![LENGTHS[0], LENGTHS[1], "a width of 1 settles slowly under overload, so its peak depends on the time measured: here 8 s"];
    Ok(latency_figure("8", title, "BatchMaker (EuroSys'18), figure 8 and section 7.2", curves, compared, &assumed))
}

pub(super) fn figure_9(bench: &mut Bench<'_>) -> Result<Figure, Error> {
    let workload = Workload::lstm(Lengths::EUROPARL);
    let (mut lines, mut curves) = (Vec::new(), Vec::new());
    let policies = [("cellular", PolicyKind::Cellular), ("graph, bucket width 10", graph(10)), ("adaptive", PolicyKind::Adaptive)];
    for (name, policy) in policies {
        let setup = Setup { arrivals: Arrivals::Poisson(5e3), ..with_policy(&v100(), policy) };
        let ran = bench.run(&setup, &workload)?;
        lines.push(Line { name: format!("{name}: waiting"), points: ran.queueing_ms, bars: Vec::new() });
        lines.push(Line { name: format!("{name}: computing"), points: ran.computation_ms, bars: Vec::new() });
        curves.push(Curve { name: name.to_owned(), points: vec![super::Point { rate: 5e3, outcome: ran.outcome }] });
    }
    let (cellular, padded) = (curves[0].at(5e3), curves[1].at(5e3));
    let mut compared = vec![
        Compared::new("cellular: p99 of waiting", "1.38", cellular.queueing.p99_ms, "ms").within(1.15, 1.6),
        Compared::new("graph: p99 of waiting", "above 100", padded.queueing.p99_ms, "ms").within(100.0, f64::MAX),
        Compared::new("p90 of computing, cellular over graph", "below 1", cellular.computation.p90_ms / padded.computation.p90_ms, "times")
            .within(0.0, 1.0),
    ];
    compared.extend(adaptive_over(&[(&curves[0], &curves[2])]));
    let title = "Figure 9: waiting and computing at 5000 requests/s (cumulative)".to_owned();
    let picture = Picture { title: title.clone(), x: "ms", y: "share of requests", x_log: true, lines, ..Picture::default() };
    Ok(Figure {
        name: "9".to_owned(),
        title,
        source: "BatchMaker (EuroSys'18), figure 9 and section 7.3",
        assumed: LENGTHS.to_vec(),
        curves,
        compared,
        pictures: drawn(&picture),
    })
}

/// Whose lengths differ how much.
#[derive(Clone, Copy, Debug)]
pub(super) enum Variance {
    Fixed,
    UpTo50,
    UpTo100,
}

pub(super) fn figure_11(bench: &mut Bench<'_>, variance: Variance) -> Result<Figure, Error> {
    let (name, lengths, width) = match variance {
        // Requests of one length have a graph of their own that needs no padding.
        Variance::Fixed => ("11-fixed", Lengths::Fixed(24), 0),
        Variance::UpTo50 => ("11-50", Lengths::EUROPARL.clipped(50), 10),
        Variance::UpTo100 => ("11-100", Lengths::EUROPARL.clipped(100), 10),
    };
    let rates = [1e3, 4e3, 8e3, 12e3, 16e3, 20e3, 22e3, 24e3, 26e3, 30e3];
    let workload = Workload::lstm(lengths);
    let cellular = bench.curve("cellular", &rates, &v100(), &workload)?;
    let padded = bench.curve("graph", &rates, &with_policy(&v100(), graph(width)), &workload)?;
    let adaptive = bench.curve("adaptive", &rates, &with_policy(&v100(), PolicyKind::Adaptive), &workload)?;
    let mut compared = match variance {
        Variance::Fixed => vec![
            Compared::new("cellular: most answered", "87 % of 27136: 23600", cellular.peak(), "/s").within(22_892.0, 24_308.0),
            Compared::new("graph: most answered", "27136 at most", padded.peak(), "/s").within(26_000.0, 27_300.0),
        ],
        Variance::UpTo50 | Variance::UpTo100 => vec![
            Compared::new("cellular: p90 at 8000/s", "as in figure 7(a): 12", cellular.at(8e3).p90_ms, "ms").within(10.8, 13.2),
            Compared::new("p90 at 8000/s, graph over cellular", "above 1", padded.at(8e3).p90_ms / cellular.at(8e3).p90_ms, "times")
                .within(1.0, f64::MAX),
        ],
    };
    compared.extend(adaptive_over(&[(&cellular, &adaptive)]));
    let title = format!(
        "Figure 11: LSTM, {}",
        match variance {
            Variance::Fixed => "24 steps each",
            Variance::UpTo50 => "lengths clipped to 50",
            Variance::UpTo100 => "lengths clipped to 100",
        }
    );
    let source = "BatchMaker (EuroSys'18), figure 11 and section 7.3";
    Ok(latency_figure(name, &title, source, vec![cellular, adaptive, padded], compared, LENGTHS))
}

pub(super) fn figure_13(bench: &mut Bench<'_>, devices: u32) -> Result<Figure, Error> {
    let rates: Vec<f64> = [250.0, 500.0, 1e3, 2e3, 3e3, 4e3, 5e3].iter().map(|rate| rate * f64::from(devices)).collect();
    let setup = |limits: [u32; 2]| Setup { devices, batch_max: limits.to_vec(), seconds: SECONDS / 2.0, ..v100() };
    // Nobody batches by a decoded length that is not known (section 7.4). The baselines' buckets are of the input, and a batch decodes until all have stopped.
    let workload = Workload::seq2seq(Pairs::EUROPARL, Decoding::Stops { extra: 50 });
    let same = bench.curve("cellular, up to 256,256", &rates, &setup([256, 256]), &workload)?;
    let own = bench.curve("cellular, up to 512,256", &rates, &setup([512, 256]), &workload)?;
    let adaptive_same =
        bench.curve("adaptive, up to 256,256", &rates, &with_policy(&setup([256, 256]), PolicyKind::Adaptive), &workload)?;
    let adaptive = bench.curve("adaptive, up to 512,256", &rates, &with_policy(&setup([512, 256]), PolicyKind::Adaptive), &workload)?;
    let padded = bench.curve("graph, up to 256", &rates[..5], &with_policy(&setup([256, 256]), graph(10)), &workload)?;
    let published = if devices == 2 { ("8500", 8500.0) } else { ("17000", 17_000.0) };
    let mut compared = vec![
        Compared::new("cellular: most answered, 512,256", published.0, own.peak(), "/s").within(published.1 * 0.95, published.1 * 1.05),
        Compared::new("cellular: gain of 512,256 over 256,256", "3.5 to 6", (own.peak() / same.peak() - 1.0) * 100.0, "%").within(2.0, 7.0),
        Compared::new("most answered, cellular over graph", "much higher", own.peak() / padded.peak(), "times").within(1.2, f64::MAX),
    ];
    compared.extend(adaptive_over(&[(&own, &adaptive), (&same, &adaptive_same)]));
    let assumed = [
        "an output is exp(N(0, 0.2)) times as long as its input",
        "a decoder's step takes the LSTM's time, and for its projection 3.65 times 784/512 us a row",
        "a projection takes as long as one of 32 rows at least",
        "decoding is bounded by the input's length and 50 steps",
        "a request's state takes 10 us to another device",
    ];
    let title = format!("Figure 13: seq2seq on {devices} devices");
    let name = format!("13-{devices}");
    Ok(latency_figure(
        &name,
        &title,
        "BatchMaker (EuroSys'18), figure 13 and section 7.4",
        vec![same, own, adaptive_same, adaptive, padded],
        compared,
        &assumed,
    ))
}

pub(super) const LENGTHS: &[&str] = &[
    "lengths: lognormal (mu 2.95, sigma 0.68), clipped to 1..330; mean 24, 99 % below 100 as published",
    "a bucket keeps its turn while the requests that were there at its start fill a batch",
];

pub(super) fn latency_figure(
    name: &str,
    title: &str,
    source: &'static str,
    curves: Vec<Curve>,
    compared: Vec<Compared>,
    assumed: &[&'static str],
) -> Figure {
    let pictures = drawn(&latency_picture(title, &curves));
    Figure { name: name.to_owned(), title: title.to_owned(), source, assumed: assumed.to_vec(), curves, compared, pictures }
}

//! Latency against throughput, as a picture.

use std::path::Path;

use anyhow::anyhow;
use cellwright_client::load::Latency;
use cellwright_plot::{self as plot, Line, Picture};

use super::Point;

/// What is drawn of a latency.
type Quantile = fn(&Latency) -> f64;

/// Draws latencies of all models together against the answers per second, as an SVG: p50, p90 and p99 of one server, p90 of each of several.
pub(super) fn draw(file: &Path, points: &[Point]) -> anyhow::Result<()> {
    let mut points: Vec<&Point> = points.iter().filter(|point| point.rate.is_some() && point.report.total.ok > 0).collect();
    // Beyond what a server can do the line goes back: it answers fewer, later. By what was answered such places would stand among those of lower rates.
    points.sort_by(|a, b| a.rate.unwrap_or_default().total_cmp(&b.rate.unwrap_or_default()));
    let mut policies: Vec<&Option<String>> = points.iter().map(|point| &point.policy).collect();
    policies.sort_unstable();
    policies.dedup();
    let line = |name: String, points: &[&Point], bars: bool, choose: Quantile| {
        let place = |point: &&Point| (point.report.total.throughput, choose(&point.report.total.latency) / 1e3);
        let bar = |point: &&Point| (point.report.total.latency.p50_us / 1e3, point.report.total.latency.p99_us / 1e3);
        let bars = if bars { points.iter().map(bar).collect() } else { Vec::new() };
        Line { name, points: points.iter().map(place).collect(), bars }
    };
    let p90 = |latency: &Latency| latency.p90_us;
    let (y, lines): (_, Vec<Line>) = if let [_] = policies[..] {
        let lines: [(&str, Quantile); 3] = [("p50", |latency| latency.p50_us), ("p90", p90), ("p99", |latency| latency.p99_us)];
        ("latency, ms", lines.map(|(name, choose)| line(name.to_owned(), &points, false, choose)).into())
    } else {
        let of_policy = |policy: &&Option<String>| {
            let points: Vec<&Point> = points.iter().copied().filter(|point| point.policy == **policy).collect();
            line((*policy).clone().unwrap_or_default(), &points, true, p90)
        };
        ("p90 latency, ms (bars: p50 to p99)", policies.iter().map(of_policy).collect())
    };
    let title = "Latency against throughput".to_owned();
    let picture = Picture { title, x: "answers per second", y, lines, ..Picture::default() };
    let svg = plot::draw(&picture).map_err(|problem| anyhow!("{problem}: give several rates, or `--rate sweep`"))?;
    Ok(std::fs::write(file, svg)?)
}

//! Latency against throughput, as a picture.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

use super::Point;

const SIZE: (u32, u32) = (900, 560);

/// Draws p50, p90 and p99 of all models together against the answers per second, as an SVG.
pub(super) fn draw(file: &Path, points: &[Point]) -> anyhow::Result<()> {
    let mut points: Vec<&Point> = points.iter().filter(|point| point.rate.is_some() && point.report.total.ok > 0).collect();
    points.sort_by(|a, b| a.report.total.throughput.total_cmp(&b.report.total.throughput));
    let latencies = points.iter().flat_map(|point| {
        let latency = &point.report.total.latency;
        [latency.p50_us, latency.p99_us]
    });
    let (low, high) = latencies.fold((f64::INFINITY, 0_f64), |(low, high), us| (low.min(us), high.max(us)));
    let widest = points.iter().map(|point| point.report.total.throughput).fold(0.0, f64::max);
    if points.is_empty() || low <= 0.0 {
        return Err(anyhow!("there is nothing to draw: give several rates, or `--rate sweep`"));
    }
    let failed = |error: DrawingAreaErrorKind<std::io::Error>| anyhow!("{error}");
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .caption("Latency against throughput", ("sans-serif", 20))
        .build_cartesian_2d(0.0..widest * 1.05, (low * 0.7 / 1e3..high * 1.4 / 1e3).log_scale())
        .map_err(failed)?;
    chart.configure_mesh().x_desc("answers per second").y_desc("latency, ms").label_style(("sans-serif", 14)).draw().map_err(failed)?;
    type Choose = fn(&cellwright_client::load::Latency) -> f64;
    let lines: [(&str, RGBColor, Choose); 3] = [
        ("p50", RGBColor(31, 119, 180), |latency| latency.p50_us),
        ("p90", RGBColor(255, 127, 14), |latency| latency.p90_us),
        ("p99", RGBColor(214, 39, 40), |latency| latency.p99_us),
    ];
    for (name, colour, choose) in lines {
        let places: Vec<(f64, f64)> =
            points.iter().map(|point| (point.report.total.throughput, choose(&point.report.total.latency) / 1e3)).collect();
        chart.draw_series(places.iter().map(|place| Circle::new(*place, 3, colour.filled()))).map_err(failed)?;
        let series = chart.draw_series(LineSeries::new(places, colour.stroke_width(2))).map_err(failed)?;
        series.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(failed)?;
    area.present().map_err(failed)
}

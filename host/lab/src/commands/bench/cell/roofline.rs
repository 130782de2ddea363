//! The roofline: how fast a step can be for what it computes of each byte of weights, and how fast it is.

use std::path::Path;

use anyhow::anyhow;
use cellwright_plot::{self as plot, Line, Picture};

use super::Figures;

/// Draws steps of several batch sizes under the limits that were measured with them.
pub(super) fn draw(file: &Path, title: &str, all: &[Figures]) -> anyhow::Result<()> {
    let svg = plot::draw(&picture(title, all)).map_err(|problem| anyhow!("{problem}"))?;
    Ok(std::fs::write(file, svg)?)
}

fn picture(title: &str, all: &[Figures]) -> Picture {
    let intensity = |figures: &Figures| f64::from(figures.batch) * figures.row_flops as f64 / figures.packed_bytes.max(1) as f64;
    let mut points: Vec<(f64, f64)> = all.iter().map(|figures| (intensity(figures), figures.gflops)).collect();
    points.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let best = |of: fn(&Figures) -> f64| all.iter().map(of).fold(0.0, f64::max);
    let (peak, read) = (best(|figures| figures.peak_gflops), best(|figures| figures.read_gb_per_s));
    let ridge = peak / read;
    let (first, last) = (points.first().map_or(ridge, |point| point.0), points.last().map_or(ridge, |point| point.0));
    let (left, right) = (first.min(ridge) / 2.0, last.max(ridge) * 2.0);
    let roof = Line {
        name: format!("{read:.0} GB/s, {peak:.0} GFLOP/s"),
        points: vec![(left, left * read), (ridge, peak), (right, peak)],
        bars: vec![],
    };
    let batches: Vec<String> = all.iter().map(|figures| figures.batch.to_string()).collect();
    let steps = Line { name: format!("steps of {} rows", batches.join(", ")), points, bars: Vec::new() };
    Picture {
        title: title.to_owned(),
        x: "floating-point operations per byte of packed weights",
        y: "GFLOP/s",
        x_log: true,
        lines: vec![roof, steps],
        published: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roof_bends_where_both_limits_meet() {
        let figures = Figures {
            batch: 8,
            step_us: 1.0,
            rows_per_s: 8e6,
            gflops: 30.0,
            peak_gflops: 100.0,
            peak_share: 0.3,
            gb_per_s: 1.0,
            read_gb_per_s: 20.0,
            read_share: 0.05,
            roof_share: 0.3,
            gather_us: 0.1,
            gemm_us: 0.8,
            element_us: 0.1,
            packed_bytes: 4000,
            row_flops: 2000,
        };
        let Picture { lines, .. } = picture("lstm", &[figures]);
        // Eight rows of half an operation a byte; the ridge is at 5.
        assert_eq!(lines[0].points, [(2.0, 40.0), (5.0, 100.0), (10.0, 100.0)]);
        assert_eq!(lines[1].points, [(4.0, 30.0)]);
    }
}

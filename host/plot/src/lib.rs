//! Line plots as SVG text, such as latency against throughput.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

const SIZE: (u32, u32) = (900, 560);
const COLOURS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
    RGBColor(188, 189, 34),
    RGBColor(23, 190, 207),
];

/// A line of a picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// What it is of.
    pub name: String,
    /// Its points, in order.
    pub points: Vec<(f64, f64)>,
    /// How far each point reaches down and up, if that is shown; as many as points.
    pub bars: Vec<(f64, f64)>,
}

/// What a picture shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// Above it.
    pub title: String,
    /// What is to the right.
    pub x: &'static str,
    /// What is upwards, on a logarithmic scale.
    pub y: &'static str,
    /// Whether the horizontal axis is logarithmic too.
    pub x_log: bool,
    /// Its lines.
    pub lines: Vec<Line>,
    /// Values that were published, as levels or places to compare with.
    pub published: Vec<(f64, f64)>,
}

/// Draws a picture; says why it cannot be, in a word.
///
/// # Errors
/// If there is nothing to draw.
pub fn draw(picture: &Picture) -> Result<String, String> {
    let all = || picture.lines.iter().flat_map(|line| &line.points).chain(&picture.published).filter(|(_, y)| *y > 0.0);
    let bars = picture.lines.iter().flat_map(|line| &line.bars).flat_map(|(low, high)| [*low, *high]);
    let heights = all().map(|(_, y)| *y).chain(bars).filter(|y| *y > 0.0);
    let (low, high) = heights.fold((f64::INFINITY, 0_f64), |(low, high), y| (low.min(y), high.max(y)));
    let (left, right) = all().fold((f64::INFINITY, 0_f64), |(left, right), (x, _)| (left.min(*x), right.max(*x)));
    if !low.is_finite() {
        return Err("there is nothing to draw".to_owned());
    }
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let heights = (low * 0.7..high * 1.4).log_scale();
        let drawn = if picture.x_log {
            draw_on(&area, picture, (left * 0.9..right * 1.1).log_scale(), heights)
        } else {
            draw_on(&area, picture, 0.0..right * 1.05, heights)
        };
        drawn.and_then(|()| area.present()).map_err(|error| error.to_string())?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawing = DrawingAreaErrorKind<std::io::Error>;

fn draw_on<X, Y>(area: &Area<'_>, picture: &Picture, across: X, up: Y) -> Result<(), Drawing>
where
    X: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
{
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .caption(&picture.title, ("sans-serif", 18))
        .build_cartesian_2d(across, up)?;
    chart.configure_mesh().x_desc(picture.x).y_desc(picture.y).label_style(("sans-serif", 13)).draw()?;
    for (line, colour) in picture.lines.iter().zip(COLOURS.iter().cycle()) {
        let seen = || line.points.iter().filter(|(_, y)| *y > 0.0);
        for ((x, _), (low, high)) in line.points.iter().zip(&line.bars).filter(|(_, (low, _))| *low > 0.0) {
            chart.draw_series([PathElement::new([(*x, *low), (*x, *high)], colour.mix(0.4).stroke_width(1))])?;
        }
        chart.draw_series(seen().map(|place| Circle::new(*place, 3, colour.filled())))?;
        let series = chart.draw_series(LineSeries::new(seen().copied(), colour.stroke_width(2)))?;
        let colour = *colour;
        series.label(&line.name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    if !picture.published.is_empty() {
        let crosses = picture.published.iter().map(|place| Cross::new(*place, 6, BLACK.stroke_width(2)));
        chart.draw_series(crosses)?.label("published").legend(|(x, y)| Cross::new((x + 9, y), 5, BLACK.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 13))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_its_lines_and_their_names() {
        let line = Line { name: "cellular".to_owned(), points: vec![(1.0, 2.0), (3.0, 4.0)], bars: vec![(1.0, 3.0), (2.0, 5.0)] };
        for x_log in [false, true] {
            let picture = Picture { lines: vec![line.clone()], x_log, published: vec![(2.0, 3.0)], ..Picture::default() };
            let svg = draw(&picture).unwrap();
            assert!(svg.starts_with("<svg") && svg.contains("cellular") && svg.contains("published"), "{svg}");
        }
        assert_eq!(draw(&Picture::default()), Err("there is nothing to draw".to_owned()));
    }
}

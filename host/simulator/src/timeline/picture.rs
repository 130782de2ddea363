//! A picture of who ran when, like BatchMaker's figure 5: a line for each request, from its arrival on, with every step it ran.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::Timeline;

const WIDTH: f64 = 1000.0;
const ROW: f64 = 18.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 48.0;
/// Requests that are shown, at most.
const ROWS_MAX: usize = 200;
const COLOURS: [&str; 6] = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b"];

/// Draws the first tasks of a run.
#[must_use]
pub fn picture(title: &str, timeline: &Timeline) -> String {
    let lives: BTreeMap<u64, (u64, u64)> = timeline.requests.iter().map(|(number, from, to)| (*number, (*from, *to))).collect();
    let mut numbers: Vec<u64> = timeline.tasks.iter().flat_map(|task| task.rows.iter().map(|(number, _)| *number)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.truncate(ROWS_MAX);
    let end = timeline.tasks.iter().map(|task| task.end_ns).max().unwrap_or(1).max(1);
    let x = |ns: u64| LEFT + (WIDTH - LEFT - 16.0) * ns.min(end) as f64 / end as f64;
    let (legend, lines) = legend(timeline);
    let top = TOP + ROW * lines.saturating_sub(1) as f64;
    let height = top + ROW * numbers.len() as f64 + 40.0;
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n<text x=\"16\" y=\"20\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    svg.push_str(&legend);
    for (at, number) in numbers.iter().enumerate() {
        let y = top + ROW * at as f64;
        let _ = writeln!(svg, "<text x=\"16\" y=\"{:.1}\">request {}</text>", y + 12.0, number + 1);
        if let Some((from, to)) = lives.get(number) {
            let (from, to) = (x(*from), x(*to));
            let _ = writeln!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#e8e8e8\"/>",
                to - from,
                ROW - 4.0
            );
        }
    }
    for task in &timeline.tasks {
        let colour = colour(task.cell);
        for (number, step) in &task.rows {
            let Ok(at) = numbers.binary_search(number) else { continue };
            let (from, to, y) = (x(task.start_ns), x(task.end_ns), top + ROW * at as f64);
            let width = (to - from - 1.0).max(0.5);
            let name = timeline.cells.get(task.cell as usize).map_or("", String::as_str);
            let _ = writeln!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\" fill-opacity=\"0.75\"><title>device {}, {}, step {step}</title></rect>",
                ROW - 4.0,
                task.device,
                escaped(name),
            );
        }
    }
    let foot = height - 12.0;
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{foot:.1}\">0</text>");
    let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{foot:.1}\" text-anchor=\"end\">{:.3} ms</text>\n</svg>", WIDTH - 16.0, end as f64 / 1e6);
    svg
}

const fn colour(cell: u32) -> &'static str {
    COLOURS[cell as usize % COLOURS.len()]
}

/// Whose colour is which, and how many lines that takes; none, where there is one cell.
fn legend(timeline: &Timeline) -> (String, usize) {
    /// Of a letter, with some room.
    const LETTER: f64 = 6.5;
    let cells: BTreeSet<u32> = timeline.tasks.iter().map(|task| task.cell).collect();
    let (mut svg, mut lines, mut at) = (String::new(), 0, WIDTH);
    for cell in cells.iter().filter(|_| cells.len() > 1) {
        let name = timeline.cells.get(*cell as usize).map_or("", String::as_str);
        let width = 34.0 + LETTER * name.chars().count() as f64;
        if at + width > WIDTH {
            (lines, at) = (lines + 1, LEFT);
        }
        let y = TOP - 26.0 + ROW * lines as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{at:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{}\" fill-opacity=\"0.75\"/>\n<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            y - 9.0,
            colour(*cell),
            at + 14.0,
            y,
            escaped(name)
        );
        at += width;
    }
    (svg, lines)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Task;

    #[test]
    fn colours_are_told_where_there_are_several() {
        let task = |cell| Task { device: 0, cell, start_ns: 0, end_ns: 10, steps: 1, rows: vec![(0, 0)] };
        let of = |cells: &[u32]| {
            let names = ["encoder", "decoder", "never"].map(str::to_owned).into();
            let mut drawn = Timeline::default();
            (drawn.cells, drawn.tasks) = (names, cells.iter().copied().map(task).collect());
            picture("", &drawn)
        };
        let two = of(&[0, 1, 0]);
        assert_eq!([">encoder<", ">decoder<", ">never<"].map(|name| two.matches(name).count()), [1, 1, 0], "{two}");
        assert!(!of(&[0, 0]).contains(">encoder<"), "it goes without saying");
    }
}

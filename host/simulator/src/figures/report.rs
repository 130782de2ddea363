//! All comparisons as a table.

use std::fmt::Write;

use super::{Compared, Figure};

/// A page in Markdown: each figure with what was published, what came out, where it must lie, and what had to be assumed.
#[must_use]
pub fn table(figures: &[Figure]) -> String {
    let mut page = String::from(
        "# Published figures, run again\n\n`cellwright-lab figures` writes this page. It runs the server's scheduler in virtual time, with one\n\
         model of the device (`host/simulator/devices`) and one of the workload. The same seeds give the same\nnumbers. The tests of \
         `host/simulator` check the bounds. A row without a bound is one for which the\npaper does not give what would be needed.\n",
    );
    for figure in figures {
        let _ = write!(page, "\n## {}\n\n{}.\n", figure.title, figure.source);
        let links = figure.pictures.iter().map(|(ending, _)| format!("[picture](figure-{}{ending}.svg)", figure.name));
        let links: Vec<String> = links.chain([format!("[numbers](figure-{}.json)", figure.name)]).collect();
        let _ = writeln!(page, "{}\n\n| | published | here | unit | must be |\n|---|---|---|---|---|", links.join(",\n"));
        for compared in &figure.compared {
            let Compared { what, published, unit, .. } = compared;
            let _ = writeln!(page, "| {what} | {published} | {} | {unit} | {} |", number(compared.ours), bounds(compared.within));
        }
        if !figure.assumed.is_empty() {
            page.push_str("\nAssumed:\n\n");
        }
        for assumed in &figure.assumed {
            let _ = writeln!(page, "- {assumed}");
        }
    }
    page
}

fn bounds(within: Option<(f64, f64)>) -> String {
    match within {
        None => String::new(),
        Some((low, high)) if low == high => number(low),
        Some((low, f64::MAX)) => format!("at least {}", number(low)),
        Some((0.0, high)) => format!("at most {}", number(high)),
        Some((low, high)) => format!("{} to {}", number(low), number(high)),
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 || value == value.round() => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        _ => format!("{value:.2}"),
    }
}

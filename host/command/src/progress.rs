//! Progress bars on standard error, shown on a terminal only. Clear a bar before you write output.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A counter of things done.
#[must_use]
pub fn counter(what: &'static str, total: Option<u64>) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = match total {
        Some(_) => "{wide_bar} {pos}/{len} {msg}, {per_sec}, {eta} left",
        None => "{spinner} {pos} {msg}, {per_sec}",
    };
    let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new).with_message(what);
    // The templates are constants; were one wrong, the bar's own default would show.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// A spinner for work whose end is not known.
#[must_use]
pub fn spinner(what: String) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Bytes on their way.
#[must_use]
pub fn bytes(what: &'static str) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0).with_message(what);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {msg}, {bytes_per_sec}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Time that passes, in milliseconds.
#[must_use]
pub fn clock(what: &'static str, total: Duration) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(u64::try_from(total.as_millis()).unwrap_or(u64::MAX)).with_message(what);
    if let Ok(style) = ProgressStyle::with_template("  {msg:40} {wide_bar} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

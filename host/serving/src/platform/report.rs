//! What is kept of a version's samples: which there were, as far as a report has room for them.

use cellwright_registry::REPORT_BYTES_MAX;
use serde_json::{Value, json};

use crate::samples::SampleReport;

/// What a report has beside its samples, and then some.
const REST_BYTES: usize = 64;

/// As the registry keeps it: the first of the samples, as many as there is room for, and how many more there were.
pub(super) fn of(samples: &[SampleReport]) -> Value {
    let mut room = REPORT_BYTES_MAX - REST_BYTES;
    let kept = samples.iter().map_while(|report| {
        let sample = json!({ "name": report.name, "compared": report.compared });
        // With the comma that follows it.
        room = room.checked_sub(sample.to_string().len() + 1)?;
        Some(sample)
    });
    let kept: Vec<_> = kept.collect();
    let more = samples.len() - kept.len();
    json!({ "samples": kept, "more": more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_room_for_many_samples_and_never_more_bytes_than_it_may() {
        let samples = |name: &str, count: usize| {
            let one = SampleReport { name: name.to_owned(), compared: false, fault: None, error: None };
            vec![one; count]
        };
        let kept = |name: &str, count: usize| {
            let report = of(&samples(name, count));
            assert!(report.to_string().len() <= REPORT_BYTES_MAX);
            let kept = report["samples"].as_array().unwrap().len();
            assert_eq!(report["more"], count - kept);
            kept
        };
        assert_eq!([kept("one", 0), kept("one", 1), kept("sample 1000", 1000)], [0, 1, 1000]);
        for long in ["\u{1}".repeat(128), "\u{10ffff}".repeat(128)] {
            assert!((50..200).contains(&kept(&long, 10_000)));
        }
    }
}

//! What is kept of a version's samples: which there were, as far as a report has room for them.

use cellwright_registry::REPORT_BYTES_MAX;
use cellwright_serving::samples::SampleReport;
use serde_json::{Value, json};

use crate::error::ChangeError;

/// What a report has beside its samples, and then some.
const REST_BYTES: usize = 64;

/// As the registry keeps it: the first of the samples, as many as there is room for, and how many
/// more there were.
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

/// Fails unless all samples passed. Reports a busy host only if that is why every failed sample
/// failed.
pub(super) fn passed(reports: Vec<SampleReport>) -> Result<Vec<SampleReport>, ChangeError> {
    let failed = || reports.iter().filter_map(|report| Some((report, report.fault.clone()?)));
    let Some((report, fault)) = failed().find(|(report, _)| !report.is_of_the_moment()).or_else(|| failed().next()) else {
        return Ok(reports);
    };
    let sample = report.name.clone();
    match report.error {
        Some(kind) if report.is_of_the_moment() => Err(ChangeError::NotTried { sample, fault, kind }),
        _ => Err(ChangeError::Samples { failed: failed().count(), of: reports.len(), sample, fault, reports }),
    }
}

#[cfg(test)]
mod tests {
    use cellwright_serving::{ErrorKind, InferError};

    use super::*;

    #[test]
    fn a_report_has_room_for_many_samples_and_never_more_bytes_than_it_may() {
        let samples = |name: &str, count: usize| {
            let one = SampleReport { name: name.to_owned(), compared: false, fault: None, error: None, distance: None };
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

    fn report(name: &str, fault: Option<(&str, Option<ErrorKind>)>) -> SampleReport {
        let (fault, error) = fault.unzip();
        SampleReport { name: name.to_owned(), compared: true, fault: fault.map(str::to_owned), error: error.flatten(), distance: None }
    }

    #[test]
    fn a_host_that_has_too_much_to_do_says_nothing_about_a_bundle() {
        let full = InferError::AnswersTooLarge { limit: 9 };
        let (sentence, kind) = (full.to_string(), Some(full.kind()));
        let good = || report("good", None);
        let busy = || report("busy", Some((&sentence, kind)));
        let wrong = || report("wrong", Some(("it has 1 and not 2", None)));
        let trapped = || report("trapped", Some(("it failed", Some(ErrorKind::PluginFault))));
        assert_eq!(passed(vec![good(), good()]).unwrap().len(), 2);
        let error = passed(vec![good(), busy(), busy()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("`busy`") && error.to_string().contains("try again later"), "{error}");
        for reports in [vec![busy(), wrong(), good()], vec![trapped(), busy(), good()]] {
            let error = passed(reports).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadInput);
            assert!(error.to_string().starts_with("2 of 3 samples failed") && !error.to_string().contains("`busy`"), "{error}");
        }
        let stopped = report("stopped", Some(("it failed", Some(ErrorKind::Unavailable))));
        assert_eq!(passed(vec![stopped]).unwrap_err().kind(), ErrorKind::Unavailable);
    }
}

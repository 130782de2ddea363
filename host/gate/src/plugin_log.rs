//! How plugins have failed lately, in their own words: for tenants that upload models, never for their clients.
//!
//! All models of a tenant share its bounds. At a bound the model that has most forgets its oldest
//! failure, so a model that always fails hides no failure of another one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use cellwright_protocol::messages::admin::PluginFailure;

/// Bytes of all failures of a tenant's models.
const BYTES_MAX: usize = 1 << 20;
/// A failure counts as so many bytes at least, which bounds their number.
const FAILURE_BYTES_MIN: usize = 1 << 10;
/// Bytes of one failure's words.
const ERROR_BYTES_MAX: usize = 8 << 10;
/// Bytes of a request's id, which its client may have chosen.
pub(crate) const REQUEST_BYTES_MAX: usize = 128;

/// The failures of a tenant's models.
#[derive(Debug, Default)]
pub(crate) struct PluginLog(Mutex<Failures>);

#[derive(Debug, Default)]
struct Failures {
    /// By the model's number.
    models: BTreeMap<u32, OfModel>,
    bytes: usize,
    last_ms: u64,
}

#[derive(Debug, Default)]
struct OfModel {
    failures: VecDeque<PluginFailure>,
    bytes: usize,
}

/// The beginning of a text, and nothing that a terminal obeys.
fn cut(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

fn bytes_of(failure: &PluginFailure) -> usize {
    (size_of::<PluginFailure>() + failure.request.len() + failure.error.len()).max(FAILURE_BYTES_MIN)
}

impl PluginLog {
    /// Keeps a failure of a version of that model.
    pub(crate) fn add(&self, (model, version): (u32, u64), request: &str, error: &str) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let (request, error) = (cut(request, REQUEST_BYTES_MAX), cut(error, ERROR_BYTES_MAX));
        let mut all = self.lock();
        all.last_ms = now_ms.max(all.last_ms.saturating_add(1));
        let failure = PluginFailure { time_ms: all.last_ms, version, request, error };
        let bytes = bytes_of(&failure);
        all.bytes += bytes;
        let own = all.models.entry(model).or_default();
        own.bytes += bytes;
        own.failures.push_back(failure);
        all.make_room();
    }

    /// The model's failures after that time, the oldest first.
    pub(crate) fn after(&self, model: u32, time_ms: u64) -> Vec<PluginFailure> {
        let all = self.lock();
        let failures = all.models.get(&model).into_iter().flat_map(|own| &own.failures);
        failures.filter(|failure| failure.time_ms > time_ms).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Failures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    fn make_room(&mut self) {
        while self.bytes > BYTES_MAX {
            let Some((&model, most)) = self.models.iter_mut().max_by_key(|(_, own)| own.bytes) else { return };
            let bytes = most.failures.pop_front().as_ref().map_or(0, bytes_of);
            most.bytes -= bytes;
            self.bytes -= bytes;
            if most.failures.is_empty() {
                self.models.remove(&model);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_bounded_and_a_model_that_always_fails_hides_no_other() {
        let log = PluginLog::default();
        log.add((1, 7), "rare", "plugin `p` failed");
        for number in 0..5000 {
            log.add((2, 1), &"r".repeat(1 << 10), &"\u{1b}é".repeat(number));
            log.add((number as u32 + 3, 1), "", "");
        }
        let all = log.lock();
        assert!(all.bytes <= BYTES_MAX && all.bytes > BYTES_MAX - 2 * ERROR_BYTES_MAX, "{}", all.bytes);
        assert_eq!(all.bytes, all.models.values().map(|own| own.bytes).sum::<usize>());
        assert!(all.models.values().map(|own| own.failures.len()).sum::<usize>() <= BYTES_MAX / FAILURE_BYTES_MIN);
        drop(all);
        let often = log.after(2, 0);
        assert!(often.iter().all(|failure| failure.error.len() <= ERROR_BYTES_MAX && failure.request.len() <= REQUEST_BYTES_MAX));
        assert!(!often.iter().any(|failure| failure.error.contains(char::is_control)));
    }

    #[test]
    fn failures_are_told_from_a_time_on_and_no_two_have_the_same() {
        let log = PluginLog::default();
        (0..100).for_each(|number| log.add((1, number), "", ""));
        let all = log.after(1, 0);
        assert!(all.is_sorted_by(|a, b| a.time_ms < b.time_ms) && all.len() == 100);
        assert_eq!(log.after(1, all[97].time_ms), all[98..]);
        assert_eq!(log.after(1, all[99].time_ms).len() + log.after(2, 0).len(), 0);
    }
}

//! Times into figures.

use std::time::Duration;

use hdrhistogram::Histogram;

const SIGNIFICANT_DIGITS: u8 = 3;
const LONGEST: Duration = Duration::from_secs(3600);

/// Durations seen, in nanoseconds, each to three digits.
#[derive(Clone, Debug)]
pub(crate) struct Times(Histogram<u64>);

impl Times {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self(Histogram::new_with_bounds(1, nanoseconds(LONGEST), SIGNIFICANT_DIGITS)?))
    }

    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(nanoseconds(time));
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Their mean.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// The time that this share (0 to 1) of those seen did not exceed.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(share))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

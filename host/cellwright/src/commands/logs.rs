//! `logs`: how a model's plugin failed, for its owner.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

use cellwright_protocol::messages::admin::PluginFailure;

use super::remote::block_on;
use crate::cli::LogsArguments;

/// How often a server is asked for more.
const POLL: Duration = Duration::from_secs(1);

pub(crate) fn logs(arguments: &LogsArguments) -> anyhow::Result<ExitCode> {
    let client = arguments.server.client()?;
    block_on(async {
        let mut after_ms = 0;
        loop {
            let failures = client.plugin_log(&arguments.model, after_ms).await?;
            if failures.is_empty() && !arguments.follow && !arguments.json {
                writeln!(stdout(), "no call of {} has failed because of its plugin since the server started", arguments.model)?;
            }
            for failure in failures {
                after_ms = failure.time_ms;
                let line = if arguments.json { serde_json::to_string(&failure)? } else { text(&failure) };
                writeln!(stdout(), "{line}")?;
            }
            if !arguments.follow {
                return Ok(ExitCode::SUCCESS);
            }
            tokio::time::sleep(POLL).await;
        }
    })
}

fn text(PluginFailure { time_ms, version, request, error }: &PluginFailure) -> String {
    format!("{} version {version}, request `{request}`: {error}", utc(*time_ms))
}

/// A time as RFC 3339 writes it, from the days since 1970 by the civil calendar.
fn utc(time_ms: u64) -> String {
    let (seconds, ms) = (time_ms / 1000, time_ms % 1000);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is a year's last.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(ms), text);
        }
        assert!(utc(u64::MAX).ends_with('Z'));
    }
}

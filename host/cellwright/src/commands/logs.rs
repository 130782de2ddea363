//! `logs`: how a model's plugin failed, for its owner.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

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

/// A time of the years that RFC 3339 has.
fn utc(time_ms: u64) -> String {
    const LAST_MS: u64 = 253_402_300_799_999;
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(time_ms.min(LAST_MS))).to_string()
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn a_server_with_a_bad_clock_is_no_panic() {
        assert_eq!(utc(1_735_689_599_001), "2024-12-31T23:59:59.001Z");
        assert_eq!(utc(u64::MAX), "9999-12-31T23:59:59.999Z");
    }
}

//! `replay`: a recording's decisions made again, and others in their place.

use std::io::{Write, stdout};

use anyhow::bail;
use cellwright_scheduler::{Config, PolicyKind};
use cellwright_simulator::replay::{Change, Replayed, what_if};
use cellwright_simulator::{Outcome, Recording, replay as play};
use serde::Serialize;

use crate::cli::ReplayArguments;
use crate::commands::remote::table;
use crate::progress;

/// The same requests in virtual time.
#[derive(Debug, Serialize)]
struct Simulated {
    policy: String,
    batch_max: Option<u32>,
    devices: u32,
    #[serde(flatten)]
    outcome: Outcome,
}

/// Everything that is said.
#[derive(Debug, Serialize)]
struct Report {
    calls: u64,
    requests: usize,
    devices: usize,
    /// The end of the recording is missing.
    cut: bool,
    policy: String,
    recorded: Outcome,
    simulated: Vec<Simulated>,
}

pub(crate) fn replay(arguments: &ReplayArguments) -> anyhow::Result<()> {
    let mut recording = Recording::open(&arguments.recording)?;
    let bar = progress::counter("decisions", None);
    let replayed = play(&mut recording, &mut |calls| bar.set_position(calls))?;
    bar.finish_and_clear();
    let name = arguments.recording.display();
    if let Some(call) = replayed.different {
        let program = recording.program();
        bail!(
            "{name}: other things are decided now than were recorded, from call {call} on: it was written by version {program} of this program"
        );
    }
    if replayed.traffic.requests() == 0 {
        bail!("{name}: nothing was asked while it was made ({} calls of the scheduler, all decided as recorded)", replayed.calls);
    }
    let cut = recording.was_cut();
    let simulated = changes(arguments, &replayed).into_iter().map(|change| simulate(&replayed, change)).collect();
    let policy = replayed.traffic.config().policy.to_string();
    let Replayed { calls, outcome: recorded, traffic, .. } = replayed;
    let report = Report { calls, requests: traffic.requests(), devices: traffic.workers(), cut, policy, recorded, simulated };
    if arguments.json {
        writeln!(stdout(), "{}", serde_json::to_string(&report)?)?;
        return Ok(());
    }
    print(&report)
}

/// As it was, and whatever is asked for.
fn changes(arguments: &ReplayArguments, replayed: &Replayed) -> Vec<Change> {
    let mut changes = vec![Change::default()];
    let asked = Change { policy: None, batch_max: arguments.batch_max, workers: arguments.devices };
    let policies: Vec<Option<PolicyKind>> =
        if arguments.policy.is_empty() { vec![None] } else { arguments.policy.iter().map(|policy| Some(policy.0)).collect() };
    changes.extend(policies.into_iter().map(|policy| Change { policy, ..asked }));
    let same = |change: &Change| {
        let Config { policy, .. } = replayed.traffic.config();
        change.batch_max.is_none() && change.workers.is_none() && change.policy.is_none_or(|other| other == policy)
    };
    let mut seen = false;
    changes.retain(|change| !same(change) || !std::mem::replace(&mut seen, true));
    changes
}

fn simulate(replayed: &Replayed, change: Change) -> Simulated {
    let traffic = &replayed.traffic;
    let bar = progress::counter("requests in virtual time", Some(traffic.requests() as u64));
    let outcome = what_if(traffic, change, &mut |arrived| bar.set_position(arrived as u64));
    bar.finish_and_clear();
    Simulated {
        policy: change.policy.unwrap_or(traffic.config().policy).to_string(),
        batch_max: change.batch_max,
        devices: change.workers.unwrap_or(u32::try_from(traffic.workers()).unwrap_or(u32::MAX)),
        outcome,
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let Report { calls, requests, devices, cut, policy, recorded, simulated } = report;
    let end = if *cut { ", up to where its end is missing" } else { "" };
    let devices_word = if *devices == 1 { "device" } else { "devices" };
    writeln!(stdout(), "{requests} requests on {devices} {devices_word}, {calls} calls of the scheduler: all decided as recorded{end}\n")?;
    let head = ["", "policy", "devices", "limit", "answers/s", "p50 ms", "p90 ms", "p99 ms", "batch", "busy", "given up"];
    let line = |what: &str, policy: &str, devices: u64, batch_max: Option<u32>, outcome: &Outcome| {
        vec![
            what.to_owned(),
            policy.to_owned(),
            devices.to_string(),
            batch_max.map_or("as it was".to_owned(), |rows| rows.to_string()),
            format!("{:.0}", outcome.throughput),
            format!("{:.2}", outcome.p50_ms),
            format!("{:.2}", outcome.p90_ms),
            format!("{:.2}", outcome.p99_ms),
            format!("{:.1}", outcome.mean_batch),
            format!("{:.0} %", outcome.utilisation * 100.0),
            outcome.failed.to_string(),
        ]
    };
    let mut rows = vec![line("recorded", policy, *devices as u64, None, recorded)];
    rows.extend(simulated.iter().map(|run| line("simulated", &run.policy, u64::from(run.devices), run.batch_max, &run.outcome)));
    write!(stdout(), "{}", table(&head, &rows))?;
    Ok(())
}

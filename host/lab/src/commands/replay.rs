//! `replay`: a recording's decisions made again, and others in their place.

use std::fmt::{self, Display, Formatter};
use std::io::{Write, stdout};

use anyhow::bail;
use cellwright_command::progress;
use cellwright_command::table::table;
use cellwright_recording::Recording;
use cellwright_simulator::replay::{Change, Replayed, what_if};
use cellwright_simulator::{Outcome, replay as play};
use serde::Serialize;

use crate::cli::ReplayArguments;

/// No change of a setting.
const UNCHANGED: &str = "unchanged";

/// The same requests in virtual time.
#[derive(Debug, Serialize)]
struct Simulated {
    /// None: as it was, which may be another for each model.
    policy: Option<String>,
    batch_max: Option<u32>,
    devices: u32,
    #[serde(flatten)]
    outcome: Outcome,
}

/// The unchanged simulation, as a multiple of the recording.
#[derive(Debug, Serialize)]
struct Baseline {
    throughput: f64,
    p50: f64,
    p90: f64,
    p99: f64,
}

impl Baseline {
    fn new(recorded: &Outcome, again: &Outcome) -> Self {
        // Where nothing was answered nothing is far from it.
        let of = |was: f64, is: f64| if was > 0.0 { is / was } else { 1.0 };
        Self {
            throughput: of(recorded.throughput, again.throughput),
            p50: of(recorded.p50_ms, again.p50_ms),
            p90: of(recorded.p90_ms, again.p90_ms),
            p99: of(recorded.p99_ms, again.p99_ms),
        }
    }
}

impl Display for Baseline {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let [rate, p50, p90, p99] = [self.throughput, self.p50, self.p90, self.p99].map(|ratio| percent(ratio - 1.0));
        write!(formatter, "error of the unchanged simulation: answers/s {rate}, p50 {p50}, p90 {p90}, p99 {p99}")
    }
}

/// With its sign, but none for nothing.
fn percent(part: f64) -> String {
    match (part * 100.0).round() {
        0.0 => "±0 %".to_owned(),
        percent if percent < 0.0 => format!("−{} %", -percent),
        percent => format!("+{percent} %"),
    }
}

/// Everything that is printed.
#[derive(Debug, Serialize)]
struct Report {
    calls: u64,
    requests: usize,
    devices: usize,
    /// The end of the recording is missing.
    cut: bool,
    policy: String,
    recorded: Outcome,
    /// Clients in the simulation that send the next request after an answer. None: requests come at their recorded times.
    clients: Option<u32>,
    simulated: Vec<Simulated>,
    baseline: Baseline,
}

pub(crate) fn replay(arguments: &ReplayArguments) -> anyhow::Result<()> {
    let mut recording = Recording::open(&arguments.recording)?;
    let bar = progress::counter("decisions", None);
    let mut replayed = play(&mut recording, &mut |calls| bar.set_position(calls))?;
    bar.finish_and_clear();
    let name = arguments.recording.display();
    if let Some(call) = replayed.different {
        let program = recording.program();
        bail!(
            "{name}: decisions differ from the recorded ones, from call {call} on: version {program} of this program wrote the recording"
        );
    }
    if replayed.traffic.requests() == 0 {
        bail!("{name}: the recording holds no requests ({} calls of the scheduler, all decided as recorded)", replayed.calls);
    }
    let cut = recording.was_cut();
    if let Some(clients) = arguments.clients {
        replayed.traffic.set_clients((clients > 0).then_some(clients));
    }
    let again = simulate(&replayed, Change::default());
    let baseline = Baseline::new(&replayed.outcome, &again.outcome);
    let simulated = std::iter::once(again).chain(changes(arguments).into_iter().map(|change| simulate(&replayed, change))).collect();
    let policy = replayed.traffic.config().policy.to_string();
    let Replayed { calls, outcome: recorded, traffic, .. } = replayed;
    let (requests, devices, clients) = (traffic.requests(), traffic.workers(), traffic.clients());
    let report = Report { calls, requests, devices, cut, policy, recorded, clients, simulated, baseline };
    if arguments.json {
        writeln!(stdout(), "{}", serde_json::to_string(&report)?)?;
        return Ok(());
    }
    print(&report)
}

/// The requested changes. A policy that the configuration has already is a change too, because it replaces the policies of single models.
fn changes(arguments: &ReplayArguments) -> Vec<Change> {
    let &ReplayArguments { batch_max, devices: workers, ref policy, .. } = arguments;
    let mut changes: Vec<Change> = policy.iter().map(|policy| Change { policy: Some(policy.0), batch_max, workers }).collect();
    if changes.is_empty() && (batch_max.is_some() || workers.is_some()) {
        changes.push(Change { policy: None, batch_max, workers });
    }
    changes
}

fn simulate(replayed: &Replayed, change: Change) -> Simulated {
    let traffic = &replayed.traffic;
    let bar = progress::counter("requests in virtual time", Some(traffic.requests() as u64));
    let outcome = what_if(traffic, change, &mut |arrived| bar.set_position(arrived as u64));
    bar.finish_and_clear();
    Simulated {
        policy: change.policy.map(|policy| policy.to_string()),
        batch_max: change.batch_max,
        devices: change.workers.unwrap_or(u32::try_from(traffic.workers()).unwrap_or(u32::MAX)),
        outcome,
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let Report { calls, requests, devices, cut, policy, recorded, clients, simulated, baseline } = report;
    let end = if *cut { "; the end of the recording is missing" } else { "" };
    let devices_word = if *devices == 1 { "device" } else { "devices" };
    writeln!(stdout(), "{requests} requests on {devices} {devices_word}, {calls} calls of the scheduler: all decided as recorded{end}\n")?;
    let head = ["", "policy", "devices", "limit", "answers/s", "p50 ms", "p90 ms", "p99 ms", "batch", "busy", "given up"];
    let line = |what: &str, policy: &str, devices: u64, batch_max: Option<u32>, outcome: &Outcome| {
        vec![
            what.to_owned(),
            policy.to_owned(),
            devices.to_string(),
            batch_max.map_or(UNCHANGED.to_owned(), |rows| rows.to_string()),
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
    rows.extend(
        simulated
            .iter()
            .map(|run| line("simulated", run.policy.as_deref().unwrap_or(UNCHANGED), u64::from(run.devices), run.batch_max, &run.outcome)),
    );
    write!(stdout(), "{}", table(&head, &rows))?;
    writeln!(stdout(), "\n{baseline}; simulations with changes are no more exact")?;
    match clients {
        Some(clients) => writeln!(
            stdout(),
            "requests come from {clients} clients that send the next one after an answer (--clients 0: at their recorded times)"
        )?,
        None => writeln!(stdout(), "requests come at their recorded times: a slower simulation has a growing queue")?,
    }
    Ok(())
}

//! `simulate`: the scheduler in virtual time.

use std::fs;
use std::io::{Write, stderr, stdout};
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use cellwright_command::process::{Usage, ensure_usage};
use cellwright_command::progress;
use cellwright_command::table::table;
use cellwright_plot as plot;
use cellwright_plot::{Line, Picture};
use cellwright_scheduler::{Config, Graph, PolicyKind};
use cellwright_simulator::arrivals::Trace;
use cellwright_simulator::outcome::Spread;
use cellwright_simulator::workload::{Decoding, Layers, Lengths, Pairs, Trees};
use cellwright_simulator::{Arrivals, Device, Error, Gathering, Outcome, Setup, Timeline, Workload, run, timeline};
use serde::Serialize;

use crate::cli::{SimulateArguments, WorkloadKind};

const FILE_BYTES_MAX: u64 = 256 << 20;
/// Tasks in a picture of who ran when.
const TIMELINE_TASKS: usize = 400;
const TREES_SEED: u64 = 1;
/// Steps by which decoding is bounded beyond the input's length, as in figure 13.
const DECODE_BOUND: u32 = 50;
/// The default of `--seconds`.
const SECONDS: f64 = 4.0;
/// Part of that before anything is counted.
const WARM_UP: f64 = 0.2;

/// One run.
#[derive(Debug, Serialize)]
struct Run {
    policy: String,
    /// None for a trace, and for clients that wait for their answers.
    rate: Option<f64>,
    clients: Option<u32>,
    workload: &'static str,
    device: String,
    devices: u32,
    batch_max: Vec<u32>,
    seed: u64,
    #[serde(flatten)]
    outcome: Outcome,
}

pub(crate) fn simulate(arguments: &SimulateArguments) -> anyhow::Result<()> {
    let least = arguments.batch_max.iter().min().copied().unwrap_or(u32::MAX);
    ensure_usage(arguments.batch_min <= least, || {
        format!("--batch-min is {}, more rows than --batch-max {least} allows", arguments.batch_min)
    })?;
    let device = device(&arguments.device)?;
    let workload = workload(arguments)?;
    let offered = offered(arguments, &workload)?;
    let (mut runs, mut timeline) = (Vec::new(), None);
    for policy in policies(arguments)? {
        for (rate, arrivals) in &offered {
            let mut setup = setup(arguments, device.clone(), arrivals.clone(), policy);
            setup.timeline_tasks = if arguments.timeline.is_some() && timeline.is_none() { TIMELINE_TASKS } else { 0 };
            let ran = one(&setup, workload.clone())?;
            let batch_max = arguments.batch_max.clone();
            let run = Run {
                policy: policy.to_string(),
                rate: *rate,
                clients: arguments.clients,
                workload: workload.name(),
                device: device.name.clone(),
                devices: arguments.devices,
                batch_max,
                seed: arguments.seed,
                outcome: measured(ran.0),
            };
            if arguments.json {
                writeln!(stdout(), "{}", serde_json::to_string(&run)?)?;
            }
            runs.push(run);
            timeline.get_or_insert(ran.1);
        }
    }
    if !arguments.json {
        print(&runs)?;
    }
    if let Some(file) = &arguments.plot {
        write(file, &picture(&runs).map_err(|problem| anyhow!("the plot {} cannot be drawn: {problem}", file.display()))?)?;
    }
    if let (Some(file), Some(timeline)) = (&arguments.timeline, &timeline) {
        write(file, &timeline::picture(&format!("Which request ran when: {}", runs.first().map_or("", |run| &run.policy)), timeline))?;
    }
    Ok(())
}

/// No latency is none, not one of 0: a dash, in JSON null.
fn measured(outcome: Outcome) -> Outcome {
    if outcome.answered > 0 {
        return outcome;
    }
    let (ms, none) = (f64::NAN, Spread { mean_ms: f64::NAN, p50_ms: f64::NAN, p90_ms: f64::NAN, p99_ms: f64::NAN });
    Outcome { mean_ms: ms, p50_ms: ms, p90_ms: ms, p99_ms: ms, queueing: none, computation: none, ..outcome }
}

fn one(setup: &Setup, mut workload: Workload) -> anyhow::Result<(Outcome, Timeline)> {
    let bar = progress::counter("ms of virtual time", Some((setup.seconds * 1e3) as u64));
    let ran = run(setup, &mut workload, &mut |now_ns| bar.set_position(now_ns / 1_000_000));
    bar.finish_and_clear();
    let ran = ran.map_err(with_a_device)?;
    Ok((ran.outcome, ran.timeline))
}

/// An error that names a device which has the costs that another lacks, if there is one.
fn with_a_device(error: Error) -> anyhow::Error {
    let Error::NoCosts { cell, .. } = &error else { return error.into() };
    let has_it = |name: &&str| Device::built_in(name).is_some_and(|device| device.costs(cell).is_ok());
    match Device::built_in_names().find(has_it) {
        Some(name) => anyhow!("{error}; `--device {name}` has them"),
        None => error.into(),
    }
}

fn setup(arguments: &SimulateArguments, device: Device, arrivals: Arrivals, policy: PolicyKind) -> Setup {
    let config = Config {
        policy,
        release: arguments.release.into(),
        max_tasks_to_submit: arguments.max_tasks,
        low_water: arguments.low_water,
        ..Config::default()
    };
    let gathering = arguments.scheduling_ns.map_or(Gathering::Curve, |ns| Gathering::Moved { scheduling_ns_per_row: ns });
    let trace = arguments.trace.is_some();
    Setup {
        config,
        devices: arguments.devices,
        batch_max: arguments.batch_max.clone(),
        batch_min: arguments.batch_min,
        gathering,
        seconds: arguments.seconds.unwrap_or_else(|| span(&arrivals)),
        // A trace is played to its end, and counts from its beginning.
        warm_up: if trace { 0.0 } else { WARM_UP },
        drain: arguments.drain || trace,
        objective_ns: arguments.objective_ms.map(|ms| (ms * 1e6) as u64),
        seed: arguments.seed,
        ..Setup::new(device, arrivals)
    }
}

/// Seconds that arrivals take.
fn span(arrivals: &Arrivals) -> f64 {
    match arrivals {
        Arrivals::Poisson(_) | Arrivals::Clients(_) => SECONDS,
        Arrivals::Trace(arrivals) => arrivals.last().map_or(0.0, |last| (last.at_ns + 1) as f64 / 1e9) + 1e-6,
    }
}

/// The policies, with the bucket width that was given beside them.
fn policies(arguments: &SimulateArguments) -> anyhow::Result<Vec<PolicyKind>> {
    let chosen = arguments.policy.iter().map(|policy| match (policy.0, arguments.bucket_width) {
        (PolicyKind::Graph(Graph { window_ns, .. }), Some(bucket_width)) => PolicyKind::Graph(Graph { bucket_width, window_ns }),
        (policy, _) => policy,
    });
    let chosen: Vec<_> = chosen.collect();
    let graph = chosen.iter().any(|policy| matches!(policy, PolicyKind::Graph(_)));
    ensure_usage(graph || arguments.bucket_width.is_none(), || {
        "--bucket-width is for the policy `graph`: give `--policy graph`, or leave it out".to_owned()
    })?;
    Ok(chosen)
}

fn device(name: &str) -> anyhow::Result<Device> {
    if let Some(device) = Device::built_in(name) {
        return Ok(device);
    }
    let path = Path::new(name);
    if !path.exists() {
        let known: Vec<_> = Device::built_in_names().collect();
        return Err(Usage(format!("there is no device `{name}`: give a file, or one of {}", known.join(", "))).into());
    }
    Ok(Device::from_toml(name, &read(path)?)?)
}

fn offered(arguments: &SimulateArguments, workload: &Workload) -> anyhow::Result<Vec<(Option<f64>, Arrivals)>> {
    if let Some(clients) = arguments.clients {
        return Ok(vec![(None, Arrivals::Clients(clients))]);
    }
    let Some(path) = &arguments.trace else {
        return Ok(arguments.rate.iter().map(|rate| (Some(rate.0), Arrivals::Poisson(rate.0))).collect());
    };
    let file = path.display().to_string();
    let mut trace = Trace::read(&file, &read(path)?, arguments.faster)?;
    say_what_is_not_used(&file, &trace, workload)?;
    if let Some(longest) = arguments.length_max {
        for (source, target) in trace.arrivals.iter_mut().filter_map(|arrival| arrival.lengths.as_mut()) {
            (*source, *target) = ((*source).min(longest), (*target).min(longest));
        }
    }
    say_what_is_cut(&file, arguments, trace.arrivals.iter().filter_map(|arrival| arrival.lengths))?;
    Ok(vec![(None, Arrivals::Trace(trace.arrivals))])
}

/// One trace may be played with many workloads, so what one has no use for is no mistake; but who plays it should know.
fn say_what_is_not_used(file: &str, trace: &Trace, workload: &Workload) -> anyhow::Result<()> {
    let (name, reads) = (workload.name(), workload.reads_lengths());
    let given = [("length", trace.length_line, reads.source), ("target length", trace.target_line, reads.target)];
    for (field, line, _) in given.into_iter().filter(|(_, _, used)| !used) {
        if let Some(line) = line {
            writeln!(stderr(), "note: {file}: line {line}: {field}: the workload {name} ignores it, here and below")?;
        }
    }
    Ok(())
}

/// Decoding is bounded though nobody asked for it; who has longer outputs should know.
fn say_what_is_cut(file: &str, arguments: &SimulateArguments, pairs: impl Iterator<Item = (u32, u32)>) -> anyhow::Result<()> {
    if arguments.workload == WorkloadKind::Seq2seq && !arguments.decode_known && arguments.decode_bound.is_none() {
        let cut = pairs.filter(|(source, target)| *target > source.saturating_add(DECODE_BOUND)).count();
        if cut > 0 {
            writeln!(
                stderr(),
                "note: {file}: {cut} outputs are cut {DECODE_BOUND} steps beyond their input's length; --decode-bound allows longer ones"
            )?;
        }
    }
    Ok(())
}

fn workload(arguments: &SimulateArguments) -> anyhow::Result<Workload> {
    let trees = arguments.workload == WorkloadKind::Trees;
    let seq2seq = arguments.workload == WorkloadKind::Seq2seq;
    let has_lengths = arguments.fixed_length.is_some() || arguments.length_max.is_some();
    let rules = [
        (trees || arguments.leaves.is_none(), "--leaves is for the workload trees"),
        (!trees || !has_lengths, "the workload trees has --leaves instead of lengths"),
        (seq2seq || arguments.decode_bound.is_none(), "--decode-bound is for the workload seq2seq"),
        (seq2seq || !arguments.decode_known, "--decode-known is for the workload seq2seq"),
    ];
    for (right, problem) in rules {
        ensure_usage(right, || problem.to_owned())?;
    }
    let text = arguments.lengths.as_deref().map(|path| Ok::<_, anyhow::Error>((path.display().to_string(), read(path)?))).transpose()?;
    let list = text.as_ref().map(|(file, text)| (file.as_str(), text.as_str()));
    Ok(match arguments.workload {
        WorkloadKind::Lstm => Workload::lstm(lengths(arguments, list)?),
        WorkloadKind::Trees => Workload::trees(&match (list, arguments.leaves) {
            (Some((file, text)), _) => Trees::from_list(file, text)?,
            (None, Some(leaves)) => Trees::identical(leaves),
            (None, None) => Trees::treebank(TREES_SEED),
        }),
        WorkloadKind::Seq2seq => {
            let extra = arguments.decode_bound.unwrap_or(DECODE_BOUND);
            let decoding = if arguments.decode_known { Decoding::Known } else { Decoding::Stops { extra } };
            Workload::seq2seq(pairs(arguments, list)?, decoding)
        }
        WorkloadKind::Resnet => Workload::layers(Layers::ResNet, pairs(arguments, list)?),
        WorkloadKind::Deepspeech => Workload::layers(Layers::DeepSpeech, pairs(arguments, list)?),
        WorkloadKind::Transformer => Workload::layers(Layers::Transformer, pairs(arguments, list)?),
        WorkloadKind::Gnmt => Workload::layers(Layers::Gnmt, pairs(arguments, list)?),
    })
}

fn lengths(arguments: &SimulateArguments, list: Option<(&str, &str)>) -> anyhow::Result<Lengths> {
    let lengths = match (list, arguments.fixed_length) {
        (Some((file, text)), _) => Lengths::from_list(file, text)?,
        (None, Some(length)) => Lengths::Fixed(length),
        (None, None) => Lengths::EUROPARL,
    };
    Ok(arguments.length_max.map_or(lengths.clone(), |longest| lengths.clipped(longest)))
}

fn pairs(arguments: &SimulateArguments, list: Option<(&str, &str)>) -> anyhow::Result<Pairs> {
    let pairs = match (list, arguments.fixed_length) {
        (Some((file, text)), _) => {
            let listed = Pairs::from_list(file, text)?;
            if let Pairs::Listed(pairs) = &listed {
                say_what_is_cut(file, arguments, pairs.iter().copied())?;
            }
            listed
        }
        (None, Some(length)) => Pairs::equal(Lengths::Fixed(length)),
        (None, None) => Pairs::EUROPARL,
    };
    Ok(arguments.length_max.map_or(pairs.clone(), |longest| pairs.clipped(longest)))
}

fn read(path: &Path) -> anyhow::Result<String> {
    let bytes = fs::metadata(path).with_context(|| format!("{} cannot be read", path.display()))?.len();
    ensure!(bytes <= FILE_BYTES_MAX, "{} has {bytes} bytes, more than the limit of {FILE_BYTES_MAX}", path.display());
    fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("{} cannot be written", file.display()))
}

fn picture(runs: &[Run]) -> Result<String, String> {
    let mut lines: Vec<Line> = Vec::new();
    for run in runs {
        if lines.last().is_none_or(|line| line.name != run.policy) {
            lines.push(Line { name: run.policy.clone(), ..Line::default() });
        }
        if let Some(line) = lines.last_mut() {
            line.points.push((run.outcome.throughput, run.outcome.p90_ms));
            line.bars.push((run.outcome.p50_ms, run.outcome.p99_ms));
        }
    }
    let title = "Latency against throughput: p90, with p50 and p99".to_owned();
    plot::draw(&Picture { title, x: "answers per second", y: "latency, ms", lines, ..Picture::default() })
}

fn print(runs: &[Run]) -> anyhow::Result<()> {
    let head = [
        "policy",
        "rate",
        "answers/s",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "waiting p99",
        "computing p90",
        "batch",
        "busy",
        "late",
        "given up",
        "open",
    ];
    let ms = |ms: f64| if ms.is_nan() { "-".to_owned() } else { format!("{ms:.2}") };
    let rows = runs.iter().map(|run| {
        let outcome = &run.outcome;
        vec![
            run.policy.clone(),
            match (run.rate, run.clients) {
                (Some(rate), _) => rate.to_string(),
                (None, Some(clients)) => format!("{clients} clients"),
                (None, None) => "trace".to_owned(),
            },
            format!("{:.0}", outcome.throughput),
            ms(outcome.p50_ms),
            ms(outcome.p90_ms),
            ms(outcome.p99_ms),
            ms(outcome.queueing.p99_ms),
            ms(outcome.computation.p90_ms),
            format!("{:.1}", outcome.mean_batch),
            format!("{:.0} %", outcome.utilisation * 100.0),
            outcome.sla_violations.map_or("-".to_owned(), |late| late.to_string()),
            outcome.failed.to_string(),
            outcome.unfinished.to_string(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    write!(stdout(), "{}", table(&head, &rows))?;
    Ok(())
}

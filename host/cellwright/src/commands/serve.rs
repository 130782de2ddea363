//! `serve`: the server.

mod settings;

use std::io::{Write, stderr, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use cellwright_bundle::ArchiveLimits;
use cellwright_command::host::{self, Setup};
use cellwright_command::worker;
use cellwright_engine::options::Observer;
use cellwright_gate::{Bounds, Gate, Platform, PlatformOptions, Readiness};
use cellwright_http_api::{BindError, Limits, Server, ServerOptions, TlsFiles};
use cellwright_recording::Recorder;
use cellwright_registry::Registry;
use cellwright_scheduler::{Commands, Config, Event, Time};
use rustix::process::{Pid, Signal, getppid};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::ServeArguments;
use crate::telemetry::{self, Traces};

pub(crate) use settings::{Setting, Settings, data_folder};

/// The longest time limit: a year, which can be added to any `Instant` without overflow.
const SECONDS_MAX: u64 = 365 * 24 * 60 * 60;
/// Signals within this time count as one: `timeout`, or a wrapper that passes Ctrl-C on, signals both the process and its group.
const ASKED_ONCE: Duration = Duration::from_millis(500);

pub(crate) fn serve(settings: &Settings, arguments: &ServeArguments, log: &str) -> anyhow::Result<ExitCode> {
    if arguments.print_config {
        stdout().write_all(settings.to_text()?.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let traces = start_telemetry(settings, log)?;
    let temporary = arguments.temporary.as_deref().map(Temporary::new);
    let started = Instant::now();
    let platform = start(settings)?;
    let runtime = host::connections()?;
    let finished = runtime.block_on(async {
        // Before it says that it is there: whoever reads that may ask it to stop at once.
        let stop_asked = stop_asked(temporary.is_some(), settings.drain_delay.value)?;
        let bound = Server::bind(server_options(settings), Gate::new(platform.clone(), bounds(settings))?).await;
        let server = bound.inspect_err(|_| forget_recording(settings)).map_err(|fault| refused(fault, settings))?;
        announce(&server, settings);
        let watch = tokio::task::spawn_blocking({
            let platform = platform.clone();
            move || say_when_ready(&platform, started)
        });
        let finished = server.serve(stop_asked).await;
        watch.abort();
        anyhow::Ok(finished)
    })?;
    runtime.shutdown_background();
    if let Some(traces) = traces {
        traces.finish();
    }
    if finished {
        tracing::info!("all running calls are finished");
        Ok(ExitCode::SUCCESS)
    } else {
        say(&format!("error: stopped after {} s with calls that have no answer", settings.drain_seconds.value));
        Ok(ExitCode::FAILURE)
    }
}

/// Why it does not listen, and what to do about it with these settings.
fn refused(fault: BindError, settings: &Settings) -> anyhow::Error {
    match fault {
        BindError::NoKeys(address) => anyhow::anyhow!(
            "no key exists, so anyone who reaches {address} could do everything: create one with `cellwright keys create --admin --data {}`, or listen on 127.0.0.1",
            settings.data.value.display()
        ),
        fault => fault.into(),
    }
}

/// Starts logs, and traces if a collector is named.
fn start_telemetry(settings: &Settings, log: &str) -> anyhow::Result<Option<Traces>> {
    let collector = settings.otlp_endpoint.value.as_ref().map(|collector| (collector, scheme(settings)));
    telemetry::start(log, settings.log_format.value, collector)
}

fn scheme(settings: &Settings) -> &'static str {
    if settings.tls_certificate.value.is_some() { "https" } else { "http" }
}

/// The platform that those settings describe, with its models on their way into service.
pub(crate) fn start(settings: &Settings) -> anyhow::Result<Arc<Platform>> {
    let data = &settings.data.value;
    let backends = worker::backends(&settings.workers.value)?;
    let registry = Registry::open(data).with_context(|| format!("the data folder {} cannot be used", data.display()))?;
    let scheduler = host::scheduler(settings.policy.value, settings.release.value);
    let setup = Setup {
        scheduler,
        in_flight_max: settings.in_flight_max.value,
        plugin_address_bytes: settings.plugin_address_bytes.value,
        request_time_max: Some(seconds(&settings.request_seconds_max)),
        observer: settings.record.value.as_deref().map(|file| recorder(file, &scheduler)).transpose()?,
        ..Setup::default()
    };
    let options = PlatformOptions {
        archive: ArchiveLimits { bytes_max: settings.upload_bytes_max.value, ..ArchiveLimits::default() },
        ..PlatformOptions::new(host::serving_options(setup, Some(data.join("cache")))?)
    };
    say(&format!("computing on {}", worker::alike(backends.iter().map(|backend| backend.info().name)).join("; ")));
    Ok(Platform::start(options, registry, backends)?)
}

/// The engine's observer that records.
struct Recording(Recorder);

impl Observer for Recording {
    fn told(&mut self, now: Time, events: &[Event], ended: &[Time]) {
        self.0.told(now, events, ended);
    }

    fn decided(&mut self, commands: &Commands) {
        self.0.decided(commands);
    }
}

fn recorder(file: &Path, scheduler: &Config) -> anyhow::Result<Box<dyn Observer>> {
    let recorder = Recorder::create(file, scheduler).context("cannot create the recording")?;
    Ok(Box::new(Recording(recorder)))
}

/// Removes the recording of a server that never listened: it is empty, and would be in the way of the next one.
fn forget_recording(settings: &Settings) {
    if let Some(file) = &settings.record.value {
        let _ = std::fs::remove_file(file);
    }
}

/// Bounds of the front door, from the settings.
pub(crate) fn bounds(settings: &Settings) -> Bounds {
    let (body_bytes_max, upload_bytes_max) = (settings.body_bytes_max.value, settings.upload_bytes_max.value);
    Bounds { body_bytes_max, upload_bytes_max, ..Bounds::default() }
}

fn seconds(setting: &Setting<u64>) -> Duration {
    Duration::from_secs(setting.value.min(SECONDS_MAX))
}

/// Where and how to listen.
pub(crate) fn server_options(settings: &Settings) -> ServerOptions {
    let tls = match (&settings.tls_certificate.value, &settings.tls_key.value) {
        (Some(certificate), Some(key)) => Some(TlsFiles { certificate: certificate.clone(), key: key.clone() }),
        _ => None,
    };
    let limits = Limits {
        connections_max: settings.connections_max.value,
        address_connections_max: match settings.address_connections_max.value {
            0 => usize::MAX,
            max => max,
        },
        idle_timeout: seconds(&settings.idle_seconds),
        header_timeout: seconds(&settings.header_seconds),
        body_grace: seconds(&settings.body_seconds),
        write_timeout: seconds(&settings.write_seconds),
        drain_delay: seconds(&settings.drain_delay),
        drain: seconds(&settings.drain_seconds),
        ..Limits::default()
    };
    let addresses = settings.listen.value.iter().map(|address| address.0).collect();
    ServerOptions { addresses, health: settings.health.value.map(|address| address.0), tls, limits }
}

/// Writes a line to standard error. A closed pipe or a full disk must not stop the server.
fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

fn announce(server: &Server, settings: &Settings) {
    let scheme = scheme(settings);
    for address in server.addresses() {
        say(&format!("listening on {scheme}://{address} (documentation: {scheme}://{address}/docs)"));
    }
    if let Some(address) = server.health_address() {
        say(&format!("listening for health probes on http://{address}"));
    }
}

fn say_when_ready(platform: &Platform, started: Instant) {
    while let Readiness::Starting { .. } = platform.readiness() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let serving = platform.index(None).iter().filter(|(_, model)| model.version.is_some()).count();
    say(&format!("ready after {} ms, {serving} models serve", started.elapsed().as_millis()));
}

/// Ends at the next SIGTERM or SIGINT, and when the processor time of `ulimit -t` is used up; with `with_input`, also when standard input ends. A
/// later SIGTERM or SIGINT stops the process at once.
fn stop_asked(with_input: bool, delay: u64) -> anyhow::Result<impl Future<Output = ()>> {
    let listen = |kind| signal(kind).context("cannot listen for signals");
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    // It comes each second from then on, until the hard limit kills.
    let mut no_time = listen(SignalKind::from_raw(Signal::XCPU.as_raw()))?;
    Ok(async move {
        let why = tokio::select! {
            _ = terminate.recv() => "",
            _ = interrupt.recv() => "",
            _ = no_time.recv() => " because the processor time of `ulimit -t` is used up",
            () = input_ended(), if with_input => "",
        };
        let serving = if delay > 0 { format!("not ready, and serving for another {delay} s; then ") } else { String::new() };
        say(&format!(
            "stopping{why}: {serving}no connections are taken, running calls are finished; a second signal stops the server at once"
        ));
        let asked = Instant::now();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                if asked.elapsed() >= ASKED_ONCE {
                    break;
                }
            }
            say("error: stopped at once by a second signal: unfinished calls have no answer");
            std::process::exit(1);
        });
    })
}

/// Ends when standard input does, which is when the process that holds its other end exits. A detached thread reads it.
async fn input_ended() {
    let (ended, told) = tokio::sync::oneshot::channel();
    let read = move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = ended.send(());
    };
    match std::thread::Builder::new().name("input".to_owned()).spawn(read) {
        Ok(_) => _ = told.await,
        Err(_) => std::future::pending().await,
    }
}

/// A folder that the server removes at its end if the parent process, which made the folder, is gone.
struct Temporary<'a> {
    folder: &'a Path,
    parent: Option<Pid>,
}

impl<'a> Temporary<'a> {
    fn new(folder: &'a Path) -> Self {
        Self { folder, parent: getppid() }
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if getppid() != self.parent {
            let _ = std::fs::remove_dir_all(self.folder);
        }
    }
}

//! `serve`: the server.

mod settings;

use std::io::{Write, stderr, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use cellwright_bundle::ArchiveLimits;
use cellwright_engine::options::Observer;
use cellwright_http_api::{BindError, Limits, Server, ServerOptions, TlsFiles};
use cellwright_registry::Registry;
use cellwright_scheduler::{Commands, Config, Event, Time};
use cellwright_serving::{Platform, PlatformOptions, Readiness};
use cellwright_simulator::Recorder;
use rustix::process::{Pid, getppid};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::ServeArguments;
use crate::host::{self, Setup};
use crate::telemetry::{self, Traces};
use crate::worker;

pub(crate) use settings::{Settings, data_folder};

/// No stopping server waits for longer: a year, which a clock can still add to any moment.
const DRAIN_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// What asks a process and its group to stop (`timeout`, Ctrl-C behind a wrapper that passes it on) asks the process twice, within a moment. That is once.
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
        let stop_asked = stop_asked(temporary.is_some())?;
        let bound = Server::bind(server_options(settings), cellwright_http_api::host_of(platform.clone())).await;
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
        tracing::info!("everything that was begun is finished");
        Ok(ExitCode::SUCCESS)
    } else {
        say(&format!("error: stopped with requests unanswered, after {} s", settings.drain_seconds.value));
        Ok(ExitCode::FAILURE)
    }
}

/// Why it does not listen, and what to do about it with these settings.
fn refused(fault: BindError, settings: &Settings) -> anyhow::Error {
    match fault {
        BindError::NoKeys(address) => anyhow::anyhow!(
            "no key exists, so everyone who reaches {address} could do everything: create one with `cellwright keys create --admin --data {}`, or listen on 127.0.0.1",
            settings.data.value.display()
        ),
        fault => fault.into(),
    }
}

/// Logs, and traces where they are wanted.
fn start_telemetry(settings: &Settings, log: &str) -> anyhow::Result<Option<Traces>> {
    let format = settings.log_format.value;
    let Some(collector) = &settings.otlp_endpoint.value else { return telemetry::start(log, format).map(|()| None) };
    telemetry::start_with_traces(log, format, (collector, scheme(settings))).map(Some)
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
        observer: settings.record.value.as_deref().map(|file| recorder(file, &scheduler)).transpose()?,
        ..Setup::default()
    };
    let options = PlatformOptions {
        serving: host::serving_options(setup, Some(data.join("cache")))?,
        archive: ArchiveLimits { bytes_max: settings.upload_bytes_max.value, ..ArchiveLimits::default() },
        model_in_flight_max: settings.in_flight_max.value,
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
    let recorder = Recorder::create(file, scheduler).context("nothing can be recorded")?;
    Ok(Box::new(Recording(recorder)))
}

/// Of a server that never listened there is nothing to be kept, nor in the way of the next.
fn forget_recording(settings: &Settings) {
    if let Some(file) = &settings.record.value {
        let _ = std::fs::remove_file(file);
    }
}

/// Where and how to listen.
pub(crate) fn server_options(settings: &Settings) -> ServerOptions {
    let tls = match (&settings.tls_certificate.value, &settings.tls_key.value) {
        (Some(certificate), Some(key)) => Some(TlsFiles { certificate: certificate.clone(), key: key.clone() }),
        _ => None,
    };
    let limits = Limits {
        connections_max: settings.connections_max.value,
        body_bytes_max: settings.body_bytes_max.value,
        upload_bytes_max: settings.upload_bytes_max.value,
        drain: Duration::from_secs(settings.drain_seconds.value).min(DRAIN_MAX),
        ..Limits::default()
    };
    ServerOptions { addresses: settings.listen.value.iter().map(|address| address.0).collect(), tls, limits }
}

/// For whoever reads along. That nobody does, or that a disk for it is full, ends no server.
fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

fn announce(server: &Server, settings: &Settings) {
    let scheme = scheme(settings);
    for address in server.addresses() {
        say(&format!("listening on {scheme}://{address} (documentation: {scheme}://{address}/docs)"));
    }
}

fn say_when_ready(platform: &Platform, started: Instant) {
    while let Readiness::Starting { .. } = platform.readiness() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let serving = platform.index(None).iter().filter(|model| model.version.is_some()).count();
    say(&format!("ready after {} ms, {serving} models serve", started.elapsed().as_millis()));
}

/// Ends when the process is asked to, from now on: by a service manager, by Ctrl-C, or, of a server that is somebody's own, when there is nobody any more at
/// the other end of standard input. Whoever asks by a signal once more is not made to wait for what is unfinished.
fn stop_asked(with_input: bool) -> anyhow::Result<impl Future<Output = ()>> {
    let listen = |kind| signal(kind).context("the signals that ask the server to stop");
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = input_ended(), if with_input => {}
        }
        say("stopping: nothing new is taken, what has begun is finished; asked again, it stops at once");
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
            say("error: stopped at once, because it was asked again: what was not finished has no answer");
            std::process::exit(1);
        });
    })
}

/// Nothing is expected there: it ends with the process that holds it. A thread of its own, which nobody waits for, reads it.
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

/// A folder that goes with the server if whoever made it is gone, and so cannot see to it.
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

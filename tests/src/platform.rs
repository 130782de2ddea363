//! A platform in a temporary folder, and bundles as archives.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use cellwright_backend::Backend;
use cellwright_backend_cpu::{CpuDomain, DomainOptions};
use cellwright_bundle::ArchiveLimits;
use cellwright_engine::EngineOptions;
use cellwright_gate::{Call, Deployed, Error, Platform, PlatformOptions, Readiness};
use cellwright_plugin_runtime::{Compiler, RuntimeOptions};
use cellwright_protocol::{InferRequest, InferResponse};
use cellwright_registry::{ModelName, OpenError, Registry, TenantName, TenantSettings};
use cellwright_serving::{InferError, Item, ServingOptions};
use crossbeam_channel::{Receiver, bounded};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

use crate::bundle_folder::BundleFolder;
use crate::devices;

/// A platform's options with one small worker's host.
#[must_use]
pub fn options() -> PlatformOptions {
    PlatformOptions {
        archive: ArchiveLimits { bytes_max: 16 << 20, entries_max: 100 },
        // A new model counts as slow: its calls are to take their places at once all the same.
        slow_begins_max: 64,
        ..PlatformOptions::new(ServingOptions {
            runtime: RuntimeOptions::new(Compiler::InProcess),
            engine: EngineOptions { batch_max: 32, ..EngineOptions::default() },
            plugin_threads: 2,
            answers_bytes_max: None,
        })
    }
}

/// Starts a platform on that folder and waits until it is ready.
#[must_use]
pub fn start(folder: &Path) -> Arc<Platform> {
    start_with(folder, options())
}

/// The same with other options.
///
/// # Panics
/// If it does not start.
#[must_use]
pub fn start_with(folder: &Path, options: PlatformOptions) -> Arc<Platform> {
    let domain = CpuDomain::new(DomainOptions::default()).expect("memory for an arena");
    start_on(folder, options, vec![devices::worker(&domain)])
}

/// The same on other devices.
///
/// # Panics
/// If it does not start.
#[must_use]
pub fn start_on(folder: &Path, options: PlatformOptions, backends: Vec<Box<dyn Backend>>) -> Arc<Platform> {
    let platform = Platform::start(options, registry(folder), backends).expect("a platform starts");
    while platform.readiness() != Readiness::Ready {
        std::thread::yield_now();
    }
    platform
}

/// The registry in that folder, as soon as threads of the platform that had it before have let go of it.
///
/// # Panics
/// If it cannot be opened.
#[must_use]
pub fn registry(folder: &Path) -> Registry {
    loop {
        match Registry::open(folder) {
            Ok(registry) => return registry,
            Err(OpenError::InUse { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The summing model with another bias, so that its versions can be told apart by what they answer.
#[must_use]
pub fn summing(bias: f32) -> BundleFolder {
    let bundle = BundleFolder::summing();
    bundle.weights(&[("bias", &[4], &[bias; 4])]);
    bundle
}

/// A bundle's folder as a tar archive.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn archive(bundle: &BundleFolder) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_dir_all(".", bundle.path()).expect("files of a bundle");
    builder.into_inner().expect("an archive in memory")
}

/// The default tenant.
#[must_use]
pub fn tenant() -> TenantName {
    TenantName::default_tenant()
}

/// Another one, made if it is not there.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn other_tenant(platform: &Platform, name: &str) -> TenantName {
    let name = TenantName::parse(name).expect("a name");
    if platform.registry().tenant(&name).expect("a registry").is_none() {
        platform.create_tenant(&name, &TenantSettings::default()).expect("a tenant");
    }
    name
}

/// A model's name.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn model(name: &str) -> ModelName {
    ModelName::parse(name).expect("a name")
}

/// Where a call's end comes. It is closed without one if its client has left.
pub type Ending = Receiver<Result<InferResponse, InferError>>;

/// Runs the tasks of calls: one thread, so that ends are told in the order in which they come.
fn tasks() -> &'static Runtime {
    static TASKS: OnceLock<Runtime> = OnceLock::new();
    TASKS.get_or_init(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime starts"))
}

/// Begins a call; its answer comes through the channel.
///
/// # Errors
/// If it is refused at once.
pub fn begin(platform: &Platform, deployed: &Arc<Deployed>, call: Call) -> Result<Ending, Error> {
    Ok(begin_to_leave(platform, deployed, call)?.1)
}

/// The same, with the means to leave: aborting the task is what a connection does whose client goes away.
///
/// # Errors
/// If it is refused at once.
pub fn begin_to_leave(platform: &Platform, deployed: &Arc<Deployed>, call: Call) -> Result<(AbortHandle, Ending), Error> {
    let (sender, ending) = bounded(1);
    let leaver = begin_then(platform, deployed, call, move |result| drop(sender.send(result)))?;
    Ok((leaver, ending))
}

/// The same, of which the end is told to `then`.
///
/// # Errors
/// If it is refused at once.
pub fn begin_then(
    platform: &Platform,
    deployed: &Arc<Deployed>,
    call: Call,
    then: impl FnOnce(Result<InferResponse, InferError>) + Send + 'static,
) -> Result<AbortHandle, Error> {
    let _entered = tasks().enter();
    let (calls, deployed) = (platform.calls().clone(), deployed.clone());
    let mut calling = Box::pin(async move { calls.call(&deployed, call).await });
    // It has come when this returns: it has its place, or its position in the queue.
    let answer = match calling.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Err(refused)) => return Err(refused),
        Poll::Ready(Ok(answer)) => Some(answer),
        Poll::Pending => None,
    };
    let task = tasks().spawn(async move {
        let answer = match answer {
            Some(answer) => answer,
            None => match calling.await {
                Ok(answer) => answer,
                Err(Error::Infer(error)) => return then(Err(error)),
                Err(error) => panic!("a call that waited was refused: {error}"),
            },
        };
        while let Some(item) = answer.next().await {
            if let Item::End(result, _) = item {
                return then(result);
            }
        }
    });
    Ok(task.abort_handle())
}

/// Finds the model, calls it and waits for the answer.
///
/// # Errors
/// The sentence that a client would read.
pub fn infer(platform: &Platform, tenant: &TenantName, name: &str, request: InferRequest) -> Result<InferResponse, String> {
    let deployed = platform.find(tenant, name, None).map_err(|error| error.to_string())?;
    let ending = begin(platform, &deployed, Call::new(request)).map_err(|error| error.to_string())?;
    ending.recv().expect("every call is answered").map_err(|error| error.to_string())
}

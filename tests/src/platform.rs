//! A platform in a temporary folder, and bundles as archives.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use cellwright_backend::Backend;
use cellwright_backend_cpu::{CpuDomain, DomainOptions};
use cellwright_bundle::ArchiveLimits;
use cellwright_engine::EngineOptions;
use cellwright_plugin_runtime::{Compiler, RuntimeOptions};
use cellwright_protocol::{InferRequest, InferResponse};
use cellwright_registry::{ModelName, OpenError, Registry, TenantName, TenantSettings};
use cellwright_serving::{Call, Client, Delivery, Deployed, InferError, Platform, PlatformOptions, Readiness, Running, ServingOptions};
use crossbeam_channel::{Receiver, bounded};

use crate::bundle_folder::BundleFolder;
use crate::devices;

/// A platform's options with one small worker's host.
#[must_use]
pub fn options() -> PlatformOptions {
    PlatformOptions {
        serving: ServingOptions {
            runtime: RuntimeOptions::new(Compiler::InProcess),
            engine: EngineOptions { batch_max: 32, ..EngineOptions::default() },
            plugin_threads: 2,
            answers_bytes_max: None,
        },
        archive: ArchiveLimits { bytes_max: 16 << 20, entries_max: 100 },
        model_in_flight_max: 1 << 14,
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
        platform.registry().create_tenant(&name, &TenantSettings::default()).expect("a tenant");
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

/// A call as most are.
#[must_use]
pub fn call(request: InferRequest) -> Call {
    Call { request, delivery: Delivery::Whole, since: Instant::now(), timeout: None, priority: 0 }
}

struct Waiting(crossbeam_channel::Sender<Result<InferResponse, InferError>>);

impl Client for Waiting {
    fn part(&mut self, _: cellwright_cell_graph::Tensor) {}

    fn end(self: Box<Self>, result: Result<InferResponse, InferError>) {
        let _ = self.0.send(result);
    }
}

/// Where a call's end comes.
pub type Answer = Receiver<Result<InferResponse, InferError>>;

/// Begins a call; its answer comes through the channel.
///
/// # Errors
/// If it is refused.
pub fn begin(platform: &Platform, deployed: &Arc<Deployed>, call: Call) -> Result<Answer, InferError> {
    Ok(begin_to_leave(platform, deployed, call)?.1)
}

/// The same, with the means to leave.
///
/// # Errors
/// If it is refused.
pub fn begin_to_leave(platform: &Platform, deployed: &Arc<Deployed>, call: Call) -> Result<(Running, Answer), InferError> {
    let (sender, answer) = bounded(1);
    Ok((platform.infer(deployed, call, Box::new(Waiting(sender)))?, answer))
}

/// Finds the model, calls it and waits for the answer.
///
/// # Errors
/// The sentence that a client would read.
pub fn infer(platform: &Platform, tenant: &TenantName, name: &str, request: InferRequest) -> Result<InferResponse, String> {
    let deployed = platform.find(tenant, name, None).map_err(|error| error.to_string())?;
    let answer = begin(platform, &deployed, call(request)).map_err(|error| error.to_string())?;
    answer.recv().expect("every call is answered").map_err(|error| error.to_string())
}

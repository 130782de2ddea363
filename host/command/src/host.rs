//! Starts a host from the command line's options.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use cellwright_backend::machine;
use cellwright_bundle::Bundle;
use cellwright_engine::options::{Observer, TraceFn};
use cellwright_engine::{EngineOptions, SLICE_NS};
use cellwright_plugin_runtime::{ChildCompiler, Compiler, Export, RuntimeError, RuntimeOptions};
use cellwright_scheduler::{Config, Release};
use cellwright_serving::{ServedModel, Serving, ServingOptions, StartError};
use tokio::runtime::Runtime;

use crate::options::{HostArguments, ReleaseRule};
use crate::policy::PolicySpec;
use crate::worker;

/// The tenant of models that a command runs in its own process.
pub const TENANT: &str = "local";
/// Threads on which plugins are called back.
const PLUGIN_THREADS: usize = 2;

/// What a verb needs from its host besides the options.
pub struct Setup {
    /// The scheduler's configuration.
    pub scheduler: Config,
    /// Requests in flight at once.
    pub in_flight_max: u32,
    /// Called for each task.
    pub trace: Option<TraceFn>,
    /// How long a request may take; none: no bound.
    pub request_time_max: Option<Duration>,
    /// Sees each call of the scheduler.
    pub observer: Option<Box<dyn Observer>>,
    /// Whether to measure batch sizes again, even if the cache has them.
    pub recalibrate: bool,
    /// Address space for plugins (see [`RuntimeOptions`]).
    pub plugin_address_bytes: Option<u64>,
    /// Hears what plugins note (see [`RuntimeOptions`]); none: the log does.
    pub on_note: Option<fn(Export, &str)>,
}

/// Address space for the plugins of a command that runs one bundle: as many instances as a server has, with as much memory.
pub const PLUGIN_ADDRESS_BYTES: u64 = 280 << 30;

impl Default for Setup {
    fn default() -> Self {
        let EngineOptions { scheduler, in_flight_max, .. } = EngineOptions::default();
        Self {
            scheduler,
            in_flight_max,
            request_time_max: None,
            trace: None,
            observer: None,
            recalibrate: false,
            plugin_address_bytes: None,
            on_note: None,
        }
    }
}

impl From<ReleaseRule> for Release {
    fn from(rule: ReleaseRule) -> Self {
        match rule {
            ReleaseRule::Node => Self::Node,
            ReleaseRule::Subgraph => Self::Subgraph,
        }
    }
}

/// The scheduler's configuration under that policy and rule.
#[must_use]
pub fn scheduler(policy: PolicySpec, release: ReleaseRule) -> Config {
    Config { policy: policy.0, release: release.into(), slice_ns: SLICE_NS, ..Config::default() }
}

impl HostArguments {
    /// Starts a host with these workers.
    ///
    /// # Errors
    /// If a worker or the cache cannot be used.
    pub fn start(&self, setup: Setup) -> anyhow::Result<Serving> {
        let options = serving_options(setup, self.cache_dir())?;
        Serving::start(options, worker::backends(&self.workers)?).map_err(|error| match error {
            StartError::Runtime(RuntimeError::Cache { .. }) => {
                anyhow!("{error}; give another folder with `--cache FOLDER`, or turn the cache off with `--cache none`")
            }
            error => error.into(),
        })
    }

    /// The cache folder; none: nothing is kept.
    #[must_use]
    pub fn cache_dir(&self) -> Option<PathBuf> {
        match &self.cache {
            Some(none) if none.as_os_str() == "none" => None,
            Some(folder) => Some(folder.clone()),
            None => default_cache(),
        }
    }
}

/// A host's configuration, with its caches in that folder.
///
/// # Errors
/// If this program cannot find itself: it compiles plugins in a child process of its own.
pub fn serving_options(setup: Setup, cache: Option<PathBuf>) -> anyhow::Result<ServingOptions> {
    // Itself, also where another version was put in its place on the disk since it was started.
    let program = if cfg!(target_os = "linux") {
        PathBuf::from("/proc/self/exe")
    } else {
        std::env::current_exe().context("cannot find the path of this program, which compiles plugins in a child process")?
    };
    let compiler = Compiler::Child(ChildCompiler::new(program, vec!["compile-plugin".to_owned()]));
    let runtime = RuntimeOptions::new(compiler);
    Ok(ServingOptions {
        engine: EngineOptions {
            scheduler: setup.scheduler,
            in_flight_max: setup.in_flight_max,
            calibration_folder: cache.as_ref().map(|folder| folder.join("calibration")),
            request_time_max: setup.request_time_max,
            trace: setup.trace,
            observer: setup.observer,
            recalibrate: setup.recalibrate,
            ..EngineOptions::default()
        },
        runtime: RuntimeOptions {
            cache_dir: cache,
            // Beside answers, weights and the workers' own memory.
            idle_bytes_max: machine::memory_bytes() / 16,
            address_bytes_max: setup.plugin_address_bytes,
            on_long_call: cellwright_gate::let_others_go_on,
            on_note: setup.on_note.unwrap_or(runtime.on_note),
            ..runtime
        },
        plugin_threads: PLUGIN_THREADS,
        answers_bytes_max: None,
    })
}

/// The user's cache folder (XDG base directory specification).
#[must_use]
pub fn default_cache() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("cellwright"))
}

/// The threads that serve connections: one for each processor, but a single one where there are only
/// two processors, because workers keep both busy. Two threads there would wake each other and compete
/// with the workers. Long work leaves a connection's thread anyway.
///
/// # Errors
/// If the threads cannot be started.
pub fn connections() -> anyhow::Result<Runtime> {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() <= 2) {
        threads.worker_threads(1);
    }
    threads.enable_all().build().context("cannot start the threads that serve connections")
}

/// Reads a bundle.
///
/// # Errors
/// If it is not a bundle, or contradicts itself.
pub fn open(folder: &Path) -> anyhow::Result<Bundle> {
    Bundle::open(folder).with_context(|| format!("the bundle {} cannot be used", folder.display()))
}

/// Loads a bundle that has been read.
///
/// # Errors
/// If the model cannot be loaded.
pub fn load_bundle(serving: &Serving, bundle: &Bundle) -> anyhow::Result<Arc<ServedModel>> {
    serving.load(bundle, TENANT).with_context(|| format!("the model `{}` cannot be loaded", bundle.name()))
}

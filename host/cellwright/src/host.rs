//! Starts a host from the command line's options.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use cellwright_backend::machine;
use cellwright_bundle::Bundle;
use cellwright_engine::EngineOptions;
use cellwright_engine::options::{Observer, TraceFn};
use cellwright_plugin_runtime::{ChildCompiler, Compiler, RuntimeError, RuntimeOptions};
use cellwright_scheduler::{Config, Release};
use cellwright_serving::{ServedModel, Serving, ServingOptions, StartError};
use tokio::runtime::Runtime;

use crate::cli::{HostArguments, ReleaseRule};
use crate::policy::PolicySpec;
use crate::worker;

/// Whose models the command line's are.
pub(crate) const TENANT: &str = "local";
/// Threads on which plugins are called back.
const PLUGIN_THREADS: usize = 2;

/// What a verb asks of its host beyond the options.
pub(crate) struct Setup {
    pub(crate) scheduler: Config,
    pub(crate) in_flight_max: u32,
    pub(crate) trace: Option<TraceFn>,
    pub(crate) observer: Option<Box<dyn Observer>>,
    /// Batch sizes are measured again, whatever is known of them.
    pub(crate) recalibrate: bool,
}

impl Default for Setup {
    fn default() -> Self {
        let EngineOptions { scheduler, in_flight_max, .. } = EngineOptions::default();
        Self { scheduler, in_flight_max, trace: None, observer: None, recalibrate: false }
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
pub(crate) fn scheduler(policy: PolicySpec, release: ReleaseRule) -> Config {
    Config { policy: policy.0, release: release.into(), ..Config::default() }
}

impl HostArguments {
    /// A host with these workers.
    pub(crate) fn start(&self, setup: Setup) -> anyhow::Result<Serving> {
        let options = serving_options(setup, self.cache_dir())?;
        Serving::start(options, worker::backends(&self.workers)?).map_err(|error| match error {
            StartError::Runtime(RuntimeError::Cache { .. }) => {
                anyhow!("{error}; `--cache FOLDER` names another, `--cache none` does without")
            }
            error => error.into(),
        })
    }

    pub(crate) fn cache_dir(&self) -> Option<PathBuf> {
        match &self.cache {
            Some(none) if none.as_os_str() == "none" => None,
            Some(folder) => Some(folder.clone()),
            None => default_cache(),
        }
    }
}

/// A host's configuration, with its caches in that folder.
pub(crate) fn serving_options(setup: Setup, cache: Option<PathBuf>) -> anyhow::Result<ServingOptions> {
    // Itself, also where another version was put in its place on the disk since it was started.
    let program = if cfg!(target_os = "linux") {
        PathBuf::from("/proc/self/exe")
    } else {
        std::env::current_exe().context("the path of this program, which compiles plugins in a process of its own")?
    };
    let compiler = Compiler::Child(ChildCompiler::new(program, vec!["compile-plugin".to_owned()]));
    Ok(ServingOptions {
        engine: EngineOptions {
            scheduler: setup.scheduler,
            in_flight_max: setup.in_flight_max,
            calibration_folder: cache.as_ref().map(|folder| folder.join("calibration")),
            trace: setup.trace,
            observer: setup.observer,
            recalibrate: setup.recalibrate,
            ..EngineOptions::default()
        },
        runtime: RuntimeOptions {
            cache_dir: cache,
            // Beside answers, weights and the workers' own memory.
            idle_bytes_max: machine::memory_bytes() / 16,
            on_long_call: cellwright_http_api::let_others_go_on,
            ..RuntimeOptions::new(compiler)
        },
        plugin_threads: PLUGIN_THREADS,
        answers_bytes_max: None,
    })
}

/// The user's cache folder as the XDG base directory specification has it.
pub(crate) fn default_cache() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("cellwright"))
}

/// The threads that serve connections: one for each processor, but no second one where there are only two, which workers keep busy. Two would wake each other
/// and take turns with the workers for it; and what takes long leaves a connection's thread anyway.
pub(crate) fn connections() -> anyhow::Result<Runtime> {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() <= 2) {
        threads.worker_threads(1);
    }
    threads.enable_all().build().context("the threads that serve connections")
}

/// Reads a bundle.
pub(crate) fn open(folder: &Path) -> anyhow::Result<Bundle> {
    Bundle::open(folder).with_context(|| format!("the bundle {} cannot be used", folder.display()))
}

/// Loads a bundle that has been read.
pub(crate) fn load_bundle(serving: &Serving, bundle: &Bundle) -> anyhow::Result<Arc<ServedModel>> {
    serving.load(bundle, TENANT).with_context(|| format!("the model `{}` cannot be loaded", bundle.name()))
}

//! The runtime: one engine for all plugins, the way from uploaded bytes to a plugin, and the bounds on both.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cellwright_fair_turns::FairTurns;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::cache::{Cache, ContentName};
use crate::compiler::Compiler;
use crate::engine::{self, PoolSize, Reservation, Running};
use crate::error::{CompileError, Defect, Export, RuntimeError};
use crate::fault::StackBytes;
use crate::limits::Limits;
use crate::plugin::{Plugin, Surroundings};
use crate::warm::{Warmth, WarmthBounds};
use crate::{abi, instance, plugin, sentence};

/// How a runtime is set up. [`RuntimeOptions::new`] gives values that fit one machine.
#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    /// Where compiled plugins are kept; nowhere if none.
    pub cache_dir: Option<PathBuf>,
    /// Bytes the cache may have.
    pub cache_bytes_max: u64,
    /// What calls may use at most. Where there is too little address space, a model's memory is no larger than by default.
    pub limits: Limits,
    /// Stack of a guest. Threads that call plugins need this and some 256 KiB more.
    pub stack_bytes: usize,
    /// Where plugins are compiled.
    pub compiler: Compiler,
    /// How many compilations run at once, each of another tenant.
    pub compilations_max: usize,
    /// Bytes of an uploaded plugin.
    pub module_bytes_max: usize,
    /// Bytes of a compiled plugin.
    pub artifact_bytes_max: usize,
    /// Instances that exist at once, idle or called; fewer where there is too little address space for their memories.
    pub instances_max: u32,
    /// Bytes of address space to reserve for their memories. If none, that is what makes plugins fastest (8 GiB for each instance), or half of what
    /// the process may have (`ulimit -v`).
    pub address_bytes_max: Option<u64>,
    /// Idle instances that one model keeps.
    pub idle_per_model_max: usize,
    /// Bytes of memory of all instances that are idle.
    pub idle_bytes_max: u64,
    /// Run by the thread of a call that has been running for two to four milliseconds, and again every ten or so: somebody else may then do what that thread would do next.
    pub on_long_call: fn(),
    /// Hears what a plugin notes in a call that succeeds. What it notes in others is in their errors.
    pub on_note: fn(Export, &str),
}

impl RuntimeOptions {
    /// The usual settings, without a cache.
    #[must_use]
    pub fn new(compiler: Compiler) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            cache_dir: None,
            cache_bytes_max: 4 << 30,
            limits: Limits::of_server(),
            stack_bytes: 512 << 10,
            compiler,
            compilations_max: 2,
            module_bytes_max: 64 << 20,
            artifact_bytes_max: 512 << 20,
            instances_max: 256,
            address_bytes_max: None,
            idle_per_model_max: cores.saturating_mul(2),
            idle_bytes_max: 1 << 30,
            on_long_call: || (),
            on_note: |export, note| tracing::debug!(%export, note, "a plugin noted"),
        }
    }
}

/// By content and by name.
type Known = BTreeMap<([u8; 32], String), Weak<plugin::Shared>>;

/// Compiles plugins and holds what they run in. One per process is enough; it ends when the last plugin of it is dropped.
pub struct Runtime {
    surroundings: Arc<Surroundings>,
    compiler: Compiler,
    turns: FairTurns,
    reservation: Reservation,
    cache: Option<Cache>,
    /// Plugins that somebody has.
    known: Mutex<Known>,
    compatibility: [u8; 32],
    module_bytes_max: usize,
    artifact_bytes_max: usize,
}

impl Runtime {
    /// Starts the engine and opens the cache.
    ///
    /// # Errors
    ///
    /// The engine finds no address space for its pool, or the cache's folder cannot be used.
    pub fn new(options: RuntimeOptions) -> Result<Self, RuntimeError> {
        let stack = StackBytes(options.stack_bytes);
        let size = PoolSize { instances: options.instances_max, stack_bytes: stack.0, address_bytes_max: options.address_bytes_max };
        options.compiler.log_confinement();
        let Running { engine, pool } = engine::for_running(&options.limits, &size)?;
        let clock = engine::start_clock(&engine)?;
        let memory_bytes = options.limits.memory_bytes.min(usize::try_from(pool.reservation.0).unwrap_or(usize::MAX));
        let limits = Limits { memory_bytes, ..options.limits };
        let open = |folder: &PathBuf| {
            Cache::open(folder, options.artifact_bytes_max, options.cache_bytes_max)
                .map_err(|source| RuntimeError::Cache { folder: folder.display().to_string(), source })
        };
        let cache = options.cache_dir.as_ref().map(open).transpose()?;
        let linker = instance::linker(&engine).map_err(|error| RuntimeError::Engine(sentence::of_chain(&error)))?;
        // Half of the pool at most is idle, so that calls of other models find room without pushing anyone out.
        let total = usize::try_from(pool.instances / 2).unwrap_or(usize::MAX);
        let idle = WarmthBounds { per_model: options.idle_per_model_max, total, bytes: options.idle_bytes_max };
        let warmth = Arc::new(Warmth::new(idle));
        let compatibility = engine::compatibility(&engine);
        let RuntimeOptions { on_long_call, on_note, .. } = options;
        let surroundings = Arc::new(Surroundings { engine, clock, linker, limits, stack, warmth, on_long_call, on_note });
        Ok(Self {
            surroundings,
            compiler: options.compiler,
            turns: FairTurns::new(options.compilations_max.max(1)),
            reservation: pool.reservation,
            cache,
            known: Mutex::default(),
            compatibility,
            module_bytes_max: options.module_bytes_max,
            artifact_bytes_max: options.artifact_bytes_max,
        })
    }

    /// A plugin from a component or a core module. Blocks while it is compiled, and while others are. What was compiled for one tenant
    /// is found for no other: how long this takes must not tell what others have.
    ///
    /// # Errors
    ///
    /// The bytes are no plugin of an ABI that this host serves, or compiling them took more than it may.
    pub fn compile(&self, tenant: &str, name: &str, bytes: &[u8]) -> Result<Plugin, CompileError> {
        self.compile_for((name, bytes), (tenant, 0), &|| false)
    }

    /// The same for a tenant with a number, whose plugins are compiled one after the other.
    ///
    /// # Errors
    ///
    /// As [`Runtime::compile`], and if it was cancelled before its turn came.
    pub fn compile_for(
        &self,
        (name, bytes): (&str, &[u8]),
        (tenant, number): (&str, u32),
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Plugin, CompileError> {
        if bytes.len() > self.module_bytes_max {
            return Err(CompileError::TooLarge { bytes: bytes.len(), bytes_max: self.module_bytes_max });
        }
        let content = self.content_name(tenant, bytes);
        if let Some(plugin) = self.cached(name, &content) {
            return Ok(plugin.for_tenant(number));
        }
        let mut turn = self.turns.of(number);
        turn.take(is_cancelled)?;
        // Somebody may have compiled the same bytes while this call waited for its turn.
        if let Some(plugin) = self.cached(name, &content) {
            return Ok(plugin.for_tenant(number));
        }
        let artifact = self.compiler.compile(&self.surroundings.engine, self.reservation, bytes, self.artifact_bytes_max)?;
        let plugin = self.load(name, &artifact).map_err(|defect| blame(defect, self.reservation, &artifact))?;
        if let Some(cache) = &self.cache {
            cache.store(&content, &artifact);
        }
        self.know((name, &content), &plugin);
        Ok(plugin.for_tenant(number))
    }

    /// One that somebody has, or else one in the cache.
    fn cached(&self, name: &str, content: &ContentName) -> Option<Plugin> {
        let known = self.known().get(&(*content.content.as_bytes(), name.to_owned())).and_then(Plugin::upgrade);
        if known.is_some() {
            return known;
        }
        let artifact = self.cache.as_ref()?.load(content)?;
        let loaded = self.load(name, &artifact);
        let loaded = loaded.inspect_err(|error| tracing::warn!(%error, "a compiled plugin in the cache does not load")).ok()?;
        self.know((name, content), &loaded);
        Some(loaded)
    }

    fn know(&self, (name, content): (&str, &ContentName), plugin: &Plugin) {
        let mut known = self.known();
        known.retain(|_, plugin| plugin.strong_count() > 0);
        known.insert((*content.content.as_bytes(), name.to_owned()), plugin.downgrade());
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, name: &str, artifact: &[u8]) -> Result<Plugin, Defect> {
        let component = deserialize(&self.surroundings.engine, artifact);
        let component = component.map_err(|error| Defect::Uncompilable(sentence::of_chain(&error)))?;
        Plugin::link(&self.surroundings, name, (&component, artifact.len() as u64))
    }

    /// Names compiled code by whose it is and all that decides what it is: the bytes, the engine's settings, the host's version and the ABI's.
    fn content_name(&self, tenant: &str, bytes: &[u8]) -> ContentName {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.compatibility);
        for word in [tenant, env!("CARGO_PKG_VERSION")].iter().chain(abi::SERVED_VERSIONS) {
            hasher.update(&(word.len() as u64).to_le_bytes()).update(word.as_bytes());
        }
        let content = hasher.update(abi::WIT.as_bytes()).update(bytes).finalize();
        ContentName { tenant: blake3::hash(tenant.as_bytes()), content }
    }
}

/// `artifact` comes from this runtime's compiler, or from its cache, which authenticates what that compiler once made.
fn deserialize(engine: &Engine, artifact: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: the bytes are `Engine::precompile_component`'s own: they come straight from the compiler's process, which the host
    // started from a program of its choice, or out of the cache, which only returns what carries a MAC under the cache's secret key.
    unsafe { Component::deserialize(engine, artifact) }
}

/// Who is at fault where code that was just made does not load: the plugin, if it needs more than instances may have; this host, if what its
/// compiler makes is not for it.
fn blame(defect: Defect, reservation: Reservation, artifact: &[u8]) -> CompileError {
    match (defect, engine::for_compiling(reservation)) {
        // This engine bounds no instances.
        (Defect::Uncompilable(words), Ok(engine)) if deserialize(&engine, artifact).is_err() => CompileError::OtherCode(words),
        (defect, _) => defect.into(),
    }
}

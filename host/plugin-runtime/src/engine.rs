//! The engine: how guests are compiled, and where their memories lie.
//!
//! What influences machine code is set in one place, so that the compiler's process and the host agree on it.

use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;

use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::clock::Clock;
use crate::error::RuntimeError;
use crate::limits::Limits;
use crate::sentence;

/// Frames kept of a guest's stack when it traps: enough to name the function.
const BACKTRACE_FRAMES: NonZeroUsize = NonZeroUsize::new(4).expect("4 is not 0");

/// What stays in memory of an instance's memory and tables when it is dropped, so that the next one needs no page faults.
const KEEP_RESIDENT_BYTES: usize = 256 << 10;
const TABLE_KEEP_RESIDENT_BYTES: usize = 64 << 10;

/// Per component: the largest runtimes seen (Python's) have 38 core instances.
const CORE_INSTANCES_MAX: u32 = 64;
const TABLES_MAX: u32 = 64;
const MEMORIES_MAX: u32 = 8;

/// Everything that the machine code depends on.
fn code_settings() -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        // An image to copy on write is a descriptor for each plugin that is loaded, and those are for connections. Writing what instances begin with
        // takes no longer.
        .memory_init_cow(false)
        .generate_address_map(false)
        // A plugin is deterministic, on whatever machine it runs.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true);
    config
}

/// An engine that compiles and runs nothing: it reserves no address space.
pub(crate) fn for_compiling() -> Result<Engine, RuntimeError> {
    Engine::new(&code_settings()).map_err(|error| RuntimeError::Engine(sentence::of_chain(&error)))
}

/// What the engine of a running host needs to know.
pub(crate) struct PoolSize {
    pub(crate) instances: u32,
    pub(crate) stack_bytes: usize,
}

/// The engine of a running host.
pub(crate) fn for_running(limits: &Limits, size: &PoolSize) -> Result<Engine, RuntimeError> {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(size.instances)
        .total_core_instances(size.instances.saturating_mul(8).saturating_add(CORE_INSTANCES_MAX))
        .total_memories(size.instances.saturating_mul(2).saturating_add(MEMORIES_MAX))
        .total_tables(size.instances.saturating_mul(4).saturating_add(TABLES_MAX))
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
        .max_memories_per_component(MEMORIES_MAX)
        .max_tables_per_component(TABLES_MAX)
        .max_tables_per_module(TABLES_MAX)
        .max_memory_size(limits.memory_bytes)
        .table_elements(limits.table_elements)
        .max_core_instance_size(1 << 20)
        .max_component_instance_size(1 << 20)
        .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
        .table_keep_resident(TABLE_KEEP_RESIDENT_BYTES)
        // Where the kernel can tell, only what an instance wrote is cleared.
        .pagemap_scan(Enabled::Auto);
    let mut config = code_settings();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .max_wasm_stack(size.stack_bytes)
        .async_stack_size(size.stack_bytes.max(2 << 20))
        .wasm_backtrace_max_frames(Some(BACKTRACE_FRAMES));
    Engine::new(&config).map_err(|error| RuntimeError::Engine(sentence::of_chain(&error)))
}

/// Starts the clock of its epoch.
pub(crate) fn start_clock(engine: &Engine) -> Result<Clock, RuntimeError> {
    let engine = engine.weak();
    let tick = move || {
        if let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
        }
    };
    Clock::start(tick).map_err(RuntimeError::Ticker)
}

/// A hash of everything that decides whether compiled code fits an engine.
pub(crate) fn compatibility(engine: &Engine) -> [u8; 32] {
    struct Feed(blake3::Hasher);
    impl Hasher for Feed {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut feed = Feed(blake3::Hasher::new());
    engine.precompile_compatibility_hash().hash(&mut feed);
    feed.0.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compilers_process_and_the_host_agree_on_machine_code() {
        let running = for_running(&Limits::default(), &PoolSize { instances: 4, stack_bytes: 256 << 10 }).unwrap();
        assert_eq!(compatibility(&for_compiling().unwrap()), compatibility(&running));
        assert_ne!(compatibility(&Engine::default()), compatibility(&running));
    }
}

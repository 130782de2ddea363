//! The engine: how guests are compiled, and where their memories lie.
//!
//! What influences machine code is set in one place, so that the compiler's process and the host agree on it.

use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;

use rustix::process::{Resource, getrlimit};
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::clock::Clock;
use crate::error::RuntimeError;
use crate::limits::Limits;
use crate::sentence;

/// Frames kept of a guest's stack when it traps: enough to reach those below its language's own panic.
const BACKTRACE_FRAMES: NonZeroUsize = NonZeroUsize::new(24).expect("24 is not 0");

/// What stays in memory of an instance's memory and tables when it is dropped, so that the next one needs no page faults.
const KEEP_RESIDENT_BYTES: usize = 256 << 10;
const TABLE_KEEP_RESIDENT_BYTES: usize = 64 << 10;

/// Per component: the largest runtimes seen (Python's) have 38 core instances.
const CORE_INSTANCES_MAX: u32 = 64;
const TABLES_MAX: u32 = 64;
const MEMORIES_MAX: u32 = 8;
/// Of instances on average.
const MEMORIES_EACH: u32 = 2;

/// Address space that one linear memory reserves, without using it. Machine code depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation(pub(crate) u64);

impl Reservation {
    /// All that a 32-bit address reaches: code checks no bounds, because an access beyond the memory faults.
    pub(crate) const WHOLE: Self = Self(4 << 30);
    const PAGE: u64 = 64 << 10;

    /// No more than a memory may have: code compares each address with the memory's end, and takes some 10 to 20 % longer to unfold a request.
    fn of(limits: &Limits) -> Self {
        Self((limits.memory_bytes as u64).next_multiple_of(Self::PAGE).clamp(Self::PAGE, Self::WHOLE.0))
    }

    const fn guard_bytes(self) -> u64 {
        if self.0 == Self::WHOLE.0 { 32 << 20 } else { Self::PAGE }
    }
}

/// Everything that the machine code depends on.
fn code_settings(reservation: Reservation) -> Config {
    let mut config = Config::new();
    config
        .memory_reservation(reservation.0)
        .memory_guard_size(reservation.guard_bytes())
        .memory_may_move(false)
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

/// An engine that compiles and runs nothing: it reserves no address space itself.
pub(crate) fn for_compiling(reservation: Reservation) -> Result<Engine, RuntimeError> {
    Engine::new(&code_settings(reservation)).map_err(|error| RuntimeError::Engine(sentence::of_chain(&error)))
}

/// What the engine of a running host needs to know.
pub(crate) struct PoolSize {
    pub(crate) instances: u32,
    pub(crate) stack_bytes: usize,
    /// Address space for their memories; if none, half of what the process may have.
    pub(crate) address_bytes_max: Option<u64>,
}

/// The engine of a running host, and its pool as there was address space for it.
pub(crate) struct Running {
    pub(crate) engine: Engine,
    pub(crate) pool: MemoryPool,
}

/// How many instances there may be, and what each of their memories reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPool {
    pub(crate) instances: u32,
    pub(crate) reservation: Reservation,
}

impl MemoryPool {
    /// The best pool of so many instances at most that takes so many bytes: fast code first, then many instances, then large memories.
    fn within(bytes: u64, instances: u32, limits: &Limits) -> Self {
        let pools = [Reservation::WHOLE, Reservation::of(limits)].map(|reservation| Self { instances, reservation });
        if let Some(pool) = pools.into_iter().find(|pool| pool.bytes() <= bytes) {
            return pool;
        }
        let reservation = Reservation::of(&Limits::default().lowered_to(limits));
        let memories = bytes / (reservation.0 + reservation.guard_bytes());
        let possible = memories.saturating_sub(u64::from(MEMORIES_MAX)) / u64::from(MEMORIES_EACH);
        Self { instances: u32::try_from(possible).unwrap_or(u32::MAX).min(instances).max(1), reservation }
    }

    fn memories(self) -> u32 {
        self.instances.saturating_mul(MEMORIES_EACH).saturating_add(MEMORIES_MAX)
    }

    fn bytes(self) -> u64 {
        u64::from(self.memories()).saturating_mul(self.reservation.0 + self.reservation.guard_bytes())
    }
}

/// The engine of a running host. Where there is too little address space, its pool is smaller, and the log says so.
pub(crate) fn for_running(limits: &Limits, size: &PoolSize) -> Result<Running, RuntimeError> {
    let within = |bytes| MemoryPool::within(bytes, size.instances, limits);
    let asked = within(size.address_bytes_max.unwrap_or(u64::MAX));
    // The rest of the process needs address space, too.
    let half = || getrlimit(Resource::As).current.map(|limit| limit / 2);
    let mut pool = size.address_bytes_max.or_else(half).map_or(asked, within);
    let engine = loop {
        match with_pool(limits, pool, size.stack_bytes) {
            Err(_) if pool.instances > 1 => pool = within(pool.bytes() / 2),
            made => break made?,
        }
    };
    if pool != asked {
        tracing::warn!(
            instances = pool.instances,
            bytes = pool.bytes(),
            "little address space (`ulimit -v`): plugins have fewer instances or less memory, or check each address, which takes them longer"
        );
    }
    Ok(Running { engine, pool })
}

fn with_pool(limits: &Limits, size: MemoryPool, stack_bytes: usize) -> Result<Engine, RuntimeError> {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(size.instances)
        .total_core_instances(size.instances.saturating_mul(8).saturating_add(CORE_INSTANCES_MAX))
        .total_memories(size.memories())
        .total_tables(size.instances.saturating_mul(4).saturating_add(TABLES_MAX))
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
        .max_memories_per_component(MEMORIES_MAX)
        .max_tables_per_component(TABLES_MAX)
        .max_tables_per_module(TABLES_MAX)
        .max_memory_size(limits.memory_bytes.min(usize::try_from(size.reservation.0).unwrap_or(usize::MAX)))
        .table_elements(limits.table_elements)
        .max_core_instance_size(1 << 20)
        .max_component_instance_size(1 << 20)
        .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
        .table_keep_resident(TABLE_KEEP_RESIDENT_BYTES)
        // Where the kernel can tell, only what an instance wrote is cleared.
        .pagemap_scan(Enabled::Auto);
    let mut config = code_settings(size.reservation);
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .max_wasm_stack(stack_bytes)
        .async_stack_size(stack_bytes.max(2 << 20))
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
        let codes = [None, Some(8 << 30)].map(|address_bytes_max| {
            let size = PoolSize { instances: 4, stack_bytes: 256 << 10, address_bytes_max };
            let Running { engine, pool } = for_running(&Limits::default(), &size).unwrap();
            assert_eq!((pool.instances, pool.reservation == Reservation::WHOLE), (4, address_bytes_max.is_none()));
            assert_eq!(compatibility(&for_compiling(pool.reservation).unwrap()), compatibility(&engine));
            compatibility(&engine)
        });
        assert_ne!(codes[0], codes[1]);
        assert_ne!(compatibility(&Engine::default()), codes[0]);
    }

    #[test]
    fn a_pool_takes_no_more_address_space_than_it_may() {
        let limits = Limits::of_server();
        for (gib, instances, mib) in [(0, 1, 64), (1, 3, 64), (8, 59, 64), (32, 251, 64), (256, 256, 64), (280, 256, 512), (2000, 256, 512)]
        {
            let pool = MemoryPool::within(gib << 30, 256, &limits);
            assert_eq!((pool.instances, pool.reservation), (instances, Reservation(mib << 20)), "{gib} GiB");
            assert!(pool.bytes() <= gib << 30 || gib == 0);
        }
        assert_eq!(MemoryPool::within(2200 << 30, 256, &limits), MemoryPool { instances: 256, reservation: Reservation::WHOLE });
    }
}

//! The memory that the workers of a domain share: the arena, compiled plans with packed weights,
//! and tables by token.
//!
//! Each NUMA node with workers is a domain of its own, with its own arena, tables and weights. A
//! step reads all weights of its cell, and weights on another node would be the slowest memory
//! there is. The price is that a machine of two nodes holds them twice. Nothing is bound to a node:
//! memory lies where it is touched first, and every part is first touched by a thread that keeps to
//! its node (`topology`).

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cellwright_backend::machine::memory_bytes;
use cellwright_backend::{LoadError, SLOT_BYTES};
use cellwright_cell_graph::{CellTypeKey, TypedCell};

use crate::arena::Arena;
use crate::compiled::{Compiled, Hoisting};
use crate::lending::Lending;
use crate::level::{Kernels, Level};
use crate::matrix::Packs;
use crate::table::Budget;

/// The arena's size where nothing is said and memory is plenty.
const ARENA_BYTES: u64 = 4 << 30;

/// The tables' size where nothing is said and memory is plenty.
const TABLE_BYTES: u64 = 1 << 30;

/// What the second-level cache of a core keeps from step to step anyway.
const AHEAD_WEIGHTS_LEAST: u64 = 1 << 20;

/// Domains that this process has made.
static DOMAINS: AtomicU32 = AtomicU32::new(0);

/// How large a domain is, and what it computes with.
#[derive(Clone, Copy, Debug, Default)]
pub struct DomainOptions {
    /// Bytes of the arena: a quarter of the machine's memory (of its part, as below, if there are several domains), at most 4 GiB, if not said. Pages nobody uses take no memory.
    pub arena_bytes: Option<u64>,
    /// Bytes that tables by token may take together: an eighth of the machine's memory, at most 1 GiB, if not said; 0: there are none. Rows nobody
    /// asked for take no memory.
    pub table_bytes: Option<u64>,
    /// Bytes of a cell's weights from which on products that wait for no state are computed for several steps at once: 1 MiB if not said.
    pub ahead_weights_least: Option<u64>,
    /// The instruction set: the best of this processor if not said. One that it lacks is lowered to that.
    pub level: Option<Level>,
    /// Who multiplies matrices.
    pub kernels: Kernels,
    /// The NUMA node whose workers it is for, which keep to that ([`CpuOptions::processors`](crate::CpuOptions::processors)): for people. Its memory is
    /// there because they are, and touch it first.
    pub node: Option<usize>,
    /// Domains among which the machine's memory is divided where nothing is said: 1 if not said.
    pub domains: Option<NonZeroU32>,
}

/// Why a domain or a worker cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    /// The system has no room for the arena.
    #[error("cannot reserve an arena of {bytes} bytes: choose a smaller one")]
    Arena {
        /// How large it should be.
        bytes: u64,
    },
    /// Products of 32-bit floats cannot be AMX's.
    #[error("this processor has no AMX, or the system does not let this process use it")]
    Tiles,
    /// A worker's threads cannot be started.
    #[error("cannot start the threads of a CPU worker")]
    Threads(#[source] std::io::Error),
}

/// One memory domain. Workers hold it together.
#[derive(Debug)]
pub struct CpuDomain {
    /// Tells it from the process's other domains.
    pub(crate) number: u32,
    pub(crate) node: Option<usize>,
    pub(crate) arena: Arena,
    pub(crate) level: Level,
    pub(crate) kernels: Kernels,
    /// The processor by its own name, and how many cores of it this process may use.
    pub(crate) hardware: String,
    table_budget: Arc<Budget>,
    ahead_weights_least: u64,
    plans: Mutex<BTreeMap<CellTypeKey, Weak<Compiled>>>,
    /// Threads of workers that have nothing to do.
    pub(crate) lending: Lending,
}

impl CpuDomain {
    /// Reserves the arena.
    ///
    /// # Errors
    /// If the system refuses the reservation, or products are to be AMX's where there is none.
    pub fn new(options: DomainOptions) -> Result<Arc<Self>, DomainError> {
        let level = Level::up_to(options.level.unwrap_or(Level::Amx));
        if options.kernels == Kernels::Tiles && level < Level::Amx {
            return Err(DomainError::Tiles);
        }
        let memory = memory_bytes() / options.domains.map_or(1, |domains| u64::from(domains.get()));
        let bytes = options.arena_bytes.unwrap_or_else(|| ARENA_BYTES.min(memory / 4));
        let slots = u32::try_from(bytes / SLOT_BYTES as u64).unwrap_or(u32::MAX).max(1);
        let arena = Arena::new(slots).ok_or(DomainError::Arena { bytes })?;
        Ok(Arc::new(Self {
            number: DOMAINS.fetch_add(1, Ordering::Relaxed),
            node: options.node,
            arena,
            level,
            kernels: options.kernels,
            hardware: processor(),
            table_budget: Arc::new(Budget::new(options.table_bytes.unwrap_or_else(|| TABLE_BYTES.min(memory / 8)))),
            ahead_weights_least: options.ahead_weights_least.unwrap_or(AHEAD_WEIGHTS_LEAST),
            plans: Mutex::default(),
            lending: Lending::default(),
        }))
    }

    /// The cell's plan: the one another worker or model holds already, or a new one of at most so many bytes; and how many it adds. With room to spare, a
    /// projection of which only the largest element is wanted has its weight twice more, in integers: they rule out most of its columns, and what is found
    /// is the same.
    pub(crate) fn plan(&self, cell: &TypedCell, bytes_max: u64) -> Result<(Arc<Compiled>, u64), LoadError> {
        if let Some(plan) = self.plans().get(&cell.key).and_then(Weak::upgrade) {
            return Ok((plan, 0));
        }
        // Others' cells may be packed meanwhile.
        let hoisting = Hoisting { table_budget: &self.table_budget, ahead_weights_least: self.ahead_weights_least };
        // All weights are packed before the first screen is made.
        let mut packs = Packs::within(bytes_max);
        let plan = Arc::new(Compiled::new(cell, (self.level, self.kernels), hoisting, &mut packs)?);
        // As packed, weights may take many times what they take in the bundle.
        let bytes = plan.bytes() as u64;
        let needed = packs.bytes().max(bytes);
        if needed > bytes_max {
            return Err(LoadError::OutOfMemory { cell: cell.name.clone(), needed, available: bytes_max });
        }
        self.plans().insert(cell.key, Arc::downgrade(&plan));
        Ok((plan, bytes))
    }

    /// Those that somebody holds.
    fn plans(&self) -> MutexGuard<'_, BTreeMap<CellTypeKey, Weak<Compiled>>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.retain(|_, plan| plan.strong_count() > 0);
        plans
    }

    /// What results of one worker must share with another's for both to be bit-identical.
    pub(crate) fn numeric_class(&self) -> String {
        let level = self.level.class();
        match self.kernels {
            Kernels::Best => format!("cpu-{level}"),
            Kernels::Tiles => format!("cpu-{level}-tiles"),
            Kernels::Library => format!("cpu-{level}-library"),
        }
    }
}

/// What this machine computes with, as far as it says.
fn processor() -> String {
    let said = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = ["model name", "Model", "CPU part", "cpu"];
    let field = |name: &str| {
        said.lines().filter_map(|line| line.split_once(':')).find(|(known, _)| known.trim() == name).map(|(_, value)| value.trim())
    };
    let name = names.into_iter().find_map(field).unwrap_or(std::env::consts::ARCH);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{name}, {cores} cores")
}

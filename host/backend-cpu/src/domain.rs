//! What the workers of one memory domain share: the arena, and each cell type's compiled plan with its packed weights.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cellwright_backend::machine::memory_bytes;
use cellwright_backend::{LoadError, SLOT_BYTES};
use cellwright_cell_graph::{CellTypeKey, TypedCell};

use crate::arena::Arena;
use crate::level::{Kernels, Level};
use crate::plan::{Plan, SharedPlan};

/// The arena's size where nothing is said and memory is plenty.
const ARENA_BYTES: u64 = 4 << 30;

/// Domains that this process has made.
static DOMAINS: AtomicU32 = AtomicU32::new(0);

/// How large a domain is, and what it computes with.
#[derive(Clone, Copy, Debug, Default)]
pub struct DomainOptions {
    /// Bytes of the arena: a quarter of the machine's memory, at most 4 GiB, if not said. Pages nobody uses take no memory.
    pub arena_bytes: Option<u64>,
    /// Bytes that plans and their weights may take: half of the machine's memory if not said.
    pub weight_bytes: Option<u64>,
    /// The instruction set: the best of this processor if not said. One that it lacks is lowered to that.
    pub level: Option<Level>,
    /// Who multiplies matrices.
    pub kernels: Kernels,
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
    /// A worker's threads cannot be started.
    #[error("cannot start the threads of a CPU worker")]
    Threads(#[source] std::io::Error),
}

/// One memory domain. Workers hold it together.
#[derive(Debug)]
pub struct CpuDomain {
    /// Tells it from the process's other domains.
    pub(crate) number: u32,
    pub(crate) arena: Arena,
    pub(crate) level: Level,
    pub(crate) kernels: Kernels,
    /// The processor by its own name, and how many cores of it this process may use.
    pub(crate) hardware: String,
    weight_bytes: u64,
    plans: Mutex<BTreeMap<CellTypeKey, Weak<Plan>>>,
}

impl CpuDomain {
    /// Reserves the arena.
    ///
    /// # Errors
    /// If the system refuses the reservation.
    pub fn new(options: DomainOptions) -> Result<Arc<Self>, DomainError> {
        let memory = memory_bytes();
        let bytes = options.arena_bytes.unwrap_or_else(|| ARENA_BYTES.min(memory / 4));
        let slots = u32::try_from(bytes / SLOT_BYTES as u64).unwrap_or(u32::MAX).max(1);
        let arena = Arena::new(slots).ok_or(DomainError::Arena { bytes })?;
        let best = Level::detect();
        Ok(Arc::new(Self {
            number: DOMAINS.fetch_add(1, Ordering::Relaxed),
            arena,
            level: options.level.map_or(best, |level| level.min(best)),
            kernels: options.kernels,
            hardware: processor(),
            weight_bytes: options.weight_bytes.unwrap_or(memory / 2),
            plans: Mutex::default(),
        }))
    }

    /// The cell's plan: the one another worker or model holds already, or a new one.
    pub(crate) fn plan(&self, cell: &TypedCell) -> Result<SharedPlan, LoadError> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.retain(|_, plan| plan.strong_count() > 0);
        if let Some(plan) = plans.get(&cell.key).and_then(Weak::upgrade) {
            return Ok(plan);
        }
        // Packing happens under the lock, so that two workers that load a cell at once pack it once.
        let taken: u64 = plans.values().filter_map(Weak::upgrade).map(|plan| plan.bytes() as u64).sum();
        let available = self.weight_bytes.saturating_sub(taken);
        if cell.weight_bytes > available {
            return Err(LoadError::OutOfMemory { cell: cell.name.clone(), needed: cell.weight_bytes, available });
        }
        let plan = Arc::new(Plan::compile(cell, self.level, self.kernels)?);
        plans.insert(cell.key, Arc::downgrade(&plan));
        Ok(plan)
    }

    /// What results of one worker must share with another's for both to be bit-identical.
    pub(crate) fn numeric_class(&self) -> String {
        let level = match self.level {
            Level::Portable => std::env::consts::ARCH,
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        };
        match self.kernels {
            Kernels::Best => format!("cpu-{level}"),
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

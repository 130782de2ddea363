//! Loading and unloading models: their cells on every worker that is up, shared where they are
//! equal, measured once.
//!
//! A load reserves what it needs: memory for weights, ids of cell types. Then it packs and measures
//! its cells, and nobody waits for it but loads of equal cells, which are the same tenant's. In the
//! end the model opens, or everything is given back. Workers are asked in turns by tenant.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cellwright_backend::{LoadError, NodeLayout, Prepared, TIMED_SPAN_ROWS, TimedBatch, WORKING_BYTES};
use cellwright_cell_graph::TypedCell;
use cellwright_fair_turns::{Cancelled, FairTurns};
use cellwright_scheduler::{CellInfo, CellTypeId, ModelId, ModelInfo, NumericClass, PAUSED_MAX, SpanLimit, TenantId};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::Engine;
use super::measuring::Measuring;
use crate::calibration::{BatchLimits, Calibration};
use crate::core::ToCore;
use crate::figures::ModelCounters;
use crate::model::{CellOverride, CellTypes, LoadedCell, LoadedModel, ModelSpec, Running, Tables, TypeShared, TypeState};
use crate::options::{EngineOptions, SLICE_NS};
use crate::weight_room::WeightGrant;
use crate::worker::{ToWorker, WorkerLink};

/// Bytes of outputs that a task of several rows may have: all of them may leave the worker at once.
const TASK_OUTPUT_BYTES: u64 = 256 << 20;

/// Bytes by which packed weights may be padded, beside a sixteenth of them, before their device is asked how many it needs.
const PADDING_BYTES: u64 = 64 << 10;

/// A device may use such a part of what a tenant may still have, beside the weights, for what saves time.
const SPARE: u64 = 4;

/// How long a worker is kept from its tasks while a batch is timed.
const SLICE: Duration = Duration::from_nanos(SLICE_NS);

/// Cell types that a worker forgets between two tasks.
const FORGOTTEN_AT_ONCE: usize = 16;
/// How often a load that waits for another one looks whether it was cancelled.
const LOOK: Duration = Duration::from_millis(20);
/// What the engine's thread takes to say that a model without requests is closed.
const AT_ONCE: Duration = Duration::from_millis(1);
/// Whose turn it is to have workers forget cells, which takes them no time: nobody's.
const NOBODY: u32 = u32::MAX;

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A device cannot run one of its cells.
    #[error(transparent)]
    Cell(#[from] LoadError),
    /// Its weights would be too much.
    #[error(
        "the model needs {needed} bytes, and there is no room for them beside the {held} bytes that its tenant's models hold: \
         unload another model, or add memory to the machine"
    )]
    Weights {
        /// Bytes that something of it needs.
        needed: u64,
        /// Bytes that its tenant has beside that.
        held: u64,
    },
    /// One row of it would keep a device busy for too long.
    #[error("cell `{cell}`: one row takes {}, more than the {} that a row may take: make the cell smaller", milliseconds(.took), milliseconds(.bound))]
    Slow {
        /// Which.
        cell: String,
        /// How long a row takes.
        took: Duration,
        /// How long it may.
        bound: Duration,
    },
    /// All cells of it would keep devices busy for too long while they are measured.
    #[error("measuring the cells took more than {} s, which is the limit for one model: make them fewer or smaller", .bound.as_secs_f64())]
    Long {
        /// How long they may.
        bound: Duration,
    },
    /// Nobody wants it any more.
    #[error("the load was cancelled")]
    Cancelled(#[from] Cancelled),
    /// Preparing it panicked.
    #[error("cell `{cell}` could not be prepared for {device}: an internal error; see the log of this program")]
    Panicked {
        /// Which.
        cell: String,
        /// For which device.
        device: String,
    },
    /// A worker is gone.
    #[error("worker {0} is lost and cannot load a cell")]
    WorkerLost(u32),
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    Stopped,
}

/// Milliseconds for people: whole ones, and what is shorter as a fraction.
fn milliseconds(time: &Duration) -> String {
    let whole = time.as_millis();
    if whole > 0 { format!("{whole} ms") } else { format!("{} ms", time.as_secs_f64() * 1e3) }
}

/// Models loaded and their cell types.
#[derive(Default)]
pub(super) struct Registry {
    types: CellTypes,
    /// By id; a model that is being unloaded keeps its place until it is gone.
    models: Vec<Option<Arc<LoadedModel>>>,
}

impl Registry {
    fn has_models_of(&self, tenant: u32) -> bool {
        self.models.iter().flatten().any(|model| model.tenant == tenant)
    }
}

/// What loads share.
pub(super) struct Loads {
    registry: Mutex<Registry>,
    /// A load is done with a cell type, whatever came of it.
    cell_done: Condvar,
    /// Who asks workers. So what waits at a worker beside its tasks stays bounded.
    turns: FairTurns,
    measuring: Measuring,
}

impl Loads {
    pub(super) fn new(options: &EngineOptions) -> Self {
        let (registry, cell_done) = Default::default();
        Self { registry, cell_done, turns: FairTurns::new(1), measuring: Measuring::new(options) }
    }

    /// Not held while anything takes long.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A load under way.
struct Load<'a> {
    tenant: u32,
    is_cancelled: &'a dyn Fn() -> bool,
    /// How long devices were kept while its cells were measured.
    measured: Duration,
}

impl Load<'_> {
    fn check(&self) -> Result<(), ModelError> {
        if (self.is_cancelled)() { Err(Cancelled.into()) } else { Ok(()) }
    }
}

/// A model that takes no more requests and waits for the end of its last.
#[derive(Debug)]
pub struct ClosedModel {
    model: Arc<LoadedModel>,
    left: Receiver<()>,
}

/// Models that this process has loaded so far, whichever of its engines.
static LOADS: AtomicU64 = AtomicU64::new(0);

impl Engine {
    /// Loads a model's cells on every worker, measures those that are new, and opens the model for requests.
    ///
    /// # Errors
    /// If its weights are too much, or a device cannot run one of its cells, or not in time, or the engine is going or has panicked; nothing of the model is
    /// left then.
    pub fn load(&self, spec: &ModelSpec) -> Result<Arc<LoadedModel>, ModelError> {
        self.load_unless(spec, &|| false)
    }

    /// As [`Engine::load`], unless it is cancelled meanwhile, which is asked often.
    ///
    /// # Errors
    /// As [`Engine::load`], and if it was cancelled.
    pub fn load_unless(&self, spec: &ModelSpec, is_cancelled: &dyn Fn() -> bool) -> Result<Arc<LoadedModel>, ModelError> {
        if self.handles.are_closed() {
            return Err(ModelError::Stopped);
        }
        let mut load = Load { tenant: spec.tenant, is_cancelled, measured: Duration::ZERO };
        let types = self.reserve(spec);
        let mut cells = Vec::with_capacity(spec.cells.len());
        for (position, (cell, id)) in spec.cells.iter().zip(&types).enumerate() {
            match self.load_cell(*id, cell, &mut load) {
                Ok(shared) => {
                    let overrides = spec.overrides.get(position).copied().unwrap_or_default();
                    cells.push(loaded_cell(cell, (*id, shared), overrides, position));
                }
                Err(error) => {
                    self.release(&types);
                    return Err(error);
                }
            }
        }
        self.open(spec, cells).inspect_err(|_| self.release(&types))
    }

    /// An id for each cell's type.
    fn reserve(&self, spec: &ModelSpec) -> Vec<CellTypeId> {
        let types = &mut self.loads.registry().types;
        spec.cells.iter().map(|cell| types.retain(cell)).collect()
    }

    fn open(&self, spec: &ModelSpec, cells: Vec<LoadedCell>) -> Result<Arc<LoadedModel>, ModelError> {
        let mut registry = self.loads.registry();
        let index = registry.models.iter().position(Option::is_none).unwrap_or(registry.models.len());
        let id = ModelId(u32::try_from(index).unwrap_or(u32::MAX));
        let indices = cells.iter().map(|cell| cell.cell_type).collect();
        let counters = Arc::new(ModelCounters::new(spec.charged.clone()));
        let load = LOADS.fetch_add(1, Ordering::Relaxed);
        let model = Arc::new(LoadedModel { id, load, name: spec.name.clone(), tenant: spec.tenant, cells, indices, counters });
        let up = ToCore::ModelUp { info: Arc::new(model_info(spec, &model)), model: model.clone() };
        self.inbox.send(up).map_err(|_| ModelError::Stopped)?;
        if index == registry.models.len() {
            registry.models.push(None);
        }
        registry.models[index] = Some(model.clone());
        self.handles.set_weight(spec.tenant, spec.weight);
        Ok(model)
    }

    /// Closes a model: no more requests of it are taken (they fail with `RequestFailure::NoWorker`). Waits until those in flight have ended, then
    /// forgets its cells. Must not be called from a [`Sink`](crate::Sink), whose thread it waits for.
    pub fn unload(&self, model: &Arc<LoadedModel>) {
        if let Some(closed) = self.close_model(model) {
            // Not answered: the engine has stopped, or somebody else has unloaded it meanwhile.
            if closed.left.recv().is_ok() {
                self.forget_model(&closed.model);
            }
        }
    }

    /// Closes a model without waiting; none if it is not loaded.
    pub fn close_model(&self, model: &Arc<LoadedModel>) -> Option<ClosedModel> {
        let (gone, left) = bounded(1);
        let registry = self.loads.registry();
        let known = registry.models.get(model.id.index()).and_then(Option::as_ref);
        let is_known = known.is_some_and(|known| Arc::ptr_eq(known, model));
        let is_closed = is_known && self.inbox.send(ToCore::ModelDown { model: model.id, gone }).is_ok();
        is_closed.then(|| ClosedModel { model: model.clone(), left })
    }

    /// Forgets the cells of a closed model if the last of its requests has ended, or does at once; whether nothing is left to do.
    pub fn forget_if_left(&self, closed: &ClosedModel) -> bool {
        let left = closed.left.recv_timeout(AT_ONCE);
        if left.is_ok() {
            self.forget_model(&closed.model);
        }
        left != Err(RecvTimeoutError::Timeout)
    }

    /// Of a model whose last request has left.
    fn forget_model(&self, model: &Arc<LoadedModel>) {
        let mut registry = self.loads.registry();
        // Of several who unload it at the same time the first gets here while it still has its place.
        if registry.models[model.id.index()].take_if(|known| Arc::ptr_eq(known, model)).is_some() {
            if !registry.has_models_of(model.tenant) {
                self.handles.set_weight(model.tenant, 0);
            }
            drop(registry);
            self.release(&model.indices);
        }
    }

    /// The type of a cell, loaded on all workers that are up and measured, on the first of them beside those of its domain, if nobody has done so.
    fn load_cell(&self, id: CellTypeId, cell: &Arc<TypedCell>, load: &mut Load<'_>) -> Result<TypeShared, ModelError> {
        let mut registry = self.loads.registry();
        loop {
            load.check()?;
            match registry.types.state(id) {
                TypeState::Loaded { shared, .. } => return Ok(shared.clone()),
                // By another load of the tenant. If that fails, this one tries it again.
                TypeState::Loading => {
                    registry = self.loads.cell_done.wait_timeout(registry, LOOK).unwrap_or_else(PoisonError::into_inner).0;
                }
                new => {
                    *new = TypeState::Loading;
                    break;
                }
            }
        }
        drop(registry);
        let loaded = self.load_new(id, cell, load);
        if loaded.is_err() {
            self.forget(&[id]);
        }
        let (shared, state) = match loaded {
            Ok((shared, weights)) => (Ok(shared.clone()), TypeState::Loaded { shared, _weights: weights }),
            Err(error) => (Err(error), TypeState::New),
        };
        let types = &mut self.loads.registry().types;
        *types.state(id) = state;
        self.publish_weights(types);
        self.loads.cell_done.notify_all();
        shared
    }

    fn load_new(
        &self,
        index: CellTypeId,
        cell: &Arc<TypedCell>,
        load: &mut Load<'_>,
    ) -> Result<(TypeShared, Vec<WeightGrant>), ModelError> {
        let (mut first, mut tables): (Option<(usize, Running)>, _) = (None, Tables::default());
        let (mut loaded_by, mut weights, mut row_bytes) = (Vec::new(), Vec::new(), Vec::new());
        for (number, worker) in self.workers.iter().enumerate() {
            load.check()?;
            let mut grant = worker.weights.as_ref().unwrap_or(&self.weights).grant(load.tenant);
            // What goes to a device's own memory lies in the machine's until it is there.
            let mut on_its_way = worker.weights.as_ref().map(|_| self.weights.grant(load.tenant));
            let prepared = prepare(worker, cell, (&mut grant, on_its_way.as_mut()))?;
            let working = prepared.row_bytes;
            let mut turn = self.loads.turns.of(load.tenant);
            turn.take(load.is_cancelled)?;
            match ask(worker, number, |reply| ToWorker::Install { index, cell: cell.clone(), prepared, reply }) {
                Ok(loaded) => {
                    let running = loaded?;
                    tables.add(running.table.as_ref());
                    first = first.or(Some((number, running)));
                    loaded_by.push(number);
                    weights.push(grant);
                    row_bytes.push(working);
                }
                // Others may go on without it.
                Err(_) => continue,
            }
        }
        let (number, running) = first.ok_or(ModelError::WorkerLost(0))?;
        let info = &self.workers[number].info;
        // Workers of one domain share caches and memory, which a batch has for itself only while the others have nothing to do.
        let beside: Vec<usize> =
            loaded_by.into_iter().filter(|other| *other != number && self.workers[*other].info.domain == info.domain).collect();
        let (mut turn, bound) = (self.loads.turns.of(load.tenant), self.loads.measuring.load_time_max);
        let mut row = Duration::MAX;
        let time = |rows, lent| {
            turn.take(load.is_cancelled)?;
            // Of a row of which nothing is known it is not known either that it is short.
            let batch = TimedBatch { rows, lent, is_long: row > SLICE, slice: SLICE, goes_on: false };
            let took = self.time((number, if lent { &[] } else { &beside }), index, batch, load)?;
            if rows == 1 {
                row = row.min(took);
            }
            if load.measured > bound { Err(ModelError::Long { bound }) } else { Ok(took) }
        };
        let names = || beside.iter().map(|other| &*self.workers[*other].info.name).collect();
        let calibration = self.loads.measuring.calibration(cell, (info, names(), running.table.is_some()), time)?;
        if calibration.points.first().is_some_and(|row| row.time > SLICE) {
            let more = |row_bytes| working_bytes(row_bytes, calibration.rows_max()) - working_bytes(row_bytes, 1);
            weights.iter_mut().zip(row_bytes).try_for_each(|(grant, row_bytes)| grant.hold(grant.bytes() + more(row_bytes)))?;
        }
        let (held_bytes, steps_together) = (weights.iter().map(WeightGrant::bytes).sum(), running.steps_together);
        let shared = TypeShared { calibration: Arc::new(calibration), counters: Arc::default(), tables, steps_together, held_bytes };
        Ok((shared, weights))
    }

    /// How long a batch takes on a worker beside those others, of which each that has no tasks runs the same; or with what others lend. Or, of one that takes far
    /// too long, for how long it was tried. Workers take tasks between slices, and if they have some, these get half of the time.
    fn time(
        &self,
        (number, beside): (usize, &[usize]),
        index: CellTypeId,
        mut batch: TimedBatch,
        load: &mut Load<'_>,
    ) -> Result<Duration, ModelError> {
        let is_idle = |worker: &usize| self.gauges.workers[*worker].outstanding.load(Ordering::Relaxed) == 0;
        let mut unfinished: Vec<usize> = beside.iter().copied().filter(is_idle).chain([number]).collect();
        let (mut took, mut kept) = (Duration::ZERO, Duration::ZERO);
        while !unfinished.is_empty() && kept <= self.loads.measuring.tried_max() {
            load.check()?;
            let tell = |worker: usize| tell(&self.workers[worker], worker, |reply| ToWorker::Time { index, batch, reply });
            let asked: Vec<_> = unfinished.drain(..).map(|worker| (worker, tell(worker))).collect();
            let mut slice = Duration::ZERO;
            for (worker, reply) in asked {
                // One that is lost says nothing. Each tells the least that it took, which a worker that ended last may owe to having been alone at its end.
                match reply.and_then(|reply| reply.recv().map_err(|_| lost(worker))) {
                    Ok((time, busy)) => {
                        took = took.max(time.unwrap_or_default());
                        slice = slice.max(busy);
                        unfinished.extend(time.is_none().then_some(worker));
                    }
                    Err(lost) if worker == number => return Err(lost),
                    Err(_) => {}
                }
            }
            kept += slice;
            batch.goes_on = true;
            if !unfinished.iter().all(is_idle) {
                std::thread::sleep(slice);
            }
        }
        load.measured += kept.max(took);
        Ok(if unfinished.is_empty() { took } else { kept.max(took) })
    }

    /// One model less uses these. What nobody uses any more is given back when all workers have forgotten it.
    fn release(&self, types: &[CellTypeId]) {
        let unused = self.loads.registry().types.release(types);
        self.forget(&unused);
        let types = &mut self.loads.registry().types;
        types.remove(&unused);
        self.publish_weights(types);
    }

    fn publish_weights(&self, types: &CellTypes) {
        self.gauges.weight_bytes.store(types.weight_bytes(), Ordering::Relaxed);
    }

    fn forget(&self, types: &[CellTypeId]) {
        for some in types.chunks(FORGOTTEN_AT_ONCE) {
            for (number, worker) in self.workers.iter().enumerate() {
                let mut turn = self.loads.turns.of(NOBODY);
                let _ = turn.take(&|| false);
                // A worker that is gone has forgotten everything. What others had is dropped here, while they go on.
                let _ = ask(worker, number, |reply| ToWorker::Unload { indices: some.into(), reply });
            }
        }
    }
}

/// Makes a cell ready for a worker, whose own thread has others' tasks to run meanwhile. Room for its weights is taken before they are packed: in the memory
/// where they are to lie, and where they lie until then.
fn prepare(
    worker: &WorkerLink,
    cell: &Arc<TypedCell>,
    (grant, mut on_its_way): (&mut WeightGrant, Option<&mut WeightGrant>),
) -> Result<Prepared, ModelError> {
    let (free, pieces) = (grant.free(), cell.piece_bytes_max());
    let padded = cell.weight_bytes.saturating_add(cell.weight_bytes / 16 + PADDING_BYTES);
    let passing = on_its_way.as_ref().map_or(u64::MAX, |passing| passing.free());
    let offered = padded.max(free / SPARE).min(free.saturating_sub(pieces)).min(passing);
    let mut within = |bytes: u64| {
        grant.hold(bytes.saturating_add(pieces))?;
        on_its_way.as_mut().map_or(Ok(()), |passing| passing.hold(bytes))?;
        // Whoever uploaded the cell must not end more than its load.
        let prepared = catch_unwind(AssertUnwindSafe(|| worker.preparer.prepare(cell, bytes)));
        prepared.map_err(|_| ModelError::Panicked { cell: cell.name.clone(), device: worker.info.name.clone() })?.map_err(ModelError::Cell)
    };
    let prepared = match within(offered) {
        // Thin weights take many times as much.
        Err(ModelError::Cell(LoadError::OutOfMemory { needed, .. })) if needed > offered => within(needed),
        prepared => prepared,
    }?;
    grant.hold(prepared.weight_bytes.saturating_add(working_bytes(prepared.row_bytes, 1)))?;
    Ok(prepared)
}

/// Bytes that paused tasks of a worker may hold beside what it has at all times, if they have so many rows.
fn working_bytes(row_bytes: u64, rows: u32) -> u64 {
    row_bytes.saturating_mul(u64::from(rows)).min(WORKING_BYTES.max(row_bytes)).saturating_mul(PAUSED_MAX as u64)
}

/// Asks a worker and waits for its reply.
fn ask<T>(worker: &WorkerLink, number: usize, message: impl FnOnce(Sender<T>) -> ToWorker) -> Result<T, ModelError> {
    tell(worker, number, message)?.recv().map_err(|_| lost(number))
}

/// Asks a worker, whose reply will come there.
fn tell<T>(worker: &WorkerLink, number: usize, message: impl FnOnce(Sender<T>) -> ToWorker) -> Result<Receiver<T>, ModelError> {
    let (reply, answer) = bounded(1);
    worker.sender.send(message(reply)).map_err(|_| lost(number))?;
    Ok(answer)
}

fn lost(number: usize) -> ModelError {
    ModelError::WorkerLost(u32::try_from(number).unwrap_or(u32::MAX))
}

fn loaded_cell(
    cell: &Arc<TypedCell>,
    (cell_type, shared): (CellTypeId, TypeShared),
    overrides: CellOverride,
    position: usize,
) -> LoadedCell {
    let TypeShared { calibration, counters, tables, steps_together, held_bytes } = shared;
    let layout = NodeLayout::of(cell);
    let asked = (overrides.batch_max, cell.batch_max);
    let limits = BatchLimits { max: batch_max(asked, &calibration, layout.sizes.iter().map(|bytes| *bytes as u64).sum()) };
    // Later cells of a description lie deeper in the model, and run first (paper, section 4.3).
    let depth = i32::try_from(position).unwrap_or(i32::MAX);
    let priority = overrides.priority.or(cell.priority).unwrap_or(depth);
    let (cell, slots) = (Arc::new(cell.without_body()), layout.slots);
    LoadedCell { cell, cell_type, slots, priority, calibration, limits, counters, tables, steps_together, held_bytes }
}

/// The rows of a task at most, from what the bundle and the plugin ask for. Neither may lift what was measured to take no longer than a task may, nor
/// what a task may deliver; a single row always may run.
fn batch_max((bundle, plugin): (Option<u32>, Option<u32>), calibration: &Calibration, row_bytes: u64) -> u32 {
    let delivered = u32::try_from(TASK_OUTPUT_BYTES / row_bytes.max(1)).unwrap_or(u32::MAX);
    let own = bundle.unwrap_or_else(|| calibration.knee()).min(plugin.unwrap_or(u32::MAX));
    own.min(calibration.rows_max()).min(delivered).max(1)
}

fn model_info(spec: &ModelSpec, model: &LoadedModel) -> ModelInfo {
    let cells = model.cells.iter().map(|cell| CellInfo {
        cell_type: cell.cell_type,
        slots: cell.slots,
        priority: cell.priority,
        batch: cell.limits.sizes(),
        cost: cell.calibration.cost(),
        spans: cell.cell.spans.iter().any(Option::is_some).then(|| SpanLimit { rows: TIMED_SPAN_ROWS, batch: cell.calibration.rows_max() }),
        fill_first: cell.calibration.fills_first(),
        steps_together: cell.steps_together,
    });
    let largest = model.cells.iter().map(|cell| cell.slots).max().unwrap_or(1);
    ModelInfo {
        model: model.id,
        tenant: TenantId(spec.tenant),
        weight: spec.weight.max(1),
        class: NumericClass(0),
        policy: spec.policy,
        cells: cells.collect(),
        growth_slots: spec.live_max.map(|live| live.saturating_mul(largest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::Point;

    fn measured(times_us: &[(u32, u64)]) -> Calibration {
        let points = times_us.iter().map(|(rows, time)| Point { rows: *rows, time: Duration::from_micros(*time) }).collect();
        Calibration { points, workers: 1, lent: Vec::new() }
    }

    #[test]
    fn nobody_lifts_a_limit_beyond_what_was_measured() {
        // 8 rows took longer than a task may, so 4 is the last point; the knee is 2.
        let calibration = measured(&[(1, 10_000), (2, 10_000), (4, 40_000)]);
        for (bundle, plugin, expected) in [
            (None, None, 2),
            (Some(512), None, 4),
            (Some(3), None, 3),
            (None, Some(512), 2),
            (Some(512), Some(512), 4),
            (Some(512), Some(3), 3),
            (Some(0), None, 1),
        ] {
            assert_eq!(batch_max((bundle, plugin), &calibration, 4), expected, "bundle {bundle:?}, plugin {plugin:?}");
        }
    }

    #[test]
    fn what_a_task_delivers_is_bounded() {
        let calibration = measured(&[(1, 10), (512, 11)]);
        assert_eq!(batch_max((None, None), &calibration, 4), 512);
        // The largest rows that a cell may have.
        assert_eq!(batch_max((Some(512), None), &calibration, 64 << 20), 4);
        assert_eq!(batch_max((None, None), &calibration, 1 << 40), 1);
    }
}

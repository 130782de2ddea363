//! Loading and unloading models: their cells on every worker that is up, shared where they are
//! equal, measured once.
//!
//! Measured times are kept on disk (`calibration_store`). A cell type's batch limit is worked out
//! from them again at every load.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cellwright_backend::{DeviceInfo, LoadError, NodeLayout, Prepared};
use cellwright_cell_graph::TypedCell;
use cellwright_cell_graph::typed::CellTypeKey;
use cellwright_scheduler::{CellInfo, CellTypeId, ModelId, ModelInfo, NumericClass, TenantId};
use crossbeam_channel::{Receiver, Sender, bounded};

use super::Engine;
use crate::calibration::{BatchLimits, Calibration, calibrate, calibrate_lent};
use crate::calibration_store::{CalibrationStore, Subject};
use crate::core::ToCore;
use crate::figures::ModelCounters;
use crate::model::{CellOverride, CellTypes, LoadedCell, LoadedModel, ModelSpec, Running, Tables, TypeShared};
use crate::options::EngineOptions;
use crate::weight_room::WeightGrant;
use crate::worker::{ToWorker, WorkerLink};

/// Bytes by which packed weights may be padded, beside a sixteenth of them, before their device is asked how many it needs.
const PADDING_BYTES: u64 = 64 << 10;

/// A device may use such a part of what a tenant may still have, beside the weights, for what saves time.
const SPARE: u64 = 4;

/// Bytes of outputs that a task of several rows may have: all of them may leave the worker at once.
const TASK_OUTPUT_BYTES: u64 = 256 << 20;

/// How often the time of a single row that would refuse its cell is measured again, and how many times the bound is too much for that.
const ROW_DOUBTS: usize = 3;
const ROW_FAR: u32 = 10;

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A device cannot run one of its cells.
    #[error(transparent)]
    Cell(#[from] LoadError),
    /// Its weights would be too much.
    #[error(
        "the model's weights need {needed} bytes, and there is no room for them beside the {held} bytes that its tenant's models hold: \
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

/// How batch sizes are found.
pub(super) struct Measuring {
    batch_max: u32,
    task_time_max: Duration,
    row_time_max: Duration,
    recalibrate: bool,
    /// What was measured since the start, if that is to be done again: once is enough, whatever is unloaded and loaded meanwhile.
    again: Mutex<BTreeSet<CellTypeKey>>,
    store: Option<CalibrationStore>,
}

impl Measuring {
    pub(super) fn new(options: &EngineOptions) -> Self {
        Self {
            batch_max: options.batch_max.max(1),
            task_time_max: options.task_time_max,
            row_time_max: options.row_time_max,
            recalibrate: options.recalibrate,
            again: Mutex::default(),
            store: options.calibration_folder.clone().map(CalibrationStore::new),
        }
    }

    /// What is known of a cell's batch sizes, or else what `time` says. How far it may be used is each model's own matter.
    fn calibration(
        &self,
        cell: &TypedCell,
        (device, beside, table): (&DeviceInfo, Vec<&str>, bool),
        mut time: impl FnMut(u32, bool) -> Result<Duration, ModelError>,
    ) -> Result<Calibration, ModelError> {
        let subject = Subject { cell: cell.key, device, beside, table, batch_max: self.batch_max, task_time_max: self.task_time_max };
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.store.as_ref().filter(|_| !self.recalibrate || again.contains(&cell.key)).and_then(|store| store.find(&subject));
        let calibration = match known {
            Some(known) => known,
            None => {
                let workers = u32::try_from(subject.beside.len() + 1).unwrap_or(u32::MAX);
                let apart = calibrate(self.batch_max, self.task_time_max, |rows| time(rows, false))?;
                let mut measured = calibrate_lent(apart, workers, |rows| time(rows, true))?;
                let row = measured.points.first_mut().map(|row| &mut row.time);
                let may_run = row.map_or(Ok(true), |row| self.doubt(row, || time(1, false)))?;
                // What would refuse the cell may be what the machine did meanwhile: it is not to hold for ever.
                if let Some(store) = self.store.as_ref().filter(|_| may_run) {
                    store.keep(&subject, &measured);
                }
                if self.recalibrate {
                    again.insert(cell.key);
                }
                measured
            }
        };
        match calibration.points.first() {
            Some(row) if row.time > self.row_time_max => {
                Err(ModelError::Slow { cell: cell.name.clone(), took: row.time, bound: self.row_time_max })
            }
            _ => Ok(calibration),
        }
    }

    /// Measures a row again that takes too long, unless it is far too long: the least time counts. Whether it is one that may run.
    fn doubt(&self, row: &mut Duration, mut time: impl FnMut() -> Result<Duration, ModelError>) -> Result<bool, ModelError> {
        for _ in 0..ROW_DOUBTS {
            if *row <= self.row_time_max || *row > self.row_time_max.saturating_mul(ROW_FAR) {
                break;
            }
            *row = (*row).min(time()?);
        }
        Ok(*row <= self.row_time_max)
    }
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

/// Models that this process has loaded so far, whichever of its engines.
static LOADS: AtomicU64 = AtomicU64::new(0);

impl Engine {
    /// Loads a model's cells on every worker, measures those that are new, and opens the model for requests.
    ///
    /// # Errors
    /// If its weights are too much, or a device cannot run one of its cells, or not in time, or the engine is going or has panicked; nothing of the model is
    /// left then.
    pub fn load(&self, spec: &ModelSpec) -> Result<Arc<LoadedModel>, ModelError> {
        if self.handles.are_closed() {
            return Err(ModelError::Stopped);
        }
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cells = Vec::with_capacity(spec.cells.len());
        for (position, cell) in spec.cells.iter().enumerate() {
            let loaded = self.load_cell(&mut registry.types, cell, spec.tenant).map(|(cell_type, shared)| {
                registry.types.retain(cell_type);
                let overrides = spec.overrides.get(position).copied().unwrap_or_default();
                loaded_cell(cell, (cell_type, shared), overrides, position)
            });
            match loaded {
                Ok(loaded) => cells.push(loaded),
                Err(error) => {
                    self.release(&mut registry.types, &cells);
                    return Err(error);
                }
            }
        }
        let index = registry.models.iter().position(Option::is_none).unwrap_or(registry.models.len());
        let id = ModelId(u32::try_from(index).unwrap_or(u32::MAX));
        let indices = cells.iter().map(|cell| cell.cell_type).collect();
        let counters = Arc::new(ModelCounters::new(spec.charged.clone()));
        let load = LOADS.fetch_add(1, Ordering::Relaxed);
        let model = Arc::new(LoadedModel { id, load, name: spec.name.clone(), tenant: spec.tenant, cells, indices, counters });
        let up = ToCore::ModelUp { info: Arc::new(model_info(spec, &model)), model: model.clone() };
        if self.inbox.send(up).is_err() {
            self.release(&mut registry.types, &model.cells);
            return Err(ModelError::Stopped);
        }
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
        let (gone, left) = bounded(1);
        {
            let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
            let known = registry.models.get(model.id.index()).and_then(Option::as_ref);
            if !known.is_some_and(|known| Arc::ptr_eq(known, model))
                || self.inbox.send(ToCore::ModelDown { model: model.id, gone }).is_err()
            {
                return;
            }
        }
        // Not answered: the engine has stopped, or somebody else has unloaded it meanwhile.
        if left.recv().is_ok() {
            let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
            // Of several who unload it at the same time the first gets here while it still has its place.
            if registry.models[model.id.index()].take_if(|known| Arc::ptr_eq(known, model)).is_some() {
                self.release(&mut registry.types, &model.cells);
                if !registry.has_models_of(model.tenant) {
                    self.handles.set_weight(model.tenant, 0);
                }
            }
        }
    }

    /// The type of a cell, loaded on all workers that are up and measured, on the first of them beside those of its domain, if it is new.
    fn load_cell(&self, types: &mut CellTypes, cell: &Arc<TypedCell>, tenant: u32) -> Result<(CellTypeId, TypeShared), ModelError> {
        if let Some((id, entry)) = types.find(&cell.key) {
            return Ok((id, entry.shared.clone()));
        }
        let id = types.vacant();
        match self.load_new(id, cell, tenant) {
            Ok((shared, weights)) => {
                types.insert(id, cell.key, shared.clone(), weights);
                self.publish_weights(types);
                Ok((id, shared))
            }
            Err(error) => {
                self.forget(id);
                Err(error)
            }
        }
    }

    fn load_new(&self, index: CellTypeId, cell: &Arc<TypedCell>, tenant: u32) -> Result<(TypeShared, Vec<WeightGrant>), ModelError> {
        let (mut first, mut tables): (Option<(usize, Running)>, _) = (None, Tables::default());
        let (mut loaded_by, mut weights) = (Vec::with_capacity(self.workers.len()), Vec::with_capacity(self.workers.len()));
        for (number, worker) in self.workers.iter().enumerate() {
            let mut grant = worker.weights.as_ref().unwrap_or(&self.weights).grant(tenant);
            // What goes to a device's own memory lies in the machine's until it is there.
            let mut on_its_way = worker.weights.as_ref().map(|_| self.weights.grant(tenant));
            let prepared = prepare(worker, cell, (&mut grant, on_its_way.as_mut()))?;
            match ask(worker, number, |reply| ToWorker::Install { index, cell: cell.clone(), prepared, reply }) {
                Ok(loaded) => {
                    let running = loaded?;
                    tables.add(running.table.as_ref());
                    first = first.or(Some((number, running)));
                    loaded_by.push(number);
                    weights.push(grant);
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
        let time = |rows, lent| self.time((number, if lent { &[] } else { &beside }), index, (rows, lent));
        let names = || beside.iter().map(|other| &*self.workers[*other].info.name).collect();
        let calibration = self.measuring.calibration(cell, (info, names(), running.table.is_some()), time)?;
        let (held_bytes, steps_together) = (weights.iter().map(WeightGrant::bytes).sum(), running.steps_together);
        let shared = TypeShared { calibration: Arc::new(calibration), counters: Arc::default(), tables, steps_together, held_bytes };
        Ok((shared, weights))
    }

    /// How long a batch takes on a worker beside those others, of which each that has no tasks runs the same; or with what others lend.
    fn time(&self, (number, beside): (usize, &[usize]), index: CellTypeId, (rows, lent): (u32, bool)) -> Result<Duration, ModelError> {
        let idle = |other: &&usize| self.gauges.workers[**other].outstanding.load(Ordering::Relaxed) == 0;
        let tell = |number: usize| tell(&self.workers[number], number, |reply| ToWorker::Time { index, rows, lent, reply });
        let others: Vec<_> = beside.iter().filter(idle).filter_map(|other| tell(*other).ok()).collect();
        let own = tell(number)?.recv().map_err(|_| lost(number))?;
        // Each tells the least that it took, which a worker that ended last may owe to having been alone at its end. One that is lost says nothing.
        Ok(others.into_iter().filter_map(|other| other.recv().ok()).fold(own, Duration::max))
    }

    fn release(&self, types: &mut CellTypes, cells: &[LoadedCell]) {
        for cell in cells {
            // What its weights took is free again once they are gone.
            if let Some(_gone) = types.release(cell.cell_type) {
                self.forget(cell.cell_type);
            }
        }
        self.publish_weights(types);
    }

    fn publish_weights(&self, types: &CellTypes) {
        self.gauges.weight_bytes.store(types.weight_bytes(), Ordering::Relaxed);
    }

    /// One at a time: what waits at a worker beside its tasks stays bounded.
    fn forget(&self, index: CellTypeId) {
        for (number, worker) in self.workers.iter().enumerate() {
            // A worker that is gone has forgotten everything.
            let _ = ask(worker, number, |reply| ToWorker::Unload { index, reply });
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
    grant.hold(prepared.weight_bytes)?;
    Ok(prepared)
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

    #[test]
    fn a_cell_of_which_one_row_takes_too_long_is_refused() {
        let cell = cellwright_cell_graph::generate::model(3).cells[0].clone();
        let hardware = String::new();
        let device =
            DeviceInfo { name: String::new(), numeric_class: String::new(), domain: String::new(), arena_slots: 1, hardware, threads: 1 };
        let options = EngineOptions { row_time_max: Duration::from_millis(80), ..EngineOptions::default() };
        let (measuring, mut timed) = (Measuring::new(&options), 0);
        let mut measure = |row_ms: u64| {
            measuring.calibration(&cell, (&device, Vec::new(), false), |rows, _| {
                timed += 1;
                Ok(Duration::from_millis(row_ms) * rows)
            })
        };
        assert_eq!(measure(70).expect("beyond a task's time, within a row's").rows_max(), 1);
        let error = measure(9000).expect_err("nine seconds").to_string();
        assert!(error.ends_with("one row takes 9000 ms, more than the 80 ms that a row may take: make the cell smaller"), "{error}");
        assert!(timed < 8, "a slow cell is timed again and again");
    }

    #[test]
    fn a_row_that_takes_too_long_beside_other_work_is_measured_again() {
        let cell = cellwright_cell_graph::generate::model(3).cells[0].clone();
        let hardware = String::new();
        let device =
            DeviceInfo { name: String::new(), numeric_class: String::new(), domain: String::new(), arena_slots: 1, hardware, threads: 1 };
        let folder = tempfile::tempdir().expect("a folder");
        let kept = Some(folder.path().to_owned());
        let options = EngineOptions { row_time_max: Duration::from_millis(80), calibration_folder: kept, ..EngineOptions::default() };
        let measuring = Measuring::new(&options);
        let measure = |busy_for: usize, row_ms: u64| {
            let mut timed = 0;
            let found = measuring.calibration(&cell, (&device, Vec::new(), false), |rows, _| {
                timed += 1;
                let times = if timed <= busy_for { 7 } else { 1 };
                Ok(Duration::from_millis(row_ms) * rows * times)
            });
            found.map(|found| (found.points[0].time.as_millis(), timed))
        };
        assert!(measure(usize::MAX, 70).is_err(), "it is busy all the time");
        assert_eq!(measure(2, 70).expect("it is slow for a while"), (70, 3), "and was not kept before");
        assert_eq!(measure(usize::MAX, 70).expect("it is known"), (70, 0));
    }
}

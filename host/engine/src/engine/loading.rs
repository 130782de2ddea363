//! Models come and go: their cells on every worker that is up, shared where they are the same, measured once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use cellwright_backend::{CellIndex, LoadError, NodeLayout};
use cellwright_cell_graph::TypedCell;
use cellwright_scheduler::{CellInfo, CellTypeId, ModelId, ModelInfo, NumericClass, TenantId};
use crossbeam_channel::{Sender, bounded};

use super::Engine;
use crate::calibration::{BatchLimits, Calibration, calibrate};
use crate::calibration_store::Subject;
use crate::core::ToCore;
use crate::model::{CellOverride, CellTypes, LoadedCell, LoadedModel, ModelSpec, TypeShared};
use crate::worker::{ToWorker, WorkerLink};

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A device cannot run one of its cells.
    #[error(transparent)]
    Cell(#[from] LoadError),
    /// Its weights would be too much.
    #[error("the model's weights need {needed} bytes, {free} of {limit} are free: unload another model or raise the limit")]
    Weights {
        /// Bytes it would add.
        needed: u64,
        /// Bytes that may still be added.
        free: u64,
        /// Bytes that may be loaded in all.
        limit: u64,
    },
    /// A worker is gone.
    #[error("worker {0} is lost and cannot load a cell")]
    WorkerLost(u32),
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    Stopped,
}

/// Models loaded and their cell types.
#[derive(Default)]
pub(super) struct Registry {
    types: CellTypes,
    /// By id; a model that is being unloaded keeps its place until it is gone.
    models: Vec<Option<Arc<LoadedModel>>>,
}

impl Engine {
    /// Loads a model's cells on every worker, measures those that are new, and opens the model for requests.
    ///
    /// # Errors
    /// If its weights are too much, or a device cannot run one of its cells; nothing of the model is left then.
    pub fn load(&self, spec: &ModelSpec) -> Result<Arc<LoadedModel>, ModelError> {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_weights(&registry.types, spec)?;
        let mut cells = Vec::with_capacity(spec.cells.len());
        for (position, cell) in spec.cells.iter().enumerate() {
            let loaded = self.load_cell(&mut registry.types, cell).map(|(cell_type, shared)| {
                registry.types.retain(cell_type);
                let asked = spec.overrides.get(position).copied().unwrap_or_default();
                let overrides = CellOverride { batch_max: asked.batch_max.map(|rows| rows.min(self.batch_max)), ..asked };
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
        let indices = cells.iter().map(|cell| CellIndex(cell.cell_type.0)).collect();
        let model = Arc::new(LoadedModel { id, name: spec.name.clone(), cells, indices, counters: Arc::default() });
        let up = ToCore::ModelUp { info: Arc::new(model_info(spec, &model)), model: model.clone() };
        self.inbox.send(up).map_err(|_| ModelError::Stopped)?;
        if index == registry.models.len() {
            registry.models.push(None);
        }
        registry.models[index] = Some(model.clone());
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
            registry.models[model.id.index()] = None;
            self.release(&mut registry.types, &model.cells);
        }
    }

    /// The type of a cell, loaded on all workers that are up and measured on the first of them if it is new.
    fn load_cell(&self, types: &mut CellTypes, cell: &Arc<TypedCell>) -> Result<(CellTypeId, TypeShared), ModelError> {
        if let Some((id, entry)) = types.find(&cell.key) {
            return Ok((id, entry.shared.clone()));
        }
        let id = types.vacant();
        let index = CellIndex(id.0);
        match self.load_new(index, cell) {
            Ok(calibration) => {
                let shared = TypeShared { calibration: Arc::new(calibration), counters: Arc::default() };
                types.insert(id, cell, shared.clone());
                self.publish_weights(types);
                Ok((id, shared))
            }
            Err(error) => {
                self.forget(index);
                Err(error)
            }
        }
    }

    fn load_new(&self, index: CellIndex, cell: &Arc<TypedCell>) -> Result<Calibration, ModelError> {
        let mut first = None;
        for (number, worker) in self.workers.iter().enumerate() {
            match ask(worker, number, |reply| ToWorker::Load { index, cell: cell.clone(), reply }) {
                Ok(loaded) => loaded?,
                // Others may go on without it.
                Err(_) => continue,
            }
            first = first.or(Some(number));
        }
        let number = first.ok_or(ModelError::WorkerLost(0))?;
        self.calibration(number, index, cell)
    }

    /// What is known of a cell's batch sizes, or else what that worker measures. How far it may be used is each model's own matter.
    fn calibration(&self, number: usize, index: CellIndex, cell: &TypedCell) -> Result<Calibration, ModelError> {
        let worker = &self.workers[number];
        let (batch_max, task_time_max) = (self.batch_max, self.task_time_max);
        let subject = Subject { cell: cell.key, device: &worker.info, batch_max, task_time_max };
        if let Some(known) = self.calibrations.as_ref().and_then(|store| store.find(&subject)) {
            return Ok(known);
        }
        let measured = calibrate(batch_max, task_time_max, |rows| ask(worker, number, |reply| ToWorker::Time { index, rows, reply }))?;
        if let Some(store) = &self.calibrations {
            store.keep(&subject, &measured);
        }
        Ok(measured)
    }

    fn release(&self, types: &mut CellTypes, cells: &[LoadedCell]) {
        for cell in cells {
            if types.release(cell.cell_type) {
                self.forget(CellIndex(cell.cell_type.0));
            }
        }
        self.publish_weights(types);
    }

    fn check_weights(&self, types: &CellTypes, spec: &ModelSpec) -> Result<(), ModelError> {
        let limit = self.gauges.weight_bytes_max;
        let free = limit.saturating_sub(types.weight_bytes());
        let needed = types.weight_bytes_added(&spec.cells);
        if needed <= free { Ok(()) } else { Err(ModelError::Weights { needed, free, limit }) }
    }

    fn publish_weights(&self, types: &CellTypes) {
        self.gauges.weight_bytes.store(types.weight_bytes(), Ordering::Relaxed);
    }

    /// One at a time: what waits at a worker beside its tasks stays bounded.
    fn forget(&self, index: CellIndex) {
        for (number, worker) in self.workers.iter().enumerate() {
            // A worker that is gone has forgotten everything.
            let _ = ask(worker, number, |reply| ToWorker::Unload { index, reply });
        }
    }
}

/// Asks a worker and waits for its reply.
fn ask<T>(worker: &WorkerLink, number: usize, message: impl FnOnce(Sender<T>) -> ToWorker) -> Result<T, ModelError> {
    let lost = || ModelError::WorkerLost(u32::try_from(number).unwrap_or(u32::MAX));
    let (reply, answer) = bounded(1);
    worker.sender.send(message(reply)).map_err(|_| lost())?;
    answer.recv().map_err(|_| lost())
}

fn loaded_cell(
    cell: &Arc<TypedCell>,
    (cell_type, shared): (CellTypeId, TypeShared),
    overrides: CellOverride,
    position: usize,
) -> LoadedCell {
    let TypeShared { calibration, counters } = shared;
    let own = overrides.batch_max.into_iter().chain(cell.batch_max).min().unwrap_or(u32::MAX);
    let limits = BatchLimits { max: overrides.batch_max.unwrap_or(calibration.knee).min(own).max(1) };
    // Later cells of a description lie deeper in the model, and run first (paper, section 4.3).
    let depth = i32::try_from(position).unwrap_or(i32::MAX);
    let priority = overrides.priority.or(cell.priority).unwrap_or(depth);
    LoadedCell { cell: cell.clone(), cell_type, slots: NodeLayout::of(cell).slots, priority, calibration, limits, counters }
}

fn model_info(spec: &ModelSpec, model: &LoadedModel) -> ModelInfo {
    let cells = model.cells.iter().map(|cell| CellInfo {
        cell_type: cell.cell_type,
        slots: cell.slots,
        priority: cell.priority,
        batch: cell.limits.sizes(),
    });
    let largest = model.cells.iter().map(|cell| cell.slots).max().unwrap_or(1);
    ModelInfo {
        model: model.id,
        tenant: TenantId(spec.tenant),
        weight: spec.weight.max(1),
        class: NumericClass(0),
        cells: cells.collect(),
        growth_slots: spec.live_max.map(|live| live.saturating_mul(largest)),
    }
}

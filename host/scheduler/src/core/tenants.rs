//! Tenants and their models: which are known, and with what weight.
//!
//! A closed model is forgotten with its last request, a tenant with its last model. So tables grow
//! with what exists now. A tenant that comes back starts like a new one.

use std::sync::Arc;

use crate::core::fairness::{Share, Start};
use crate::core::fleet::{Model, entry};
use crate::core::queues::TypeQueue;
use crate::core::{Core, Note};
use crate::event::ModelInfo;
use crate::id::{ModelId, NumericClass, TenantId};
use crate::policy::{PolicyKind, Takes};

/// A tenant's position in the table of those that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TenantIndex(usize);

impl TenantIndex {
    pub(crate) const fn index(self) -> usize {
        self.0
    }

    /// As [`Parts`](crate::Parts) count tenants.
    pub(crate) const fn number(self) -> u32 {
        self.0 as u32
    }
}

/// A tenant, and how much device time it had.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) id: TenantId,
    /// At least 1.
    pub(crate) weight: u32,
    /// Models of it that are known.
    models: u32,
    /// Models of it that are active, ascending.
    pub(crate) active: Vec<ModelId>,
    /// Whether it counts as active.
    pub(crate) awake: bool,
    pub(crate) share: Share,
    /// Where its models start that come back.
    pub(crate) start: Start,
}

impl Core {
    /// The policy of a model; cellular batching, if its tasks run in slices and its own knows no waiting.
    pub(crate) fn policy_of(&self, info: &ModelInfo) -> PolicyKind {
        let policy = info.policy.unwrap_or(self.config.policy);
        if policy.takes() == Takes::RequestsInOrder && self.runs_in_slices(info) { PolicyKind::Cellular } else { policy }
    }

    /// Whether a model takes submissions.
    pub(crate) fn is_open(&self, model: ModelId) -> bool {
        self.models.get(model.index()).and_then(Option::as_ref).is_some_and(|model| !model.closed)
    }

    /// A model may be asked for. Its policy takes nodes or requests.
    pub(crate) fn model_up(&mut self, info: Arc<ModelInfo>, takes: Takes) {
        let last = info.cells.iter().map(|cell| cell.cell_type.index()).max();
        if last.is_some_and(|last| last >= self.types.len()) {
            self.types.resize_with(last.map_or(0, |last| last + 1), TypeQueue::default);
        }
        let model = info.model;
        self.forget_model(model);
        for cell in &info.cells {
            let queue = &mut self.types[cell.cell_type.index()];
            if queue.cells == 0 {
                // The number may have been another type's, whose tasks took another time.
                queue.estimate_ns = 0;
            }
            queue.cells += 1;
        }
        let tenant = self.know_tenant(info.tenant, info.weight);
        let (class, weight) = (info.class, self.tenant(tenant).weight);
        let policy = self.policy_of(&info);
        let sliced = self.runs_in_slices(&info);
        let known = Model { sliced, ..Model::new(info, tenant, (policy, takes)) };
        self.models_of_batches += u32::from(known.takes_requests());
        *entry(&mut self.models, model.index()) = Some(known);
        self.set_part(class, tenant, weight);
        self.fit_batches(|known| known.info.model == model);
    }

    /// A tenant has a part of the memory of a class by its weight; none by a weight of 0.
    fn set_part(&mut self, class: NumericClass, tenant: TenantIndex, weight: u32) {
        let known = self.class_mut(class);
        known.queues.parts_mut().set_weight(tenant.number(), weight);
        let shared = known.queues.parts().are_shared();
        if std::mem::replace(&mut known.shared, shared) != shared {
            self.fit_batches(|known| known.info.class == class);
        }
    }

    /// Where tenants share workers, a batch takes no longer than a slice.
    fn fit_batches(&mut self, of: impl Fn(&Model) -> bool) {
        let Self { models, classes, config, .. } = self;
        for model in models.iter_mut().flatten().filter(|model| of(model)) {
            let is_bounded = classes[model.info.class.index()].shared && config.slice_ns > 0;
            model.fit_batches(is_bounded.then_some(config.slice_ns));
        }
    }

    pub(crate) fn model_down(&mut self, id: ModelId) {
        if let Some(Some(model)) = self.models.get_mut(id.index()) {
            model.closed = true;
            self.note_if_over(id);
        }
    }

    /// A request of a model has left, and nothing in flight names it any more.
    pub(crate) fn request_left(&mut self, id: ModelId) {
        self.model_mut(id).requests -= 1;
        self.note_if_over(id);
    }

    /// Forgets models that are over. Called when no change is half done: the code that ends a
    /// model's last request may still read the model.
    #[inline]
    pub(crate) fn forget_models_over(&mut self) {
        while let Some(id) = self.models_over.pop() {
            self.forget_model_that_is_over(id);
        }
    }

    pub(crate) fn tenant_weight(&mut self, id: TenantId, weight: u32) {
        let known = self.tenants.iter().position(|tenant| tenant.as_ref().is_some_and(|tenant| tenant.id == id)).map(TenantIndex);
        let Some(tenant) = known else { return };
        let weight = weight.max(1);
        self.tenant_mut(tenant).weight = weight;
        for class in (0..self.classes.len()).map(|class| NumericClass(class as u32)) {
            if self.class_mut(class).queues.parts().weight(tenant.number()) > 0 {
                self.set_part(class, tenant, weight);
            }
        }
    }

    pub(crate) fn tenant_of(&self, model: ModelId) -> &Tenant {
        self.tenant(self.model(model).tenant)
    }

    pub(crate) fn tenant(&self, tenant: TenantIndex) -> &Tenant {
        self.tenants[tenant.0].as_ref().expect("a model's tenant is known")
    }

    pub(crate) fn tenant_mut(&mut self, tenant: TenantIndex) -> &mut Tenant {
        self.tenants[tenant.0].as_mut().expect("a model's tenant is known")
    }

    fn know_tenant(&mut self, id: TenantId, weight: u32) -> TenantIndex {
        let weight = weight.max(1);
        if let Some(index) = self.tenants.iter().position(|tenant| tenant.as_ref().is_some_and(|tenant| tenant.id == id)) {
            let tenant = self.tenant_mut(TenantIndex(index));
            (tenant.models, tenant.weight) = (tenant.models + 1, weight);
            return TenantIndex(index);
        }
        let (share, start) = (Share::default(), Start::default());
        let index = self.tenants.iter().position(Option::is_none).unwrap_or(self.tenants.len());
        *entry(&mut self.tenants, index) = Some(Tenant { id, weight, models: 1, active: Vec::new(), awake: false, share, start });
        TenantIndex(index)
    }

    #[inline]
    fn note_if_over(&mut self, id: ModelId) {
        if self.model(id).closed && self.model(id).requests == 0 {
            self.models_over.push(id);
        }
    }

    #[cold]
    fn forget_model_that_is_over(&mut self, id: ModelId) {
        // Uncounted changes may name the model, even if its requests came and went within this
        // turn.
        self.settle_counts();
        if self.model(id).active {
            // It was active until now.
            self.switch_activity(&[id]);
        }
        self.forget_model(id);
    }

    fn forget_model(&mut self, id: ModelId) {
        let Some(model) = self.models.get_mut(id.index()).and_then(Option::take) else { return };
        assert!(model.requests == 0 && !model.active, "a model is replaced while requests name it");
        self.models_of_batches -= u32::from(model.takes_requests());
        for cell in &model.info.cells {
            self.types[cell.cell_type.index()].cells -= 1;
        }
        self.touched.retain(|touched| *touched != id);
        self.notes.push((id, Note::ModelGone));
        let shares_part = |other: &Model| other.tenant == model.tenant && other.info.class == model.info.class;
        if !self.models.iter().flatten().any(shares_part) {
            self.set_part(model.info.class, model.tenant, 0);
            // The others may have more.
            self.freed = true;
        }
        let tenant = self.tenant_mut(model.tenant);
        tenant.models -= 1;
        if tenant.models == 0 {
            self.tenants[model.tenant.0] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchSizes, CellInfo, CellTypeId, Config, CostTable, NumericClass};

    fn model(id: u32) -> Arc<ModelInfo> {
        let batch = BatchSizes { min: 1, quantum: 1, max: 4 };
        let cells = vec![CellInfo {
            cell_type: CellTypeId(0),
            slots: 1,
            priority: 0,
            batch,
            cost: CostTable::unknown(),
            fill_first: false,
            steps_together: false,
            spans: None,
        }];
        Arc::new(ModelInfo {
            model: ModelId(id),
            tenant: TenantId(0),
            weight: 1,
            class: NumericClass(0),
            policy: None,
            cells,
            growth_slots: None,
        })
    }

    #[test]
    fn a_type_takes_its_estimate_with_it() {
        let mut core = Core::new(Config::default());
        core.model_up(model(0), Takes::Nodes);
        core.types[0].estimate_ns = 7;
        core.model_up(model(1), Takes::Nodes);
        core.model_down(ModelId(0));
        core.forget_models_over();
        assert_eq!(core.types[0].estimate_ns, 7, "another model uses the type");
        core.model_down(ModelId(1));
        core.forget_models_over();
        core.model_up(model(2), Takes::Nodes);
        assert_eq!(core.types[0].estimate_ns, 0, "the number was given to another type");
    }
}

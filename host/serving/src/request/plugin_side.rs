//! What plugin threads touch of a request: what its graph has come to, and what its plugin sees.

use std::sync::Arc;

use cellwright_cell_graph::check::Unfolding;
use cellwright_cell_graph::unfolded::Watch;
use cellwright_cell_graph::{Attribute, Tensor, UnfoldedGrowth};
use cellwright_engine::RequestTensors;
use cellwright_plugin_runtime::RequestView;

use super::front::Occasion;
use crate::error::InferError;
use crate::model::ServedModel;
use crate::plugin_time::PluginTime;

/// What plugin threads touch.
pub(super) struct PluginSide {
    pub(super) unfolding: Unfolding,
    pub(super) tensors: RequestTensors,
    /// What the plugin sees of them.
    pub(super) view: Arc<RequestView>,
    pub(super) watch: Option<Watch>,
    pub(super) resumes: u32,
    pub(super) time: Arc<PluginTime>,
}

impl PluginSide {
    /// Counts a call that is about to be made. What more input costs is not held against what came before.
    pub(super) fn count(&mut self, occasion: &Occasion, model: &ServedModel) -> Result<(), InferError> {
        if matches!(occasion, Occasion::Input(_)) {
            self.time.start_over();
            self.resumes = 0;
        }
        self.time.check(model)?;
        self.resumes += 1;
        let limit = model.limits.resumes_max;
        if self.resumes > limit {
            return Err(InferError::Resumes { plugin: model.plugin_name().to_owned(), limit });
        }
        Ok(())
    }

    /// Remembers what a checked growth asks to be called with, and lets go of the tensors that no later growth may name. The growth itself may: the
    /// engine holds them for it.
    pub(super) fn follow(&mut self, growth: &UnfoldedGrowth) {
        self.watch.clone_from(&growth.next);
        let Some(next) = &self.watch else { return };
        let RequestTensors { first, tensors } = &mut self.tensors;
        let gone = next.keep_tensors_from.saturating_sub(*first).min(u32::try_from(tensors.len()).unwrap_or(u32::MAX));
        if gone > 0 {
            tensors.drain(..gone as usize);
            *first += gone;
            self.view = view(&self.tensors, self.view.parameters.clone());
        }
    }

    /// Adds a chunk to the request's tensors; gives the number of its first.
    pub(super) fn take_in(&mut self, chunk: Vec<Arc<Tensor>>, model: &ServedModel) -> Result<u32, InferError> {
        let limit = model.limits.kept_bytes_max;
        let count = u32::try_from(self.tensors.tensors.len()).ok();
        let first = count.and_then(|count| self.tensors.first.checked_add(count)).ok_or(InferError::SessionOver)?;
        self.tensors.tensors.extend(chunk);
        let kept: usize = self.tensors.tensors.iter().map(|tensor| tensor.data.len()).sum();
        if kept > limit {
            return Err(InferError::Keeps { plugin: model.plugin_name().to_owned(), limit });
        }
        self.view = view(&self.tensors, self.view.parameters.clone());
        Ok(first)
    }
}

pub(super) fn view(tensors: &RequestTensors, parameters: Vec<Attribute>) -> Arc<RequestView> {
    let seen = RequestView::new(tensors.tensors.iter().cloned(), parameters);
    Arc::new(RequestView { first_tensor: tensors.first, ..seen })
}

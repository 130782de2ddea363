//! What a plugin gives, checked and expected: the first growth of a request, and later ones.

use std::sync::Arc;
use std::time::Instant;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::check::Unfolding;
use cellwright_cell_graph::graph::Growth;
use cellwright_engine::RequestTensors;
use cellwright_plugin_runtime::RequestView;

use crate::answer_room::NoRoom;
use crate::error::InferError;
use crate::model::ServedModel;
use crate::outputs::{Outputs, Taking};

/// What a request begins with once its plugin was called.
pub(super) struct Unfolded {
    pub(super) unfolding: Unfolding,
    pub(super) growth: Arc<UnfoldedGrowth>,
    pub(super) outputs: Outputs,
}

/// Asks the plugin for the first growth of a request, checks it, and takes the room that its outputs need.
pub(super) fn unfold(
    model: &ServedModel,
    view: &Arc<RequestView>,
    tensors: &RequestTensors,
    taking: Taking,
) -> Result<Unfolded, InferError> {
    let began = Instant::now();
    let growth = model.plugin().unfold(view)?;
    // Checking it takes as long again.
    model.plugin().tell_if_long(began);
    let mut unfolding = model.unfolding();
    let growth = grown(model, &mut unfolding, growth, tensors)?;
    let outputs = Outputs::new(taking, &growth).and_then(|mut outputs| outputs.hold(&growth).map(|()| outputs));
    let outputs = outputs.map_err(|no_room| too_large(model, no_room))?;
    Ok(Unfolded { unfolding, growth, outputs })
}

/// Checks a growth against its model and its request.
pub(super) fn grown(
    model: &ServedModel,
    unfolding: &mut Unfolding,
    growth: Growth,
    tensors: &RequestTensors,
) -> Result<Arc<UnfoldedGrowth>, InferError> {
    let growth = unfolding.grow(growth, tensors.first, &tensors.tensors);
    growth.map(Arc::new).map_err(|source| InferError::Graph { plugin: model.plugin_name().to_owned(), source })
}

pub(super) fn too_large(model: &ServedModel, NoRoom { bytes_max: limit, of_tenant }: NoRoom) -> InferError {
    if of_tenant {
        InferError::AnswersTooLarge { limit }
    } else {
        InferError::AnswerTooLarge { plugin: model.plugin_name().to_owned(), limit }
    }
}

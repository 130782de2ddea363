//! Whether a plugin unfolds a sample to the same graph on an instance that has served others and on a new one.

use std::sync::Arc;

use super::view;
use crate::model::ServedModel;
use cellwright_protocol::{InferRequest, split_rows};

/// Unfolds the request on a used and on two fresh instances.
pub(crate) fn check(model: &ServedModel, request: &InferRequest) -> Result<(), String> {
    let first = if model.description().rows_are_requests {
        split_rows(request, model.limits().rows_max).map_err(|fault| fault.to_string())?.swap_remove(0)
    } else {
        request.clone()
    };
    let view = Arc::new(view(model, first));
    let fresh = || model.plugin().unfold_fresh(&view).map_err(|error| format!("on a fresh instance it failed: {error}"));
    let used = model.plugin().unfold(&view).map_err(|error| format!("on a used instance it failed: {error}"))?;
    if used != fresh()? {
        return Err(
            "the plugin makes one graph of it on a used instance and another on a fresh one: it must keep nothing between requests"
                .to_owned(),
        );
    }
    if used != fresh()? {
        return Err("the plugin makes different graphs of it on two fresh instances: it must be deterministic".to_owned());
    }
    Ok(())
}

//! Whether a plugin unfolds a sample to the same graph on an instance that has served others and on a new one.

use std::sync::Arc;

use super::{Fault, view_of_first};
use crate::error::InferError;
use crate::model::ServedModel;
use cellwright_plugin_runtime::CallError;
use cellwright_protocol::InferRequest;

/// Unfolds the request on a used and on two fresh instances.
pub(crate) fn check(model: &ServedModel, request: &InferRequest) -> Result<(), Fault> {
    let view = Arc::new(view_of_first(model, request).map_err(|fault| Fault::of(&fault))?);
    let failed = |which: &str, error: CallError| {
        let error = InferError::Plugin(error);
        Fault { sentence: format!("on a {which} instance it failed: {error}"), error: Some(error.kind()), distance: None }
    };
    let fresh = || model.plugin().unfold_fresh(&view).map_err(|error| failed("fresh", error));
    let used = model.plugin().unfold(&view).map_err(|error| failed("used", error))?;
    let differs = |sentence: &str| Err(Fault::of(sentence));
    if used != fresh()? {
        return differs("the plugin makes different graphs of it on a used and on a fresh instance: it must keep nothing between requests");
    }
    if used != fresh()? {
        return differs("the plugin makes different graphs of it on two fresh instances: it must be deterministic");
    }
    Ok(())
}

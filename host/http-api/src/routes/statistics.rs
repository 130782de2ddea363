//! The statistics extension: what models' requests have cost.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use cellwright_gate::figures::TotalView;
use cellwright_gate::platform::ModelFigures;
use cellwright_protocol::messages::statistics::{BatchStatistics, Duration, InferenceStatistics, ModelStatistics, Statistics};

use super::{Target, look_up};
use crate::app::App;
use crate::auth::Caller;
use crate::refusal::Refusal;

pub(super) async fn all(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Refusal> {
    look_up(&app, caller, move |platform, caller| {
        Ok(Statistics { model_stats: platform.figures(caller.sees()).models.iter().map(statistics).collect() })
    })
    .await
}

/// All versions of a model that have served, or the one that is named, whether or not it serves now.
pub(super) async fn one(State(app): State<Arc<App>>, caller: Caller, target: Target) -> Result<Response, Refusal> {
    let asked = app.clone();
    look_up(&app, caller, move |platform, caller| {
        let figures = platform.figures(Some(&caller.tenant));
        let is_meant = |figures: &&ModelFigures| {
            figures.name == target.model && target.version.as_ref().is_none_or(|version| *version == figures.version.to_string())
        };
        let model_stats: Vec<ModelStatistics> = figures.models.iter().filter(is_meant).map(statistics).collect();
        if model_stats.is_empty() {
            target.find(&asked, &caller)?;
        }
        Ok(Statistics { model_stats })
    })
    .await
}

fn statistics(figures: &ModelFigures) -> ModelStatistics {
    ModelStatistics {
        name: figures.name.clone(),
        version: figures.version.to_string(),
        last_inference: figures.calls.last_ms,
        inference_count: figures.calls.requests,
        execution_count: figures.tasks(),
        inference_stats: InferenceStatistics {
            success: duration(figures.calls.success),
            fail: duration(figures.calls.failure),
            queue: duration(figures.calls.queue),
            compute_input: duration(figures.calls.unfold),
            compute_infer: duration(figures.calls.compute),
            ..InferenceStatistics::default()
        },
        batch_stats: batches(figures),
    }
}

/// Batches by size, where sizes are told apart by powers of two. Their times are not measured one by one, so each has an equal share of the version's.
fn batches(figures: &ModelFigures) -> Vec<BatchStatistics> {
    let tasks = u128::from(figures.tasks().max(1));
    let mut largest = 1;
    let mut batches = Vec::new();
    for (bound, count) in figures.batches() {
        let batch_size = bound.unwrap_or(largest * 2);
        largest = batch_size;
        if count > 0 {
            let share = u128::from(figures.device.device_ns) * u128::from(count) / tasks;
            let compute_infer = Duration { count, ns: u64::try_from(share).unwrap_or(u64::MAX) };
            batches.push(BatchStatistics { batch_size, compute_infer, ..BatchStatistics::default() });
        }
    }
    batches
}

fn duration(total: TotalView) -> Duration {
    Duration { count: total.count, ns: total.ns }
}

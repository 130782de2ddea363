//! The statistics extension: what models' requests have cost.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use cellwright_protocol::messages::statistics::{BatchStatistics, Duration, InferenceStatistics, ModelStatistics, Statistics};

use super::{Target, ok};
use crate::app::App;
use crate::auth::Caller;
use crate::figures::{ModelFigures, Total};
use crate::refusal::Refusal;

pub(super) async fn all(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Refusal> {
    let figures = app.host.figures(caller.sees());
    ok(&Statistics { model_stats: figures.models.iter().map(statistics).collect() })
}

pub(super) async fn one(State(app): State<Arc<App>>, caller: Caller, target: Target) -> Result<Response, Refusal> {
    let model = caller.find(&app, &target)?;
    let figures = app.host.figures(Some(&caller.tenant));
    let of_model = figures.models.iter().filter(|figures| figures.name == model.name());
    ok(&Statistics { model_stats: of_model.map(statistics).collect() })
}

fn statistics(figures: &ModelFigures) -> ModelStatistics {
    ModelStatistics {
        name: figures.name.clone(),
        version: figures.version.map(|version| version.to_string()).unwrap_or_default(),
        last_inference: figures.last_ms,
        inference_count: figures.requests,
        execution_count: figures.cells.iter().map(|cell| cell.tasks).sum(),
        inference_stats: InferenceStatistics {
            success: duration(figures.success),
            fail: duration(figures.failure),
            queue: duration(figures.queue),
            compute_input: duration(figures.unfold),
            compute_infer: duration(figures.compute),
            ..InferenceStatistics::default()
        },
        batch_stats: batches(figures),
    }
}

/// Batches by size, where sizes are told apart by powers of two. Their times are not measured one by one, so each has its share of its cell's.
fn batches(figures: &ModelFigures) -> Vec<BatchStatistics> {
    let mut sizes: std::collections::BTreeMap<u64, Duration> = std::collections::BTreeMap::new();
    for cell in &figures.cells {
        let mut largest = 1;
        for (bound, count) in &cell.batches {
            let size = bound.unwrap_or(largest * 2);
            largest = size;
            if *count > 0 {
                let share = u128::from(cell.busy_ns) * u128::from(*count) / u128::from(cell.tasks.max(1));
                let sum = sizes.entry(size).or_default();
                sum.count += count;
                sum.ns = sum.ns.saturating_add(u64::try_from(share).unwrap_or(u64::MAX));
            }
        }
    }
    let batch = |(batch_size, compute_infer)| BatchStatistics { batch_size, compute_infer, ..BatchStatistics::default() };
    sizes.into_iter().map(batch).collect()
}

fn duration(total: Total) -> Duration {
    Duration { count: total.count, ns: total.ns }
}

//! A model that serves: its plugin, its cells on the devices, its limits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cellwright_cell_graph::check::{GraphLimits, Model, Unfolding};
use cellwright_cell_graph::{CellTypeKey, Description, TensorSpec};
use cellwright_engine::{LoadedCell, LoadedModel, WeightGrant};
use cellwright_plugin_runtime::PluginModel;
use cellwright_protocol::EmbeddingNames;

use crate::answer_room::{AnswerRoom, TenantRoom};
use crate::plugin_threads::PluginOf;
use crate::serving::Owner;

/// What one request of a model may use beyond what the plugin runtime bounds for each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// How often its plugin may be called back.
    pub resumes_max: u32,
    /// Processor time of all calls of its plugin together, and of what the host does with their answers. The rows of a call share it; a session's is
    /// counted anew for each chunk of its input.
    pub plugin_time_max: Duration,
    /// Rows of one call of a model whose rows are requests.
    pub rows_max: usize,
    /// Chunks of a session that may wait.
    pub chunks_waiting_max: usize,
    /// Bytes of a session's input that its plugin may keep.
    pub kept_bytes_max: usize,
    /// Bytes that one answer, and what the plugin watches for it, may take of the host's memory, counted as soon as a graph asks for them; and
    /// bytes of its parts that may wait for a client. The rows of a call share one answer's.
    pub answer_bytes_max: u64,
    /// The expanded graph.
    pub graph: GraphLimits,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            resumes_max: 1 << 16,
            plugin_time_max: Duration::from_secs(10),
            rows_max: 1 << 12,
            chunks_waiting_max: 64,
            kept_bytes_max: 256 << 20,
            answer_bytes_max: 512 << 20,
            graph: GraphLimits::default(),
        }
    }
}

/// What calls may use together: those of a model, or those of a tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallBounds {
    /// Calls in flight.
    pub in_flight_max: u32,
    /// Calls that wait for a place among them.
    pub queued_max: u32,
    /// Fraction of the time of all devices; none: no bound.
    pub device_share: Option<f64>,
}

/// A cell of a served model, for people.
#[derive(Clone, Debug)]
pub struct CellSummary {
    /// The plugin's name for it.
    pub name: String,
    /// Its type's identity.
    pub key: CellTypeKey,
    /// Floating-point operations of one row.
    pub flops: u64,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Batch sizes that were measured.
    pub measured: Vec<(u32, Duration)>,
    /// The knee of what was measured.
    pub calibrated: u32,
    /// The limit in force.
    pub batch_max: u32,
    /// Batch sizes that were measured as one batch with the threads of all workers of a memory.
    pub measured_lent: Vec<(u32, Duration)>,
    /// Whether a worker's batch is filled before another of the same memory begins one.
    pub fill_first: bool,
    /// Its rank among the model's types.
    pub priority: i32,
    /// Bytes of the tables by which workers look up what it computes of a token, if they have some by now.
    pub table_bytes: Option<u64>,
}

/// A model that serves.
pub struct ServedModel {
    pub(crate) name: String,
    pub(crate) plugin_name: String,
    pub(crate) plugin: PluginModel,
    pub(crate) model: Arc<Model>,
    /// Room for its description.
    _described: WeightGrant,
    pub(crate) loaded: Arc<LoadedModel>,
    /// Its tenant, as the engine knows it.
    tenant: u32,
    pub(crate) limits: RequestLimits,
    bounds: CallBounds,
    /// Counters to which processor time of its plugin is added, in nanoseconds.
    pub(crate) charged: Vec<Arc<AtomicU64>>,
    /// What all answers of its tenant share.
    answers: Arc<TenantRoom>,
    /// The description's tensors as one request sees them: without the leading dimension where rows are requests.
    pub(crate) inputs: Arc<[TensorSpec]>,
    embeddings: Option<EmbeddingNames>,
    pub(crate) outputs: Arc<[TensorSpec]>,
}

/// A tensor of the description as one request sees it.
fn of_one_request(spec: &TensorSpec, rows_are_requests: bool) -> TensorSpec {
    let shape = spec.shape.get(usize::from(rows_are_requests)..).unwrap_or_default().to_vec();
    TensorSpec { name: spec.name.clone(), datatype: spec.datatype, shape }
}

impl fmt::Debug for ServedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedModel").field("name", &self.name).field("plugin", &self.plugin_name).finish_non_exhaustive()
    }
}

impl ServedModel {
    pub(crate) fn new(
        (name, plugin_name): (String, String),
        plugin: PluginModel,
        (model, described): (Arc<Model>, WeightGrant),
        (loaded, Owner { number: tenant, charged, .. }): (Arc<LoadedModel>, Owner<'_>),
        (limits, bounds, answers): (RequestLimits, CallBounds, Arc<TenantRoom>),
        embeddings: Option<EmbeddingNames>,
    ) -> Self {
        let rows = model.description.rows_are_requests;
        let [inputs, outputs] = [&model.description.inputs, &model.description.outputs]
            .map(|specs| specs.iter().map(|spec| of_one_request(spec, rows)).collect());
        Self {
            name,
            plugin_name,
            plugin,
            model,
            _described: described,
            loaded,
            tenant,
            limits,
            bounds,
            charged: charged.to_vec(),
            answers,
            inputs,
            embeddings,
            outputs,
        }
    }

    /// By which of its tensors it answers `/v1/embeddings`, if it does.
    #[must_use]
    pub const fn embeddings(&self) -> Option<&EmbeddingNames> {
        self.embeddings.as_ref()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its plugin says of it.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.model.description
    }

    /// Its plugin, described and ready.
    #[must_use]
    pub const fn plugin(&self) -> &PluginModel {
        &self.plugin
    }

    /// What its requests may use.
    #[must_use]
    pub const fn limits(&self) -> &RequestLimits {
        &self.limits
    }

    /// What its calls may use together.
    #[must_use]
    pub const fn bounds(&self) -> CallBounds {
        self.bounds
    }

    /// Its cells, in the plugin's order.
    #[must_use]
    pub fn cells(&self) -> Vec<CellSummary> {
        self.loaded.cells.iter().map(summary).collect()
    }

    /// A request's graph, before its first growth.
    #[must_use]
    pub fn unfolding(&self) -> Unfolding {
        Unfolding::new(self.model.clone(), self.limits.graph)
    }

    /// For the answer of one call.
    pub(crate) fn answer_room(&self) -> Arc<AnswerRoom> {
        Arc::new(AnswerRoom::new(&self.answers, self.limits.answer_bytes_max))
    }

    /// As the engine has it.
    #[must_use]
    pub const fn loaded(&self) -> &Arc<LoadedModel> {
        &self.loaded
    }

    /// Whose turn it is when its plugin is called.
    pub(crate) fn plugin_of(&self) -> PluginOf {
        PluginOf { tenant: self.tenant, model: self.loaded.id.0 }
    }

    pub(crate) fn plugin_name(&self) -> &str {
        &self.plugin_name
    }
}

fn summary(loaded: &LoadedCell) -> CellSummary {
    CellSummary {
        name: loaded.cell.name.clone(),
        key: loaded.cell.key,
        flops: loaded.cell.flops,
        weight_bytes: loaded.cell.weight_bytes,
        measured: loaded.calibration.points.iter().map(|point| (point.rows, point.time)).collect(),
        calibrated: loaded.calibration.knee(),
        batch_max: loaded.limits.max,
        measured_lent: loaded.calibration.lent.iter().map(|point| (point.rows, point.time)).collect(),
        fill_first: loaded.calibration.fills_first(),
        priority: loaded.priority,
        table_bytes: loaded.tables.counts().map(|tables| tables.bytes).filter(|bytes| *bytes > 0),
    }
}

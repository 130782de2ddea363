//! The host as its front ends see it: load models, take requests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use cellwright_backend::Backend;
use cellwright_backend::machine::memory_bytes;
use cellwright_bundle::{Bundle, EmbeddingSettings, NamedPolicy};
use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::resolve::{CellLimits, ResolveContext};
use cellwright_cell_graph::{Datatype, Description, TensorSpec};
use cellwright_engine::{
    CellOverride, ClosedModel, Engine, EngineOptions, Lazy, ModelSpec, PolicyKind, RequestFailure, Urgency, WeightGrant,
};
use cellwright_plugin_runtime::{Runtime, RuntimeOptions};
use cellwright_protocol::{EmbeddingNames, InferRequest};

use crate::abandoned::Abandoned;
use crate::answer::{Answer, AnswerWriter, Delivery, Patience};
use crate::answer_room::{HostRoom, TenantRoom};
use crate::error::{InferError, LoadError, StartError};
use crate::input::arrange;
use crate::model::{CallBounds, RequestLimits, ServedModel};
use crate::plugin_threads::PluginThreads;
use crate::recipient::Recipient;
use crate::request::{Active, Begin};
use crate::rows;

/// A host's configuration.
#[derive(Debug)]
pub struct ServingOptions {
    /// The plugin runtime's.
    pub runtime: RuntimeOptions,
    /// The engine's.
    pub engine: EngineOptions,
    /// Calls back into the plugin of one model that may run at once, each on a thread of its own;
    /// there are two threads more, one for other models of its tenant and one for other tenants.
    pub plugin_threads: usize,
    /// Bytes of memory that all answers may take together that are on their way, those of one
    /// tenant half of what others leave; none: a quarter of the machine's.
    pub answers_bytes_max: Option<u64>,
}

/// The tenant that owns a model.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Cells are shared among the models of one tenant only.
    pub tenant: &'a str,
    /// The same as the scheduler knows it.
    pub number: u32,
    /// The tenant's share of device time, relative to others; at least 1.
    pub weight: u32,
    /// Counters of whose share it is charged to: device time and processor time of its plugin, in
    /// nanoseconds.
    pub charged: &'a [Arc<AtomicU64>],
}

/// What requests need of the host.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) engine: Engine,
    pub(crate) plugin_threads: PluginThreads,
    /// The plugin runtime's.
    pub(crate) on_long_call: fn(),
}

/// A host: a plugin runtime, an engine, and the models that serve on them.
pub struct Serving {
    runtime: Runtime,
    inner: Arc<Inner>,
    answers: HostRoom,
    /// Those of tenants that have models, by number.
    tenants: Mutex<BTreeMap<u32, Weak<TenantRoom>>>,
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").field("engine", &self.inner.engine).finish_non_exhaustive()
    }
}

impl Serving {
    /// Starts the engine on those devices.
    ///
    /// # Errors
    /// If the runtime, the engine or a thread cannot be had.
    pub fn start(options: ServingOptions, backends: Vec<Box<dyn Backend>>) -> Result<Self, StartError> {
        let in_flight_max = options.engine.in_flight_max as usize;
        let on_long_call = options.runtime.on_long_call;
        let runtime = Runtime::new(options.runtime)?;
        // A request has one call waiting at most; beside it wait calls of its model's requests that
        // have ended since, to be passed over, and large answers of such requests, to be put
        // together.
        let plugin_threads = PluginThreads::start(options.plugin_threads, in_flight_max.saturating_mul(2))?;
        let engine = Engine::start(options.engine, backends)?;
        let answers = HostRoom::new(options.answers_bytes_max.unwrap_or_else(|| memory_bytes() / 4));
        Ok(Self { runtime, inner: Arc::new(Inner { engine, plugin_threads, on_long_call }), answers, tenants: Mutex::default() })
    }

    /// The engine, for figures and for graphs that need no plugin.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Compiles a bundle's plugin, asks it for its description, resolves its cells and loads them
    /// on the devices.
    ///
    /// # Errors
    /// One sentence that says which part of the bundle does not hold; nothing of it is left then.
    pub fn load(&self, bundle: &Bundle, tenant: &str) -> Result<Arc<ServedModel>, LoadError> {
        self.load_as(bundle, bundle.name(), Owner { tenant, number: 0, weight: 1, charged: &[] }, &Abandoned::default())
    }

    /// The same under another name, for one of several owners, unless nobody waits for it any more.
    ///
    /// # Errors
    /// As [`Serving::load`], and if it was given up.
    pub fn load_as(&self, bundle: &Bundle, name: &str, owner: Owner<'_>, abandoned: &Abandoned) -> Result<Arc<ServedModel>, LoadError> {
        let is_cancelled = || abandoned.is_so();
        let plugin_name = bundle.plugin_name().to_owned();
        let compiled = self
            .runtime
            .compile_for((&plugin_name, bundle.plugin_bytes()), (owner.tenant, owner.number), &is_cancelled)
            .map_err(|source| LoadError::Compile { plugin: plugin_name.clone(), source })?;
        let plugin = compiled.with_parameters(bundle.parameters(), bundle.view(), &bundle.limits().plugin())?;
        // What it holds are weights as they are read, until devices have them: so it is dropped after them.
        let mut read = self.inner.engine.weight_grant(owner.number);
        let mut model = resolve(bundle, plugin.description(), owner.tenant, &mut read)?;
        bundle.check_unread(&model.description)?;
        let grant = |bytes| {
            let mut grant = self.inner.engine.weight_grant(owner.number);
            grant.hold(bytes).map(|()| grant)
        };
        compiled.counted(grant)?;
        let embeddings = bundle.embeddings().map(|settings| embedding_names(settings, &model.description)).transpose()?;
        let described = grant(model.description.bytes())?;
        let spec = ModelSpec {
            name: name.to_owned(),
            tenant: owner.number,
            weight: owner.weight,
            policy: policy(bundle)?,
            overrides: overrides(bundle, &model)?,
            cells: std::mem::take(&mut model.cells),
            live_max: model.description.live_max,
            charged: owner.charged.to_vec(),
        };
        let loaded = self.inner.engine.load_unless(&spec, &is_cancelled)?;
        model.cells = loaded.cells.iter().map(|cell| cell.cell.clone()).collect();
        let model = Arc::new(model);
        let limits = (request_limits(bundle), call_bounds(bundle), self.answers_of(owner.number, owner.weight));
        let names = (name.to_owned(), plugin_name);
        Ok(Arc::new(ServedModel::new(names, plugin, (model, described), (loaded, owner), limits, embeddings)))
    }

    /// The room that the answers of a tenant share, whichever of its models makes them.
    fn answers_of(&self, tenant: u32, weight: u32) -> Arc<TenantRoom> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        tenants.retain(|_, room| room.strong_count() > 0);
        if let Some(room) = tenants.get(&tenant).and_then(Weak::upgrade) {
            return room;
        }
        let room = Arc::new(self.answers.tenant(tenant, weight));
        tenants.insert(tenant, Arc::downgrade(&room));
        room
    }

    /// A tenant's share changes, of device time and of what is divided by weights. Nothing happens
    /// if it has no models: the next that is loaded says it.
    pub fn set_tenant_weight(&self, tenant: u32, weight: u32) {
        self.inner.engine.set_tenant_weight(tenant, weight);
        let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = tenants.get(&tenant).and_then(Weak::upgrade) {
            room.set_weight(weight);
        }
    }

    /// Takes a model out of service: its new requests fail, and its cells are forgotten when those
    /// in flight have ended, which this waits for.
    pub fn unload(&self, model: &ServedModel) {
        self.inner.engine.unload(&model.loaded);
    }

    /// The same without waiting: what is left to do once its requests have ended, if anything is.
    #[must_use]
    pub fn close(&self, model: &ServedModel) -> Option<ClosedModel> {
        self.inner.engine.close_model(&model.loaded)
    }

    /// Takes a request, which is unfolded on the calling thread.
    ///
    /// # Errors
    /// If the request is refused before anything of it runs.
    pub fn infer(&self, model: &Arc<ServedModel>, request: InferRequest, delivery: Delivery) -> Result<Answer, InferError> {
        let (answer, writer) = Answer::new(model.limits.answer_bytes_max, Patience::endless());
        if self.begin(model, (request, Urgency::default()), delivery, writer) {
            return Ok(answer);
        }
        Err(answer.wait().err().unwrap_or(InferError::Engine(RequestFailure::Stopped)))
    }

    /// Unfolds a request on the calling thread and runs it. Lower ranks go first among the requests
    /// of a model, and of a tenant where they wait for memory. False: it was refused, and `writer`
    /// has said why.
    pub fn begin(
        &self,
        model: &Arc<ServedModel>,
        (request, urgency): (InferRequest, Urgency),
        delivery: Delivery,
        writer: Box<AnswerWriter>,
    ) -> bool {
        if model.description().rows_are_requests {
            return rows::begin(&self.inner, model, (request, urgency), writer);
        }
        self.activate(Begin::new(model, request, delivery), urgency, writer).is_some()
    }

    /// Begins a session: a request whose inputs keep arriving. `first` is its first chunk. None: it
    /// was refused, and `writer` has said why.
    pub fn begin_session(
        &self,
        model: &Arc<ServedModel>,
        (first, urgency): (InferRequest, Urgency),
        writer: Box<AnswerWriter>,
    ) -> Option<Session> {
        let begin = if model.description().rows_are_requests {
            Err(InferError::Invalid("this model has no sessions: each row of its inputs is a request".to_owned()))
        } else {
            Begin::session(model, first)
        };
        self.activate(begin, urgency, writer).map(Session)
    }

    fn activate(&self, begin: Result<Begin, InferError>, urgency: Urgency, writer: Box<AnswerWriter>) -> Option<Arc<Active>> {
        match begin {
            Ok(begin) => Active::begin(&self.inner, begin.urgent(urgency), Recipient::Call(writer)),
            Err(error) => {
                writer.end(Err(error));
                None
            }
        }
    }
}

/// Reads the weights of a description and resolves its cells. Room is taken before anything is read or copied.
fn resolve(bundle: &Bundle, description: &Arc<Description>, tenant: &str, read: &mut WeightGrant) -> Result<Model, LoadError> {
    read.hold(bundle.weight_bytes(description))?;
    let weights = bundle.weights(description)?;
    let (read, refusal) = (RefCell::new(read), Cell::new(None));
    let may_copy = |bytes: u64| {
        let mut read = read.borrow_mut();
        let all = read.bytes().saturating_add(bytes);
        read.hold(all).map_err(|error| refusal.set(Some(error))).is_ok()
    };
    let (precision, limits) = (bundle.precision(), CellLimits::default());
    let resolved =
        Model::resolve(description.clone(), &ResolveContext { weights: &weights, precision, tenant, limits, may_copy: &may_copy });
    match refusal.take() {
        Some(error) => Err(error.into()),
        None => Ok(resolved?),
    }
}

/// Who a bundle says decides what of it runs together. Its latency objective is LazyBatching's, if
/// it names none for that.
fn policy(bundle: &Bundle) -> Result<Option<PolicyKind>, LoadError> {
    let Some(NamedPolicy { name, line }) = bundle.policy() else { return Ok(None) };
    let policy = name.parse().map_err(|source| LoadError::Policy { line: *line, source })?;
    Ok(Some(match (policy, bundle.latency_objective_ms()) {
        (PolicyKind::Lazy(Lazy { percentile, .. }), Some(ms)) if !name.contains(':') => {
            PolicyKind::Lazy(Lazy { objective_ns: ms.saturating_mul(1_000_000), percentile })
        }
        (policy, _) => policy,
    }))
}

/// The input of a request whose inputs keep arriving. Its answer is read, and cancelled, elsewhere.
pub struct Session(Arc<Active>);

impl Session {
    /// Brings the next chunk, once fewer chunks wait than may.
    ///
    /// # Errors
    /// If it is not what the model takes, or the session has ended.
    pub async fn push(&self, chunk: InferRequest) -> Result<(), InferError> {
        if !chunk.parameters.is_empty() || !chunk.outputs.is_empty() {
            let sentence = "the first chunk of a session sets its parameters and outputs: later chunks may have inputs only";
            return Err(InferError::Invalid(sentence.to_owned()));
        }
        let mut tensors = arrange(&self.0.model.inputs, &self.0.model.model.description.optional_inputs, chunk.inputs)?;
        poll_fn(|context| self.0.poll_push(&mut tensors, context)).await
    }

    /// Waits until the session has ended or waits for input: what was pushed has its answer.
    pub async fn wait_until_idle(&self) {
        poll_fn(|context| self.0.poll_idle(context)).await;
    }

    /// Waits until it has ended.
    pub async fn wait_until_over(&self) {
        poll_fn(|context| self.0.poll_over(context)).await;
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Bytes of its input that its plugin keeps.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.0.kept_bytes()
    }

    /// No more input will come.
    pub fn finish(&self) {
        self.0.finish_input();
    }

    /// Ends it with an error.
    pub fn fail(&self, error: InferError) {
        self.0.fail(error);
    }
}

/// What the bundle says of single cells, by position.
fn overrides(bundle: &Bundle, model: &Model) -> Result<Vec<CellOverride>, LoadError> {
    let mut overrides = vec![CellOverride::default(); model.cells.len()];
    for (name, settings) in bundle.cells() {
        let Some(position) = model.cells.iter().position(|cell| cell.name == *name) else {
            let known = model.cells.iter().map(|cell| format!("`{}`", cell.name)).collect::<Vec<_>>().join(", ");
            return Err(LoadError::UnknownCell { name: name.clone(), known });
        };
        overrides[position] = CellOverride { batch_max: settings.batch_max, priority: settings.priority };
    }
    Ok(overrides)
}

/// The server's limits, lowered where the bundle asks for less.
fn request_limits(bundle: &Bundle) -> RequestLimits {
    let own = bundle.limits();
    let server = RequestLimits::default();
    let mut limits = server;
    limits.resumes_max = own.resumes_max.map_or(server.resumes_max, |max| max.min(server.resumes_max));
    limits.graph.nodes_max = own.nodes_max.map_or(server.graph.nodes_max, |max| max.min(server.graph.nodes_max));
    limits.graph.edges_max = own.edges_max.map_or(server.graph.edges_max, |max| max.min(server.graph.edges_max));
    limits.graph.chains_max = own.chains_max.map_or(server.graph.chains_max, |max| max.min(server.graph.chains_max));
    limits.graph.state_bytes_max = own.state_bytes_max.map_or(server.graph.state_bytes_max, |max| max.min(server.graph.state_bytes_max));
    limits.plugin_time_max = own.request_cpu_ms.map_or(server.plugin_time_max, |ms| Duration::from_millis(ms).min(server.plugin_time_max));
    limits.answer_bytes_max = own.answer_mb.map_or(server.answer_bytes_max, |mib| mib.saturating_mul(1 << 20).min(server.answer_bytes_max));
    limits
}

/// What the bundle asks its calls to be bounded by, together; wide open where it does not say.
fn call_bounds(bundle: &Bundle) -> CallBounds {
    let own = bundle.limits();
    CallBounds {
        in_flight_max: own.in_flight_max.unwrap_or(u32::MAX),
        queued_max: own.queued_max.unwrap_or(u32::MAX),
        device_share: own.device_share,
    }
}

/// The tensors by which a model answers `/v1/embeddings`.
fn embedding_names(settings: &EmbeddingSettings, description: &Description) -> Result<EmbeddingNames, LoadError> {
    let has = |specs: &[TensorSpec], name: &String, datatype: Datatype, rank: usize| {
        let fits = |spec: &TensorSpec| spec.name == *name && spec.datatype == datatype && spec.shape.len() == rank && spec.shape[0] == -1;
        specs.iter().any(fits)
    };
    let Description { inputs, outputs, .. } = description;
    let needed = |is_there: bool, what, name: &String, wanted| {
        if is_there { Ok(name.clone()) } else { Err(LoadError::Embeddings { what, name: name.clone(), wanted }) }
    };
    let EmbeddingSettings { text, input_ids, attention_mask, embedding, tokens } = settings;
    let takes_tokens = [input_ids, attention_mask].into_iter().all(|name| has(inputs, name, Datatype::Int64, 2));
    Ok(EmbeddingNames {
        text: needed(has(inputs, text, Datatype::Bytes, 1), "input", text, "BYTES [-1]")?,
        tokens: takes_tokens.then(|| (input_ids.clone(), attention_mask.clone())),
        embedding: needed(has(outputs, embedding, Datatype::Fp32, 2), "output", embedding, "FP32 [-1, N]")?,
        count: has(outputs, tokens, Datatype::Int64, 1).then(|| tokens.clone()),
    })
}

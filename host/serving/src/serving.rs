//! The host as its front ends see it: load models, take requests.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use cellwright_backend::Backend;
use cellwright_backend::machine::memory_bytes;
use cellwright_bundle::{Bundle, NamedPolicy};
use cellwright_cell_graph::Tensor;
use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::resolve::{CellLimits, ResolveContext};
use cellwright_engine::{CellOverride, Engine, EngineOptions, ModelSpec, PolicyKind, Urgency};
use cellwright_plugin_runtime::{Runtime, RuntimeOptions};
use cellwright_protocol::{InferRequest, InferResponse};

use crate::answer_room::AnswerRoom;
use crate::bounds::Settings;
use crate::error::{InferError, LoadError, StartError};
use crate::input::arrange;
use crate::model::{RequestLimits, ServedModel};
use crate::plugin_threads::PluginThreads;
use crate::reply::{Client, Delivery, Reply, Writer};
use crate::request::{Active, Begin, Running};
use crate::rows;

/// A host's configuration.
#[derive(Debug)]
pub struct ServingOptions {
    /// The plugin runtime's.
    pub runtime: RuntimeOptions,
    /// The engine's.
    pub engine: EngineOptions,
    /// Calls back into the plugin of one model that may run at once, each on a thread of its own; there are two threads more, one for other models of
    /// its tenant and one for other tenants.
    pub plugin_threads: usize,
    /// Bytes of memory that all answers may take together that are on their way, those of one tenant half of what others leave; none: a quarter of the
    /// machine's.
    pub answers_bytes_max: Option<u64>,
}

/// Whose a model is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    /// Cells are shared among the models of one tenant only.
    pub(crate) tenant: &'a str,
    /// The same as the scheduler knows it.
    pub(crate) number: u32,
    /// The tenant's share of device time, relative to others; at least 1.
    pub(crate) weight: u32,
    /// Counters of whose share it is charged to: device time and processor time of its plugin, in nanoseconds.
    pub(crate) charged: &'a [Arc<AtomicU64>],
}

/// What requests need of the host.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) engine: Engine,
    pub(crate) plugin_threads: PluginThreads,
    /// The plugin runtime's.
    pub(crate) on_long_call: fn(),
}

impl Inner {
    /// As [`Serving::begin`], for a request of that urgency. Of ranks 0 goes first among the requests of a model (of a tenant, where they wait for
    /// memory), then 1, and so on.
    pub(crate) fn begin(
        self: &Arc<Self>,
        model: &Arc<ServedModel>,
        (request, urgency): (InferRequest, Urgency),
        delivery: Delivery,
        client: Box<dyn Client>,
    ) -> Result<Running, InferError> {
        if model.description().rows_are_requests {
            return rows::begin(self, model, (request, urgency), client);
        }
        let mut running = Running::default();
        running.add(&Active::begin(self, Begin::new(model, request, delivery)?.urgent(urgency), client)?);
        Ok(running)
    }
}

/// A host: a plugin runtime, an engine, and the models that serve on them.
pub struct Serving {
    runtime: Runtime,
    inner: Arc<Inner>,
    answers: Arc<AnswerRoom>,
    /// Those of tenants that have models.
    tenants: Mutex<BTreeMap<String, Weak<AnswerRoom>>>,
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
        // A request has one call waiting at most; beside it wait calls of its model's requests that have ended since, to be passed over, and large answers
        // of such requests, to be put together.
        let plugin_threads = PluginThreads::start(options.plugin_threads, in_flight_max.saturating_mul(2))?;
        let engine = Engine::start(options.engine, backends)?;
        let answers = Arc::new(AnswerRoom::of_host(options.answers_bytes_max.unwrap_or_else(|| memory_bytes() / 4)));
        Ok(Self { runtime, inner: Arc::new(Inner { engine, plugin_threads, on_long_call }), answers, tenants: Mutex::default() })
    }

    /// The engine, for figures and for graphs that need no plugin.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Compiles a bundle's plugin, asks it for its description, resolves its cells and loads them on the devices.
    ///
    /// # Errors
    /// One sentence that says which part of the bundle does not hold; nothing of it is left then.
    pub fn load(&self, bundle: &Bundle, tenant: &str) -> Result<Arc<ServedModel>, LoadError> {
        self.load_as(bundle, bundle.name(), Owner { tenant, number: 0, weight: 1, charged: &[] })
    }

    /// The same under another name, for one of several owners.
    ///
    /// # Errors
    /// As [`Serving::load`].
    pub(crate) fn load_as(&self, bundle: &Bundle, name: &str, owner: Owner<'_>) -> Result<Arc<ServedModel>, LoadError> {
        let plugin_name = bundle.plugin_name().to_owned();
        let compiled = self
            .runtime
            .compile(&plugin_name, bundle.plugin_bytes())
            .map_err(|source| LoadError::Compile { plugin: plugin_name.clone(), source })?;
        let plugin = compiled.for_tenant(owner.number).with_parameters(bundle.parameters(), bundle.files(), &bundle.limits().plugin())?;
        let context = ResolveContext {
            weights: bundle.weights(),
            precision: bundle.precision(),
            tenant: owner.tenant,
            limits: CellLimits::default(),
        };
        let model = Arc::new(Model::resolve(plugin.description().clone(), &context)?);
        let spec = ModelSpec {
            name: name.to_owned(),
            tenant: owner.number,
            weight: owner.weight,
            policy: policy(bundle)?,
            cells: model.cells.clone(),
            overrides: overrides(bundle, &model)?,
            live_max: model.description.live_max,
            charged: owner.charged.to_vec(),
        };
        let loaded = self.inner.engine.load(&spec)?;
        let limits = (request_limits(bundle), call_bounds(bundle), self.answers_of(owner.tenant));
        Ok(Arc::new(ServedModel::new((name.to_owned(), plugin_name), plugin, model, (loaded, owner), limits)))
    }

    /// The room that the answers of a tenant share, whichever of its models makes them.
    fn answers_of(&self, tenant: &str) -> Arc<AnswerRoom> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        tenants.retain(|_, room| room.strong_count() > 0);
        if let Some(room) = tenants.get(tenant).and_then(Weak::upgrade) {
            return room;
        }
        let room = Arc::new(AnswerRoom::of_tenant(&self.answers));
        tenants.insert(tenant.to_owned(), Arc::downgrade(&room));
        room
    }

    /// Takes a model out of service: its new requests fail, and its cells are forgotten when those in flight have ended, which this waits for.
    pub fn unload(&self, model: &ServedModel) {
        self.inner.engine.unload(&model.loaded);
    }

    /// Takes a request. It is unfolded on the calling thread; the answer comes to the [`Reply`].
    ///
    /// # Errors
    /// If the request is refused before anything of it runs.
    pub fn infer(&self, model: &Arc<ServedModel>, request: InferRequest, delivery: Delivery) -> Result<Reply, InferError> {
        let writer = Writer::new(model.limits.answer_bytes_max);
        let reply = writer.reply();
        Ok(reply.of(self.begin(model, request, delivery, Box::new(writer))?))
    }

    /// Takes a request whose answer goes to `client`; what it gives can cancel the request.
    ///
    /// # Errors
    /// If the request is refused before anything of it runs; `client` hears nothing then.
    pub fn begin(
        &self,
        model: &Arc<ServedModel>,
        request: InferRequest,
        delivery: Delivery,
        client: Box<dyn Client>,
    ) -> Result<Running, InferError> {
        self.inner.begin(model, (request, Urgency::default()), delivery, client)
    }

    pub(crate) const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Opens a session: a request whose inputs keep arriving. `first` is its first chunk.
    ///
    /// # Errors
    /// If the first chunk is refused, or the model's rows are requests of their own.
    pub fn open_session(&self, model: &Arc<ServedModel>, first: InferRequest) -> Result<Session, InferError> {
        if model.description().rows_are_requests {
            return Err(InferError::Invalid("the rows of this model's inputs are requests by themselves: it has no sessions".to_owned()));
        }
        let writer = Writer::new(model.limits.answer_bytes_max);
        let reply = writer.reply();
        let active = Active::begin(&self.inner, Begin::session(model, first)?, Box::new(writer))?;
        let mut running = Running::default();
        running.add(&active);
        Ok(Session { active, reply: reply.of(running) })
    }
}

/// Who a bundle says decides what of it runs together. Its latency objective is LazyBatching's, if it names none for that.
fn policy(bundle: &Bundle) -> Result<Option<PolicyKind>, LoadError> {
    let Some(NamedPolicy { name, line }) = bundle.policy() else { return Ok(None) };
    let policy = name.parse().map_err(|source| LoadError::Policy { line: *line, source })?;
    Ok(Some(match (policy, bundle.latency_objective_ms()) {
        (PolicyKind::Lazy { percentile, .. }, Some(ms)) if !name.contains(':') => {
            PolicyKind::Lazy { objective_ns: ms.saturating_mul(1_000_000), percentile }
        }
        (policy, _) => policy,
    }))
}

/// A request whose inputs keep arriving. Dropping it before its end cancels it.
pub struct Session {
    active: Arc<Active>,
    reply: Reply,
}

impl Session {
    /// The next chunk, waiting until fewer chunks wait than may.
    ///
    /// # Errors
    /// If it is not what the model takes, or the session has ended.
    pub fn push(&self, chunk: InferRequest) -> Result<(), InferError> {
        if !chunk.parameters.is_empty() || !chunk.outputs.is_empty() {
            let sentence = "a session's parameters and outputs are those that it began with: what follows brings inputs alone";
            return Err(InferError::Invalid(sentence.to_owned()));
        }
        self.active.push(arrange(&self.active.model.inputs, chunk.inputs)?)
    }

    /// The next part of the answer, waiting for it; none once the session has ended.
    #[must_use]
    pub fn next_part(&self) -> Option<Tensor> {
        self.reply.next_part()
    }

    /// No more input will come.
    pub fn finish(&self) {
        self.active.finish_input();
    }

    /// The end of the answer, waiting for it.
    ///
    /// # Errors
    /// Why there is none.
    pub fn wait(self) -> Result<InferResponse, InferError> {
        self.finish();
        self.reply.wait()
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
fn call_bounds(bundle: &Bundle) -> Settings {
    let own = bundle.limits();
    Settings {
        in_flight_max: own.in_flight_max.unwrap_or(u32::MAX),
        queued_max: own.queued_max.unwrap_or(u32::MAX),
        device_share: own.device_share,
    }
}

//! One request in flight: between the engine's thread, which brings values, and plugin threads, which make its graph go on.
//!
//! Two locks, never held together: `front` (short, taken by the engine's thread) and `plugin` (held while a guest runs; one call at a time).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use cellwright_cell_graph::check::Unfolding;
use cellwright_cell_graph::graph::{Growth, Reaction};
use cellwright_cell_graph::unfolded::Watch;
use cellwright_cell_graph::{Attribute, Tensor, UnfoldedGrowth};
use cellwright_engine::{Handle, RequestFailure, RequestTensors, Sink, Value};
use cellwright_plugin_runtime::{Event, RequestView};
use cellwright_protocol::InferResponse;

use crate::error::InferError;
use crate::input::fits;
use crate::model::ServedModel;
use crate::outputs::Outputs;
use crate::reply::{Client, Delivery};
use crate::serving::Inner;

/// A request in flight.
pub(crate) struct Active {
    serving: Weak<Inner>,
    pub(crate) model: Arc<ServedModel>,
    id: Option<String>,
    handle: OnceLock<Handle>,
    front: Mutex<Front>,
    plugin: Mutex<PluginSide>,
}

/// What the engine's thread and clients touch.
struct Front {
    outputs: Outputs,
    client: Option<Box<dyn Client>>,
    /// A call of the plugin is queued or running.
    calling: bool,
    /// The graph will not grow any more.
    closed: bool,
    /// Chunks of a session that the plugin has not been told of: number of the first tensor of each.
    chunks: VecDeque<u32>,
    /// No more chunks will come.
    input_over: bool,
    /// The plugin has been told so.
    told_over: bool,
}

/// What plugin threads touch.
struct PluginSide {
    unfolding: Unfolding,
    tensors: RequestTensors,
    /// What the plugin sees of them.
    view: Arc<RequestView>,
    watch: Option<Watch>,
    resumes: u32,
}

/// What a request begins with.
pub(crate) struct Begin {
    pub(crate) model: Arc<ServedModel>,
    pub(crate) id: Option<String>,
    pub(crate) parameters: Vec<Attribute>,
    pub(crate) tensors: Vec<Arc<Tensor>>,
    pub(crate) delivery: Delivery,
    /// Whether more input will come.
    pub(crate) session: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Active {
    /// Unfolds a request on the calling thread and submits it.
    pub(crate) fn begin(serving: &Arc<Inner>, begin: Begin, client: Box<dyn Client>) -> Result<Arc<Self>, InferError> {
        let model = begin.model;
        let tensors = RequestTensors { first: 0, tensors: begin.tensors };
        let view = view(&tensors, begin.parameters);
        let growth = model.plugin().unfold(&view)?;
        let mut unfolding = model.unfolding();
        let growth = grown(&model, &mut unfolding, growth, &tensors)?;
        let outputs = Outputs::new(&model, &growth, begin.delivery == Delivery::Parts);
        let front = Front {
            outputs,
            client: Some(client),
            calling: false,
            closed: growth.next.is_none(),
            chunks: VecDeque::new(),
            input_over: !begin.session,
            told_over: false,
        };
        let watch = growth.next.clone();
        let plugin = PluginSide { unfolding, tensors: tensors.clone(), view, watch, resumes: 0 };
        let active = Arc::new(Self {
            serving: Arc::downgrade(serving),
            model: model.clone(),
            id: begin.id,
            handle: OnceLock::new(),
            front: Mutex::new(front),
            plugin: Mutex::new(plugin),
        });
        serving.engine.submit(model.loaded(), growth, tensors, |handle| {
            let _ = active.handle.set(handle);
            Box::new(RequestSink { active: active.clone(), parts: Vec::new() })
        })?;
        active.go_on(lock(&active.front));
        Ok(active)
    }

    /// More input of a session.
    pub(crate) fn push(self: &Arc<Self>, tensors: Vec<Arc<Tensor>>) -> Result<(), InferError> {
        let first = {
            let mut plugin = lock(&self.plugin);
            let first = plugin.tensors.first.saturating_add(u32::try_from(plugin.tensors.tensors.len()).unwrap_or(u32::MAX));
            plugin.tensors.tensors.extend(tensors);
            plugin.view = view(&plugin.tensors, plugin.view.parameters.clone());
            first
        };
        let mut front = lock(&self.front);
        if front.client.is_none() || front.closed || front.input_over {
            return Err(InferError::SessionOver);
        }
        front.chunks.push_back(first);
        self.go_on(front);
        Ok(())
    }

    /// Chunks pushed that the plugin has not been told of yet.
    pub(crate) fn chunks_waiting(&self) -> usize {
        lock(&self.front).chunks.len()
    }

    /// No more input will come.
    pub(crate) fn finish_input(self: &Arc<Self>) {
        let mut front = lock(&self.front);
        front.input_over = true;
        self.go_on(front);
    }

    /// Nobody wants the answer any more.
    pub(crate) fn cancel(&self) {
        if let (Some(serving), Some(handle)) = (self.serving.upgrade(), self.handle.get()) {
            serving.engine.cancel(*handle);
        }
    }

    /// Calls the plugin if there is something to show it and no call is under way.
    fn go_on(self: &Arc<Self>, mut front: MutexGuard<'_, Front>) {
        if front.calling || front.closed || front.client.is_none() {
            return;
        }
        let event = if let Some(values) = front.outputs.watched() {
            Some(Event::Values(values))
        } else if front.outputs.waits_for_input() {
            match front.chunks.pop_front() {
                Some(first) => Some(Event::Input(first)),
                None if front.input_over && !front.told_over => {
                    front.told_over = true;
                    Some(Event::EndOfInput)
                }
                None => None,
            }
        } else {
            None
        };
        let Some(event) = event else { return };
        front.calling = true;
        drop(front);
        let active = self.clone();
        let taken = self.serving.upgrade().is_some_and(|serving| serving.plugin_threads.call(Box::new(move || active.resume(event))));
        if !taken {
            self.fail(InferError::Engine(RequestFailure::Stopped));
        }
    }

    /// On a plugin thread: shows the plugin what it asked for.
    fn resume(self: Arc<Self>, event: Event) {
        if let Err(error) = self.react(event) {
            self.fail(error);
            return;
        }
        let mut front = lock(&self.front);
        front.calling = false;
        self.go_on(front);
    }

    fn react(self: &Arc<Self>, event: Event) -> Result<(), InferError> {
        let Some(serving) = self.serving.upgrade() else { return Err(InferError::Engine(RequestFailure::Stopped)) };
        let Some(handle) = self.handle.get().copied() else { return Ok(()) };
        let mut plugin = lock(&self.plugin);
        let plugin = &mut *plugin;
        let limits = self.model.limits();
        plugin.resumes += 1;
        if plugin.resumes > limits.resumes_max {
            return Err(InferError::Resumes { plugin: self.model.plugin_name().to_owned(), limit: limits.resumes_max });
        }
        let state = plugin.watch.as_ref().map(|watch| watch.state.as_slice()).unwrap_or_default();
        let Reaction { emit, growth } = self.model.plugin().resume(state, &event, &plugin.view)?;
        self.emit(emit)?;
        match growth {
            Some(growth) => {
                let growth = grown(&self.model, &mut plugin.unfolding, growth, &plugin.tensors)?;
                if drop_tensors(&mut plugin.tensors, growth.next.as_ref()) {
                    plugin.view = view(&plugin.tensors, plugin.view.parameters.clone());
                }
                plugin.watch.clone_from(&growth.next);
                let mut front = lock(&self.front);
                front.closed = growth.next.is_none();
                let keep = growth.next.as_ref().map(|watch| watch.keep.clone()).unwrap_or_default();
                front.outputs.grow(&self.model, &growth);
                front.outputs.prune(&self.model, growth.first_chain, &keep);
                drop(front);
                serving.engine.grow(handle, growth, plugin.tensors.clone());
            }
            None => {
                let mut front = lock(&self.front);
                let over = front.outputs.watch_is_over();
                if over && !front.closed {
                    front.closed = true;
                    drop(front);
                    serving.engine.close(handle);
                }
            }
        }
        Ok(())
    }

    fn emit(&self, tensors: Vec<Tensor>) -> Result<(), InferError> {
        if tensors.is_empty() {
            return Ok(());
        }
        let emitted = |what: String| Err(InferError::Emitted { plugin: self.model.plugin_name().to_owned(), what });
        let specs = &self.model.description().outputs;
        for tensor in &tensors {
            match specs.iter().find(|spec| spec.name == tensor.name) {
                None => return emitted(format!("`{}`, which is no output of its model", tensor.name)),
                Some(spec) if spec.datatype != tensor.datatype || !fits(&spec.shape, &tensor.shape) || !tensor.is_consistent() => {
                    return emitted(format!(
                        "`{}` as {} {:?}, which its description does not allow",
                        tensor.name, tensor.datatype, tensor.shape
                    ));
                }
                Some(_) => {}
            }
        }
        let mut parts = Vec::new();
        let mut front = lock(&self.front);
        for tensor in tensors {
            front.outputs.emit(&self.model, tensor, &mut parts);
        }
        front.send(&mut parts);
        Ok(())
    }

    /// Ends the request with an error, and whatever of it is on the device.
    fn fail(&self, error: InferError) {
        let client = lock(&self.front).client.take();
        self.cancel();
        if let Some(client) = client {
            client.end(Err(error));
        }
    }
}

impl Front {
    fn send(&mut self, parts: &mut Vec<Tensor>) {
        if let Some(client) = self.client.as_mut() {
            parts.drain(..).for_each(|part| client.part(part));
        }
        parts.clear();
    }
}

/// The engine's end of a request.
struct RequestSink {
    active: Arc<Active>,
    parts: Vec<Tensor>,
}

impl RequestSink {
    fn changed(&mut self, change: impl FnOnce(&mut Outputs)) {
        let mut front = lock(&self.active.front);
        change(&mut front.outputs);
        front.outputs.parts(&self.active.model, &mut self.parts);
        if !self.parts.is_empty() {
            front.send(&mut self.parts);
        }
        self.active.go_on(front);
    }
}

impl Sink for RequestSink {
    fn value(&mut self, value: Value<'_>) {
        self.changed(|outputs| outputs.value(value));
    }

    fn ended(&mut self, chain: u32, executed: u32) {
        self.changed(|outputs| outputs.ended(chain, executed));
    }

    fn finished(self: Box<Self>) {
        let mut front = lock(&self.active.front);
        let outputs = front.outputs.finish(&self.active.model);
        let client = front.client.take();
        drop(front);
        if let Some(client) = client {
            client.end(Ok(InferResponse {
                model_name: self.active.model.name().to_owned(),
                model_version: None,
                id: self.active.id.clone(),
                parameters: Vec::new(),
                outputs,
            }));
        }
    }

    fn failed(self: Box<Self>, failure: RequestFailure) {
        let client = lock(&self.active.front).client.take();
        if let Some(client) = client {
            client.end(Err(InferError::Engine(failure)));
        }
    }
}

fn view(tensors: &RequestTensors, parameters: Vec<Attribute>) -> Arc<RequestView> {
    let seen = RequestView::new(tensors.tensors.iter().cloned(), parameters);
    Arc::new(RequestView { first_tensor: tensors.first, ..seen })
}

/// Checks a growth against its model and its request.
fn grown(
    model: &ServedModel,
    unfolding: &mut Unfolding,
    growth: Growth,
    tensors: &RequestTensors,
) -> Result<Arc<UnfoldedGrowth>, InferError> {
    let growth = unfolding.grow(growth, tensors.first, &tensors.tensors);
    growth.map(Arc::new).map_err(|source| InferError::Graph { plugin: model.plugin_name().to_owned(), source })
}

/// Lets go of tensors that no later growth may name; whether there were any.
fn drop_tensors(tensors: &mut RequestTensors, next: Option<&Watch>) -> bool {
    let Some(next) = next else { return false };
    let gone = next.keep_tensors_from.saturating_sub(tensors.first).min(u32::try_from(tensors.tensors.len()).unwrap_or(u32::MAX));
    tensors.tensors.drain(..gone as usize);
    tensors.first += gone;
    gone > 0
}

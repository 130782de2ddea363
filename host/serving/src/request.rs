//! One request in flight: between the engine's thread, which brings values, and plugin threads, which make its graph go on.
//!
//! Two locks: `plugin` (held while a guest runs; one call at a time), and `front` (short, taken by the engine's thread too). `front` may be taken
//! under `plugin`, never the other way; under `front` nothing waits, and nothing large is copied.

mod front;
mod sink;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use cellwright_cell_graph::check::Unfolding;
use cellwright_cell_graph::graph::{Growth, Reaction};
use cellwright_cell_graph::unfolded::Watch;
use cellwright_cell_graph::{Attribute, Tensor, UnfoldedGrowth};
use cellwright_engine::{Canceller, Handle, RequestFailure, RequestTensors, SubmitError, Urgency};
use cellwright_plugin_runtime::{Event, RequestView};
use cellwright_protocol::{InferRequest, InferResponse};

use crate::answer_room::{AnswerRoom, AnswerShare, NoRoom};
use crate::ending;
use crate::error::InferError;
use crate::input::{arrange, fits};
use crate::model::ServedModel;
use crate::outputs::{Outputs, Taking};
use crate::plugin_threads::{NotTaken, PluginCalls};
use crate::plugin_time::PluginTime;
use crate::reply::{Client, Delivery};
use crate::serving::Inner;
use crate::waiting::Ticket;
use front::{Front, Occasion};
use sink::RequestSink;

/// A request in flight.
pub(crate) struct Active {
    /// For plugin threads only: whoever upgrades it may be the last to hold the engine, which its own thread must never be.
    serving: Weak<Inner>,
    canceller: Canceller,
    plugin_calls: PluginCalls,
    pub(crate) model: Arc<ServedModel>,
    id: Option<String>,
    handle: OnceLock<Handle>,
    front: Mutex<Front>,
    /// Fewer chunks wait, or the session is over.
    room: Condvar,
    plugin: Mutex<PluginSide>,
}

/// What plugin threads touch.
struct PluginSide {
    unfolding: Unfolding,
    tensors: RequestTensors,
    /// What the plugin sees of them.
    view: Arc<RequestView>,
    watch: Option<Watch>,
    resumes: u32,
    time: Arc<PluginTime>,
}

/// Requests that are in flight for one call, or its place in line while it waits. It does not keep them.
#[derive(Clone, Debug, Default)]
pub struct Running {
    requests: Vec<Weak<Active>>,
    /// Of a call that had to wait.
    ticket: Option<Arc<Ticket>>,
}

impl Running {
    pub(crate) fn add(&mut self, active: &Arc<Active>) {
        self.requests.push(Arc::downgrade(active));
    }

    pub(crate) const fn of_waiting(ticket: Arc<Ticket>) -> Self {
        Self { requests: Vec::new(), ticket: Some(ticket) }
    }

    /// Nobody wants the answer any more: its client hears that the request was cancelled, unless it has ended. Never waits.
    pub fn cancel(&self) {
        self.requests.iter().filter_map(Weak::upgrade).for_each(|active| active.cancel());
        if let Some(ticket) = &self.ticket {
            ticket.cancel();
        }
    }
}

/// What a request begins with.
pub(crate) struct Begin {
    model: Arc<ServedModel>,
    id: Option<String>,
    parameters: Vec<Attribute>,
    tensors: Vec<Arc<Tensor>>,
    delivery: Delivery,
    /// Whether more input will come.
    session: bool,
    urgency: Urgency,
    room: Arc<AnswerRoom>,
    time: Arc<PluginTime>,
}

impl Begin {
    /// Of a request as one of the model's requests sees it.
    pub(crate) fn new(model: &Arc<ServedModel>, request: InferRequest, delivery: Delivery) -> Result<Self, InferError> {
        let tensors = arrange(&model.inputs, request.inputs)?;
        let room = model.answer_room();
        let (model, id, parameters, time) = (model.clone(), request.id, request.parameters, Arc::default());
        Ok(Self { model, id, parameters, tensors, delivery, session: false, urgency: Urgency::default(), room, time })
    }

    /// Of a session's first chunk.
    pub(crate) fn session(model: &Arc<ServedModel>, request: InferRequest) -> Result<Self, InferError> {
        Ok(Self { session: true, ..Self::new(model, request, Delivery::Parts)? })
    }

    /// Of one of the rows of a call, which share the room for its answer and its plugin's time.
    pub(crate) fn row(
        model: &Arc<ServedModel>,
        request: InferRequest,
        (room, time): (&Arc<AnswerRoom>, &Arc<PluginTime>),
    ) -> Result<Self, InferError> {
        Ok(Self { room: room.clone(), time: time.clone(), ..Self::new(model, request, Delivery::Whole)? })
    }

    /// The same of that urgency.
    pub(crate) fn urgent(self, urgency: Urgency) -> Self {
        Self { urgency, ..self }
    }
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
        let time = begin.time;
        let spending = time.spend(&model);
        let growth = model.plugin().unfold(&view)?;
        let mut unfolding = model.unfolding();
        let growth = grown(&model, &mut unfolding, growth, &tensors)?;
        let streaming = begin.delivery == Delivery::Parts;
        let taking = Taking { model: model.model.clone(), specs: model.outputs.clone(), streaming, room: begin.room };
        let outputs = Outputs::new(taking, &growth).map_err(|no_room| too_large(&model, no_room))?;
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
        drop(spending);
        time.check(&model)?;
        let plugin = PluginSide { unfolding, tensors: tensors.clone(), view, watch, resumes: 0, time };
        let active = Arc::new(Self {
            serving: Arc::downgrade(serving),
            canceller: serving.engine.canceller(),
            plugin_calls: serving.plugin_threads.calls(),
            model: model.clone(),
            id: begin.id,
            handle: OnceLock::new(),
            front: Mutex::new(front),
            room: Condvar::new(),
            plugin: Mutex::new(plugin),
        });
        serving.engine.submit_urgent(begin.urgency, model.loaded(), growth, tensors, |handle| {
            let _ = active.handle.set(handle);
            Box::new(RequestSink { active: active.clone() })
        })?;
        active.go_on(lock(&active.front));
        Ok(active)
    }

    /// More input of a session. If as many chunks as allowed wait, it waits too, or is refused.
    pub(crate) fn push(self: &Arc<Self>, tensors: Vec<Arc<Tensor>>, wait: bool) -> Result<(), InferError> {
        let limit = self.model.limits.chunks_waiting_max;
        let mut front = lock(&self.front);
        loop {
            if front.client.is_none() || front.closed || front.input_over {
                return Err(InferError::SessionOver);
            }
            if front.chunks.len() < limit {
                break;
            }
            if !wait {
                return Err(InferError::ChunksWait { limit });
            }
            front = self.room.wait(front).unwrap_or_else(PoisonError::into_inner);
        }
        front.chunks.push_back(tensors);
        self.go_on(front);
        Ok(())
    }

    /// No more input will come.
    pub(crate) fn finish_input(self: &Arc<Self>) {
        let mut front = lock(&self.front);
        front.input_over = true;
        self.go_on(front);
    }

    /// Nobody wants the answer any more. Never waits.
    pub(crate) fn cancel(&self) {
        if let Some(handle) = self.handle.get() {
            self.canceller.cancel(*handle);
        }
    }

    /// Calls the plugin if there is something to show it and no call is under way; sends what is too much to be sent at once.
    fn go_on(self: &Arc<Self>, mut front: MutexGuard<'_, Front>) {
        if front.calling || front.client.is_none() || !front.outputs.has_parts() && !front.has_occasion() {
            return;
        }
        front.calling = true;
        drop(front);
        let active = self.clone();
        match self.plugin_calls.call(self.model.plugin_of(), Box::new(move || active.resume())) {
            Ok(()) => {}
            Err(NotTaken::Full) => self.fail(InferError::Submit(SubmitError::Full)),
            Err(NotTaken::Gone) => self.fail(InferError::Engine(RequestFailure::Stopped)),
        }
    }

    /// On a plugin thread: sends what piled up, and shows the plugin what it asked for.
    fn resume(self: Arc<Self>) {
        // Between two parts of it the engine's thread may go on.
        while lock(&self.front).send_parts() {}
        let occasion = {
            let mut front = lock(&self.front);
            let occasion = if front.client.is_none() { None } else { front.occasion() };
            front.calling = occasion.is_some();
            occasion
        };
        let Some(occasion) = occasion else { return self.go_on(lock(&self.front)) };
        self.room.notify_all();
        match catch_unwind(AssertUnwindSafe(|| self.react(occasion))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return self.fail(error),
            Err(_) => return self.fail(InferError::Broken { plugin: self.model.plugin_name().to_owned() }),
        }
        let mut front = lock(&self.front);
        front.calling = false;
        self.go_on(front);
    }

    fn react(&self, occasion: Occasion) -> Result<(), InferError> {
        let Some(serving) = self.serving.upgrade() else { return Err(InferError::Engine(RequestFailure::Stopped)) };
        let Some(handle) = self.handle.get().copied() else { return Ok(()) };
        let mut plugin = lock(&self.plugin);
        plugin.count(&occasion, &self.model)?;
        let time = plugin.time.clone();
        let _spending = time.spend(&self.model);
        self.answer(&serving, handle, &mut plugin, occasion)
    }

    /// Calls the plugin and does what it says.
    fn answer(&self, serving: &Inner, handle: Handle, plugin: &mut PluginSide, occasion: Occasion) -> Result<(), InferError> {
        let event = match occasion {
            Occasion::Values(values) => Event::Values(values.into_iter().map(|piece| piece.into_tensor("")).collect()),
            Occasion::Input(tensors) => Event::Input(plugin.take_in(tensors, &self.model)?),
            Occasion::EndOfInput => Event::EndOfInput,
        };
        let state = plugin.watch.as_ref().map(|watch| watch.state.as_slice()).unwrap_or_default();
        let Reaction { emit, growth } = self.model.plugin().resume(state, event, &plugin.view)?;
        self.emit(emit)?;
        match growth {
            Some(growth) => {
                // This growth may still refer to tensors that it says no later one will.
                let tensors = plugin.tensors.clone();
                let growth = self.grow(plugin, growth)?;
                serving.engine.grow(handle, growth, tensors);
            }
            None => {
                let mut front = lock(&self.front);
                if front.outputs.watch_is_over() && !front.closed {
                    front.closed = true;
                    drop(front);
                    self.room.notify_all();
                    serving.engine.close(handle);
                }
            }
        }
        Ok(())
    }

    /// Takes in what the plugin wants to go on with.
    fn grow(&self, plugin: &mut PluginSide, growth: Growth) -> Result<Arc<UnfoldedGrowth>, InferError> {
        let growth = grown(&self.model, &mut plugin.unfolding, growth, &plugin.tensors)?;
        if drop_tensors(&mut plugin.tensors, growth.next.as_ref()) {
            plugin.view = view(&plugin.tensors, plugin.view.parameters.clone());
        }
        plugin.watch.clone_from(&growth.next);
        let mut front = lock(&self.front);
        front.closed = growth.next.is_none();
        self.room.notify_all();
        front.outputs.grow(&growth).map_err(|no_room| too_large(&self.model, no_room))?;
        if front.told_over && front.outputs.waits_for_input() {
            return Err(InferError::Waits { plugin: self.model.plugin_name().to_owned() });
        }
        Ok(growth)
    }

    fn emit(&self, tensors: Vec<Tensor>) -> Result<(), InferError> {
        if tensors.is_empty() {
            return Ok(());
        }
        let emitted = |what: String| Err(InferError::Emitted { plugin: self.model.plugin_name().to_owned(), what });
        let specs = &self.model.outputs;
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
            front.outputs.emit(tensor, &mut parts).map_err(|no_room| too_large(&self.model, no_room))?;
        }
        front.send(&mut parts);
        Ok(())
    }

    /// Puts the answer together.
    fn end(&self, mut outputs: Outputs, client: Box<dyn Client>) {
        let (model, id, work) = (self.model.clone(), self.id.clone(), outputs.work());
        let share = AnswerShare::new(outputs.room().clone());
        let answer = move |client: &mut dyn Client| {
            client.holds(share);
            let mut parts = Vec::new();
            while outputs.has_parts() {
                outputs.parts(&mut parts);
                parts.drain(..).for_each(|part| client.part(part));
            }
            let outputs = outputs.answer().map_err(|output| InferError::Unanswered { plugin: model.plugin_name().to_owned(), output })?;
            Ok(InferResponse { model_name: model.name().to_owned(), model_version: None, id, parameters: Vec::new(), outputs })
        };
        ending::end((&self.plugin_calls, self.model.plugin_of()), work, client, answer);
    }

    /// Ends the request with an error, and whatever of it is on the device.
    fn fail(&self, error: InferError) {
        let ended = lock(&self.front).end();
        self.room.notify_all();
        self.cancel();
        if let Some((outputs, client)) = ended {
            drop(outputs);
            client.end(Err(error));
        }
    }
}

impl PluginSide {
    /// Counts a call that is about to be made. What more input costs is not held against what came before.
    fn count(&mut self, occasion: &Occasion, model: &ServedModel) -> Result<(), InferError> {
        if matches!(occasion, Occasion::Input(_)) {
            self.time.start_over();
        }
        self.time.check(model)?;
        self.resumes += 1;
        let limit = model.limits.resumes_max;
        if self.resumes > limit {
            return Err(InferError::Resumes { plugin: model.plugin_name().to_owned(), limit });
        }
        Ok(())
    }

    /// Adds a chunk to the request's tensors; gives the number of its first.
    fn take_in(&mut self, chunk: Vec<Arc<Tensor>>, model: &ServedModel) -> Result<u32, InferError> {
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

fn view(tensors: &RequestTensors, parameters: Vec<Attribute>) -> Arc<RequestView> {
    let seen = RequestView::new(tensors.tensors.iter().cloned(), parameters);
    Arc::new(RequestView { first_tensor: tensors.first, ..seen })
}

fn too_large(model: &ServedModel, NoRoom { bytes_max: limit, whose }: NoRoom) -> InferError {
    match whose {
        Some(whose) => InferError::AnswersTooLarge { whose, limit },
        None => InferError::AnswerTooLarge { plugin: model.plugin_name().to_owned(), limit },
    }
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

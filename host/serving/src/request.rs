//! One request in flight: between the engine's thread, which brings values, and plugin threads, which make its graph go on.
//!
//! Two locks: `plugin` (held while a guest runs; one call at a time), and `front` (short, taken by the engine's thread too). `front` may be taken
//! under `plugin`, never the other way; under `front` nothing waits, and nothing large is copied.

mod front;
mod growing;
mod plugin_side;
mod replay;
mod sink;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use cellwright_cell_graph::graph::{Growth, Reaction};
use cellwright_cell_graph::{Attribute, Tensor, UnfoldedGrowth};
use cellwright_engine::{Canceller, Handle, RequestFailure, RequestTensors, Sink, SubmitError, Urgency};
use cellwright_plugin_runtime::{Event, one_line};
use cellwright_protocol::{InferRequest, InferResponse};

use crate::answer::Delivery;
use crate::answer_room::{AnswerRoom, AnswerShare};
use crate::ending;
use crate::error::InferError;
use crate::input::{arrange, fits};
use crate::model::ServedModel;
use crate::outputs::{Outputs, Taking};
use crate::plugin_threads::{NotTaken, PluginCalls};
use crate::plugin_time::PluginTime;
use crate::recipient::Recipient;
use crate::serving::Inner;
use front::{Front, Occasion};
use growing::{Unfolded, grown, too_large, unfold};
use plugin_side::{PluginSide, view};
use replay::{Lost, Origin};
use sink::RequestSink;

/// A request in flight.
pub(crate) struct Active {
    /// For plugin threads only: whoever upgrades it may be the last to hold the engine, which its own threads must never be.
    serving: Weak<Inner>,
    canceller: Canceller,
    plugin_calls: PluginCalls,
    pub(crate) model: Arc<ServedModel>,
    id: Option<String>,
    named: Mutex<Named>,
    /// What it can begin again with; a session cannot.
    origin: Option<Origin>,
    front: Mutex<Front>,
    plugin: Mutex<PluginSide>,
}

/// The engine's name for a request. No other lock is taken under this one.
#[derive(Default)]
struct Named {
    /// Another one when it is replayed.
    handle: Option<Handle>,
    /// Nobody wants the answer any more, whatever its name will be.
    cancelled: bool,
    /// Who waits for it between the loss of its device and its beginning again, when the engine has no name for it: whoever takes this tells them.
    lost: Option<Lost>,
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
        let tensors = arrange(&model.inputs, &model.model.description.optional_inputs, request.inputs)?;
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
    /// Unfolds a request on the calling thread and submits it. None: it was refused, and its recipient has heard why.
    pub(crate) fn begin(serving: &Arc<Inner>, begin: Begin, recipient: Recipient) -> Option<Arc<Self>> {
        let (answer, urgency, session) = (recipient.answer(), begin.urgency, begin.session);
        let model = begin.model;
        let tensors = RequestTensors { first: 0, tensors: begin.tensors };
        let view = view(&tensors, begin.parameters);
        let time = begin.time;
        let spending = time.spend(&model);
        let streaming = begin.delivery == Delivery::Parts;
        let taking = Taking { model: model.model.clone(), specs: model.outputs.clone(), streaming, room: begin.room };
        let unfolded = unfold(&model, &view, &tensors, taking);
        drop(spending);
        let Unfolded { unfolding, growth, outputs } = match unfolded.and_then(|unfolded| time.check(&model).map(|()| unfolded)) {
            Ok(unfolded) => unfolded,
            Err(error) => {
                recipient.end(Err(error));
                return None;
            }
        };
        let front = Front::new(outputs, recipient, &growth, session);
        let origin = (!session).then(|| Origin { view: view.clone(), urgency });
        let mut plugin = PluginSide { unfolding, tensors: tensors.clone(), view, watch: None, resumes: 0, time };
        plugin.follow(&growth);
        let active = Arc::new(Self {
            serving: Arc::downgrade(serving),
            canceller: serving.engine.canceller(),
            plugin_calls: serving.plugin_threads.calls(),
            model,
            id: begin.id,
            named: Mutex::default(),
            origin,
            front: Mutex::new(front),
            plugin: Mutex::new(plugin),
        });
        // A cancellation finds the request from here on, or has come already.
        answer?.add_request(&active);
        if let Err(refused) = active.submit(serving, urgency, growth, tensors) {
            let ended = lock(&active.front).end();
            if let Some((_, recipient)) = ended {
                recipient.end(Err(refused.into()));
            }
            return None;
        }
        active.go_on(lock(&active.front));
        Some(active)
    }

    /// Hands its first growth to the engine.
    fn submit(
        self: &Arc<Self>,
        serving: &Inner,
        urgency: Urgency,
        growth: Arc<UnfoldedGrowth>,
        tensors: RequestTensors,
    ) -> Result<(), SubmitError> {
        let sink = |handle| -> Box<dyn Sink> {
            let mut named = lock(&self.named);
            named.handle = Some(handle);
            if named.cancelled {
                self.canceller.cancel(handle);
            }
            Box::new(RequestSink { active: self.clone() })
        };
        serving.engine.submit_urgent(urgency, self.model.loaded(), growth, tensors, sink).map(drop)
    }

    /// More input of a session, once fewer chunks wait than may.
    pub(crate) fn poll_push(self: &Arc<Self>, tensors: &mut Vec<Arc<Tensor>>, context: &Context<'_>) -> Poll<Result<(), InferError>> {
        let mut front = lock(&self.front);
        if front.recipient.is_none() || front.closed || front.input_over {
            return Poll::Ready(Err(InferError::SessionOver));
        }
        if front.chunks.len() >= self.model.limits.chunks_waiting_max {
            front.feeder = Some(context.waker().clone());
            return Poll::Pending;
        }
        front.chunks.push_back(std::mem::take(tensors));
        self.go_on(front);
        Poll::Ready(Ok(()))
    }

    /// Whether all input of a session has been computed, as far as its answers and its plugin show.
    pub(crate) fn poll_idle(&self, context: &Context<'_>) -> Poll<()> {
        let mut front = lock(&self.front);
        if front.is_idle() {
            return Poll::Ready(());
        }
        front.feeder = Some(context.waker().clone());
        Poll::Pending
    }

    /// Whether a session has ended.
    pub(crate) fn poll_over(&self, context: &Context<'_>) -> Poll<()> {
        let mut front = lock(&self.front);
        if front.recipient.is_none() {
            return Poll::Ready(());
        }
        front.feeder = Some(context.waker().clone());
        Poll::Pending
    }

    /// Whether the request has ended.
    pub(crate) fn is_over(&self) -> bool {
        let front = lock(&self.front);
        front.recipient.is_none() && !front.lost
    }

    /// Bytes of a session's input that its plugin keeps.
    pub(crate) fn kept_bytes(&self) -> u64 {
        lock(&self.plugin).tensors.tensors.iter().map(|tensor| tensor.data.len() as u64).sum()
    }

    /// No more input will come.
    pub(crate) fn finish_input(self: &Arc<Self>) {
        let mut front = lock(&self.front);
        front.input_over = true;
        self.go_on(front);
    }

    /// Nobody wants the answer any more. Never waits. Its client hears of it from the engine's thread; at once, if its device is lost and it has not begun
    /// again.
    pub(crate) fn cancel(&self) {
        if let Some(lost) = self.give_up() {
            let arrived = self.let_go();
            drop(arrived);
            lost.end(InferError::Engine(RequestFailure::Cancelled));
        }
    }

    /// Nothing more of it is to be computed. Gives whoever the engine cannot tell.
    fn give_up(&self) -> Option<Lost> {
        let mut named = lock(&self.named);
        named.cancelled = true;
        if let Some(handle) = named.handle {
            self.canceller.cancel(handle);
        }
        named.lost.take()
    }

    /// Calls the plugin if there is something to show it and no call is under way; sends what is too much to be sent at once, and begins again what
    /// was lost.
    fn go_on(self: &Arc<Self>, mut front: MutexGuard<'_, Front>) {
        let lost = front.lost;
        let has_more = || front.recipient.is_some() && (front.outputs.has_parts() || front.has_occasion());
        if front.calling || !lost && !has_more() {
            return front.wake_feeder();
        }
        front.calling = true;
        drop(front);
        let active = self.clone();
        match self.plugin_calls.call(self.model.plugin_of(), Box::new(move || active.resume())) {
            Ok(()) => {}
            Err(NotTaken::Full) if lost => self.fail(InferError::Engine(RequestFailure::WorkerLost)),
            Err(NotTaken::Full) => self.fail(InferError::PluginCalls { plugin: self.model.plugin_name().to_owned() }),
            Err(NotTaken::Gone) => self.fail(InferError::Engine(RequestFailure::Stopped)),
        }
    }

    /// On a plugin thread: begins again what was lost; or sends what piled up, and shows the plugin what it asked for.
    fn resume(self: Arc<Self>) {
        if lock(&self.front).lost {
            return self.replay();
        }
        // Between two parts of it the engine's thread may go on.
        while lock(&self.front).send_parts() {}
        let occasion = {
            let mut front = lock(&self.front);
            let occasion = if front.recipient.is_none() { None } else { front.occasion() };
            front.calling = occasion.is_some();
            occasion
        };
        let Some(occasion) = occasion else { return self.go_on(lock(&self.front)) };
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
        let Some(handle) = lock(&self.named).handle else { return Ok(()) };
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
                    serving.engine.close(handle);
                }
            }
        }
        Ok(())
    }

    /// Takes in what the plugin wants to go on with.
    fn grow(&self, plugin: &mut PluginSide, growth: Growth) -> Result<Arc<UnfoldedGrowth>, InferError> {
        let growth = grown(&self.model, &mut plugin.unfolding, growth, &plugin.tensors)?;
        plugin.follow(&growth);
        let mut front = lock(&self.front);
        front.closed = growth.next.is_none();
        front.growing += 1;
        front.outputs.hold(&growth).and_then(|()| front.outputs.grow(&growth)).map_err(|no_room| too_large(&self.model, no_room))?;
        if front.told_over && front.outputs.waits_for_input() {
            return Err(InferError::Waits { plugin: self.model.plugin_name().to_owned() });
        }
        Ok(growth)
    }

    fn emit(&self, tensors: Vec<Tensor>) -> Result<(), InferError> {
        if tensors.is_empty() {
            return Ok(());
        }
        let emitted = |what: String| Err(InferError::Emitted { plugin: self.model.plugin_name().to_owned(), what: one_line(&what) });
        let specs = &self.model.outputs;
        for tensor in &tensors {
            match specs.iter().find(|spec| spec.name == tensor.name) {
                None => return emitted(format!("`{}`, which is not an output of its model", tensor.name)),
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
    fn end(&self, mut outputs: Outputs, recipient: Recipient) {
        let (model, id, work) = (self.model.clone(), self.id.clone(), outputs.work());
        let share = AnswerShare::new(outputs.room().clone());
        let answer = move |recipient: &mut Recipient| {
            recipient.hold(share);
            let mut parts = Vec::new();
            while outputs.has_parts() {
                outputs.parts(&mut parts);
                parts.drain(..).for_each(|part| recipient.part(part));
            }
            let outputs = outputs.answer().map_err(|output| InferError::Unanswered { plugin: model.plugin_name().to_owned(), output })?;
            Ok(InferResponse { model_name: model.name().to_owned(), model_version: None, id, parameters: Vec::new(), outputs })
        };
        ending::end((&self.plugin_calls, self.model.plugin_of(), self.model.plugin_name()), work, recipient, answer);
    }

    /// Ends the request with an error, and whatever of it is on the device.
    pub(crate) fn fail(&self, error: InferError) {
        let (ended, replayed) = {
            let mut front = lock(&self.front);
            (front.end(), front.replayed)
        };
        let lost = self.give_up();
        if let Some((outputs, mut recipient)) = ended {
            drop(outputs);
            if let Some(first) = replayed {
                // Of the second run the engine tells nobody any more.
                recipient.ran(&first);
                recipient.replayed();
            }
            recipient.end(Err(error));
        } else if let Some(lost) = lost {
            drop(self.let_go());
            lost.end(error);
        }
    }
}

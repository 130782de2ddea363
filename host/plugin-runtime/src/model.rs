//! A plugin with a model's parameters: its description, its instances, and the calls of requests.
//!
//! An instance belongs to one model and holds no request's state. Guests keep results of their
//! parameters in their own memory, so `describe` runs on every new instance before anything else.
//! Any other state goes through a continuation. So any instance of a model may serve any call, and
//! an instance on which a call failed is dropped, not mended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_cell_graph::graph::{Growth, Reaction};
use cellwright_cell_graph::{Attribute, Description, Tensor};

use crate::abi::types;
use crate::convert::{self, Unfit};
use crate::error::{CallError, Export, LimitReached, Site};
use crate::fault;
use crate::instance::Instance;
use crate::limits::Limits;
use crate::plugin::Plugin;
use crate::request::{BundleView, RequestView};
use crate::warm::Pool;

/// How long a call takes that is a long one: about what the clock lets pass that looks at guests.
const LONG_CALL: Duration = Duration::from_millis(2);

/// Why a plugin is called again.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The outputs that it watches, in the order in which it named them.
    Values(Vec<Tensor>),
    /// A session's next chunk, whose tensors are numbered from here.
    Input(u32),
    /// A session's input has ended.
    EndOfInput,
}

impl Event {
    fn into_guest(self) -> types::Event {
        match self {
            Self::Values(values) => types::Event::Values(values.into_iter().map(convert::tensor_to_guest).collect()),
            Self::Input(first) => types::Event::Input(first),
            Self::EndOfInput => types::Event::EndOfInput,
        }
    }
}

/// A plugin that has described its model and may be asked to unfold requests, from any thread.
#[derive(Clone)]
pub struct PluginModel {
    shared: Arc<Shared>,
}

struct Shared {
    recipe: Recipe,
    description: Arc<Description>,
    idle: Arc<Pool<Instance>>,
}

/// What it takes to make a described instance.
struct Recipe {
    plugin: Plugin,
    parameters: Vec<types::Parameter>,
    bundle: Arc<dyn BundleView>,
    limits: Limits,
}

impl PluginModel {
    pub(crate) fn new(plugin: Plugin, parameters: &[Attribute], bundle: Arc<dyn BundleView>, limits: &Limits) -> Result<Self, CallError> {
        let limits = plugin.runtime().limits.lowered_to(limits);
        let parameters = parameters.iter().map(convert::parameter_to_guest).collect();
        let recipe = Recipe { plugin, parameters, bundle, limits };
        let (mut instance, described) = recipe.start_and(Instance::describe)?;
        let description = convert::description(described, &recipe.limits);
        let description = description.map_err(|unfit| fault::unfit(unfit, recipe.site(Export::Describe, &mut instance)))?;
        let idle = recipe.plugin.runtime().warmth.pool(recipe.plugin.tenant());
        idle.put(instance.memory_bytes(), instance);
        Ok(Self { shared: Arc::new(Shared { recipe, description: Arc::new(description), idle }) })
    }

    /// What the plugin says of the model.
    #[must_use]
    pub fn description(&self) -> &Arc<Description> {
        &self.shared.description
    }

    /// As [`Plugin::code_bytes`].
    #[must_use]
    pub fn code_bytes(&self) -> u64 {
        self.shared.recipe.plugin.code_bytes()
    }

    /// The graph of a request.
    ///
    /// # Errors
    ///
    /// The plugin refuses, fails, or runs into a limit; other requests are not touched by that.
    pub fn unfold(&self, request: &Arc<RequestView>) -> Result<Growth, CallError> {
        self.call(Export::Unfold, |instance| instance.unfold(request), convert::growth)
    }

    /// The graph of a request, by an instance that has served none before and serves none after. A plugin for which this and
    /// [`PluginModel::unfold`] differ is not deterministic.
    ///
    /// # Errors
    ///
    /// As [`PluginModel::unfold`].
    pub fn unfold_fresh(&self, request: &Arc<RequestView>) -> Result<Growth, CallError> {
        let mut instance = self.shared.recipe.described()?;
        self.shared.recipe.answer(Export::Unfold, &mut instance, |instance| instance.unfold(request), convert::growth)
    }

    /// What a continuation answers to an event, given the state that it left.
    ///
    /// # Errors
    ///
    /// As [`PluginModel::unfold`].
    pub fn resume(&self, state: &[u8], event: Event, request: &Arc<RequestView>) -> Result<Reaction, CallError> {
        let event = event.into_guest();
        self.call(Export::Resume, |instance| instance.resume(state, &event, request), convert::reaction)
    }

    /// Runs [`RuntimeOptions::on_long_call`](crate::RuntimeOptions::on_long_call) if what began then has taken long by now, as a call that is still running does.
    pub fn tell_if_long(&self, began: Instant) {
        self.shared.recipe.tell_if_long(began);
    }

    /// Makes idle instances ahead of requests, up to what a model may keep.
    ///
    /// # Errors
    ///
    /// An instance could not be made, or could not be described.
    pub fn warm(&self, instances: usize) -> Result<(), CallError> {
        let made = (0..instances).map(|_| self.shared.recipe.described()).collect::<Result<Vec<_>, _>>()?;
        made.into_iter().for_each(|instance| self.shared.idle.put(instance.memory_bytes(), instance));
        Ok(())
    }

    fn instance(&self) -> Result<Instance, CallError> {
        match self.shared.idle.take() {
            Some(instance) => Ok(instance),
            None => self.shared.recipe.described(),
        }
    }

    /// Calls an instance. Where earlier calls left a used one too little memory, a fresh one is called instead: it holds no request's state.
    fn call<A, B>(
        &self,
        export: Export,
        call: impl Fn(&mut Instance) -> wasmtime::Result<Result<A, types::Refusal>>,
        convert: impl Fn(A, &Limits) -> Result<B, Unfit>,
    ) -> Result<B, CallError> {
        let recipe = &self.shared.recipe;
        let mut instance = self.instance()?;
        let was_used = instance.is_used();
        let mut answer = recipe.answer(export, &mut instance, &call, &convert);
        if was_used && matches!(answer, Err(CallError::Limit { limit: LimitReached::Memory(_), .. })) {
            // Its place in the pool is the fresh one's.
            drop(instance);
            instance = recipe.described()?;
            answer = recipe.answer(export, &mut instance, &call, &convert);
        }
        if instance.is_reusable() {
            self.shared.idle.put(instance.memory_bytes(), instance);
        }
        answer
    }
}

impl Recipe {
    /// A new instance, ready to serve. What it says of the model has been said before.
    fn described(&self) -> Result<Instance, CallError> {
        Ok(self.start_and(Instance::describe_unread)?.0)
    }

    /// A new instance with its description.
    fn start_and<D>(
        &self,
        describe: impl FnOnce(&mut Instance, &[types::Parameter], &Arc<dyn BundleView>) -> wasmtime::Result<Result<D, types::Refusal>>,
    ) -> Result<(Instance, D), CallError> {
        let mut instance = self.start()?;
        let same = |description, _: &Limits| Ok(description);
        let description =
            self.answer(Export::Describe, &mut instance, |instance| describe(instance, &self.parameters, &self.bundle), same)?;
        Ok((instance, description))
    }

    fn start(&self) -> Result<Instance, CallError> {
        let _running = self.plugin.runtime().clock.run();
        let start = || Instance::start(self.plugin.code(), &self.limits, self.plugin.runtime().on_long_call);
        let mut started = start();
        while matches!(&started, Err((error, _)) if fault::is_busy(error)) && self.plugin.runtime().warmth.drop_one() {
            started = start();
        }
        started.map_err(|(error, notes)| {
            let site = Site { plugin: Arc::clone(self.plugin.shared_name()), export: Export::Start, notes, frames: Vec::new() };
            fault::classify(&error, Box::new(site), &self.limits, self.plugin.runtime().stack)
        })
    }

    fn answer<A, B>(
        &self,
        export: Export,
        instance: &mut Instance,
        call: impl FnOnce(&mut Instance) -> wasmtime::Result<Result<A, types::Refusal>>,
        convert: impl FnOnce(A, &Limits) -> Result<B, Unfit>,
    ) -> Result<B, CallError> {
        let running = self.plugin.runtime().clock.run();
        let began = Instant::now();
        let called = call(instance);
        drop(running);
        self.tell_if_long(began);
        let answered = match called {
            Ok(Ok(answer)) => convert(answer, &self.limits).map_err(|unfit| fault::unfit(unfit, self.site(export, instance))),
            Ok(Err(refusal)) => Err(fault::refused(refusal, self.site(export, instance))),
            Err(error) => Err(fault::classify(&error, self.site(export, instance), &self.limits, self.plugin.runtime().stack)),
        };
        for note in instance.take_notes() {
            (self.plugin.runtime().on_note)(export, &note);
        }
        answered
    }

    /// Lets others go on if a call has taken long: what is done with its answer then takes long, too.
    fn tell_if_long(&self, began: Instant) {
        if began.elapsed() >= LONG_CALL {
            (self.plugin.runtime().on_long_call)();
        }
    }

    fn site(&self, export: Export, instance: &mut Instance) -> Box<Site> {
        Box::new(Site { plugin: Arc::clone(self.plugin.shared_name()), export, notes: instance.take_notes(), frames: Vec::new() })
    }
}

//! The state machine: events in, commands out.
//!
//! [`Scheduler::handle`] applies a batch of events one by one. Then it lets the policies give work
//! to every worker that asks. A policy chooses, and [`Core`] checks and changes. Each model has a
//! policy object of its own.

use std::sync::Arc;

use crate::command::Commands;
use crate::config::Config;
use crate::core::{Core, Note};
use crate::event::{Event, ModelInfo, Submission};
use crate::id::{ModelId, TaskSeq, Time, WorkerId};
use crate::policy::{Fault, Pick, Policy};

/// Decides which nodes run together, where and when.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) core: Core,
    policies: Policies,
    /// Memory for `deliver_notes` and `run`.
    notes: Vec<(ModelId, Note)>,
    passed: Vec<ModelId>,
}

/// The policy of each model.
#[derive(Debug, Default)]
struct Policies(Vec<Option<Box<dyn Policy>>>);

impl Policies {
    fn get(&self, model: ModelId) -> Option<&dyn Policy> {
        self.0.get(model.index())?.as_deref()
    }

    fn get_mut(&mut self, model: ModelId) -> Option<&mut (dyn Policy + 'static)> {
        self.0.get_mut(model.index())?.as_deref_mut()
    }
}

impl Scheduler {
    /// A scheduler that knows of no workers, models or requests.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { core: Core::new(config), policies: Policies::default(), notes: Vec::new(), passed: Vec::new() }
    }

    /// Applies every event of `events`, in order, and replaces `commands` by what follows from
    /// them.
    ///
    /// Time must not run backwards; if it does, it stands still.
    pub fn handle(&mut self, now: Time, events: &mut Vec<Event>, commands: &mut Commands) {
        self.core.begin_turn(now, events);
        for event in events.drain(..) {
            self.apply(event);
            self.core.settle_all();
            self.deliver_notes();
        }
        self.core.admit_waiting();
        self.deliver_notes();
        self.review(now);
        self.run();
        self.core.settle_all();
        self.deliver_notes();
        self.core.end_turn(self.wake_at(), commands);
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::ModelUp(info) => {
                let policy = self.core.policy_of(&info).start();
                self.model_up(info, policy);
            }
            Event::Submit(submission) => self.submit(submission),
            Event::Grow { request, growth } => {
                if let Some(model) = self.core.grow(request, &growth)
                    && let Some(policy) = self.policies.get_mut(model)
                {
                    policy.grown(self.core.view(model), &growth);
                }
                self.core.place_pending(request);
            }
            Event::Done { worker, up_to, busy_ns, stopped, failed } => {
                self.core.report(worker, up_to, busy_ns, (&stopped, &failed));
                self.done(worker, up_to);
            }
            event => self.core.apply(event),
        }
    }

    /// A model may be asked for, and has that policy.
    pub(crate) fn model_up(&mut self, info: Arc<ModelInfo>, policy: Box<dyn Policy>) {
        let model = info.model;
        self.core.model_up(info, policy.takes());
        self.deliver_notes();
        if model.index() >= self.policies.0.len() {
            self.policies.0.resize_with(model.index() + 1, || None);
        }
        self.policies.0[model.index()] = Some(policy);
    }

    fn submit(&mut self, submission: Submission) {
        let policy = if self.core.is_open(submission.model) { self.policies.get_mut(submission.model) } else { None };
        let review = policy.and_then(|policy| policy.submitted(self.core.view(submission.model), &submission));
        self.core.submit(submission, review);
    }

    /// Tasks are complete. Policies that have requests on the worker hear of each.
    fn done(&mut self, worker: WorkerId, up_to: TaskSeq) {
        while self.core.land_next(worker, up_to) {
            self.deliver_notes();
            let mut before = None;
            while let Some(model) = self.core.next_taker(worker, before) {
                while let Some(pick) = self.policies.get_mut(model).and_then(|policy| policy.done(self.core.view(model), worker)) {
                    if matches!(pick, Pick::Oldest { .. } | Pick::Run(..)) {
                        self.core.refuse(model, worker, Fault::NotAsked);
                    } else if self.commit(model, worker, pick) {
                        continue;
                    }
                    break;
                }
                before = Some(model);
            }
        }
    }

    /// Tells policies what happened to their requests.
    #[inline]
    fn deliver_notes(&mut self) {
        if self.core.has_notes() {
            self.deliver_all_notes();
        }
    }

    fn deliver_all_notes(&mut self) {
        let mut notes = std::mem::take(&mut self.notes);
        self.core.take_notes(&mut notes);
        for (model, note) in notes.drain(..) {
            let Some(policy) = self.policies.get_mut(model) else { continue };
            match note {
                Note::Offered(growth) => policy.offered(self.core.view(model), growth),
                Note::Ended(ended) => policy.ended(self.core.view(model), &ended),
                Note::ModelGone => self.policies.0[model.index()] = None,
            }
        }
        self.notes = notes;
    }

    /// Lets policies look again at requests for which they asked.
    fn review(&mut self, now: Time) {
        while let Some((model, request)) = self.core.next_review() {
            let Some(policy) = self.policies.get_mut(model) else { continue };
            match policy.review(self.core.view(model), request) {
                // Not again in this turn, so that reviews come to an end.
                Ok(Some(at)) => self.core.review_at(request, at.max(Time(now.0.saturating_add(1)))),
                Ok(None) => {}
                Err(failure) => {
                    self.core.give_up(request, failure);
                    self.deliver_notes();
                }
            }
        }
    }

    /// Gives work to every worker that asks, in the order of their ids.
    fn run(&mut self) {
        self.core.note_activity();
        for worker in self.core.worker_ids() {
            self.passed.clear();
            while self.core.asks(worker) {
                let Some(model) = self.choose_model(worker) else { break };
                if !self.serve(worker, model) {
                    self.passed.push(model);
                }
            }
        }
        self.passed.clear();
        for worker in self.core.worker_ids() {
            if self.core.may_get_request(worker) && self.choose_model(worker).is_none() {
                self.core.move_request_to(worker);
            }
        }
    }

    /// The model that a worker serves next, of those that have work.
    fn choose_model(&mut self, worker: WorkerId) -> Option<ModelId> {
        self.core.settle_counts();
        let Self { core, policies, passed, .. } = self;
        let policy = |model| policies.get(model).map(|policy| (policy, core.view(model)));
        let starts = |model| core.may_start(worker, model) && policy(model).is_some_and(|(policy, view)| policy.has_work(view, worker));
        let has_work = |model| !passed.contains(&model) && (core.may_resume(worker, model) || starts(model));
        core.choose_model(has_work, |model| policy(model).and_then(|(policy, view)| policy.oldest(view, worker)))
    }

    /// Lets a model's paused task go on, or asks its policy for a worker's next task. False if there
    /// was nothing to do.
    fn serve(&mut self, worker: WorkerId, model: ModelId) -> bool {
        if self.core.resume(worker, model) {
            return true;
        }
        while let Some(pick) = self.policies.get_mut(model).and_then(|policy| policy.choose(self.core.view(model), worker)) {
            // A model whose batch has ended begins the next one when it is its turn.
            let goes_on = matches!(pick, Pick::Take(_));
            let done = self.commit(model, worker, pick);
            if !done || !goes_on {
                return done;
            }
        }
        false
    }

    /// When a policy wants another turn, if nothing happens before.
    fn wake_at(&self) -> Option<Time> {
        if !self.core.takes_requests() {
            return None;
        }
        let policies = self.policies.0.iter().zip((0..).map(ModelId));
        policies.filter_map(|(policy, model)| policy.as_ref()?.wake_at(self.core.view(model))).min()
    }

    /// Carries a pick out. False if it was refused, or there was nothing to run.
    fn commit(&mut self, model: ModelId, worker: WorkerId, pick: Pick) -> bool {
        let committed = self.core.commit(model, worker, pick);
        if let Err(fault) = committed {
            self.core.refuse(model, worker, fault);
        }
        self.deliver_notes();
        committed == Ok(true)
    }
}

//! Requests given to the engine as graphs, without a plugin: what they are, what must come of them, and what did.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use cellwright_cell_graph::check::{GraphLimits, Model, Unfolding};
use cellwright_cell_graph::generate::{self, Rng};
use cellwright_cell_graph::{Tensor, UnfoldedGrowth};
use cellwright_engine::{
    CellOverride, Engine, Handle, LoadedModel, ModelSpec, RequestFailure, RequestTensors, RequestTimes, Sink, SubmitError, Urgency, Value,
};

use crate::naive::{At, Naive, compare};

/// Nothing in these tests takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A request, and what must come of it; none: it must fail.
pub struct Case {
    /// Its graph.
    pub growth: Arc<UnfoldedGrowth>,
    /// What that refers to.
    pub tensors: Vec<Arc<Tensor>>,
    /// Computed one node at a time.
    pub wanted: Option<Naive>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It finished.
    Finished,
    /// It ended otherwise.
    Failed(RequestFailure),
    /// Nobody said.
    Forgotten,
}

/// All that came of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What was delivered.
    pub values: BTreeMap<At, Vec<u8>>,
    /// Steps that chains with a stop executed.
    pub ended: BTreeMap<u32, u32>,
    /// How it ended.
    pub outcome: Outcome,
}

/// An answer that is on its way.
pub struct Pending {
    /// Whose.
    pub handle: Handle,
    answer: Receiver<Ended>,
    values: Receiver<At>,
}

/// An answer, and how its request fared unless it was forgotten.
type Ended = (Answer, Option<RequestTimes>);

struct Collecting {
    answer: Option<Answer>,
    done: SyncSender<Ended>,
    seen: SyncSender<At>,
}

impl Case {
    /// A request of that graph, computed.
    #[must_use]
    pub fn new(model: &Arc<Model>, growth: Arc<UnfoldedGrowth>, tensors: Vec<Arc<Tensor>>) -> Self {
        let mut naive = Naive::new(model.clone());
        let wanted = naive.grow(&growth, 0, &tensors).is_ok().then_some(naive);
        Self { growth, tensors, wanted }
    }

    /// So many requests of every family of graphs, and some that no model would make.
    #[must_use]
    pub fn mixed(model: &Arc<Model>, count: usize, seed: u64) -> Vec<Self> {
        let mut rng = Rng::new(seed);
        let mut cases = Vec::with_capacity(count);
        while cases.len() < count {
            let (growth, tensors) = if rng.one_in(4) { generate::wild(model, &mut rng) } else { generate::growth(model, &mut rng) };
            if let Ok(unfolded) = Unfolding::new(model.clone(), GraphLimits::default()).grow(growth, 0, &tensors) {
                cases.push(Self::new(model, Arc::new(unfolded), tensors));
            }
        }
        cases
    }

    /// Submits it, again and again while the engine is full.
    ///
    /// # Panics
    /// If the engine is stopped, or stays full.
    #[must_use]
    pub fn submit(&self, engine: &Engine, model: &Arc<LoadedModel>) -> Pending {
        let end = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < end, "the engine stays full: {:?}", engine.snapshot());
            match self.try_submit(engine, model) {
                Ok(pending) => return pending,
                Err(SubmitError::Full) => std::thread::yield_now(),
                Err(SubmitError::Stopped) => panic!("the engine runs"),
            }
        }
    }

    /// Submits it. A graph that could go on does not.
    ///
    /// # Errors
    /// If it is not taken.
    pub fn try_submit(&self, engine: &Engine, model: &Arc<LoadedModel>) -> Result<Pending, SubmitError> {
        let pending = submit(engine, model, &self.growth, &RequestTensors { first: 0, tensors: self.tensors.clone() })?;
        if self.growth.next.is_some() {
            engine.close(pending.handle);
        }
        Ok(pending)
    }

    /// Whether that is what must come of it.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn check(&self, answer: &Answer) -> Result<(), String> {
        match (&self.wanted, &answer.outcome) {
            (Some(naive), Outcome::Finished) => {
                if naive.ended != answer.ended {
                    return Err(format!("chains ended after {:?}, not {:?} steps", answer.ended, naive.ended));
                }
                compare(&naive.delivered, &answer.values)
            }
            (None, Outcome::Failed(RequestFailure::BeyondEnd { .. } | RequestFailure::Row(_))) => Ok(()),
            (Some(_), outcome) => Err(format!("it ended with {outcome:?}")),
            (None, outcome) => Err(format!("it ended with {outcome:?}, though it names what is not there")),
        }
    }
}

/// Submits a first growth.
///
/// # Errors
/// If it is not taken.
pub fn submit(
    engine: &Engine,
    model: &Arc<LoadedModel>,
    growth: &Arc<UnfoldedGrowth>,
    tensors: &RequestTensors,
) -> Result<Pending, SubmitError> {
    submit_urgent(Urgency::default(), engine, model, (growth, tensors))
}

/// The same, of that urgency.
///
/// # Errors
/// If it is not taken.
pub fn submit_urgent(
    urgency: Urgency,
    engine: &Engine,
    model: &Arc<LoadedModel>,
    (growth, tensors): (&Arc<UnfoldedGrowth>, &RequestTensors),
) -> Result<Pending, SubmitError> {
    let (done, answer) = sync_channel(1);
    let (seen, values) = sync_channel(1 << 16);
    let empty = Answer { values: BTreeMap::new(), ended: BTreeMap::new(), outcome: Outcome::Forgotten };
    let sink = Box::new(Collecting { answer: Some(empty), done, seen });
    let handle = engine.submit_urgent(urgency, model, growth.clone(), tensors.clone(), |_| sink)?;
    Ok(Pending { handle, answer, values })
}

impl Pending {
    /// The answer.
    ///
    /// # Panics
    /// If there is none for a long time.
    #[must_use]
    pub fn wait(&self) -> Answer {
        self.ended().0
    }

    /// How the request fared.
    ///
    /// # Panics
    /// If it does not end for a long time, or is forgotten.
    #[must_use]
    pub fn wait_times(&self) -> RequestTimes {
        self.ended().1.expect("nobody is forgotten")
    }

    fn ended(&self) -> Ended {
        self.answer.recv_timeout(PATIENCE).expect("every request ends")
    }

    /// Waits until a value arrives.
    ///
    /// # Panics
    /// If there is none for a long time.
    pub fn next_value(&self) -> At {
        self.values.recv_timeout(PATIENCE).expect("a value arrives")
    }

    /// Whether a value has arrived that was not asked about before.
    #[must_use]
    pub fn saw_value(&self) -> bool {
        self.values.try_recv().is_ok()
    }

    /// The answer, if it is there.
    #[must_use]
    pub fn now(&self) -> Option<Answer> {
        self.answer.try_recv().ok().map(|(answer, _)| answer)
    }
}

impl Collecting {
    fn answer(&mut self) -> &mut Answer {
        self.answer.as_mut().expect("nothing comes after the end")
    }

    fn end(&mut self, outcome: Outcome, times: Option<RequestTimes>) {
        let mut answer = self.answer.take().expect("a request ends once");
        answer.outcome = outcome;
        // Whoever does not wait any more does not want to know.
        let _ = self.done.send((answer, times));
    }
}

impl Sink for Collecting {
    fn value(&mut self, value: Value<'_>) {
        let at = (value.chain, value.stage, value.output, value.step);
        let before = self.answer().values.insert(at, value.bytes.to_vec());
        assert!(before.is_none(), "{at:?} was delivered twice");
        let _ = self.seen.try_send(at);
    }

    fn ended(&mut self, chain: u32, executed: u32) {
        let before = self.answer().ended.insert(chain, executed);
        assert!(before.is_none(), "chain {chain} ended twice");
    }

    fn finished(mut self: Box<Self>, times: RequestTimes) {
        self.end(Outcome::Finished, Some(times));
    }

    fn failed(mut self: Box<Self>, failure: RequestFailure, times: RequestTimes) {
        self.end(Outcome::Failed(failure), Some(times));
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        if self.answer.is_some() && !std::thread::panicking() {
            self.end(Outcome::Forgotten, None);
        }
    }
}

/// Waits until nothing of any request is left in the engine. The last answer is given a moment before its place is.
///
/// # Panics
/// If something stays.
pub fn settled(engine: &Engine) {
    let counters = engine.counters();
    wait_until("nothing is left of any request", || {
        [&counters.in_flight, &counters.growths, &counters.lanes].into_iter().all(|gauge| gauge.load(Ordering::Relaxed) == 0)
    });
}

/// Waits until something holds.
///
/// # Panics
/// If it does not for a long time.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "still waiting until {what}");
        std::thread::yield_now();
    }
}

/// A generated model for the engine, of that tenant, in batches of at most `batch_max`.
#[must_use]
pub fn spec(model: &Model, tenant: u32, batch_max: u32) -> ModelSpec {
    ModelSpec {
        policy: None,
        name: "generated".to_owned(),
        tenant,
        weight: 1,
        cells: model.cells.clone(),
        overrides: vec![CellOverride { batch_max: Some(batch_max), priority: None }; model.cells.len()],
        live_max: model.description.live_max,
        charged: Vec::new(),
    }
}

//! A world: models that come and go, and requests that arrive, grow and leave as they like.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::generate::Rng;
use cellwright_engine::{Engine, LoadedModel, ModelError, RequestFailure, SubmitError, Urgency};
use cellwright_tests::devices::Fuse;
use cellwright_tests::graphs::{Answer, Outcome, Pending, settled, submit_urgent, wait_until};
use cellwright_tests::naive::Compute;

use super::exact::exact;
use super::request::{Fate, Request};
use super::settings::{Settings, models};

/// Loads beside others at once.
const LOADS_MAX: usize = 4;

/// How requests ended.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) finished: u64,
    pub(crate) otherwise: u64,
    pub(crate) cancelled: u64,
    pub(crate) lost: u64,
    pub(crate) late: u64,
    pub(crate) large: u64,
    /// Those that finished with more than one growth.
    pub(crate) grown: u64,
    pub(crate) moved: u64,
    pub(crate) reloads: u64,
}

impl Ends {
    pub(crate) fn add(&mut self, other: &Self) {
        let Self { finished, otherwise, cancelled, lost, late, large, grown, moved, reloads } = other;
        for (sum, more) in [
            (&mut self.finished, finished),
            (&mut self.otherwise, otherwise),
            (&mut self.cancelled, cancelled),
            (&mut self.lost, lost),
            (&mut self.late, late),
            (&mut self.large, large),
            (&mut self.grown, grown),
            (&mut self.moved, moved),
            (&mut self.reloads, reloads),
        ] {
            *sum += more;
        }
    }

    fn count(&mut self, answer: &Answer, growths: usize) {
        let counted = match &answer.outcome {
            Outcome::Finished => {
                self.grown += u64::from(growths > 1);
                self.finished += 1;
                return;
            }
            Outcome::Failed(RequestFailure::Cancelled) => &mut self.cancelled,
            Outcome::Failed(RequestFailure::WorkerLost | RequestFailure::NoWorker) => &mut self.lost,
            Outcome::Failed(RequestFailure::Late { .. }) => &mut self.late,
            Outcome::Failed(RequestFailure::TooLarge { .. } | RequestFailure::GrewTooLarge { .. }) => &mut self.large,
            _ => &mut self.otherwise,
        };
        *counted += 1;
    }
}

/// A model in the engine.
struct Served {
    /// Its place among those that were made.
    made: usize,
    loaded: Arc<LoadedModel>,
    grows: bool,
    /// It goes.
    leaving: Option<JoinHandle<()>>,
}

/// A request in the engine.
struct Running {
    request: Request,
    pending: Pending,
    /// Growths that it has so far.
    grown: usize,
    closed: bool,
    fate: Fate,
    /// Whether it goes on when it has seen something, as a plugin that is told.
    patient: bool,
    /// The place of its model among those that are served.
    model: usize,
}

struct World {
    rng: Rng,
    settings: Settings,
    engine: Arc<Engine>,
    made: Vec<(Arc<Model>, Compute)>,
    served: Vec<Served>,
    running: Vec<Running>,
    ends: Ends,
    steps_most: u32,
    crowded: bool,
    lost: Option<Fuse>,
    /// Loads that may be given up, of models that go at once.
    loads: Vec<JoinHandle<()>>,
}

/// Runs the world of that seed; what came of its requests, or the settings under which something panicked.
pub(crate) fn run(seed: u64) -> Result<Ends, String> {
    let mut rng = Rng::new(seed);
    let mut settings = Settings::new(&mut rng);
    let words = settings.words.clone();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let backends = std::mem::take(&mut settings.backends);
        let options = std::mem::take(&mut settings.options);
        let crowded = options.scheduler.waiting_max < 1 << 10;
        let engine = Arc::new(Engine::start(options, backends).unwrap());
        let count = 1 + rng.below(2);
        let made = models(&settings, seed, count);
        let made = made.into_iter().map(|model| (exact(&model, &settings.domain), model)).map(|(compute, model)| (model, compute));
        let made = made.collect();
        let wide = settings.shape.hidden > 100;
        let steps_most = if wide { 12 } else { 60 };
        let mut world = World {
            rng,
            settings,
            engine,
            made,
            served: Vec::new(),
            running: Vec::new(),
            ends: Ends::default(),
            steps_most,
            crowded,
            lost: None,
            loads: Vec::new(),
        };
        world.live(if wide { 20 } else { 80 });
        world.ends
    }));
    result.map_err(|_| words)
}

impl World {
    fn live(&mut self, requests: u32) {
        for _ in 0..self.rng.between(1, 3) {
            let served = self.load();
            self.served.push(served);
        }
        let mut left = requests;
        while left > 0 || !self.running.is_empty() {
            match self.rng.below(24) {
                0..4 if left > 0 => {
                    for _ in 0..self.rng.between(1, 12).min(left) {
                        left -= u32::from(self.submit());
                    }
                }
                4..14 => self.advance(),
                14 if self.rng.one_in(3) => self.cancel(),
                15 if left > 0 && self.rng.one_in(4) => self.leave(),
                16 if self.rng.one_in(4) => self.lose(),
                16 => self.load_beside(),
                17..20 => std::thread::yield_now(),
                _ => self.reap(),
            }
            self.come_back();
        }
        self.end();
    }

    fn load(&mut self) -> Served {
        let made = self.rng.below(self.made.len() as u64) as usize;
        let spec = self.settings.spec(&self.made[made].0, &mut self.rng);
        let grows = spec.live_max.is_some();
        Served { made, loaded: self.engine.load(&spec).unwrap(), grows, leaving: None }
    }

    /// Another model comes and goes beside all that happens, or somebody gives its load up.
    fn load_beside(&mut self) {
        self.loads.retain(|load| !load.is_finished());
        if self.loads.len() < LOADS_MAX {
            let model = &self.made[self.rng.below(self.made.len() as u64) as usize].0;
            let (engine, spec) = (self.engine.clone(), self.settings.spec(model, &mut self.rng));
            let (looks, left) = (AtomicU64::new(0), self.rng.between(1, 60).into());
            self.loads.push(std::thread::spawn(move || {
                let is_cancelled = || looks.fetch_add(1, Ordering::Relaxed) >= left;
                match engine.load_unless(&spec, &is_cancelled) {
                    Ok(loaded) => engine.unload(&loaded),
                    Err(error) => assert!(matches!(error, ModelError::Cancelled(_) | ModelError::WorkerLost(_)), "{error}"),
                }
            }));
        }
    }

    /// Whether there was room for another request.
    fn submit(&mut self) -> bool {
        let mut model = self.rng.below(self.served.len() as u64) as usize;
        if self.served[model].leaving.is_some() && !self.rng.one_in(8) {
            model = self.served.iter().position(|served| served.leaving.is_none()).unwrap_or(model);
        }
        let served = &self.served[model];
        let (of, compute) = &self.made[served.made];
        let request = Request::new(of, compute, (served.grows || self.rng.one_in(16), self.steps_most), &mut self.rng);
        let hurries = self.rng.one_in(10);
        let deadline = hurries.then(|| Instant::now() + Duration::from_micros(self.rng.below(20_000)));
        let urgency = Urgency { rank: self.rng.between(0, 2), deadline, is_session: false };
        let fate = Fate {
            hurries,
            refused: served.leaving.is_some(),
            lost: self.lost.is_some(),
            may_not_grow: !served.grows,
            crowded: self.crowded,
            left: false,
        };
        let (growth, tensors) = &request.growths[0];
        match submit_urgent(urgency, &self.engine, &served.loaded, (growth, tensors)) {
            Ok(pending) => {
                let closed = growth.next.is_none();
                let patient = self.rng.one_in(2);
                self.running.push(Running { request, pending, grown: 1, closed, fate, patient, model });
            }
            Err(SubmitError::Full) => {
                self.reap();
                return false;
            }
            Err(SubmitError::Stopped) => panic!("the engine runs"),
        }
        let last = self.running.len() - 1;
        if !self.running[last].patient && self.rng.one_in(2) {
            while !self.running[last].closed {
                self.grow(last);
            }
        }
        true
    }

    fn advance(&mut self) {
        // What a patient one waits for may never come.
        if let Some(at) = self.any()
            && (!self.running[at].patient || self.running[at].pending.saw_value() || self.rng.one_in(32))
        {
            self.grow(at);
        }
    }

    fn any(&mut self) -> Option<usize> {
        (!self.running.is_empty()).then(|| self.rng.below(self.running.len() as u64) as usize)
    }

    fn grow(&mut self, at: usize) {
        let Running { request, pending, grown, closed, .. } = &mut self.running[at];
        match request.growths.get(*grown) {
            _ if *closed => {}
            Some((growth, tensors)) => {
                self.engine.grow(pending.handle, growth.clone(), tensors.clone());
                *grown += 1;
                *closed = growth.next.is_none();
            }
            None => {
                self.engine.close(pending.handle);
                *closed = true;
            }
        }
    }

    fn cancel(&mut self) {
        if let Some(at) = self.any() {
            self.engine.cancel(self.running[at].pending.handle);
            self.running[at].fate.left = true;
        }
    }

    /// A model goes, once its requests have ended.
    fn leave(&mut self) {
        let model = self.rng.below(self.served.len() as u64) as usize;
        let served = &mut self.served[model];
        if served.leaving.is_none() {
            let (engine, loaded) = (self.engine.clone(), served.loaded.clone());
            served.leaving = Some(std::thread::spawn(move || engine.unload(&loaded)));
            self.ends.reloads += 1;
        }
    }

    /// Another model has the place of each that has gone.
    fn come_back(&mut self) {
        for model in 0..self.served.len() {
            if self.served[model].leaving.as_ref().is_some_and(JoinHandle::is_finished) {
                self.served[model].leaving.take().unwrap().join().unwrap();
                self.running.iter_mut().filter(|running| running.model == model).for_each(|running| running.fate.refused = true);
                if self.lost.is_none() {
                    self.served[model] = self.load();
                } else {
                    self.served[model].leaving = Some(std::thread::spawn(|| {}));
                }
            }
        }
    }

    fn lose(&mut self) {
        if let Some(fuse) = self.settings.fuse.take() {
            fuse.light(self.rng.between(0, 30));
            self.running.iter_mut().for_each(|running| running.fate.lost = true);
            self.lost = Some(fuse);
        }
    }

    fn reap(&mut self) {
        for running in std::mem::take(&mut self.running) {
            match running.pending.now() {
                Some(answer) => self.check(&running, &answer),
                None => self.running.push(running),
            }
        }
    }

    fn check(&mut self, running: &Running, answer: &Answer) {
        self.ends.count(answer, running.request.growths.len());
        let complete = running.closed && running.grown == running.request.growths.len();
        running.request.check(answer, running.fate).unwrap_or_else(|wrong| {
            let growths: Vec<_> = running.request.growths.iter().map(|(growth, _)| growth).collect();
            panic!("{wrong} (all of it was there: {complete})\n{growths:#?}")
        });
    }

    /// Nothing is left of anybody.
    fn end(&mut self) {
        settled(&self.engine);
        self.loads.drain(..).for_each(|load| load.join().unwrap());
        self.ends.moved += self.engine.counters().moves.load(Ordering::Relaxed);
        for served in self.served.drain(..) {
            match served.leaving {
                Some(leaving) => leaving.join().unwrap(),
                None => self.engine.unload(&served.loaded),
            }
        }
        let engine = &self.engine;
        wait_until("all slots are free", || self.lost.is_some() || engine.snapshot().domains.iter().all(|domain| domain.slots_used == 0));
        assert_eq!(engine.snapshot().weight_bytes, 0, "weights of models that are gone");
    }
}

//! Who runs the scheduler: the engine's thread, or workers where they leave it no processor.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cellwright_cell_graph::generate::{self, Family, Rng};
use cellwright_engine::options::Observer;
use cellwright_engine::{Engine, EngineOptions, ModelError, SubmitError};
use cellwright_scheduler::{Commands, Event, Time};
use cellwright_tests::devices::{ALL_THREADS, domain, keeping, worker};
use cellwright_tests::graphs::{Case, Outcome, spec};

/// How often a request is made at most until somebody is seen to hear of one of its tasks.
const ROUNDS: usize = 100;

/// Notes the threads on which ends of tasks are heard of, and panics there from some moment on.
#[derive(Clone, Default)]
struct Hearing {
    threads: Arc<Mutex<Vec<String>>>,
    panics: Arc<AtomicBool>,
}

impl Observer for Hearing {
    fn told(&mut self, now: Time, events: &[Event], ended: &[Time]) {
        let done = events.iter().filter(|event| matches!(event, Event::Done { .. })).count();
        assert!(ended.len() == done && ended.iter().all(|ended| (Time(1)..=now).contains(ended)), "{done} ended by {now:?}: {ended:?}");
        if done == 0 {
            return;
        }
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        self.threads.lock().unwrap().push(name);
        assert!(!self.panics.load(Ordering::Relaxed), "the observer is made to panic");
    }

    fn decided(&mut self, _commands: &Commands) {}
}

#[test]
fn workers_decide_where_they_leave_no_processor() {
    let model = generate::model(41);
    let (growth, tensors) = generate::growth_of(&model, Family::Lstm, 200, &mut Rng::new(1));
    let case = Case::new(&model, generate::unfold(&model, growth, &tensors), tensors);
    for (threads, who) in [(0, "engine"), (ALL_THREADS, "worker-0")] {
        let hearing = Hearing::default();
        let observer: Option<Box<dyn Observer>> = Some(Box::new(hearing.clone()));
        let options = EngineOptions { observer, ..EngineOptions::default() };
        let engine = Engine::start(options, vec![keeping(threads, worker(&domain(64)))]).unwrap();
        let loaded = engine.load(&spec(&model, 0, 8)).unwrap();
        // On a busy machine either may be the first to look for a while: the engine's thread, or a worker that does not give way to other programs.
        let is_heard = (0..ROUNDS).any(|_| {
            case.check(&case.submit(&engine, &loaded).wait()).unwrap();
            let heard = std::mem::take(&mut *hearing.threads.lock().unwrap());
            heard.iter().any(|name| name == who)
        });
        assert!(is_heard, "no end was heard of on {who}");

        // Whoever panics takes the engine along: everybody hears of it, also who comes later or is on the way, and nobody waits.
        hearing.panics.store(true, Ordering::Relaxed);
        let pending: Vec<_> = (0..50).map(|_| case.try_submit(&engine, &loaded)).collect();
        assert!(pending[0].is_ok(), "nothing has happened yet");
        for pending in pending {
            match pending {
                Ok(pending) => assert_eq!(pending.wait().outcome, Outcome::Forgotten),
                Err(refused) => assert_eq!(refused, SubmitError::Stopped),
            }
        }
        for _ in 0..2 {
            assert_eq!(case.try_submit(&engine, &loaded).err(), Some(SubmitError::Stopped));
            assert!(matches!(engine.load(&spec(&model, 0, 8)), Err(ModelError::Stopped)));
            engine.unload(&loaded);
        }
        drop(engine);
    }
}

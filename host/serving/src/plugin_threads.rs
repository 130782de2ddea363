//! Threads on which plugins are called back, so that neither the engine's thread nor a client's waits for a guest.
//!
//! Calls wait in one line for each model, and the lines take turns: a model whose calls are long or many delays its own. One thread more is
//! started than calls of one model may run at once, so that no model ever holds them all.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

/// The engine's number of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModelNumber(pub(crate) u32);

/// One call to make.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The lines and the threads that empty them.
#[derive(Debug)]
pub(crate) struct PluginThreads {
    lines: Arc<Lines>,
    threads: Vec<JoinHandle<()>>,
}

/// The way into the lines. It does not hold the threads, so that whoever has one may drop it anywhere, on one of those threads too.
#[derive(Clone, Debug)]
pub(crate) struct PluginCalls(Weak<Lines>);

/// Why a call was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// Too many of its model wait.
    Full,
    /// The threads are gone.
    Gone,
}

#[derive(Debug)]
struct Lines {
    state: Mutex<State>,
    /// There is a call to make, or the end has come.
    changed: Condvar,
    /// Calls of one model that may run at once.
    running_max: usize,
    /// Calls of one model that may wait.
    waiting_max: usize,
}

#[derive(Default)]
struct State {
    lines: BTreeMap<ModelNumber, Line>,
    /// Models that have a call waiting and may have one more running, in the order of their turns; each once.
    turns: VecDeque<ModelNumber>,
    over: bool,
}

/// The calls of one model.
#[derive(Default)]
struct Line {
    waiting: VecDeque<Job>,
    running: usize,
    /// It stands in `turns`.
    has_turn: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("models", &self.lines.len()).field("turns", &self.turns).finish_non_exhaustive()
    }
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some((model, job)) = self.next() {
            // What a call broke is the call's; the thread goes on to the next.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("a call of a plugin panicked in the host");
            }
            self.done(model);
        }
    }

    /// The next call, waiting for it; none at the end.
    fn next(&self) -> Option<(ModelNumber, Job)> {
        let mut state = self.lock();
        loop {
            if state.over {
                return None;
            }
            if let Some(call) = state.take(self.running_max) {
                return Some(call);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, model: ModelNumber) {
        let mut state = self.lock();
        let Some(line) = state.lines.get_mut(&model) else { return };
        line.running -= 1;
        if line.running == 0 && line.waiting.is_empty() {
            state.lines.remove(&model);
        } else {
            state.queue(model, self.running_max);
            self.changed.notify_one();
        }
    }
}

impl State {
    /// Gives a model its turn, if it has use for one and none yet.
    fn queue(&mut self, model: ModelNumber, running_max: usize) {
        let Some(line) = self.lines.get_mut(&model) else { return };
        if !line.has_turn && !line.waiting.is_empty() && line.running < running_max {
            line.has_turn = true;
            self.turns.push_back(model);
        }
    }

    fn take(&mut self, running_max: usize) -> Option<(ModelNumber, Job)> {
        let model = self.turns.pop_front()?;
        let line = self.lines.get_mut(&model)?;
        line.has_turn = false;
        let job = line.waiting.pop_front()?;
        line.running += 1;
        self.queue(model, running_max);
        Some((model, job))
    }
}

impl PluginThreads {
    /// `running_max`: calls of one model that may run at once; `waiting_max`: that may wait.
    pub(crate) fn start(running_max: usize, waiting_max: usize) -> std::io::Result<Self> {
        let running_max = running_max.max(1);
        let lines = Arc::new(Lines { state: Mutex::default(), changed: Condvar::new(), running_max, waiting_max });
        let mut started = Self { lines: lines.clone(), threads: Vec::new() };
        for number in 0..=running_max {
            let lines = lines.clone();
            started.threads.push(std::thread::Builder::new().name(format!("plugin-{number}")).spawn(move || lines.work())?);
        }
        Ok(started)
    }

    pub(crate) fn calls(&self) -> PluginCalls {
        PluginCalls(Arc::downgrade(&self.lines))
    }
}

impl PluginCalls {
    /// Never waits.
    pub(crate) fn call(&self, model: ModelNumber, job: Job) -> Result<(), NotTaken> {
        let lines = self.0.upgrade().ok_or(NotTaken::Gone)?;
        let mut state = lines.lock();
        if state.over {
            return Err(NotTaken::Gone);
        }
        let line = state.lines.entry(model).or_default();
        if line.waiting.len() >= lines.waiting_max {
            return Err(NotTaken::Full);
        }
        line.waiting.push_back(job);
        state.queue(model, lines.running_max);
        drop(state);
        lines.changed.notify_one();
        Ok(())
    }
}

impl Drop for PluginThreads {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.lines.lock();
            state.over = true;
            std::mem::take(&mut state.lines)
        };
        self.lines.changed.notify_all();
        // Calls that nobody makes any more may hold the last of what they were for.
        drop(waiting);
        for thread in self.threads.drain(..) {
            // The last one to hold it may be one of its own threads.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    const A: ModelNumber = ModelNumber(0);
    const B: ModelNumber = ModelNumber(1);

    /// A call that says when it runs, and runs until it is let go.
    fn held(threads: &PluginThreads, model: ModelNumber) -> (Receiver<()>, SyncSender<()>) {
        let ((started, is_running), (go_on, wait)) = (sync_channel(1), sync_channel::<()>(1));
        let running = move || {
            let _ = started.send(());
            let _ = wait.recv();
        };
        threads.calls().call(model, Box::new(running)).unwrap();
        (is_running, go_on)
    }

    #[test]
    fn a_call_that_panics_does_not_take_its_thread_with_it() {
        let threads = PluginThreads::start(1, 4).unwrap();
        let (done, seen) = sync_channel(8);
        for _ in 0..3 {
            threads.calls().call(A, Box::new(|| panic!("on purpose"))).unwrap();
            let done = done.clone();
            threads.calls().call(A, Box::new(move || done.send(()).unwrap())).unwrap();
            seen.recv().unwrap();
        }
    }

    #[test]
    fn calls_are_refused_when_too_many_of_their_model_wait_and_when_the_threads_are_gone() {
        let threads = PluginThreads::start(1, 1).unwrap();
        let calls = threads.calls();
        let (is_running, go_on) = held(&threads, A);
        is_running.recv().unwrap();
        calls.call(A, Box::new(|| {})).unwrap();
        assert_eq!(calls.call(A, Box::new(|| {})), Err(NotTaken::Full));
        assert_eq!(calls.call(B, Box::new(|| {})), Ok(()));
        go_on.send(()).unwrap();
        drop(threads);
        assert_eq!(calls.call(A, Box::new(|| {})), Err(NotTaken::Gone));
    }

    /// Two requests used to hold both threads for as long as they liked.
    #[test]
    fn one_model_never_holds_all_threads() {
        let threads = PluginThreads::start(2, 100).unwrap();
        let hogs: Vec<_> = (0..50).map(|_| held(&threads, A)).collect();
        hogs[0].0.recv().unwrap();
        hogs[1].0.recv().unwrap();
        for _ in 0..3 {
            let (is_running, go_on) = held(&threads, B);
            is_running.recv().unwrap();
            go_on.send(()).unwrap();
        }
        assert!(hogs[2].0.try_recv().is_err(), "a third call of one model runs");
    }

    #[test]
    fn models_take_turns() {
        let mut state = State::default();
        let mut call = |model: ModelNumber, count: usize| {
            let line = state.lines.entry(model).or_default();
            line.waiting.extend((0..count).map(|_| -> Job { Box::new(|| {}) }));
            state.queue(model, 9);
        };
        call(A, 5);
        call(B, 2);
        call(ModelNumber(2), 1);
        let order: Vec<u32> = std::iter::from_fn(|| state.take(9)).map(|(model, _)| model.0).collect();
        assert_eq!(order, [0, 1, 2, 0, 1, 0, 0, 0]);
    }
}

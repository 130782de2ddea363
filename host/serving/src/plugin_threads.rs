//! Threads on which plugins are called back, so that neither the engine's thread nor a client's
//! thread waits for a guest.
//!
//! Each model has a queue of calls. Tenants take turns, and so do the models of a tenant. Long or
//! many calls thus delay their own tenant. There are more threads than one tenant may use at once,
//! and more than one model may use, so nobody ever holds them all.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

/// Whose plugin is called, by the engine's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PluginOf {
    pub(crate) tenant: u32,
    pub(crate) model: u32,
}

/// One call to make.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The queues of calls, and the threads that empty them.
#[derive(Debug)]
pub(crate) struct PluginThreads {
    queues: Arc<CallQueues>,
    threads: Vec<JoinHandle<()>>,
}

/// The way into the queues. It does not hold the threads, so it may be dropped anywhere, on one of them too.
#[derive(Clone, Debug)]
pub(crate) struct PluginCalls(Weak<CallQueues>);

/// Why a call was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// Too many of its model wait.
    Full,
    /// The threads are gone.
    Gone,
}

#[derive(Debug)]
struct CallQueues {
    state: Mutex<QueuedCalls>,
    /// There is a call to make, or the end has come.
    changed: Condvar,
    /// Calls of one model that may wait.
    waiting_max: usize,
}

struct QueuedCalls {
    tenants: BTreeMap<u32, TenantCalls>,
    /// Tenants one of whose models has a turn, and that may have one more call running, in the order of their turns; each once.
    turns: VecDeque<u32>,
    /// Calls of one model that may run at once; of one tenant, one more.
    running_max: usize,
    over: bool,
}

/// The queues of one tenant's models.
#[derive(Default)]
struct TenantCalls {
    models: BTreeMap<u32, ModelCalls>,
    /// Models that have a call waiting and may have one more running, in the order of their turns; each once.
    turns: VecDeque<u32>,
    running: usize,
    /// It stands in the state's `turns`.
    has_turn: bool,
}

/// The calls of one model.
#[derive(Default)]
struct ModelCalls {
    waiting: VecDeque<Job>,
    running: usize,
    /// It stands in its tenant's `turns`.
    has_turn: bool,
}

impl std::fmt::Debug for QueuedCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuedCalls").field("tenants", &self.tenants.len()).field("turns", &self.turns).finish_non_exhaustive()
    }
}

impl CallQueues {
    fn lock(&self) -> MutexGuard<'_, QueuedCalls> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some((whose, job)) = self.next() {
            // What a call broke is the call's; the thread goes on to the next.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("the host panicked during a call of a plugin");
            }
            // It lets one more call run at most, which this thread is about to look for.
            self.lock().done(whose);
        }
    }

    /// The next call, waiting for it; none at the end.
    fn next(&self) -> Option<(PluginOf, Job)> {
        let mut state = self.lock();
        loop {
            if state.over {
                return None;
            }
            if let Some(call) = state.take() {
                return Some(call);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl QueuedCalls {
    const fn new(running_max: usize) -> Self {
        Self { tenants: BTreeMap::new(), turns: VecDeque::new(), running_max, over: false }
    }

    /// Gives a model and its tenant their turns, where they have use for one and none yet.
    fn queue(&mut self, whose: PluginOf) {
        let Some(tenant) = self.tenants.get_mut(&whose.tenant) else { return };
        tenant.queue(whose.model, self.running_max);
        if !tenant.has_turn && !tenant.turns.is_empty() && tenant.running <= self.running_max {
            tenant.has_turn = true;
            self.turns.push_back(whose.tenant);
        }
    }

    fn take(&mut self) -> Option<(PluginOf, Job)> {
        let number = self.turns.pop_front()?;
        let tenant = self.tenants.get_mut(&number)?;
        tenant.has_turn = false;
        let (model, job) = tenant.take()?;
        let whose = PluginOf { tenant: number, model };
        self.queue(whose);
        Some((whose, job))
    }

    /// A call has ended.
    fn done(&mut self, whose: PluginOf) {
        let Some(tenant) = self.tenants.get_mut(&whose.tenant) else { return };
        tenant.running -= 1;
        if let Some(calls) = tenant.models.get_mut(&whose.model) {
            calls.running -= 1;
            if calls.running == 0 && calls.waiting.is_empty() {
                tenant.models.remove(&whose.model);
            }
        }
        if tenant.models.is_empty() {
            self.tenants.remove(&whose.tenant);
        }
        self.queue(whose);
    }
}

impl TenantCalls {
    fn queue(&mut self, model: u32, running_max: usize) {
        let Some(calls) = self.models.get_mut(&model) else { return };
        if !calls.has_turn && !calls.waiting.is_empty() && calls.running < running_max {
            calls.has_turn = true;
            self.turns.push_back(model);
        }
    }

    fn take(&mut self) -> Option<(u32, Job)> {
        let model = self.turns.pop_front()?;
        let calls = self.models.get_mut(&model)?;
        calls.has_turn = false;
        let job = calls.waiting.pop_front()?;
        calls.running += 1;
        self.running += 1;
        Some((model, job))
    }
}

impl PluginThreads {
    /// `running_max`: calls of one model that may run at once; `waiting_max`: that may wait.
    pub(crate) fn start(running_max: usize, waiting_max: usize) -> std::io::Result<Self> {
        let running_max = running_max.max(1);
        let state = Mutex::new(QueuedCalls::new(running_max));
        let queues = Arc::new(CallQueues { state, changed: Condvar::new(), waiting_max });
        let mut started = Self { queues: queues.clone(), threads: Vec::new() };
        for number in 0..running_max + 2 {
            let queues = queues.clone();
            started.threads.push(std::thread::Builder::new().name(format!("plugin-{number}")).spawn(move || queues.work())?);
        }
        Ok(started)
    }

    pub(crate) fn calls(&self) -> PluginCalls {
        PluginCalls(Arc::downgrade(&self.queues))
    }
}

impl PluginCalls {
    /// Never waits.
    pub(crate) fn call(&self, whose: PluginOf, job: Job) -> Result<(), NotTaken> {
        let queues = self.0.upgrade().ok_or(NotTaken::Gone)?;
        let mut state = queues.lock();
        if state.over {
            return Err(NotTaken::Gone);
        }
        let calls = state.tenants.entry(whose.tenant).or_default().models.entry(whose.model).or_default();
        if calls.waiting.len() >= queues.waiting_max {
            return Err(NotTaken::Full);
        }
        calls.waiting.push_back(job);
        state.queue(whose);
        drop(state);
        queues.changed.notify_one();
        Ok(())
    }
}

impl Drop for PluginThreads {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.queues.lock();
            state.over = true;
            std::mem::take(&mut state.tenants)
        };
        self.queues.changed.notify_all();
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

    const A: PluginOf = PluginOf { tenant: 0, model: 0 };
    /// Of the same tenant.
    const B: PluginOf = PluginOf { tenant: 0, model: 1 };
    const OTHER: PluginOf = PluginOf { tenant: 1, model: 2 };

    /// A call that says when it runs, and runs until it is let go.
    fn held(threads: &PluginThreads, whose: PluginOf) -> (Receiver<()>, SyncSender<()>) {
        let ((started, is_running), (go_on, wait)) = (sync_channel(1), sync_channel::<()>(1));
        let running = move || {
            let _ = started.send(());
            let _ = wait.recv();
        };
        threads.calls().call(whose, Box::new(running)).unwrap();
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
    fn nor_does_one_tenant_however_many_models_it_has() {
        let threads = PluginThreads::start(2, 100).unwrap();
        let model = |number: u32| PluginOf { tenant: 0, model: number % 10 };
        let hogs: Vec<_> = (0..50).map(|number| held(&threads, model(number))).collect();
        hogs[..3].iter().for_each(|(is_running, _)| is_running.recv().unwrap());
        for _ in 0..3 {
            let (is_running, go_on) = held(&threads, OTHER);
            is_running.recv().unwrap();
            go_on.send(()).unwrap();
        }
        assert!(hogs[3].0.try_recv().is_err(), "a fourth call of one tenant runs");
        // What it waits with goes on as soon as it may.
        hogs[0].1.send(()).unwrap();
        hogs[3].0.recv().unwrap();
    }

    fn taken(calls: &[(PluginOf, usize)]) -> Vec<u32> {
        let mut state = QueuedCalls::new(9);
        for (whose, count) in calls {
            let calls = state.tenants.entry(whose.tenant).or_default().models.entry(whose.model).or_default();
            calls.waiting.extend((0..*count).map(|_| -> Job { Box::new(|| {}) }));
            state.queue(*whose);
        }
        let order = std::iter::from_fn(|| state.take()).collect::<Vec<_>>();
        order.iter().for_each(|(whose, _)| state.done(*whose));
        assert!(state.tenants.is_empty() && state.turns.is_empty());
        order.iter().map(|(whose, _)| whose.model).collect()
    }

    #[test]
    fn models_of_a_tenant_take_turns() {
        assert_eq!(taken(&[(A, 5), (B, 2)]), [0, 1, 0, 1, 0, 0, 0]);
    }

    /// A tenant had as many turns as models.
    #[test]
    fn tenants_take_turns() {
        let third = PluginOf { tenant: 0, model: 3 };
        assert_eq!(taken(&[(A, 2), (B, 2), (third, 2), (OTHER, 3)]), [0, 2, 1, 2, 3, 2, 0, 1, 3]);
    }
}

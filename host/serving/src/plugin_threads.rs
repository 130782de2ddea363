//! Threads on which plugins are called back, so that neither the engine's thread nor a client's waits for a guest.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, TrySendError, bounded};

/// One call to make.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// A bounded queue and the threads that empty it.
#[derive(Debug)]
pub(crate) struct PluginThreads {
    queue: Option<Arc<Sender<Job>>>,
    threads: Vec<JoinHandle<()>>,
}

/// The way into the queue. It does not hold the threads, so that whoever has one may drop it anywhere, on one of those threads too.
#[derive(Clone, Debug)]
pub(crate) struct PluginCalls(Weak<Sender<Job>>);

/// Why a call was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// Too many wait.
    Full,
    /// The threads are gone.
    Gone,
}

impl PluginThreads {
    /// `queue_max`: calls that may wait.
    pub(crate) fn start(count: usize, queue_max: usize) -> std::io::Result<Self> {
        let (queue, jobs) = bounded::<Job>(queue_max);
        let start = |number| {
            let jobs = jobs.clone();
            std::thread::Builder::new().name(format!("plugin-{number}")).spawn(move || {
                for job in jobs {
                    // What a call broke is the call's; the thread goes on to the next.
                    if catch_unwind(AssertUnwindSafe(job)).is_err() {
                        tracing::error!("a call of a plugin panicked in the host");
                    }
                }
            })
        };
        let threads = (0..count.max(1)).map(start).collect::<Result<_, _>>()?;
        Ok(Self { queue: Some(Arc::new(queue)), threads })
    }

    pub(crate) fn calls(&self) -> PluginCalls {
        PluginCalls(self.queue.as_ref().map(Arc::downgrade).unwrap_or_default())
    }
}

impl PluginCalls {
    /// Never waits.
    pub(crate) fn call(&self, job: Job) -> Result<(), NotTaken> {
        let queue = self.0.upgrade().ok_or(NotTaken::Gone)?;
        queue.try_send(job).map_err(|refused| if matches!(refused, TrySendError::Full(_)) { NotTaken::Full } else { NotTaken::Gone })
    }
}

impl Drop for PluginThreads {
    fn drop(&mut self) {
        self.queue = None;
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
    use super::*;

    #[test]
    fn a_call_that_panics_does_not_take_its_thread_with_it() {
        let threads = PluginThreads::start(1, 4).unwrap();
        let (done, seen) = bounded(1);
        threads.calls().call(Box::new(|| panic!("on purpose"))).unwrap();
        threads.calls().call(Box::new(move || done.send(()).unwrap())).unwrap();
        seen.recv().unwrap();
    }

    #[test]
    fn calls_are_refused_when_too_many_wait_and_when_the_threads_are_gone() {
        let threads = PluginThreads::start(1, 1).unwrap();
        let calls = threads.calls();
        let ((started, is_running), (go_on, wait)) = (bounded(1), bounded::<()>(1));
        let running = move || {
            started.send(()).unwrap();
            wait.recv().unwrap();
        };
        calls.call(Box::new(running)).unwrap();
        is_running.recv().unwrap();
        calls.call(Box::new(|| {})).unwrap();
        assert_eq!(calls.call(Box::new(|| {})), Err(NotTaken::Full));
        go_on.send(()).unwrap();
        drop(threads);
        assert_eq!(calls.call(Box::new(|| {})), Err(NotTaken::Gone));
    }
}

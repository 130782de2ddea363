//! Threads on which plugins are called back, so that neither the engine's thread nor a client's waits for a guest.

use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};

/// One call to make.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// A bounded queue and the threads that empty it.
#[derive(Debug)]
pub(crate) struct PluginThreads {
    queue: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl PluginThreads {
    /// `queue_max`: each request has at most one call waiting, so this many requests can never fill it.
    pub(crate) fn start(count: usize, queue_max: usize) -> std::io::Result<Self> {
        let (queue, jobs) = bounded::<Job>(queue_max);
        let start = |number| {
            let jobs = jobs.clone();
            std::thread::Builder::new().name(format!("plugin-{number}")).spawn(move || {
                for job in jobs {
                    job();
                }
            })
        };
        let threads = (0..count.max(1)).map(start).collect::<Result<_, _>>()?;
        Ok(Self { queue: Some(queue), threads })
    }

    /// Whether the call was taken.
    pub(crate) fn call(&self, job: Job) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.try_send(job).is_ok())
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

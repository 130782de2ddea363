//! The last of an answer: put together where nobody else is kept waiting by it.

use std::sync::{Arc, Mutex, PoisonError};

use cellwright_engine::{RequestFailure, SubmitError};
use cellwright_protocol::InferResponse;

use crate::error::InferError;
use crate::plugin_threads::{NotTaken, PluginCalls, PluginOf};
use crate::reply::Client;

/// An answer that takes more than so many bytes' copying is put together on a plugin thread: the engine's has others to serve.
const WORK_MAX: usize = 256 << 10;

/// A client that has not heard the end. If nobody tells it, it hears that the host has stopped.
struct Unheard(Option<Box<dyn Client>>);

impl Unheard {
    fn tell(&mut self, result: Result<InferResponse, InferError>) {
        if let Some(client) = self.0.take() {
            client.end(result);
        }
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        self.tell(Err(InferError::Engine(RequestFailure::Stopped)));
    }
}

/// Tells a client its answer, which takes about so much work to put together. The last parts of it may be sent before.
pub(crate) fn end(
    (calls, whose): (&PluginCalls, PluginOf),
    work: usize,
    client: Box<dyn Client>,
    answer: impl FnOnce(&mut dyn Client) -> Result<InferResponse, InferError> + Send + 'static,
) {
    let tell = |mut unheard: Unheard| {
        let Some(client) = unheard.0.as_deref_mut() else { return };
        let result = answer(client);
        unheard.tell(result);
    };
    if work <= WORK_MAX {
        return tell(Unheard(Some(client)));
    }
    let waiting = Arc::new(Mutex::new(Unheard(Some(client))));
    let take = |waiting: &Mutex<Unheard>| Unheard(waiting.lock().unwrap_or_else(PoisonError::into_inner).0.take());
    let taken = waiting.clone();
    if calls.call(whose, Box::new(move || tell(take(&taken)))) == Err(NotTaken::Full) {
        take(&waiting).tell(Err(InferError::Submit(SubmitError::Full)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::thread::ThreadId;

    use cellwright_cell_graph::Tensor;

    use super::*;
    use crate::plugin_threads::PluginThreads;

    const MODEL: PluginOf = PluginOf { tenant: 0, model: 0 };

    struct Told(SyncSender<Result<ThreadId, String>>);

    impl Client for Told {
        fn part(&mut self, _: Tensor) {}

        fn end(self: Box<Self>, result: Result<InferResponse, InferError>) {
            let _ = self.0.send(result.map(|_| std::thread::current().id()).map_err(|error| error.to_string()));
        }
    }

    fn told(calls: &PluginCalls, work: usize) -> Receiver<Result<ThreadId, String>> {
        let (sender, told) = sync_channel(1);
        end((calls, MODEL), work, Box::new(Told(sender)), |_| Ok(InferResponse::default()));
        told
    }

    #[test]
    fn what_is_large_is_put_together_on_another_thread() {
        let threads = PluginThreads::start(1, 9).unwrap();
        let here = std::thread::current().id();
        assert_eq!(told(&threads.calls(), WORK_MAX).recv().unwrap(), Ok(here));
        assert_ne!(told(&threads.calls(), WORK_MAX + 1).recv().unwrap(), Ok(here));
    }

    #[test]
    fn a_client_hears_it_when_nobody_can_put_its_answer_together() {
        let threads = PluginThreads::start(1, 1).unwrap();
        let calls = threads.calls();
        let (started, is_running) = sync_channel(1);
        let (go_on, wait) = sync_channel::<()>(1);
        let hold = move || {
            let _ = started.send(());
            let _ = wait.recv();
        };
        calls.call(MODEL, Box::new(hold)).unwrap();
        is_running.recv().unwrap();
        let first = told(&calls, usize::MAX);
        assert_eq!(told(&calls, usize::MAX).recv().unwrap(), Err(SubmitError::Full.to_string()));
        go_on.send(()).unwrap();
        assert!(first.recv().unwrap().is_ok());
        drop(threads);
        assert_eq!(told(&calls, usize::MAX).recv().unwrap(), Err(RequestFailure::Stopped.to_string()));
    }
}

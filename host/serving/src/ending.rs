//! The last of an answer: put together on a thread that keeps nobody else waiting.
//!
//! The engine's thread copies rows as they arrive, and shares what has been handed on. A large
//! answer is put together on the threads on which plugins are called. For a client that takes
//! parts, the parts that have piled up are sent there too.

use std::sync::{Arc, Mutex, PoisonError};

use cellwright_protocol::InferResponse;

use crate::error::InferError;
use crate::plugin_threads::{NotTaken, PluginCalls, PluginOf};
use crate::recipient::Recipient;

/// An answer that takes more than so many bytes' copying is put together on a plugin thread: the engine's has others to serve.
const WORK_MAX: usize = 256 << 10;

/// Ends a request with its answer, which takes about so much work to put together. The last parts of it may be sent before.
pub(crate) fn end(
    (calls, whose, plugin_name): (&PluginCalls, PluginOf, &str),
    work: usize,
    mut recipient: Recipient,
    answer: impl FnOnce(&mut Recipient) -> Result<InferResponse, InferError> + Send + 'static,
) {
    if work <= WORK_MAX {
        let result = answer(&mut recipient);
        return recipient.end(result);
    }
    // A job that is not taken is dropped, and the recipient must still hear why.
    let waiting = Arc::new(Mutex::new(Some(recipient)));
    let take = |waiting: &Mutex<Option<Recipient>>| waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
    let taken = waiting.clone();
    let job = move || {
        if let Some(mut recipient) = take(&taken) {
            let result = answer(&mut recipient);
            recipient.end(result);
        }
    };
    if calls.call(whose, Box::new(job)) == Err(NotTaken::Full)
        && let Some(recipient) = take(&waiting)
    {
        recipient.end(Err(InferError::PluginCalls { plugin: plugin_name.to_owned() }));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::thread::ThreadId;

    use cellwright_engine::RequestFailure;

    use super::*;
    use crate::answer::{Answer, CallTimes, Observer, Patience};
    use crate::plugin_threads::PluginThreads;

    const MODEL: PluginOf = PluginOf { tenant: 0, model: 0 };

    struct Told(SyncSender<Result<ThreadId, String>>);

    impl Observer for Told {
        fn ended(&mut self, result: &mut Result<InferResponse, InferError>, _: &CallTimes) {
            let result = result.as_ref().map(|_| std::thread::current().id());
            let _ = self.0.send(result.map_err(|error| error.to_string()));
        }
    }

    fn told(calls: &PluginCalls, work: usize) -> (Answer, Receiver<Result<ThreadId, String>>) {
        let (sender, told) = sync_channel(1);
        let (answer, mut writer) = Answer::new(0, Patience::endless());
        writer.observe(Box::new(Told(sender)));
        end((calls, MODEL, "p"), work, Recipient::Call(writer), |_| Ok(InferResponse::default()));
        (answer, told)
    }

    #[test]
    fn what_is_large_is_put_together_on_another_thread() {
        let threads = PluginThreads::start(1, 9).unwrap();
        let here = std::thread::current().id();
        assert_eq!(told(&threads.calls(), WORK_MAX).1.recv().unwrap(), Ok(here));
        assert_ne!(told(&threads.calls(), WORK_MAX + 1).1.recv().unwrap(), Ok(here));
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
        assert_eq!(told(&calls, usize::MAX).1.recv().unwrap(), Err(InferError::PluginCalls { plugin: "p".to_owned() }.to_string()));
        go_on.send(()).unwrap();
        assert!(first.1.recv().unwrap().is_ok());
        drop(threads);
        assert_eq!(told(&calls, usize::MAX).1.recv().unwrap(), Err(RequestFailure::Stopped.to_string()));
    }
}

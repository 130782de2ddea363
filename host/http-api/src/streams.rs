//! HTTP/2's streams, each of which has to be read: a client that opens no window for an answer does
//! not keep it for ever.
//!
//! Whether a connection's socket takes bytes says nothing of one stream, and hyper has no time limit
//! for those. So each stream runs beside a clock that ends it. The answer tells the clock when it
//! waits for the client and when the client waits for it.
//!
//! A stream takes some kilobytes. Where an address, or all of them, have more streams than they may,
//! those that wait for their clients are reset: first those whose request had no valid key, of them
//! those that wait longest. A burst may bring more before that: beyond a bound new ones are reset at
//! once.

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lent::AnswerGuard;

/// What is handed to a stream at once. Of an answer's last piece nothing is known once the stream has it.
const PIECE_MAX: usize = 16 << 10;

tokio::task_local! {
    static PROGRESS: Arc<Progress>;
}

/// Since when an answer waits to be read.
#[derive(Debug, Default)]
struct Progress {
    waits_since: Mutex<Option<Instant>>,
    /// Its request had a valid key.
    has_key: AtomicBool,
    reset: Notify,
}

/// The request of this stream has a valid key.
pub(crate) fn note_key() {
    let _ = PROGRESS.try_with(|progress| progress.has_key.store(true, Ordering::Relaxed));
}

impl Progress {
    fn set(&self, waits_since: Option<Instant>) {
        *self.waits_since.lock().unwrap_or_else(PoisonError::into_inner) = waits_since;
    }

    fn waits_since(&self) -> Option<Instant> {
        *self.waits_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the answer has waited for so long.
    async fn stands_still(&self, limit: Duration) {
        loop {
            let left = self.waits_since().map_or(limit, |since| limit.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}

/// How many streams there may be before some are reset.
#[derive(Clone, Copy, Debug)]
struct StreamsMax {
    /// That wait for their clients and had no key.
    without_key: usize,
    all: usize,
    /// More are reset as they come.
    burst: usize,
}

const OF_ADDRESS: StreamsMax = StreamsMax { without_key: 64, all: 4096, burst: 16_384 };
const OF_PROCESS: StreamsMax = StreamsMax { without_key: 1024, all: 16_384, burst: 32_768 };
/// A stream that has waited for less is not reset.
const STANDS_MIN: Duration = Duration::from_millis(100);
/// How often streams are gone through.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The streams that are open.
#[derive(Debug, Default)]
pub(crate) struct OpenStreams(Mutex<ByAddress>);

#[derive(Debug, Default)]
struct ByAddress {
    addresses: HashMap<IpAddr, OfAddress>,
    all: usize,
    next: u64,
    looked: Option<Instant>,
}

#[derive(Debug, Default)]
struct OfAddress {
    streams: HashMap<u64, Arc<Progress>>,
    looked: Option<Instant>,
}

/// A stream of an address, counted until this is dropped.
struct Counted {
    open: Arc<OpenStreams>,
    address: IpAddr,
    number: u64,
}

/// Whether it is time to look again.
fn is_due(looked: &mut Option<Instant>) -> bool {
    let due = looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY);
    if due {
        *looked = Some(Instant::now());
    }
    due
}

impl StreamsMax {
    /// Resets streams that stand still, where there are more than may be.
    fn keep<'a>(self, count: usize, streams: impl Iterator<Item = &'a Arc<Progress>>) {
        let stands = |progress: &'a Arc<Progress>| {
            let since = progress.waits_since().filter(|since| since.elapsed() >= STANDS_MIN)?;
            Some((progress.has_key.load(Ordering::Relaxed), since, progress))
        };
        let mut stand: Vec<_> = streams.filter_map(stands).collect();
        stand.sort_unstable_by_key(|(has_key, since, _)| (*has_key, *since));
        let without_key = stand.iter().take_while(|(has_key, ..)| !has_key).count();
        // Some more than need be, so that this is seldom done.
        let excess = |count: usize, max: usize| if count > max { count - max * 3 / 4 } else { 0 };
        let reset = excess(without_key, self.without_key).max(excess(count, self.all));
        stand.into_iter().take(reset).for_each(|(.., progress)| progress.reset.notify_one());
    }
}

impl OpenStreams {
    /// Counts a stream. None: there are too many.
    fn enter(self: &Arc<Self>, address: IpAddr, progress: Arc<Progress>) -> Option<Counted> {
        let mut open = self.lock();
        let own = open.addresses.get(&address).map_or(0, |own| own.streams.len());
        if own >= OF_ADDRESS.burst || open.all >= OF_PROCESS.burst {
            return None;
        }
        open.next += 1;
        open.all += 1;
        let (number, all) = (open.next, open.all);
        let own = open.addresses.entry(address).or_default();
        own.streams.insert(number, progress);
        if own.streams.len() > OF_ADDRESS.without_key && is_due(&mut own.looked) {
            OF_ADDRESS.keep(own.streams.len(), own.streams.values());
        }
        if all > OF_PROCESS.without_key && is_due(&mut open.looked) {
            OF_PROCESS.keep(all, open.addresses.values().flat_map(|own| own.streams.values()));
        }
        Some(Counted { open: self.clone(), address, number })
    }

    fn lock(&self) -> MutexGuard<'_, ByAddress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        open.all -= 1;
        if let Some(own) = open.addresses.get_mut(&self.address) {
            own.streams.remove(&self.number);
            if own.streams.is_empty() {
                open.addresses.remove(&self.address);
            }
        }
    }
}

/// Runs each stream of a connection as a task of its own.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    pub(crate) open: Arc<OpenStreams>,
    /// The client's.
    pub(crate) address: IpAddr,
    /// How long a client may leave an answer unread.
    pub(crate) unread_max: Duration,
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let unread_max = self.unread_max;
        let progress = Arc::new(Progress::default());
        let watched = progress.clone();
        // A stream that is dropped is reset.
        let Some(counted) = self.open.enter(self.address, progress.clone()) else { return };
        let run = async move {
            let _counted = counted;
            tokio::select! {
                biased;
                _ = stream => {}
                () = watched.stands_still(unread_max) => tracing::debug!("a stream was closed: its client does not read the answer"),
                () = watched.reset.notified() => tracing::debug!("a stream was closed: its client reads none of too many answers"),
            }
        };
        drop(tokio::spawn(PROGRESS.scope(progress, run)));
    }
}

/// An answer's body as its stream sends it.
pub(crate) fn watched(body: Body, answering: Option<AnswerGuard>) -> Body {
    match PROGRESS.try_with(Arc::clone) {
        Ok(progress) => {
            // Until its client takes the head and opens a window, nobody asks the body for anything.
            progress.set(Some(Instant::now()));
            Body::new(Watched { body, left: Bytes::new(), progress, _answering: answering })
        }
        // An HTTP/1 connection has one answer at a time, and its socket is watched.
        Err(_) => body,
    }
}

struct Watched {
    body: Body,
    /// What is left of the frame that came last.
    left: Bytes,
    progress: Arc<Progress>,
    _answering: Option<AnswerGuard>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Who is asked for more has found a taker for what came before.
        self.progress.set(None);
        if self.left.is_empty() {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else { return Poll::Pending };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.left = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(cause)) => return Poll::Ready(Some(Err(cause))),
                None => return Poll::Ready(None),
            }
        }
        self.progress.set(Some(Instant::now()));
        let length = self.left.len().min(PIECE_MAX);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, left) = (self.body.size_hint(), self.left.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(left));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(left));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many streams of an address with or without a key, that have waited for so long as to be reset, or do not wait.
    fn streams(open: &Arc<OpenStreams>, (last, wait): (u8, bool), kinds: &[(usize, bool)]) -> Vec<(Arc<Progress>, Counted)> {
        let before = wait.then(|| Instant::now().checked_sub(STANDS_MIN).expect("the machine has run for a while"));
        let kinds = kinds.iter().flat_map(|(count, has_key)| std::iter::repeat_n(*has_key, *count));
        let enter = |has_key| {
            let progress = Arc::new(Progress::default());
            progress.has_key.store(has_key, Ordering::Relaxed);
            progress.set(before);
            (progress.clone(), open.enter([10, 0, 0, last].into(), progress).expect("there are not too many"))
        };
        kinds.map(enter).collect()
    }

    async fn are_reset(streams: &[(Arc<Progress>, Counted)]) -> usize {
        let mut count = 0;
        for (progress, _) in streams {
            count += usize::from(tokio::time::timeout(Duration::ZERO, progress.reset.notified()).await.is_ok());
        }
        count
    }

    fn look_again(open: &OpenStreams) {
        let mut open = open.lock();
        open.looked = None;
        open.addresses.values_mut().for_each(|own| own.looked = None);
    }

    #[tokio::test]
    async fn streams_without_a_key_are_reset_first_and_only_of_who_has_too_many() {
        let open = Arc::new(OpenStreams::default());
        let others = streams(&open, (1, true), &[(OF_ADDRESS.without_key, false)]);
        let own = streams(&open, (2, true), &[(OF_ADDRESS.without_key, true), (OF_ADDRESS.without_key, false)]);
        look_again(&open);
        let more = streams(&open, (2, true), &[(1, false)]);
        assert_eq!(are_reset(&others).await, 0);
        assert_eq!(are_reset(&own[..OF_ADDRESS.without_key]).await, 0, "those with a key");
        assert_eq!(are_reset(&own).await, OF_ADDRESS.without_key / 4 + 1);
        drop((others, own, more));
        assert!(open.lock().addresses.is_empty() && open.lock().all == 0);
    }

    #[test]
    fn of_a_burst_no_more_come_than_may() {
        let open = Arc::new(OpenStreams::default());
        let enter = |last| open.enter([10, 0, 0, last].into(), Arc::default());
        let all = |last| std::iter::from_fn(|| enter(last)).collect::<Vec<_>>();
        let (first, second) = (all(1), all(2));
        assert_eq!([first.len(), second.len(), all(3).len()], [OF_ADDRESS.burst, OF_PROCESS.burst - OF_ADDRESS.burst, 0]);
        drop(second);
        assert_eq!(all(3).len(), OF_ADDRESS.burst);
    }

    #[tokio::test]
    async fn what_its_client_reads_is_not_reset() {
        let open = Arc::new(OpenStreams::default());
        let own = streams(&open, (1, false), &[(OF_ADDRESS.all, false)]);
        look_again(&open);
        let _more = streams(&open, (1, false), &[(1, false)]);
        assert_eq!(are_reset(&own).await, 0);
    }
}

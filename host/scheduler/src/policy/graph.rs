//! Whole-graph batching with padding and buckets: the usual batching, and the baseline of
//! BatchMaker (EuroSys'18, section 7.1). With a batching window it is the baseline of LazyBatching
//! (HPCA'21, section III-A); with one request at a time its other baseline (section VI).
//!
//! Requests wait together if their graphs have the same structure and their lengths round up to the
//! same bucket. An idle worker takes the next bucket in turn whose batch is full or whose window
//! has closed. By default there is no window. The worker runs the batch to its end: chain by chain,
//! step by step, every request in every task. Shorter requests are padded, and no request leaves
//! before the batch is complete. Graphs that name single nodes cannot be padded; they batch only
//! with equal graphs. A growth is batched like a graph of its own.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{DomainId, RequestId, Time};
use crate::policy::shelf::{Bucket, Rules, Shelves};
use crate::policy::whole::{Queue, WholeGraphs, rounded, structure};
use crate::policy::{Key, Member, NANOSECONDS_PER_MS, Parameters, PolicyNameError, View, number};

/// Parameters of the policy `graph`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graph {
    /// Steps per bucket. 0: no buckets, and a batch is padded to its longest request.
    pub bucket_width: u32,
    /// Nanoseconds for which the first request of a batch waits for others, unless the batch is
    /// full before. 0: it does not wait.
    pub window_ns: u64,
}

/// The default width: the one that BatchMaker's authors found best for their baseline.
const BUCKET_WIDTH: u64 = 10;

/// The largest width. Each step of padding is computed, so a wider bucket is a mistake.
const WIDTH_MAX: u64 = 1024;

/// A longer window is a mistake.
const WINDOW_MS_MAX: u64 = 60_000;

impl Parameters for Graph {
    const NAMES: &'static [&'static str] = &["WIDTH", "WINDOW_MS"];

    fn read(given: &[&str]) -> Result<Self, PolicyNameError> {
        let width = "a number of steps per bucket, 0 to 1024; write `graph:10`, or `graph:0` to pad a batch to its longest";
        let window = "a batching window in milliseconds, 0 to 60000; write `graph:10:25`";
        Ok(Self {
            bucket_width: number(given.first(), BUCKET_WIDTH, 0..=WIDTH_MAX, width)? as u32,
            window_ns: number(given.get(1), 0, 0..=WINDOW_MS_MAX, window)? * NANOSECONDS_PER_MS,
        })
    }
}

/// As it is read. Fractions of a millisecond are dropped.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.window_ns {
            0 => write!(f, "{}", self.bucket_width),
            window => write!(f, "{}:{}", self.bucket_width, window / NANOSECONDS_PER_MS),
        }
    }
}

/// Requests that wait in buckets.
#[derive(Debug)]
pub(super) struct BucketQueue {
    buckets: Buckets,
    shelves: Shelves,
}

/// Which requests may be in a batch.
#[derive(Debug)]
struct Buckets {
    /// Steps per bucket; none if all requests share one bucket.
    width: Option<u32>,
    window_ns: u64,
    /// The most requests of a batch, instead of the types' limits.
    most: Option<usize>,
}

/// Whole graphs in buckets of their lengths.
pub(super) fn policy(Graph { bucket_width, window_ns }: Graph) -> WholeGraphs<BucketQueue> {
    WholeGraphs::new(BucketQueue { buckets: Buckets { width: Some(bucket_width), window_ns, most: None }, shelves: Shelves::default() })
}

/// One request after the other, first come, first served: the policy `serial`.
pub(super) fn one_by_one() -> WholeGraphs<BucketQueue> {
    WholeGraphs::new(BucketQueue { buckets: Buckets { width: None, window_ns: 0, most: Some(1) }, shelves: Shelves::default() })
}

impl Rules for Buckets {
    fn most(&self, view: View<'_>, first: &Member) -> usize {
        self.most.unwrap_or_else(|| view.batch_limit(first) as usize)
    }

    fn may_wait(&self) -> bool {
        self.window_ns > 0
    }

    fn waits_until(&self, _: View<'_>, bucket: &Bucket) -> Option<Time> {
        let first = bucket.iter().map(|member| member.since).min()?;
        Some(Time(first.0.saturating_add(self.window_ns)))
    }
}

impl Queue for BucketQueue {
    fn width(&self) -> u32 {
        self.buckets.width.unwrap_or(1)
    }

    fn put(&mut self, view: View<'_>, member: Member) {
        let Some(graph) = view.growth(&member) else { return };
        let bucket = self.buckets.width.map_or_else(Vec::new, |width| structure(graph, |length| rounded(length, width)));
        self.shelves.put(member, view.request(member.request).domain, bucket);
    }

    fn wake_at(&self, view: View<'_>) -> Option<Time> {
        self.shelves.wake_at(&self.buckets, view)
    }

    fn remove(&mut self, request: RequestId) {
        self.shelves.remove(request);
    }

    fn oldest(&self, view: View<'_>, domain: DomainId) -> Option<Key> {
        self.shelves.oldest(&self.buckets, view, domain)
    }

    fn take(&mut self, view: View<'_>, domain: DomainId) -> Vec<Member> {
        self.shelves.take(&self.buckets, view, domain, None)
    }
}

//! Growths that wait to be taken: a queue for policies that take requests.
//!
//! Each domain has a shelf. Growths that may be taken together share a bucket. Buckets take turns.
//! A bucket is sorted by rank, then by arrival.

use std::collections::{BTreeMap, VecDeque};

use crate::id::{DomainId, RequestId, Time};
use crate::policy::{Key, Member, View};

pub(super) type Bucket = VecDeque<Member>;

/// The buckets of a domain, none of them empty.
#[derive(Debug, Default)]
struct Shelf {
    buckets: BTreeMap<Vec<u32>, Bucket>,
    /// The bucket whose turn was last.
    last: Vec<u32>,
    /// The next request's order when that turn began.
    turn_began: u64,
}

impl Shelf {
    /// The bucket whose turn it is. A turn lasts while requests that came before it fill a batch.
    /// Then the next bucket that is due follows.
    ///
    /// With turns of one batch, a request of a popular bucket would wait for a round of all buckets
    /// before each batch ahead of it. BatchMaker's figures 7 and 8 do not show that.
    fn next(&mut self, rules: &impl Rules, view: View<'_>) -> Option<Vec<u32>> {
        let last = self.buckets.get(&self.last);
        let stays = last.and_then(|bucket| bucket.get(rules.most(view, bucket.front()?).checked_sub(1)?));
        if stays.is_some_and(|last| last.order < self.turn_began) {
            return Some(self.last.clone());
        }
        let due = || self.buckets.iter().filter(|(_, bucket)| is_due(rules, view, bucket));
        let key = due().find(|(key, _)| **key > self.last).or_else(|| due().next()).map(|(key, _)| key.clone())?;
        self.turn_began = view.next_order();
        Some(key)
    }
}

/// What a policy says of its buckets.
pub(super) trait Rules {
    /// The most requests of a batch that begins with `first`.
    fn most(&self, view: View<'_>, first: &Member) -> usize;

    /// Until when a bucket waits for more requests, if it does not fill a batch. None: it does not
    /// wait.
    fn waits_until(&self, _view: View<'_>, _bucket: &Bucket) -> Option<Time> {
        None
    }
}

/// Whether a bucket's batch need not wait for more.
fn is_due(rules: &impl Rules, view: View<'_>, bucket: &Bucket) -> bool {
    rules.waits_until(view, bucket).is_none_or(|until| until <= view.now())
        || bucket.front().is_some_and(|first| bucket.len() >= rules.most(view, first))
}

/// The shelves of a model.
#[derive(Debug, Default)]
pub(super) struct Shelves(BTreeMap<DomainId, Shelf>);

impl Shelves {
    /// Adds a growth to its bucket.
    pub(super) fn put(&mut self, member: Member, domain: DomainId, bucket: Vec<u32>) {
        let bucket = self.0.entry(domain).or_default().buckets.entry(bucket).or_default();
        let at = bucket.partition_point(|other| other.rank <= member.rank);
        bucket.insert(at, member);
    }

    /// Removes a request that has ended.
    pub(super) fn remove(&mut self, request: RequestId) {
        for shelf in self.0.values_mut() {
            shelf.buckets.retain(|_, bucket| {
                bucket.retain(|member| member.request != request);
                !bucket.is_empty()
            });
        }
    }

    /// Takes up to `most` growths of the bucket whose turn it is; as many as the rules say, if it
    /// is `None`.
    pub(super) fn take(&mut self, rules: &impl Rules, view: View<'_>, domain: DomainId, most: Option<usize>) -> Vec<Member> {
        let Some(shelf) = self.0.get_mut(&domain) else { return Vec::new() };
        let Some(key) = shelf.next(rules, view) else { return Vec::new() };
        let Some(bucket) = shelf.buckets.get_mut(&key) else { return Vec::new() };
        let most = most.or_else(|| Some(rules.most(view, bucket.front()?))).unwrap_or(0);
        let taken = bucket.drain(..bucket.len().min(most)).collect();
        if bucket.is_empty() {
            shelf.buckets.remove(&key);
        }
        shelf.last = key;
        taken
    }

    /// Takes the wanted growths of a bucket, in order.
    pub(super) fn take_from(&mut self, domain: DomainId, bucket: &[u32], mut wanted: impl FnMut(&Member) -> bool) -> Vec<Member> {
        let Some(shelf) = self.0.get_mut(&domain) else { return Vec::new() };
        let Some(waiting) = shelf.buckets.get_mut(bucket) else { return Vec::new() };
        let mut taken = Vec::new();
        waiting.retain(|member| {
            let takes = wanted(member);
            taken.extend(takes.then_some(*member));
            !takes
        });
        if waiting.is_empty() {
            shelf.buckets.remove(bucket);
        }
        taken
    }

    /// The buckets of a domain. None is empty.
    pub(super) fn buckets(&self, domain: DomainId) -> impl Iterator<Item = (&Vec<u32>, &Bucket)> {
        self.0.get(&domain).into_iter().flat_map(|shelf| &shelf.buckets)
    }

    /// The age of the oldest growth that a batch could take now.
    pub(super) fn oldest(&self, rules: &impl Rules, view: View<'_>, domain: DomainId) -> Option<Key> {
        let due = self.0.get(&domain)?.buckets.values().filter(|bucket| is_due(rules, view, bucket));
        due.filter_map(VecDeque::front).map(Member::key).min()
    }

    /// When the next bucket has waited long enough.
    pub(super) fn wake_at(&self, rules: &impl Rules, view: View<'_>) -> Option<Time> {
        let buckets = self.0.values().flat_map(|shelf| shelf.buckets.values());
        buckets.filter_map(|bucket| rules.waits_until(view, bucket)).filter(|until| *until > view.now()).min()
    }

    /// Growths that wait in a domain, bucket by bucket.
    pub(super) fn waiting(&self, domain: DomainId) -> impl Iterator<Item = &Member> {
        self.0.get(&domain).into_iter().flat_map(|shelf| shelf.buckets.values()).flatten()
    }
}

//! Growths that wait to be taken: a queue for policies that take requests.
//!
//! Each domain has a shelf. Growths that may be taken together share a bucket. Buckets take turns.
//! A bucket is sorted by rank, then by arrival.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::id::{DomainId, RequestId, Time};
use crate::policy::{Key, Member, View};

/// What growths of a bucket have in common.
pub(super) type BucketKey = Arc<[u32]>;

pub(super) type Bucket = VecDeque<Member>;

/// The buckets of a domain, none of them empty.
#[derive(Debug, Default)]
struct Shelf {
    buckets: BTreeMap<BucketKey, Bucket>,
    /// The first of each bucket, the oldest first.
    fronts: BTreeSet<(Key, BucketKey)>,
    /// The bucket whose turn was last.
    last: BucketKey,
    /// The next request's order when that turn began.
    turn_began: u64,
}

impl Shelf {
    /// The bucket whose turn it is. A turn lasts while requests that came before it fill a batch.
    /// Then the next bucket that is due follows.
    ///
    /// With turns of one batch, a request of a popular bucket would wait for a round of all buckets
    /// before each batch ahead of it. BatchMaker's figures 7 and 8 do not show that.
    fn next(&mut self, rules: &impl Rules, view: View<'_>) -> Option<BucketKey> {
        let last = self.buckets.get(&self.last);
        let stays = last.and_then(|bucket| bucket.get(rules.most(view, bucket.front()?).checked_sub(1)?));
        if stays.is_some_and(|last| last.order < self.turn_began) {
            return Some(self.last.clone());
        }
        let after = self.buckets.range::<BucketKey, _>((Bound::Excluded(&self.last), Bound::Unbounded));
        let mut in_turn = after.chain(self.buckets.range::<BucketKey, _>(..=&self.last));
        let (key, _) = in_turn.find(|(_, bucket)| is_due(rules, view, bucket))?;
        self.turn_began = view.next_order();
        Some(key.clone())
    }

    /// Changes a bucket, which may be empty before and after.
    fn change<T>(&mut self, key: &BucketKey, change: impl FnOnce(&mut Bucket) -> T) -> T {
        let bucket = self.buckets.entry(key.clone()).or_default();
        let before = bucket.front().map(Member::key);
        let changed = change(bucket);
        let after = bucket.front().map(Member::key);
        if before != after {
            before.map(|front| self.fronts.remove(&(front, key.clone())));
            after.map(|front| self.fronts.insert((front, key.clone())));
        }
        if after.is_none() {
            self.buckets.remove(key);
        }
        changed
    }
}

/// What a policy says of its buckets.
pub(super) trait Rules {
    /// The most requests of a batch that begins with `first`.
    fn most(&self, view: View<'_>, first: &Member) -> usize;

    /// Whether buckets ever wait for more requests.
    fn may_wait(&self) -> bool {
        false
    }

    /// Until when a bucket waits for more requests, if it does not fill a batch. None: it does not
    /// wait.
    fn waits_until(&self, _view: View<'_>, _bucket: &Bucket) -> Option<Time> {
        None
    }
}

/// Whether a bucket's batch need not wait for more.
fn is_due(rules: &impl Rules, view: View<'_>, bucket: &Bucket) -> bool {
    !rules.may_wait()
        || rules.waits_until(view, bucket).is_none_or(|until| until <= view.now())
        || bucket.front().is_some_and(|first| bucket.len() >= rules.most(view, first))
}

/// The shelves of a model.
#[derive(Debug, Default)]
pub(super) struct Shelves {
    shelves: BTreeMap<DomainId, Shelf>,
    /// Where each request is.
    places: BTreeMap<RequestId, (DomainId, BucketKey, Member)>,
}

impl Shelves {
    /// Adds a growth to its bucket.
    pub(super) fn put(&mut self, member: Member, domain: DomainId, bucket: Vec<u32>) {
        let key = BucketKey::from(bucket);
        self.shelves.entry(domain).or_default().change(&key, |bucket| {
            let at = bucket.partition_point(|other| other.rank <= member.rank);
            bucket.insert(at, member);
        });
        self.places.insert(member.request, (domain, key, member));
    }

    /// Removes a request that has ended, if it is there.
    pub(super) fn remove(&mut self, request: RequestId) {
        let Some((domain, key, member)) = self.places.remove(&request) else { return };
        let Some(shelf) = self.shelves.get_mut(&domain) else { return };
        shelf.change(&key, |bucket| {
            let first = bucket.partition_point(|other| (other.rank, other.since) < (member.rank, member.since));
            let at = bucket.range(first..).position(|other| other.request == request);
            at.map(|at| bucket.remove(first + at))
        });
    }

    /// Takes up to `most` growths of the bucket whose turn it is; as many as the rules say, if it
    /// is `None`.
    pub(super) fn take(&mut self, rules: &impl Rules, view: View<'_>, domain: DomainId, most: Option<usize>) -> Vec<Member> {
        let Some(shelf) = self.shelves.get_mut(&domain) else { return Vec::new() };
        let Some(key) = shelf.next(rules, view) else { return Vec::new() };
        let taken = shelf.change(&key, |bucket| {
            let most = most.or_else(|| Some(rules.most(view, bucket.front()?))).unwrap_or(0);
            bucket.drain(..bucket.len().min(most)).collect()
        });
        shelf.last = key;
        self.note_taken(taken)
    }

    /// Takes the wanted growths of a bucket, in order.
    pub(super) fn take_from(&mut self, domain: DomainId, bucket: &BucketKey, mut wanted: impl FnMut(&Member) -> bool) -> Vec<Member> {
        let Some(shelf) = self.shelves.get_mut(&domain) else { return Vec::new() };
        let taken = shelf.change(bucket, |waiting| {
            let mut taken = Vec::new();
            waiting.retain(|member| {
                let takes = wanted(member);
                taken.extend(takes.then_some(*member));
                !takes
            });
            taken
        });
        self.note_taken(taken)
    }

    fn note_taken(&mut self, taken: Vec<Member>) -> Vec<Member> {
        taken.iter().for_each(|member| drop(self.places.remove(&member.request)));
        taken
    }

    /// The buckets of a domain. None is empty.
    pub(super) fn buckets(&self, domain: DomainId) -> impl Iterator<Item = (&BucketKey, &Bucket)> {
        self.shelves.get(&domain).into_iter().flat_map(|shelf| &shelf.buckets)
    }

    /// The age of the oldest growth that a batch could take now.
    pub(super) fn oldest(&self, rules: &impl Rules, view: View<'_>, domain: DomainId) -> Option<Key> {
        let shelf = self.shelves.get(&domain)?;
        shelf.fronts.iter().find(|(_, key)| is_due(rules, view, &shelf.buckets[key])).map(|(front, _)| *front)
    }

    /// When the next bucket has waited long enough.
    pub(super) fn wake_at(&self, rules: &impl Rules, view: View<'_>) -> Option<Time> {
        let buckets = self.shelves.values().filter(|_| rules.may_wait()).flat_map(|shelf| shelf.buckets.values());
        buckets.filter_map(|bucket| rules.waits_until(view, bucket)).filter(|until| *until > view.now()).min()
    }

    /// Growths that wait in a domain, bucket by bucket.
    pub(super) fn waiting(&self, domain: DomainId) -> impl Iterator<Item = &Member> {
        self.buckets(domain).flat_map(|(_, bucket)| bucket)
    }
}

//! Length-aware batching (TurboTransformers; Fang, Yu, Zhao, Zhou; PPoPP'21, section 5): whole
//! graphs, cut into batches by dynamic programming.
//!
//! Up to a batch's limit of waiting requests are sorted by length, and cut where the batches
//! together take the least time (algorithm 2): padding is weighed against batching by the time that
//! each takes, which the model's cost tables say. The batches run one after the other, the shortest
//! requests first, each padded to its longest; only when all have begun are those who came
//! meanwhile looked at. So nobody waits for more than a round of others.
//!
//! The paper looks at its queue when the device is idle (*hungry*), or when requests have waited
//! for a while (*lazy*). Here a device that has none of the batches left is idle, and what the lazy
//! strategy adds is a wait before. The paper limits what one look takes by the largest batch, so
//! that a look costs no more than that limit squared.
//!
//! A request's length is how many nodes of each type it has, so that the paper's table of length
//! and batch size is made of the cost tables of cells: a chain of L steps in a batch of B takes L
//! times what a step of B rows does.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::id::{DomainId, RequestId, Time};
use crate::policy::shelf::{Bucket, Rules, Shelves};
use crate::policy::whole::{Queue, WholeGraphs, structure};
use crate::policy::{Key, Member, NANOSECONDS_PER_MS, Parameters, PolicyNameError, View, number};

/// Parameters of the policy `length-aware`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthAware {
    /// Nanoseconds for which the first of those that wait waits for others, unless they fill a
    /// batch before. 0: not at all.
    pub timeout_ns: u64,
    /// Half of these nanoseconds end that wait too, the time included that a batch of all that wait
    /// would take. 0: they do not.
    pub objective_ns: u64,
}

/// Longer ones are a mistake.
const MS_MAX: u64 = 60_000;

impl Parameters for LengthAware {
    const NAMES: &'static [&'static str] = &["TIMEOUT_MS", "OBJECTIVE_MS"];

    fn read(given: &[&str]) -> Result<Self, PolicyNameError> {
        let timeout = "a timeout in milliseconds, 0 to 60000; write `length-aware:5`";
        let objective = "a latency objective in milliseconds, 0 to 60000; write `length-aware:5:100`";
        Ok(Self {
            timeout_ns: number(given.first(), 0, 0..=MS_MAX, timeout)? * NANOSECONDS_PER_MS,
            objective_ns: number(given.get(1), 0, 0..=MS_MAX, objective)? * NANOSECONDS_PER_MS,
        })
    }
}

/// As it is read. What is no whole number of milliseconds is rounded down.
impl fmt::Display for LengthAware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timeout_ms = self.timeout_ns / NANOSECONDS_PER_MS;
        match self.objective_ns {
            0 => write!(f, "{timeout_ms}"),
            objective_ns => write!(f, "{timeout_ms}:{}", objective_ns / NANOSECONDS_PER_MS),
        }
    }
}

/// Requests that wait, and batches that were cut of them.
#[derive(Debug)]
pub(super) struct Plans {
    parameters: LengthAware,
    shelves: Shelves,
    /// Batches that wait for a worker.
    planned: BTreeMap<DomainId, VecDeque<Vec<Member>>>,
}

/// Whole graphs that are cut into batches by length.
pub(super) fn policy(parameters: LengthAware) -> WholeGraphs<Plans> {
    WholeGraphs::new(Plans { parameters, shelves: Shelves::default(), planned: BTreeMap::new() })
}

impl Rules for LengthAware {
    fn most(&self, view: View<'_>, first: &Member) -> usize {
        view.batch_limit(first) as usize
    }

    fn may_wait(&self) -> bool {
        self.timeout_ns > 0
    }

    fn waits_until(&self, view: View<'_>, bucket: &Bucket) -> Option<Time> {
        let first = bucket.iter().map(|member| member.since).min()?;
        let first_members = bucket.front().map_or(0, |front| self.most(view, front));
        let waits_ns = self.timeout_ns.min(self.time_to_spare(view, bucket.iter().take(first_members)));
        Some(Time(first.0.saturating_add(waits_ns)))
    }
}

impl LengthAware {
    /// How long the first of these may wait before half of its objective is over, if all of them
    /// then run as one batch.
    fn time_to_spare<'a>(&self, view: View<'_>, members: impl Iterator<Item = &'a Member>) -> u64 {
        if self.objective_ns == 0 {
            return u64::MAX;
        }
        let lengths: Vec<Vec<u64>> = members.map(|member| length_of(view, member)).collect();
        let prices = Prices::new(view, lengths.len());
        let takes_ns = lengths.iter().map(|length| prices.of(length, lengths.len())).max().unwrap_or(0);
        // More than half, not half.
        (self.objective_ns / 2).saturating_add(1).saturating_sub(takes_ns)
    }
}

impl Queue for Plans {
    fn width(&self) -> u32 {
        0
    }

    fn put(&mut self, view: View<'_>, member: Member) {
        let Some(graph) = view.growth(&member) else { return };
        self.shelves.put(member, view.request(member.request).domain, structure(graph, |_| 0));
    }

    fn wake_at(&self, view: View<'_>) -> Option<Time> {
        self.shelves.wake_at(&self.parameters, view)
    }

    fn remove(&mut self, request: RequestId) {
        self.shelves.remove(request);
        for planned in self.planned.values_mut() {
            planned.iter_mut().for_each(|batch| batch.retain(|member| member.request != request));
            planned.retain(|batch| !batch.is_empty());
        }
    }

    fn oldest(&self, view: View<'_>, domain: DomainId) -> Option<Key> {
        let planned = self.planned.get(&domain).into_iter().flatten().flatten();
        planned.map(Member::key).min().or_else(|| self.shelves.oldest(&self.parameters, view, domain))
    }

    fn take(&mut self, view: View<'_>, domain: DomainId) -> Vec<Member> {
        let planned = self.planned.entry(domain).or_default();
        if planned.is_empty() {
            *planned = plan(view, self.shelves.take(&self.parameters, view, domain, None));
        }
        planned.pop_front().unwrap_or_default()
    }
}

/// Cuts requests into batches, the shortest first.
fn plan(view: View<'_>, members: Vec<Member>) -> VecDeque<Vec<Member>> {
    let prices = Prices::new(view, members.len());
    let mut sorted: Vec<(Vec<u64>, Member)> = members.into_iter().map(|member| (length_of(view, &member), member)).collect();
    sorted.sort_by_key(|(length, _)| prices.of(length, 1));
    let batches = cut(sorted.len(), |longest, rows| prices.of(&sorted[longest].0, rows));
    batches.into_iter().map(|batch| sorted[batch].iter().map(|(_, member)| *member).collect()).collect()
}

/// How many nodes of each of its model's types a request has.
fn length_of(view: View<'_>, member: &Member) -> Vec<u64> {
    let mut nodes = vec![0_u64; view.types().len()];
    for chain in view.growth(member).into_iter().flat_map(|graph| &graph.chains) {
        for stage in &chain.stages {
            nodes[view.model().type_of_cell[stage.cell as usize] as usize] += u64::from(chain.length.bound);
        }
    }
    nodes
}

/// What a node of each of a model's types takes, in nanoseconds, in batches of one, two, … rows.
struct Prices(Vec<Vec<u64>>);

impl Prices {
    /// Where nothing is known of a type, a larger batch of it takes no longer.
    fn new(view: View<'_>, most: usize) -> Self {
        let of_type = |rows, cost: &crate::CostTable| cost.nanoseconds(rows).unwrap_or(1);
        Self(view.types().iter().map(|known| (1..=most as u32).map(|rows| of_type(rows, &known.cost)).collect()).collect())
    }

    /// What a batch of so many requests takes that is padded to this length: an entry of the
    /// paper's table, times its batch size.
    fn of(&self, length: &[u64], rows: usize) -> u64 {
        let of_type = |(nodes, prices): (&u64, &Vec<u64>)| nodes.saturating_mul(prices.get(rows - 1).copied().unwrap_or(0));
        length.iter().zip(&self.0).map(of_type).fold(0, u64::saturating_add)
    }
}

/// Algorithm 2: cuts so many requests, sorted by length, into batches that together take the least
/// time. `cost` is what a batch takes whose longest request is that one, and that has so many.
fn cut(count: usize, cost: impl Fn(usize, usize) -> u64) -> Vec<Range<usize>> {
    // The least time for as many of the first, and where the last batch of it begins.
    let mut least = vec![(0_u64, 0_usize); count + 1];
    for end in 1..=count {
        let with = |start: usize| (least[start].0.saturating_add(cost(end - 1, end - start)), start);
        // Of equals the smallest last batch, as in the paper.
        least[end] = (0..end).rev().map(with).min_by_key(|(takes, _)| *takes).unwrap_or_default();
    }
    let mut batches = Vec::new();
    let mut end = count;
    while end > 0 {
        batches.push(least[end].1..end);
        end = least[end].1;
    }
    batches.reverse();
    batches
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a batch takes: a part that each batch pays, and a part for each step of each row,
    /// padded.
    fn takes(fixed: u64, step: u64, length: u64, rows: usize) -> u64 {
        fixed + length * (step + rows as u64)
    }

    /// Every way to put so many requests into batches, whatever their lengths: each request's
    /// batch.
    fn partitions(count: usize) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new()];
        for _ in 0..count {
            let more = |part: Vec<usize>| {
                let batches = part.iter().max().map_or(0, |last| last + 1);
                (0..=batches).map(move |batch| [part.clone(), vec![batch]].concat())
            };
            all = all.into_iter().flat_map(more).collect();
        }
        all
    }

    /// Section 5's example (figure 8): lengths 17, 18, 52, 63 and 77 make three batches.
    #[test]
    fn similar_lengths_run_together() {
        let lengths = [17, 18, 52, 63, 77];
        assert_eq!(cut(5, |longest, rows| takes(20, 0, lengths[longest], rows)), [0..2, 2..4, 4..5]);
        assert_eq!(cut(5, |longest, rows| takes(1000, 0, lengths[longest], rows)), vec![0..5; 1]);
        assert_eq!(cut(0, |_, _| 1), []);
    }

    proptest! {
        #[test]
        fn no_other_way_to_batch_takes_less(mut lengths in prop::collection::vec(1_u64..60, 1..8), fixed in 0_u64..200, step in 0_u64..9) {
            lengths.sort_unstable();
            let cost = |longest: usize, rows| takes(fixed, step, lengths[longest], rows);
            let ours: u64 = cut(lengths.len(), cost).into_iter().map(|batch| cost(batch.end - 1, batch.len())).sum();
            let total = |partition: &Vec<usize>| {
                let batches = 0..=partition.iter().copied().max().unwrap_or(0);
                let batch = |number| (0..lengths.len()).filter(move |at| partition[*at] == number);
                batches.map(|number| cost(batch(number).next_back().unwrap_or(0), batch(number).count())).sum::<u64>()
            };
            prop_assert_eq!(Some(ours), partitions(lengths.len()).iter().map(total).min());
        }
    }
}

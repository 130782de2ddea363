//! Merging graphs: the dynamic batching of TensorFlow Fold (Looks et al., ICLR'17, section 2) and
//! DyNet (Neubig et al., NIPS'17), as BatchMaker compares with them (EuroSys'18, sections 2.3 and
//! 7.5).
//!
//! A worker without a set takes up to a number of requests, whatever their graphs, and merges them
//! level by level. All nodes of a type at equal depth run together, cut only at the type's batch
//! limit. A level begins when the level below it was submitted. No request joins a set, and none
//! leaves before the set is complete: the set is one graph to the system that runs it.
//!
//! Levels are not computed: a level is what is ready when the previous level has been submitted.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::command::Row;
use crate::id::{CellTypeId, WorkerId};
use crate::policy::shelf::{Rules, Shelves};
use crate::policy::whole::release;
use crate::policy::{Ended, Key, Member, Parameters, Pick, Policy, PolicyNameError, Takes, View, number};

/// Parameters of the policy `merge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merge {
    /// Requests of a set, at most; at least 1.
    pub requests: u32,
}

/// The default: the number that BatchMaker's authors found best for these baselines (section 7.5).
const MERGED: u64 = 64;

impl Parameters for Merge {
    const NAMES: &'static [&'static str] = &["REQUESTS"];

    fn read(given: &[&str]) -> Result<Self, PolicyNameError> {
        let requests = number(given.first(), MERGED, 1..=u32::MAX.into(), "a number of requests to merge; write `merge:64`")?;
        Ok(Self { requests: requests as u32 })
    }
}

impl fmt::Display for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.requests)
    }
}

/// A set takes so many requests, in one queue.
impl Rules for Merge {
    fn most(&self, _: View<'_>, _: &Member) -> usize {
        self.requests.max(1) as usize
    }
}

/// Requests that run as one graph.
#[derive(Debug)]
struct Set {
    members: Vec<Member>,
    /// The rest of the current level, type by type. The last type is submitted first.
    level: Vec<(CellTypeId, Vec<Row>)>,
}

/// A set on each worker.
#[derive(Debug)]
pub(super) struct MergedSets {
    limit: Merge,
    shelves: Shelves,
    sets: BTreeMap<WorkerId, Set>,
}

impl MergedSets {
    pub(super) fn new(limit: Merge) -> Self {
        Self { limit, shelves: Shelves::default(), sets: BTreeMap::new() }
    }

    fn take_set(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        let members = self.shelves.take(&self.limit, view, view.worker(worker)?.domain, None);
        let requests: Vec<_> = members.iter().map(|member| member.request).collect();
        self.sets.insert(worker, Set { members, level: Vec::new() });
        (!requests.is_empty()).then_some(Pick::Take(requests))
    }

    /// A worker's set, unless all its requests were given up: no task would ever end it.
    fn live_set(&self, view: View<'_>, worker: WorkerId) -> Option<&Set> {
        self.sets.get(&worker).filter(|set| set.members.iter().any(|member| view.is_taken(member, worker)))
    }

    /// Releases a set of which nothing is ready or in flight. Its requests end only now.
    fn end_if_over(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        let goes_on = |set: &Set| has_ready(view, worker, set) || view.any_in_flight(&set.members, worker);
        if self.live_set(view, worker).is_some_and(goes_on) {
            return None;
        }
        release(view, &self.sets.remove(&worker)?.members, worker)
    }
}

impl Policy for MergedSets {
    fn takes(&self) -> Takes {
        Takes::Requests
    }

    fn offered(&mut self, view: View<'_>, growth: Member) {
        self.shelves.put(growth, view.request(growth.request).domain, Vec::new());
    }

    fn ended(&mut self, _: View<'_>, ended: &Ended) {
        self.shelves.remove(ended.request);
    }

    /// Since when a worker could run something of its set or, without a set, of a new one.
    fn oldest(&self, view: View<'_>, worker: WorkerId) -> Option<Key> {
        let state = view.worker(worker)?;
        let Some(set) = self.live_set(view, worker) else {
            let is_free = view.other_takers(worker).all(|policy| policy != "merge");
            return self.shelves.oldest(&self.limit, view, state.domain).filter(|_| is_free);
        };
        let asks = state.outstanding < view.config().max_tasks_to_submit;
        (asks && (has_ready(view, worker, set) || !view.any_in_flight(&set.members, worker))).then_some(Key::FIRST)
    }

    fn choose(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        if self.live_set(view, worker).is_none() {
            return self.take_set(view, worker);
        }
        let set = self.sets.get_mut(&worker)?;
        loop {
            if set.level.is_empty() {
                set.level = next_level(view, worker);
            }
            if set.level.is_empty() {
                return self.end_if_over(view, worker);
            }
            if let Some(pick) = set.next_task(view, worker) {
                return Some(pick);
            }
        }
    }

    fn done(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        self.end_if_over(view, worker)
    }
}

impl Set {
    /// The next task of the level.
    fn next_task(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        while let Some((cell_type, mut rows)) = self.level.pop() {
            let most = view.type_of(cell_type).map_or(1, |known| known.batch.max as usize);
            let mut rest = rows.split_off(rows.len().min(most));
            // Since the level began, requests may have failed, and rows may have joined other
            // models' tasks.
            rows.retain(|row| view.is_ready(*row, worker) && view.request_of(row.lane).taken() == Some(worker));
            rest.splice(..0, rows.split_off(view.fitting(cell_type, &rows)));
            if !rest.is_empty() {
                self.level.push((cell_type, rest));
            }
            if !rows.is_empty() {
                return Some(Pick::Run(cell_type, rows));
            }
        }
        None
    }
}

/// All that is ready now, by type. The type of the highest priority is last.
fn next_level(view: View<'_>, worker: WorkerId) -> Vec<(CellTypeId, Vec<Row>)> {
    let mut types: Vec<_> = view.types().iter().map(|known| (known.priority, known.cell_type)).collect();
    types.sort_unstable();
    let rows = types.into_iter().map(|(_, cell_type)| (cell_type, ready(view, worker, cell_type).collect::<Vec<_>>()));
    rows.filter(|(_, rows)| !rows.is_empty()).collect()
}

fn has_ready(view: View<'_>, worker: WorkerId, set: &Set) -> bool {
    !set.level.is_empty() || view.types().iter().any(|known| ready(view, worker, known.cell_type).next().is_some())
}

/// Ready nodes of a worker's set.
fn ready(view: View<'_>, worker: WorkerId, cell_type: CellTypeId) -> impl Iterator<Item = Row> {
    let is_own = move |row: &Row| view.request_of(row.lane).taken() == Some(worker) && view.request_of(row.lane).model == view.model_id();
    view.ready_nodes(cell_type, worker).filter(is_own)
}

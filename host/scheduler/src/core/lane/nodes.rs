//! Nodes of a stage whose steps run in any order, and the subgraphs they form.

use std::ops::{Index, IndexMut};

use cellwright_cell_graph::unfolded::Grouping;

use crate::command::Row;
use crate::core::lane::{Moments, Ready, States, Status};
use crate::core::spares::Words;
use crate::id::{LaneId, Time, WorkerId};

/// How many nodes of a stage are where. How many are in flight its lane says.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    pub(crate) states: States,
    /// Not submitted and not dropped.
    pub(crate) unsubmitted: u32,
    /// Where those in flight are, but for others.
    worker: WorkerId,
    /// With others, while there are any with that one; no zeros.
    #[expect(clippy::box_collection, reason = "hardly any has others")]
    others: Option<Box<Vec<(WorkerId, u32)>>>,
}

impl Nodes {
    /// All of a stage's nodes wait. `named` is how many nodes each names, where any does.
    pub(super) fn begin(&mut self, bound: u32, named: &[u32], words: &mut Words) {
        self.states.begin(bound, named, words);
        (self.unsubmitted, self.others) = (bound, None);
    }

    /// Forgets all; what is returned is to be used again.
    pub(crate) fn clear(&mut self, moments: &mut Moments) -> Box<[u32]> {
        self.states.clear(moments)
    }

    /// So many nodes go to a worker, beside so many that are in flight.
    pub(crate) fn fly(&mut self, worker: WorkerId, count: u32, before: u32) {
        self.unsubmitted -= count;
        if before == 0 {
            self.worker = worker;
        } else if worker != self.worker {
            let others = self.others.get_or_insert_default();
            match others.iter_mut().find(|(other, _)| *other == worker) {
                Some((_, flying)) => *flying += count,
                None => others.push((worker, count)),
            }
        }
    }

    /// So many have left a worker, and so many are still in flight.
    pub(crate) fn land(&mut self, worker: WorkerId, count: u32, after: u32) {
        let Some(others) = self.others.as_mut().filter(|others| !others.is_empty()) else { return };
        if worker != self.worker {
            if let Some((_, flying)) = others.iter_mut().find(|(other, _)| *other == worker) {
                *flying -= count;
            }
            others.retain(|(_, flying)| *flying > 0);
        } else if others.iter().map(|(_, flying)| flying).sum::<u32>() == after {
            self.worker = others.pop().map_or(worker, |(other, _)| other);
        }
    }

    /// The common status of all nodes, if none is left to submit and `flying` are in flight:
    /// complete, or queued on one worker. Otherwise `Waiting`.
    pub(super) fn whole_status(&self, flying: u32) -> Status {
        if self.unsubmitted > 0 || self.others.as_ref().is_some_and(|others| !others.is_empty()) {
            return Status::Waiting;
        }
        if flying == 0 { Status::Done } else { Status::Queued(self.worker) }
    }

    /// A node left its worker. Whether it counts, in a lane that executes `limit` steps.
    pub(crate) fn complete(&mut self, step: u32, limit: u32) -> bool {
        self.states.set_done(step) && step < limit
    }

    pub(crate) fn drop(&mut self, step: u32, moments: &mut Moments) {
        if self.states.is_unsubmitted(step) {
            self.unsubmitted -= 1;
        }
        self.states.set_dropped(step, moments);
    }
}

/// A subgraph of several nodes whose order is not fixed.
#[derive(Debug, Default)]
pub(crate) struct Subgraph {
    /// When it entered its type's queue, if it `has_entered`.
    entered: Time,
    /// Its nodes, by their places in [`Division`]'s order.
    pub(crate) members: (u32, u32),
    /// Its nodes in flight; it is pinned to `worker` while there are any.
    pub(crate) flying: u32,
    pub(crate) worker: WorkerId,
    has_entered: bool,
    pub(crate) listed: bool,
    /// Where its ready nodes are, in [`Grouped`]'s `ready`.
    ready: (u32, u32),
    /// Members before this one have all outside inputs complete (under `Release::Subgraph`).
    pub(crate) handed: u32,
}

impl Subgraph {
    pub(crate) fn entered(&self) -> Option<Time> {
        self.has_entered.then_some(self.entered)
    }

    /// It enters the queue, if it has not; when it did.
    pub(crate) fn enter(&mut self, now: Time) -> Time {
        if !std::mem::replace(&mut self.has_entered, true) {
            self.entered = now;
        }
        self.entered
    }

    pub(crate) const fn pinned(&self) -> Option<WorkerId> {
        if self.flying > 0 { Some(self.worker) } else { None }
    }
}

/// A stage whose steps form subgraphs of several nodes, or run in another order inside a subgraph.
#[derive(Debug, Default)]
pub(crate) struct Grouped {
    pub(crate) nodes: Nodes,
    pub(crate) subgraphs: Subgraphs,
    /// Ready nodes of each subgraph, by time of readiness, then step. They are stored at the places
    /// of the subgraph's members, so the table never grows.
    ready: Box<[u32]>,
}

/// The first of a stage's subgraphs, and the others.
#[derive(Debug, Default)]
pub(crate) struct Subgraphs {
    first: Subgraph,
    /// How its steps are divided; none if there is but one subgraph.
    division: Option<Box<Division>>,
}

/// How a stage's steps form subgraphs.
#[derive(Debug, Default)]
struct Division {
    others: Vec<Subgraph>,
    /// Steps, subgraph by subgraph, ascending in each.
    members: Vec<u32>,
    /// Each step's subgraph.
    group_of: Vec<u32>,
}

impl Subgraphs {
    pub(crate) fn len(&self) -> usize {
        1 + self.division.as_ref().map_or(0, |division| division.others.len())
    }
}

impl Index<usize> for Subgraphs {
    type Output = Subgraph;

    #[inline]
    fn index(&self, index: usize) -> &Subgraph {
        match &self.division {
            Some(division) if index > 0 => &division.others[index - 1],
            _ => &self.first,
        }
    }
}

impl IndexMut<usize> for Subgraphs {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut Subgraph {
        match &mut self.division {
            Some(division) if index > 0 => &mut division.others[index - 1],
            _ => &mut self.first,
        }
    }
}

impl Grouped {
    /// All of a stage's nodes wait, and no subgraph has entered its queue.
    pub(super) fn begin(&mut self, bound: u32, grouping: &Grouping, named: &[u32], words: &mut Words) {
        self.nodes.begin(bound, named, words);
        self.ready = words.give(bound as usize);
        match grouping {
            Grouping::Components(groups) => self.divide(bound, groups.clone()),
            Grouping::Whole | Grouping::Each => self.subgraphs.first.members = (0, bound),
        }
    }

    /// Forgets all; what is returned is to be used again.
    pub(crate) fn clear(&mut self, moments: &mut Moments) -> [Box<[u32]>; 2] {
        self.subgraphs = Subgraphs::default();
        [self.nodes.clear(moments), std::mem::take(&mut self.ready)]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.nodes.states.bytes() + size_of_val(&*self.ready)
    }

    fn divide(&mut self, bound: u32, group_of: Vec<u32>) {
        let count = group_of.iter().max().map_or(1, |last| last + 1);
        let mut subgraphs: Vec<Subgraph> = (0..count).map(|_| Subgraph::default()).collect();
        let group = |step: u32| group_of.get(step as usize).map_or(0, |group| *group as usize);
        for step in 0..bound {
            subgraphs[group(step)].members.1 += 1;
        }
        let mut end = 0;
        for subgraph in &mut subgraphs {
            let count = subgraph.members.1;
            subgraph.members = (end, end);
            end += count;
        }
        let mut members = vec![0; bound as usize];
        for step in 0..bound {
            let next = &mut subgraphs[group(step)].members.1;
            members[*next as usize] = step;
            *next += 1;
        }
        for subgraph in &mut subgraphs {
            (subgraph.handed, subgraph.ready) = (subgraph.members.0, (subgraph.members.0, subgraph.members.0));
        }
        let others = subgraphs.split_off(1);
        let division = Some(Box::new(Division { others, members, group_of }));
        self.subgraphs = Subgraphs { first: subgraphs.pop().unwrap_or_default(), division };
    }

    /// A subgraph's ready nodes, by time of readiness, then step.
    #[inline]
    pub(crate) fn ready(&self, group: u32) -> &[u32] {
        let (from, to) = self.subgraphs[group as usize].ready;
        &self.ready[from as usize..to as usize]
    }

    /// A node is ready since another time than before, or for others.
    pub(crate) fn set_ready(&mut self, group: u32, step: u32, ready: Ready, moments: &mut Moments) {
        self.nodes.states.set_ready(std::iter::once(step), ready, moments);
        self.list_ready(group, step, moments);
    }

    /// Nodes of the only subgraph became ready, in the order of their steps.
    pub(crate) fn set_all_ready(&mut self, nodes: &[(LaneId, u32)], ready: Ready, moments: &mut Moments) {
        let (time, last) = (ready.time, self.ready(0).last().map(|step| (self.since(*step, moments), *step)));
        self.nodes.states.set_ready(nodes.iter().map(|(_, step)| *step), ready, moments);
        let Subgraph { members, ready: (_, to), .. } = &mut self.subgraphs[0];
        let room = (members.1 - *to) as usize;
        if nodes.len() <= room && nodes.first().is_some_and(|(_, step)| last < Some((time, *step))) {
            let places = &mut self.ready[*to as usize..][..nodes.len()];
            places.iter_mut().zip(nodes).for_each(|(place, (_, step))| *place = *step);
            *to += nodes.len() as u32;
        } else {
            nodes.iter().for_each(|(_, step)| self.list_ready(0, *step, moments));
        }
    }

    fn list_ready(&mut self, group: u32, step: u32, moments: &Moments) {
        let Err(at) = self.find_ready(group, step, moments) else { return };
        let Subgraph { members, ready: (from, to), .. } = &mut self.subgraphs[group as usize];
        let at = *from as usize + at;
        if *to < members.1 {
            self.ready.copy_within(at..*to as usize, at + 1);
            self.ready[at] = step;
            *to += 1;
        } else {
            // It is not listed yet, so that another's place before the first is empty.
            self.ready.copy_within(*from as usize..at, *from as usize - 1);
            self.ready[at - 1] = step;
            *from -= 1;
        }
    }

    /// A ready node waits again.
    pub(crate) fn set_waiting(&mut self, group: u32, step: u32, moments: &mut Moments) {
        self.unlist_ready(group, step, moments);
        self.nodes.states.set_waiting(step, moments);
    }

    fn unlist_ready(&mut self, group: u32, step: u32, moments: &Moments) {
        let Ok(at) = self.find_ready(group, step, moments) else { return };
        let (from, to) = &mut self.subgraphs[group as usize].ready;
        self.ready.copy_within(*from as usize + at + 1..*to as usize, *from as usize + at);
        *to -= 1;
    }

    /// Ready nodes are about to be submitted. Mostly they come first.
    pub(crate) fn unlist_all_ready(&mut self, group: u32, nodes: &[Row], moments: &Moments) {
        let last = nodes.len().checked_sub(1).and_then(|last| self.ready(group).get(last));
        if last.copied() == nodes.last().map(|node| node.step) {
            self.subgraphs[group as usize].ready.0 += nodes.len() as u32;
            return;
        }
        for node in nodes {
            if self.nodes.states.is_ready(node.step) {
                self.unlist_ready(group, node.step, moments);
            }
        }
    }

    /// Where a ready node is among those of its subgraph, or would be.
    fn find_ready(&self, group: u32, step: u32, moments: &Moments) -> Result<usize, usize> {
        let key = |step: u32| (self.since(step, moments), step);
        self.ready(group).binary_search_by_key(&key(step), |step| key(*step))
    }

    fn since(&self, step: u32, moments: &Moments) -> Time {
        self.nodes.states.ready(step, moments).time
    }

    /// The smallest step of a subgraph.
    pub(crate) fn first(&self, group: u32) -> u32 {
        self.member(self.subgraphs[group as usize].members.0)
    }

    /// The step of a member, by its place.
    pub(crate) fn member(&self, place: u32) -> u32 {
        self.subgraphs.division.as_ref().and_then(|division| division.members.get(place as usize).copied()).unwrap_or(place)
    }

    pub(crate) fn group(&self, step: u32) -> u32 {
        self.subgraphs.division.as_ref().and_then(|division| division.group_of.get(step as usize).copied()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_components_are_listed_in_order() {
        let mut grouped = Grouped::default();
        grouped.begin(6, &Grouping::Components(vec![0, 1, 0, 2, 1, 0]), &[], &mut Words::default());
        let steps: Vec<Vec<_>> = (0..grouped.subgraphs.len())
            .map(|at| &grouped.subgraphs[at])
            .map(|s| (s.members.0..s.members.1).map(|place| grouped.member(place)).collect())
            .collect();
        assert_eq!(steps, [&[0, 2, 5][..], &[1, 4], &[3]]);
        assert_eq!((0..3).map(|group| grouped.first(group)).collect::<Vec<_>>(), [0, 1, 3]);
        grouped.clear(&mut Moments::default());
        grouped.begin(3, &Grouping::Whole, &[], &mut Words::default());
        assert_eq!((grouped.subgraphs.len(), grouped.subgraphs[0].members, grouped.group(2)), (1, (0, 3), 0));
    }
}

//! The state of each node of a stage whose steps run in any order, in four bytes per node.
//!
//! When a node became ready and for which workers is stored once for all nodes that became ready
//! together.

use std::ops::Range;

use crate::command::Row;
use crate::core::lane::{Ready, Status};
use crate::core::spares::Words;
use crate::id::{Time, WorkerId};

/// A node of a stage whose steps may be executed in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// The number of producers that have not been submitted yet; 0 if it is not counted. Until all
    /// have been, the node need not be checked.
    Waiting {
        untold: u32,
    },
    Ready(Ready),
    Queued(WorkerId),
    Done,
    Dropped,
}

/// The low bits of a node's word hold its kind. The other bits hold a number whose meaning depends
/// on the kind.
const KIND_BITS: u32 = 3;
const WAITING: u32 = 0;
const READY: u32 = 1;
const QUEUED: u32 = 2;
const DONE: u32 = 3;
const DROPPED: u32 = 4;
/// The largest number of the other bits.
const OF_MAX: u32 = u32::MAX >> KIND_BITS;

const fn kind(word: u32) -> u32 {
    word & ((1 << KIND_BITS) - 1)
}

const fn of(word: u32) -> u32 {
    word >> KIND_BITS
}

const fn word(kind: u32, of: u32) -> u32 {
    assert!(of <= OF_MAX, "so many workers, or moments, there cannot be");
    of << KIND_BITS | kind
}

/// The nodes of a stage: a word for each, and perhaps some more.
#[derive(Debug, Default)]
pub(crate) struct States(Box<[u32]>);

/// What ready nodes share.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    time: Time,
    /// The only worker that may run them, or [`ANY`].
    only: WorkerId,
    /// How many nodes share it. 0: the entry is free.
    nodes: u32,
}

/// Any worker. No worker has this number: the state of a queued node could not hold it.
const ANY: WorkerId = WorkerId(u32::MAX);

impl Moment {
    #[inline]
    fn ready(&self) -> Ready {
        Ready { time: self.time, only: Some(self.only).filter(|only| *only != ANY) }
    }
}

/// When nodes became ready, and for which workers. An entry is shared by all nodes of all stages
/// that are alike, so there are at most as many entries as ready nodes.
#[derive(Debug, Default)]
pub(crate) struct Moments {
    all: Vec<Moment>,
    /// One more than the first free entry; 0: none is free. The time of a free entry names the
    /// next.
    free: u32,
    /// The last entries, for any worker and for one worker: they are likely to be used again.
    recent: [u32; 2],
}

impl Moments {
    #[inline]
    fn ready(&self, number: u32) -> Ready {
        self.all[number as usize].ready()
    }

    /// The entry for this moment, which `nodes` more nodes share.
    #[inline]
    fn note(&mut self, ready: Ready, nodes: u32) -> u32 {
        let recent = self.recent[usize::from(ready.only.is_some())];
        if let Some(moment) = self.all.get_mut(recent as usize).filter(|moment| moment.nodes > 0 && moment.ready() == ready) {
            moment.nodes += nodes;
        } else if nodes > 0 {
            let moment = Moment { time: ready.time, only: ready.only.unwrap_or(ANY), nodes };
            self.recent[usize::from(ready.only.is_some())] = self.place(moment);
        }
        self.recent[usize::from(ready.only.is_some())]
    }

    /// A new entry for a moment.
    fn place(&mut self, moment: Moment) -> u32 {
        let Some(free) = self.free.checked_sub(1) else {
            self.all.push(moment);
            return self.all.len() as u32 - 1;
        };
        let place = &mut self.all[free as usize];
        self.free = place.time.0 as u32;
        *place = moment;
        free
    }

    /// Nodes that had this word no longer do.
    #[inline]
    fn uncount_rows(&mut self, word: u32, nodes: u32) {
        if kind(word) == READY {
            let moment = &mut self.all[of(word) as usize];
            moment.nodes -= nodes;
            if moment.nodes == 0 {
                moment.time = Time(self.free.into());
                self.free = of(word) + 1;
            }
        }
    }
}

impl States {
    /// A stage of `nodes` nodes, all waiting. `named` holds how many producers each node names, if
    /// any does.
    pub(crate) fn begin(&mut self, nodes: u32, named: &[u32], words: &mut Words) {
        self.0 = words.give(nodes as usize);
        for (state, untold) in self.0.iter_mut().zip(named) {
            // A node with more inputs than can be counted is checked whenever one is submitted.
            *state = word(WAITING, if *untold > OF_MAX { 0 } else { *untold });
        }
    }

    /// Forgets all; the memory is to be used again.
    pub(crate) fn clear(&mut self, moments: &mut Moments) -> Box<[u32]> {
        self.0.iter().for_each(|word| moments.uncount_rows(*word, 1));
        std::mem::take(&mut self.0)
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// The state of an existing node.
    #[inline]
    pub(crate) fn at(&self, step: u32, moments: &Moments) -> NodeState {
        let word = self.0[step as usize];
        match kind(word) {
            WAITING => NodeState::Waiting { untold: of(word) },
            READY => NodeState::Ready(moments.ready(of(word))),
            QUEUED => NodeState::Queued(WorkerId(of(word))),
            DONE => NodeState::Done,
            _ => NodeState::Dropped,
        }
    }

    /// The status of a node; `Waiting` if the node does not exist.
    #[inline]
    pub(crate) fn status(&self, step: u32) -> Status {
        let word = self.0.get(step as usize).copied().unwrap_or(word(WAITING, 0));
        match kind(word) {
            WAITING | READY => Status::Waiting,
            QUEUED => Status::Queued(WorkerId(of(word))),
            DONE => Status::Done,
            _ => Status::Never,
        }
    }

    /// How many of the first `limit` nodes are neither done nor dropped.
    pub(crate) fn live(&self, limit: u32) -> u32 {
        self.0.iter().take(limit as usize).filter(|word| !matches!(kind(**word), DONE | DROPPED)).count() as u32
    }

    /// When a ready node became ready, and for which worker.
    #[inline]
    pub(crate) fn ready(&self, step: u32, moments: &Moments) -> Ready {
        let word = self.0[step as usize];
        debug_assert_eq!(kind(word), READY, "a node that is not ready was asked");
        moments.ready(of(word))
    }

    /// The ready nodes of a range.
    #[inline]
    pub(crate) fn ready_in(&self, range: Range<u32>, moments: &Moments) -> impl Iterator<Item = (u32, Ready)> {
        let words = &self.0[range.start as usize..range.end as usize];
        range.zip(words).filter(|(_, word)| kind(**word) == READY).map(|(step, word)| (step, moments.ready(of(*word))))
    }

    pub(crate) fn is_ready(&self, step: u32) -> bool {
        kind(self.0[step as usize]) == READY
    }

    pub(crate) fn is_unsubmitted(&self, step: u32) -> bool {
        matches!(kind(self.0[step as usize]), WAITING | READY)
    }

    pub(crate) fn any_done(&self) -> bool {
        self.0.iter().any(|word| kind(*word) == DONE)
    }

    /// An input of the node was submitted. How many are still missing, if that is counted.
    #[inline]
    pub(crate) fn count_submitted_input(&mut self, step: u32) -> Option<u32> {
        let word = &mut self.0[step as usize];
        let untold = (kind(*word) == WAITING).then_some(of(*word)).filter(|untold| *untold > 0)? - 1;
        *word = self::word(WAITING, untold);
        Some(untold)
    }

    /// A node waits, and its inputs are not counted.
    pub(crate) fn set_waiting(&mut self, step: u32, moments: &mut Moments) {
        self.set(step, word(WAITING, 0), moments);
    }

    /// Stops counting the inputs of a waiting node.
    pub(crate) fn lose_count(&mut self, step: u32) {
        let word = &mut self.0[step as usize];
        if kind(*word) == WAITING {
            *word = self::word(WAITING, 0);
        }
    }

    /// Nodes are ready.
    #[inline]
    pub(crate) fn set_ready(&mut self, steps: impl ExactSizeIterator<Item = u32>, ready: Ready, moments: &mut Moments) {
        let word = word(READY, moments.note(ready, steps.len() as u32));
        steps.for_each(|step| self.set(step, word, moments));
    }

    /// A node that is queued is done; whether it was queued.
    #[inline]
    pub(crate) fn set_done(&mut self, step: u32) -> bool {
        let word = &mut self.0[step as usize];
        let queued = kind(*word) == QUEUED;
        if queued {
            *word = self::word(DONE, 0);
        }
        queued
    }

    pub(crate) fn set_dropped(&mut self, step: u32, moments: &mut Moments) {
        self.set(step, word(DROPPED, 0), moments);
    }

    /// Queues the first of these ready nodes, as far as the same workers may run them. Returns for
    /// which worker they were ready, and how many are queued.
    #[inline]
    pub(crate) fn queue(&mut self, nodes: &[Row], worker: WorkerId, moments: &mut Moments) -> (Option<WorkerId>, usize) {
        let queued = word(QUEUED, worker.0);
        // Mostly all share one moment.
        let (mut known, mut only, mut count, mut gone) = (word(DONE, 0), None, 0, 0);
        for node in nodes {
            let word = std::mem::replace(&mut self.0[node.step as usize], queued);
            if word != known {
                assert!(kind(word) == READY, "a node that is not ready was picked");
                let next = moments.ready(of(word)).only;
                if gone > 0 && next != only {
                    self.0[node.step as usize] = word;
                    break;
                }
                moments.uncount_rows(known, count);
                (known, only, count) = (word, next, 0);
            }
            (count, gone) = (count + 1, gone + 1);
        }
        moments.uncount_rows(known, count);
        (only, gone)
    }

    #[inline]
    fn set(&mut self, step: u32, word: u32, moments: &mut Moments) {
        let before = std::mem::replace(&mut self.0[step as usize], word);
        moments.uncount_rows(before, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::id::LaneId;

    proptest! {
        /// Two stages against lists of what is true of each of their nodes.
        #[test]
        fn a_word_says_what_is_true(changes in prop::collection::vec((0_u32..48, 1_u32..6, 0_u8..9, 0_u64..4), 1..200)) {
            const NODES: u32 = 24;
            let (mut words, mut moments) = (Words::default(), Moments::default());
            let fresh = |step| NodeState::Waiting { untold: if step < 7 { 2 } else { 0 } };
            let mut both: [(States, Vec<NodeState>); 2] = std::array::from_fn(|_| (States::default(), (0..NODES).map(fresh).collect()));
            both.iter_mut().for_each(|(states, _)| states.begin(NODES, &[2; 7], &mut words));
            for (step, count, what, time) in changes {
                let (states, list) = &mut both[(step / NODES) as usize];
                let step = step % NODES;
                let steps = step..(step + count).min(NODES);
                let places = steps.start as usize..steps.end as usize;
                let only = (time % 2 == 1).then_some(WorkerId(3));
                match what {
                    0..=2 => {
                        let ready = Ready { time: Time(time), only };
                        states.set_ready(steps, ready, &mut moments);
                        list[places].fill(NodeState::Ready(ready));
                    }
                    3 | 4 => {
                        let ready: Vec<u32> = steps.filter(|step| states.is_ready(*step)).collect();
                        let rows: Vec<Row> = ready.iter().map(|step| Row { lane: LaneId(0), step: *step }).collect();
                        let (only, gone) = states.queue(&rows, WorkerId(5), &mut moments);
                        for step in &ready[..gone] {
                            prop_assert!(matches!(list[*step as usize], NodeState::Ready(ready) if ready.only == only));
                            list[*step as usize] = NodeState::Queued(WorkerId(5));
                        }
                        if let Some(next) = ready.get(gone) {
                            prop_assert!(matches!(list[*next as usize], NodeState::Ready(ready) if ready.only != only));
                        }
                    }
                    5 => {
                        let queued = matches!(list[step as usize], NodeState::Queued(_));
                        prop_assert_eq!(states.set_done(step), queued);
                        if queued {
                            list[step as usize] = NodeState::Done;
                        }
                    }
                    6 => {
                        let heard = states.count_submitted_input(step);
                        match &mut list[step as usize] {
                            NodeState::Waiting { untold } if *untold > 0 => {
                                *untold -= 1;
                                prop_assert_eq!(heard, Some(*untold));
                            }
                            _ => prop_assert_eq!(heard, None),
                        }
                    }
                    7 => {
                        states.set_dropped(step, &mut moments);
                        list[step as usize] = NodeState::Dropped;
                    }
                    _ => {
                        states.clear(&mut moments);
                        states.begin(NODES, &[2; 7], &mut words);
                        *list = (0..NODES).map(fresh).collect();
                    }
                }
                let mut ready = 0;
                for (states, list) in &both {
                    prop_assert!((0..NODES).all(|step| states.at(step, &moments) == list[step as usize]));
                    let live = |state: &&NodeState| !matches!(state, NodeState::Done | NodeState::Dropped);
                    prop_assert_eq!(states.live(20) as usize, list[..20].iter().filter(live).count());
                    ready += list.iter().filter(|state| matches!(state, NodeState::Ready(_))).count();
                }
                prop_assert_eq!(moments.all.iter().map(|moment| moment.nodes as usize).sum::<usize>(), ready);
                prop_assert!(moments.all.len() <= 2 * NODES as usize);
            }
        }
    }
}

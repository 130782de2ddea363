//! What is true of each node of a stage whose steps may be executed in any order, in four bytes a node.
//!
//! Since when a node is ready, and who may run it, is noted once for all that became so together.

use std::ops::Range;

use crate::id::{Time, WorkerId};
use crate::lane::Ready;
use crate::spares::Words;

/// A node of a stage whose steps may be executed in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// Of the nodes that it names so many have not said that they were submitted; 0 if that is not counted (any more). Before all have, it need not
    /// be looked at.
    Waiting {
        untold: u32,
    },
    Ready(Ready),
    Queued(WorkerId),
    Done,
    Dropped,
}

/// The low bits of a node's word say what it is, the others of what.
const KIND_BITS: u32 = 3;
const WAITING: u32 = 0;
const READY: u32 = 1;
const QUEUED: u32 = 2;
const DONE: u32 = 3;
const DROPPED: u32 = 4;
/// What the other bits can say.
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

/// The nodes of a stage.
#[derive(Debug, Default)]
pub(crate) struct States {
    /// A word for each node, and perhaps some more.
    words: Box<[u32]>,
    nodes: u32,
    /// Whose is the moment that was noted last.
    last: u32,
    /// The first of `others` that is free, and one more; 0: none is.
    free: u32,
    first: Moment,
    /// Mostly there are none. What is free says which is the next.
    others: Vec<Moment>,
}

/// Memory for so many other moments is kept for the next stage.
const OTHERS_KEPT: usize = 8;

/// What ready nodes share.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    time: Time,
    /// The only worker that may run them, or [`ANY`].
    only: WorkerId,
    /// That many do; none: it is free.
    nodes: u32,
}

/// No worker has that number: it could not be said of a node that is queued there.
const ANY: WorkerId = WorkerId(u32::MAX);

impl Moment {
    fn new(ready: Ready, nodes: u32) -> Self {
        Self { time: ready.time, only: ready.only.unwrap_or(ANY), nodes }
    }

    #[inline]
    fn ready(&self) -> Ready {
        Ready { time: self.time, only: Some(self.only).filter(|only| *only != ANY) }
    }
}

impl States {
    /// All of so many nodes wait. `named` is how many nodes each names, where any does.
    pub(crate) fn begin(&mut self, nodes: u32, named: &[u32], words: &mut Words) {
        self.words = words.give(nodes as usize);
        self.nodes = nodes;
        for (state, untold) in self.words.iter_mut().zip(named) {
            // Who names more than can be said is looked at whenever it hears of one.
            *state = word(WAITING, if *untold > OF_MAX { 0 } else { *untold });
        }
    }

    /// Forgets all; the memory is to be used again.
    pub(crate) fn clear(&mut self) -> Box<[u32]> {
        (self.nodes, self.last, self.free, self.first.nodes) = (0, 0, 0, 0);
        self.others.clear();
        self.others.shrink_to(OTHERS_KEPT);
        std::mem::take(&mut self.words)
    }

    /// None beyond the last.
    #[inline]
    pub(crate) fn get(&self, step: u32) -> Option<NodeState> {
        (step < self.nodes).then(|| self.state(self.words[step as usize]))
    }

    /// Of a node that there is.
    #[inline]
    pub(crate) fn at(&self, step: u32) -> NodeState {
        self.state(self.words[step as usize])
    }

    fn state(&self, word: u32) -> NodeState {
        match kind(word) {
            WAITING => NodeState::Waiting { untold: of(word) },
            READY => NodeState::Ready(self.moment(of(word)).ready()),
            QUEUED => NodeState::Queued(WorkerId(of(word))),
            DONE => NodeState::Done,
            _ => NodeState::Dropped,
        }
    }

    /// Of a node that is ready: since when, and for whom.
    #[inline]
    pub(crate) fn ready(&self, step: u32) -> Ready {
        let word = self.words[step as usize];
        debug_assert_eq!(kind(word), READY, "a node that is not ready was asked");
        self.moment(of(word)).ready()
    }

    pub(crate) fn since(&self, step: u32) -> Time {
        self.ready(step).time
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = NodeState> {
        self.words[..self.nodes as usize].iter().map(|word| self.state(*word))
    }

    /// Those of a range that are ready.
    #[inline]
    pub(crate) fn ready_in(&self, range: Range<u32>) -> impl Iterator<Item = (u32, Ready)> {
        let words = &self.words[range.start as usize..range.end as usize];
        range.zip(words).filter(|(_, word)| kind(**word) == READY).map(|(step, word)| (step, self.moment(of(*word)).ready()))
    }

    pub(crate) fn is_ready(&self, step: u32) -> bool {
        kind(self.words[step as usize]) == READY
    }

    pub(crate) fn is_unsubmitted(&self, step: u32) -> bool {
        matches!(kind(self.words[step as usize]), WAITING | READY)
    }

    pub(crate) fn any_done(&self) -> bool {
        self.words[..self.nodes as usize].iter().any(|word| kind(*word) == DONE)
    }

    /// A node that it names was submitted: how many have not said so yet, if that is counted.
    #[inline]
    pub(crate) fn hear(&mut self, step: u32) -> Option<u32> {
        let word = &mut self.words[step as usize];
        let untold = (kind(*word) == WAITING).then_some(of(*word)).filter(|untold| *untold > 0)? - 1;
        *word = self::word(WAITING, untold);
        Some(untold)
    }

    /// A node waits, and what it has heard is not counted.
    pub(crate) fn set_waiting(&mut self, step: u32) {
        self.set(step, word(WAITING, 0));
    }

    /// A node that waits need not count.
    pub(crate) fn lose_count(&mut self, step: u32) {
        let word = &mut self.words[step as usize];
        if kind(*word) == WAITING {
            *word = self::word(WAITING, 0);
        }
    }

    /// Nodes are ready.
    #[inline]
    pub(crate) fn set_ready(&mut self, steps: impl ExactSizeIterator<Item = u32>, ready: Ready) {
        let word = word(READY, self.note(ready, steps.len() as u32));
        steps.for_each(|step| self.set(step, word));
    }

    /// A node that is queued is done; whether it was queued.
    #[inline]
    pub(crate) fn set_done(&mut self, step: u32) -> bool {
        let word = &mut self.words[step as usize];
        let queued = kind(*word) == QUEUED;
        if queued {
            *word = self::word(DONE, 0);
        }
        queued
    }

    pub(crate) fn set_dropped(&mut self, step: u32) {
        self.set(step, word(DROPPED, 0));
    }

    /// The first of these ready nodes are queued: those that the same workers may run. Which those were, and how many nodes are queued.
    #[inline]
    pub(crate) fn queue(&mut self, steps: impl Iterator<Item = u32>, worker: WorkerId) -> (Option<WorkerId>, usize) {
        let queued = word(QUEUED, worker.0);
        // Mostly all are of one moment.
        let (mut known, mut only, mut count, mut gone) = (word(DONE, 0), None, 0, 0);
        for step in steps {
            let word = std::mem::replace(&mut self.words[step as usize], queued);
            if word != known {
                assert!(kind(word) == READY, "a node that is not ready was picked");
                let next = self.moment(of(word)).ready().only;
                if gone > 0 && next != only {
                    self.words[step as usize] = word;
                    break;
                }
                self.let_go(known, count);
                (known, only, count) = (word, next, 0);
            }
            (count, gone) = (count + 1, gone + 1);
        }
        self.let_go(known, count);
        (only, gone)
    }

    #[inline]
    fn set(&mut self, step: u32, word: u32) {
        let before = std::mem::replace(&mut self.words[step as usize], word);
        self.let_go(before, 1);
    }

    /// So many nodes that had a word have it no more.
    #[inline]
    fn let_go(&mut self, word: u32, nodes: u32) {
        if kind(word) == READY {
            let free = Time(self.free.into());
            let moment = self.moment_mut(of(word));
            moment.nodes -= nodes;
            if moment.nodes == 0 && of(word) > 0 {
                moment.time = free;
                self.free = of(word);
            }
        }
    }

    #[inline]
    fn moment(&self, number: u32) -> &Moment {
        if number == 0 { &self.first } else { &self.others[number as usize - 1] }
    }

    #[inline]
    fn moment_mut(&mut self, number: u32) -> &mut Moment {
        if number == 0 { &mut self.first } else { &mut self.others[number as usize - 1] }
    }

    /// The number of a moment that so many nodes more share.
    fn note(&mut self, ready: Ready, nodes: u32) -> u32 {
        let last = self.moment_mut(self.last);
        if last.nodes > 0 && last.ready() == ready {
            last.nodes += nodes;
        } else if nodes > 0 {
            let moment = Moment::new(ready, nodes);
            self.last = self.place(moment);
        }
        self.last
    }

    /// A number for a moment that nobody has shared yet.
    fn place(&mut self, moment: Moment) -> u32 {
        if self.first.nodes == 0 {
            self.first = moment;
            return 0;
        }
        if let Some(free) = self.free.checked_sub(1) {
            let free = &mut self.others[free as usize];
            let next = free.time.0 as u32;
            *free = moment;
            return std::mem::replace(&mut self.free, next);
        }
        if self.others.capacity() == 0 {
            self.others.reserve_exact(2);
        }
        self.others.push(moment);
        self.others.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list of what is true of each.
        #[test]
        fn a_word_says_what_is_true(changes in prop::collection::vec((0_u32..24, 1_u32..6, 0_u8..8, 0_u64..4), 1..200)) {
            const NODES: u32 = 24;
            let mut words = Words::default();
            let mut states = States::default();
            states.begin(NODES, &[2; 7], &mut words);
            let mut list: Vec<_> = (0..NODES).map(|step| NodeState::Waiting { untold: if step < 7 { 2 } else { 0 } }).collect();
            for (step, count, what, time) in changes {
                let steps = step..(step + count).min(NODES);
                let places = steps.start as usize..steps.end as usize;
                let only = (time % 2 == 1).then_some(WorkerId(3));
                match what {
                    0..=2 => {
                        let ready = Ready { time: Time(time), only };
                        states.set_ready(steps, ready);
                        list[places].fill(NodeState::Ready(ready));
                    }
                    3 | 4 => {
                        let ready: Vec<u32> = steps.filter(|step| states.is_ready(*step)).collect();
                        let (only, gone) = states.queue(ready.iter().copied(), WorkerId(5));
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
                        let heard = states.hear(step);
                        match &mut list[step as usize] {
                            NodeState::Waiting { untold } if *untold > 0 => {
                                *untold -= 1;
                                prop_assert_eq!(heard, Some(*untold));
                            }
                            _ => prop_assert_eq!(heard, None),
                        }
                    }
                    _ => {
                        states.set_dropped(step);
                        list[step as usize] = NodeState::Dropped;
                    }
                }
                prop_assert!(states.iter().eq(list.iter().copied()));
                let ready = |moment: &&Moment| moment.nodes > 0;
                let others = &states.others;
                let live = std::iter::once(&states.first).chain(others).filter(ready).map(|moment| moment.nodes).sum::<u32>();
                prop_assert_eq!(live as usize, list.iter().filter(|state| matches!(state, NodeState::Ready(_))).count());
                prop_assert!(others.len() < 24);
            }
        }
    }
}

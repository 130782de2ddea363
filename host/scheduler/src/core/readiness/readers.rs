//! The stages that wait for single steps of a lane, or for all its steps as far as one. A step finds its readers without a search.

use std::cell::Cell;
use std::ops::Range;

use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::{BLOCK_STEPS, Listing};

use crate::core::lane::{Lane, Progress, StageRef, Status};
use crate::id::WorkerId;

/// A lane's readers.
///
/// Memory does not grow with the number of steps read, because a plugin can name many in a few
/// bytes. A reader of few steps is listed under each step. A reader of many is listed by blocks of
/// steps, and checked at every step of a block. The graph's checks bound the number of blocks.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// Readers of most steps: checked at every step.
    dense: Vec<StepReader>,
    /// Readers that are checked where they are listed.
    sparse: Vec<StepReader>,
    /// A step and its reader, by position in `sparse`; ascending once `sorted`.
    by_step: Vec<(u32, u32)>,
    /// The same by number of the block.
    by_block: Vec<(u32, u32)>,
    sorted: bool,
}

/// A reader of `steps` steps, as `at` maps its steps to the lane's.
#[derive(Clone, Copy, Debug)]
struct StepReader {
    reader: StageRef,
    at: Affine,
    steps: u32,
}

impl Readers {
    /// `reader` follows the lane step by step.
    pub(crate) fn follow(&mut self, reader: StageRef) {
        self.dense.push(StepReader { reader, at: Affine::EVERY, steps: u32::MAX });
    }

    /// A reader of `steps` steps reads a lane of `bound` steps along that line.
    pub(crate) fn add(&mut self, reader: StageRef, at: Affine, steps: u32, bound: u32) {
        let line = StepReader { reader, at, steps };
        let number = self.sparse.len() as u32;
        let blocks = BLOCK_STEPS.into();
        match at.listing(steps, bound) {
            Listing::Nowhere => return self.dense.push(line),
            Listing::Steps if at.stride == 0 => self.by_step.extend(read_at(at, bound, 0).map(|step| (step, number))),
            Listing::Steps => self.by_step.extend((0..steps).filter_map(|by| Some((read_at(at, bound, by)?, number)))),
            Listing::Blocks(_) if i64::from(at.stride).abs() >= blocks => {
                let blocks = (0..steps).filter_map(|by| Some((read_at(at, bound, by)? / BLOCK_STEPS, number)));
                self.by_block.extend(blocks);
            }
            Listing::Blocks(_) => {
                // What waits for a prefix may have steps that wait for none, or for more than there are.
                let end = |step: u32| at.number(step).map(|number| number.clamp(0, i64::from(bound) - 1) as u32);
                if let (Some(one), Some(other)) = (end(0), end(steps - 1)) {
                    let (one, other) = if at.from_end { (bound - 1 - one, bound - 1 - other) } else { (one, other) };
                    let (first, last) = (one.min(other) / BLOCK_STEPS, one.max(other) / BLOCK_STEPS);
                    self.by_block.extend((first..=last).map(|block| (block, number)));
                }
            }
        }
        self.sorted = false;
        self.sparse.push(line);
    }

    /// How many there are.
    #[cfg(test)]
    const fn len(&self) -> usize {
        self.dense.len() + self.sparse.len()
    }

    /// One of them.
    pub(crate) fn get(&self, index: usize) -> Option<StageRef> {
        self.reader(index).map(|line| line.reader)
    }

    fn reader(&self, index: usize) -> Option<&StepReader> {
        self.dense.get(index).or_else(|| self.sparse.get(index.checked_sub(self.dense.len())?))
    }

    /// Places to ask [`Readers::reading`] about, of a step: some may turn out to read other steps.
    pub(crate) fn about(&mut self, step: u32) -> impl Iterator<Item = ReaderIndex> + use<> {
        if !self.sorted {
            self.by_step.sort_unstable();
            self.by_block.sort_unstable();
            self.sorted = true;
        }
        let range = |listed: &[(u32, u32)], number: u32| {
            let from = listed.partition_point(|(listed, _)| *listed < number);
            from..from + listed[from..].partition_point(|(listed, _)| *listed == number)
        };
        let (steps, blocks) = (range(&self.by_step, step), range(&self.by_block, step / BLOCK_STEPS));
        (0..self.dense.len()).map(ReaderIndex::Dense).chain(steps.map(ReaderIndex::Step)).chain(blocks.map(ReaderIndex::Block))
    }

    /// Which node reads that step, or every node of a stage (none).
    pub(crate) fn reading(&self, place: ReaderIndex, step: u32, bound: u32) -> Option<(StageRef, Option<u32>)> {
        let listed = |listed: &[(u32, u32)], at: usize| self.sparse.get(listed.get(at)?.1 as usize).copied();
        let StepReader { reader, at, steps } = match place {
            ReaderIndex::Dense(at) => self.dense.get(at).copied()?,
            ReaderIndex::Step(at) => listed(&self.by_step, at)?,
            ReaderIndex::Block(at) => listed(&self.by_block, at)?,
        };
        if at.stride == 0 {
            return Some((reader, None));
        }
        let named = if at.from_end { i64::from(bound) - 1 - i64::from(step) } else { i64::from(step) };
        let distance = named - at.first;
        let stride = i64::from(at.stride);
        let by = (distance % stride == 0).then(|| u32::try_from(distance / stride).ok()).flatten().filter(|by| *by < steps)?;
        Some((reader, Some(by)))
    }
}

/// The stages that wait for all steps of a lane as far as one.
///
/// Two marks say how far that is. They only move on, so that asking takes no longer for a long chain.
#[derive(Debug, Default)]
pub(crate) struct Through {
    /// By the step that is the last they wait for.
    readers: Readers,
    /// Those that wait for all steps, because their line goes on beyond.
    beyond: Vec<StageRef>,
    marks: Cell<Marks>,
    /// As far as readers were told.
    told: Marks,
}

/// How far the steps of a lane are there.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// Steps before this one are complete.
    complete: u32,
    /// Steps before this one are complete, or queued on `worker`.
    queued: u32,
    worker: WorkerId,
}

impl Marks {
    /// Moves on as far as a lane is.
    fn follow(&mut self, lane: &Lane) {
        if let Progress::Front(front) = &lane.progress {
            let queued = if lane.waits() { front.done } else { front.queued };
            *self = Self { complete: front.done, queued, worker: front.worker };
            return;
        }
        while lane.status(self.complete) == Status::Done {
            self.complete += 1;
        }
        self.queued = self.queued.max(self.complete);
        loop {
            match lane.status(self.queued) {
                Status::Done => {}
                Status::Queued(worker) if self.queued == self.complete || worker == self.worker => self.worker = worker,
                _ => return,
            }
            self.queued += 1;
        }
    }

    /// Whether the next step will never be executed.
    fn end_here(&self, lane: &Lane) -> bool {
        lane.status(self.queued) == Status::Never
    }
}

impl Through {
    /// A reader of `steps` steps waits for a lane of `bound` steps as far as that line says.
    pub(crate) fn add(&mut self, reader: StageRef, at: Affine, steps: u32, bound: u32) {
        self.readers.add(reader, at, steps, bound);
        if [0, steps.saturating_sub(1)].iter().any(|step| at.number(*step).is_none_or(|last| last >= i64::from(bound))) {
            self.beyond.push(reader);
        }
    }

    /// The common status of all steps as far as `last`. Where only complete ones count, none is missed before those in flight are back.
    pub(crate) fn status(&self, lane: &Lane, last: u32, complete: bool) -> Status {
        let mut marks = self.marks.get();
        marks.follow(lane);
        self.marks.set(marks);
        match last {
            _ if last < marks.complete => Status::Done,
            _ if last < marks.queued => Status::Queued(marks.worker),
            // What a chain that ends has not executed never comes.
            _ if marks.end_here(lane) && !(complete && marks.complete < marks.queued) => Status::Never,
            _ => Status::Waiting,
        }
    }

    /// The steps of a lane that the marks have passed since this was asked last, perhaps some twice; and whether no more will come.
    pub(crate) fn passed(&mut self, lane: &Lane) -> ([Range<u32>; 2], bool) {
        let marks = self.marks.get_mut();
        marks.follow(lane);
        let told = std::mem::replace(&mut self.told, *marks);
        ([told.complete..marks.complete, told.queued..marks.queued], marks.end_here(lane))
    }

    /// The nodes that wait for the steps as far as that one, and stages of which any node may (none).
    pub(crate) fn waiting(&mut self, step: u32, bound: u32) -> Vec<(StageRef, Option<u32>)> {
        let places = self.readers.about(step);
        let mut waiting: Vec<_> = places.filter_map(|place| self.readers.reading(place, step, bound)).collect();
        if step + 1 == bound {
            waiting.extend(self.beyond.iter().map(|reader| (*reader, None)));
        }
        waiting
    }

    /// One of the readers.
    pub(crate) fn get(&self, index: usize) -> Option<StageRef> {
        self.readers.get(index)
    }
}

/// Where a reader is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderIndex {
    Dense(usize),
    Step(usize),
    Block(usize),
}

/// The step of a lane of `bound` steps that `at` means at `step`.
pub(super) fn read_at(at: Affine, bound: u32, step: u32) -> Option<u32> {
    let named = at.at(step)?;
    if at.from_end { bound.checked_sub(1)?.checked_sub(named) } else { Some(named) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn stage(chain: u32) -> StageRef {
        StageRef { chain, stage: 0 }
    }

    /// The readers of a step, the obvious way.
    fn readers_of(step: u32, bound: u32, lines: &[(StageRef, Affine, u32)]) -> Vec<(u32, u32)> {
        let reads = |(reader, at, steps): &(StageRef, Affine, u32)| {
            let (chain, at) = (reader.chain, *at);
            (0..*steps).filter(move |by| read_at(at, bound, *by) == Some(step)).map(move |by| (chain, by))
        };
        lines.iter().flat_map(reads).collect()
    }

    fn assert_found(bound: u32, given: &[(u32, i32, u32)]) {
        let mut lines = Vec::new();
        for (first, stride, steps) in given {
            for from_end in [false, true] {
                lines.push((stage(lines.len() as u32), Affine { first: (*first).into(), stride: *stride, from_end }, *steps));
            }
        }
        let mut readers = Readers::default();
        lines.iter().for_each(|(reader, at, steps)| readers.add(*reader, *at, *steps, bound));
        assert_eq!(readers.len(), lines.len());
        assert!((0..lines.len()).all(|index| readers.get(index).is_some()) && readers.get(lines.len()).is_none());
        for step in 0..bound {
            let mut found = Vec::new();
            for place in readers.about(step) {
                match readers.reading(place, step, bound) {
                    Some((reader, Some(by))) => found.push((reader.chain, by)),
                    Some((reader, None)) => found.extend((0..lines[reader.chain as usize].2).map(|by| (reader.chain, by))),
                    None => {}
                }
            }
            found.sort_unstable();
            let mut wanted = readers_of(step, bound, &lines);
            wanted.sort_unstable();
            assert_eq!(found, wanted, "step {step}");
        }
    }

    #[test]
    fn a_step_finds_its_readers() {
        assert_found(40, &[(0, 1, 40), (3, 1, 2), (39, -1, 40), (39, -4, 9), (7, 0, 5), (0, 9, 4), (2, 3, 12), (5, -5, 2)]);
        let long = [(0, 1, 200), (17, 1, 200), (1999, -1, 200), (100, 3, 300), (1500, -7, 150), (63, 64, 30), (1990, -66, 30), (0, 90, 20)];
        assert_found(2000, &long);
    }

    /// Every step used to ask all of them: seconds of the scheduler's thread for one request.
    #[test]
    fn readers_of_one_step_each_are_not_asked_at_the_others() {
        const BOUND: u32 = 40_000;
        let mut readers = Readers::default();
        for chain in 0..10_000 {
            readers.add(stage(chain), Affine { first: chain.into(), stride: i32::from(chain % 2 == 0), from_end: false }, 1, BOUND);
        }
        let asked: usize = (0..BOUND).map(|step| readers.about(step).count()).sum();
        assert_eq!(asked, 10_000);
    }

    /// Listing and sorting every step that is read took seconds of the scheduler's thread.
    #[test]
    fn what_is_listed_does_not_grow_with_what_is_read() {
        let mut readers = Readers::default();
        for chain in 0..352 {
            readers.add(stage(chain), Affine { first: i64::from(100 * chain), stride: 1, from_end: false }, 23_500, 94_100);
        }
        assert!(readers.by_step.is_empty() && readers.by_block.len() < 352 * 23_500 / 60);
        let asked: usize = (0..94_100).map(|step| readers.about(step).count()).sum();
        assert!(asked < 352 * (23_500 + 130));
    }
}

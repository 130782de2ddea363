//! Who waits for a lane's steps one by one, so that a step finds its readers without asking those of all others.

use std::ops::Range;

use cellwright_cell_graph::graph::Affine;

use crate::lane::StageRef;

/// A reader of fewer than one in so many of a lane's steps is listed under each of them; any other is asked at every step.
const SPARSE: u64 = 4;

/// A lane's readers.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// Read much of it.
    dense: Vec<(StageRef, Affine)>,
    /// Read little of it: each once.
    sparse: Vec<StageRef>,
    /// What those read: ascending by the lane's step once `sorted`.
    by_step: Vec<Reading>,
    sorted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    step: u32,
    reader: StageRef,
    /// The step that reads it; none: they all do.
    by: Option<u32>,
}

impl Readers {
    pub(crate) fn clear(&mut self) {
        self.dense.clear();
        self.sparse.clear();
        self.by_step.clear();
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.dense.is_empty() && self.sparse.is_empty()
    }

    /// `reader` follows the lane step by step.
    pub(crate) fn follow(&mut self, reader: StageRef) {
        self.dense.push((reader, Affine::EVERY));
    }

    /// A reader of `steps` steps reads a lane of `bound` steps along that line.
    pub(crate) fn add(&mut self, reader: StageRef, at: Affine, steps: u32, bound: u32) {
        if at.stride != 0 && u64::from(steps) * SPARSE >= u64::from(bound) {
            return self.dense.push((reader, at));
        }
        self.sorted = false;
        self.sparse.push(reader);
        if at.stride == 0 {
            self.by_step.extend(read_at(at, bound, 0).map(|step| Reading { step, reader, by: None }));
        } else {
            let readings = (0..steps).filter_map(|by| Some(Reading { step: read_at(at, bound, by)?, reader, by: Some(by) }));
            self.by_step.extend(readings);
        }
    }

    /// How many there are.
    pub(crate) const fn len(&self) -> usize {
        self.dense.len() + self.sparse.len()
    }

    /// One of them.
    pub(crate) fn get(&self, index: usize) -> Option<StageRef> {
        let sparse = || self.sparse.get(index.checked_sub(self.dense.len())?).copied();
        self.dense.get(index).map(|(reader, _)| *reader).or_else(sparse)
    }

    /// Numbers to ask [`Readers::reading`] for, of a step: some may turn out to read other steps.
    pub(crate) fn about(&mut self, step: u32) -> impl Iterator<Item = usize> + use<> {
        if !self.sorted {
            self.by_step.sort_by_key(|reading| reading.step);
            self.sorted = true;
        }
        let from = self.by_step.partition_point(|reading| reading.step < step);
        let to = self.by_step[from..].partition_point(|reading| reading.step == step) + from;
        let listed: Range<usize> = self.dense.len() + from..self.dense.len() + to;
        (0..self.dense.len()).chain(listed)
    }

    /// Which node reads that step, or every node of a stage (none).
    pub(crate) fn reading(&self, number: usize, step: u32, bound: u32) -> Option<(StageRef, Option<u32>)> {
        let Some((reader, at)) = self.dense.get(number) else {
            let reading = self.by_step.get(number - self.dense.len())?;
            return Some((reading.reader, reading.by));
        };
        let named = if at.from_end { i64::from(bound) - 1 - i64::from(step) } else { i64::from(step) };
        let distance = named - i64::from(at.first);
        let stride = i64::from(at.stride);
        let by = (distance % stride == 0).then(|| u32::try_from(distance / stride).ok()).flatten()?;
        Some((*reader, Some(by)))
    }
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

    /// Who reads a step, the obvious way.
    fn readers_of(step: u32, bound: u32, lines: &[(StageRef, Affine, u32)]) -> Vec<(u32, u32)> {
        let reads = |(reader, at, steps): &(StageRef, Affine, u32)| {
            let (chain, at) = (reader.chain, *at);
            (0..*steps).filter(move |by| read_at(at, bound, *by) == Some(step)).map(move |by| (chain, by))
        };
        lines.iter().flat_map(reads).collect()
    }

    #[test]
    fn a_step_finds_its_readers() {
        const BOUND: u32 = 40;
        let mut lines = Vec::new();
        for (first, stride, steps) in [(0, 1, 40), (3, 1, 2), (39, -1, 40), (39, -4, 9), (7, 0, 5), (0, 9, 4), (2, 3, 12), (5, -5, 2)] {
            for from_end in [false, true] {
                lines.push((stage(lines.len() as u32), Affine { first, stride, from_end }, steps));
            }
        }
        let mut readers = Readers::default();
        lines.iter().for_each(|(reader, at, steps)| readers.add(*reader, *at, *steps, BOUND));
        assert_eq!(readers.len(), lines.len());
        assert!((0..lines.len()).all(|index| readers.get(index).is_some()) && readers.get(lines.len()).is_none());
        for step in 0..BOUND {
            let mut found = Vec::new();
            for number in readers.about(step) {
                match readers.reading(number, step, BOUND) {
                    Some((reader, Some(by))) => found.push((reader.chain, by)),
                    Some((reader, None)) => found.extend((0..lines[reader.chain as usize].2).map(|by| (reader.chain, by))),
                    None => {}
                }
            }
            // A line may go on beyond its reader's last step; the scheduler ignores steps that do not exist.
            found.retain(|(chain, by)| *by < lines[*chain as usize].2);
            found.sort_unstable();
            let mut wanted = readers_of(step, BOUND, &lines);
            wanted.sort_unstable();
            assert_eq!(found, wanted, "step {step}");
        }
    }

    /// Every step used to ask all of them: seconds of the scheduler's thread for one request.
    #[test]
    fn readers_of_one_step_each_are_not_asked_at_the_others() {
        const BOUND: u32 = 40_000;
        let mut readers = Readers::default();
        for chain in 0..10_000 {
            readers.add(stage(chain), Affine { first: chain, stride: i32::from(chain % 2 == 0), from_end: false }, 1, BOUND);
        }
        let asked: usize = (0..BOUND).map(|step| readers.about(step).count()).sum();
        assert_eq!(asked, 10_000);
    }
}

//! DVABatch (Cui et al.; ATC'22): batches of whole graphs that requests join and leave while they
//! run.
//!
//! A request's nodes, in the order in which they stand in its graph, are divided into *stages* of
//! equal time; a stage ends, too, where cells follow that prefer another batch size: the least that
//! fills the device. What happens to a batch happens where a stage ends, by three operations:
//!
//! - *New* begins a batch of requests that wait. Requests of similar length are batched, and padded
//!   to the longest of them.
//! - *Stretch* adds requests to the last batch that has begun, while it does not fill the device.
//!   They run the stages behind them by themselves while the batch waits for them, and go on with
//!   it. A batch is stretched only until a time threshold, so that nobody waits long for those who
//!   come later.
//! - *Split* divides a batch into two where the rest of it takes no less time at once than one half
//!   after the other: half as many fill the device. The first half runs to its end, then the
//!   second. A batch that was split is not stretched.
//!
//! A worker has two batches in flight, as the paper has two pairs of buffers, and no more requests
//! in them than the largest batch has. The paper's may run side by side on a GPU; a worker runs one
//! task at a time, so the second runs, and begins, when the first has nothing to submit.
//!
//! The paper does not say how alike lengths must be, nor how long the threshold is. Here lengths
//! are alike that round up to the same power of two, and the threshold is what the paper gives for
//! another wait: the time of a stage, of a batch that just fills the device.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{DomainId, Time, WorkerId};
use crate::policy::shelf::{BucketKey, Rules, Shelves};
use crate::policy::whole::{Batch, Next, release, structure};
use crate::policy::{Ended, Key, Member, NANOSECONDS_PER_MS, Parameters, Pick, Policy, PolicyNameError, Takes, View, number};

/// Parameters of the policy `stages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stages {
    /// Stages of a request, of equal time; more where cells prefer other batch sizes.
    pub count: u32,
    /// Nanoseconds after which nobody joins a batch that has begun; none: as long as a stage takes.
    pub stretch_ns: Option<u64>,
}

/// Stages where no number is given: the paper tries several numbers for each model, and calls 20
/// too many.
const COUNT: u64 = 8;
const COUNT_MAX: u64 = 64;

/// A longer threshold is a mistake.
const STRETCH_MS_MAX: u64 = 60_000;

impl Parameters for Stages {
    const NAMES: &'static [&'static str] = &["COUNT", "STRETCH_MS"];

    fn read(given: &[&str]) -> Result<Self, PolicyNameError> {
        let count = "a number of stages, 1 to 64; write `stages:8`";
        let stretch = "a time to join a batch in milliseconds, 0 to 60000; write `stages:8:5`";
        let stretch_ms = given.get(1).map(|said| number(Some(said), 0, 0..=STRETCH_MS_MAX, stretch)).transpose()?;
        Ok(Self {
            count: number(given.first(), COUNT, 1..=COUNT_MAX, count)? as u32,
            stretch_ns: stretch_ms.map(|stretch_ms| stretch_ms * NANOSECONDS_PER_MS),
        })
    }
}

/// As it is read. What is no whole number of milliseconds is rounded down.
impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stretch_ns {
            None => write!(f, "{}", self.count),
            Some(stretch_ns) => write!(f, "{}:{}", self.count, stretch_ns / NANOSECONDS_PER_MS),
        }
    }
}

/// A batch may be as large as the smallest type limit, and begins at once.
impl Rules for Stages {
    fn most(&self, view: View<'_>, first: &Member) -> usize {
        view.batch_limit(first) as usize
    }
}

/// Batches in flight on a worker.
const IN_FLIGHT: usize = 2;

/// Stages that are told apart.
const STAGES_MAX: usize = 256;

/// Twice as many rows that take so many percent of twice the time make no better use of a device:
/// measured times are never quite proportional.
const FULL_PERCENT: u64 = 95;

/// A place in a batch: chain, step, stage of the chain. Batches pass them in ascending order.
type At = (u32, u32, u32);

/// Requests that run together.
#[derive(Debug)]
struct Part {
    batch: Batch,
    /// The last stage that it was let into.
    stage: usize,
}

/// A batch in flight.
#[derive(Debug)]
struct Flight {
    /// The last runs. Of a batch that was split these are the halves; of one that was stretched,
    /// the batch and those who catch up with it.
    parts: Vec<Part>,
    /// Where its stages begin, the first one excepted.
    stages: Vec<At>,
    /// What all of its requests are like.
    bucket: BucketKey,
    began: Time,
    /// For how long it may be stretched.
    stretch_ns: u64,
    split: bool,
}

/// Who waits, and the batches in flight on each worker in the order of their beginnings.
#[derive(Debug)]
pub(super) struct StagedBatches {
    parameters: Stages,
    shelves: Shelves,
    tables: BTreeMap<WorkerId, Vec<Flight>>,
}

impl Part {
    fn at(&self) -> At {
        (self.batch.chain, self.batch.step, self.batch.stage)
    }

    fn has_begun(&self) -> bool {
        self.at() != (0, 0, 0)
    }
}

impl Flight {
    fn stage_of(&self, at: At) -> usize {
        self.stages.partition_point(|begins| *begins <= at)
    }

    /// Whether its second part catches up with its first.
    fn catches_up(&self) -> bool {
        !self.split && self.parts.len() > 1
    }

    /// The part whose turn it is: who catches up, once the batch has come to the end of its stage;
    /// whoever is behind.
    fn turn(&self) -> usize {
        match self.parts.as_slice() {
            [base, newcomers] if self.catches_up() => {
                let waits = self.stage_of(base.at()) > base.stage;
                usize::from(base.at() > newcomers.at() && (waits || newcomers.has_begun()))
            }
            parts => parts.len().saturating_sub(1),
        }
    }

    /// The next task, or who is to be given up before it, if it has either.
    fn run(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        loop {
            let (turn, catches_up) = (self.turn(), self.catches_up());
            match self.parts.get_mut(turn)?.batch.next(view, worker) {
                Next::GiveUp(failures) => return Some(Pick::GiveUp(failures)),
                Next::Over if catches_up => {}
                Next::Wait | Next::Over => return None,
                Next::Task => {}
            }
            if catches_up && self.parts[0].at() == self.parts[1].at() {
                let newcomers = self.parts.pop()?;
                self.parts[0].batch.join(newcomers.batch);
                continue;
            }
            if self.turn() != turn {
                continue;
            }
            let stage = self.stage_of(self.parts[turn].at());
            let part = &mut self.parts[turn];
            if stage > part.stage {
                part.stage = stage;
                if !catches_up && pays_to_split(view, &part.batch) {
                    let batch = part.batch.first_half();
                    self.parts.push(Part { batch, stage });
                    self.split = true;
                    continue;
                }
            }
            return self.parts[turn].batch.run(view, worker).ok();
        }
    }

    /// Whether requests may be added at that time: a stage must be left that they could run
    /// together.
    fn is_open(&self, now: Time) -> bool {
        let joinable = match self.parts.as_slice() {
            [base] => base.stage < self.stages.len(),
            [_, newcomers] => !newcomers.has_begun(),
            _ => false,
        };
        !self.split && joinable && now.0 < self.began.0.saturating_add(self.stretch_ns)
    }
}

impl StagedBatches {
    pub(super) fn new(parameters: Stages) -> Self {
        Self { parameters, shelves: Shelves::default(), tables: BTreeMap::new() }
    }

    fn table(&self, worker: WorkerId) -> &[Flight] {
        self.tables.get(&worker).map_or(&[], Vec::as_slice)
    }

    /// How many requests more may be in flight on a worker.
    fn room_in_flight(&self, view: View<'_>, worker: WorkerId) -> usize {
        let mut members = self.table(worker).iter().flat_map(|flight| &flight.parts).flat_map(|part| &part.batch.members);
        members.next().map_or(usize::MAX, |first| (view.batch_limit(first) as usize).saturating_sub(1 + members.count()))
    }

    /// Adds those who wait to the last batch, as far as they fit and it does not fill the device.
    fn stretch(&mut self, view: View<'_>, worker: WorkerId, domain: DomainId) -> Option<Pick> {
        let room = self.room_in_flight(view, worker);
        let flight = self.tables.get_mut(&worker)?.last_mut().filter(|last| last.is_open(view.now()))?;
        self.shelves.buckets(domain).find(|(bucket, _)| **bucket == flight.bucket)?;
        let base = flight.parts.first()?;
        let present = flight.parts.iter().map(|part| part.batch.members.len()).sum();
        let mut room = room.min(preferred_size(view, &base.batch)?.saturating_sub(present));
        let members = self.shelves.take_from(domain, &flight.bucket, |member| {
            let chains = view.growth(member).into_iter().flat_map(|graph| &graph.chains);
            let fits = room > 0 && chains.zip(&base.batch.padded).all(|(chain, padded)| chain.length.bound <= *padded);
            room -= usize::from(fits);
            fits
        });
        let requests = members.iter().map(|member| member.request).collect();
        if members.is_empty() {
            return None;
        }
        match flight.parts.get_mut(1) {
            Some(newcomers) => newcomers.batch.members.extend(members),
            None => {
                let Part { batch, stage } = flight.parts.first()?;
                let newcomers = Part { batch: batch.begin_again(members), stage: *stage };
                flight.parts.push(newcomers);
            }
        }
        Some(Pick::Take(requests))
    }

    /// Begins a batch of those who wait, the oldest and who is like it, if one may begin.
    fn begin(&mut self, view: View<'_>, worker: WorkerId, domain: DomainId) -> Option<Pick> {
        let room = self.room_in_flight(view, worker);
        if self.table(worker).len() >= IN_FLIGHT || room == 0 {
            return None;
        }
        let (bucket, waiting) = self.shelves.buckets(domain).min_by_key(|(_, bucket)| bucket.front().map(Member::key))?;
        let mut left = room.min(view.batch_limit(waiting.front()?) as usize);
        let bucket = bucket.clone();
        let members = self.shelves.take_from(domain, &bucket, |_| left.checked_sub(1).map(|less| left = less).is_some());
        let requests = members.iter().map(|member| member.request).collect();
        let batch = Batch::new(view, members, 0)?;
        let (stages, stretch_ns) = divide(view, &batch, self.parameters);
        let flight = Flight { parts: vec![Part { batch, stage: 0 }], stages, bucket, began: view.now(), stretch_ns, split: false };
        self.tables.entry(worker).or_default().push(flight);
        Some(Pick::Take(requests))
    }

    /// Requests leave with the last task of their part. Parts and batches that nobody is left of
    /// are gone.
    fn end_parts(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        let flights = self.tables.get_mut(&worker)?;
        let mut pick = None;
        for part in flights.iter_mut().flat_map(|flight| &mut flight.parts).filter(|part| !part.batch.members.is_empty()) {
            match part.batch.next(view, worker) {
                Next::GiveUp(failures) => pick = Some(Pick::GiveUp(failures)),
                Next::Over if !view.any_in_flight(&part.batch.members, worker) => {
                    pick = release(view, &std::mem::take(&mut part.batch.members), worker);
                }
                Next::Task | Next::Wait | Next::Over => {}
            }
            if pick.is_some() {
                break;
            }
        }
        self.forget_empty();
        pick
    }

    fn forget_empty(&mut self) {
        self.tables.retain(|_, flights| {
            flights.iter_mut().for_each(|flight| flight.parts.retain(|part| !part.batch.members.is_empty()));
            flights.retain(|flight| !flight.parts.is_empty());
            !flights.is_empty()
        });
    }
}

impl Policy for StagedBatches {
    fn takes(&self) -> Takes {
        Takes::RequestsInOrder
    }

    fn offered(&mut self, view: View<'_>, growth: Member) {
        let Some(graph) = view.growth(&growth) else { return };
        self.shelves.put(growth, view.request(growth.request).domain, structure(graph, u32::next_power_of_two));
    }

    fn ended(&mut self, view: View<'_>, ended: &Ended) {
        self.shelves.remove(ended.request);
        for (worker, flights) in &mut self.tables {
            let parts = flights.iter_mut().flat_map(|flight| &mut flight.parts);
            parts.for_each(|part| part.batch.members.retain(|member| view.is_taken(member, *worker)));
        }
        self.forget_empty();
    }

    /// Since when a worker could run something.
    fn oldest(&self, view: View<'_>, worker: WorkerId) -> Option<Key> {
        let state = view.worker(worker).filter(|state| state.outstanding <= view.config().low_water)?;
        let flights = self.table(worker);
        let runs = |flight: &Flight| flight.parts.get(flight.turn()).is_some_and(|part| !part.batch.has_to_wait(view, worker));
        if flights.iter().any(runs) {
            return Some(Key::FIRST);
        }
        let oldest = self.shelves.oldest(&self.parameters, view, state.domain);
        oldest.filter(|_| flights.len() < IN_FLIGHT && self.room_in_flight(view, worker) > 0)
    }

    /// Stretches the last batch, runs the first that has a task, or begins one.
    fn choose(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        let domain = view.worker(worker)?.domain;
        self.end_parts(view, worker).or_else(|| self.stretch(view, worker, domain)).or_else(|| {
            let ran = self.tables.get_mut(&worker).into_iter().flatten().find_map(|flight| flight.run(view, worker));
            ran.or_else(|| self.begin(view, worker, domain))
        })
    }

    fn done(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        self.end_parts(view, worker)
    }
}

/// What a batch of so many rows, like that request, takes of each stage of each chain, in
/// nanoseconds, if that is known.
fn step_ns(view: View<'_>, like: &Member, rows: u32) -> Option<Vec<Vec<u64>>> {
    let cost = |cell: u32| view.types()[view.model().type_of_cell[cell as usize] as usize].cost.nanoseconds(rows);
    view.growth(like)?.chains.iter().map(|chain| chain.stages.iter().map(|stage| cost(stage.cell)).collect()).collect()
}

/// The same for batch sizes that double, up to the largest.
fn tables(view: View<'_>, like: &Member) -> Vec<(u32, Vec<Vec<u64>>)> {
    let limit = view.batch_limit(like);
    let sizes = std::iter::successors(Some(1_u32), |size| size.checked_mul(2)).take_while(|size| *size <= limit);
    sizes.filter_map(|size| Some((size, step_ns(view, like, size)?))).collect()
}

/// The least batch size that fills the device with the rest of a batch, if times are known.
fn preferred_size(view: View<'_>, batch: &Batch) -> Option<usize> {
    let first = batch.members.first()?;
    let tables = tables(view, first);
    let size = preferred(&tables, |times| total_ns(times, &batch.padded, (batch.chain, batch.step, batch.stage)));
    (!tables.is_empty()).then_some(size.min(view.batch_limit(first)) as usize)
}

/// Where the stages of a batch begin, the first one excepted, and for how long it may be stretched:
/// nowhere and not at all where times are not known.
fn divide(view: View<'_>, batch: &Batch, Stages { count, stretch_ns }: Stages) -> (Vec<At>, u64) {
    let times = || {
        let first = batch.members.first()?;
        Some((step_ns(view, first, preferred_size(view, batch)? as u32)?, tables(view, first)))
    };
    let Some((times, tables)) = times() else { return (Vec::new(), 0) };
    let mut stages = even_stages(&times, &batch.padded, count);
    stages.extend(where_sizes_change(&tables, &batch.padded));
    stages.retain(|begins| *begins > (0, 0, 0));
    stages.sort_unstable();
    stages.dedup();
    stages.truncate(STAGES_MAX);
    let stage_ns = total_ns(&times, &batch.padded, (0, 0, 0)) / u64::from(count.max(1));
    (stages, stretch_ns.unwrap_or(stage_ns))
}

/// Whether the rest of a batch takes no less time as a whole than one half after the other.
fn pays_to_split(view: View<'_>, batch: &Batch) -> bool {
    let rows = batch.members.len() as u32;
    let rest_ns = |rows| {
        let times = step_ns(view, batch.members.first()?, rows)?;
        Some(total_ns(&times, &batch.padded, (batch.chain, batch.step, batch.stage)))
    };
    rows > 1 && matches!((rest_ns(rows.div_ceil(2)), rest_ns(rows)), (Some(half), Some(whole)) if fills(half, whole))
}

/// Whether half as many rows make as good a use of the device.
const fn fills(half_ns: u64, whole_ns: u64) -> bool {
    whole_ns as u128 * 100 >= half_ns as u128 * 2 * FULL_PERCENT as u128
}

/// What is left of a batch from a place on, where each stage of each chain takes so long and chains
/// have so many steps.
fn total_ns(step_ns: &[Vec<u64>], padded: &[u32], (chain, step, stage): At) -> u64 {
    let sum = |times: &[u64]| times.iter().copied().fold(0, u64::saturating_add);
    let chains = step_ns.iter().zip(padded).skip(chain as usize).enumerate();
    let of = |(at, (times, steps)): (usize, (&Vec<u64>, &u32))| {
        if at > 0 {
            return sum(times).saturating_mul(u64::from(*steps));
        }
        let whole = sum(times).saturating_mul(u64::from(steps.saturating_sub(step)));
        whole.saturating_sub(sum(&times[..times.len().min(stage as usize)]))
    };
    chains.map(of).fold(0, u64::saturating_add)
}

/// The first nodes beyond equal parts of a batch's time.
fn even_stages(step_ns: &[Vec<u64>], padded: &[u32], count: u32) -> Vec<At> {
    let total = total_ns(step_ns, padded, (0, 0, 0));
    let place = |part: u32| {
        let mut left = u64::try_from(u128::from(total) * u128::from(part) / u128::from(count.max(1))).unwrap_or(u64::MAX);
        for ((chain, times), steps) in (0..).zip(step_ns).zip(padded) {
            let step_ns = times.iter().copied().fold(0, u64::saturating_add).max(1);
            let step = u32::try_from(left / step_ns).unwrap_or(u32::MAX);
            if step >= *steps {
                left = left.saturating_sub(step_ns.saturating_mul(u64::from(*steps)));
                continue;
            }
            left %= step_ns;
            for (stage, ns) in (0..).zip(times) {
                if left == 0 {
                    return Some((chain, step, stage));
                }
                left = left.saturating_sub(*ns);
            }
            return Some(if step + 1 < *steps { (chain, step + 1, 0) } else { (chain + 1, 0, 0) });
        }
        None
    };
    (1..count).filter_map(place).filter(|(chain, ..)| (*chain as usize) < padded.len()).collect()
}

/// The least batch size that fills the device: twice as many take twice as long. `tables` has the
/// time of each stage of each chain for sizes that double.
fn preferred(tables: &[(u32, Vec<Vec<u64>>)], time: impl Fn(&[Vec<u64>]) -> u64) -> u32 {
    let full = tables.windows(2).find(|pair| fills(time(&pair[0].1), time(&pair[1].1)));
    full.map_or(u32::MAX, |pair| pair[0].0)
}

/// Where cells begin that prefer another batch size than those before. Cells that take turns step
/// by step are one.
fn where_sizes_change(tables: &[(u32, Vec<Vec<u64>>)], padded: &[u32]) -> Vec<At> {
    let mut found = Vec::new();
    let mut before = None;
    for (chain, steps) in (0..).zip(padded) {
        let stages = tables.first().and_then(|(_, times)| times.get(chain as usize)).map_or(0, Vec::len);
        let units = if *steps == 1 { stages } else { usize::from(*steps > 0) };
        for unit in 0..units {
            let own = if *steps == 1 { unit..unit + 1 } else { 0..stages };
            let size = preferred(tables, |times| times[chain as usize][own.clone()].iter().copied().fold(0, u64::saturating_add));
            if before.replace(size).is_some_and(|before| before != size) {
                found.push((chain, 0, unit as u32));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_take_equal_time_and_end_where_another_size_is_preferred() {
        // Two cells once, then eight steps of two cells.
        let (times, padded) = (vec![vec![10, 30], vec![3, 2]], [1, 8]);
        assert_eq!(even_stages(&times, &padded, 4), [(1, 0, 0), (1, 0, 0), (1, 4, 0)]);
        assert_eq!(even_stages(&times, &padded, 8), [(0, 0, 1), (1, 0, 0), (1, 0, 0), (1, 0, 0), (1, 2, 0), (1, 4, 0), (1, 6, 0)]);
        assert_eq!(even_stages(&times, &padded, 1), []);
        assert_eq!(total_ns(&times, &padded, (0, 0, 0)), 80);
        assert_eq!(total_ns(&times, &padded, (1, 6, 1)), 7);
        // The first cell is full with one row, the second with four, the chain with more than that.
        let of = |size: u64| vec![vec![10 * size, 30 * size.div_ceil(4)], vec![3, 2]];
        let tables: Vec<_> = [1, 2, 4, 8].map(|size| (size as u32, of(size))).to_vec();
        assert_eq!(where_sizes_change(&tables, &padded), [(0, 0, 1), (1, 0, 0)]);
    }
}

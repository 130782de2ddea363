//! How the stages of one chain hang together: what waits for what, and how many steps of a stage must be held for readers that keep step.

use super::draft::stronger;
use crate::unfolded::{Dependency, Retention, UnfoldedStage};

/// Completes the stages' dependencies and what is held for feedback and siblings. Gives the set of stages (bit s) for which two places are
/// enough, because the node two steps on waits for everything that reads a place.
pub(super) fn finish(stages: &mut [UnfoldedStage], bound: u32, stop: Option<u32>) -> u64 {
    if let Some(stop) = stop {
        wait_for_stop(stages, stop);
    }
    stages.iter_mut().for_each(|stage| dedupe(&mut stage.depends));
    let double = if let [only] = &*stages { u64::from(only.depends.contains(&Dependency::Previous { stage: 0 })) } else { doubles(stages) };
    for reader in 0..stages.len() {
        for input in 0..stages[reader].inputs.len() {
            let input = &stages[reader].inputs[input];
            let fed = input.feedback.filter(|_| bound > 1).map(|(stage, _)| stage);
            let sibling = if let crate::unfolded::Source::Sibling { stage, .. } = input.source { Some(stage) } else { None };
            for read in [fed, sibling].into_iter().flatten() {
                let enough = bound > 2 && double >> read & 1 == 1;
                let held = &mut stages[read as usize].retention;
                *held = stronger(*held, if enough { Retention::Double } else { Retention::All });
            }
        }
    }
    double
}

/// A step begins when the step before it is known not to have stopped (or is queued ahead). Stages with siblings wait through them.
fn wait_for_stop(stages: &mut [UnfoldedStage], stop: u32) {
    for stage in stages {
        if !stage.depends.iter().any(|dependency| matches!(dependency, Dependency::Sibling { .. })) {
            stage.depends.push(Dependency::Previous { stage: stop });
        }
    }
}

/// Each dependency once.
fn dedupe(depends: &mut Vec<Dependency>) {
    const FEW: usize = 16;
    if depends.len() > FEW {
        depends.sort_unstable_by_key(order);
        depends.dedup();
        return;
    }
    let mut kept = 0;
    for next in 0..depends.len() {
        if !depends[..kept].contains(&depends[next]) {
            depends.swap(kept, next);
            kept += 1;
        }
    }
    depends.truncate(kept);
}

fn order(dependency: &Dependency) -> (u8, u32, u32, i64, i32) {
    match *dependency {
        Dependency::Previous { stage } => (0, stage, 0, 0, 0),
        Dependency::Sibling { stage } => (1, stage, 0, 0, 0),
        Dependency::Step { chain, stage, at } => (if at.from_end { 3 } else { 2 }, chain, stage, at.first, at.stride),
        Dependency::End { chain } => (4, chain, 0, 0, 0),
        Dependency::Nodes { input } => (5, input, 0, 0, 0),
        Dependency::Through { chain, stage, at } => (6, chain, stage, at.first, at.stride),
    }
}

/// Stages that wait for a stage: in the same step, and in the next.
struct Waiting {
    same: [u64; 64],
    next: [u64; 64],
}

impl Waiting {
    fn of(stages: &[UnfoldedStage]) -> Self {
        let mut waiting = Self { same: [0; 64], next: [0; 64] };
        for (position, stage) in stages.iter().enumerate() {
            for dependency in &stage.depends {
                match dependency {
                    Dependency::Sibling { stage } => waiting.same[*stage as usize] |= 1 << position,
                    Dependency::Previous { stage } => waiting.next[*stage as usize] |= 1 << position,
                    _ => {}
                }
            }
        }
        waiting
    }
}

/// Stages s where the node of step t + 2 waits, directly or not, for that of step t and for all that read the latter.
fn doubles(stages: &[UnfoldedStage]) -> u64 {
    let waiting = Waiting::of(stages);
    let mut within = [0_u64; 64];
    for stage in (0..stages.len()).rev() {
        within[stage] = bits(waiting.same[stage]).fold(1 << stage, |set, later| set | within[later]);
    }
    let step = |set: u64| bits(set).flat_map(|from| bits(waiting.next[from])).fold(0, |set, to| set | within[to]);
    let mut double = 0;
    for stage in 0..stages.len() {
        let waits_in_two = |reader: usize| step(step(within[reader])) >> stage & 1 == 1;
        let waits_in_one = |reader: usize| step(within[reader]) >> stage & 1 == 1;
        let safe = waits_in_two(stage) && bits(waiting.same[stage]).all(waits_in_two) && bits(waiting.next[stage]).all(waits_in_one);
        double |= u64::from(safe) << stage;
    }
    double
}

/// Stages from which a path leads to another stage and back.
pub(super) fn on_cycles(stages: &[UnfoldedStage], own: u32, named: impl Iterator<Item = (u32, u32)>) -> u64 {
    let waiting = Waiting::of(stages);
    let mut reach = [0_u64; 64];
    for (reach, (same, next)) in reach.iter_mut().zip(waiting.same.iter().zip(&waiting.next)) {
        *reach = same | next;
    }
    for (from, to) in named {
        reach[from as usize] |= 1 << to;
    }
    for (position, stage) in stages.iter().enumerate() {
        for depends in &stage.depends {
            match depends {
                Dependency::Through { chain, stage, .. } if *chain == own => reach[*stage as usize] |= 1 << position,
                _ => {}
            }
        }
    }
    for through in 0..stages.len() {
        for from in 0..stages.len() {
            if from != through && reach[from] >> through & 1 == 1 {
                reach[from] |= reach[through];
            }
        }
    }
    let returns = |stage: usize| bits(reach[stage]).any(|other| other != stage && reach[other] >> stage & 1 == 1);
    (0..stages.len()).filter(|stage| returns(*stage)).fold(0, |set, stage| set | 1 << stage)
}

/// The members of a set of stages.
pub(super) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (set != 0).then(|| {
            let lowest = set.trailing_zeros() as usize;
            set &= set - 1;
            lowest
        })
    })
}

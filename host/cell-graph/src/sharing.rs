//! Memory by life: two stages of a request share slots if they are never needed at the same time.
//!
//! Stage B may take the slots of stage A if every node of A, and every reader of A, is an ancestor of
//! every node of B. Then no order of the nodes overwrites a row before its last reader. Places are
//! found by algorithm 1 of TurboTransformers (PPoPP 2021, section 4.2): largest stage first, each in
//! the smallest gap that it fits among the stages that it conflicts with.

use crate::unfolded::{Dependency, SharedSlots, Source, UnfoldedChain, UnfoldedStage};

/// Stages of connected chains, at most: a set of stages is a word of that many bits. Larger groups
/// share nothing.
const STAGES_MAX: usize = 128;

/// The plan of a request's only growth, if it saves slots. `node_slots` gives the slots of a cell's node.
pub(crate) fn plan(chains: &[UnfoldedChain], node_slots: impl Fn(u32) -> u32) -> Option<Box<SharedSlots>> {
    // Fewer than three stages have nothing to share. Readers by name differ from step to step.
    let stages = || chains.iter().flat_map(|chain| chain.stages.iter().map(move |stage| (chain, stage)));
    if stages().take(3).count() < 3 || stages().any(|(_, stage)| !stage.named_producers.is_empty()) {
        return None;
    }
    let sizes = stages().map(|(chain, stage)| u64::from(node_slots(stage.cell)) * u64::from(stage.retention.places(chain.length.bound)));
    let sizes: Vec<u64> = sizes.collect();
    let begins = chains.iter().scan(0, |begin, chain| Some(std::mem::replace(begin, *begin + chain.stages.len())));
    let begins: Vec<usize> = begins.collect();
    let (mut first, mut end) = (vec![0_u64; sizes.len()], 0);
    for group in groups(chains) {
        let members: Vec<usize> = group.iter().flat_map(|chain| begins[*chain]..begins[*chain] + chains[*chain].stages.len()).collect();
        let conflicts = if members.len() <= STAGES_MAX { conflicts(chains, &group) } else { Vec::new() };
        let own: Vec<u64> = members.iter().map(|stage| sizes[*stage]).collect();
        let (places, slots) = placed(&own, &conflicts);
        members.iter().zip(places).for_each(|(stage, place)| first[*stage] = end + place);
        end += slots;
    }
    let unshared = sizes.iter().sum::<u64>();
    let [slots, unshared] = [u32::try_from(end).ok()?, u32::try_from(unshared).ok()?];
    // Below the sum of all, which fits.
    let first = first.into_iter().map(|first| first as u32).collect();
    (slots < unshared).then(|| Box::new(SharedSlots { first, slots, unshared }))
}

/// Groups of connected chains, by position, ascending.
fn groups(chains: &[UnfoldedChain]) -> Vec<Vec<usize>> {
    fn root(parents: &mut [usize], mut at: usize) -> usize {
        while parents[at] != at {
            parents[at] = parents[parents[at]];
            at = parents[at];
        }
        at
    }
    let mut parents: Vec<usize> = (0..chains.len()).collect();
    for (number, chain) in chains.iter().enumerate() {
        let read = chain.stages.iter().flat_map(|stage| &stage.depends).filter_map(|depends| match depends {
            Dependency::Step { chain, .. } | Dependency::Through { chain, .. } | Dependency::End { chain } => Some(*chain),
            _ => None,
        });
        // A window over rows before step 0 reads the chain without waiting for it.
        let seen = chain.stages.iter().flat_map(|stage| reads(number, stage)).map(|(chain, _)| chain);
        for read in read.chain(chain.length.like).map(|chain| chain as usize).chain(seen) {
            let (one, other) = (root(&mut parents, number), root(&mut parents, read));
            parents[one.max(other)] = one.min(other);
        }
    }
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut of_root = vec![usize::MAX; chains.len()];
    for chain in 0..chains.len() {
        let root = root(&mut parents, chain);
        if of_root[root] == usize::MAX {
            of_root[root] = groups.len();
            groups.push(Vec::new());
        }
        groups[of_root[root]].push(chain);
    }
    groups
}

/// For each stage of a group, the set of stages that it must not share slots with. References go
/// backward, so earlier entries are complete.
fn conflicts(chains: &[UnfoldedChain], group: &[usize]) -> Vec<u128> {
    let mut begins = vec![(usize::MAX, 0); chains.len()];
    let mut count = 0;
    for chain in group {
        begins[*chain] = (count, chains[*chain].stages.len());
        count += chains[*chain].stages.len();
    }
    let bit = |chain: usize, stage: u32| 1_u128 << (begins[chain].0 + stage as usize);
    // `done[b]`: stages whose nodes are all ancestors of every node of b. `used[a]`: a and its readers.
    let (mut done, mut used): (Vec<u128>, Vec<u128>) = (Vec::with_capacity(count), (0..count).map(|stage| 1 << stage).collect());
    for chain in group {
        for (number, stage) in (0..).zip(&chains[*chain].stages) {
            let own = bit(*chain, number);
            done.push(stage.depends.iter().fold(0, |set, depends| {
                let all_of = |chain: usize| begins[chain].0..begins[chain].0 + begins[chain].1;
                set | match depends {
                    Dependency::Sibling { stage } => done[begins[*chain].0 + *stage as usize],
                    Dependency::Step { chain, stage, .. } => done[begins[*chain as usize].0 + *stage as usize],
                    Dependency::End { chain } => all_of(*chain as usize).fold(0, |set, stage| set | done[stage] | 1 << stage),
                    // A last row below 0 is not waited for.
                    Dependency::Through { chain: of, stage, at } if *of as usize != *chain => {
                        let last = chains[*chain].length.bound - 1;
                        let waits = at.number(0) >= Some(0) && at.number(last) >= Some(0);
                        if waits { done[begins[*of as usize].0 + *stage as usize] } else { 0 }
                    }
                    Dependency::Through { .. } | Dependency::Previous { .. } | Dependency::Nodes { .. } => 0,
                }
            }));
            for (of, read) in reads(*chain, stage) {
                used[begins[of].0 + read as usize] |= own;
            }
        }
    }
    let may_take = |later: usize, stage: usize| used[stage] & !done[later] == 0;
    let cannot = |one: usize, other: usize| one != other && !may_take(one, other) && !may_take(other, one);
    (0..count).map(|one| (0..count).filter(|other| cannot(one, *other)).fold(0, |set, other| set | 1 << other)).collect()
}

/// Stages that a stage of a chain reads in place: their chains' positions, and their numbers.
fn reads(own: usize, stage: &UnfoldedStage) -> impl Iterator<Item = (usize, u32)> {
    stage.inputs.iter().flat_map(move |input| {
        let source = match &input.source {
            Source::Steps { chain, stage, .. } | Source::Last { chain, stage, .. } => Some((*chain as usize, *stage)),
            Source::Sibling { stage, .. } => Some((own, *stage)),
            _ => None,
        };
        let seen = input.source.runs().iter().filter_map(|run| match run.of {
            crate::unfolded::RunOf::Chain { chain, stage, .. } => Some((chain as usize, stage)),
            crate::unfolded::RunOf::Tensor(_) => None,
        });
        source.into_iter().chain(input.feedback.map(|(stage, _)| (own, stage))).chain(seen)
    })
}

/// The first slot of each stage, and the slots of all. If `conflicts` is empty, no stages share.
fn placed(sizes: &[u64], conflicts: &[u128]) -> (Vec<u64>, u64) {
    let mut first = vec![0; sizes.len()];
    if conflicts.is_empty() {
        let end = sizes.iter().zip(&mut first).fold(0, |end, (size, first)| {
            *first = end;
            end + size
        });
        return (first, end);
    }
    let mut order: Vec<usize> = (0..sizes.len()).filter(|stage| sizes[*stage] > 0).collect();
    order.sort_by_key(|stage| std::cmp::Reverse(sizes[*stage]));
    let (mut beside, mut total): (Vec<usize>, u64) = (Vec::new(), 0);
    for (count, stage) in order.iter().enumerate() {
        beside.clear();
        beside.extend(order[..count].iter().filter(|other| conflicts[*stage] >> **other & 1 == 1));
        beside.sort_unstable_by_key(|other| first[*other]);
        let (mut end, mut best) = (0, None);
        for other in &beside {
            let gap = first[*other].saturating_sub(end);
            if gap >= sizes[*stage] && best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, end));
            }
            end = end.max(first[*other] + sizes[*other]);
        }
        first[*stage] = best.map_or(end, |(_, at)| at);
        total = total.max(first[*stage] + sizes[*stage]);
    }
    (first, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_goes_first_and_each_into_the_smallest_gap() {
        let all_but = |free: &[(usize, usize)], count: usize| -> Vec<u128> {
            let is_free = |one, other| free.contains(&(one, other)) || free.contains(&(other, one));
            (0..count)
                .map(|one| (0..count).filter(|other| *other != one && !is_free(one, *other)).fold(0, |set, other| set | 1 << other))
                .collect()
        };
        assert_eq!(placed(&[4, 9, 4], &all_but(&[(0, 2)], 3)), (vec![9, 0, 9], 13));
        // 1 and 3 lie over 0; between 2 and 4 there is a gap of 3, and behind all of them room.
        assert_eq!(placed(&[10, 7, 8, 3], &all_but(&[(0, 1), (0, 3), (1, 3)], 4)), (vec![0, 0, 10, 0], 18));
        assert_eq!(placed(&[0, 5], &all_but(&[], 2)), (vec![0, 0], 5));
        assert_eq!(placed(&[2, 3], &[]), (vec![0, 2], 5));
    }
}

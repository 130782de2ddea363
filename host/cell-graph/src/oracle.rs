//! What a growth means, written out node by node and edge by edge: slow, obvious, and independent of the checks it is compared with.
//!
//! It reads the growth as the plugin gave it.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Affine, Chain, Growth, Source, SpanOf};
use crate::unfolded::{Dependency, Grouping, UnfoldedGrowth};

/// One invocation of a cell: chain (numbered over the request), stage, step.
pub type NodeId = (u32, u32, u32);

/// Edges of an expanded graph, from the node that waits to those it waits for.
pub type Edges = BTreeMap<NodeId, BTreeSet<NodeId>>;

/// A growth, expanded.
#[derive(Clone, Debug, Default)]
pub struct Expanded {
    /// Who reads whom, in place. Every executed node has an entry.
    pub reads: Edges,
    /// Who names whom by `nodes`; a part of `reads`.
    pub named: Edges,
    /// Nodes that refer to a chain of an earlier growth.
    pub earlier: BTreeSet<(NodeId, u32)>,
    /// Nodes that name a step which its chain never executed.
    pub beyond: BTreeSet<NodeId>,
}

/// Expands a growth. `executed` gives the steps that each of its chains executes.
#[must_use]
pub fn expand(growth: &Growth, first_chain: u32, executed: &[u32]) -> Expanded {
    let mut expanded = Expanded::default();
    for (local, chain) in growth.chains.iter().enumerate() {
        let number = first_chain + local as u32;
        for step in 0..executed[local] {
            for stage in 0..chain.stages.len() as u32 {
                let expanding = Expanding { chain, number, first_chain, executed, node: (number, stage, step) };
                expanded.reads.entry(expanding.node).or_default();
                expanding.stage(&mut expanded);
            }
        }
    }
    expanded
}

struct Expanding<'a> {
    chain: &'a Chain,
    number: u32,
    first_chain: u32,
    executed: &'a [u32],
    node: NodeId,
}

impl Expanding<'_> {
    fn stage(&self, into: &mut Expanded) {
        let (_, stage, step) = self.node;
        for (input, source) in self.chain.stages[stage as usize].inputs.iter().enumerate() {
            let fed = self.chain.feedback.iter().find(|feedback| (feedback.to_stage, feedback.input) == (stage, input as u32));
            match fed {
                Some(feedback) if step > 0 => self.read(into, (self.number, feedback.stage, step - 1)),
                _ => self.source(into, source),
            }
        }
    }

    fn source(&self, into: &mut Expanded, source: &Source) {
        let (_, _, step) = self.node;
        match source {
            Source::Steps { of, at } => match self.ended(of.chain) {
                None => self.earlier(into, of.chain),
                Some(end) => match number(*at, step, end) {
                    Some(number) => self.read(into, (of.chain, of.stage, number)),
                    None => drop(into.beyond.insert(self.node)),
                },
            },
            Source::Last(of) => match self.ended(of.chain) {
                None => self.earlier(into, of.chain),
                Some(end) => self.read(into, (of.chain, of.stage, end - 1)),
            },
            Source::Nodes { stage, of, .. } => {
                let named = of[step as usize];
                match self.ended(named.chain) {
                    None => self.earlier(into, named.chain),
                    Some(end) if named.step >= end => drop(into.beyond.insert(self.node)),
                    Some(_) => {
                        let node = (named.chain, *stage, named.step);
                        into.named.entry(self.node).or_default().insert(node);
                        self.read(into, node);
                    }
                }
            }
            Source::Sibling { stage, .. } => self.read(into, (self.number, *stage, step)),
            Source::Many(spans) => {
                for span in spans {
                    let SpanOf::Chain(of) = span.of else { continue };
                    let Some(end) = self.ended(of.chain) else {
                        self.earlier(into, of.chain);
                        continue;
                    };
                    let first = span.at.first + i64::from(step) * i64::from(span.at.stride);
                    let first = if span.at.from_end { i64::from(end) - 1 - first } else { first };
                    // Of a span of its own chain the last row is the last that is there.
                    let last = span.count.map_or(i64::MAX, |count| first + i64::from(count - 1) * i64::from(span.every));
                    for number in (0..i64::from(end)).filter(|number| (first..=last).contains(number)) {
                        if (number - first) % i64::from(span.every) == 0 {
                            self.read(into, (of.chain, of.stage, number as u32));
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// How many steps a chain of this growth executes.
    fn ended(&self, chain: u32) -> Option<u32> {
        chain.checked_sub(self.first_chain).map(|local| self.executed[local as usize])
    }

    fn earlier(&self, into: &mut Expanded, chain: u32) {
        into.earlier.insert((self.node, chain));
    }

    fn read(&self, into: &mut Expanded, node: NodeId) {
        into.reads.entry(self.node).or_default().insert(node);
    }
}

fn number(at: Affine, step: u32, end: u32) -> Option<u32> {
    let meant = at.first + i64::from(step) * i64::from(at.stride);
    let meant = if at.from_end { i64::from(end) - 1 - meant } else { meant };
    u32::try_from(meant).ok().filter(|number| *number < end)
}

/// What each executed node waits for, by the dependencies of the checked growth.
///
/// # Panics
/// If a dependency names a node that does not exist.
#[must_use]
pub fn waits(unfolded: &UnfoldedGrowth, executed: &[u32]) -> Edges {
    let mut edges = Edges::new();
    for (local, chain) in unfolded.chains.iter().enumerate() {
        let number = unfolded.first_chain + local as u32;
        for (position, stage) in chain.stages.iter().enumerate() {
            for step in 0..executed[local] {
                let node = (number, position as u32, step);
                let waiting = edges.entry(node).or_default();
                for dependency in &stage.depends {
                    waiting.extend(waited(unfolded, executed, node, dependency));
                }
            }
        }
    }
    for (producer, waiting) in successors(unfolded) {
        for node in waiting {
            if let Some(waits) = edges.get_mut(&node) {
                waits.insert(producer);
            }
        }
    }
    edges
}

fn waited(unfolded: &UnfoldedGrowth, executed: &[u32], node: NodeId, dependency: &Dependency) -> Vec<NodeId> {
    let (chain, _, step) = node;
    match *dependency {
        Dependency::Previous { stage } => step.checked_sub(1).map(|before| (chain, stage, before)).into_iter().collect(),
        Dependency::Sibling { stage } => vec![(chain, stage, step)],
        Dependency::Step { chain, stage, at } => {
            let end = executed[(chain - unfolded.first_chain) as usize];
            number(at, step, end).map(|number| (chain, stage, number)).into_iter().collect()
        }
        Dependency::Through { chain, stage, at } => {
            let end = i64::from(executed[(chain - unfolded.first_chain) as usize]);
            let last = (at.first + i64::from(step) * i64::from(at.stride)).min(end - 1);
            (0..=last).map(|number| (chain, stage, number as u32)).collect()
        }
        Dependency::End { chain } => {
            let Some(local) = chain.checked_sub(unfolded.first_chain) else { return vec![] };
            let stages = unfolded.chains[local as usize].stages.len() as u32;
            (0..executed[local as usize]).flat_map(|step| (0..stages).map(move |stage| (chain, stage, step))).collect()
        }
        Dependency::Nodes { .. } => vec![],
    }
}

/// Who waits for whom by name, the way the checked growth writes it: from producer to waiting nodes.
///
/// # Panics
/// If offsets and targets do not fit together.
#[must_use]
pub fn successors(unfolded: &UnfoldedGrowth) -> Edges {
    let mut edges = Edges::new();
    for (local, chain) in unfolded.chains.iter().enumerate() {
        for (position, stage) in chain.stages.iter().enumerate() {
            for (step, bounds) in stage.successors.offsets.windows(2).enumerate() {
                let targets = &stage.successors.targets[bounds[0] as usize..bounds[1] as usize];
                let producer = (unfolded.first_chain + local as u32, position as u32, step as u32);
                if !targets.is_empty() {
                    edges.insert(producer, targets.iter().copied().collect());
                }
            }
        }
    }
    edges
}

/// The nodes in an order in which none stands before what it waits for; `pick` chooses among those that could come next. None: there is a
/// cycle.
pub fn order(waits: &Edges, mut pick: impl FnMut(usize) -> usize) -> Option<Vec<NodeId>> {
    let mut after: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    let mut missing: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (node, before) in waits {
        missing.insert(*node, before.len());
        before.iter().for_each(|other| after.entry(*other).or_default().push(*node));
    }
    let mut ready: Vec<NodeId> = missing.iter().filter(|(_, count)| **count == 0).map(|(node, _)| *node).collect();
    let mut order = Vec::with_capacity(waits.len());
    while !ready.is_empty() {
        let node = ready.swap_remove(pick(ready.len()) % ready.len());
        order.push(node);
        for next in after.get(&node).into_iter().flatten() {
            let count = missing.get_mut(next)?;
            *count -= 1;
            if *count == 0 {
                ready.push(*next);
            }
        }
    }
    (order.len() == waits.len()).then_some(order)
}

/// The subgraphs: for each, its nodes.
#[must_use]
pub fn subgraphs(unfolded: &UnfoldedGrowth) -> Vec<BTreeSet<NodeId>> {
    let mut groups: BTreeMap<(u32, u32, u32), BTreeSet<NodeId>> = BTreeMap::new();
    for (local, chain) in unfolded.chains.iter().enumerate() {
        let number = unfolded.first_chain + local as u32;
        for (position, stage) in chain.stages.iter().enumerate() {
            for step in 0..chain.length.bound {
                let group = match &stage.grouping {
                    Grouping::Whole => 0,
                    Grouping::Each => step,
                    Grouping::Components(numbers) => numbers[step as usize],
                };
                groups.entry((number, position as u32, group)).or_default().insert((number, position as u32, step));
            }
        }
    }
    groups.into_values().collect()
}

/// Whether no path leaves the group and comes back.
#[must_use]
pub fn is_convex(group: &BTreeSet<NodeId>, waits: &Edges) -> bool {
    let mut outside: Vec<NodeId> = group.iter().flat_map(|node| &waits[node]).copied().filter(|node| !group.contains(node)).collect();
    let mut seen: BTreeSet<NodeId> = outside.iter().copied().collect();
    while let Some(node) = outside.pop() {
        for before in &waits[&node] {
            if group.contains(before) {
                return false;
            }
            if seen.insert(*before) {
                outside.push(*before);
            }
        }
    }
    true
}

/// Whether every node of the group can be reached from every other over edges within it, either way.
#[must_use]
pub fn is_connected(group: &BTreeSet<NodeId>, waits: &Edges) -> bool {
    let Some(first) = group.first() else { return false };
    let (mut seen, mut open) = (BTreeSet::from([*first]), vec![*first]);
    while let Some(node) = open.pop() {
        let before = waits[&node].iter().copied();
        let after = group.iter().copied().filter(|other| waits[other].contains(&node));
        let near: Vec<NodeId> = before.chain(after).filter(|other| group.contains(other)).collect();
        open.extend(near.into_iter().filter(|other| seen.insert(*other)));
    }
    seen.len() == group.len()
}

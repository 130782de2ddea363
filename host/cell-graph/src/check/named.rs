//! References by name, node to node: who produces for whom, and which steps of a stage they connect to a subgraph.

use super::chain::Building;
use super::draft::Draft;
use super::links;
use crate::graph::Node;
use crate::unfolded::{Dependency, Grouping, Source, UnfoldedStage};

/// One node waits for another by name; both of this growth. Chains count from its first.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedEdge {
    from: (u32, u32, u32),
    to: (u32, u32, u32),
}

impl Draft<'_> {
    /// Collects, for each step of a stage, the distinct nodes of this growth that its inputs name.
    pub(super) fn name_producers(&mut self, building: &mut Building, stage: usize) {
        let own = &mut building.stages[stage];
        if !own.depends.iter().any(|dependency| matches!(dependency, Dependency::Nodes { .. })) {
            return;
        }
        let lists = lists(own);
        let mut producers = Vec::with_capacity(building.bound as usize);
        let mut found: Vec<(u32, u32, u32)> = Vec::new();
        let local = building.chain - self.first_chain;
        self.named.reserve(producers.capacity().saturating_mul(2));
        for step in 0..building.bound {
            found.clear();
            for (producer, of) in &lists {
                let Some(Node { chain, step }) = of.get(step as usize) else { continue };
                let Some(chain) = chain.checked_sub(self.first_chain) else { continue };
                remember(&mut found, (chain, *producer, *step));
            }
            if found.len() > FEW {
                found.sort_unstable();
                found.dedup();
            }
            producers.push(found.len() as u32);
            let to = (local, stage as u32, step);
            self.named.extend(found.iter().map(|from| NamedEdge { from: *from, to }));
        }
        own.named_producers = producers;
    }

    /// Writes down, for every stage that is named, who waits for each of its steps. Edges come in the order of their targets.
    pub(super) fn link_named(&mut self) {
        for edge in &self.named {
            let (chain, stage, step) = edge.from;
            let chain = &mut self.chains[chain as usize];
            let (bound, stage) = (chain.length.bound, &mut chain.stages[stage as usize]);
            let offsets = &mut stage.successors.offsets;
            if offsets.is_empty() {
                offsets.resize(bound as usize + 1, 0);
            }
            offsets[step as usize] += 1;
        }
        if self.named.is_empty() {
            return;
        }
        for stage in self.chains.iter_mut().flat_map(|chain| &mut chain.stages) {
            let successors = &mut stage.successors;
            let mut total = 0;
            for offset in &mut successors.offsets {
                total += std::mem::replace(offset, total);
            }
            successors.targets.resize(total as usize, (0, 0, 0));
        }
        for edge in &self.named {
            let (chain, stage, step) = edge.from;
            let successors = &mut self.chains[chain as usize].stages[stage as usize].successors;
            let next = &mut successors.offsets[step as usize];
            let (chain, stage, step) = edge.to;
            successors.targets[*next as usize] = (self.first_chain + chain, stage, step);
            *next += 1;
        }
        for stage in self.chains.iter_mut().flat_map(|chain| &mut chain.stages) {
            let offsets = &mut stage.successors.offsets;
            if let Some(steps) = offsets.len().checked_sub(1) {
                offsets.copy_within(..steps, 1);
                offsets[0] = 0;
            }
        }
    }

    /// Decides the subgraphs of the chain's stages.
    ///
    /// Chains refer to earlier chains only, so a path that leaves a stage can come back only through other stages of the same chain. Where
    /// one does, no two steps of the stage are convex together; elsewhere all that is connected within the stage is.
    pub(super) fn group(&self, building: &mut Building, named_from: usize) {
        let local = building.chain - self.first_chain;
        let named = || self.named[named_from..].iter().filter(|edge| edge.from.0 == local).map(|edge| (edge.from, edge.to));
        let several = building.stages.len() > 1;
        let cycles = if several { links::on_cycles(&building.stages, building.chain, named().map(|(from, to)| (from.1, to.1))) } else { 0 };
        let own = building.chain;
        for (position, stage) in building.stages.iter_mut().enumerate() {
            // A window over the stage itself connects more steps than those that its subgraphs would be made of.
            let sees_itself = |waits: &Dependency| matches!(waits, Dependency::Through { chain, stage, .. } if (*chain, *stage) == (own, position as u32));
            let alone = stage.depends.iter().any(sees_itself);
            if alone || cycles >> position & 1 == 1 || building.bound == 1 {
                continue;
            }
            let number = position as u32;
            if stage.depends.contains(&Dependency::Previous { stage: number }) {
                stage.grouping = Grouping::Whole;
            } else if !stage.named_producers.is_empty() {
                let edges = named().filter(|(from, to)| from.1 == number && to.1 == number);
                stage.grouping = components(building.bound, edges.map(|(from, to)| (from.2, to.2)));
            }
        }
    }
}

const FEW: usize = 8;

/// Stages and the nodes of them that a stage's inputs name, step by step. Inputs that name the same nodes (h and c of a child) count once.
fn lists(stage: &UnfoldedStage) -> Vec<(u32, &[Node])> {
    let mut lists: Vec<(u32, &[Node])> = Vec::with_capacity(FEW);
    for input in &stage.inputs {
        if let Source::Nodes { stage, of, .. } = &input.source
            && (lists.len() > FEW || !lists.contains(&(*stage, of.as_slice())))
        {
            lists.push((*stage, of));
        }
    }
    lists
}

/// Adds a node once; long lists are sorted afterwards.
fn remember(found: &mut Vec<(u32, u32, u32)>, node: (u32, u32, u32)) {
    if found.len() > FEW || !found.contains(&node) {
        found.push(node);
    }
}

/// Connected components of so many steps.
fn components(steps: u32, edges: impl Iterator<Item = (u32, u32)>) -> Grouping {
    let mut parent: Vec<u32> = (0..steps).collect();
    let mut groups = steps;
    for (from, to) in edges {
        let (left, right) = (root(&mut parent, from), root(&mut parent, to));
        if left != right {
            parent[left.max(right) as usize] = left.min(right);
            groups -= 1;
        }
    }
    if groups == steps {
        return Grouping::Each;
    }
    if groups == 1 {
        return Grouping::Whole;
    }
    // The root is the component's first step, so its number is known before any other step asks for it.
    let mut numbers = vec![0; steps as usize];
    let mut next = 0;
    for step in 0..steps {
        let root = root(&mut parent, step);
        if root == step {
            numbers[step as usize] = next;
            next += 1;
        } else {
            numbers[step as usize] = numbers[root as usize];
        }
    }
    Grouping::Components(numbers)
}

fn root(parent: &mut [u32], mut step: u32) -> u32 {
    while parent[step as usize] != step {
        let above = parent[step as usize];
        parent[step as usize] = parent[above as usize];
        step = above;
    }
    step
}

//! Requests expanded node by node: what each node waits for, by the letter of the interface. Slow, and shared by oracle and simulation.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, Grouping, Run, RunOf, Source, UnfoldedChain, UnfoldedStage};

/// A node of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId {
    pub(crate) chain: u32,
    pub(crate) stage: u32,
    pub(crate) step: u32,
}

/// Something a node waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A node; of a chain that may stop only once it is known to be executed (`known`).
    Node { node: NodeId, inside: bool, known: bool },
    /// A chain's end.
    End(u32),
    /// That a chain, which has ended, executed that step: the last of `counted`, from its first or from its last.
    Counted { chain: u32, counted: u32 },
    /// The step of the chain whose length it follows is known to be executed.
    Followed(NodeId),
}

/// A request's growths.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub(crate) growths: Vec<Arc<UnfoldedGrowth>>,
}

impl Graph {
    pub(crate) fn chains(&self) -> u32 {
        self.growths.iter().map(|growth| growth.chains.len() as u32).sum()
    }

    pub(crate) fn growth_of(&self, chain: u32) -> &UnfoldedGrowth {
        self.growths.iter().rev().find(|growth| growth.first_chain <= chain).expect("a chain of this request")
    }

    pub(crate) fn chain(&self, chain: u32) -> &UnfoldedChain {
        let growth = self.growth_of(chain);
        &growth.chains[(chain - growth.first_chain) as usize]
    }

    pub(crate) fn stage(&self, chain: u32, stage: u32) -> &UnfoldedStage {
        &self.chain(chain).stages[stage as usize]
    }

    /// The chain whose stop decides how many steps this one executes.
    pub(crate) fn root(&self, chain: u32) -> Option<u32> {
        let mut at = chain;
        loop {
            let graph = self.chain(at);
            if graph.stop.is_some() {
                return Some(at);
            }
            at = graph.length.like?;
        }
    }

    /// The subgraph of a node, named by its smallest step.
    pub(crate) fn subgraph(&self, node: NodeId) -> (u32, u32, u32) {
        let first = match &self.stage(node.chain, node.stage).grouping {
            Grouping::Whole => 0,
            Grouping::Each => node.step,
            Grouping::Components(groups) => groups.iter().position(|group| *group == groups[node.step as usize]).unwrap_or(0) as u32,
        };
        (node.chain, node.stage, first)
    }

    pub(crate) fn nodes(&self, chain: u32) -> impl Iterator<Item = NodeId> + use<> {
        let (stages, bound) = (self.chain(chain).stages.len() as u32, self.chain(chain).length.bound);
        (0..stages).flat_map(move |stage| (0..bound).map(move |step| NodeId { chain, stage, step }))
    }

    pub(crate) fn needs(&self, node: NodeId) -> Vec<Need> {
        let growth = self.growth_of(node.chain);
        let graph = self.stage(node.chain, node.stage);
        let mut needs = Vec::new();
        let mut add = |other: NodeId, by_step: bool| {
            let inside = self.subgraph(other) == self.subgraph(node);
            let known = by_step && other.chain != node.chain && self.root(other.chain).is_some();
            needs.push(Need::Node { node: other, inside, known });
        };
        let mut ends = Vec::new();
        for depends in &graph.depends {
            match depends {
                Dependency::Previous { .. } if node.step == 0 => {}
                Dependency::Previous { stage } => add(NodeId { stage: *stage, step: node.step - 1, ..node }, false),
                Dependency::Sibling { stage } => add(NodeId { stage: *stage, ..node }, false),
                Dependency::Step { chain, stage, at } => {
                    let named = at.first + i64::from(node.step) * i64::from(at.stride);
                    let named = if at.from_end { i64::from(self.chain(*chain).length.bound) - 1 - named } else { named };
                    add(NodeId { chain: *chain, stage: *stage, step: u32::try_from(named).expect("a step of the chain") }, true);
                }
                Dependency::Through { chain, stage, at } => {
                    let last = at.first + i64::from(node.step) * i64::from(at.stride);
                    for step in 0..=last.min(i64::from(self.chain(*chain).length.bound) - 1) {
                        add(NodeId { chain: *chain, stage: *stage, step: step as u32 }, true);
                    }
                }
                Dependency::End { chain } => ends.push(*chain),
                Dependency::Nodes { input } => {
                    let Source::Nodes { stage, of, .. } = &graph.inputs[*input as usize].source else { panic!("named nodes") };
                    let Some(named) = of.get(node.step as usize) else { continue };
                    if named.chain < growth.first_chain {
                        ends.push(named.chain);
                    } else {
                        add(NodeId { chain: named.chain, stage: *stage, step: named.step }, true);
                    }
                }
            }
        }
        needs.extend(ends.iter().copied().map(Need::End));
        for input in &graph.inputs {
            let named = match &input.source {
                Source::Steps { chain, at, .. } => Some((*chain, at.at(node.step).expect("a step of the chain"))),
                Source::Nodes { of, .. } => of.get(node.step as usize).map(|named| (named.chain, named.step)),
                _ => None,
            };
            let counted = named.filter(|(chain, _)| ends.contains(chain));
            needs.extend(counted.map(|(chain, number)| Need::Counted { chain, counted: number + 1 }));
        }
        if let Some(root) = self.root(node.chain).filter(|root| *root != node.chain) {
            let stage = self.chain(root).stop.map_or(0, |(stage, _)| stage);
            needs.push(Need::Followed(NodeId { chain: root, stage, step: node.step }));
        }
        needs
    }

    /// Nodes whose rows a node sees in its windows and spans. `end` is the number of steps of a chain.
    pub(crate) fn seen(&self, node: NodeId, end: impl Fn(u32) -> u32) -> Vec<NodeId> {
        let mut seen = Vec::new();
        for run in self.stage(node.chain, node.stage).inputs.iter().flat_map(|input| input.source.runs()) {
            let RunOf::Chain { chain, stage, .. } = run.of else { continue };
            for number in self.rows(run, node.step, &|chain, _| end(chain)) {
                let (mut chain, mut number) = (chain, number);
                while number < 0 {
                    chain = self.chain(chain).continues.expect("rows before the first are of another chain");
                    number += i64::from(end(chain));
                }
                seen.push(NodeId { chain, stage, step: number as u32 });
            }
        }
        seen
    }

    /// Rows that a node sees in its spans: those of the ragged input that sees most. `end` is the number of steps of a stage.
    pub(crate) fn rows_seen(&self, node: NodeId, end: &dyn Fn(u32, u32) -> u32) -> u64 {
        let rows = |run: &Run| match run.of {
            RunOf::Chain { .. } => self.rows(run, node.step, end).len() as u64,
            // Rows of earlier tensors do not count.
            RunOf::Tensor(_) => {
                u64::from(run.count).saturating_sub((-first(run, node.step, 0)).max(0).unsigned_abs().div_ceil(run.every.into()))
            }
        };
        let spans = self.stage(node.chain, node.stage).inputs.iter().filter(|input| matches!(input.source, Source::Span(_)));
        spans.map(|input| input.source.runs().iter().map(rows).sum()).max().unwrap_or(0)
    }

    /// The numbers of a chain's rows in a run. Those before 0 are of the chains that it continues.
    fn rows(&self, run: &Run, step: u32, end: &dyn Fn(u32, u32) -> u32) -> Vec<i64> {
        let RunOf::Chain { chain, stage, .. } = run.of else { return Vec::new() };
        let (before, end) = (i64::from(self.stage(chain, stage).retention.before()), i64::from(end(chain, stage)));
        let is_of = |number: &i64| {
            let behind = number - first(run, step, end);
            behind >= 0 && behind % i64::from(run.every) == 0 && behind / i64::from(run.every) < i64::from(run.count)
        };
        (-before..end).filter(is_of).collect()
    }
}

/// The number of a run's first row.
fn first(run: &Run, step: u32, end: i64) -> i64 {
    let first = run.at.first + i64::from(step) * i64::from(run.at.stride);
    if run.at.from_end { end - 1 - first } else { first }
}

/// Stages that a stage of a chain reads in place: their chains and numbers.
pub(crate) fn reads(own: u32, stage: &UnfoldedStage) -> impl Iterator<Item = (u32, u32)> {
    stage.inputs.iter().flat_map(move |input| {
        let source = match &input.source {
            Source::Steps { chain, stage, .. } | Source::Last { chain, stage, .. } => vec![(*chain, *stage)],
            Source::Sibling { stage, .. } => vec![(own, *stage)],
            Source::Nodes { stage, of, .. } => of.iter().map(|node| (node.chain, *stage)).collect(),
            source => {
                let seen = source.runs().iter().filter_map(|run| match run.of {
                    RunOf::Chain { chain, stage, .. } => Some((chain, stage)),
                    RunOf::Tensor(_) => None,
                });
                seen.collect()
            }
        };
        source.into_iter().chain(input.feedback.map(|(stage, _)| (own, stage)))
    })
}

//! Which chains may be cancelled: only those that nobody reads any more. How far a cancelled chain had come depends on what else the host was
//! doing; so would whatever reads it, or ends where it does, and with that the response and what the plugin is shown.

use std::collections::BTreeSet;

use super::error::GraphFault;
use crate::graph::Node;
use crate::unfolded::{Dependency, ResponseFrom, Source, UnfoldedChain, UnfoldedGrowth, UnfoldedStage};

/// Links that are remembered; when there are more, the oldest chains are forgotten, and nothing that old can be cancelled any more.
const LINKS_MAX: usize = 1 << 16;

/// The reader of what the response is made of: no chain has that number.
const RESPONSE: u32 = u32::MAX;

/// Who reads the chains of a request's growths so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Cancelling {
    /// A chain, and one that reads it or ends where it does, or the response.
    links: BTreeSet<(u32, u32)>,
    /// Chains before this one are forgotten.
    from: u32,
}

impl Cancelling {
    /// Whether those chains (ascending) may be cancelled: whoever reads them is cancelled too, or has been.
    pub(super) fn check(&self, cancelled: &[u32]) -> Result<(), GraphFault> {
        for &chain in cancelled {
            if chain < self.from {
                return Err(GraphFault::CancelsForgotten { chain, from: self.from });
            }
            // The response last, so that it is named before others.
            let mut readers = self.links.range((chain, 0)..=(chain, RESPONSE)).rev().map(|(_, reader)| *reader);
            match readers.find(|reader| cancelled.binary_search(reader).is_err()) {
                None => {}
                Some(RESPONSE) => return Err(GraphFault::CancelsAnswer { chain }),
                Some(reader) => return Err(GraphFault::CancelsRead { chain, reader }),
            }
        }
        Ok(())
    }

    /// Takes in a growth that was found sound, and after which others may come.
    pub(super) fn grow(&mut self, growth: &UnfoldedGrowth) {
        if !growth.cancel.is_empty() {
            self.links.retain(|(_, reader)| growth.cancel.binary_search(reader).is_err());
        }
        for (chain, number) in growth.chains.iter().zip(growth.first_chain..) {
            reads(chain, growth.first_chain).into_iter().filter(|read| *read != number).for_each(|read| self.add(read, number));
        }
        for response in &growth.outputs {
            match &response.from {
                ResponseFrom::Last(of) | ResponseFrom::All(of) => self.add(of.0, RESPONSE),
                ResponseFrom::Listed(list) => list.iter().for_each(|of| self.add(of.0, RESPONSE)),
            }
        }
    }

    fn add(&mut self, chain: u32, reader: u32) {
        if chain >= self.from {
            self.links.insert((chain, reader));
        }
        if self.links.len() > LINKS_MAX
            && let Some((oldest, _)) = self.links.pop_first()
        {
            self.from = oldest + 1;
            self.links = self.links.split_off(&(self.from, 0));
        }
    }
}

/// The chains that a chain reads, or with which it ends; each once.
pub(super) fn reads(chain: &UnfoldedChain, first_chain: u32) -> Vec<u32> {
    let mut reads: Vec<u32> = chain.length.like.into_iter().collect();
    for stage in &chain.stages {
        for depends in &stage.depends {
            match depends {
                Dependency::Previous { .. } | Dependency::Sibling { .. } => {}
                Dependency::Step { chain, .. } | Dependency::Through { chain, .. } | Dependency::End { chain } => reads.push(*chain),
                // Those of earlier growths are waited for by their ends.
                Dependency::Nodes { input } => {
                    for node in named(stage, *input).iter().filter(|node| node.chain >= first_chain) {
                        if reads.last() != Some(&node.chain) {
                            reads.push(node.chain);
                        }
                    }
                }
            }
        }
    }
    reads.sort_unstable();
    reads.dedup();
    reads
}

fn named(stage: &UnfoldedStage, input: u32) -> &[Node] {
    match stage.inputs.get(input as usize).map(|input| &input.source) {
        Some(Source::Nodes { of, .. }) => of,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_has_its_bound() {
        let mut cancelling = Cancelling::default();
        (0..=LINKS_MAX as u32).for_each(|run| cancelling.add(2 * run + 1, RESPONSE));
        assert_eq!(cancelling.links.len(), LINKS_MAX);
        assert_eq!(cancelling.check(&[1]), Err(GraphFault::CancelsForgotten { chain: 1, from: 2 }));
        assert_eq!(cancelling.check(&[2, 4]), Ok(()));
        assert_eq!(cancelling.check(&[2, 3]), Err(GraphFault::CancelsAnswer { chain: 3 }));
    }

    #[test]
    fn what_many_read_is_forgotten_at_once() {
        let mut cancelling = Cancelling::default();
        (1..=LINKS_MAX as u32 + 1).for_each(|reader| cancelling.add(0, reader));
        assert_eq!(cancelling.links.len(), 0);
        assert_eq!(cancelling.check(&[0]), Err(GraphFault::CancelsForgotten { chain: 0, from: 1 }));
        assert_eq!(cancelling.check(&[1]), Ok(()));
    }
}

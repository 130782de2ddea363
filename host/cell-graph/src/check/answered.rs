//! Which chains the response is made of. Such a chain cannot be cancelled: how far it had come would depend on what else the host was doing,
//! and so would the answer.

use std::collections::BTreeMap;

use super::error::GraphFault;

/// Runs of chains that are remembered; when there are more, the oldest are forgotten, and nothing that old can be cancelled any more.
const RUNS_MAX: usize = 1 << 16;

/// Chains of a request's growths so far that its response is made of.
#[derive(Clone, Debug, Default)]
pub(super) struct Answered {
    /// First chain and the one after the last, of each run.
    runs: BTreeMap<u32, u32>,
    /// Chains before this one are forgotten.
    from: u32,
}

impl Answered {
    /// Whether those chains may be cancelled.
    pub(super) fn check(&self, cancelled: &[u32]) -> Result<(), GraphFault> {
        for &chain in cancelled {
            if chain < self.from {
                return Err(GraphFault::CancelsForgotten { chain, from: self.from });
            }
            if self.runs.range(..=chain).next_back().is_some_and(|(_, end)| chain < *end) {
                return Err(GraphFault::CancelsAnswer { chain });
            }
        }
        Ok(())
    }

    pub(super) fn add(&mut self, chain: u32) {
        let (mut first, mut end) = (chain, chain.saturating_add(1));
        if let Some((&before, &until)) = self.runs.range(..=chain).next_back()
            && until >= chain
        {
            (first, end) = (before, end.max(until));
        }
        if let Some(until) = self.runs.remove(&end) {
            end = until;
        }
        self.runs.insert(first, end);
        if self.runs.len() > RUNS_MAX
            && let Some((_, end)) = self.runs.pop_first()
        {
            self.from = self.from.max(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::generate::Rng;

    #[test]
    fn runs_hold_what_was_added() {
        let mut rng = Rng::new(1);
        let (mut answered, mut wanted) = (Answered::default(), BTreeSet::new());
        for _ in 0..150 {
            let chain = rng.below(200) as u32;
            answered.add(chain);
            wanted.insert(chain);
            for chain in 0..=200 {
                assert_eq!(answered.check(&[chain]).is_err(), wanted.contains(&chain), "{chain} of {wanted:?}: {answered:?}");
            }
        }
        assert!(answered.runs.len() < wanted.len());
    }

    #[test]
    fn what_is_remembered_has_its_bound() {
        let mut answered = Answered::default();
        (0..=RUNS_MAX as u32).for_each(|run| answered.add(2 * run + 1));
        assert_eq!(answered.runs.len(), RUNS_MAX);
        assert_eq!(answered.check(&[1]), Err(GraphFault::CancelsForgotten { chain: 1, from: 2 }));
        assert_eq!(answered.check(&[2, 4]), Ok(()));
        assert_eq!(answered.check(&[2, 3]), Err(GraphFault::CancelsAnswer { chain: 3 }));
    }
}

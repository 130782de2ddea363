//! Words on the device that say how many steps a chain executes: one for each chain that may stop, and each that such a one follows, of a lane of the worker.
//!
//! The host's own numbers ([`cellwright_backend::PlacedGrowth::executed`]) change when a task completes; these change on the device when the step runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::{Lane, PlacedGrowth};

/// A chain, by its growth's place in memory (which a lane keeps) and its position in it.
type ChainKey = (usize, u32);

/// A word, and whose it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) number: u32,
    key: ChainKey,
}

#[derive(Debug, Default)]
pub(super) struct Words {
    known: BTreeMap<ChainKey, (u32, u32)>,
    free: Vec<u32>,
    count: u32,
    /// Words whose chains are new, and what they begin with.
    pub(super) begun: BTreeMap<u32, u32>,
}

impl Words {
    /// How many there are.
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Those of a lane's chain and of the one that it follows; none if it runs to its bound whatever it computes.
    pub(super) fn join(&mut self, lane: &Lane) -> Option<[Word; 2]> {
        if !lane.chain().may_stop() {
            return None;
        }
        let growth = &lane.growth;
        // A chain of an earlier growth has ended before this one begins: what the host knows of it is all there is.
        let followed = lane.chain().length.like.and_then(|like| like.checked_sub(growth.growth.first_chain)).unwrap_or(lane.chain);
        Some([lane.chain, followed].map(|chain| self.word(growth, chain)))
    }

    fn word(&mut self, growth: &Arc<PlacedGrowth>, chain: u32) -> Word {
        let key = (Arc::as_ptr(growth) as usize, chain);
        if let Some((word, users)) = self.known.get_mut(&key) {
            *users += 1;
            return Word { number: *word, key };
        }
        let word = self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        });
        let value = growth.executed.get(chain as usize).map_or(0, |executed| executed.load(Ordering::Acquire));
        self.begun.insert(word, value);
        self.known.insert(key, (word, 1));
        Word { number: word, key }
    }

    pub(super) fn leave(&mut self, words: &[Word; 2]) {
        for Word { key, .. } in words {
            let Some((word, users)) = self.known.get_mut(key) else { continue };
            *users -= 1;
            if *users == 0 {
                self.free.push(*word);
                self.known.remove(key);
            }
        }
    }
}

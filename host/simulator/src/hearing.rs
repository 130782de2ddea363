//! When the scheduler hears of what has happened: its thread may have to wait for a processor first.

use cellwright_cell_graph::Random;

use crate::device::Handover;

/// What the scheduler has not heard of yet. The first that happens says how long the wait is; what happens meanwhile is heard of at its end too.
#[derive(Debug)]
pub(crate) struct Hearing<T> {
    handover: Handover,
    random: Random,
    /// In order, with when it happened.
    unheard: Vec<(u64, T)>,
    at_ns: Option<u64>,
}

impl<T> Hearing<T> {
    /// Nothing has happened; the seed is for how long waits are.
    pub(crate) const fn new(handover: Handover, seed: u64) -> Self {
        Self { handover, random: Random::new(seed), unheard: Vec::new(), at_ns: None }
    }

    /// From now on waits are so long.
    pub(crate) fn set_handover(&mut self, handover: &Handover) {
        self.handover.clone_from(handover);
    }

    pub(crate) fn happened(&mut self, at_ns: u64, what: T) {
        self.unheard.push((at_ns, what));
    }

    /// When it hears of it, if that is known.
    pub(crate) const fn at_ns(&self) -> Option<u64> {
        self.at_ns
    }

    /// Somebody tells it now, so that it does not wait.
    pub(crate) const fn at_once(&mut self, now: u64) {
        self.at_ns = Some(now);
    }

    /// All that happened, if that is heard of by now, while every device is at work (`busy`) or not. To be given back with [`Self::heard`].
    pub(crate) fn hears(&mut self, now: u64, busy: impl FnOnce() -> bool) -> Option<Vec<(u64, T)>> {
        if self.unheard.is_empty() {
            return None;
        }
        let Self { handover, random, at_ns, .. } = self;
        let at = *at_ns.get_or_insert_with(|| now.saturating_add(handover.draw(busy(), random)));
        (at <= now).then(|| {
            self.at_ns = None;
            std::mem::take(&mut self.unheard)
        })
    }

    /// The list again, for what happens next.
    pub(crate) fn heard(&mut self, mut list: Vec<(u64, T)>) {
        list.clear();
        self.unheard = list;
    }
}

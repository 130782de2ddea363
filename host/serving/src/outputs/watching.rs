//! What a continuation watches, and when there is enough of it to call the plugin.
//!
//! A value may arrive for each of a million nodes, and a plugin may watch thousands of chains: so it is counted how many of them must bring more,
//! and a value changes that count for its own output alone.

use std::collections::BTreeMap;
use std::ops::Range;

use cellwright_cell_graph::graph::Pace;
use cellwright_cell_graph::unfolded::Watch;

use super::{Key, Outputs};
use crate::join::Piece;

/// What the plugin waits to see.
#[derive(Debug)]
pub(super) struct Watching {
    /// In the plugin's order, which may name one twice.
    pub(super) keys: Vec<Key>,
    pace: Pace,
    /// How many different ones must bring more before the plugin can be called.
    awaited: usize,
    /// Those whose end is known when a chain with a stop has ended, by that chain.
    by_root: BTreeMap<u32, Vec<Key>>,
    /// Everything has been shown.
    over: bool,
}

impl Outputs {
    /// Watches what a growth says, and nothing else any more.
    pub(super) fn watch(&mut self, next: Option<&Watch>) {
        for key in self.watching.take().iter().flat_map(|watching| &watching.keys) {
            if let Some(column) = self.columns.get_mut(key) {
                column.awaited = false;
            }
        }
        let Some(next) = next else { return };
        let mut keys = next.outputs.clone();
        keys.sort_unstable();
        keys.dedup();
        let mut by_root: BTreeMap<u32, Vec<Key>> = BTreeMap::new();
        for key in keys {
            if let Some(root) = self.chains.get(&key.0).and_then(|end| end.awaited(key.0)) {
                by_root.entry(root).or_default().push(key);
            }
        }
        self.watching = Some(Watching { keys: next.outputs.clone(), pace: next.pace, awaited: 0, by_root, over: false });
        self.await_news();
    }

    /// Counts anew what must bring more.
    fn await_news(&mut self) {
        let Some(mut watching) = self.watching.take() else { return };
        watching.awaited = 0;
        for key in &watching.keys {
            let brings = self.brings_enough(key, watching.pace);
            if let Some(column) = self.columns.get_mut(key) {
                watching.awaited += usize::from(!brings && !column.awaited);
                column.awaited = !brings;
            }
        }
        self.watching = Some(watching);
    }

    /// More of an output arrived, or its end became known.
    pub(super) fn look_at(&mut self, key: &Key) {
        let Some(pace) = self.watching.as_ref().map(|watching| watching.pace) else { return };
        if !self.columns.get(key).is_some_and(|column| column.awaited) || !self.brings_enough(key, pace) {
            return;
        }
        if let (Some(column), Some(watching)) = (self.columns.get_mut(key), self.watching.as_mut()) {
            column.awaited = false;
            watching.awaited -= 1;
        }
    }

    /// A chain with a stop has ended.
    pub(super) fn look_at_followers(&mut self, root: u32) {
        let keys = self.watching.as_mut().and_then(|watching| watching.by_root.remove(&root));
        keys.iter().flatten().for_each(|key| self.look_at(key));
    }

    /// Whether the plugin can be called as far as that output goes.
    fn brings_enough(&self, key: &Key, pace: Pace) -> bool {
        // The checks of growths see to it that what is watched is there.
        let (Some((until, ended)), Some(column)) = (self.arrived(key), self.columns.get(key)) else { return true };
        ended || matches!(pace, Pace::Every(steps) if until.saturating_sub(column.seen) >= steps.max(1))
    }

    /// Whether there is something to show the plugin.
    pub(crate) fn is_due(&self) -> bool {
        self.watching.as_ref().is_some_and(|watching| watching.awaited == 0 && !watching.over && !watching.keys.is_empty())
    }

    /// What the plugin is to be shown now, if anything. It is shown once.
    pub(crate) fn watched(&mut self) -> Option<Vec<Piece>> {
        if !self.is_due() {
            return None;
        }
        let mut watching = self.watching.take()?;
        watching.over = watching.keys.iter().all(|key| self.arrived(key).is_none_or(|(_, ended)| ended));
        let news: Vec<Range<u32>> = watching.keys.iter().map(|key| self.news(key)).collect();
        let shown = watching.keys.iter().zip(&news).filter_map(|(key, news)| Some(self.columns.get(key)?.stacked(news.clone())));
        let shown = shown.collect();
        for (key, news) in watching.keys.iter().zip(news) {
            if let Some(column) = self.columns.get_mut(key) {
                column.seen = news.end;
            }
        }
        self.watching = Some(watching);
        self.await_news();
        Some(shown)
    }

    /// Steps of an output that the plugin has not seen.
    fn news(&self, key: &Key) -> Range<u32> {
        let until = self.arrived(key).map_or(0, |(until, _)| until);
        self.columns.get(key).map_or(0, |column| column.seen).min(until)..until
    }

    /// Whether the plugin has been shown all it asked for, so that without a new growth the request ends.
    pub(crate) fn watch_is_over(&self) -> bool {
        self.watching.as_ref().is_none_or(|watching| watching.over || watching.keys.is_empty())
    }

    /// Whether the continuation waits for input (sessions).
    pub(crate) fn waits_for_input(&self) -> bool {
        self.watching.as_ref().is_some_and(|watching| watching.keys.is_empty())
    }
}

//! Series: each chain continues a chain of an earlier growth.
//!
//! The rows of a series lie in a ring. A chain has at most as many steps as the ring has places, and
//! no step of its growth sees a row that the growth may overwrite. So no step waits for a place. A
//! chain that continues another starts after all readers of the other in earlier growths.

use std::collections::BTreeSet;

use super::cancelling::reads;
use super::chain::Building;
use super::draft::{Draft, DraftSeries, KeptChain, KeptSeries, Start, Whereabouts, limit};
use super::error::GraphFault;
use crate::graph::{Chain, Extent, Series};
use crate::unfolded::{Dependency, Retention, UnfoldedChain};

/// Chains that read one which is continued, at most.
pub(super) const READERS_MAX: usize = 256;

impl Draft<'_> {
    /// Checks a chain's place in a series.
    pub(super) fn series_of(&self, chain: &Chain) -> Result<Option<DraftSeries>, GraphFault> {
        let Some(series) = chain.series else { return Ok(None) };
        let Extent::Fixed(steps) = chain.length else { return Err(GraphFault::SeriesLike) };
        let (places, starts) = match series {
            Series::Begins(places) => (places, vec![Some(Start::default()); chain.stages.len()]),
            Series::Continues(of) => {
                let (Whereabouts::Earlier, Some(kept)) = self.find_chain(of)? else {
                    return Err(GraphFault::ContinuesHere { chain: of });
                };
                let series = kept.series.as_ref().ok_or(GraphFault::NoSeries { chain: of })?;
                if kept.may_stop {
                    return Err(GraphFault::ContinuesStop { chain: of });
                }
                let by = self.continued.partition_point(|(chain, _)| *chain < of);
                if self.continued.get(by + 1).is_some_and(|(next, _)| *next == of) {
                    return Err(GraphFault::ContinuedTwice { chain: of });
                }
                if !chain.stages.iter().map(|stage| stage.cell).eq(kept.cells.iter().copied()) {
                    return Err(GraphFault::OtherCells { chain: of });
                }
                (series.places, series.next.clone())
            }
        };
        let most = u32::try_from(self.limits.nodes_max).unwrap_or(u32::MAX);
        limit("rows in its series", places as usize, most as usize)?;
        if steps > places {
            return Err(GraphFault::SeriesShort { steps, rows: places });
        }
        Ok(Some(DraftSeries { places, starts }))
    }

    /// A chain that goes on waits for the one that it continues, and for all that read rows of it.
    pub(super) fn wait_for_series(&self, building: &mut Building, of: u32) -> Result<(), GraphFault> {
        let Some((_, Some(KeptChain { series: Some(kept), .. }))) = self.find_chain(of).ok() else { return Ok(()) };
        limit("chains that read the one it continues", kept.readers.len(), READERS_MAX)?;
        for (stage, _) in building.stages.iter_mut().zip(&kept.next).filter(|(_, next)| next.is_some()) {
            let ends = std::iter::once(of).chain(kept.readers.iter().copied());
            stage.depends.extend(ends.map(|chain| Dependency::End { chain }));
        }
        Ok(())
    }

    /// The facts about a kept chain of this growth that later growths need.
    pub(super) fn kept_series(&self, local: usize) -> Option<KeptSeries> {
        let series = self.series.get(&local)?;
        let (chain, bound) = (&self.chains[local], self.facts[local].bound);
        let held = |(stage, start): (usize, &Option<Start>)| start.filter(|_| is_ring(chain, stage));
        let held: Vec<Option<Start>> = series.starts.iter().enumerate().map(held).collect();
        let next = |start: &Start| Start {
            first: ((u64::from(start.first) + u64::from(bound)) % u64::from(series.places)) as u32,
            before: start.before.saturating_add(bound).min(series.places),
        };
        Some(KeptSeries {
            places: series.places,
            before: held.iter().map(|start| start.map(|start| start.before)).collect(),
            next: held.iter().map(|start| start.as_ref().map(next)).collect(),
            readers: self.readers(&[Some(self.first_chain + local as u32), chain.continues], self.first_chain + local as u32),
        })
    }

    /// Chains of this growth that read one of those, but for `own`: one more at most than may be.
    pub(super) fn readers(&self, read: &[Option<u32>], own: u32) -> Vec<u32> {
        let all = read.iter().flatten().filter_map(|chain| self.read_by.get(chain)).flatten();
        all.copied().filter(|reader| *reader != own).take(READERS_MAX + 1).collect()
    }

    /// Records the readers of every chain that a later growth may continue.
    pub(super) fn note_readers(&mut self) {
        let kept = self.kept.iter().filter(|kept| kept.series.is_some()).map(|kept| kept.chain);
        let own = self.series.keys().map(|local| self.first_chain + *local as u32);
        let watched: BTreeSet<u32> = kept.chain(own).collect();
        if watched.is_empty() {
            return;
        }
        for (chain, number) in self.chains.iter().zip(self.first_chain..) {
            for read in reads(chain, self.first_chain).into_iter().filter(|read| watched.contains(read)) {
                self.read_by.entry(read).or_default().push(number);
            }
        }
    }

    /// Sets the retention of stages in a series. All readers are known by then.
    pub(super) fn finish_series(&mut self) {
        for (local, DraftSeries { places, starts }) in &self.series {
            let chain = &mut self.chains[*local];
            for (stage, start) in starts.iter().enumerate() {
                if let Some(Start { first, before }) = start.filter(|_| is_ring(chain, stage)) {
                    chain.stages[stage].retention = Retention::Ring { places: *places, first, before };
                }
            }
        }
    }
}

/// Whether a stage of a chain in a series is held in a ring: if it continues one, or any step may read it.
fn is_ring(chain: &UnfoldedChain, stage: usize) -> bool {
    chain.continues.is_some() || chain.stages[stage].retention == Retention::All
}

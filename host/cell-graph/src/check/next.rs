//! Continuations: what a plugin wants to see, and what later growths may still refer to.

use super::draft::{Draft, KeptChain, Whereabouts, limit};
use super::error::{GraphError, GraphFault, GraphPlace};
use super::response::triple;
use super::series::READERS_MAX;
use crate::graph::{Continuation, OutputRef, Pace};
use crate::unfolded::{Delivery, Retention, Watch};

impl Draft<'_> {
    /// Checks a continuation; gives it, and the chains that later growths may refer to.
    pub(super) fn continuation(&mut self, next: Continuation, first_tensor: u32) -> Result<(Watch, Vec<KeptChain>), GraphError> {
        let at = |fault| GraphError::new(GraphPlace::Next, fault);
        let Continuation { watch, pace, mut keep, keep_tensors_from, state } = next;
        limit("bytes of state", state.len(), self.limits.state_bytes_max).map_err(at)?;
        limit("watched outputs", watch.len(), self.limits.chains_max).map_err(at)?;
        limit("kept outputs", keep.len(), self.limits.chains_max).map_err(at)?;
        if pace == Pace::Every(0) {
            return Err(at(GraphFault::PaceZero));
        }
        let end = u64::from(self.first_tensor) + self.tensors.len() as u64;
        if keep_tensors_from < first_tensor || u64::from(keep_tensors_from) > end {
            return Err(at(GraphFault::KeepTensors { from: keep_tensors_from, first: first_tensor, end }));
        }
        for (position, of) in watch.iter().enumerate() {
            self.watch(*of).map_err(|fault| GraphError::new(GraphPlace::Watch { position }, fault))?;
        }
        for (position, of) in keep.iter().enumerate() {
            self.keep(*of).map_err(|fault| GraphError::new(GraphPlace::Keep { position }, fault))?;
        }
        keep.sort_unstable();
        keep.dedup();
        self.note_readers();
        // Every chain since the oldest that is kept costs each part of the host a small record.
        let since = keep.first().map_or(0, |oldest| self.next_chain - oldest.chain);
        limit("chains since the oldest one it keeps", since as usize, self.limits.chains_max).map_err(at)?;
        let kept: Vec<KeptChain> = keep.chunk_by(|left, right| left.chain == right.chain).map(|outputs| self.kept_chain(outputs)).collect();
        let watch = Watch {
            outputs: watch.into_iter().map(triple).collect(),
            pace,
            keep: kept.iter().map(|kept| kept.chain).collect(),
            keep_tensors_from,
            state,
        };
        Ok((watch, kept))
    }

    /// A watched output leaves the worker whole; one of an earlier growth must do so already.
    fn watch(&mut self, of: OutputRef) -> Result<(), GraphFault> {
        match self.find(of)?.at {
            Whereabouts::Here(local) => {
                self.deliver(local, of, Delivery::All);
                Ok(())
            }
            Whereabouts::Earlier => {
                let (_, kept) = self.find_chain(of.chain)?;
                let sent = kept.is_some_and(|kept| kept.sent.binary_search(&(of.stage, of.output)).is_ok());
                if sent { Ok(()) } else { Err(GraphFault::NotWatched { chain: of.chain }) }
            }
        }
    }

    fn keep(&mut self, of: OutputRef) -> Result<(), GraphFault> {
        if self.continued.binary_search_by_key(&of.chain, |(chain, _)| *chain).is_ok() {
            return Err(GraphFault::ContinuedTwice { chain: of.chain });
        }
        if let Whereabouts::Here(local) = self.find(of)?.at {
            self.retain(local, of.stage, Retention::All);
        }
        Ok(())
    }

    /// What is remembered of a chain, of which those outputs (at least one, checked before) are kept.
    fn kept_chain(&self, outputs: &[OutputRef]) -> KeptChain {
        let chain = outputs.first().map_or(0, |of| of.chain);
        let kept: Vec<(u32, u32)> = outputs.iter().map(|of| (of.stage, of.output)).collect();
        match self.find_chain(chain) {
            Ok((Whereabouts::Here(local), _)) => {
                let (facts, stages) = (self.facts[local], &self.chains[local].stages);
                let all = |(stage, output): &(u32, u32)| stages[*stage as usize].delivery[*output as usize] == Delivery::All;
                let sent = kept.iter().copied().filter(all).collect();
                let cells = stages.iter().map(|stage| stage.cell).collect();
                KeptChain { chain, bound: facts.bound, may_stop: facts.may_stop, cells, kept, sent, series: self.kept_series(local) }
            }
            Ok((Whereabouts::Earlier, Some(earlier))) => {
                let mut again = KeptChain { kept, ..earlier.clone() };
                if let Some(series) = &mut again.series {
                    series.readers.extend(self.readers(&[Some(chain)], chain));
                    series.readers.truncate(READERS_MAX + 1);
                }
                again
            }
            _ => KeptChain { chain, bound: 0, may_stop: false, cells: Vec::new(), kept, sent: Vec::new(), series: None },
        }
    }
}

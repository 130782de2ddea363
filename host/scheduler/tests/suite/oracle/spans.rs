//! Rows that a node sees in its spans, one by one.

use cellwright_cell_graph::unfolded::{Run, RunOf, Source};

use super::{NodeState, Request};
use crate::suite::model::NodeId;

impl Request {
    /// Of the ragged input that sees most.
    pub(super) fn rows_seen(&self, node: NodeId) -> u64 {
        let stage = self.graph.stage(node.chain, node.stage);
        let spans = stage.inputs.iter().filter(|input| matches!(input.source, Source::Span(_)));
        spans.map(|input| input.source.runs().iter().map(|run| self.rows(run, node.step)).sum()).max().unwrap_or(0)
    }

    fn rows(&self, run: &Run, step: u32) -> u64 {
        let first = |end: i64| {
            let first = run.at.first + i64::from(step) * i64::from(run.at.stride);
            if run.at.from_end { end - 1 - first } else { first }
        };
        let RunOf::Chain { chain, stage, .. } = run.of else {
            // Rows of earlier tensors do not count.
            let before = (-first(0)).max(0).unsigned_abs().div_ceil(run.every.into());
            return u64::from(run.count).saturating_sub(before);
        };
        let before = i64::from(self.graph.stage(chain, stage).retention.before());
        let is_there = |step: &u32| self.nodes[&NodeId { chain, stage, step: *step }].state != NodeState::Dropped;
        let end = i64::from((0..self.graph.chain(chain).length.bound).take_while(is_there).count() as u32);
        let first = first(end);
        let is_of = |number: &i64| {
            let behind = number - first;
            behind >= 0 && behind % i64::from(run.every) == 0 && behind / i64::from(run.every) < i64::from(run.count)
        };
        (-before..end).filter(is_of).count() as u64
    }
}

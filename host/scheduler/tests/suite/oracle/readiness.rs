//! Which nodes have their inputs, and where.

use cellwright_scheduler::Release;

use super::super::model::{Need, NodeId};
use super::{NodeState, Request, Where};

/// Nodes of a chain from `end` on are never executed, or do not count if they were.
pub(super) fn drop_beyond(request: &mut Request, chain: u32, end: u32) {
    if ended(request, chain) {
        return;
    }
    for (id, node) in &mut request.nodes {
        if id.chain == chain && id.step >= end {
            node.state = NodeState::Dropped;
        }
    }
}

/// Whether all executed steps of a chain are complete, and of the chain it follows.
pub(super) fn ended(request: &Request, chain: u32) -> bool {
    let over = |chain| {
        request.nodes.iter().filter(|(id, _)| id.chain == chain).all(|(_, node)| matches!(node.state, NodeState::Done | NodeState::Dropped))
    };
    let known = request.nodes.keys().any(|id| id.chain == chain);
    let root = request.graph.root(chain).filter(|root| *root != chain && !request.cancelled.contains(&chain));
    known && over(chain) && root.is_none_or(|root| ended(request, root))
}

/// Whether a node's inputs are there, and on which worker.
pub(super) fn whereabouts(request: &Request, node: NodeId, release: Release) -> Where {
    let strict = release == Release::Subgraph;
    if strict {
        let group = request.graph.subgraph(node);
        let members = request.graph.nodes(node.chain).filter(|other| request.graph.subgraph(*other) == group);
        for member in members.filter(|member| request.nodes[member].state != NodeState::Dropped) {
            match inputs(request, member, true, false) {
                Where::Any => {}
                Where::Beyond(_) if !certain(request, member) => {}
                verdict => return verdict,
            }
        }
    }
    match inputs(request, node, strict, true) {
        Where::Beyond(_) if !certain(request, node) => Where::No,
        verdict => verdict,
    }
}

/// A node is executed for certain if no stop of its own chain can still come before it.
fn certain(request: &Request, node: NodeId) -> bool {
    match request.graph.chain(node.chain).stop {
        Some((stage, _)) if node.step > 0 => request.nodes[&NodeId { stage, step: node.step - 1, ..node }].state == NodeState::Done,
        _ => true,
    }
}

fn inputs(request: &Request, node: NodeId, strict: bool, inside_too: bool) -> Where {
    let (mut on, mut beyond) = (None, None);
    let mut seen = |state: NodeState, chain: u32, complete: bool| match state {
        NodeState::Done => true,
        NodeState::Queued(worker) => !complete && *on.get_or_insert(worker) == worker,
        NodeState::Dropped => {
            beyond = beyond.or(Some(chain));
            true
        }
        NodeState::Waiting => false,
    };
    let mut counted_too_far = None;
    for need in request.graph.needs(node) {
        let met = match need {
            Need::Counted { chain, counted } => {
                let executed =
                    request.nodes.iter().filter(|(id, node)| (id.chain, id.stage) == (chain, 0) && node.state != NodeState::Dropped);
                if ended(request, chain) && !request.cancelled.contains(&chain) && executed.count() < counted as usize {
                    counted_too_far = Some(chain);
                }
                true
            }
            Need::Node { inside: true, .. } if !inside_too => true,
            Need::Node { node: other, inside, known } => seen(request.nodes[&other].state, other.chain, known || (strict && !inside)),
            Need::Followed(other) => ended(request, other.chain) || request.nodes[&other].state == NodeState::Done,
            Need::End(chain) => {
                let may_stop = request.graph.root(chain).is_some();
                let nodes = request.nodes.iter().filter(|(id, node)| id.chain == chain && node.state != NodeState::Dropped);
                ended(request, chain) || !may_stop && nodes.map(|(_, node)| node.state).all(|state| seen(state, chain, strict))
            }
        };
        if !met {
            return Where::No;
        }
    }
    match (beyond.or(counted_too_far), on) {
        (Some(chain), _) => Where::Beyond(chain),
        (None, Some(worker)) => Where::Only(worker),
        (None, None) => Where::Any,
    }
}

/// Rows that a node sees in its spans.
pub(super) fn rows_seen(request: &Request, node: NodeId) -> u64 {
    let is_there = |chain, stage, step: &u32| request.nodes[&NodeId { chain, stage, step: *step }].state != NodeState::Dropped;
    let steps = |chain, stage| (0..request.graph.chain(chain).length.bound).take_while(|step| is_there(chain, stage, step)).count();
    request.graph.rows_seen(node, &|chain, stage| steps(chain, stage) as u32)
}

//! Which nodes may be queued: what each node waits for, and whether it still has to.
//!
//! A node is checked again whenever a producer is submitted or completed. The answer is computed
//! from the state of all producers, not counted, so it cannot drift. Under `Release::Node` a
//! producer that is queued on the same worker counts as complete. Under `Release::Subgraph` only
//! producers inside the node's own subgraph do.

mod checking;
mod connecting;
mod notifying;
mod readers;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, Source, UnfoldedStage};

use crate::config::Release;
use crate::core::Core;
use crate::core::lane::{Lane, Status};
use crate::core::request::{Chain, Request, both};
use crate::id::{LaneId, WorkerId};
pub(crate) use notifying::Notified;
use readers::read_at;
pub(crate) use readers::{Readers, Through};

/// Whether a node may be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Not yet.
    No,
    /// Yes; if a worker is named, on that one alone.
    Ready(Option<WorkerId>),
    /// Never: all other inputs are there, but it names a step that this chain did not execute.
    Beyond(u32),
}

/// Inputs of a node, taken together.
struct Sum {
    status: Status,
    beyond: Option<u32>,
}

impl Sum {
    /// Adds a producer's status; `complete` if only a complete one will do.
    fn add(&mut self, chain: u32, status: Status, complete: bool) {
        match status {
            Status::Never => self.beyond = self.beyond.or(Some(chain)),
            Status::Queued(_) if complete => self.status = Status::Waiting,
            status => self.status = both(self.status, status),
        }
    }

    fn verdict(&self) -> Verdict {
        match (self.status, self.beyond) {
            (Status::Waiting | Status::Never, _) => Verdict::No,
            (_, Some(chain)) => Verdict::Beyond(chain),
            (Status::Queued(worker), None) => Verdict::Ready(Some(worker)),
            (Status::Done, None) => Verdict::Ready(None),
        }
    }
}

/// Whether a node names a step that an ended chain never executed. This applies to nodes that wait
/// for the chain's end: steps counted from there, and nodes that later growths name.
fn names_unexecuted(request: &Request, stage: &UnfoldedStage, step: u32, chain: u32) -> bool {
    let Some(executed) = request.chain(chain).and_then(Chain::executed) else { return false };
    stage.inputs.iter().any(|input| match &input.source {
        Source::Steps { chain: named, at, .. } if *named == chain => at.at(step).is_none_or(|number| number >= executed),
        Source::Nodes { of, .. } => of.get(step as usize).is_some_and(|node| node.chain == chain && node.step >= executed),
        _ => false,
    })
}

/// Asking.
impl Core {
    pub(crate) fn subgraphs(&self) -> bool {
        self.config.release == Release::Subgraph
    }

    /// The growth, the chain and the stage of a lane.
    pub(crate) fn stage_of<'a>(request: &'a Request, lane: &Lane) -> Option<(&'a UnfoldedGrowth, &'a Chain, &'a UnfoldedStage)> {
        let chain = request.chain(lane.chain)?;
        let graph = request.growth(chain.growth)?;
        let stage = &graph.chains[(lane.chain - graph.first_chain) as usize].stages[lane.stage as usize];
        Some((graph, chain, stage))
    }

    /// Whether a node may be queued. Inputs from inside its own subgraph count only if `inside`.
    pub(super) fn weigh(&self, lane: LaneId, step: u32, inside: bool) -> Verdict {
        let place = self.lane(lane);
        let request = self.request(place.request);
        let Some((graph, own, stage)) = Self::stage_of(request, place) else { return Verdict::No };
        let strict = self.subgraphs() && !self.in_order(place.model);
        let mut sum = Sum { status: Status::Done, beyond: None };
        if let Some((number, root)) = own.root().and_then(|root| Some((root, request.chain(root)?))).filter(|(_, root)| !root.gone()) {
            let status = self.lane(root.lane(request.stop_stage_of(number).unwrap_or(0))).status(step);
            if status != Status::Done {
                return Verdict::No;
            }
        }
        for depends in &stage.depends {
            match depends {
                Dependency::Previous { .. } if step == 0 => {}
                Dependency::Previous { stage } => {
                    let mine = (strict || !inside) && *stage == u32::from(place.stage) && place.together(step - 1, step);
                    if inside || !mine {
                        sum.add(place.chain, self.lane(own.lane(*stage)).status(step - 1), strict && !mine);
                    }
                }
                Dependency::Sibling { stage } => sum.add(place.chain, self.lane(own.lane(*stage)).status(step), strict),
                Dependency::Step { chain, stage, at } => {
                    let Some(other) = request.chain(*chain).filter(|chain| !chain.gone()) else { continue };
                    let Some(named) = request.bound_of(*chain).and_then(|bound| read_at(*at, bound, step)) else { return Verdict::No };
                    sum.add(*chain, self.lane(other.lane(*stage)).status(named), strict || other.stops);
                }
                Dependency::Through { chain, stage, at } => {
                    let Some(other) = request.chain(*chain).filter(|chain| !chain.gone()) else { continue };
                    let Some(last) = at.number(step).and_then(|last| u64::try_from(last).ok()) else { continue };
                    let last = last.min(u64::from(request.bound_of(*chain).unwrap_or(1)) - 1) as u32;
                    let complete = strict || other.stops && *chain != place.chain;
                    let read = self.lane(other.lane(*stage));
                    let status = other.through(*stage).map_or(Status::Waiting, |through| through.status(read, last, complete));
                    sum.add(*chain, status, complete);
                }
                Dependency::End { chain } if names_unexecuted(request, stage, step, *chain) => sum.add(*chain, Status::Never, strict),
                Dependency::End { chain } => sum.add(*chain, self.end_status(request, *chain), strict),
                Dependency::Nodes { input } => {
                    let Source::Nodes { stage: named_stage, of, .. } = &stage.inputs[*input as usize].source else { continue };
                    let Some(node) = of.get(step as usize) else { continue };
                    if node.chain < graph.first_chain {
                        sum.add(node.chain, self.end_status(request, node.chain), strict);
                        continue;
                    }
                    let Some(other) = request.chain(node.chain).filter(|chain| !chain.gone()) else { continue };
                    let own = node.chain == place.chain;
                    let mine = (strict || !inside) && own && *named_stage == u32::from(place.stage) && place.together(node.step, step);
                    if inside || !mine {
                        let status = self.lane(other.lane(*named_stage)).status(node.step);
                        sum.add(node.chain, status, (strict && !mine) || other.stops && !own);
                    }
                }
            }
            if sum.status == Status::Waiting {
                return Verdict::No;
            }
        }
        sum.verdict()
    }

    /// Steps of this growth's chains that a node names, and their status. Also steps of earlier
    /// chains that were never executed.
    pub(crate) fn named_steps(&self, lane: LaneId, step: u32) -> impl Iterator<Item = (u32, Status)> {
        let place = self.lane(lane);
        let request = self.request(place.request);
        let depends = Self::stage_of(request, place).map(|(graph, _, stage)| (graph, stage));
        depends.into_iter().flat_map(|(graph, stage)| stage.depends.iter().map(move |depends| (graph, stage, depends))).filter_map(
            move |(graph, stage, depends)| {
                let (chain, stage, step) = match depends {
                    Dependency::Step { chain, stage, at } => (*chain, *stage, read_at(*at, request.bound_of(*chain)?, step)?),
                    Dependency::Nodes { input } => match &stage.inputs[*input as usize].source {
                        Source::Nodes { stage, of, .. } => of.get(step as usize).map(|node| (node.chain, *stage, node.step))?,
                        _ => return None,
                    },
                    Dependency::End { chain } => {
                        return names_unexecuted(request, stage, step, *chain).then_some((*chain, Status::Never));
                    }
                    _ => return None,
                };
                let named = request.chain(chain).filter(|named| chain >= graph.first_chain && !named.gone())?;
                Some((chain, self.lane(named.lane(stage)).status(step)))
            },
        )
    }

    /// The common status of all executed steps of a chain.
    pub(super) fn end_status(&self, request: &Request, chain: u32) -> Status {
        let Some(chain) = request.chain(chain) else { return Status::Done };
        if chain.ended() || chain.gone() {
            return Status::Done;
        }
        if chain.stops {
            return Status::Waiting;
        }
        (0..chain.stages()).fold(Status::Done, |status, stage| both(status, self.lane(chain.lane(stage)).whole_status()))
    }

    /// Whether a lane's chain has not been cancelled.
    pub(super) fn is_wanted(&self, lane: LaneId) -> bool {
        let place = self.lane(lane);
        self.request(place.request).chain(place.chain).is_some_and(|chain| !chain.cancelled)
    }

    /// Whether a node certainly runs once its inputs are there: its own chain can no longer stop
    /// before it.
    pub(super) fn certain(&self, lane: LaneId, step: u32) -> bool {
        let place = self.lane(lane);
        let request = self.request(place.request);
        let Some(own) = request.chain(place.chain) else { return false };
        match request.stop_stage_of(place.chain) {
            Some(stage) if step > 0 => self.lane(own.lane(stage)).status(step - 1) == Status::Done,
            _ => true,
        }
    }
}

//! Which nodes wait for which: recorded once for each growth, when it is placed.

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, Source, UnfoldedChain, UnfoldedInput, UnfoldedStage};

use crate::core::Core;
use crate::core::lane::{Progress, StageRef};
use crate::core::request::{Chain, Links};
use crate::id::{LaneId, RequestId};

impl Core {
    /// Records which stages wait for which in a growth that was just placed.
    pub(crate) fn connect(&mut self, id: RequestId, graph: &Arc<UnfoldedGrowth>) {
        let frees = self.request(id).grows();
        for (local, chain) in graph.chains.iter().enumerate() {
            let number = graph.first_chain + local as u32;
            if let Some(like) = chain.length.like {
                self.follow(id, graph, number, like);
            }
            let mut reads: Vec<u32> = chain.length.like.into_iter().filter(|_| frees).collect();
            for (index, stage) in chain.stages.iter().enumerate() {
                let Some(lane) = self.request(id).chain(number).map(|chain| chain.lane(index as u32)) else { continue };
                for depends in &stage.depends {
                    self.connect_stage(id, lane, stage, depends, frees.then_some(&mut reads));
                }
            }
            if frees {
                self.note_reads(id, number, reads);
            }
        }
        for local in 0..graph.chains.len() as u32 {
            if let Some(lane) = self.request(id).chain(graph.first_chain + local).map(|chain| chain.lane(0)) {
                self.make_plain(lane);
            }
        }
        let certain = graph.first_chain == 0 && graph.cancel.is_empty() && !graph.chains.iter().any(UnfoldedChain::may_stop);
        for (local, chain) in (0..).zip(&graph.chains).filter(|_| certain) {
            for (index, stage) in (0..).zip(&chain.stages) {
                let by_name = |depends: &Dependency| matches!(depends, Dependency::Nodes { .. });
                let named = !stage.named_producers.is_empty() && !stage.named_producers.contains(&0) && stage.depends.iter().all(by_name);
                if let Some(lane) =
                    self.request(id).chain(local).map(|chain| chain.lane(index)).filter(|lane| named && !self.lane(*lane).waits())
                {
                    self.lane_mut(lane).named = true;
                }
            }
        }
    }

    /// Updates whether a lane's nodes wait only for the step before and no other lane waits for its
    /// steps.
    pub(super) fn make_plain(&mut self, lane: LaneId) {
        let place = self.lane(lane);
        let request = self.request(place.request);
        let Some((_, chain, stage)) = Self::stage_of(request, place) else { return };
        let met = |depends: &Dependency| match depends {
            Dependency::Previous { .. } => true,
            Dependency::End { chain } => request.chain(*chain).is_none_or(|other| {
                // It may name steps of a chain that stopped before them.
                let is_whole = request.bound_of(*chain) == Some(other.end);
                let counts = |input: &UnfoldedInput| matches!(input.source, Source::Steps { .. } | Source::Nodes { .. });
                other.gone() || other.ended() && (is_whole || !stage.inputs.iter().any(counts))
            }),
            _ => false,
        };
        let alone = chain.root().is_none() && chain.stages() == 1 && stage.depends.iter().all(met);
        let in_order = matches!(place.progress, Progress::Front(_));
        let number = place.stage.into();
        let asked = !stage.successors.targets.is_empty() || chain.readers(number).is_some() || chain.through(number).is_some();
        let taken = self.model(request.model).takes_requests();
        let (plain, grows) = (alone && in_order && !asked && !place.waits(), request.grows());
        let place = self.lane_mut(lane);
        place.plain = plain;
        place.set_joins(plain && !grows && !taken);
    }

    fn connect_stage(&mut self, id: RequestId, lane: LaneId, stage: &UnfoldedStage, depends: &Dependency, reads: Option<&mut Vec<u32>>) {
        let own = self.lane(lane).chain;
        let reader = StageRef { chain: own, stage: self.lane(lane).stage.into() };
        match depends {
            Dependency::Previous { .. } | Dependency::Sibling { .. } => {}
            Dependency::Step { chain, stage, at } => {
                note_read(reads, own, *chain);
                let steps = self.request(id).bound_of(own).unwrap_or(0);
                if let Some(bound) = self.request(id).bound_of(*chain)
                    && let Some(links) = self.links_of(id, *chain)
                {
                    links.readers_of(*stage).add(reader, *at, steps, bound);
                }
            }
            Dependency::Through { chain, stage, at } => {
                note_read(reads, own, *chain);
                let steps = self.request(id).bound_of(own).unwrap_or(0);
                if let Some(bound) = self.request(id).bound_of(*chain)
                    && let Some(links) = self.links_of(id, *chain)
                {
                    links.through_of(*stage).add(reader, *at, steps, bound);
                }
            }
            Dependency::End { chain } => {
                note_read(reads, own, *chain);
                self.wait_for_end(id, reader, *chain);
            }
            Dependency::Nodes { input } => {
                let first = self.request(id).growth_of(own).map_or(0, |growth| growth.first_chain);
                if first > 0 || reads.is_some() {
                    let Source::Nodes { of, .. } = &stage.inputs[*input as usize].source else { return };
                    let mut named: Vec<u32> = of.iter().map(|node| node.chain).collect();
                    named.sort_unstable();
                    named.dedup();
                    for chain in named.iter().filter(|chain| **chain < first) {
                        self.wait_for_end(id, reader, *chain);
                    }
                    if let Some(reads) = reads {
                        reads.extend(named.into_iter().filter(|chain| *chain != own));
                    }
                }
            }
        }
    }

    fn wait_for_end(&mut self, id: RequestId, waiter: StageRef, chain: u32) {
        let waits = |chain: &Chain| chain.links.as_ref().and_then(|links| links.last_end_waiter()) == Some(waiter);
        if self.request(id).chain(chain).is_some_and(|chain| !chain.ended() && !waits(chain))
            && let Some(links) = self.links_of(id, chain)
        {
            links.wait_for_end(waiter);
        }
    }

    /// What a chain has to do with others, from now on if not before.
    pub(crate) fn links_of(&mut self, id: RequestId, chain: u32) -> Option<&mut Links> {
        let Self { requests, spares, .. } = self;
        let chain = requests[id.index()].chain_mut(chain)?;
        Some(chain.links.get_or_insert_with(|| spares.links()))
    }

    fn note_reads(&mut self, id: RequestId, number: u32, mut reads: Vec<u32>) {
        reads.sort_unstable();
        reads.dedup();
        for read in &reads {
            if let Some(links) = self.links_of(id, *read) {
                links.more().read_by += 1;
            }
        }
        if !reads.is_empty()
            && let Some(links) = self.links_of(id, number)
        {
            links.more().reads = reads;
        }
    }

    /// A chain follows another. Its root is the chain with a stop that they all follow, if there is
    /// one.
    pub(super) fn follow(&mut self, id: RequestId, graph: &UnfoldedGrowth, number: u32, like: u32) {
        let request = self.request(id);
        let mut leader = like;
        for _ in 0..=graph.chains.len() {
            let Some(chain) = request.chain(leader) else { return };
            if request.stop_stage_of(leader).is_some() {
                break;
            }
            let local = leader.checked_sub(graph.first_chain).and_then(|local| graph.chains.get(local as usize));
            match (chain.root(), local.and_then(|chain| chain.length.like)) {
                (Some(root), _) => leader = root,
                (None, Some(next)) => leader = next,
                (None, None) => return,
            }
        }
        let Some(root) = request.chain(leader) else { return };
        let (end, over, stop) = (root.end, root.ended(), request.stop_stage_of(leader).map(|stage| (stage, root.lane(stage))));
        let Some(own) = request.chain(number) else { return };
        let stages = own.stages();
        if !over && let Some(links) = self.links_of(id, leader) {
            links.more().followers.push(number);
        }
        if let Some((stop_stage, stop_lane)) = stop.filter(|_| !over) {
            self.leave_group(stop_lane);
            let place = self.lane_mut(stop_lane);
            place.plain = false;
            place.set_joins(false);
            if let Some(links) = self.links_of(id, leader) {
                let readers = links.readers_of(stop_stage);
                (0..stages).for_each(|stage| readers.follow(StageRef { chain: number, stage }));
            }
        }
        if let Some(links) = self.links_of(id, number) {
            links.more().root = Some(leader);
        }
        if let Some(own) = self.request_mut(id).chain_mut(number) {
            own.stops = true;
        }
        self.end_at(id, number, end);
    }
}

/// Notes, where that is noted, that a chain reads another.
fn note_read(reads: Option<&mut Vec<u32>>, own: u32, other: u32) {
    if let Some(reads) = reads.filter(|_| other != own) {
        reads.push(other);
    }
}

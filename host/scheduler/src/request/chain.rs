//! How far each chain of a request is, and what it has to do with others. Most have nothing to do with others, and that is kept apart.

use cellwright_cell_graph::unfolded::UnfoldedChain;

use crate::few::Few;
use crate::id::{LaneId, WorkerId};
use crate::lane::StageRef;
use crate::readiness::Readers;
use crate::spares::Spares;

/// Where a chain is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Goes,
    Ended,
    /// It has ended, and its lanes are released.
    Gone,
}

/// A chain of a placed growth, in half a cache line. What its graph says of it is asked of the graph.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Nodes still to be executed, as far as is known.
    pub(crate) remaining: u64,
    /// What has to do with other chains, and its other stages, if it has any of that.
    pub(crate) links: Option<Box<Links>>,
    /// Its first stage's lane.
    first_lane: LaneId,
    /// Steps that are executed, as far as is known.
    pub(crate) end: u32,
    /// Growth it belongs to, from the request's first.
    pub(crate) growth: u32,
    /// A stop of its own or of the chain it follows may end it early.
    pub(crate) stops: bool,
    pub(crate) cancelled: bool,
    /// Later growths may refer to it.
    pub(crate) kept: bool,
    life: Life,
}

/// What a chain has to do with others, and what only chains of several stages have.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// The lanes of all stages but the first.
    other_lanes: Box<[LaneId]>,
    /// Who waits for its end.
    pub(crate) end_waiters: Few<StageRef>,
    /// What they were told.
    pub(crate) end_seen: Option<WorkerId>,
    more: Option<Box<More>>,
}

/// What hardly any chain has to do with others.
#[derive(Debug, Default)]
pub(crate) struct More {
    /// The chain with a stop that it follows, directly or along others.
    pub(crate) root: Option<u32>,
    /// Chains that follow it.
    pub(crate) followers: Vec<u32>,
    /// Where chains are freed one by one: chains it reads.
    pub(crate) reads: Vec<u32>,
    /// Chains that read it and have not ended.
    pub(crate) read_by: u32,
    /// Who waits for steps of its stages one by one, by stage.
    readers: Vec<(u32, Readers)>,
}

impl Links {
    /// What it hardly ever has, from now on if not before.
    pub(crate) fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    /// The readers of a stage, of which there are some from now on.
    pub(crate) fn readers_of(&mut self, stage: u32) -> &mut Readers {
        let all = &mut self.more().readers;
        let at = all.iter().position(|(other, _)| *other == stage).unwrap_or(all.len());
        if at == all.len() {
            all.push((stage, Readers::default()));
        }
        &mut all[at].1
    }

    /// Forgets everything, keeps what memory is small.
    pub(crate) fn clear(&mut self) {
        *self = Self { end_waiters: std::mem::take(&mut self.end_waiters), ..Self::default() };
        self.end_waiters.clear();
    }
}

impl Chain {
    /// A chain of a growth that is just placed: its first stage's lane, and the others'.
    pub(crate) fn new(graph: &UnfoldedChain, growth: u32, (first_lane, other_lanes): (LaneId, &[LaneId]), spares: &mut Spares) -> Self {
        let bound = graph.length.bound;
        let links = (!other_lanes.is_empty()).then(|| {
            let mut links = spares.links();
            links.other_lanes = other_lanes.into();
            links
        });
        Self {
            first_lane,
            end: bound,
            stops: graph.stop.is_some(),
            cancelled: false,
            remaining: u64::from(bound) * graph.stages.len() as u64,
            life: Life::Goes,
            kept: false,
            links,
            growth,
        }
    }

    /// Its executed steps are all complete, and it follows none that goes on.
    pub(crate) fn ended(&self) -> bool {
        self.life != Life::Goes
    }

    pub(crate) const fn end_now(&mut self) {
        self.life = Life::Ended;
    }

    /// Its lanes are released.
    pub(crate) fn gone(&self) -> bool {
        self.life == Life::Gone
    }

    /// Nobody asks for its steps any more.
    pub(crate) fn go(&mut self) {
        self.life = Life::Gone;
        if let Some(more) = self.links.as_mut().and_then(|links| links.more.as_mut()) {
            more.readers = Vec::new();
        }
    }

    fn more(&self) -> Option<&More> {
        self.links.as_ref()?.more.as_deref()
    }

    /// What it hardly ever has to do with others, if it has.
    pub(crate) fn more_mut(&mut self) -> Option<&mut More> {
        self.links.as_mut()?.more.as_deref_mut()
    }

    /// The chain with a stop that it follows, directly or along others.
    pub(crate) fn root(&self) -> Option<u32> {
        self.more()?.root
    }

    pub(crate) fn followers(&self) -> &[u32] {
        self.more().map_or(&[], |more| &more.followers)
    }

    /// Who waits for a stage's steps one by one, if anybody does.
    pub(crate) fn readers(&self, stage: u32) -> Option<&Readers> {
        self.more()?.readers.iter().find(|(other, _)| *other == stage).map(|(_, readers)| readers)
    }

    pub(crate) fn readers_mut(&mut self, stage: u32) -> Option<&mut Readers> {
        self.more_mut()?.readers.iter_mut().find(|(other, _)| *other == stage).map(|(_, readers)| readers)
    }

    /// Who waits for its end, by number.
    pub(crate) fn end_waiter(&self, index: usize) -> Option<StageRef> {
        self.links.as_ref()?.end_waiters.get(index).copied()
    }

    pub(crate) fn is_read(&self) -> bool {
        self.more().is_some_and(|more| more.read_by > 0)
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        self.end_waiter(0).is_some()
    }

    pub(crate) fn stages(&self) -> u32 {
        1 + self.links.as_ref().map_or(0, |links| links.other_lanes.len() as u32)
    }

    pub(crate) fn lane(&self, stage: u32) -> LaneId {
        match &self.links {
            Some(links) if stage > 0 => links.other_lanes[stage as usize - 1],
            _ => self.first_lane,
        }
    }

    /// The lanes of all its stages, to be named anew.
    pub(crate) fn lanes_mut(&mut self) -> impl Iterator<Item = &mut LaneId> {
        std::iter::once(&mut self.first_lane).chain(self.links.iter_mut().flat_map(|links| &mut links.other_lanes))
    }
}

//! The progress of each chain of a request, and its links to other chains. Most chains have no
//! links, so these are stored apart.

use cellwright_cell_graph::unfolded::UnfoldedChain;

use crate::core::lane::{NO_LANE, StageRef};
use crate::core::readiness::{Readers, Through};
use crate::core::spares::Spares;
use crate::id::{LaneId, WorkerId};

/// Where a chain is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Goes,
    Ended,
    /// It has ended, and its lanes are released.
    Gone,
}

/// A chain of a placed growth, in half a cache line. The rest is in its graph.
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
#[derive(Debug)]
pub(crate) struct Links {
    /// The first stage that waits for its end, or [`NOBODY`].
    end_waiter: StageRef,
    /// The lane of its second stage, or [`NO_LANE`].
    second_lane: LaneId,
    /// The worker with which its last steps are, as the waiting stages know, or [`NOWHERE`].
    end_seen: WorkerId,
    more: Option<Box<More>>,
}

/// No chain has that number.
const NOBODY: StageRef = StageRef { chain: u32::MAX, stage: 0 };
/// No worker has that number.
const NOWHERE: WorkerId = WorkerId(u32::MAX);

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
    /// The chain that continues it.
    pub(crate) continued_by: Option<u32>,
    /// The readers of its stages' steps, by stage.
    readers: Vec<(u32, Readers)>,
    /// Those that wait for all steps of a stage as far as one.
    through: Vec<(u32, Through)>,
    /// The other stages that wait for its end.
    end_waiters: Vec<StageRef>,
    /// The lanes of its stages from the third on.
    lanes: Vec<LaneId>,
}

impl Default for Links {
    fn default() -> Self {
        Self { end_waiter: NOBODY, second_lane: NO_LANE, end_seen: NOWHERE, more: None }
    }
}

impl Links {
    /// Records a stage that waits for the chain's end.
    pub(crate) fn wait_for_end(&mut self, waiter: StageRef) {
        if self.end_waiter == NOBODY {
            self.end_waiter = waiter;
        } else {
            self.more().end_waiters.push(waiter);
        }
    }

    pub(crate) fn last_end_waiter(&self) -> Option<StageRef> {
        let last = self.more.as_ref().and_then(|more| more.end_waiters.last().copied());
        last.or(Some(self.end_waiter).filter(|first| *first != NOBODY))
    }

    /// Records that all of it is queued with a worker. Whether that is new.
    pub(crate) fn mark_end_seen(&mut self, worker: WorkerId) -> bool {
        std::mem::replace(&mut self.end_seen, worker) != worker
    }

    /// What it hardly ever has, from now on if not before.
    pub(crate) fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    /// The readers of a stage, of which there are some from now on.
    pub(crate) fn readers_of(&mut self, stage: u32) -> &mut Readers {
        of_stage(&mut self.more().readers, stage)
    }

    /// Those that wait for all steps of a stage as far as one, of which there are some from now on.
    pub(crate) fn through_of(&mut self, stage: u32) -> &mut Through {
        of_stage(&mut self.more().through, stage)
    }

    /// Forgets everything, keeps what memory is small.
    pub(crate) fn clear(&mut self) {
        const KEPT: usize = 8;
        let mut more = self.more.take();
        if let Some(more) = &mut more {
            let More { mut end_waiters, mut lanes, .. } = std::mem::take(&mut **more);
            end_waiters.clear();
            lanes.clear();
            end_waiters.shrink_to(KEPT);
            lanes.shrink_to(KEPT);
            (more.end_waiters, more.lanes) = (end_waiters, lanes);
        }
        *self = Self { more, ..Self::default() };
    }
}

/// A stage's entry, from now on if not before.
fn of_stage<T: Default>(all: &mut Vec<(u32, T)>, stage: u32) -> &mut T {
    let at = all.iter().position(|(other, _)| *other == stage).unwrap_or(all.len());
    if at == all.len() {
        all.push((stage, T::default()));
    }
    &mut all[at].1
}

impl Chain {
    /// A chain of a growth that is just placed: its first stage's lane, and the others'.
    pub(crate) fn new(graph: &UnfoldedChain, growth: u32, (first_lane, other_lanes): (LaneId, &[LaneId]), spares: &mut Spares) -> Self {
        let bound = graph.length.bound;
        let links = other_lanes.split_first().map(|(second, others)| {
            let mut links = spares.links();
            links.second_lane = *second;
            if !others.is_empty() {
                links.more().lanes.extend_from_slice(others);
            }
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

    /// Whether a stop of its own may end it early.
    pub(crate) fn stops_itself(&self) -> bool {
        self.stops && self.root().is_none()
    }

    /// How many steps it executed, once all of them are complete. Not known of a cancelled chain.
    pub(crate) fn executed(&self) -> Option<u32> {
        (self.ended() && !self.cancelled).then_some(self.end)
    }

    pub(crate) const fn end_now(&mut self) {
        self.life = Life::Ended;
    }

    /// Its lanes are released.
    pub(crate) fn gone(&self) -> bool {
        self.life == Life::Gone
    }

    /// Its lanes are released.
    pub(crate) fn go(&mut self) {
        self.life = Life::Gone;
        if let Some(more) = self.links.as_mut().and_then(|links| links.more.as_mut()) {
            (more.readers, more.through) = (Vec::new(), Vec::new());
        }
    }

    fn more(&self) -> Option<&More> {
        self.links.as_ref()?.more.as_deref()
    }

    /// Its rare links to other chains, if it has any.
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

    /// The readers of a stage's steps, if there are any.
    pub(crate) fn readers(&self, stage: u32) -> Option<&Readers> {
        self.more()?.readers.iter().find(|(other, _)| *other == stage).map(|(_, readers)| readers)
    }

    pub(crate) fn readers_mut(&mut self, stage: u32) -> Option<&mut Readers> {
        self.more_mut()?.readers.iter_mut().find(|(other, _)| *other == stage).map(|(_, readers)| readers)
    }

    /// Those that wait for all steps of a stage as far as one, if there are any.
    pub(crate) fn through(&self, stage: u32) -> Option<&Through> {
        self.more()?.through.iter().find(|(other, _)| *other == stage).map(|(_, through)| through)
    }

    pub(crate) fn through_mut(&mut self, stage: u32) -> Option<&mut Through> {
        self.more_mut()?.through.iter_mut().find(|(other, _)| *other == stage).map(|(_, through)| through)
    }

    /// A stage that waits for its end, by number.
    pub(crate) fn end_waiter(&self, index: usize) -> Option<StageRef> {
        let links = self.links.as_ref()?;
        match index.checked_sub(1) {
            None => Some(links.end_waiter).filter(|first| *first != NOBODY),
            Some(index) => links.more.as_ref()?.end_waiters.get(index).copied(),
        }
    }

    pub(crate) fn continued_by(&self) -> Option<u32> {
        self.more()?.continued_by
    }

    pub(crate) fn is_read(&self) -> bool {
        self.more().is_some_and(|more| more.read_by > 0)
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        self.end_waiter(0).is_some()
    }

    pub(crate) fn stages(&self) -> u32 {
        let Some(links) = self.links.as_ref().filter(|links| links.second_lane != NO_LANE) else { return 1 };
        2 + links.more.as_ref().map_or(0, |more| more.lanes.len() as u32)
    }

    pub(crate) fn lane(&self, stage: u32) -> LaneId {
        match (stage, self.links.as_deref()) {
            (1, Some(links)) => links.second_lane,
            (2.., Some(Links { more: Some(more), .. })) => more.lanes[stage as usize - 2],
            _ => self.first_lane,
        }
    }

    /// The lanes of all its stages, to be named anew.
    pub(crate) fn lanes_mut(&mut self) -> impl Iterator<Item = &mut LaneId> {
        let others = self.links.iter_mut().filter(|links| links.second_lane != NO_LANE).flat_map(|links| {
            let Links { second_lane, more, .. } = &mut **links;
            std::iter::once(second_lane).chain(more.iter_mut().flat_map(|more| &mut more.lanes))
        });
        std::iter::once(&mut self.first_lane).chain(others)
    }
}

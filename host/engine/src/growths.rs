//! The growths of a request in flight: graphs that it was given, and where they lie.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cellwright_backend::{CellTypeId, EarlierChain, FirstSlots, Lane, PlacedGrowth, RequestFlags};
use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, UnfoldedStage};

use crate::requests::RequestTensors;
use crate::spares::Spares;

/// A growth of a request.
pub(crate) enum GrowthEntry {
    /// It has no place yet.
    Waits { growth: Arc<UnfoldedGrowth>, tensors: RequestTensors },
    /// It has one, and so many lanes of it.
    Placed { placed: Arc<PlacedGrowth>, lanes: u32 },
}

impl GrowthEntry {
    pub(crate) fn growth(&self) -> &UnfoldedGrowth {
        match self {
            Self::Waits { growth, .. } => growth,
            Self::Placed { placed, .. } => &placed.growth,
        }
    }

    fn placed(&self) -> Option<&Arc<PlacedGrowth>> {
        match self {
            Self::Waits { .. } => None,
            Self::Placed { placed, .. } => Some(placed),
        }
    }

    /// Whether nothing of it is left that anybody could name: it had its place, or never needs one, and its lanes are released.
    fn is_over(&self) -> bool {
        match self {
            Self::Waits { growth, .. } => growth.chains.is_empty(),
            Self::Placed { lanes, .. } => *lanes == 0,
        }
    }

    /// Gives it its place: the lane of its first stage, through which the place is reached. Of a growth without chains that lane names a chain that does not
    /// exist, and nobody uses it.
    fn place(&mut self, place: GrowthPlacement<'_>, spares: &mut Spares) -> Arc<Lane> {
        let GrowthPlacement { slots, cells, earlier, flags } = place;
        let placed = match self {
            Self::Waits { growth, tensors } => {
                if earlier.is_empty()
                    && flags.is_none()
                    && let Some(slot) = slots.sole()
                    && let Some(lane) = spares.take((growth, tensors), slot, cells)
                {
                    *self = Self::Placed { placed: Arc::clone(&lane.growth), lanes: 0 };
                    return lane;
                }
                PlacedGrowth {
                    growth: Arc::clone(growth),
                    cells: Arc::clone(cells),
                    slots,
                    executed: growth.chains.iter().map(|chain| AtomicU32::new(chain.length.bound)).collect(),
                    earlier,
                    tensors: std::mem::take(&mut tensors.tensors),
                    first_tensor: tensors.first,
                    flags: flags.cloned().unwrap_or_default(),
                }
            }
            // It had another place before.
            Self::Placed { placed, .. } => PlacedGrowth {
                growth: Arc::clone(&placed.growth),
                cells: Arc::clone(cells),
                slots,
                executed: Arc::clone(&placed.executed),
                earlier,
                tensors: placed.tensors.clone(),
                first_tensor: placed.first_tensor,
                flags: Arc::clone(&placed.flags),
            },
        };
        let placed = Arc::new(placed);
        match self {
            Self::Waits { .. } => *self = Self::Placed { placed: Arc::clone(&placed), lanes: 0 },
            Self::Placed { placed: known, .. } => *known = Arc::clone(&placed),
        }
        Arc::new(Lane { growth: placed, chain: 0, stage: 0 })
    }
}

/// What a growth does not bring along itself of the place that it gets.
struct GrowthPlacement<'a> {
    slots: FirstSlots,
    cells: &'a Arc<[CellTypeId]>,
    earlier: Vec<EarlierChain>,
    /// Those of its request, if they are not its own.
    flags: Option<&'a Arc<RequestFlags>>,
}

/// Growths of a request that still have lanes, or may get some, and whatever is held because an older one has.
/// How many there can be is bounded by the graph's limits (chains since the oldest one that is kept) and by how often a plugin is called back.
pub(crate) struct Growths {
    /// The oldest: of most requests, their only one.
    oldest: Option<GrowthEntry>,
    /// What a request has from its second growth on.
    more: Option<Box<More>>,
}

struct More {
    /// How many came before the oldest.
    before: u32,
    /// The growths behind it: the number of each one's first chain, and itself, unless nobody can name it any more.
    later: VecDeque<(u32, Option<Box<GrowthEntry>>)>,
    /// Shared by all growths.
    flags: Arc<RequestFlags>,
}

impl Growths {
    pub(crate) fn new(growth: Arc<UnfoldedGrowth>, tensors: RequestTensors) -> Self {
        Self { oldest: Some(GrowthEntry::Waits { growth, tensors }), more: None }
    }

    /// How many are held.
    pub(crate) fn len(&self) -> usize {
        1 + self.more.as_ref().map_or(0, |more| more.later.len())
    }

    /// Its place among those that are held.
    fn position(&self, number: u32) -> Option<usize> {
        Some(number.checked_sub(self.more.as_ref().map_or(0, |more| more.before))? as usize)
    }

    fn at(&self, position: usize) -> Option<&GrowthEntry> {
        match (position.checked_sub(1), &self.more) {
            (None, _) => self.oldest.as_ref(),
            (Some(later), Some(more)) => more.later.get(later)?.1.as_deref(),
            (Some(_), None) => None,
        }
    }

    fn at_mut(&mut self, position: usize) -> Option<&mut GrowthEntry> {
        match (position.checked_sub(1), &mut self.more) {
            (None, _) => self.oldest.as_mut(),
            (Some(later), Some(more)) => more.later.get_mut(later)?.1.as_deref_mut(),
            (Some(_), None) => None,
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&GrowthEntry> {
        self.at(self.position(number)?)
    }

    /// The place of the only growth there ever was.
    pub(crate) fn only(&self) -> Option<&Arc<PlacedGrowth>> {
        self.oldest.as_ref().filter(|_| self.more.is_none())?.placed()
    }

    /// The place of a growth that has one.
    pub(crate) fn placed(&self, number: u32) -> Option<&Arc<PlacedGrowth>> {
        self.get(number)?.placed()
    }

    pub(crate) fn grow(&mut self, growth: Arc<UnfoldedGrowth>, tensors: RequestTensors) {
        let more = self.more.get_or_insert_with(|| {
            let flags = self.oldest.as_ref().and_then(GrowthEntry::placed).map(|placed| Arc::clone(&placed.flags));
            Box::new(More { before: 0, later: VecDeque::new(), flags: flags.unwrap_or_default() })
        });
        more.later.push_back((growth.first_chain, Some(Box::new(GrowthEntry::Waits { growth, tensors }))));
        // The one before stayed because it was the last.
        self.forget_over(self.len() - 2);
    }

    /// Gives a growth its place, if it is held: the lane of its first stage (of a growth without chains: not to be used). All others are to be made for the
    /// same place.
    pub(crate) fn place(&mut self, number: u32, slots: FirstSlots, cells: &Arc<[CellTypeId]>, spares: &mut Spares) -> Option<Arc<Lane>> {
        let earlier = self.earlier(self.get(number)?.growth());
        let flags = self.more.as_ref().map(|more| Arc::clone(&more.flags));
        let entry = self.at_mut(self.position(number)?)?;
        Some(entry.place(GrowthPlacement { slots, cells, earlier, flags: flags.as_ref() }, spares))
    }

    /// Where the chains of earlier growths lie that a growth refers to. Its stages wait for the ends of those whose steps they read: of very many
    /// nodes that an input names this need not look at one.
    fn earlier(&self, growth: &UnfoldedGrowth) -> Vec<EarlierChain> {
        if growth.first_chain == 0 {
            return Vec::new();
        }
        let ends = |stage: &UnfoldedStage| {
            let end = |waits: &Dependency| if let Dependency::End { chain } = waits { Some(*chain) } else { None };
            stage.depends.iter().filter_map(end).collect::<Vec<_>>()
        };
        let followed = growth.chains.iter().filter_map(|chain| chain.length.like);
        let read = growth.chains.iter().flat_map(|chain| &chain.stages).flat_map(ends);
        let mut chains: Vec<u32> = followed.chain(read).filter(|chain| *chain < growth.first_chain).collect();
        chains.sort_unstable();
        chains.dedup();
        chains.into_iter().filter_map(|chain| self.earlier_chain(chain)).collect()
    }

    fn earlier_chain(&self, chain: u32) -> Option<EarlierChain> {
        // Chains are numbered over the whole request, growth by growth.
        let later = self.more.as_ref().map_or(0, |more| more.later.partition_point(|(first_chain, _)| *first_chain <= chain));
        let placed = self.at(later)?.placed()?;
        let local = chain.checked_sub(placed.growth.first_chain)?;
        let (unfolded, slots) = (placed.growth.chains.get(local as usize)?, placed.slots.get(local as usize)?);
        let stages = unfolded.stages.iter().zip(slots).map(|(stage, slot)| (*slot, stage.retention, stage.cell)).collect();
        Some(EarlierChain { chain, stages, executed: (placed.executed.clone(), local) })
    }

    /// So many lanes of a growth are placed.
    pub(crate) fn add_lanes(&mut self, number: u32, count: u32) {
        if let Some(GrowthEntry::Placed { lanes, .. }) = self.position(number).and_then(|position| self.at_mut(position)) {
            *lanes += count;
        }
    }

    /// One lane of a growth less. Growths in front that have none left are forgotten.
    pub(crate) fn release_lane(&mut self, number: u32) {
        let Some(position) = self.position(number) else { return };
        if let Some(GrowthEntry::Placed { lanes, .. }) = self.at_mut(position) {
            *lanes = lanes.saturating_sub(1);
        }
        self.forget_over(position);
        let Self { oldest, more: Some(more) } = self else { return };
        while oldest.as_ref().is_none_or(GrowthEntry::is_over)
            && let Some((_, next)) = more.later.pop_front()
        {
            *oldest = next.map(|next| *next);
            more.before += 1;
        }
    }

    /// Empties a growth that is over, if it is not the last.
    fn forget_over(&mut self, position: usize) {
        if position + 1 >= self.len() {
            return;
        }
        match (position.checked_sub(1), &mut self.more) {
            (None, _) => {
                self.oldest.take_if(|entry| entry.is_over());
            }
            (Some(later), Some(more)) => {
                if let Some((_, entry)) = more.later.get_mut(later) {
                    entry.take_if(|entry| entry.is_over());
                }
            }
            (Some(_), None) => {}
        }
    }

    /// How many have the place of the oldest: read so that it is near when it is let go of.
    pub(crate) fn read_ahead(&self) -> usize {
        self.oldest.as_ref().and_then(GrowthEntry::placed).map_or(0, Arc::strong_count)
    }

    /// Nothing more of the request is worth computing.
    pub(crate) fn mark_dead(&self) {
        let own = || Some(&self.oldest.as_ref()?.placed()?.flags);
        // Of what has no place yet no worker computes anything.
        if let Some(flags) = self.more.as_ref().map(|more| &more.flags).or_else(own) {
            flags.dead.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use cellwright_backend::Slot;
    use cellwright_cell_graph::Tensor;
    use cellwright_conformance::driver::{growth_of, independent};

    use super::*;

    fn growth(first_chain: u32) -> Arc<UnfoldedGrowth> {
        Arc::new(UnfoldedGrowth { first_chain, ..growth_of(vec![independent(0, 1, Vec::new(), 2)]) })
    }

    fn place(growths: &mut Growths, number: u32, slot: u32, spares: &mut Spares) -> Arc<Lane> {
        growths.place(number, FirstSlots::one(Slot(slot)), &[CellTypeId(0)].into(), spares).expect("it is held")
    }

    /// A growth whose chain ran one step of two before it was placed anew, with a lane in its old place and one in its new.
    fn moved() -> (Growths, [Arc<Lane>; 2]) {
        let mut spares = Spares::default();
        let tensors = RequestTensors { first: 3, tensors: vec![Arc::new(Tensor::from_i64("x", &[1], &[7]))] };
        let mut growths = Growths::new(growth(0), tensors);
        let lanes = [4, 9].map(|slot| {
            let lane = place(&mut growths, 0, slot, &mut spares);
            growths.add_lanes(0, 1);
            lane.growth.executed[0].store(1, Ordering::Relaxed);
            lane
        });
        (growths, lanes)
    }

    #[test]
    fn growths_are_held_as_long_as_an_older_one_has_lanes() {
        let (mut spares, cells): (_, Arc<[CellTypeId]>) = (Spares::default(), [CellTypeId(0)].into());
        let mut growths = Growths::new(growth(0), RequestTensors::default());
        let mut place = |growths: &mut Growths, number: u32| {
            let lane = growths.place(number, FirstSlots::one(Slot(number)), &cells, &mut spares).expect("it is held");
            growths.add_lanes(number, 1);
            lane
        };
        let first = place(&mut growths, 0);
        for number in 1..4 {
            growths.grow(growth(number), RequestTensors::default());
            let lane = place(&mut growths, number);
            assert!(Arc::ptr_eq(&lane.growth.flags, &first.growth.flags), "who is dead is so with all growths");
        }
        growths.mark_dead();
        assert!(first.growth.flags.dead.load(Ordering::Relaxed));

        // The second is emptied, the first holds its place.
        growths.release_lane(1);
        assert_eq!((growths.len(), growths.get(1).is_some(), growths.get(2).is_some()), (4, false, true));
        assert_eq!(growths.earlier_chain(2).map(|earlier| earlier.chain), Some(2));
        growths.release_lane(0);
        assert_eq!((growths.len(), growths.get(0).is_some(), growths.placed(2).is_some()), (2, false, true));
        assert_eq!(growths.earlier_chain(0).map(|earlier| earlier.chain), None);
        growths.release_lane(2);
        growths.release_lane(3);
        assert_eq!((growths.len(), growths.get(3).is_some()), (1, true), "the last stays: another may come");
        growths.grow(growth(4), RequestTensors::default());
        assert_eq!((growths.len(), growths.get(3).is_some(), growths.get(4).is_some()), (2, false, true));
    }

    #[test]
    fn a_growth_that_is_placed_anew_is_the_same_growth_elsewhere() {
        let (mut growths, [old, new]) = moved();
        assert_eq!((old.slot(), new.slot()), (Slot(4), Slot(9)));
        assert!(growths.placed(0).is_some_and(|placed| Arc::ptr_eq(placed, &new.growth)));
        let ([old, new], tensor) = ([&old.growth, &new.growth], |placed: &PlacedGrowth| placed.tensor(3).cloned());
        assert!(Arc::ptr_eq(&old.growth, &new.growth) && tensor(old).is_some() && tensor(old) == tensor(new));
        assert!(Arc::ptr_eq(&old.executed, &new.executed), "where a chain ended before, it has ended");
        assert!(Arc::ptr_eq(&old.flags, &new.flags), "who is dead is so in both places");

        // It is held as long as it has lanes in either place.
        growths.grow(growth(1), RequestTensors::default());
        growths.release_lane(0);
        assert_eq!((growths.len(), growths.get(0).is_some()), (2, true), "lanes in the old place count");
        growths.release_lane(0);
        assert_eq!((growths.len(), growths.get(0).is_some()), (1, false));
    }

    #[test]
    fn neither_place_of_a_growth_is_spare_while_the_other_has_a_lane() {
        for old_goes_first in [true, false] {
            let (mut spares, (growths, [old, new])) = (Spares::default(), moved());
            drop(growths);
            let (first, last) = if old_goes_first { (old, new) } else { (new, old) };
            spares.keep(&mut vec![first]);
            assert_eq!(spares.len(), 0, "the other one writes how far it came");
            spares.keep(&mut vec![last]);
            assert_eq!(spares.len(), 1);
        }
    }

    #[test]
    fn what_a_growth_refers_to_lies_where_it_was_placed_last() {
        let (mut growths, [_, new]) = moved();
        let mut follows = independent(0, 1, Vec::new(), 2);
        follows.length.like = Some(0);
        growths.grow(Arc::new(UnfoldedGrowth { first_chain: 1, ..growth_of(vec![follows]) }), RequestTensors::default());
        let slot_and_steps = |growths: &mut Growths| {
            let lane = place(growths, 1, 5, &mut Spares::default());
            let [earlier] = &lane.growth.earlier[..] else { panic!("it refers to one chain") };
            (earlier.chain, earlier.stages[0].0, earlier.executed())
        };
        assert_eq!(slot_and_steps(&mut growths), (0, new.slot(), 1));
        place(&mut growths, 0, 12, &mut Spares::default());
        assert_eq!(slot_and_steps(&mut growths), (0, Slot(12), 1));
    }

    #[test]
    fn a_growth_refers_to_those_chains_whose_ends_it_waits_for() {
        let mut spares = Spares::default();
        let mut growths = Growths::new(growth(0), RequestTensors::default());
        place(&mut growths, 0, 3, &mut spares);
        growths.add_lanes(0, 1);
        let mut reads = independent(0, 1, Vec::new(), 2);
        reads.stages[0].depends.extend([1, 0].map(|chain| Dependency::End { chain }));
        growths.grow(Arc::new(UnfoldedGrowth { first_chain: 1, ..growth_of(vec![reads.clone(), reads]) }), RequestTensors::default());
        let lane = place(&mut growths, 1, 5, &mut spares);
        assert_eq!(lane.growth.earlier.iter().map(|earlier| earlier.chain).collect::<Vec<_>>(), [0], "its own it has at hand");
    }

    #[test]
    fn a_growth_that_gets_its_place_after_another_came_shares_its_flags_and_takes_no_spare_place() {
        let mut spares = Spares::default();
        let over = place(&mut Growths::new(growth(0), RequestTensors::default()), 0, 1, &mut spares);
        spares.keep(&mut vec![over]);
        assert_eq!(spares.len(), 1);

        let mut growths = Growths::new(growth(0), RequestTensors::default());
        growths.grow(growth(1), RequestTensors::default());
        let placed = [0, 1].map(|number| place(&mut growths, number, number, &mut spares));
        assert_eq!(spares.len(), 1, "a spare place has flags of its own");
        growths.mark_dead();
        assert_eq!(placed.map(|lane| lane.growth.flags.dead.load(Ordering::Relaxed)), [true; 2]);

        place(&mut Growths::new(growth(0), RequestTensors::default()), 0, 1, &mut spares);
        assert_eq!(spares.len(), 0, "who is alone takes it");
    }
}

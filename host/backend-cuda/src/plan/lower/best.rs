//! The best few sums of a product, lowered: the product leaves candidates, and a launch behind it puts them in order.

use cellwright_cell_graph::typed::{Compute, Operation};

use super::super::best::{self, Best, Kept};
use super::super::view::{Base, Element, View};
use super::{Item, Lowering, Why, Work, narrow};
use crate::abi::CANDIDATE_BYTES;

impl Lowering<'_> {
    /// Room for the candidates among a product's sums, seen as if these lay there: whoever reads them is the operation that wants the best of them, which
    /// [`Lowering::best`] lowers, and what reshapes them before that.
    pub(super) fn candidates_room(&mut self, shape: &[usize], kept: Kept) -> View {
        let panels = best::panels(shape.iter().product());
        let room = self.room(Element::U8, &[panels * kept.k as usize * CANDIDATE_BYTES]);
        if let Base::Row(value) = room.base {
            self.candidates.insert(value, kept);
        }
        View::whole(room.base, room.at, Element::F32, shape)
    }

    /// What is kept of a value, if not all of it is.
    pub(super) fn kept(&self, view: &View) -> Option<Kept> {
        match view.base {
            Base::Row(value) => self.candidates.get(&value).copied(),
            Base::Blob(_) => None,
        }
    }

    /// The operation that reads candidates.
    pub(super) fn best(&mut self, operation: &Operation, source: &View, kept: Kept) -> Result<(), Why> {
        let mut results = Vec::new();
        for id in &operation.results {
            let result = self.define(*id)?;
            self.known.insert(*id, result.clone());
            results.push(result);
        }
        let has_values = matches!(operation.compute, Compute::TopK { .. });
        let (values, positions) = match &results[..] {
            [values, positions] if has_values => (Some(values.at), positions.at),
            [positions] if !has_values => (None, positions.at),
            _ => return Err(format!("{:?} with {} results", operation.compute, results.len())),
        };
        let panels = narrow(best::panels(source.elements()))?;
        let best = Best { candidates: source.at, panels, kept, values, positions };
        let values_of = |views: &[View]| {
            views.iter().filter_map(|view| if let Base::Row(value) = view.base { Some((value, false)) } else { None }).collect()
        };
        self.lowered.items.push(Item {
            work: Work::Best(best),
            reads: values_of(std::slice::from_ref(source)),
            writes: values_of(&results),
        });
        Ok(())
    }
}

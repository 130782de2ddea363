//! Cuts a cell with ragged inputs into phases.
//!
//! Most of its operations compute rows of nodes or rows of spans, one by one. What computes either
//! is an ordinary cell over such rows. Between these stand the few operations that see a whole span.
//! So a device needs nothing for spans but those, and the bits of every other operation are those of
//! an ordinary cell.

use std::collections::BTreeMap;

use super::half::{Building, port_of};
use super::{BySpan, Half, KeptValue, Phase, Whole};
use crate::sums;
use crate::typed::{CellOutput, Operation, Origin, TypedCell, ValueId};

/// What computes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// The phase of that number: rows of nodes, or of a span.
    Rows(u32, Option<u32>),
    /// A phase of its own.
    Whole(u32),
    /// The rest, which gives the cell's outputs.
    Rest,
}

/// Where inputs of nodes are that are taken along with whole spans.
const GIVEN: Place = Place::Rows(0, None);

impl Place {
    const fn number(self) -> Option<u32> {
        match self {
            Self::Rows(number, _) | Self::Whole(number) => Some(number),
            Self::Rest => None,
        }
    }
}

pub(super) fn cut(cell: &TypedCell) -> BySpan {
    let places = places(cell);
    let mut cutting = Cutting { cell, places: &places, kept: BTreeMap::new(), values: Vec::new() };
    cutting.keep();
    let mut phases = Vec::new();
    let last = places.iter().filter_map(|place| place.number()).max();
    for number in 0..=last.unwrap_or_default() {
        let given = cutting.kept.keys().any(|id| cutting.is_given(*id)).then_some(GIVEN);
        let mut of_rows: Vec<Place> = places.iter().copied().filter(|place| matches!(place, Place::Rows(at, _) if *at == number)).collect();
        of_rows.extend(given.filter(|_| number == 0));
        of_rows.sort_unstable();
        of_rows.dedup();
        phases.extend(of_rows.into_iter().map(|place| cutting.rows(place)));
        let whole = |(place, _): &(&Place, &Operation)| **place == Place::Whole(number);
        phases.extend(places.iter().zip(&cell.operations).filter(whole).map(|(_, operation)| cutting.whole(operation)));
    }
    let step = cutting.half(Place::Rest, cell.outputs.clone());
    BySpan { phases, values: cutting.values, step }
}

/// Where each operation is computed: what follows a whole span is of a later phase than it, and what nothing but outputs wait for is left to the rest.
fn places(cell: &TypedCell) -> Vec<Place> {
    let span = |operation: &Operation| cell.value(operation.results[0]).span;
    let mut is_needed = vec![false; cell.operations.len()];
    for (at, operation) in cell.operations.iter().enumerate().rev() {
        if operation.compute.sees_span() || span(operation).is_some() || is_needed[at] {
            is_needed[at] = true;
            for id in &operation.operands {
                if let Origin::Operation(giver) = cell.value(*id).origin {
                    is_needed[giver as usize] = true;
                }
            }
        }
    }
    let mut places: Vec<Place> = Vec::with_capacity(cell.operations.len());
    for (operation, is_needed) in cell.operations.iter().zip(is_needed) {
        let own = |number| if operation.compute.sees_span() { Place::Whole(number) } else { Place::Rows(number, span(operation)) };
        let givers = operation.operands.iter().filter_map(|id| match cell.value(*id).origin {
            Origin::Operation(giver) => Some(places[giver as usize]),
            _ => None,
        });
        let number = givers.filter_map(|giver| {
            let number = giver.number()?;
            Some(if own(number) == giver && matches!(giver, Place::Rows(..)) { number } else { number + 1 })
        });
        let number = number.max().unwrap_or_default();
        places.push(if is_needed { own(number) } else { Place::Rest });
    }
    places
}

struct Cutting<'a> {
    cell: &'a TypedCell,
    places: &'a [Place],
    /// Values that a later part takes, and their numbers.
    kept: BTreeMap<ValueId, u32>,
    values: Vec<KeptValue>,
}

impl Cutting<'_> {
    fn place(&self, id: ValueId) -> Option<Place> {
        match self.cell.value(id).origin {
            Origin::Operation(operation) => Some(self.places[operation as usize]),
            Origin::Input(_) | Origin::Constant(_) => None,
        }
    }

    fn is_given(&self, id: ValueId) -> bool {
        matches!(self.cell.value(id).origin, Origin::Input(_))
    }

    /// Numbers what one part computes and another takes, and inputs of nodes that are taken along with whole spans.
    fn keep(&mut self) {
        let mut taken: Vec<ValueId> = Vec::new();
        for (operation, place) in self.cell.operations.iter().zip(self.places) {
            for id in &operation.operands {
                let value = self.cell.value(*id);
                let is_given = matches!(value.origin, Origin::Input(_)) && value.span.is_none() && matches!(place, Place::Whole(_));
                if is_given || self.place(*id).is_some_and(|giver| giver != *place || matches!(place, Place::Whole(_))) {
                    taken.push(*id);
                }
            }
        }
        let outputs = self.cell.outputs.iter().map(|output| output.value);
        taken.extend(outputs.filter(|id| self.place(*id).is_some_and(|place| place != Place::Rest)));
        for id in taken {
            let value = self.cell.value(id);
            self.kept.entry(id).or_insert_with(|| {
                let number = self.values.len() as u32;
                let (datatype, elements, span) = (value.datatype, value.elements(), value.span);
                self.values.push(KeptValue { datatype, elements, span });
                number
            });
        }
    }

    /// An ordinary cell of the operations of one place.
    fn half(&self, place: Place, outputs: Vec<CellOutput>) -> Half {
        let mut building = Building::new(self.cell);
        let own = |id: ValueId| self.place(id) == Some(place);
        let begin = |building: &mut Building<'_>, id: ValueId| {
            let number = self.kept.get(&id).filter(|_| !own(id) && !self.is_given(id) && !building.knows(id));
            if let Some(number) = number {
                let new = building.begin(self.cell.value(id), *number as usize);
                building.know(id, new);
            }
        };
        for (operation, _) in self.cell.operations.iter().zip(self.places).filter(|(_, of)| **of == place) {
            operation.operands.iter().for_each(|id| begin(&mut building, *id));
            // What it takes has begun, or is an input, a constant or computed here.
            let copied = building.copy(operation);
            debug_assert!(copied.is_some(), "operands stand before results");
        }
        let mut all = Vec::with_capacity(outputs.len());
        for output in outputs {
            begin(&mut building, output.value);
            all.extend(building.find(output.value).map(|value| CellOutput { value, ..output }));
        }
        let mut half = building.finish(all);
        // To what computes it these are rows like any other.
        half.cell.values.iter_mut().for_each(|value| value.span = None);
        half.cell.inputs.iter_mut().for_each(|port| port.ragged = false);
        half.sums = sums::find(&half.cell);
        half
    }

    /// A phase of rows.
    fn rows(&self, place: Place) -> Phase {
        let is_of = |id: ValueId| self.place(id) == Some(place) || (place == GIVEN && self.is_given(id));
        let given: Vec<(ValueId, u32)> = self.kept.iter().filter(|(id, _)| is_of(**id)).map(|(id, number)| (*id, *number)).collect();
        let span = if let Place::Rows(_, span) = place { span } else { None };
        Phase::Rows { span, half: self.half(place, self.outputs(&given)), gives: given.into_iter().map(|(_, number)| number).collect() }
    }

    /// Values as outputs of a cell.
    fn outputs(&self, given: &[(ValueId, u32)]) -> Vec<CellOutput> {
        let output = |(id, number): &(ValueId, u32)| CellOutput { port: port_of(self.cell.value(*id), *number), value: *id };
        given.iter().map(output).collect()
    }

    /// An operation that sees whole spans.
    fn whole(&self, operation: &Operation) -> Phase {
        let feed = |id: &ValueId| match (self.kept.get(id), &self.cell.value(*id).origin) {
            (Some(number), _) => super::Feed::Pre(*number),
            (None, Origin::Input(input)) => super::Feed::Own(*input),
            // Whole spans are taken of inputs and of what was computed before.
            (None, _) => super::Feed::Pre(u32::MAX),
        };
        let span = operation.results.iter().chain(&operation.operands).find_map(|id| self.cell.value(*id).span);
        Phase::Whole(Whole {
            compute: operation.compute.clone(),
            span: span.unwrap_or_default(),
            operands: operation.operands.iter().map(feed).collect(),
            shapes: operation.operands.iter().map(|id| self.cell.value(*id).shape.clone()).collect(),
            datatypes: operation.operands.iter().map(|id| self.cell.value(*id).datatype).collect(),
            results: operation.results.iter().map(|id| self.kept.get(id).copied()).collect(),
        })
    }
}

//! Hoisting: splits a cell into a half that does not need its state (`pre`) and the rest (`step`).
//!
//! The product `W_x·x + b` of a recurrent cell does not wait for `h`. [`ahead`] splits off all
//! products that depend only on inputs that are not *carried*. If such a product depends on one
//! token alone, `pre` has as many results as there are tokens. These fit a table, and [`by_token`]
//! names its input, carried or not.
//!
//! Both halves are ordinary cells. Their own identity matters to nobody: a cell type is the whole
//! body and its carried ports. The halves keep the sums of the whole and must not be searched for
//! sums again, because half a cell has sums that the whole has not. The terms of a sum that can be
//! split off always stand first ([`crate::sums`]), and sums are cut between terms only. So a cell
//! has the same bits as a whole, in two halves and from a table, as long as a backend adds term by
//! term.
//!
//! `pre` is no node of the graph. It belongs to the worker, which may compute it for several steps
//! at once, ahead of a task, or never. As a node it would cost each step a dependency between two
//! stages, so chains could not stay together in a group. It would also cost each step a slot as
//! wide as `pre` until the step ends.
//!
//! Some cells, such as the node of a tree, have nothing that is known before the rest. A worker may
//! take them [`by_input`]: it computes what each input adds to a sum by itself. That part can be
//! looked up where the input is known to depend on one token ([`only_token`]), as a leaf does. The
//! cell then has other last bits than as a whole, so a worker that takes it this way always does.

mod by_input;
mod by_span;
mod half;
mod splitting;

use crate::datatype::Datatype;
use crate::sums::Summed;
use crate::typed::{Compute, Operation, Origin, TypedCell, ValueId};
use splitting::Splitting;

/// Where an input of a half comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// That input of the whole cell.
    Own(u32),
    /// That output of `pre`, or of all parts of a cell that is taken input by input.
    Pre(u32),
}

/// A half of a cell.
#[derive(Clone, Debug)]
pub struct Half {
    /// The cell. Its key is that of the whole, under which it is not to be loaded.
    pub cell: TypedCell,
    /// For each of its operations what becomes of it, as it was found in the whole. It is not to be found anew ([`crate::sums::find`]): half a cell
    /// has sums that the whole has not, such as one that begins with what is an operation's result there, and these give other bits.
    pub sums: Vec<Summed>,
    /// Where each of its inputs comes from.
    pub feeds: Vec<Feed>,
}

/// A cell in two: `step` takes what `pre` gives.
#[derive(Clone, Debug)]
pub struct Hoisted {
    /// What can be computed before.
    pub pre: Half,
    /// The rest; its outputs are those of the whole.
    pub step: Half,
}

/// A cell of which a part depends on one token alone.
#[derive(Clone, Debug)]
pub struct ByToken {
    /// The input that is the token: one integer, which counts from the end if it is negative.
    pub input: u32,
    /// How many tokens there are.
    pub tokens: usize,
    /// The two halves; `pre` has that input alone.
    pub hoisted: Hoisted,
}

/// What one input adds to the sums of a cell.
#[derive(Clone, Debug)]
pub struct OfInput {
    /// The input.
    pub input: u32,
    /// What computes it, of that input alone.
    pub half: Half,
    /// For each of its outputs: as which [`Feed::Pre`] the rest takes it.
    pub numbers: Vec<u32>,
}

/// A cell whose sums are computed input by input.
#[derive(Clone, Debug)]
pub struct ByInput {
    /// What inputs add, by input.
    pub parts: Vec<OfInput>,
    /// What adds that up, and everything else; its outputs are those of the whole.
    pub step: Half,
}

/// A cell with ragged inputs, in parts that are computed one after the other.
#[derive(Clone, Debug)]
pub struct BySpan {
    /// What is computed before the rest.
    pub phases: Vec<Phase>,
    /// What phases give, by number.
    pub values: Vec<KeptValue>,
    /// The rest, of rows of nodes; its outputs are those of the whole.
    pub step: Half,
}

/// A value that one phase gives and others take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptValue {
    /// Its datatype.
    pub datatype: Datatype,
    /// Elements of a row.
    pub elements: usize,
    /// The span of which it has a row for each row, if it has not one for each node.
    pub span: Option<u32>,
}

/// A phase of a cell with ragged inputs.
#[derive(Clone, Debug)]
pub enum Phase {
    /// An ordinary cell over rows of nodes, or over all rows of a span.
    Rows {
        /// The span whose rows these are; none: rows of nodes.
        span: Option<u32>,
        /// The cell. [`Feed::Pre`] names a value by number.
        half: Half,
        /// The number of each of its outputs.
        gives: Vec<u32>,
    },
    /// An operation that sees whole spans.
    Whole(Whole),
}

/// An operation that sees whole spans ([`Compute::sees_span`]).
#[derive(Clone, Debug)]
pub struct Whole {
    /// Which.
    pub compute: Compute,
    /// The span that it gives rows of; if it gives none, the one that it takes.
    pub span: u32,
    /// Where its operands come from. [`Feed::Own`] is a ragged input.
    pub operands: Vec<Feed>,
    /// Their shapes.
    pub shapes: Vec<Vec<usize>>,
    /// Their datatypes.
    pub datatypes: Vec<Datatype>,
    /// The number of each result, if somebody takes it.
    pub results: Vec<Option<u32>>,
}

/// Cuts a cell with ragged inputs where whole spans are seen; none if it has no such input.
#[must_use]
pub fn by_span(cell: &TypedCell) -> Option<BySpan> {
    is_ragged(cell).then(|| by_span::cut(cell))
}

fn is_ragged(cell: &TypedCell) -> bool {
    cell.spans.iter().any(Option::is_some)
}

/// Splits a cell by its inputs, if none of them is known before others (all are carried, or none is) and there is a sum of products of several as they come; none
/// otherwise, and where inputs are so short that a product of one costs hardly more than to look it up.
#[must_use]
pub fn by_input(cell: &TypedCell) -> Option<ByInput> {
    if is_ragged(cell) { None } else { by_input::split(cell) }
}

/// How many tokens there are, if a cell takes one and nothing else: its outputs are what that token makes of them.
#[must_use]
pub fn only_token(cell: &TypedCell) -> Option<usize> {
    if cell.inputs.len() == 1 && !is_ragged(cell) { tokens(cell, 0) } else { None }
}

/// Splits off what depends on inputs alone that are not carried; none if that is no product, or nothing would be left.
#[must_use]
pub fn ahead(cell: &TypedCell) -> Option<Hoisted> {
    let depends = Dependence::of(cell);
    if is_ragged(cell) || cell.inputs.iter().all(|port| !port.carried) {
        return None;
    }
    Splitting::new(cell, &depends, depends.early).split()
}

/// Splits off what depends on one token alone; none if there is no such product.
#[must_use]
pub fn by_token(cell: &TypedCell) -> Option<ByToken> {
    let depends = Dependence::of(cell);
    let (input, tokens) = depends.token.filter(|_| !is_ragged(cell))?;
    let hoisted = Splitting::new(cell, &depends, Inputs::one(input)).split()?;
    Some(ByToken { input, tokens, hoisted })
}

/// A set of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inputs([u64; Inputs::WORDS]);

impl Inputs {
    const WORDS: usize = 4;
    const NONE: Self = Self([0; Self::WORDS]);
    const ALL: Self = Self([u64::MAX; Self::WORDS]);

    /// Beyond what fits the set, an input counts as all there are: nothing that depends on it is split off.
    fn one(input: u32) -> Self {
        let (word, bit) = (input as usize / 64, input % 64);
        let mut set = Self::NONE;
        match set.0.get_mut(word) {
            Some(word) => *word = 1 << bit,
            None => return Self::ALL,
        }
        set
    }

    fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// The one input, if it is one.
    fn only(self) -> Option<u32> {
        let mut words = (0..).step_by(64).zip(self.0).filter(|(_, word)| *word != 0);
        let (first, word) = words.next()?;
        (word.is_power_of_two() && words.next().is_none()).then(|| first + word.trailing_zeros())
    }

    fn is_within(self, other: Self) -> bool {
        self.0.iter().zip(other.0).all(|(own, other)| own & !other == 0)
    }
}

/// Products over fewer elements are left where they are: there is nothing to gain, and thin products may be computed in another way than others.
pub(crate) const DEPTH_LEAST: usize = 3;

/// When a value can be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// As soon as a token is, which could have a table.
    ByToken(u32),
    /// Before the state is.
    Early,
    /// With the state.
    Late,
}

/// On which inputs each value of a cell depends.
#[derive(Clone, Debug)]
pub(crate) struct Dependence {
    of: Vec<Inputs>,
    /// Inputs that are not carried.
    early: Inputs,
    /// The token input by which a part of the cell can be looked up, and how many tokens there are.
    token: Option<(u32, usize)>,
}

impl Dependence {
    pub(crate) fn of(cell: &TypedCell) -> Self {
        let mut of = vec![Inputs::NONE; cell.values.len()];
        for (id, value) in cell.values.iter().enumerate() {
            if let Origin::Input(input) = value.origin {
                of[id] = Inputs::one(input);
            }
        }
        for operation in &cell.operations {
            let all = operation.operands.iter().fold(Inputs::NONE, |all, id| all.or(of[id.0 as usize]));
            operation.results.iter().for_each(|id| of[id.0 as usize] = all);
        }
        let early = (0_u32..).zip(&cell.inputs).filter(|(_, port)| !port.carried);
        let early = early.fold(Inputs::NONE, |early, (input, _)| early.or(Inputs::one(input)));
        let mut depends = Self { of, early, token: None };
        depends.token = depends.find_token(cell);
        depends
    }

    /// How early a value is known: from a token that has a table, from what is not carried, or from all.
    pub(crate) fn rank(&self, id: ValueId) -> u8 {
        let of = self.of[id.0 as usize];
        match self.token {
            Some((token, _)) if of.is_within(Inputs::one(token)) => 0,
            _ if of.is_within(self.early) => 1,
            _ => 2,
        }
    }

    /// When each value of the cell can be known.
    pub(crate) fn known(&self, cell: &TypedCell) -> Vec<Known> {
        let is_token: Vec<bool> = (0..).take(cell.inputs.len()).map(|input| tokens(cell, input).is_some()).collect();
        let known = |of: &Inputs| match of.only() {
            Some(input) if is_token.get(input as usize) == Some(&true) => Known::ByToken(input),
            _ if of.is_within(self.early) => Known::Early,
            _ => Known::Late,
        };
        self.of.iter().map(known).collect()
    }

    /// One that is not carried if there is one. A carried one only if nothing else could be split off: what comes first in a sum can be but one.
    fn find_token(&self, cell: &TypedCell) -> Option<(u32, usize)> {
        let products = || cell.operations.iter().filter(|operation| matches!(operation.compute, Compute::Linear { .. }));
        let left = |operation: &Operation| self.of[operation.operands[0].0 as usize];
        let is_token = |input: &u32| products().any(|of| left(of) == Inputs::one(*input)) && tokens(cell, *input).is_some();
        let is_early = |input: &u32| !cell.inputs[*input as usize].carried;
        let inputs = || 0..u32::try_from(cell.inputs.len()).unwrap_or(u32::MAX);
        let input = match inputs().filter(is_early).find(is_token) {
            Some(early) => early,
            None if products().any(|of| left(of).is_within(self.early)) => return None,
            None => inputs().find(is_token)?,
        };
        Some((input, tokens(cell, input)?))
    }
}

/// How many tokens an input may be, if it is one: a single integer that is nothing but an index, always into as many rows.
fn tokens(cell: &TypedCell, input: u32) -> Option<usize> {
    let id = ValueId(input);
    let value = cell.value(id);
    if !matches!(value.datatype, Datatype::Int32 | Datatype::Int64) || value.elements() != 1 {
        return None;
    }
    let mut tokens = None;
    for operation in cell.operations.iter().filter(|operation| operation.operands.contains(&id)) {
        let [table, index] = operation.operands[..] else { return None };
        let rows = cell.value(table).shape.first().copied()?;
        if operation.compute != Compute::Gather || index != id || *tokens.get_or_insert(rows) != rows {
            return None;
        }
    }
    tokens
}

#[cfg(test)]
mod tests;

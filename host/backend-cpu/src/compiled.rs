//! A cell as workers run it: as a whole, or in two halves of which the first runs ahead or is looked up in a table.
//!
//! All three give the same bits: halves have the sums of the whole, cut between terms alone (`cellwright_cell_graph::{sums, hoist}`), and a product that goes on where another ended
//! takes up what that one put down, at every precision. So which of them runs may depend on anything: on memory, on how many rows there are, on how many steps.

use cellwright_backend::LoadError;
use cellwright_cell_graph::hoist::{self, ByToken, Feed, Half, Hoisted};
use cellwright_cell_graph::{TypedCell, sums};

use crate::level::{Kernels, Level};
use crate::matrix::Packs;
use crate::plan::Plan;
use crate::table::Table;

/// A token's row is computed again each time rather than looked up if that takes fewer operations than so many for each value.
const TABLE_WORTH: u64 = 16;

/// What is split off, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hoisting {
    /// Bytes that a table may take.
    pub(crate) table_bytes: u64,
    /// Bytes of weights that are worth being read once for several steps.
    pub(crate) ahead_weights_least: u64,
}

/// A plan, and where its inputs come from.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) plan: Plan,
    pub(crate) feeds: Vec<Feed>,
}

/// A cell in two halves.
#[derive(Debug)]
pub(crate) struct Split {
    pub(crate) pre: Body,
    pub(crate) step: Body,
    /// What `pre` gives for each token, as far as it was asked for; without it `pre` runs ahead.
    pub(crate) table: Option<Table>,
}

/// A cell, compiled.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// None: there is a table.
    whole: Option<Body>,
    split: Option<Split>,
}

impl Compiled {
    /// Compiles a cell.
    ///
    /// # Errors
    /// If it has an operation or a datatype that there is no kernel for.
    pub(crate) fn new(cell: &TypedCell, how: (Level, Kernels), hoisting: Hoisting, packs: &mut Packs) -> Result<Self, LoadError> {
        let mut body = |half: &Half| -> Result<Body, LoadError> {
            Ok(Body { plan: Plan::compile((&half.cell, &half.sums), how, packs)?, feeds: half.feeds.clone() })
        };
        if let Some(ByToken { tokens, hoisted: Hoisted { pre, step }, .. }) = hoist::by_token(cell)
            && pre.cell.flops >= TABLE_WORTH.saturating_mul(values(&pre.cell))
            && let Some(table) = Table::new(&pre.cell, tokens, hoisting.table_bytes)
        {
            let mut split = Split { pre: body(&pre)?, step: body(&step)?, table: Some(table) };
            // It reads an index alone, whose rows are moved where they are missing.
            assert!(
                split.pre.plan.inputs.iter().all(|input| input.packed.is_empty() && input.pointed.is_none()),
                "no product reads an index"
            );
            // Once the table is full the second half is by itself.
            split.pre.plan.stands_beside(split.step.plan.products().1);
            return Ok(Self { whole: None, split: Some(split) });
        }
        let split = match hoist::ahead(cell) {
            Some(Hoisted { pre, step }) => {
                let mut split = Split { pre: body(&pre)?, step: body(&step)?, table: None };
                let (pre, step) = (split.pre.plan.products().1, split.step.plan.products().1);
                split.pre.plan.stands_beside(step);
                split.step.plan.stands_beside(pre);
                Some(split)
            }
            None => None,
        };
        let split = split.filter(|split| split.pre.plan.products().1 as u64 >= hoisting.ahead_weights_least);
        let plan = Plan::compile((cell, &sums::find(cell)), how, packs)?;
        let feeds = (0..).take(cell.inputs.len()).map(Feed::Own).collect();
        Ok(Self { whole: Some(Body { plan, feeds }), split })
    }

    /// What runs one step of rows whose inputs are all there; with a table that has been asked.
    pub(crate) fn one_step(&self) -> &Body {
        match (&self.whole, &self.split) {
            (Some(whole), _) => whole,
            (None, Some(split)) => &split.step,
            (None, None) => unreachable!("a cell is compiled as a whole or in halves"),
        }
    }

    /// The halves of a cell of which the first can run ahead.
    pub(crate) fn ahead(&self) -> Option<&Split> {
        self.split.as_ref().filter(|split| split.table.is_none())
    }

    /// The first half of a cell that has a table, and that.
    pub(crate) fn table(&self) -> Option<(&Body, &Table)> {
        let split = self.split.as_ref()?;
        Some((&split.pre, split.table.as_ref()?))
    }

    /// Floating-point operations of one row in the matrix products of a step by itself, and bytes of their packed weights.
    pub(crate) fn products(&self) -> (usize, usize) {
        self.one_step().plan.products()
    }

    /// Bytes of weights and constants. Halves share those of the whole.
    pub(crate) fn bytes(&self) -> usize {
        match (&self.whole, &self.split) {
            (None, Some(split)) => split.pre.plan.bytes() + split.step.plan.bytes(),
            _ => self.one_step().plan.bytes(),
        }
    }
}

/// Values of a row of all outputs.
fn values(cell: &TypedCell) -> u64 {
    cell.outputs.iter().map(|output| cell.value(output.value).elements() as u64).sum()
}

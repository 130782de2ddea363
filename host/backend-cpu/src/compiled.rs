//! A cell as workers run it: whole, in two halves (computed ahead or looked up), input by input, or in
//! phases.
//!
//! Whole and halves have the same bits. Halves keep the sums of the whole, cut between terms alone
//! (`cellwright_cell_graph::{sums, hoist}`), and a later product takes up the sum that an earlier
//! one put down, at every precision. So the choice may depend on anything: memory, rows, steps.
//!
//! A cell that can be taken input by input always is, because its bits differ then. Which of its
//! parts are looked up may again depend on anything.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use cellwright_backend::{LoadError, TableInfo};
use cellwright_cell_graph::hoist::{self, ByInput, ByToken, Feed, Half, Hoisted, OfInput};
use cellwright_cell_graph::{TypedCell, sums};

use crate::held::Held;
use crate::level::{Kernels, Level};
use crate::matrix::Packs;
use crate::plan::Plan;
use crate::spans::Spans;
use crate::table::{Budget, Table, TableRow};

/// A token's row is computed again each time rather than looked up if that takes fewer operations than so many for each value.
const TABLE_WORTH: u64 = 16;

/// A first half is looked up if one in so many tokens has room: those that come first are those that come most, and the others are computed with each step.
const TOKENS_WORTH: usize = 4;

/// What is split off, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hoisting<'a> {
    /// What tables may take.
    pub(crate) table_budget: &'a Arc<Budget>,
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
}

/// What one input adds to the sums of a cell.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) input: u32,
    pub(crate) body: Body,
    /// As which [`Feed::Pre`] the rest takes each of its outputs.
    pub(crate) numbers: Vec<u32>,
    row: TableRow,
}

/// What the inputs of a cell add to its sums, each by itself.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) all: Vec<Part>,
    tables: Mutex<Vec<Arc<PartTables>>>,
    budget: Arc<Budget>,
    info: Arc<TableInfo>,
}

/// What inputs add that are an output of a cell that takes a token and nothing else.
#[derive(Debug)]
pub(crate) struct PartTables {
    giver: Weak<Compiled>,
    output: u32,
    /// Of each table.
    rows: usize,
    /// By part; none if there was no room for it.
    pub(crate) of: Vec<Option<Table>>,
}

/// Tables are made anew when they can have so many times as many rows: what was in the others is gone then.
const WORTH_MAKING_ANEW: usize = 4;

impl Parts {
    pub(crate) fn may_have_tables(&self) -> bool {
        !self.budget.is_nothing()
    }

    /// The tables of what an output of that cell adds, new ones if it is seen for the first time; none if it is no cell of one token alone.
    pub(crate) fn tables(&self, giver: &Arc<Compiled>, output: u32) -> Option<Arc<PartTables>> {
        let tokens = giver.only_token?;
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = |of: &Arc<PartTables>| of.output == output && std::ptr::eq(of.giver.as_ptr(), Arc::as_ptr(giver));
        // Others may have made room since.
        let is_well = |there: &PartTables| there.rows == tokens || self.rows(tokens) < there.rows.max(1).saturating_mul(WORTH_MAKING_ANEW);
        if let Some(at) = tables.iter().position(is_there) {
            if is_well(&tables[at]) {
                return Some(tables[at].clone());
            }
            tables.swap_remove(at);
        }
        let rows = self.rows(tokens);
        let of = self.all.iter().map(|part| Table::new(&part.row, (rows, tokens), &self.budget, &self.info)).collect();
        let new = Arc::new(PartTables { giver: Arc::downgrade(giver), output, rows, of });
        tables.push(new.clone());
        Some(new)
    }

    /// Forgets what was kept of cells that go, and gives it.
    pub(crate) fn forget(&self, gone: &[Arc<Compiled>]) -> Vec<Arc<PartTables>> {
        let goes = |of: &mut Arc<PartTables>| gone.iter().any(|giver| std::ptr::eq(of.giver.as_ptr(), Arc::as_ptr(giver)));
        self.tables.lock().unwrap_or_else(PoisonError::into_inner).extract_if(.., goes).collect()
    }

    /// Rows that each part's table could have.
    fn rows(&self, tokens: usize) -> usize {
        self.budget.rows(self.all.iter().map(|part| &part.row), tokens)
    }
}

/// What runs before a cell's step, or instead of a part of it.
#[derive(Debug)]
enum Before {
    Nothing,
    /// The first half for several steps, and then the second for each.
    Ahead(Split),
    /// The first half of each token that the table has not.
    Table(Body, Table),
    /// What each input adds.
    Parts(Parts),
    /// The phases of a cell with ragged inputs, and what they need.
    Spans(Spans),
}

/// A cell, compiled.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// How many tokens there are, if it takes one and nothing else.
    pub(crate) only_token: Option<usize>,
    /// The whole of it, or what is left of it by a table or by parts.
    step: Body,
    before: Before,
}

impl Compiled {
    /// Compiles a cell.
    ///
    /// # Errors
    /// If it has an operation or a datatype that there is no kernel for.
    pub(crate) fn new(cell: &TypedCell, how: (Level, Kernels), hoisting: Hoisting<'_>, packs: &mut Packs) -> Result<Self, LoadError> {
        let only_token = hoist::only_token(cell);
        let mut body = |half: &Half| -> Result<Body, LoadError> {
            Ok(Body { plan: Plan::compile((&half.cell, &half.sums), how, packs)?, feeds: half.feeds.clone() })
        };
        if let Some((spans, step)) = Spans::compile(cell, how.0, &mut body)? {
            return Ok(Self { only_token, step, before: Before::Spans(spans) });
        }
        if let Some(ByToken { tokens, hoisted: Hoisted { pre, step }, .. }) = hoist::by_token(cell)
            && pre.cell.flops >= TABLE_WORTH.saturating_mul(values(&pre.cell))
            && let Some(row) = TableRow::of(&pre.cell)
            && let rows = hoisting.table_budget.rows(std::iter::once(&row), tokens)
            && rows >= tokens.div_ceil(TOKENS_WORTH)
            && let Some(table) = Table::new(&row, (rows, tokens), hoisting.table_budget, &Arc::default())
        {
            let (mut pre, step) = (body(&pre)?, body(&step)?);
            // It reads an index alone, whose rows are moved where they are missing.
            assert!(pre.plan.inputs.iter().all(|input| input.packed.is_empty() && input.pointed.is_none()), "no product reads an index");
            // Once the table is full the second half is by itself.
            pre.plan.stands_beside(step.plan.products().1);
            return Ok(Self { only_token, step, before: Before::Table(pre, table) });
        }
        if let Some(ByInput { parts, step }) = hoist::by_input(cell) {
            let part = |of: OfInput| {
                let row = TableRow::of(&of.half.cell).ok_or_else(|| LoadError::Unsupported {
                    cell: cell.name.clone(),
                    device: "the CPU worker".to_owned(),
                    what: "rows too long to address".to_owned(),
                })?;
                Ok(Part { input: of.input, body: body(&of.half)?, numbers: of.numbers, row })
            };
            let mut all = parts.into_iter().map(part).collect::<Result<Vec<_>, LoadError>>()?;
            let bytes: usize = all.iter().map(|part| part.body.plan.products().1).sum();
            all.iter_mut().for_each(|part| part.body.plan.stands_beside(bytes - part.body.plan.products().1));
            let parts = Parts { all, tables: Mutex::default(), budget: hoisting.table_budget.clone(), info: Arc::default() };
            return Ok(Self { only_token, step: body(&step)?, before: Before::Parts(parts) });
        }
        let split = match hoist::ahead(cell) {
            Some(Hoisted { pre, step }) => {
                let mut split = Split { pre: body(&pre)?, step: body(&step)? };
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
        Ok(Self { only_token, step: Body { plan, feeds }, before: split.map_or(Before::Nothing, Before::Ahead) })
    }

    /// What runs one step of rows whose inputs are all there; with a table that has been asked, or with parts that have been computed.
    pub(crate) const fn one_step(&self) -> &Body {
        &self.step
    }

    /// The halves of a cell of which the first can run ahead.
    pub(crate) const fn ahead(&self) -> Option<&Split> {
        if let Before::Ahead(split) = &self.before { Some(split) } else { None }
    }

    /// The first half of a cell that has a table, and that.
    pub(crate) const fn table(&self) -> Option<(&Body, &Table)> {
        if let Before::Table(pre, table) = &self.before { Some((pre, table)) } else { None }
    }

    /// What inputs add, of a cell that is taken input by input.
    pub(crate) const fn parts(&self) -> Option<&Parts> {
        if let Before::Parts(parts) = &self.before { Some(parts) } else { None }
    }

    /// What runs before the rest of a cell with ragged inputs.
    pub(crate) const fn spans(&self) -> Option<&Spans> {
        if let Before::Spans(spans) = &self.before { Some(spans) } else { None }
    }

    /// What is said of its tables, if it has some or may come to.
    pub(crate) fn info(&self) -> Option<&Arc<TableInfo>> {
        match &self.before {
            Before::Table(_, table) => Some(table.info()),
            Before::Parts(parts) => parts.may_have_tables().then_some(&parts.info),
            Before::Nothing | Before::Ahead(_) | Before::Spans(_) => None,
        }
    }

    /// Floating-point operations of one row in the matrix products of a step by itself of which no part is looked up, and bytes of their packed weights.
    pub(crate) fn products(&self) -> (usize, usize) {
        let parts = self.parts().into_iter().flat_map(|parts| &parts.all).map(|part| &part.body);
        let before = parts.chain(self.spans().into_iter().flat_map(Spans::bodies)).map(|body| body.plan.products());
        before.fold(self.step.plan.products(), |sum, more| (sum.0 + more.0, sum.1 + more.1))
    }

    /// Bytes of a frame for each row, for so many threads, where one step of it runs at a time.
    pub(crate) fn frame_row_bytes(&self, threads: usize) -> usize {
        let before = self.ahead().map_or(0, |split| split.pre.plan.frame_row_bytes(threads));
        let spans = self.spans().map_or(0, |spans| spans.row_bytes(threads));
        before.max(self.one_step().plan.frame_row_bytes(threads)) + spans
    }

    /// Bytes of weights and constants, each counted once, however many products and halves share it.
    pub(crate) fn bytes(&self) -> usize {
        let mut held = Held::default();
        match &self.before {
            Before::Nothing => {}
            Before::Ahead(split) => [&split.pre, &split.step].into_iter().for_each(|half| half.plan.hold(&mut held)),
            Before::Table(pre, _) => pre.plan.hold(&mut held),
            Before::Parts(parts) => parts.all.iter().for_each(|part| part.body.plan.hold(&mut held)),
            Before::Spans(spans) => spans.bodies().for_each(|body| body.plan.hold(&mut held)),
        }
        self.step.plan.hold(&mut held);
        held.bytes()
    }
}

/// Values of a row of all outputs.
fn values(cell: &TypedCell) -> u64 {
    cell.outputs.iter().map(|output| cell.value(output.value).elements() as u64).sum()
}

//! A cell compiled once: matrix products, and between them fused groups of everything element-wise, over buffers whose places are fixed.
//!
//! A plan knows rows only by number. It is made in seven passes: [`lower`] turns operations into few kinds with all broadcasting and axis order
//! resolved, [`project`] puts products together with what alone reads them, [`gates`] functions with the
//! product of floats that alone reads them, [`storage`] says which values share memory so that splits and concatenations need no copies, [`moves`] which rows of inputs and outputs are copied, [`fuse`] orders steps and forms groups,
//! [`run`] carries them out.

mod copies;
mod folding;
mod frame;
mod fuse;
mod gates;
mod lower;
mod moves;
mod project;
mod run;
mod storage;

use std::sync::Arc;

use cellwright_backend::LoadError;
use cellwright_cell_graph::sums::Summed;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};

pub(crate) use frame::{Frame, Memory};
pub(crate) use run::{Refusal, RefusedRow, share};

use crate::cache;
use crate::held::Held;
use crate::kernels::element::{Element, Kernel};
use crate::kernels::rows::{RowKernel, Shape};
use crate::level::{Kernels, Level};
use crate::matrix::{Packing, Packs, Product, Screen};
use crate::memory::Lines;
use copies::Copies;

/// Elements that a fused group works on at a time: few enough that they and its intermediate values stay in the nearest cache.
const TILE: usize = 1024;

/// A place in each row of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) buffer: usize,
    /// Bytes from the row's beginning.
    pub(crate) offset: usize,
}

/// Where rows are that are packed for products as they are gathered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed {
    pub(crate) packing: Packing,
    /// Among those of the plan.
    number: usize,
}

/// Rows that are not gathered, but read where they lie, by groups and by products that may; and rows that groups leave where they will be looked for.
/// By number, of those of the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointed(usize);

/// Where an input is gathered to: as it is, packed, or both; or that it is not.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) place: Option<Place>,
    /// More than once if products pack it each in their own way.
    pub(crate) packed: Vec<Packed>,
    /// If its rows are only pointed to: then the place is for those that cannot be read where they lie.
    pub(crate) pointed: Option<Pointed>,
    pub(crate) bytes: usize,
    pub(crate) element: Element,
}

/// Where an output is scattered from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) place: Place,
    /// If its rows are left where somebody points to: then the place is for those of which nobody does.
    pub(crate) pointed: Option<Pointed>,
    pub(crate) bytes: usize,
}

/// Where left-hand sides of a product are.
#[derive(Clone, Copy, Debug)]
enum LeftPlace {
    Floats(Place),
    Pointed(Pointed),
    Packed(Packed),
}

/// Something a step reads.
#[derive(Clone, Copy, Debug)]
enum Source {
    Buffer(Place),
    Pointed(Pointed),
    /// Bytes from the beginning of a thread's registers.
    Register(usize),
    /// A constant of the plan.
    Constant(usize),
}

/// One element-wise operation of a group. The last source repeats where there are fewer than three.
#[derive(Debug)]
struct Instruction {
    kernel: Kernel,
    result: Source,
    result_size: usize,
    sources: [Source; 3],
    source_sizes: [usize; 3],
}

/// Element-wise operations on rows of one width, run tile by tile.
#[derive(Debug)]
struct Group {
    width: usize,
    tile_rows: usize,
    instructions: Vec<Instruction>,
}

/// A matrix product: `lead` rows of the matrix for each row of the batch.
#[derive(Debug)]
struct Linear {
    product: Product,
    lefts: Vec<(LeftPlace, usize)>,
    lead: usize,
    n: usize,
    result: Place,
    /// What sums begin with, if that is pointed to.
    begin: Option<Pointed>,
}

/// Slices that are no views, broadcasts, concatenations that could not be placed.
#[derive(Debug)]
struct Assembly {
    parts: Vec<(Source, Copies)>,
    result: Place,
}

/// Rows of a table by number.
#[derive(Debug)]
struct Lookup {
    /// The cell's own: a table of words is most of what many models weigh, and rows are copied out of it as they lie.
    table: Arc<Tensor>,
    table_rows: usize,
    row_bytes: usize,
    index: Place,
    index_element: Element,
    count: usize,
    result: Place,
}

/// A row kernel.
#[derive(Debug)]
struct Whole {
    kernel: RowKernel,
    shape: Shape,
    source: Place,
    result: Place,
    second: Option<Place>,
}

/// A product of which the first few elements of each row are kept, in an order, and the others are never written down; or its softmax, or the first few elements of that.
#[derive(Debug)]
struct Projection {
    product: Product,
    /// What rules out most columns where one is wanted.
    screen: Option<Arc<Screen>>,
    lefts: Vec<Place>,
    wanted: project::Wanted,
    /// The elements if there is a second result or all of them are wanted, else their columns.
    result: Place,
    /// Their columns.
    second: Option<Place>,
}

#[derive(Debug)]
enum StepKind {
    Linear(Linear),
    Project(Projection),
    Group(Group),
    Assembly(Assembly),
    Lookup(Lookup),
    Whole(Whole),
}

#[derive(Debug)]
struct Step {
    kind: StepKind,
    /// Roughly how long a row takes, in picoseconds: whether threads are worth it.
    row_ps: usize,
}

impl StepKind {
    fn product_mut(&mut self) -> Option<&mut Product> {
        match self {
            Self::Linear(linear) => Some(&mut linear.product),
            Self::Project(projection) => Some(&mut projection.product),
            _ => None,
        }
    }

    /// The product that it is, and how many rows it has for one of the batch.
    fn product(&self) -> Option<(&Product, usize)> {
        match self {
            Self::Linear(linear) => Some((&linear.product, linear.lead)),
            Self::Project(projection) => Some((&projection.product, 1)),
            _ => None,
        }
    }
}

/// A compiled cell.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) inputs: Vec<Input>,
    pub(crate) outputs: Vec<Output>,
    /// Bytes from row to row of each buffer.
    strides: Vec<usize>,
    /// What is packed as it is gathered.
    packings: Vec<Packing>,
    /// How many inputs and outputs are pointed to.
    pointed: usize,
    /// Bytes of registers a thread needs.
    register_bytes: usize,
    constants: Vec<Lines>,
    steps: Vec<Step>,
    /// Whether every thread can read all weights, for a few rows at a time.
    is_read_by_all: bool,
}

impl Plan {
    /// Compiles a cell, or half of one, of which those are the sums. What was packed before is packed once.
    ///
    /// # Errors
    /// If it has an operation or a datatype that there is no kernel for.
    pub(crate) fn compile(
        (cell, sums): (&TypedCell, &[Summed]),
        (level, kernels): (Level, Kernels),
        packs: &mut Packs,
    ) -> Result<Self, LoadError> {
        let unsupported = |what: String| LoadError::Unsupported { cell: cell.name.clone(), device: "the CPU worker".to_owned(), what };
        let lowered = lower::lower((cell, sums), (level, kernels), packs).map_err(unsupported)?;
        fuse::plan(lowered, (level, kernels), packs).map_err(unsupported)
    }

    /// So many bytes of other weights are used in turns with these.
    pub(crate) fn stands_beside(&mut self, others: usize) {
        let own = self.products().1;
        let mut products = self.steps.iter().filter_map(|step| step.kind.product());
        self.is_read_by_all = cache::keeps(own.saturating_add(others)) && products.all(|(product, _)| product.is_read_meanwhile());
    }

    /// Floating-point operations of one row in matrix products, and bytes of their packed weights.
    pub(crate) fn products(&self) -> (usize, usize) {
        let products = self.steps.iter().filter_map(|step| step.kind.product());
        products.map(|(product, lead)| (product.flops() * lead, product.bytes())).fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1))
    }

    /// Adds weights and constants to what is held.
    pub(crate) fn hold(&self, held: &mut Held) {
        for step in &self.steps {
            match &step.kind {
                StepKind::Lookup(lookup) => held.share(&lookup.table, lookup.table.data.len()),
                StepKind::Project(projection) => projection.hold(held),
                kind => kind.product().into_iter().for_each(|(product, _)| product.hold(held)),
            }
        }
        self.constants.iter().for_each(|constant| held.own(constant.bytes()));
    }
}

/// The element type of a datatype; none if cells cannot compute with it.
pub(crate) const fn element_of(datatype: Datatype) -> Option<Element> {
    Some(match datatype {
        Datatype::Fp32 => Element::F32,
        Datatype::Int64 => Element::I64,
        Datatype::Int32 => Element::I32,
        Datatype::Uint8 => Element::U8,
        Datatype::Bool => Element::Bool,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;

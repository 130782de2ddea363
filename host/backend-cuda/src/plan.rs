//! A cell compiled for a device: matrix products and, between them, groups of everything else, over rows of a frame whose places are fixed.
//!
//! A plan knows rows only by number and addresses not at all: what it reads besides its rows are blobs, which get addresses when they are uploaded
//! ([`crate::worker`]). It is made in two passes: [`lower`] turns operations into products and instructions with every shape question answered, and
//! [`schedule`] puts them into as few launches as their order allows. The step of an LSTM, a GRU or a tree ([`recurrence`]) has kernels of its own, between what
//! comes before it and what comes after.

mod ahead;
mod arithmetic;
mod best;
mod generate;
mod lower;
mod pack;
mod recurrence;
mod schedule;
mod spans;
mod token;
mod view;

use std::sync::Arc;

use cellwright_backend::LoadError;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};

use crate::abi::{GroupInstruction, Outlet, Port, RowRecord};
pub(crate) use generate::{Generated, generate};

pub(crate) use ahead::Ahead;
pub(crate) use arithmetic::Arithmetic;
pub(crate) use best::{Best, Kept};
pub(crate) use spans::{KeptValue, Phase, Spans, Taken, Whole, WholeKind};

/// Values lie at multiples of so many bytes in a row.
pub(crate) const ALIGNMENT: usize = 16;

/// Threads of a block of a group.
const GROUP_THREADS: std::ops::RangeInclusive<u32> = 32..=256;

/// Something a plan reads that is the same for every row, by position in [`Plan::blobs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlobId(pub(crate) usize);

/// Its bytes.
#[derive(Clone, Debug)]
pub(crate) enum Blob {
    /// A tensor as it lies.
    Tensor(Arc<Tensor>),
    /// What was made of one, or of several.
    Bytes(Vec<u8>),
}

impl Blob {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Tensor(tensor) => &tensor.data,
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// x·W.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Term {
    /// Where x lies in a row, aligned to [`ALIGNMENT`]: floats, or for warpgroups what they were rounded to.
    pub(crate) x: usize,
    /// W, packed.
    pub(crate) weights: BlobId,
    /// How long x is.
    pub(crate) k: u32,
}

/// One launch of a product: for each row one row of results.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Product {
    pub(crate) arithmetic: Arithmetic,
    pub(crate) terms: Vec<Term>,
    pub(crate) n: u32,
    /// Where the row lies that it begins with.
    pub(crate) begin: Option<usize>,
    pub(crate) bias: Option<BlobId>,
    /// Where the results lie, or the candidates among them.
    pub(crate) y: usize,
    /// How many candidates are kept of each panel; none: all results are.
    pub(crate) kept: Option<Kept>,
}

/// One launch of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// A matrix product.
    Product(Product),
    /// What candidates come to.
    Best(Best),
    /// Instructions; where an operand is an address, [`crate::abi::GroupOperand::at`] is the number of the blob.
    Group {
        /// In order.
        instructions: Vec<GroupInstruction>,
        /// Of a block.
        threads: u32,
    },
}

/// An input that is an integer and is looked up, nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) input: usize,
    /// Of the tables in which it is looked up.
    pub(crate) rows: u64,
}

/// Most gates of a step that has kernels of its own.
pub(crate) const GATES_MOST: usize = 5;

/// Whose step has kernels of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Gates i, f, g and o.
    Lstm,
    /// Gates r, z and n. What is known of n is not part of its sum; c is h before it is rounded.
    Gru,
    /// A node of a binary tree: gates i, f of either child, o and u. It has no step before.
    Tree,
}

/// The second child of a tree's node, by places in a row: of what was gathered, and of its h rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Second {
    pub(crate) h: usize,
    pub(crate) c: usize,
    pub(crate) rounded: usize,
}

/// A step of an LSTM or a GRU, or a node of a tree, computed by kernels of its own between the steps of a plan that it waits for and those that wait for it.
///
/// Places are of rows of the frame: `h` and `c` of its inputs, `begin` of what the sums of its gates begin with, the others of what it leaves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recurrence {
    pub(crate) kind: Kind,
    /// Of a GRU: z says how much is taken of n, not how much is kept of h.
    pub(crate) z_takes: bool,
    /// In f16; else in bf16.
    pub(crate) is_f16: bool,
    /// Steps of the plan that come before.
    pub(crate) at: usize,
    /// Whether several steps of a chain may be one batch: nothing of a row that waits for its h can be refused.
    pub(crate) is_steady: bool,
    /// Values of h and c,
    pub(crate) own: u32,
    /// and those that are computed: a multiple of 8.
    pub(crate) units: u32,
    pub(crate) weights: BlobId,
    pub(crate) bias: Option<BlobId>,
    pub(crate) begin: Option<usize>,
    /// Where the gates lie in the bias and from `begin` on, in elements; 0 of those that it does not have.
    pub(crate) columns: [u32; GATES_MOST],
    pub(crate) h: usize,
    pub(crate) c: usize,
    pub(crate) h_next: usize,
    pub(crate) c_next: usize,
    /// The same h rounded, before the step; and behind it, if the cell multiplies it.
    pub(crate) h_from: usize,
    pub(crate) h_out: Option<usize>,
    pub(crate) second: Option<Second>,
    /// Which inputs h and c are.
    pub(crate) inputs: [usize; 2],
    /// What `begin` alone depends on, and nothing else that comes before on anything else.
    pub(crate) token: Option<Token>,
    /// What comes before, if it may be computed ahead of the step.
    pub(crate) ahead: Option<Ahead>,
    /// Which outputs their successors are.
    pub(crate) outputs: [Vec<u32>; 2],
}

/// What plans are made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Whether the device has the kernels that are for Hopper alone: recurrences, and products by warpgroups.
    pub(crate) is_hopper: bool,
    /// Whether products of floats are in tf32.
    pub(crate) tf32: bool,
}

/// A compiled cell.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Bytes from row to row of its frame.
    pub(crate) stride: usize,
    pub(crate) inputs: Vec<Port>,
    /// Of each input.
    pub(crate) datatypes: Vec<Datatype>,
    /// Of each, how many pieces a row of it may be: the first extent, of two or more.
    pub(crate) pieces: Vec<u32>,
    pub(crate) outlets: Vec<Outlet>,
    pub(crate) steps: Vec<Step>,
    pub(crate) recurrence: Option<Recurrence>,
    pub(crate) blobs: Vec<Blob>,
}

impl Plan {
    /// Compiles a cell whose packed weights may take so many bytes.
    ///
    /// # Errors
    /// If it has an operation, a datatype or a precision that there is no kernel for, or larger weights.
    pub(crate) fn compile(cell: &TypedCell, available: u64, target: Target) -> Result<Self, LoadError> {
        Self::compile_with(cell, available, target, target.is_hopper)
    }

    /// Compiles a part of a cell with ragged inputs. No kernel for recurrences takes its inputs where they lie.
    ///
    /// # Errors
    /// As of a whole cell.
    pub(crate) fn compile_part(cell: &TypedCell, available: u64, target: Target) -> Result<Self, LoadError> {
        Self::compile_with(cell, available, target, false)
    }

    fn compile_with(cell: &TypedCell, available: u64, target: Target, has_recurrences: bool) -> Result<Self, LoadError> {
        let arithmetic = match Arithmetic::of(cell.precision, target.is_hopper) {
            Arithmetic::F32 if target.tf32 => Arithmetic::Tf32,
            arithmetic => arithmetic,
        };
        let unsupported = |what: String| LoadError::Unsupported { cell: cell.name.clone(), device: "the CUDA worker".to_owned(), what };
        if cell.precision == Precision::Int8 && cell.operations.iter().any(is_product) {
            return Err(unsupported("products in int8: load the model in bf16".to_owned()));
        }
        let lowered = lower::lower(cell, arithmetic, available, has_recurrences).map_err(unsupported)?;
        if lowered.packed_bytes > available {
            return Err(LoadError::OutOfMemory { cell: cell.name.clone(), needed: lowered.packed_bytes, available });
        }
        schedule::plan(lowered).map_err(unsupported)
    }

    /// Bytes of everything that is uploaded with it, each blob at a multiple of `alignment`.
    pub(crate) fn blob_bytes(&self, alignment: usize) -> usize {
        self.blobs.iter().map(|blob| blob.bytes().len().next_multiple_of(alignment)).sum()
    }

    /// All instructions of all groups.
    pub(crate) fn instructions(&self) -> impl Iterator<Item = &GroupInstruction> {
        self.steps.iter().flat_map(|step| match step {
            Step::Group { instructions, .. } => instructions.as_slice(),
            Step::Product(_) | Step::Best(_) => &[],
        })
    }
}

fn is_product(operation: &cellwright_cell_graph::typed::Operation) -> bool {
    matches!(operation.compute, cellwright_cell_graph::typed::Compute::Linear { .. })
}

/// Values of a row, one behind the other.
#[derive(Debug)]
struct Frame {
    bytes: usize,
}

impl Frame {
    const fn new() -> Self {
        Self { bytes: size_of::<RowRecord>() }
    }

    fn place(&mut self, bytes: usize) -> usize {
        let at = self.bytes.next_multiple_of(ALIGNMENT);
        self.bytes = at + bytes;
        at
    }
}

#[cfg(test)]
mod tests;

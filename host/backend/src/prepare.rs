//! Loading a cell without holding up the worker, which runs other models' tasks meanwhile.
//!
//! The slow parts of loading need no device: planning, packing, compiling. The thread that loads
//! the model calls [`Prepare`] for them. The worker's own thread only installs the result, between
//! two tasks, and times one batch after another, each between two tasks. A panic in the first part
//! ends that load alone.

use std::any::Any;
use std::sync::Arc;

use cellwright_cell_graph::TypedCell;

use crate::LoadError;

/// What a device's [`Prepare`] made of a cell, for [`Backend::install`](crate::Backend::install) of that device alone.
pub struct Prepared {
    /// The device knows of what type it is.
    pub cell: Box<dyn Any + Send>,
    /// Bytes that its weights take from now on, until the device forgets the cell. None if another worker of the same memory has them already.
    pub weight_bytes: u64,
    /// Bytes of working memory that a task takes for each row, beside what the device has at all times ([`WORKING_BYTES`]); 0 if nothing.
    pub row_bytes: u64,
}

/// Rows of each span in timed batches of a cell with ragged inputs.
pub const TIMED_SPAN_ROWS: u32 = 64;

/// Working memory of a worker's task at most, in bytes, unless one row takes more.
pub const WORKING_BYTES: u64 = 64 << 20;

/// Does what takes long of loading a cell: packs weights, plans, compiles.
pub trait Prepare: Send + Sync {
    /// Makes a cell ready, on the calling thread or on one of its own; the device is not asked for anything. Its weights may take so many bytes. Dropping
    /// what it gives takes it all back.
    ///
    /// # Errors
    /// If the device cannot run the cell or has no room for it. [`LoadError::OutOfMemory`] says how much it needs.
    fn prepare(&self, cell: &Arc<TypedCell>, weight_bytes_max: u64) -> Result<Prepared, LoadError>;

    /// Bytes that weights may take of the device's own memory; none if they lie in the machine's.
    fn own_memory(&self) -> Option<u64> {
        None
    }
}

/// Of a device that takes cells as they are.
pub struct AsItIs;

impl Prepare for AsItIs {
    fn prepare(&self, cell: &Arc<TypedCell>, _: u64) -> Result<Prepared, LoadError> {
        Ok(Prepared { cell: Box::new(()), weight_bytes: cell.weight_bytes, row_bytes: 0 })
    }
}

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
pub type Prepared = Box<dyn Any + Send>;

/// Does what takes long of loading a cell: packs weights, plans, compiles.
pub trait Prepare: Send + Sync {
    /// Makes a cell ready, on the calling thread or on one of its own; the device is not asked for anything. Dropping what it gives takes it all back.
    ///
    /// # Errors
    /// If the device cannot run the cell or has no room for it.
    fn prepare(&self, cell: &Arc<TypedCell>) -> Result<Prepared, LoadError>;
}

/// Of a device that takes cells as they are.
pub struct AsItIs;

impl Prepare for AsItIs {
    fn prepare(&self, _: &Arc<TypedCell>) -> Result<Prepared, LoadError> {
        Ok(Box::new(()))
    }
}

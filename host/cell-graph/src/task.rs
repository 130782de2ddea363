//! Names for what a task runs: shared by the scheduler, which forms tasks, and the workers, which run them.
//!
//! Ids are dense indices: they are reused, and never hashed.

/// Declares ids: one number each, with the traits that ids have.
#[macro_export]
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $name(pub $inner);

        impl $name {
            /// As an index.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A cell type that workers have loaded: the dense form of [`crate::CellTypeKey`].
    CellTypeId(u32);
    /// One stage of one chain of a request that has been placed. The scheduler hands it out and reuses it after release.
    LaneId(u32);
    /// A position in a domain's arena, in units of [`SLOT_BYTES`] bytes.
    Slot(u32);
}

/// The unit in which arenas are handed out: a cache line.
pub const SLOT_BYTES: usize = 64;

/// One row of a task: a lane, and the (first) step it executes. A step at or beyond the chain's length is padding: it is computed on zeros
/// and leaves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the summary says it all")]
pub struct Row {
    pub lane: LaneId,
    pub step: u32,
}

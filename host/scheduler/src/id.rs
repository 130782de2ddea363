//! Names for things. All are dense indices: who hands them out reuses them, and nobody hashes them.

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
    /// A request in flight. The engine hands it out and may reuse it once the request was finished or failed *and* its lanes released.
    RequestId(u32);
    /// A model that is loaded.
    ModelId(u32);
    /// Whose model it is.
    TenantId(u32);
    /// A cell type that workers have loaded: the dense form of `cell_graph::CellTypeKey`.
    CellTypeId(u32);
    /// A worker.
    WorkerId(u32);
    /// A memory domain: workers of one domain share an arena.
    DomainId(u32);
    /// Workers of one numeric class give bit-identical results; a model is bound to one.
    NumericClass(u32);
    /// One stage of one chain of a request that has been placed. The scheduler hands it out and reuses it after release.
    LaneId(u32);
    /// A position in a domain's arena, in units of [`SLOT_BYTES`] bytes.
    Slot(u32);
    /// A task's number on its worker, from 1, without gaps.
    TaskSeq(u64);
    /// Nanoseconds since an origin of the caller's choice.
    Time(u64);
}

/// The unit in which arenas are handed out: a cache line.
pub const SLOT_BYTES: usize = 64;

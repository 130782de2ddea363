//! Ids. All are dense indices: they are reused, and never hashed.

use cellwright_cell_graph::ids;
pub use cellwright_cell_graph::{CellTypeId, LaneId, Slot};

ids! {
    /// A request in flight. The engine hands it out and may reuse it once the request was finished
    /// or failed *and* its lanes released.
    RequestId(u32);
    /// A model that is loaded.
    ModelId(u32);
    /// A tenant.
    TenantId(u32);
    /// A worker.
    WorkerId(u32);
    /// A memory domain: workers of one domain share an arena.
    DomainId(u32);
    /// Workers of one numeric class give bit-identical results; a model is bound to one.
    NumericClass(u32);
    /// A task's number on its worker, from 1, without gaps.
    TaskSeq(u64);
    /// Nanoseconds since an origin of the caller's choice.
    Time(u64);
}

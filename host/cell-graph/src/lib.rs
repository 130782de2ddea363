//! Cells, and requests unfolded into graphs of them.
//!
//! This crate says what a cell is (ports, operators, types, identity), what a plugin may answer when it unfolds a request, and which of
//! those answers are sound. It is pure: no I/O, no clock, no devices, no Wasm. Everything that reaches it may come from a hostile
//! plugin, so nothing here panics on its input.

pub mod cell;
pub mod check;
pub mod datatype;
pub mod generate;
pub mod graph;
pub mod hoist;
pub mod layout;
pub mod oracle;
pub mod random;
pub mod resolve;
mod sharing;
pub mod sums;
pub mod task;
pub mod tensor;
pub mod typed;
pub mod unfolded;
pub mod weights;

pub use cell::{Attribute, AttributeValue, Body, Cell, Description, Operator, Port, TensorSpec};
pub use check::{GraphError, GraphLimits, Model, ModelError, Unfolding};
pub use datatype::Datatype;
pub use random::Random;
pub use resolve::{CellError, CellLimits, ResolveContext};
pub use task::{CellTypeId, LaneId, Row, SLOT_BYTES, Slot};
pub use tensor::Tensor;
pub use typed::{CellTypeKey, TypedCell};
pub use unfolded::UnfoldedGrowth;
pub use weights::{WeightSpec, Weights};

//! Cells, and requests unfolded into graphs of them.
//!
//! This crate says what a cell is (ports, operators, types, identity), what a plugin may answer when it unfolds a request, and which of
//! those answers are sound. It is pure: no I/O, no clock, no devices, no Wasm. Everything that reaches it may come from a hostile
//! plugin, so nothing here panics on its input.

pub mod cell;
pub mod check;
pub mod datatype;
#[cfg(any(test, feature = "testing"))]
pub mod generate;
pub mod graph;
pub mod hoist;
#[cfg(any(test, feature = "testing"))]
pub mod oracle;
pub mod resolve;
pub mod sums;
pub mod tensor;
pub mod typed;
pub mod unfolded;

pub use cell::{Attribute, AttributeValue, Body, Cell, Description, Operator, Port, TensorSpec};
pub use check::{GraphError, GraphLimits, Model, ModelError, Unfolding};
pub use datatype::Datatype;
pub use resolve::{CellError, CellLimits, ResolveContext, Weights};
pub use tensor::Tensor;
pub use typed::{CellTypeKey, TypedCell};
pub use unfolded::UnfoldedGrowth;

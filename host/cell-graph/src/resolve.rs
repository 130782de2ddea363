//! From a cell as a plugin describes it to a [`TypedCell`]: names, types and shapes resolved, rows proved independent, costs bounded.
//!
//! Operators mean what ONNX says they mean. A batched value of row shape `[H]` is ONNX's `[N, H]`: axis 0 is the batch, and an operator that
//! would let rows of a batch meet is refused. A ragged input of row shape `[H]` is ONNX's `[N, L, H]`, with an extent L of its own for each node.
//! Nothing is converted silently, and nothing here trusts its input.

mod arithmetic;
mod attributes;
mod cost;
mod error;
mod halves;
mod identity;
mod linear;
mod normalize;
mod operator;
mod parts;
mod prune;
mod reduce;
mod reshape;
mod scope;
mod select;
mod spans;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::cell::{Body, Cell, Operator, Port};
use crate::datatype::Datatype;
use crate::typed::{CellOutput, Compute, Precision, TypedCell};
use crate::weights::Weights;

pub(crate) use error::short;
pub use error::{CellError, CellFault, CellPlace, ShapeText};
pub(crate) use parts::cut_all;
use scope::Scope;

/// What a cell may cost, checked before anything is allocated or calibrated for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellLimits {
    /// Operators of a body.
    pub operators_max: usize,
    /// Inputs, and outputs, of a cell; inputs and outputs of an operator.
    pub ports_max: usize,
    /// Dimensions of a row.
    pub rank_max: usize,
    /// Elements of all batched values of one row together.
    pub row_elements_max: u64,
    /// Bytes of a cell's weights.
    pub weight_bytes_max: u64,
    /// Floating-point operations of one row.
    pub flops_max: u64,
}

impl Default for CellLimits {
    fn default() -> Self {
        Self { operators_max: 4096, ports_max: 256, rank_max: 7, row_elements_max: 1 << 24, weight_bytes_max: 1 << 32, flops_max: 1 << 36 }
    }
}

/// What a cell is resolved against.
#[derive(Clone, Copy)]
pub struct ResolveContext<'a> {
    /// The bundle's weights.
    pub weights: &'a Weights,
    /// How it will be computed.
    pub precision: Precision,
    /// Whose it is: cells of two tenants are never of one type.
    pub tenant: &'a str,
    /// What it may cost.
    pub limits: CellLimits,
    /// Asked before parts of weights are copied: whether there is room for so many bytes more.
    pub may_copy: &'a dyn Fn(u64) -> bool,
}

impl TypedCell {
    /// Resolves a cell.
    ///
    /// # Errors
    /// One sentence that names the cell, the operator where it is one, and what is wrong.
    pub fn resolve(cell: &Cell, context: &ResolveContext<'_>) -> Result<Self, CellError> {
        let within = |fault| CellError::in_cell(&cell.name, fault);
        let Body::Operators(operators) = &cell.body else { return Err(within(CellFault::OnnxBody)) };
        check_limit("operators", operators.len(), context.limits.operators_max).map_err(within)?;
        let mut scope = Scope::new(context);
        check_limit("inputs", cell.inputs.len(), context.limits.ports_max).map_err(within)?;
        for port in &cell.inputs {
            check_port("input", port, context.limits).map_err(within)?;
            scope.add_input(port).map_err(within)?;
        }
        for (position, operator) in operators.iter().enumerate() {
            resolve_operator(&mut scope, operator).map_err(|fault| CellError::at_operator(&cell.name, position, operator, fault))?;
        }
        let outputs = outputs(&scope, &cell.outputs, context.limits).map_err(within)?;
        let (spans, joined) = scope.settle_spans();
        let mut typed = Self {
            name: cell.name.clone(),
            key: crate::typed::CellTypeKey([0; 32]),
            inputs: cell.inputs.clone(),
            outputs,
            values: scope.values,
            operations: scope.operations,
            precision: context.precision,
            batch_max: cell.batch_max,
            priority: cell.priority,
            spans,
            joined,
            span_elements: 0,
            flops: 0,
            weight_bytes: 0,
        };
        prune::drop_dead(&mut typed);
        cost::measure(&mut typed, context.limits).map_err(within)?;
        if context.precision == Precision::F16 {
            halves::check(&typed).map_err(within)?;
        }
        typed.key = identity::key(&typed, context.tenant);
        if parts::cut(&mut typed, context).map_err(within)? {
            tidy(&mut typed);
        }
        if context.precision == Precision::Int8 {
            typed = parts::cut_by_input(typed, context).map_err(within)?;
        }
        Ok(typed)
    }

    /// Bytes of pieces of its weights that [`crate::hoist`] makes at most, as long as a device takes it apart.
    #[must_use]
    pub fn piece_bytes_max(&self) -> u64 {
        let is_cut = self.operations.iter().any(|operation| matches!(operation.compute, Compute::Concat { .. }));
        if is_cut { self.weight_bytes } else { 0 }
    }

    /// What calls need of it once a device has it: what it is called, takes, gives and costs. Its weights are not there, nor is its body.
    #[must_use]
    pub fn without_body(&self) -> Self {
        let (inputs, outputs, spans) = (self.inputs.clone(), self.outputs.clone(), self.spans.clone());
        Self { name: self.name.clone(), inputs, outputs, spans, joined: Vec::new(), values: Vec::new(), operations: Vec::new(), ..*self }
    }
}

/// Drops what a cell that was made of others' parts does not need, and says what it costs. It is no more than the cell that it was made of.
pub(crate) fn tidy(cell: &mut TypedCell) -> Vec<bool> {
    let alive = prune::drop_dead(cell);
    let limits = CellLimits { weight_bytes_max: u64::MAX, flops_max: u64::MAX, ..CellLimits::default() };
    // Without a limit it cannot be refused.
    let _ = cost::measure(cell, limits);
    alive
}

fn resolve_operator<'a>(scope: &mut Scope<'a>, operator: &'a Operator) -> Result<(), CellFault> {
    let limit = scope.limits.ports_max;
    check_limit("inputs", operator.inputs.len(), limit)?;
    check_limit("outputs", operator.outputs.len(), limit)?;
    let results = operator::resolve(scope, operator)?;
    if operator.outputs.is_empty() || operator.outputs.len() > results.len() {
        return Err(CellFault::OutputCount { given: operator.outputs.len(), most: results.len() });
    }
    for (name, result) in operator.outputs.iter().zip(results) {
        scope.bind(name, result)?;
    }
    Ok(())
}

fn check_limit(what: &'static str, count: usize, limit: usize) -> Result<(), CellFault> {
    if count > limit { Err(CellFault::Limit { what, count: count as u64, limit: limit as u64 }) } else { Ok(()) }
}

fn check_port(what: &'static str, port: &Port, limits: CellLimits) -> Result<(), CellFault> {
    let named = || error::short(&port.name);
    if port.name.is_empty() {
        return Err(CellFault::NoName { what });
    }
    if port.ragged && port.carried {
        return Err(CellFault::RaggedState { name: named() });
    }
    if !matches!(port.datatype, Datatype::Bool | Datatype::Uint8 | Datatype::Int32 | Datatype::Int64 | Datatype::Fp32) {
        return Err(CellFault::PortDatatype { what, name: named(), datatype: port.datatype });
    }
    check_limit("dimensions in a row", port.shape.len(), limits.rank_max)?;
    if port.shape.contains(&0) {
        return Err(CellFault::EmptyPort { what, name: named() });
    }
    Ok(())
}

fn outputs(scope: &Scope<'_>, ports: &[Port], limits: CellLimits) -> Result<Vec<CellOutput>, CellFault> {
    check_limit("outputs", ports.len(), limits.ports_max)?;
    if ports.is_empty() {
        return Err(CellFault::NoOutputs);
    }
    let mut seen = BTreeSet::new();
    ports
        .iter()
        .map(|port| {
            check_port("output", port, limits)?;
            if port.ragged {
                return Err(CellFault::RaggedOutput { name: error::short(&port.name) });
            }
            if !seen.insert(port.name.as_str()) {
                return Err(CellFault::NameTaken { what: "output", name: error::short(&port.name), by: "another output" });
            }
            output(scope, port)
        })
        .collect()
}

fn output(scope: &Scope<'_>, port: &Port) -> Result<CellOutput, CellFault> {
    let named = || error::short(&port.name);
    let Some(id) = scope.find(&port.name) else { return Err(CellFault::OutputMissing { name: named() }) };
    let value = scope.value(id);
    if !value.batched {
        return Err(CellFault::OutputConstant { name: named() });
    }
    if value.span.is_some() {
        return Err(CellFault::RaggedOutput { name: named() });
    }
    if value.datatype != port.datatype {
        return Err(CellFault::OutputDatatype { name: named(), declared: port.datatype, computed: value.datatype });
    }
    if !port.shape.iter().map(|extent| *extent as usize).eq(value.shape.iter().copied()) {
        let declared = ShapeText::row(port.shape.iter().map(|extent| *extent as usize));
        return Err(CellFault::OutputShape { name: named(), declared, computed: ShapeText::row(value.shape.iter().copied()) });
    }
    Ok(CellOutput { port: port.clone(), value: id })
}

//! A plugin's description of its model.

use cellwright_cell_graph::{Attribute, AttributeValue, Body, Cell, Description, Operator, Port, TensorSpec};

use super::{Budget, datatype};
use crate::abi::types;
use crate::error::LimitReached;
use crate::limits::Limits;

pub(super) struct Converter {
    budget: Budget,
}

impl Converter {
    pub(super) fn new(limits: &Limits) -> Self {
        Self { budget: Budget::new(limits) }
    }

    pub(super) fn description(&mut self, from: types::Description) -> Result<Description, LimitReached> {
        Ok(Description {
            inputs: self.each(from.inputs, Self::spec)?,
            outputs: self.each(from.outputs, Self::spec)?,
            cells: self.each(from.cells, Self::cell)?,
            optional_inputs: self.names(from.optional_inputs)?,
            rows_are_requests: from.rows_are_requests,
            live_max: from.live_max,
            ignored_weights: self.names(from.ignored_weights)?,
        })
    }

    fn names(&mut self, names: Vec<String>) -> Result<Vec<String>, LimitReached> {
        self.budget.take(names.len())?;
        Ok(names)
    }

    fn each<A, B>(&mut self, list: Vec<A>, one: impl Fn(&mut Self, A) -> Result<B, LimitReached>) -> Result<Vec<B>, LimitReached> {
        self.budget.take(list.len())?;
        list.into_iter().map(|element| one(self, element)).collect()
    }

    fn spec(&mut self, from: types::TensorSpec) -> Result<TensorSpec, LimitReached> {
        self.budget.take(from.shape.len())?;
        Ok(TensorSpec { name: from.name, datatype: datatype(from.datatype), shape: from.shape })
    }

    fn cell(&mut self, from: types::Cell) -> Result<Cell, LimitReached> {
        Ok(Cell {
            name: from.name,
            inputs: self.each(from.inputs, Self::port)?,
            outputs: self.each(from.outputs, Self::port)?,
            body: match from.body {
                types::Body::Operators(operators) => Body::Operators(self.each(operators, Self::operator)?),
                types::Body::Onnx(file) => Body::Onnx(file),
            },
            batch_max: from.batch_max,
            priority: from.priority,
        })
    }

    fn port(&mut self, from: types::Port) -> Result<Port, LimitReached> {
        self.budget.take(from.shape.len())?;
        let types::Port { name, shape, ragged, carried, .. } = from;
        Ok(Port { name, datatype: datatype(from.datatype), shape, ragged, carried })
    }

    fn operator(&mut self, from: types::Operator) -> Result<Operator, LimitReached> {
        self.budget.take(from.inputs.len().saturating_add(from.outputs.len()))?;
        let attributes = self.each(from.attributes, Self::attribute)?;
        Ok(Operator { kind: from.kind, inputs: from.inputs, outputs: from.outputs, attributes })
    }

    fn attribute(&mut self, from: types::Parameter) -> Result<Attribute, LimitReached> {
        let elements = match &from.value {
            types::Value::Ints(values) => values.len(),
            types::Value::Floats(values) => values.len(),
            types::Value::Texts(values) => values.len(),
            types::Value::Int(_) | types::Value::Float(_) | types::Value::Text(_) | types::Value::Truth(_) => 0,
        };
        self.budget.take(elements)?;
        let value = match from.value {
            types::Value::Int(value) => AttributeValue::Int(value),
            types::Value::Float(value) => AttributeValue::Float(value),
            types::Value::Text(value) => AttributeValue::Text(value),
            types::Value::Truth(value) => AttributeValue::Truth(value),
            types::Value::Ints(values) => AttributeValue::Ints(values),
            types::Value::Floats(values) => AttributeValue::Floats(values),
            types::Value::Texts(values) => AttributeValue::Texts(values),
        };
        Ok(Attribute { name: from.name, value })
    }
}

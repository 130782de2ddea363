//! An operator's attributes: each read once, by name and type; what is left over is unknown.

use super::error::{CellFault, short};
use crate::cell::{Attribute, AttributeValue};

/// The attributes that have not been read yet.
pub(super) struct Attributes<'a> {
    left: Vec<&'a Attribute>,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(attributes: &'a [Attribute]) -> Result<Self, CellFault> {
        const MOST: usize = 16;
        if attributes.len() > MOST {
            return Err(CellFault::Limit { what: "attributes", count: attributes.len() as u64, limit: MOST as u64 });
        }
        for (position, attribute) in attributes.iter().enumerate() {
            if attributes[..position].iter().any(|earlier| earlier.name == attribute.name) {
                return Err(CellFault::AttributeTwice { name: short(&attribute.name) });
            }
        }
        Ok(Self { left: attributes.iter().collect() })
    }

    pub(super) fn take(&mut self, name: &str) -> Option<&'a AttributeValue> {
        let position = self.left.iter().position(|attribute| attribute.name == name)?;
        Some(&self.left.swap_remove(position).value)
    }

    pub(super) fn int(&mut self, name: &'static str) -> Result<Option<i64>, CellFault> {
        match self.take(name) {
            None => Ok(None),
            Some(AttributeValue::Int(value)) => Ok(Some(*value)),
            Some(_) => Err(CellFault::AttributeType { name, wanted: "an integer" }),
        }
    }

    /// ONNX writes 0 and 1; a truth value is as good.
    pub(super) fn truth(&mut self, name: &'static str, default: bool) -> Result<bool, CellFault> {
        match self.take(name) {
            None => Ok(default),
            Some(AttributeValue::Truth(value)) => Ok(*value),
            Some(AttributeValue::Int(value @ (0 | 1))) => Ok(*value == 1),
            Some(_) => Err(CellFault::AttributeType { name, wanted: "0 or 1" }),
        }
    }

    pub(super) fn float(&mut self, name: &'static str, default: f32) -> Result<f32, CellFault> {
        let wanted = "a finite 32-bit float";
        match self.take(name) {
            None => Ok(default),
            #[expect(clippy::cast_possible_truncation, reason = "ONNX's attributes are 32-bit floats; overflow is seen below")]
            Some(AttributeValue::Float(value)) if (*value as f32).is_finite() => Ok(*value as f32),
            Some(_) => Err(CellFault::AttributeType { name, wanted }),
        }
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<&'a str>, CellFault> {
        match self.take(name) {
            None => Ok(None),
            Some(AttributeValue::Text(value)) => Ok(Some(value)),
            Some(_) => Err(CellFault::AttributeType { name, wanted: "a text" }),
        }
    }

    pub(super) fn ints(&mut self, name: &'static str) -> Result<Option<Vec<i64>>, CellFault> {
        match self.take(name) {
            None => Ok(None),
            Some(AttributeValue::Int(value)) => Ok(Some(vec![*value])),
            Some(AttributeValue::Ints(values)) => Ok(Some(values.clone())),
            Some(_) => Err(CellFault::AttributeType { name, wanted: "integers" }),
        }
    }

    /// Nothing may be left.
    pub(super) fn finish(self) -> Result<(), CellFault> {
        match self.left.first() {
            None => Ok(()),
            Some(attribute) => Err(CellFault::UnknownAttribute { name: short(&attribute.name) }),
        }
    }
}

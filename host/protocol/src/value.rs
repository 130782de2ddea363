//! Parameters: strings, numbers and booleans by name.
//!
//! Any client may add some of its own. `null` is no value, so such a parameter is not there. Lists and objects are ignored unless the protocol itself
//! reads the parameter, and so is every other parameter of a tensor that it does not read.

use std::fmt;

use cellwright_cell_graph::{Attribute, AttributeValue};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::ser::{Error as _, Serialize, SerializeMap, Serializer};

use crate::{element, options, words};

/// Parameters that a message may have, and a tensor or a requested output: each takes many times the bytes that it was written with.
pub(crate) const OF_MESSAGE: usize = 1024;
pub(crate) const OF_TENSOR: usize = 8;

/// The parameter that names the sequence of which a request is part.
pub(crate) const SEQUENCE_ID: &str = "sequence_id";

/// The parameters of a message, a tensor or a requested output, so many at most, in the order in which they were written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameters<const MOST: usize>(pub(crate) Vec<Attribute>);

impl<const MOST: usize> Parameters<MOST> {
    fn push<E: Error>(&mut self, name: String, value: AttributeValue) -> Result<(), E> {
        if self.0.len() >= MOST {
            return Err(E::custom(format_args!("more than {MOST} parameters")));
        }
        self.0.push(Attribute { name, value });
        Ok(())
    }

    /// Takes a parameter as it was written.
    pub(crate) fn take<E: Error>(&mut self, name: String, value: Value) -> Result<(), E> {
        match value {
            Value::Plain(value) => self.push(name, value),
            Value::Nested if MOST == OF_TENSOR || options::is_protocols(&name) => {
                Err(E::custom(format_args!("parameter `{name}` takes a string, a number or a boolean")))
            }
            Value::Null | Value::Nested => Ok(()),
        }
    }

    pub(crate) fn append<E: Error>(&mut self, more: Self) -> Result<(), E> {
        more.0.into_iter().try_for_each(|parameter| self.push(parameter.name, parameter.value))
    }

    /// The first name that occurs twice.
    pub(crate) fn duplicate(&self) -> Option<&str> {
        let mut names: Vec<&str> = self.0.iter().map(|parameter| parameter.name.as_str()).collect();
        names.sort_unstable();
        names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
    }
}

impl<'de, const MOST: usize> Deserialize<'de> for Parameters<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ParametersVisitor)
    }
}

struct ParametersVisitor<const MOST: usize>;

impl<'de, const MOST: usize> Visitor<'de> for ParametersVisitor<MOST> {
    type Value = Parameters<MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("parameters: an object of strings, numbers and booleans")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut parameters = Parameters::default();
        while let Some(name) = map.next_key::<String>()? {
            if MOST == OF_TENSOR && !options::is_of_tensor(&name) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value_seed(ValueOf(&name))?;
            parameters.take(name, value)?;
        }
        Ok(parameters)
    }
}

/// One parameter's value.
pub(crate) enum Value {
    Plain(AttributeValue),
    Null,
    /// A list or an object.
    Nested,
}

/// Reads the value of the parameter of that name.
pub(crate) struct ValueOf<'a>(pub(crate) &'a str);

impl<'de> DeserializeSeed<'de> for ValueOf<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(ValueVisitor { name: self.0 })
    }
}

struct ValueVisitor<'a> {
    name: &'a str,
}

impl<'de> Visitor<'de> for ValueVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a parameter's value: a string, a number (integers up to 2^63 − 1) or a boolean")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Plain(AttributeValue::Truth(truth)))
    }

    fn visit_i64<E: Error>(self, int: i64) -> Result<Value, E> {
        Ok(Value::Plain(AttributeValue::Int(int)))
    }

    fn visit_u64<E: Error>(self, int: u64) -> Result<Value, E> {
        match i64::try_from(int) {
            Ok(int) => self.visit_i64(int),
            // An unsigned number in the protocol, of which nothing matters but that it names a sequence, as a text does too.
            Err(_) if self.name == SEQUENCE_ID => self.visit_string(int.to_string()),
            Err(_) => Err(E::invalid_value(Unexpected::Unsigned(int), &self)),
        }
    }

    fn visit_f64<E: Error>(self, float: f64) -> Result<Value, E> {
        Ok(Value::Plain(AttributeValue::Float(float)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        Ok(Value::Plain(AttributeValue::Text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Nested)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Value, A::Error> {
        words::of_object(object)?.map_or(Ok(Value::Nested), |float| self.visit_f64(float))
    }
}

/// The integer that a parameter is, if it is one.
pub(crate) fn integer(value: &AttributeValue) -> Option<i64> {
    match value {
        AttributeValue::Int(int) => Some(*int),
        AttributeValue::Float(float) => element::whole(*float),
        _ => None,
    }
}

/// Parameters on their way out.
pub(crate) struct PrintParameters<'a>(pub(crate) &'a [Attribute]);

impl Serialize for PrintParameters<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for Attribute { name, value } in self.0 {
            if let Some(float) = odd(value) {
                // `null`, as it would be written, is no value of a parameter.
                return Err(S::Error::custom(format_args!("parameter `{name}` is {float}, and JSON has no such number")));
            }
            match value {
                AttributeValue::Int(int) => map.serialize_entry(name, int)?,
                AttributeValue::Float(float) => map.serialize_entry(name, float)?,
                AttributeValue::Text(text) => map.serialize_entry(name, text)?,
                AttributeValue::Truth(truth) => map.serialize_entry(name, truth)?,
                AttributeValue::Ints(ints) => map.serialize_entry(name, ints)?,
                AttributeValue::Floats(floats) => map.serialize_entry(name, floats)?,
                AttributeValue::Texts(texts) => map.serialize_entry(name, texts)?,
            }
        }
        map.end()
    }
}

/// What JSON cannot say of a value.
fn odd(value: &AttributeValue) -> Option<f64> {
    let floats = match value {
        AttributeValue::Float(float) => std::slice::from_ref(float),
        AttributeValue::Floats(floats) => floats,
        _ => return None,
    };
    floats.iter().copied().find(|float| !float.is_finite())
}

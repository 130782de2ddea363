//! Knots of a curve as a table has them: pairs of a batch and a time.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};

/// (batch, microseconds), as they are written. A knot of another number of values is refused, not cut: TOML's own pairs would let go of a third.
pub(super) struct Knots(pub(super) Vec<(u32, f64)>);

impl<'de> Deserialize<'de> for Knots {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(List)
    }
}

struct List;

impl<'de> Visitor<'de> for List {
    type Value = Knots;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of knots, [[batch, microseconds], …]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Knots, A::Error> {
        let mut knots = Vec::new();
        while let Some(knot) = list.next_element_seed(Knot { number: knots.len() + 1 })? {
            knots.push(knot);
        }
        Ok(Knots(knots))
    }
}

/// The knot of that number, from 1.
struct Knot {
    number: usize,
}

impl<'de> serde::de::DeserializeSeed<'de> for Knot {
    type Value = (u32, f64);

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(u32, f64), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Knot {
    type Value = (u32, f64);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a knot, [batch, microseconds]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(u32, f64), A::Error> {
        let (batch, time) = (values.next_element()?, values.next_element()?);
        let mut further = 0;
        while values.next_element::<IgnoredAny>()?.is_some() {
            further += 1;
        }
        match (batch, time, further) {
            (Some(batch), Some(time), 0) => Ok((batch, time)),
            (batch, time, further) => {
                let count = usize::from(batch.is_some()) + usize::from(time.is_some()) + further;
                let numbers = if count == 1 { "number" } else { "numbers" };
                Err(A::Error::custom(format!("knot {} has {count} {numbers}; a knot is two, [batch, microseconds]", self.number)))
            }
        }
    }
}

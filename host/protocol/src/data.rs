//! A tensor's `data` as it stands in JSON: scalars in order, and the shape of the lists around them.
//!
//! It is read before its datatype is known (JSON's keys come in any order), so scalars keep the type they were written with.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};

use crate::words;

/// An element as it was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scalar<'a> {
    Truth(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(&'a str),
    /// `null`, which is an element of no datatype.
    Null,
}

impl fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Longer texts are cut in messages.
        const TEXT_MAX: usize = 40;
        match self {
            Self::Truth(truth) => write!(f, "{truth}"),
            Self::Signed(int) => write!(f, "{int}"),
            Self::Unsigned(int) => write!(f, "{int}"),
            Self::Float(float) => write!(f, "{float:?}"),
            Self::Text(text) if text.chars().nth(TEXT_MAX).is_some() => {
                write!(f, "{:?} …", text.chars().take(TEXT_MAX).collect::<String>())
            }
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Null => f.write_str("null"),
        }
    }
}

/// What an element is; its value is its word.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Truth,
    Signed,
    Unsigned,
    Float,
    Null,
    /// The word is where it ends among the texts, and it begins where the one before ended.
    Text,
}

/// Elements in order. They take nine bytes each and those of their texts, because two bytes of a message may be one.
#[derive(Debug, Default)]
pub(crate) struct Scalars {
    kinds: Vec<Kind>,
    words: Vec<u64>,
    texts: String,
}

impl Scalars {
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    fn push(&mut self, scalar: Scalar<'_>) {
        let (kind, word) = match scalar {
            Scalar::Truth(truth) => (Kind::Truth, u64::from(truth)),
            Scalar::Signed(int) => (Kind::Signed, int.cast_unsigned()),
            Scalar::Unsigned(int) => (Kind::Unsigned, int),
            Scalar::Float(float) => (Kind::Float, float.to_bits()),
            Scalar::Null => (Kind::Null, 0),
            Scalar::Text(text) => {
                self.texts.push_str(text);
                (Kind::Text, self.texts.len() as u64)
            }
        };
        self.kinds.push(kind);
        self.words.push(word);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Scalar<'_>> {
        let mut begin = 0;
        self.kinds.iter().zip(&self.words).map(move |(kind, word)| match kind {
            Kind::Truth => Scalar::Truth(*word != 0),
            Kind::Signed => Scalar::Signed(word.cast_signed()),
            Kind::Unsigned => Scalar::Unsigned(*word),
            Kind::Float => Scalar::Float(f64::from_bits(*word)),
            Kind::Null => Scalar::Null,
            Kind::Text => {
                let end = usize::try_from(*word).unwrap_or(usize::MAX);
                Scalar::Text(&self.texts[std::mem::replace(&mut begin, end)..end])
            }
        })
    }
}

/// `data`, flattened.
#[derive(Debug, Default)]
pub(crate) struct Data {
    /// Its elements in row-major order.
    pub(crate) scalars: Scalars,
    /// The extents of the lists it was written as, outermost first.
    pub(crate) nesting: Vec<usize>,
    /// The depth at which lists of unequal length, or lists beside elements, were first seen.
    pub(crate) ragged: Option<usize>,
}

impl Data {
    /// Reads a list, or an element without any list around it.
    pub(crate) fn of_any_rank() -> AnyRank {
        AnyRank
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut reading = Reading::default();
        deserializer.deserialize_seq(Level { reading: &mut reading, depth: 0 })?;
        Ok(reading.into())
    }
}

/// Reads [`Data`] of any rank, 0 included.
pub(crate) struct AnyRank;

impl<'de> DeserializeSeed<'de> for AnyRank {
    type Value = Data;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Data, D::Error> {
        let mut reading = Reading::default();
        Item { reading: &mut reading, depth: 0 }.deserialize(deserializer)?;
        Ok(reading.into())
    }
}

impl From<Reading> for Data {
    fn from(reading: Reading) -> Self {
        let nesting = reading.extents.into_iter().map(Option::unwrap_or_default).collect();
        Self { scalars: reading.scalars, nesting, ragged: reading.ragged }
    }
}

#[derive(Default)]
struct Reading {
    scalars: Scalars,
    /// By depth, the length of the first list that ended there.
    extents: Vec<Option<usize>>,
    /// The depth of the first element.
    leaves_at: Option<usize>,
    ragged: Option<usize>,
}

impl Reading {
    fn element(&mut self, scalar: Scalar<'_>, depth: usize) {
        let lists_beside = self.extents.len() > depth;
        if *self.leaves_at.get_or_insert(depth) != depth || lists_beside {
            self.ragged.get_or_insert(depth);
        }
        self.scalars.push(scalar);
    }

    fn list_begins(&mut self, depth: usize) {
        if self.extents.len() <= depth {
            self.extents.resize(depth + 1, None);
        }
        if self.leaves_at.is_some_and(|leaves| leaves <= depth) {
            self.ragged.get_or_insert(depth);
        }
    }

    fn list_ends(&mut self, depth: usize, length: usize) {
        if let Some(extent) = self.extents.get_mut(depth)
            && *extent.get_or_insert(length) != length
        {
            self.ragged.get_or_insert(depth);
        }
    }
}

/// The list at one depth.
struct Level<'a> {
    reading: &'a mut Reading,
    depth: usize,
}

impl<'de> Visitor<'de> for Level<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`data` as a list of elements, flat or nested")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.reading.list_begins(self.depth);
        let mut length = 0;
        while list.next_element_seed(Item { reading: self.reading, depth: self.depth + 1 })?.is_some() {
            length += 1;
        }
        self.reading.list_ends(self.depth, length);
        Ok(())
    }
}

/// An element, or a list one level down.
struct Item<'a> {
    reading: &'a mut Reading,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Item<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Item<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an element of `data`: a number, a boolean, a string, or a list of them")
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<(), E> {
        self.reading.element(Scalar::Truth(truth), self.depth);
        Ok(())
    }

    fn visit_i64<E: Error>(self, int: i64) -> Result<(), E> {
        self.reading.element(Scalar::Signed(int), self.depth);
        Ok(())
    }

    fn visit_u64<E: Error>(self, int: u64) -> Result<(), E> {
        self.reading.element(Scalar::Unsigned(int), self.depth);
        Ok(())
    }

    fn visit_f64<E: Error>(self, float: f64) -> Result<(), E> {
        self.reading.element(Scalar::Float(float), self.depth);
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.reading.element(Scalar::Text(text), self.depth);
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.reading.element(Scalar::Null, self.depth);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<(), A::Error> {
        let Some(float) = words::of_object(object)? else { return Err(A::Error::invalid_type(Unexpected::Map, &self)) };
        self.visit_f64(float)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        Level { reading: self.reading, depth: self.depth }.visit_seq(list)
    }
}

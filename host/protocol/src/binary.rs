//! Tensors as raw bytes behind the JSON of a message: the protocol's binary tensor extension.
//!
//! Little-endian, without padding, in the order in which the JSON names them. A tensor's bytes are checked against its datatype and shape before
//! they are copied, so that a size that lies costs nothing.

use cellwright_cell_graph::{Datatype, Tensor, TensorSpec};
use serde::de::DeserializeOwned;

use crate::fault::{BadRequest, RequestFault, TensorFault};
use crate::{messages, words};

/// The HTTP header that says how many bytes of a body are JSON; without it all are. 0 in a request: the body is the model's only input.
pub const JSON_LENGTH_HEADER: &str = "inference-header-content-length";

/// A message as it travels: JSON, and the raw tensors behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// The JSON.
    pub json: Vec<u8>,
    /// One entry for each tensor that travels as raw bytes, in the JSON's order; it may be empty, as its tensor may.
    pub binary: Vec<Vec<u8>>,
}

impl Body {
    /// What [`JSON_LENGTH_HEADER`] must say, and whether the body is `application/octet-stream`; none for JSON alone, which needs no such header.
    #[must_use]
    pub fn json_length(&self) -> Option<usize> {
        (!self.binary.is_empty()).then_some(self.json.len())
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.binary.iter().fold(self.json.len(), |sum, tensor| sum.saturating_add(tensor.len()))
    }

    /// Whether there is nothing in it, which no message is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it in one piece; no copy is made where there is JSON alone.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.json;
        bytes.reserve_exact(self.binary.iter().map(Vec::len).sum());
        self.binary.iter().for_each(|tensor| bytes.extend_from_slice(tensor));
        bytes
    }
}

/// Reads a body: its JSON, of which `id` is known at once, and what stands behind it if it has any such part.
pub(crate) fn read<W: DeserializeOwned, T>(
    body: &[u8],
    json_length: Option<usize>,
    id: impl Fn(&W) -> Option<String>,
    read: impl Fn(W, Option<Tail<'_>>) -> Result<T, RequestFault>,
) -> Result<T, BadRequest> {
    let mut known = None;
    let mut whole = || {
        let (json, tail) = split(body, json_length)?;
        let (wire, behind) = words::read(json, parse::<W>).map_err(|fault| match fault {
            RequestFault::Json(cause) if let Some(announced) = json_length => RequestFault::JsonPart { announced, cause },
            fault => fault,
        })?;
        known = id(&wire);
        match (behind, json_length) {
            (None, _) => read(wire, tail),
            (Some(cause), Some(announced)) => Err(RequestFault::JsonPart { announced, cause }),
            // They may be the tensors of a sender who forgot the header.
            (Some(cause), None) => match read(wire, None) {
                Err(fault @ RequestFault::Tensor { fault: TensorFault::BinaryData, .. }) => Err(fault),
                _ => Err(cause.into()),
            },
        }
    };
    whole().map_err(|fault| BadRequest { id: known, fault })
}

/// Reads JSON, and says what is wrong if more than that follows.
fn parse<W: DeserializeOwned>(json: &[u8]) -> Result<(W, Option<serde_json::Error>), RequestFault> {
    messages::check_object(json)?;
    let mut reader = serde_json::Deserializer::from_slice(json);
    let wire = W::deserialize(&mut reader)?;
    Ok((wire, reader.end().err()))
}

fn split(body: &[u8], json_length: Option<usize>) -> Result<(&[u8], Option<Tail<'_>>), RequestFault> {
    let Some(length) = json_length else { return Ok((body, None)) };
    let (json, rest) = body.split_at_checked(length).ok_or(RequestFault::JsonLength { announced: length, found: body.len() })?;
    Ok((json, Some(Tail { rest })))
}

/// The raw tensors of a message that have not been read yet.
#[derive(Debug)]
pub(crate) struct Tail<'a> {
    rest: &'a [u8],
}

impl<'a> Tail<'a> {
    /// The bytes of the next tensor.
    pub(crate) fn take(&mut self, size: usize, datatype: Datatype, shape: &[usize]) -> Result<&'a [u8], TensorFault> {
        let (data, rest) = self.rest.split_at_checked(size).ok_or(TensorFault::BinaryMissing { size, left: self.rest.len() })?;
        check(data, datatype, shape)?;
        self.rest = rest;
        Ok(data)
    }

    /// Nothing may be left once all tensors have been read.
    pub(crate) fn end(&self) -> Result<(), RequestFault> {
        if self.rest.is_empty() { Ok(()) } else { Err(RequestFault::BytesLeft(self.rest.len())) }
    }
}

/// Whether these bytes are a tensor of that datatype and shape.
fn check(data: &[u8], datatype: Datatype, shape: &[usize]) -> Result<(), TensorFault> {
    let elements = count(shape)?;
    if let Some(size) = datatype.size() {
        let expected = elements.checked_mul(size).ok_or_else(|| TensorFault::ShapeTooLarge { shape: shape.to_vec() })?;
        if expected != data.len() {
            return Err(TensorFault::BinarySize { shape: shape.to_vec(), datatype, expected, found: data.len() });
        }
    } else {
        let found = texts(data)?;
        if found != elements {
            return Err(TensorFault::Count { shape: shape.to_vec(), expected: elements, found });
        }
    }
    let bad = if datatype == Datatype::Bool { data.iter().position(|byte| *byte > 1) } else { None };
    bad.map_or(Ok(()), |position| Err(TensorFault::BoolByte { position, found: data[position] }))
}

pub(crate) fn count(shape: &[usize]) -> Result<usize, TensorFault> {
    let product = shape.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent));
    product.ok_or_else(|| TensorFault::ShapeTooLarge { shape: shape.to_vec() })
}

/// How many `BYTES` elements these are: each a length of four bytes and so many bytes.
fn texts(data: &[u8]) -> Result<usize, TensorFault> {
    let mut rest = data;
    let mut found = 0;
    while !rest.is_empty() {
        let refuse = TensorFault::TextLength { position: found };
        let (length, tail) = rest.split_first_chunk::<4>().ok_or_else(|| refuse.clone())?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| refuse.clone())?;
        rest = tail.get(length..).ok_or(refuse)?;
        found += 1;
    }
    Ok(found)
}

/// The tensor of a raw request: the body is the model's only input.
///
/// A leading dimension that counts requests is 1. At most one other dimension may be open, it follows from the size of the body. The body of a `BYTES`
/// input is its one element, without a length in front.
pub(crate) fn raw(inputs: &[TensorSpec], rows_are_requests: bool, body: &[u8]) -> Result<Tensor, RequestFault> {
    let [input] = inputs else { return Err(RequestFault::RawInputs(inputs.len())) };
    let fault = |fault| RequestFault::Tensor { role: "input", name: input.name.clone(), fault };
    let mut extents = input.shape.clone();
    if rows_are_requests && let Some(leading) = extents.first_mut() {
        *leading = 1;
    }
    let name = input.name.clone();
    if input.datatype == Datatype::Bytes {
        if extents.iter().any(|extent| !matches!(extent, -1 | 1)) {
            return Err(fault(TensorFault::RawShape { shape: input.shape.clone() }));
        }
        if u32::try_from(body.len()).is_err() {
            return Err(fault(TensorFault::TextLength { position: 0 }));
        }
        return Ok(Tensor::from_texts(&name, &vec![1; extents.len()], &[body]));
    }
    let size = input.datatype.size().unwrap_or(1);
    let shape = complete(&extents, body.len() / size).ok_or_else(|| {
        let shape = input.shape.clone();
        fault(TensorFault::RawSize { shape, datatype: input.datatype, found: body.len() })
    })?;
    check(body, input.datatype, &shape).map_err(fault)?;
    Ok(Tensor { name, datatype: input.datatype, shape, data: body.to_vec() })
}

/// A shape whose open dimension, if it has one, is as long as so many elements allow; none if more are open.
pub(crate) fn complete(extents: &[i64], elements: usize) -> Option<Vec<usize>> {
    let mut known = 1_usize;
    let mut open = None;
    let mut shape = Vec::with_capacity(extents.len());
    for (axis, extent) in extents.iter().enumerate() {
        if let Ok(extent) = usize::try_from(*extent) {
            known = known.checked_mul(extent)?;
            shape.push(extent);
        } else if open.replace(axis).is_some() {
            return None;
        } else {
            shape.push(0);
        }
    }
    if let Some(axis) = open {
        shape[axis] = elements.checked_div(known)?;
    }
    Some(shape)
}

//! A tensor of a message: name, datatype, shape and data, checked against one another.

use std::fmt;

use cellwright_cell_graph::{Datatype, Tensor};
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize};

use crate::binary::{self, Tail};
use crate::data::Data;
use crate::element::{self, PrintData};
use crate::fault::{BadResponse, RequestFault, TensorFault};
use crate::options;
use crate::value::{self, OF_TENSOR, Parameters};

/// A tensor as it stands in JSON.
#[derive(Deserialize)]
#[serde(expecting = "a tensor, which is an object")]
pub(crate) struct WireTensor {
    name: String,
    shape: Vec<Extent>,
    datatype: String,
    #[serde(default)]
    parameters: Option<Parameters<OF_TENSOR>>,
    #[serde(default)]
    data: Option<Data>,
}

/// The tensors of a message, each name at most once.
pub(crate) fn read_all(wire: Vec<WireTensor>, role: &'static str, mut tail: Option<Tail<'_>>) -> Result<Vec<Tensor>, RequestFault> {
    let mut names: Vec<&str> = wire.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(RequestFault::Duplicate { role, name: pair[0].to_owned() });
    }
    let mut tensors = Vec::with_capacity(wire.len());
    for mut tensor in wire {
        let name = std::mem::take(&mut tensor.name);
        match read(tensor, tail.as_mut()) {
            Ok((datatype, shape, data)) => tensors.push(Tensor { name, datatype, shape, data }),
            Err(fault) => return Err(RequestFault::Tensor { role, name, fault }),
        }
    }
    tail.map_or(Ok(()), |tail| tail.end())?;
    Ok(tensors)
}

/// Datatype, shape and data.
type Contents = (Datatype, Vec<usize>, Vec<u8>);

fn read(wire: WireTensor, tail: Option<&mut Tail<'_>>) -> Result<Contents, TensorFault> {
    let datatype = Datatype::from_name(&wire.datatype).ok_or_else(|| TensorFault::UnknownDatatype(wire.datatype.clone()))?;
    if let Some(size) = binary_size(&wire.parameters)? {
        let tail = tail.ok_or(TensorFault::BinaryData)?;
        if wire.data.is_some() {
            return Err(TensorFault::DataTwice);
        }
        let shape = read_shape(&wire.shape)?;
        let data = tail.take(size, datatype, &shape)?.to_vec();
        return Ok((datatype, shape, data));
    }
    if matches!(datatype, Datatype::Fp16 | Datatype::Bf16) {
        return Err(TensorFault::BinaryOnly(datatype));
    }
    let shape = read_shape(&wire.shape)?;
    let data = wire.data.ok_or(TensorFault::NoData)?;
    check_arrangement(&shape, &data)?;
    let mut bytes = Vec::with_capacity(data.scalars.len().saturating_mul(datatype.size().unwrap_or(8)));
    for (position, scalar) in data.scalars.iter().enumerate() {
        element::read(scalar, datatype, position, &mut bytes)?;
    }
    Ok((datatype, shape, bytes))
}

/// `binary_data_size`, if it is there.
fn binary_size(parameters: &Option<Parameters<OF_TENSOR>>) -> Result<Option<usize>, TensorFault> {
    let mut size = None;
    for parameter in parameters.iter().flat_map(|parameters| &parameters.0) {
        match parameter.name.as_str() {
            "binary_data_size" => {
                let given = value::integer(&parameter.value).and_then(|int| usize::try_from(int).ok()).filter(|_| size.is_none());
                size = Some(given.ok_or(TensorFault::BinaryDataSize)?);
            }
            name if options::is_shared_memory(name) => return Err(TensorFault::SharedMemory),
            // A requested output's.
            _ => {}
        }
    }
    Ok(size)
}

/// An extent as it was written.
struct Extent(i64);

impl<'de> Deserialize<'de> for Extent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(ExtentVisitor).map(Self)
    }
}

struct ExtentVisitor;

impl Visitor<'_> for ExtentVisitor {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an extent: an integer up to 2^63 − 1")
    }

    fn visit_i64<E: Error>(self, int: i64) -> Result<i64, E> {
        Ok(int)
    }

    fn visit_u64<E: Error>(self, int: u64) -> Result<i64, E> {
        i64::try_from(int).map_err(|_| E::invalid_value(Unexpected::Unsigned(int), &self))
    }

    fn visit_f64<E: Error>(self, float: f64) -> Result<i64, E> {
        element::whole(float).ok_or_else(|| E::invalid_type(Unexpected::Float(float), &self))
    }
}

fn read_shape(extents: &[Extent]) -> Result<Vec<usize>, TensorFault> {
    let extent = |(axis, &Extent(extent))| usize::try_from(extent).map_err(|_| TensorFault::NegativeExtent { axis, extent });
    extents.iter().enumerate().map(extent).collect()
}

/// Data is flat, or nested exactly as the shape says.
fn check_arrangement(shape: &[usize], data: &Data) -> Result<(), TensorFault> {
    if let Some(depth) = data.ragged {
        return Err(TensorFault::Ragged { depth });
    }
    let expected = binary::count(shape)?;
    let found = data.scalars.len();
    if found != expected {
        return Err(TensorFault::Count { shape: shape.to_vec(), expected, found });
    }
    // An empty list ends the nesting early: [[], []] says all there is to say of [2, 0, 5].
    let nested = data.nesting.len() > 1;
    let agrees = if found == 0 { shape.starts_with(&data.nesting) } else { shape == data.nesting };
    if nested && !agrees {
        return Err(TensorFault::Nesting { shape: shape.to_vec(), found: data.nesting.clone() });
    }
    Ok(())
}

/// A tensor on its way out: with its elements, or with the number of bytes that follow behind the JSON.
#[derive(Serialize)]
pub(crate) struct PrintTensor<'a> {
    name: &'a str,
    shape: &'a [usize],
    datatype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<PrintSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<PrintData<'a>>,
}

#[derive(Serialize)]
struct PrintSize {
    binary_data_size: usize,
}

impl<'a> PrintTensor<'a> {
    pub(crate) fn of(tensor: &'a Tensor, is_binary: bool) -> Result<Self, BadResponse> {
        if is_binary {
            element::check_consistent(tensor)?;
        } else {
            element::check_printable(tensor)?;
        }
        Ok(Self {
            name: &tensor.name,
            shape: &tensor.shape,
            datatype: tensor.datatype.name(),
            parameters: is_binary.then_some(PrintSize { binary_data_size: tensor.data.len() }),
            data: (!is_binary).then_some(PrintData(tensor)),
        })
    }
}

//! A tensor of a message: name, datatype, shape and data, checked against one another.

use cellwright_cell_graph::{Datatype, Tensor};
use serde::{Deserialize, Serialize};

use crate::data::Data;
use crate::element::{self, PrintData};
use crate::fault::{RequestFault, TensorFault};
use crate::value::Parameters;

/// A tensor as it stands in JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WireTensor {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    #[serde(default)]
    parameters: Option<Parameters>,
    #[serde(default)]
    data: Option<Data>,
}

/// The tensors of a message, each name at most once.
pub(crate) fn read_all(wire: Vec<WireTensor>, role: &'static str) -> Result<Vec<Tensor>, RequestFault> {
    let mut names: Vec<&str> = wire.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(RequestFault::Duplicate { role, name: pair[0].to_owned() });
    }
    wire.into_iter()
        .map(|tensor| {
            let name = tensor.name.clone();
            read(tensor).map_err(|fault| RequestFault::Tensor { role, name, fault })
        })
        .collect()
}

fn read(wire: WireTensor) -> Result<Tensor, TensorFault> {
    let datatype = Datatype::from_name(&wire.datatype).ok_or_else(|| TensorFault::UnknownDatatype(wire.datatype.clone()))?;
    if let Some(parameter) = wire.parameters.as_ref().and_then(|parameters| parameters.0.first()) {
        return Err(match parameter.name.as_str() {
            "binary_data_size" => TensorFault::BinaryData,
            name => TensorFault::UnknownParameter(name.to_owned()),
        });
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
    Ok(Tensor { name: wire.name, datatype, shape, data: bytes })
}

fn read_shape(extents: &[i64]) -> Result<Vec<usize>, TensorFault> {
    let extent =
        |(axis, extent): (usize, &i64)| usize::try_from(*extent).map_err(|_| TensorFault::NegativeExtent { axis, extent: *extent });
    extents.iter().enumerate().map(extent).collect()
}

/// Data is flat, or nested exactly as the shape says.
fn check_arrangement(shape: &[usize], data: &Data) -> Result<(), TensorFault> {
    if let Some(depth) = data.ragged {
        return Err(TensorFault::Ragged { depth });
    }
    let elements = shape.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent));
    let expected = elements.ok_or_else(|| TensorFault::ShapeTooLarge { shape: shape.to_vec() })?;
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

/// A tensor on its way out.
#[derive(Serialize)]
pub(crate) struct PrintTensor<'a> {
    name: &'a str,
    shape: &'a [usize],
    datatype: &'static str,
    data: PrintData<'a>,
}

impl<'a> PrintTensor<'a> {
    pub(crate) fn of(tensor: &'a Tensor) -> Self {
        Self { name: &tensor.name, shape: &tensor.shape, datatype: tensor.datatype.name(), data: PrintData(tensor) }
    }
}

//! Weights out of a safetensors file.

use cellwright_cell_graph::{Datatype, Tensor, Weights};
use safetensors::{Dtype, SafeTensors};

use crate::error::WeightsFault;

/// Files above this are refused unread.
pub(crate) const BYTES_MAX: u64 = 8 << 30;

/// Every tensor of the file, in its own datatype.
pub(crate) fn read(bytes: &[u8]) -> Result<Weights, WeightsFault> {
    let file = SafeTensors::deserialize(bytes)?;
    file.iter().map(|(name, view)| tensor(name, view.dtype(), view.shape(), view.data())).collect()
}

fn tensor(name: &str, dtype: Dtype, shape: &[usize], data: &[u8]) -> Result<Tensor, WeightsFault> {
    let datatype = match dtype {
        Dtype::F32 => Datatype::Fp32,
        Dtype::I64 => Datatype::Int64,
        Dtype::I32 => Datatype::Int32,
        other => return Err(WeightsFault::Datatype { name: name.to_owned(), datatype: format!("{other:?}") }),
    };
    let tensor = Tensor { name: name.to_owned(), datatype, shape: shape.to_vec(), data: data.to_vec() };
    if tensor.is_consistent() { Ok(tensor) } else { Err(WeightsFault::Size { name: tensor.name, shape: tensor.shape, found: data.len() }) }
}

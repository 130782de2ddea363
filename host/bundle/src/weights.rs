//! Weights out of a safetensors file.

use std::io::Read;

use cellwright_cell_graph::{Datatype, Tensor, Weights};
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError};

use crate::error::WeightsFault;

/// Files above this are refused unread.
pub(crate) const BYTES_MAX: u64 = 8 << 30;

/// Bytes of the header, which is read whole before anything else: some hundred thousand tensors.
const HEADER_BYTES_MAX: u64 = 16 << 20;

/// Every tensor of a file of so many bytes, in its own datatype. The file is never in memory beside them.
pub(crate) fn read(mut file: impl Read, length: u64) -> Result<Weights, WeightsFault> {
    let mut size = [0; size_of::<u64>()];
    file.read_exact(&mut size).map_err(|_| SafeTensorError::HeaderTooSmall)?;
    let size = u64::from_le_bytes(size);
    if size > HEADER_BYTES_MAX {
        return Err(WeightsFault::Header { bytes: size, bound: HEADER_BYTES_MAX });
    }
    let mut header = Vec::new();
    file.by_ref().take(size).read_to_end(&mut header).map_err(WeightsFault::Unreadable)?;
    if header.len() as u64 != size {
        return Err(SafeTensorError::InvalidHeaderLength.into());
    }
    // Reading it checks that the tensors lie one behind the other, and that each is as long as its shape and datatype say.
    let metadata: Metadata = serde_json::from_slice(&header).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    if (metadata.data_len() as u64).checked_add(size + 8) != Some(length) {
        return Err(SafeTensorError::MetadataIncompleteBuffer.into());
    }
    let mut weights = Vec::new();
    for name in metadata.offset_keys() {
        let Some(info) = metadata.info(&name) else { continue };
        let mut data = vec![0; info.data_offsets.1 - info.data_offsets.0];
        file.read_exact(&mut data).map_err(WeightsFault::Unreadable)?;
        weights.push(tensor(&name, info.dtype, &info.shape, data)?);
    }
    Ok(weights.into_iter().collect())
}

fn tensor(name: &str, dtype: Dtype, shape: &[usize], data: Vec<u8>) -> Result<Tensor, WeightsFault> {
    let datatype = match dtype {
        Dtype::F32 => Datatype::Fp32,
        Dtype::I64 => Datatype::Int64,
        Dtype::I32 => Datatype::Int32,
        other => return Err(WeightsFault::Datatype { name: name.to_owned(), datatype: format!("{other:?}") }),
    };
    let tensor = Tensor { name: name.to_owned(), datatype, shape: shape.to_vec(), data };
    if tensor.is_consistent() {
        Ok(tensor)
    } else {
        Err(WeightsFault::Size { name: tensor.name, shape: tensor.shape, found: tensor.data.len() })
    }
}

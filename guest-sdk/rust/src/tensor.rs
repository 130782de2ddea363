//! Tensors with contents, made and read: literals of a graph, values a plugin watched, parts of a response it emits.

use crate::abi::cellwright::plugin::types::{Datatype, Refusal, Tensor};

impl Datatype {
    /// The protocol's name, such as `FP32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Bf16 => "BF16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }
}

impl Tensor {
    /// 32-bit floats.
    #[must_use]
    pub fn of_floats(name: &str, shape: &[u64], values: &[f32]) -> Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { name: name.into(), datatype: Datatype::Fp32, shape: shape.to_vec(), data }
    }

    /// 64-bit integers.
    #[must_use]
    pub fn of_ints(name: &str, shape: &[u64], values: &[i64]) -> Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { name: name.into(), datatype: Datatype::Int64, shape: shape.to_vec(), data }
    }

    /// A BYTES tensor of shape `[1]` with one text.
    #[must_use]
    pub fn of_text(name: &str, text: &str) -> Self {
        Self::of_texts(name, &[1], &[text])
    }

    /// A BYTES tensor.
    ///
    /// # Panics
    /// A text is longer than 4 GiB.
    #[must_use]
    pub fn of_texts(name: &str, shape: &[u64], texts: &[&str]) -> Self {
        let mut data = Vec::with_capacity(texts.iter().map(|text| text.len() + 4).sum());
        for text in texts {
            data.extend(u32::try_from(text.len()).expect("texts are shorter than 4 GiB").to_le_bytes());
            data.extend(text.as_bytes());
        }
        Self { name: name.into(), datatype: Datatype::Bytes, shape: shape.to_vec(), data }
    }

    /// The elements of an INT64 tensor.
    ///
    /// # Errors
    /// It has another datatype.
    pub fn ints(&self) -> Result<Vec<i64>, Refusal> {
        self.of_type(Datatype::Int64)?;
        Ok(self.data.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
    }

    /// The elements of an FP32 tensor.
    ///
    /// # Errors
    /// It has another datatype.
    pub fn floats(&self) -> Result<Vec<f32>, Refusal> {
        self.of_type(Datatype::Fp32)?;
        Ok(self.data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    fn of_type(&self, wanted: Datatype) -> Result<(), Refusal> {
        if self.datatype == wanted {
            return Ok(());
        }
        Err(Refusal::Internal(format!("tensor `{}` must be {}, it is {}", self.name, wanted.name(), self.datatype.name())))
    }
}

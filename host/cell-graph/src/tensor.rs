//! A tensor with its contents: what clients send, plugins embed and responses carry.

use crate::datatype::Datatype;

/// Row-major, little-endian. `BYTES` elements are a u32 length and that many bytes each.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The name it has in the request, the response or the bundle.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Extents, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements' bytes.
    pub data: Vec<u8>,
}

impl Tensor {
    /// Whether its rows continue those of an earlier tensor: same name, datatype and row shape.
    #[must_use]
    pub fn follows(&self, before: &Self) -> bool {
        let is_alike = self.shape.len() == before.shape.len() && self.shape.iter().skip(1).eq(before.shape.iter().skip(1));
        self.name == before.name && self.datatype == before.datatype && is_alike && !self.shape.is_empty()
    }

    /// A tensor of 32-bit floats.
    #[must_use]
    pub fn from_f32(name: &str, shape: &[usize], values: &[f32]) -> Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { name: name.to_owned(), datatype: Datatype::Fp32, shape: shape.to_vec(), data }
    }

    /// A tensor of 64-bit integers.
    #[must_use]
    pub fn from_i64(name: &str, shape: &[usize], values: &[i64]) -> Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { name: name.to_owned(), datatype: Datatype::Int64, shape: shape.to_vec(), data }
    }

    /// A tensor of byte strings.
    #[must_use]
    pub fn from_texts<T: AsRef<[u8]>>(name: &str, shape: &[usize], values: &[T]) -> Self {
        let mut data = Vec::new();
        for value in values {
            let bytes = value.as_ref();
            data.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
            data.extend_from_slice(bytes);
        }
        Self { name: name.to_owned(), datatype: Datatype::Bytes, shape: shape.to_vec(), data }
    }

    /// Number of elements, or none if the product does not fit.
    #[must_use]
    pub fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent))
    }

    /// Whether the data is exactly what datatype and shape ask for.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let Some(elements) = self.elements() else { return false };
        match self.datatype.size() {
            Some(size) => elements.checked_mul(size) == Some(self.data.len()),
            None => self.count_texts() == Some(elements),
        }
    }

    /// Elements of a `BYTES` tensor, without the memory that a list of them takes: many times their bytes if they are short.
    fn count_texts(&self) -> Option<usize> {
        let (mut count, mut rest) = (0, self.data.as_slice());
        while !rest.is_empty() {
            rest = split_text(rest)?.1;
            count += 1;
        }
        Some(count)
    }

    /// The elements of an `FP32` tensor.
    #[must_use]
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        (self.datatype == Datatype::Fp32).then(|| self.data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// The elements of an integer or `BOOL` tensor, widened; none for other datatypes, or if a `UINT64` does not fit.
    #[must_use]
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        let data = &self.data;
        Some(match self.datatype {
            Datatype::Bool | Datatype::Uint8 => data.iter().map(|byte| i64::from(*byte)).collect(),
            Datatype::Int8 => data.iter().map(|byte| i64::from(byte.cast_signed())).collect(),
            Datatype::Uint16 => data.as_chunks::<2>().0.iter().map(|bytes| i64::from(u16::from_le_bytes(*bytes))).collect(),
            Datatype::Int16 => data.as_chunks::<2>().0.iter().map(|bytes| i64::from(i16::from_le_bytes(*bytes))).collect(),
            Datatype::Uint32 => data.as_chunks::<4>().0.iter().map(|bytes| i64::from(u32::from_le_bytes(*bytes))).collect(),
            Datatype::Int32 => data.as_chunks::<4>().0.iter().map(|bytes| i64::from(i32::from_le_bytes(*bytes))).collect(),
            Datatype::Int64 => data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
            Datatype::Uint64 => {
                data.as_chunks::<8>().0.iter().map(|bytes| i64::try_from(u64::from_le_bytes(*bytes)).ok()).collect::<Option<_>>()?
            }
            Datatype::Fp16 | Datatype::Bf16 | Datatype::Fp32 | Datatype::Fp64 | Datatype::Bytes => return None,
        })
    }

    /// The elements of a `BYTES` tensor; none for other datatypes or if the lengths do not add up.
    #[must_use]
    pub fn texts(&self) -> Option<Vec<&[u8]>> {
        if self.datatype != Datatype::Bytes {
            return None;
        }
        let mut texts = Vec::new();
        let mut rest = self.data.as_slice();
        while !rest.is_empty() {
            let (text, tail) = split_text(rest)?;
            texts.push(text);
            rest = tail;
        }
        Some(texts)
    }
}

/// The first element of a `BYTES` tensor's data, and what stands behind it.
fn split_text(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, tail) = data.split_first_chunk::<4>()?;
    tail.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_as_many_as_the_shape_says() {
        let texts = |extent| Tensor { shape: vec![extent], ..Tensor::from_texts("x", &[], &["", "two", ""]) };
        assert!(texts(3).is_consistent() && !texts(2).is_consistent() && !texts(4).is_consistent());
        let mut cut_off = texts(3);
        cut_off.data.pop();
        assert!(!cut_off.is_consistent());
        assert!(Tensor::from_texts::<&str>("x", &[0], &[]).is_consistent());
    }
}

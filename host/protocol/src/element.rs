//! One element: from what JSON wrote to the bytes of its datatype, and back.

use cellwright_cell_graph::{Datatype, Tensor};
use serde::ser::{Serialize, SerializeSeq, Serializer};

use crate::data::Scalar;
use crate::fault::{BadResponse, TensorFault};
use crate::words;

/// Appends the bytes of one element.
///
/// # Errors
/// If the element is no value of the datatype: nothing is rounded to an integer, cut to a range or read out of a string (but for the three floating-point values JSON lacks).
pub(crate) fn read(scalar: Scalar<'_>, datatype: Datatype, position: usize, bytes: &mut Vec<u8>) -> Result<(), TensorFault> {
    let refuse = || match scalar {
        Scalar::Null => TensorFault::Null { position, datatype },
        _ => TensorFault::Element { position, found: scalar.to_string(), datatype },
    };
    macro_rules! integer {
        ($type:ty) => {
            bytes.extend_from_slice(&integer::<$type>(scalar).ok_or_else(refuse)?.to_le_bytes())
        };
    }
    match datatype {
        Datatype::Bool => match scalar {
            Scalar::Truth(truth) => bytes.push(u8::from(truth)),
            _ => return Err(refuse()),
        },
        Datatype::Uint8 => integer!(u8),
        Datatype::Uint16 => integer!(u16),
        Datatype::Uint32 => integer!(u32),
        Datatype::Uint64 => integer!(u64),
        Datatype::Int8 => integer!(i8),
        Datatype::Int16 => integer!(i16),
        Datatype::Int32 => integer!(i32),
        Datatype::Int64 => integer!(i64),
        Datatype::Fp32 => bytes.extend_from_slice(&narrow(scalar).ok_or_else(refuse)?.to_le_bytes()),
        Datatype::Fp64 => bytes.extend_from_slice(&float(scalar).ok_or_else(refuse)?.to_le_bytes()),
        Datatype::Fp16 | Datatype::Bf16 => return Err(TensorFault::BinaryOnly(datatype)),
        Datatype::Bytes => {
            let Scalar::Text(text) = scalar else { return Err(refuse()) };
            let length = u32::try_from(text.len()).map_err(|_| refuse())?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    Ok(())
}

fn integer<T: TryFrom<i64> + TryFrom<u64>>(scalar: Scalar<'_>) -> Option<T> {
    match scalar {
        Scalar::Signed(int) => T::try_from(int).ok(),
        Scalar::Unsigned(int) => T::try_from(int).ok(),
        Scalar::Float(float) => whole(float).and_then(|int| T::try_from(int).ok()),
        Scalar::Truth(_) | Scalar::Text(_) | Scalar::Null => None,
    }
}

/// `-0` is an integer that JSON's reader gives as a float.
pub(crate) fn whole(float: f64) -> Option<i64> {
    (float.to_bits() == (-0.0_f64).to_bits()).then_some(0)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "rounding to the nearest FP32 is what the client asked for; overflow is refused"
)]
fn narrow(scalar: Scalar<'_>) -> Option<f32> {
    // By way of FP64 an integer would be rounded twice.
    match scalar {
        Scalar::Signed(int) => Some(int as f32),
        Scalar::Unsigned(int) => Some(int as f32),
        _ => float(scalar)
            .map(|wide| (wide, wide as f32))
            .filter(|(wide, narrow)| narrow.is_finite() || !wide.is_finite())
            .map(|both| both.1),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "an integer literal in floating-point data means the nearest number, as in every JSON reader"
)]
fn float(scalar: Scalar<'_>) -> Option<f64> {
    match scalar {
        Scalar::Signed(int) => Some(int as f64),
        Scalar::Unsigned(int) => Some(int as f64),
        Scalar::Float(float) => Some(float),
        Scalar::Text(text) => words::number(text),
        Scalar::Truth(_) | Scalar::Null => None,
    }
}

/// Whether JSON can say this tensor.
pub(crate) fn check_printable(tensor: &Tensor) -> Result<(), BadResponse> {
    let output = || tensor.name.clone();
    if matches!(tensor.datatype, Datatype::Fp16 | Datatype::Bf16) {
        return Err(BadResponse::BinaryOnly { output: output(), datatype: tensor.datatype });
    }
    check_consistent(tensor)?;
    let not_utf8 = tensor.texts().and_then(|texts| texts.iter().position(|text| std::str::from_utf8(text).is_err()));
    not_utf8.map_or(Ok(()), |position| Err(BadResponse::NotUtf8 { output: output(), position }))
}

/// Whether its bytes are what its datatype and shape ask for.
pub(crate) fn check_consistent(tensor: &Tensor) -> Result<(), BadResponse> {
    if tensor.is_consistent() {
        return Ok(());
    }
    Err(BadResponse::Inconsistent { output: tensor.name.clone(), found: tensor.data.len() })
}

/// A tensor's elements as one flat JSON list. Floats are written with the fewest digits that read back to the same bits.
pub(crate) struct PrintData<'a>(pub(crate) &'a Tensor);

impl Serialize for PrintData<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let data = self.0.data.as_slice();
        macro_rules! all {
            ($type:ty, $element:expr) => {
                serializer
                    .collect_seq(data.as_chunks::<{ size_of::<$type>() }>().0.iter().map(|bytes| $element(<$type>::from_le_bytes(*bytes))))
            };
        }
        match self.0.datatype {
            Datatype::Bool => serializer.collect_seq(data.iter().map(|byte| *byte != 0)),
            Datatype::Uint8 => all!(u8, |int| int),
            Datatype::Uint16 => all!(u16, |int| int),
            Datatype::Uint32 => all!(u32, |int| int),
            Datatype::Uint64 => all!(u64, |int| int),
            Datatype::Int8 => all!(i8, |int| int),
            Datatype::Int16 => all!(i16, |int| int),
            Datatype::Int32 => all!(i32, |int| int),
            Datatype::Int64 => all!(i64, |int| int),
            Datatype::Fp32 => all!(f32, PrintFp32),
            Datatype::Fp64 => all!(f64, PrintFp64),
            Datatype::Bytes => {
                let texts = self.0.texts().unwrap_or_default();
                let mut list = serializer.serialize_seq(Some(texts.len()))?;
                for text in texts {
                    list.serialize_element(std::str::from_utf8(text).map_err(serde::ser::Error::custom)?)?;
                }
                list.end()
            }
            Datatype::Fp16 | Datatype::Bf16 => Err(serde::ser::Error::custom("JSON has no form for 16-bit floats")),
        }
    }
}

macro_rules! print_float {
    ($name:ident, $float:ty, $print:expr) => {
        struct $name($float);

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self.0 {
                    float if float.is_nan() => serializer.serialize_str("NaN"),
                    <$float>::INFINITY => serializer.serialize_str("Infinity"),
                    <$float>::NEG_INFINITY => serializer.serialize_str("-Infinity"),
                    float => $print(&float, serializer),
                }
            }
        }
    };
}

print_float!(PrintFp32, f32, print_f32);
print_float!(PrintFp64, f64, Serialize::serialize);

/// The one magnitude of all (they were tried) whose fewest digits, read as FP64 and then narrowed, as most readers do, are another FP32: 7.038531e-26.
const READ_AS_ANOTHER: u32 = 0x15ae_43fd;

fn print_f32<S: Serializer>(float: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    if float.abs().to_bits() == READ_AS_ANOTHER { f64::from(*float).serialize(serializer) } else { float.serialize(serializer) }
}

/// One element from its bytes; of `BYTES`, from its text.
pub(crate) struct PrintElement<'a>(pub(crate) Datatype, pub(crate) &'a [u8]);

impl Serialize for PrintElement<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        macro_rules! one {
            ($type:ty, $element:expr) => {
                match self.1.first_chunk() {
                    Some(bytes) => $element(<$type>::from_le_bytes(*bytes)).serialize(serializer),
                    None => Err(serde::ser::Error::custom("an element lacks bytes")),
                }
            };
        }
        match self.0 {
            Datatype::Bool => one!(u8, |byte| byte != 0),
            Datatype::Uint8 => one!(u8, |int| int),
            Datatype::Uint16 => one!(u16, |int| int),
            Datatype::Uint32 => one!(u32, |int| int),
            Datatype::Uint64 => one!(u64, |int| int),
            Datatype::Int8 => one!(i8, |int| int),
            Datatype::Int16 => one!(i16, |int| int),
            Datatype::Int32 => one!(i32, |int| int),
            Datatype::Int64 => one!(i64, |int| int),
            Datatype::Fp32 => one!(f32, PrintFp32),
            Datatype::Fp64 => one!(f64, PrintFp64),
            Datatype::Bytes => std::str::from_utf8(self.1).map_err(serde::ser::Error::custom)?.serialize(serializer),
            Datatype::Fp16 | Datatype::Bf16 => Err(serde::ser::Error::custom("JSON has no form for 16-bit floats")),
        }
    }
}

//! Weights out of a safetensors file: first what it says of them, then the contents of those that cells read.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{Read, Seek, SeekFrom};

use cellwright_cell_graph::{Datatype, Tensor, WeightSpec, Weights};
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError};
use serde::Deserializer as _;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};

use crate::error::WeightsFault;

/// Files above this are refused unread.
pub(crate) const BYTES_MAX: u64 = 8 << 30;

/// Bytes of the header, which is read whole before anything else: some hundred thousand tensors.
const HEADER_BYTES_MAX: u64 = 16 << 20;

/// Bytes that are read at once and turned into floats: whole numbers of every datatype.
const PIECE_BYTES: usize = 64 << 10;

/// Weights whose names a sentence lists.
const LISTED_MAX: usize = 8;

/// What a file says of its weights, in the order of their contents.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    /// Where the contents begin.
    data: u64,
    weights: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    /// From where the contents begin.
    offset: u64,
    bytes: usize,
}

impl Entry {
    /// Bytes that it takes once it is read.
    const fn bytes_read(&self) -> usize {
        match self.dtype {
            Dtype::F16 | Dtype::BF16 => self.bytes.saturating_mul(2),
            Dtype::F64 => self.bytes / 2,
            _ => self.bytes,
        }
    }
}

impl Header {
    /// Reads it from the start of a file of so many bytes.
    pub(crate) fn read(mut file: impl Read, length: u64) -> Result<Self, WeightsFault> {
        let mut begin = Vec::new();
        file.by_ref().take(FORMAT_BYTES as u64).read_to_end(&mut begin).map_err(WeightsFault::Unreadable)?;
        if let Some(format) = Format::of(&begin) {
            return Err(WeightsFault::Format(format));
        }
        let Some(size) = begin.first_chunk() else { return Err(SafeTensorError::HeaderTooSmall.into()) };
        let size = u64::from_le_bytes(*size);
        if size > HEADER_BYTES_MAX {
            return Err(WeightsFault::Header { bytes: size, bound: HEADER_BYTES_MAX });
        }
        let mut header = Vec::new();
        let all = (&begin[size_of::<u64>()..]).chain(file);
        all.take(size).read_to_end(&mut header).map_err(WeightsFault::Unreadable)?;
        if header.len() as u64 != size {
            return Err(SafeTensorError::InvalidHeaderLength.into());
        }
        check_names(&header)?;
        // Reading it checks that the tensors lie one behind the other, and that each is as long as its shape and datatype say.
        let metadata: Metadata = serde_json::from_slice(&header).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
        let data = size + size_of::<u64>() as u64;
        if (metadata.data_len() as u64).checked_add(data) != Some(length) {
            return Err(SafeTensorError::MetadataIncompleteBuffer.into());
        }
        let names = metadata.offset_keys();
        let weights = names.into_iter().filter_map(|name| {
            let info = metadata.info(&name)?;
            let (offset, bytes) = (info.data_offsets.0 as u64, info.data_offsets.1 - info.data_offsets.0);
            Some(Entry { name, dtype: info.dtype, shape: info.shape.clone(), offset, bytes })
        });
        Ok(Self { data, weights: weights.collect() })
    }

    /// The same without weights whose names begin so: to all who ask they are not there.
    pub(crate) fn without(mut self, prefixes: &[String]) -> Self {
        self.weights.retain(|entry| !has_prefix(&entry.name, prefixes));
        self
    }

    /// What the file has, by name.
    pub(crate) fn specs(&self) -> Vec<WeightSpec> {
        let spec = |entry: &Entry| WeightSpec {
            name: entry.name.clone(),
            datatype: datatype(entry.dtype),
            shape: entry.shape.iter().map(|extent| *extent as u64).collect(),
        };
        let mut specs: Vec<_> = self.weights.iter().map(spec).collect();
        specs.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        specs
    }

    /// Whether all weights have one of those names, or begin as the bundle says that unread ones may.
    pub(crate) fn check_unread(&self, names: &BTreeSet<&str>, ignored: &[String]) -> Result<(), WeightsFault> {
        let others = self.weights.iter().map(|entry| entry.name.as_str());
        let unread: Vec<&str> = others.filter(|name| !names.contains(name) && !has_prefix(name, ignored)).collect();
        match unread.first() {
            Some(first) => Err(WeightsFault::Unread { names: listed(&unread), first: (*first).to_owned() }),
            None => Ok(()),
        }
    }

    /// Bytes that the weights of those names take once they are read.
    pub(crate) fn bytes_read(&self, names: &BTreeSet<&str>) -> u64 {
        let read = self.weights.iter().filter(|entry| names.contains(entry.name.as_str()));
        read.map(|entry| entry.bytes_read() as u64).fold(0, u64::saturating_add)
    }

    /// The weights of those names, out of the file that this is the header of. Names that it does not have are left out. Values of weights with
    /// the prefixes `non_finite` may be NaN or infinite.
    pub(crate) fn contents(
        &self,
        mut file: impl Read + Seek,
        names: &BTreeSet<&str>,
        non_finite: &[String],
    ) -> Result<Weights, WeightsFault> {
        let (read, others): (Vec<_>, Vec<_>) = self.weights.iter().partition(|entry| names.contains(entry.name.as_str()));
        let mut weights = Vec::with_capacity(read.len());
        for entry in read {
            file.seek(SeekFrom::Start(self.data + entry.offset)).map_err(WeightsFault::Unreadable)?;
            weights.push(tensor(entry, &mut file, non_finite)?);
        }
        let others = others.into_iter().map(|entry| entry.name.clone()).collect();
        Ok(weights.into_iter().collect::<Weights>().beside(others))
    }
}

/// Whether no name is there twice: of two readers each might take another of them.
fn check_names(header: &[u8]) -> Result<(), WeightsFault> {
    struct Names(BTreeSet<String>);

    impl<'de> Visitor<'de> for Names {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of tensors by name")
        }

        fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
            while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
                if self.0.contains(&name) {
                    return Err(A::Error::custom(format_args!("`{name}` is there twice")));
                }
                self.0.insert(name);
            }
            Ok(())
        }
    }
    let read = serde_json::Deserializer::from_slice(header).deserialize_map(Names(BTreeSet::new()));
    Ok(read.map_err(SafeTensorError::InvalidHeaderDeserialization)?)
}

fn has_prefix(name: &str, prefixes: &[String]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
}

/// `a`, `b` and 3 more.
fn listed(names: &[&str]) -> String {
    let shown = names.iter().take(LISTED_MAX).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Cells read floats of 32 bits and integers of 32 and 64: other floats become them, piece by piece, so that no weight is there twice.
fn tensor(entry: &Entry, mut file: impl Read, non_finite: &[String]) -> Result<Tensor, WeightsFault> {
    let named = || entry.name.clone();
    let datatype = match entry.dtype {
        Dtype::I64 => Datatype::Int64,
        Dtype::I32 => Datatype::Int32,
        Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64 => Datatype::Fp32,
        other => return Err(WeightsFault::Datatype { name: named(), datatype: format!("{other:?}") }),
    };
    let mut data = Vec::with_capacity(entry.bytes_read());
    let (mut buffer, mut left) = (vec![0; PIECE_BYTES.min(entry.bytes)], entry.bytes);
    while left > 0 {
        let piece = &mut buffer[..left.min(PIECE_BYTES)];
        file.read_exact(piece).map_err(WeightsFault::Unreadable)?;
        left -= piece.len();
        match entry.dtype {
            Dtype::F16 => data.extend(floats(piece, |bytes| from_f16(u16::from_le_bytes(bytes)))),
            Dtype::BF16 => data.extend(floats(piece, |[low, high]| f32::from_le_bytes([0, 0, low, high]))),
            Dtype::F64 => {
                let too_large = |value: &f64| value.is_finite() && narrowed(*value).is_infinite();
                if let Some(value) = piece.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).find(too_large) {
                    return Err(WeightsFault::BeyondSingles { name: named(), value });
                }
                data.extend(floats(piece, |bytes| narrowed(f64::from_le_bytes(bytes))));
            }
            _ => data.extend_from_slice(piece),
        }
    }
    let tensor = Tensor { name: named(), datatype, shape: entry.shape.clone(), data };
    if !tensor.is_consistent() {
        return Err(WeightsFault::Size { name: tensor.name, shape: tensor.shape, found: tensor.data.len() });
    }
    if datatype == Datatype::Fp32 && !has_prefix(&entry.name, non_finite) {
        let values = tensor.data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        if let Some((position, value)) = values.enumerate().find(|(_, value)| !value.is_finite()) {
            return Err(WeightsFault::NonFinite { name: tensor.name, position, value });
        }
    }
    Ok(tensor)
}

fn floats<const N: usize>(data: &[u8], value: impl Fn([u8; N]) -> f32) -> impl Iterator<Item = u8> {
    data.as_chunks().0.iter().flat_map(move |bytes| value(*bytes).to_le_bytes())
}

#[expect(clippy::cast_possible_truncation, reason = "to the nearest, and beyond the range to infinity, which the caller looks for")]
const fn narrowed(value: f64) -> f32 {
    value as f32
}

/// IEEE 754 binary16, exactly.
fn from_f16(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (u32::from(bits >> 15) << 31, u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    let magnitude = match exponent {
        // A subnormal is its fraction in units of 2^-24.
        0 => (f32::from(bits & 0x3ff) / 16_777_216.0).to_bits(),
        0x1f => 0x7f80_0000 | fraction << 13,
        _ => (exponent + 112) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

const fn datatype(dtype: Dtype) -> Option<Datatype> {
    Some(match dtype {
        Dtype::BOOL => Datatype::Bool,
        Dtype::U8 => Datatype::Uint8,
        Dtype::U16 => Datatype::Uint16,
        Dtype::U32 => Datatype::Uint32,
        Dtype::U64 => Datatype::Uint64,
        Dtype::I8 => Datatype::Int8,
        Dtype::I16 => Datatype::Int16,
        Dtype::I32 => Datatype::Int32,
        Dtype::I64 => Datatype::Int64,
        Dtype::F16 => Datatype::Fp16,
        Dtype::BF16 => Datatype::Bf16,
        Dtype::F32 => Datatype::Fp32,
        Dtype::F64 => Datatype::Fp64,
        _ => return None,
    })
}

/// Bytes by which a format is told.
const FORMAT_BYTES: usize = 96;

/// A format of weights that is not safetensors, and how to make safetensors of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// What `torch.save` writes: a ZIP archive, or a pickle in older versions.
    PyTorch,
    /// What `numpy.savez` and `numpy.save` write.
    NumPy,
    /// HDF5, as Keras writes it.
    Hdf5,
    /// An ONNX model.
    Onnx,
    /// GGUF, as llama.cpp reads it.
    Gguf,
    /// A file that stands for another, which Git LFS has not fetched.
    LfsPointer,
    /// Compressed by gzip, bzip2, xz or zstd.
    Compressed,
}

impl Format {
    fn of(begin: &[u8]) -> Option<Self> {
        let is_array = |name: &[u8]| name.windows(4).any(|part| part == b".npy");
        Some(match begin {
            [b'P', b'K', 3, 4, rest @ ..] if is_array(rest) => Self::NumPy,
            [b'P', b'K', 3, 4, ..] | [0x80, 2..=5, b'c' | b'}' | b'(' | 0x8a | 0x95 | b']', ..] => Self::PyTorch,
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Self::NumPy,
            [0x89, b'H', b'D', b'F', ..] => Self::Hdf5,
            [b'G', b'G', b'U', b'F', ..] => Self::Gguf,
            [0x1f, 0x8b, ..] | [b'B', b'Z', b'h', ..] | [0xfd, b'7', b'z', b'X', b'Z', ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => {
                Self::Compressed
            }
            // The version of its format, then the name of the program that made it.
            [8, 1..=0x20, 0x12, length, name, ..] if *length > 0 && name.is_ascii_alphabetic() => Self::Onnx,
            _ if begin.starts_with(b"version https://git-lfs") => Self::LfsPointer,
            _ => return None,
        })
    }

    pub(crate) const fn sentence(self) -> &'static str {
        match self {
            Self::PyTorch => {
                "it is a PyTorch file, and weights are safetensors: write them with \
                 `safetensors.torch.save_file(model.state_dict(), \"weights.safetensors\")`"
            }
            Self::NumPy => {
                "it is a NumPy file, and weights are safetensors: write them with \
                 `safetensors.numpy.save_file(dict(numpy.load(FILE)), \"weights.safetensors\")`"
            }
            Self::Hdf5 => {
                "it is an HDF5 file (Keras), and weights are safetensors: read its arrays with `h5py`, and write them with \
                 `safetensors.numpy.save_file`"
            }
            Self::Onnx => {
                "it is an ONNX model, and weights are safetensors: write its initializers with `onnx.numpy_helper.to_array` and \
                 `safetensors.numpy.save_file`"
            }
            Self::Gguf => "it is a GGUF file, and weights are safetensors: use the model's original weights",
            Self::LfsPointer => "it is a pointer of Git LFS, not the file itself: run `git lfs pull` first",
            Self::Compressed => "it is compressed, and weights are plain safetensors: unpack it first",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_read_exactly() {
        let cases = [(0, 0.0), (0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (0x0001, 5.960_464_5e-8), (0x0400, 6.103_515_6e-5)];
        for (bits, value) in cases {
            assert_eq!(from_f16(bits).to_bits(), f32::to_bits(value), "{bits:x}");
        }
        assert_eq!([from_f16(0x8000).to_bits(), from_f16(0xfc00).to_bits()], [0x8000_0000, f32::NEG_INFINITY.to_bits()]);
        assert!(from_f16(0x7e00).is_nan());
    }

    #[test]
    fn only_what_cells_read_is_read_and_piece_by_piece() {
        const READ: usize = PIECE_BYTES / 2 + 5;
        let [unread, bytes] = [7, 7 + 2 * READ];
        let json = format!(
            r#"{{"other":{{"dtype":"U8","shape":[7],"data_offsets":[0,{unread}]}},"w":{{"dtype":"F16","shape":[{READ}],"data_offsets":[{unread},{bytes}]}}}}"#
        );
        let halves = (0..READ).flat_map(|at| [0x00, if at % 3 == 0 { 0x3c } else { 0xc0 }]);
        let file: Vec<u8> = (json.len() as u64).to_le_bytes().into_iter().chain(json.bytes()).chain([0; 7]).chain(halves).collect();
        let header = Header::read(file.as_slice(), file.len() as u64).unwrap();
        let names = BTreeSet::from(["w", "missing"]);
        assert_eq!(header.bytes_read(&names), 4 * READ as u64, "as floats of 32 bits");
        let weights = header.contents(std::io::Cursor::new(file), &names, &[]).unwrap();
        let values = weights.get("w").unwrap().to_f32().unwrap();
        assert!(weights.len() == 1 && values.len() == READ);
        assert!(values.iter().enumerate().all(|(at, value)| value.to_bits() == if at % 3 == 0 { 1.0_f32 } else { -2.0 }.to_bits()));
    }

    #[test]
    fn a_name_that_is_there_twice_is_refused() {
        let tensor = r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
        let read = |json: &str| {
            let bytes = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &[0; 4]].concat();
            Header::read(bytes.as_slice(), bytes.len() as u64).map(|header| header.weights.len()).map_err(|fault| fault.to_string())
        };
        assert_eq!(read(&format!(r#"{{"a":{tensor}}}"#)), Ok(1));
        let twice = read(&format!(r#"{{"a":{tensor},"a":{tensor}}}"#)).unwrap_err();
        assert!(twice.contains("`a` is there twice"), "{twice}");
    }
}

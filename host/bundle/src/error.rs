//! What can be wrong with a bundle, in sentences for the person who made it.

use std::path::PathBuf;

use cellwright_cell_graph::check::is_hidden;
use cellwright_protocol::RequestFault;

use crate::weights::Format;

/// Why a bundle cannot be used. Files are named as the bundle names them.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum BundleError {
    #[error("{folder} cannot be opened: {cause}", folder = folder.display())]
    Folder { folder: PathBuf, cause: std::io::Error },
    #[error("{folder} is not a folder; a bundle is a folder with a model.toml", folder = folder.display())]
    NotAFolder { folder: PathBuf },
    #[error("`{file}` {fault}")]
    File { file: String, fault: FileFault },
    #[error("model.toml: {0}")]
    Manifest(#[from] ManifestFault),
    #[error("`{file}`: {fault}")]
    Weights { file: String, fault: WeightsFault },
    #[error("`{file}`, line {line}: {fault}")]
    Sample { file: String, line: usize, fault: SampleFault },
    #[error(
        "`{file}` has no samples; give at least one sample request, from which shapes are learned and with which each version is tested"
    )]
    NoSamples { file: String },
    #[error("`{expected}` has {found} answers, `{requests}` has {wanted} requests; each line of one belongs to the same line of the other")]
    SampleCounts { expected: String, found: usize, requests: String, wanted: usize },
}

/// Why a file of a bundle cannot be read.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum FileFault {
    #[error("is missing from the bundle")]
    Missing,
    #[error("is not the name of a file in the bundle: names are relative and stay inside it")]
    Outside,
    #[error("is not a regular file")]
    NotAFile,
    #[error("has {found} bytes, at most {bound} are read")]
    TooLarge { found: u64, bound: u64 },
    #[error("is not UTF-8 text")]
    NotText,
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
}

/// What is wrong with `model.toml`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum ManifestFault {
    #[error(transparent)]
    Toml(#[from] cellwright_toml_faults::Fault),
    #[error("line {line}: `{name}` is not a valid name: use 1 to 128 letters, digits, `_`, `.` and `-`, and do not begin with `.`")]
    Name { line: usize, name: String },
    #[error("line {line}: the plugin `{plugin}` does not exist; the built-in ones are {known}", known = crate::builtin::names())]
    UnknownBuiltin { line: usize, plugin: String },
    #[error("line {line}: {key} is 0; it must be at least 1")]
    Zero { line: usize, key: String },
    #[error("line {line}: limits.device_share is {share}; it must be more than 0 and at most 1")]
    DeviceShare { line: usize, share: String },
    #[error(
        "the table [samples] is missing: add `[samples]` and below it `requests = \"samples.jsonl\"`, a file with one request per line, at least one, with which each version is tested"
    )]
    NoSamples,
    #[error("line {line}: samples.tolerance is {tolerance}; it must be a number from 0 to 1")]
    Tolerance { line: usize, tolerance: String },
    #[error("parameter `{name}` is {what}; parameters are integers, floats, texts, booleans, and lists of integers, of floats or of texts")]
    Parameter { name: String, what: &'static str },
    #[error("parameter `{begin}…` has a name of more than {bound} bytes, counting the tables around it")]
    LongName { begin: String, bound: usize },
    #[error("parameter `{0}` is given twice, as a dotted name and in a table")]
    DuplicateParameter(String),
}

/// What is wrong with the weights.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum WeightsFault {
    #[error("it is not a valid safetensors file: {0}")]
    Safetensors(#[from] safetensors::SafeTensorError),
    #[error("it cannot be read: {0}")]
    Unreadable(std::io::Error),
    #[error(
        "it is not a valid safetensors file, or has too many tensors: its header would have {bytes} bytes, more than the limit of {bound}"
    )]
    Header { bytes: u64, bound: u64 },
    #[error("{}", .0.sentence())]
    Format(Format),
    #[error("weight `{name}` has datatype {datatype}; cells read F32, F16, BF16, F64, I64 and I32")]
    Datatype { name: String, datatype: String },
    #[error("weight `{name}` has the value {value:e}, which is beyond the range of 32-bit floats")]
    BeyondSingles { name: String, value: f64 },
    #[error(
        "weight `{name}` has {value} at element {position}: if that is meant, list it in model.toml, as in `allow_non_finite = [\"{name}\"]`"
    )]
    NonFinite { name: String, position: usize, value: f32 },
    #[error(
        "no cell reads {names}: describe the model with them, leave them out, or list the beginnings of their names in model.toml, as in \
         `ignore = [\"{first}\"]`"
    )]
    Unread { names: String, first: String },
    #[error("weight `{name}` has {found} bytes, which do not match its shape {shape:?}")]
    Size { name: String, shape: Vec<usize>, found: usize },
}

/// What is wrong with a line of samples.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum SampleFault {
    #[error("{0}")]
    Message(Box<RequestFault>),
    #[error("the answer is for `{found}`, but the request of the same line is `{wanted}`")]
    Id { found: String, wanted: String },
    #[error("there are more than {0} samples")]
    TooMany(usize),
}

/// Why an archive cannot be unpacked.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum ArchiveError {
    #[error("the archive cannot be read: {0}")]
    Read(std::io::Error),
    #[error("it cannot be read as a tar archive, plain or compressed by zstd: {}", on_one_line(.0))]
    NotAnArchive(std::io::Error),
    #[error("gzip is not supported: send .tar or .tar.zst")]
    Gzip,
    #[error("the archive is cut off before its end")]
    CutOff,
    #[error("`{name}` in the archive is {what}; a bundle holds plain files and folders")]
    Kind { name: String, what: &'static str },
    #[error("`{name}` in the archive is not the name of a file in a bundle: names are relative, UTF-8, and stay inside it")]
    Name { name: String },
    #[error("a file in the archive has no name")]
    Nameless,
    #[error("`{name}` is in the archive twice")]
    Twice { name: String },
    #[error("the archive holds more than {bound} files")]
    TooMany { bound: usize },
    #[error("the archive's files have more than {bound} bytes together")]
    TooLarge { bound: u64 },
    #[error("a file of the archive cannot be stored: {0}")]
    Keep(std::io::Error),
}

impl ArchiveError {
    /// What the reader of archives says: its own judgements have no system's error code, what went wrong beneath it has another kind.
    pub(crate) fn from_tar(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Self::CutOff,
            std::io::ErrorKind::Other | std::io::ErrorKind::InvalidData if error.raw_os_error().is_none() => Self::NotAnArchive(error),
            _ => Self::Read(error),
        }
    }
}

/// What the reader of archives says may quote their bytes.
fn on_one_line(error: &std::io::Error) -> String {
    const SHOWN_MAX: usize = 200;
    let text = error.to_string();
    let shown = text.chars().take(SHOWN_MAX);
    shown.map(|character| if is_hidden(character) { '\u{fffd}' } else { character }).collect()
}

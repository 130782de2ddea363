//! What can be wrong with a message, each in one sentence that names the tensor and what to look for.

use cellwright_cell_graph::Datatype;

/// A request that is not what the protocol says, and its id where that could be read.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
pub struct BadRequest {
    /// The id the client gave, so that the refusal can carry it.
    pub id: Option<String>,
    /// What is wrong.
    #[source]
    pub fault: RequestFault,
}

/// What is wrong with a request or, read by a client, with a response.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum RequestFault {
    #[error("the message is not the JSON that the protocol asks for: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the request has no inputs")]
    NoInputs,
    #[error("{role} `{name}` is given twice")]
    Duplicate { role: &'static str, name: String },
    #[error("{role} `{name}`: {fault}")]
    Tensor { role: &'static str, name: String, fault: TensorFault },
    #[error("parameter `{name}` is given twice")]
    DuplicateParameter { name: String },
    #[error("parameter `{name}` has an invalid value; it takes {takes}")]
    Parameter { name: String, takes: &'static str },
    #[error("the message announces {announced} bytes of JSON (header Inference-Header-Content-Length), but it has {found} bytes in all")]
    JsonLength { announced: usize, found: usize },
    #[error(
        "the first {announced} bytes of the message (header Inference-Header-Content-Length) are not the JSON that the protocol asks for: {cause}"
    )]
    JsonPart { announced: usize, cause: serde_json::Error },
    #[error("the message has {} behind its last tensor that none announces", counted(*.0 as u64, "byte"))]
    BytesLeft(usize),
    #[error("a raw request (header Inference-Header-Content-Length: 0) carries the model's only input, but the model has {0}")]
    RawInputs(usize),
    #[error("none of the model's inputs ({names}) is given")]
    NothingGiven { names: String },
    #[error("input `{name}` is missing: the model takes {takes}; no inputs of it: {beside}")]
    InputMissing { name: String, beside: String, takes: String },
    #[error("requested output `{name}`: {fault}")]
    Output { name: String, fault: OutputFault },
    #[error("sequences (parameter `sequence_id`) are not served; send the whole sequence in one request")]
    Sequence,
}

impl RequestFault {
    /// Whether the request is well made and asks for a part of the protocol that is not served.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Self::Sequence
                | Self::Tensor { fault: TensorFault::SharedMemory, .. }
                | Self::Output { fault: OutputFault::Classification | OutputFault::SharedMemory, .. }
        )
    }
}

/// What is wrong with one output that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum OutputFault {
    #[error("the model has no such output; it has {has}")]
    Unknown { has: String },
    #[error("it is {0}, which travels only as binary data; ask for it with `binary_data` or `binary_data_output`")]
    BinaryOnly(Datatype),
    #[error("`binary_data` takes true or false")]
    BinaryData,
    #[error("classification is not served; ask for the output itself")]
    Classification,
    #[error("shared memory is not served; ask for the output in the response")]
    SharedMemory,
}

/// What is wrong with one tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum TensorFault {
    #[error("`{0}` is no datatype; the datatypes are {names}", names = names())]
    UnknownDatatype(String),
    #[error("{0} travels only as binary data, JSON has no form for it; send FP32")]
    BinaryOnly(Datatype),
    #[error("`data` is missing")]
    NoData,
    #[error(
        "its data is announced as binary (parameter `binary_data_size`), but without the header Inference-Header-Content-Length, which says how many bytes are JSON, all of the message is"
    )]
    BinaryData,
    #[error("its data is given twice, as `data` and as binary data (parameter `binary_data_size`)")]
    DataTwice,
    #[error("`binary_data_size` takes a number of bytes, 0 or more")]
    BinaryDataSize,
    #[error("its `binary_data_size` is {size}, but only {left} bytes of the message are left")]
    BinaryMissing { size: usize, left: usize },
    #[error("shape {shape:?} of {datatype} takes {expected} bytes, its binary data has {found}")]
    BinarySize { shape: Vec<usize>, datatype: Datatype, expected: usize, found: usize },
    #[error("the length in front of element {position} reaches beyond the tensor's binary data")]
    TextLength { position: usize },
    #[error("byte {position} is {found}, a BOOL is 0 or 1")]
    BoolByte { position: usize, found: u8 },
    #[error("a raw request carries one element, which does not fill shape {shape:?}; send JSON with a shape in front")]
    RawShape { shape: Vec<i64> },
    #[error(
        "a raw request of {found} bytes does not say which shape it has: the model takes {datatype} {shape:?}; send JSON with a shape in front"
    )]
    RawSize { shape: Vec<i64>, datatype: Datatype, found: usize },
    #[error("shared memory is not served; send the tensor in the request")]
    SharedMemory,
    #[error("dimension {axis} of the shape is {extent}; a request's extents are 0 or more")]
    NegativeExtent { axis: usize, extent: i64 },
    #[error("shape {shape:?} has more elements than can be counted")]
    ShapeTooLarge { shape: Vec<usize> },
    #[error("shape {shape:?} has {}, the data has {found}", counted(*.expected as u64, "element"))]
    Count { shape: Vec<usize>, expected: usize, found: usize },
    #[error("the nested lists of `data` are ragged: at depth {depth} one is not like the ones before it")]
    Ragged { depth: usize },
    #[error("the nested lists of `data` have shape {found:?}, the tensor's shape is {shape:?}")]
    Nesting { shape: Vec<usize>, found: Vec<usize> },
    #[error("the value has shape {found:?}, the model takes {wanted:?}")]
    Shape { found: Vec<usize>, wanted: Vec<i64> },
    #[error("element {position} is {found}, which is no {datatype}")]
    Element { position: usize, found: String, datatype: Datatype },
    #[error("element {position} is null, which is no {datatype}; {}", instead_of_null(*.datatype))]
    Null { position: usize, datatype: Datatype },
}

const fn instead_of_null(datatype: Datatype) -> &'static str {
    match datatype {
        Datatype::Fp32 | Datatype::Fp64 => "write \"NaN\" where there is no number",
        _ => "write a value for every element",
    }
}

/// A number of things: `1 call`, `2 calls`.
#[must_use]
pub fn counted(number: impl Into<u64>, thing: &str) -> String {
    let number = number.into();
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

fn names() -> String {
    Datatype::ALL.map(Datatype::name).join(", ")
}

/// A message that JSON cannot say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum BadResponse {
    #[error("output `{output}` has datatype {datatype}, which travels only as binary data")]
    BinaryOnly { output: String, datatype: Datatype },
    #[error("element {position} of output `{output}` is not UTF-8, JSON cannot carry it")]
    NotUtf8 { output: String, position: usize },
    #[error("`{tensor}` has {found} dimensions, and lists within lists are written up to {bound} deep; `infer` has it as one flat list")]
    TooDeep { tensor: String, found: usize, bound: usize },
    #[error("output `{output}` has {found} bytes of data, which do not match its shape and datatype")]
    Inconsistent { output: String, found: usize },
    #[error("output `{output}` was asked for, but the answer has only {has}")]
    UnknownOutput { output: String, has: String },
    #[error("an answer of `generate` has all outputs: leave out `outputs`")]
    OutputsAsked,
    #[error("a `generate` request cannot carry input `{input}`, because another field has that name")]
    NameTaken { input: String },
    #[error("the message has no form in JSON: {0}")]
    Json(String),
}

impl BadResponse {
    /// Whether another request would have been answered: the client asked for what cannot be said in that form.
    #[must_use]
    pub fn is_clients_fault(&self) -> bool {
        match self {
            Self::BinaryOnly { .. }
            | Self::NotUtf8 { .. }
            | Self::TooDeep { .. }
            | Self::UnknownOutput { .. }
            | Self::OutputsAsked
            | Self::NameTaken { .. } => true,
            Self::Inconsistent { .. } | Self::Json(_) => false,
        }
    }
}

/// Why a call cannot be taken as one request per row, or the answers not be put together again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum RowsFault {
    #[error("input `{input}` is a scalar; every input of this model has a leading dimension that counts requests")]
    Scalar { input: String },
    #[error("input `{input}` has {}, `{other}` has {expected}; the leading dimension of every input counts the same requests", counted(*.found as u64, "row"))]
    Counts { input: String, found: usize, other: String, expected: usize },
    #[error("the call has no rows: its leading dimension is 0")]
    Empty,
    #[error("the call has {found} rows, more than the limit of {bound}")]
    TooMany { found: usize, bound: usize },
    #[error(
        "the call has {found} rows, each with about {each} bytes of parameters, names and shapes: at most {bound} bytes are allowed in all"
    )]
    Beside { found: usize, each: usize, bound: usize },
    #[error("input `{input}` has data that does not match its shape and datatype")]
    Inconsistent { input: String },
    #[error("rows 0 and {row} answered differently ({what}); only equal answers can be combined: send such requests one by one")]
    Answers { row: usize, what: String },
}

//! Messages of the Open Inference Protocol v2, as JSON and as JSON with binary tensors behind it: what a client asks, what a model answers.
//!
//! This crate owns the form of requests and responses and nothing of their meaning: whether a model has such an input is decided elsewhere. It
//! does no I/O, and it never panics on what a client sends. Reading is linear in the length of the text and as deep as JSON is allowed to nest
//! (128); callers bound the length.
//!
//! What is not known is ignored: fields, and parameters of tensors, whatever their values. What contradicts is refused.
//!
//! Two rules go beyond the protocol, because JSON has no such numbers: in floating-point data `"NaN"`, `"Infinity"` and `"-Infinity"` (as strings) are
//! elements, and are read as bare words too; and `FP16` and `BF16`, which the protocol carries in binary only, are refused by name in JSON.

mod binary;
mod data;
mod element;
mod embeddings;
mod fault;
mod generate;
pub mod messages;
mod options;
mod request;
mod response;
mod rows;
mod tensor;
mod value;
mod words;

pub use binary::{Body, JSON_LENGTH_HEADER};
pub use embeddings::{EmbeddingForm, EmbeddingNames, EmbeddingsFault, EmbeddingsRequest};
pub use fault::{BadRequest, BadResponse, OutputFault, RequestFault, RowsFault, TensorFault, counted};
pub use options::{RequestOptions, Wanted};
pub use request::{InferRequest, RequestedOutput};
pub use response::InferResponse;
pub use rows::{join_rows, split_rows};

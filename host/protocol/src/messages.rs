//! The messages beside inference: what servers and models say of themselves, repository, statistics, errors and administration.
//!
//! Requests of administration refuse fields they do not know, so that a misspelt one is noticed. Those of the protocol ignore them, because its clients send
//! some of their own. Answers ignore them too, so that older clients read newer servers. An answer's optional field is left out when it has nothing to say.

pub mod admin;
pub mod config;
pub mod metadata;
pub mod repository;
pub mod statistics;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// One sentence; it names the request's id and the model where there are such.
    pub error: String,
}

/// Reads a request. Every message is an object; a list of its fields' values is none.
///
/// # Errors
/// If the body is not JSON of that form.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    check_object(body)?;
    serde_json::from_slice(body)
}

pub(crate) fn check_object(body: &[u8]) -> Result<(), serde_json::Error> {
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'[') { Err(serde::de::Error::custom("expected an object, found a list")) } else { Ok(()) }
}

/// Reads a request whose body may be left out: no bytes are the message without any of its fields.
///
/// # Errors
/// If the body is neither empty nor JSON of that form.
pub fn read_optional<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, serde_json::Error> {
    if body.iter().all(u8::is_ascii_whitespace) { Ok(T::default()) } else { read(body) }
}

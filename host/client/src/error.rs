//! What can go wrong between a client and its server.

use std::path::PathBuf;

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It names no server that can be spoken to.
    #[error("`{address}` is not the address of a server: {what}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It could never be sent.
    #[error("the key has characters that are not allowed in a key")]
    Key,
    /// Nor could this.
    #[error("`{0}` is not the name of a tenant")]
    Tenant(String),
    /// Nobody is known to whom a server's certificate could be traced.
    #[error("cannot load the certificate authorities for {address} from {from}: {what}")]
    Authorities {
        /// The server.
        address: String,
        /// A file, or the system.
        from: String,
        /// Why not.
        what: String,
    },
    /// A model's name is a part of a path, and this one would change the path.
    #[error("`{0}` is not a valid name")]
    Name(String),
    /// No server is there.
    #[error("no server listens at {address}: start one with `cellwright serve`, or name another address")]
    Nobody {
        /// Where it was looked for.
        address: String,
    },
    /// The server was not reached.
    #[error("{address}: {what}")]
    Connection {
        /// The server.
        address: String,
        /// What happened, cause by cause.
        what: String,
    },
    /// The connection broke when something had been sent, or could have been.
    #[error("{address}: {what}")]
    Broken {
        /// The server.
        address: String,
        /// What happened, cause by cause.
        what: String,
    },
    /// The server refused, or failed.
    #[error("{sentence} (status {status})")]
    Status {
        /// The HTTP status.
        status: u16,
        /// The server's own sentence, or what the status is called.
        sentence: String,
        /// After how many seconds the server thinks it can help.
        retry_after_s: Option<u64>,
    },
    /// A stream of events ended with an error.
    #[error("{0}")]
    Event(String),
    /// The answer is not of the form that the protocol asks for.
    #[error("the server's answer cannot be read: {0}")]
    Answer(String),
    /// A message cannot be written, so that nothing was sent.
    #[error("the message cannot be written as JSON: {0}")]
    Message(String),
    /// The request has no form on the wire.
    #[error(transparent)]
    Request(#[from] cellwright_protocol::BadResponse),
    /// The folder to send cannot be read.
    #[error("{}: {source}", path.display())]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl ClientError {
    /// The status with which the server refused, if it did.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether what was asked for may have been done all the same: nobody heard how it ended.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        /// Of something between here and the server, which waits no longer.
        const GATEWAY_TIMEOUT: u16 = 504;
        matches!(self, Self::Broken { .. } | Self::Answer(_) | Self::Status { status: GATEWAY_TIMEOUT, .. })
    }
}

/// An error and what caused it, in one sentence.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    /// Longer chains are cut.
    const DEPTH_MAX: usize = 8;
    let mut sentence = error.to_string();
    let mut cause = error.source();
    for _ in 0..DEPTH_MAX {
        let Some(error) = cause else { break };
        sentence.push_str(&format!(": {error}"));
        cause = error.source();
    }
    sentence
}

//! What a server must not forget: tenants, their keys, their models, the versions of each model, and the bytes those versions are made of.
//!
//! Metadata lives in one SQLite database, bytes in files beside it that are named by their BLAKE3 hash. What a call has returned survives any
//! crash: a version exists when its transaction has committed, and its bytes were synced and in place before that. Nothing here is held only
//! in memory, nothing here knows what a bundle means, and nothing here is asynchronous: every call may block on the disk.
//!
//! ```text
//! registry.sqlite   metadata (write-ahead log, synced on every commit)
//! blobs/ab/abcd…    bytes, by their hash
//! incoming/         bytes still arriving; emptied at every start
//! reserve           room for deleting where the disk is full
//! lock              held while a process has the folder open
//! ```

mod blob;
mod database;
mod digest;
mod error;
mod folder;
mod key;
mod model;
mod name;
mod registry;
mod tenant;

pub use blob::{Blob, BlobWriter, Collected, Pin};
pub use digest::{Digest, DigestError};
pub use error::{DatabaseError, ErrorKind, FilesFault, OpenError, RegistryError, is_full};
pub use key::{Identity, Key, KeyId, NewKey, Scope, Scopes};
pub use model::{Committed, Model, NewVersion, Room, Version, VersionFile};
pub use name::{ModelName, NameError, TenantName};
pub use registry::{ENTRY_BYTES, REPORT_BYTES_MAX, Registry};
pub use tenant::{SettingsFault, Tenant, TenantSettings};

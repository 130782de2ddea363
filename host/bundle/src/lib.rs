//! The bundle format: a folder with `model.toml`, a plugin, weights, samples, and files the plugin may read when it describes itself.
//!
//! [`Bundle::open`] reads one and checks everything that can be checked without running the plugin: every name, key, type, size and file. It does not
//! know where bundles are kept, what a plugin will say, or what a server allows; and no bundle, however broken, makes it panic. Whatever is wrong is one
//! sentence that names the file and the cause.

mod archive;
mod builtin;
mod bundle;
mod error;
mod folder;
mod manifest;
mod parameters;
mod samples;
mod weights;

pub use archive::{ArchiveLimits, Unpack, unpack};
pub use bundle::{Bundle, NamedPolicy, PluginBytes};
pub use error::{ArchiveError, BundleError, FileFault, ManifestFault, SampleFault, WeightsFault};
pub use folder::Folder;
pub use manifest::{CellSettings, EmbeddingSettings, LimitSettings};
pub use samples::{Sample, Samples};
pub use weights::Format;

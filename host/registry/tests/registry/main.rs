//! The registry from outside: what each call promises, what a random order of calls does, what a kill at any instant leaves, and which
//! folders are refused.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod damage;
mod folder;
mod full;
mod garbage;
mod killed;
mod operations;
mod oracle;
mod random;

use std::io::Write as _;
use std::path::Path;

use cellwright_registry::{Blob, Committed, ModelName, NewVersion, Registry, RegistryError, TenantName, VersionFile};
use tempfile::TempDir;

/// A folder in memory where the system has such, because these tests sync a lot and do not test the disk.
fn temporary() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

fn tenant(name: &str) -> TenantName {
    TenantName::parse(name).unwrap()
}

fn model(name: &str) -> ModelName {
    ModelName::parse(name).unwrap()
}

fn store(registry: &Registry, bytes: &[u8]) -> Blob {
    let mut writer = registry.new_blob().unwrap();
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

/// Commits a version of one file.
fn commit(registry: &Registry, name: &str, bytes: &[u8], activate: bool) -> Result<Committed, RegistryError> {
    let files = vec![VersionFile { path: "model.toml".to_owned(), blob: store(registry, bytes) }];
    let version = NewVersion { files, report: serde_json::json!({"samples": 1}), activate };
    registry.commit_version(&TenantName::default_tenant(), &model(name), version)
}

//! The registry from outside: what each call promises, what a random order of calls does, what a kill at any instant leaves, and which
//! folders are refused.

#[path = "registry/killed.rs"]
mod killed;
#[path = "registry/operations.rs"]
mod operations;
#[path = "registry/oracle.rs"]
mod oracle;
#[path = "registry/random.rs"]
mod random;

use std::path::Path;

use cellwright_registry::TenantName;
use tempfile::TempDir;

/// A folder in memory where the system has such, because these tests sync a lot and do not test the disk.
fn temporary() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

fn tenant(name: &str) -> TenantName {
    TenantName::parse(name).unwrap()
}

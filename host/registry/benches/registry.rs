//! What calls of the registry cost on this machine's disk: recognising a key, reading a model, committing a version, storing a gibibyte.
//!
//! `cargo bench -p cellwright-registry`, with `TMPDIR` on the disk that matters.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement: it prints, and stops at what it does not expect")]

use std::io::Write as _;
use std::time::{Duration, Instant};

use cellwright_registry::{ModelName, NewVersion, Registry, Scopes, TenantName, VersionFile};

/// The middle of `count` timings.
fn median(count: usize, mut timed: impl FnMut(usize)) -> Duration {
    let time = |number| {
        let start = Instant::now();
        timed(number);
        start.elapsed()
    };
    let mut times: Vec<_> = (0..count).map(time).collect();
    times.sort_unstable();
    times[count / 2]
}

fn store(registry: &Registry, pieces: impl Iterator<Item = Vec<u8>>) -> VersionFile {
    let mut writer = registry.new_blob().unwrap();
    for piece in pieces {
        writer.write_all(&piece).unwrap();
    }
    VersionFile { path: "model.toml".to_owned(), blob: writer.finish().unwrap() }
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let opened = median(5, |_| drop(Registry::open(folder.path()).unwrap()));
    println!("open: {opened:?}");
    let registry = Registry::open(folder.path()).unwrap();
    let (tenant, model) = (TenantName::default_tenant(), ModelName::parse("m").unwrap());

    let secret = registry.create_key(&TenantName::operator(), Scopes::all(), "").unwrap().secret;
    let thousand = median(1000, |_| {
        for _ in 0..1000 {
            assert!(registry.authenticate(&secret).is_some());
        }
    });
    println!("authenticate, known: {:?}", thousand / 1000);
    let unknown = "cw_0123456789abcdef_0123456789012345678901234567890123456789012";
    println!("authenticate, unknown: {:?}", median(1000, |_| assert!(registry.authenticate(unknown).is_none())));

    let mut files: Vec<_> = (0..200).map(|number: u64| store(&registry, [number.to_le_bytes().to_vec()].into_iter())).collect();
    let stored = median(200, |number| files.push(store(&registry, [(1000 + number as u64).to_le_bytes().to_vec()].into_iter())));
    println!("store a blob of 8 bytes: {stored:?}");
    let committed = median(200, |number| {
        let version = NewVersion { files: vec![files[number].clone()], report: serde_json::Value::Null, activate: true };
        registry.commit_version(&tenant, &model, version).unwrap();
    });
    println!("commit and activate a version: {committed:?}");
    println!("roll back: {:?}", median(30, |_| drop(registry.roll_back(&tenant, &model).unwrap())));
    println!("read a model of 200 versions: {:?}", median(200, |_| assert!(registry.model(&tenant, &model).unwrap().is_some())));

    let many = ModelName::parse("many").unwrap();
    for number in 0..25 {
        let of = |place: usize| VersionFile { path: format!("{number}/{place}"), blob: files[place % 200].blob.clone() };
        let version = NewVersion { files: (0..4000).map(of).collect(), report: serde_json::Value::Null, activate: true };
        registry.commit_version(&tenant, &many, version).unwrap();
    }
    let mut file = store(&registry, [b"one more".to_vec()].into_iter());
    let committed = median(20, |number| {
        file.path = number.to_string();
        let version = NewVersion { files: vec![file.clone()], report: serde_json::Value::Null, activate: true };
        registry.commit_version(&tenant, &model, version).unwrap();
    });
    println!("commit a version beside 100,000 files of the tenant: {committed:?}");

    let piece: Vec<u8> = (0..64 << 10).map(|place: u32| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let start = Instant::now();
    let blob = store(&registry, (0..1 << 14).map(|_| piece.clone())).blob;
    let seconds = start.elapsed().as_secs_f64();
    println!("store a gibibyte in pieces of 64 KiB: {seconds:.2} s, {:.0} MB/s", blob.len as f64 / 1e6 / seconds);
}

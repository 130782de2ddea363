//! Archives as honest tools make them, and as others do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::io::{self, Read};

use cellwright_bundle::{ArchiveError, ArchiveLimits, Unpack, unpack};
use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

#[derive(Default)]
struct Kept(BTreeMap<String, Vec<u8>>);

impl Unpack for Kept {
    type File = Vec<u8>;

    fn begin(&mut self, _: u64) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn keep(&mut self, name: String, file: Vec<u8>) -> io::Result<()> {
        self.0.insert(name, file);
        Ok(())
    }
}

fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, bytes) in files {
        append(&mut builder, EntryType::Regular, name.as_bytes(), bytes);
    }
    builder.into_inner().unwrap()
}

/// Writes the name as it is, which the builder's own ways would not.
fn append(builder: &mut Builder<Vec<u8>>, kind: EntryType, name: &[u8], bytes: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_size(bytes.len() as u64);
    header.set_cksum();
    builder.append(&header, bytes).unwrap();
}

fn entry(kind: EntryType, name: &str) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    append(&mut builder, kind, name.as_bytes(), b"");
    builder.into_inner().unwrap()
}

fn files(archive: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, ArchiveError> {
    let mut kept = Kept::default();
    let limits = ArchiveLimits { bytes_max: 10_000, entries_max: 10 };
    unpack(archive, &limits, &mut kept).map(|()| kept.0)
}

fn refused(archive: &[u8]) -> String {
    files(archive).unwrap_err().to_string()
}

#[test]
fn files_come_out_as_they_went_in() {
    let archive = tar(&[("./model.toml", b"name"), ("cells/a.onnx", &[7; 5000]), ("empty", b"")]);
    let expected: BTreeMap<String, Vec<u8>> = [("model.toml", b"name".to_vec()), ("cells/a.onnx", vec![7; 5000]), ("empty", vec![])]
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .into();
    assert_eq!(files(&archive).unwrap(), expected);
    let compressed = zstd::encode_all(archive.as_slice(), 19).unwrap();
    assert_eq!(files(&compressed).unwrap(), expected);
}

#[test]
fn long_names_are_read_from_either_kind_of_extended_header() {
    let long = format!("{}/model.toml", "folder".repeat(30));
    let mut builder = Builder::new(Vec::new());
    append(&mut builder, EntryType::GNULongName, b"././@LongLink", format!("{long}\0").as_bytes());
    append(&mut builder, EntryType::Regular, b"short", b"gnu");
    assert_eq!(files(&builder.into_inner().unwrap()).unwrap().keys().collect::<Vec<_>>(), [&long]);
    let mut builder = Builder::new(Vec::new());
    builder.append_pax_extensions([("mtime", b"1.5".as_slice()), ("path", long.as_bytes())]).unwrap();
    append(&mut builder, EntryType::Regular, b"short", b"pax");
    assert_eq!(files(&builder.into_inner().unwrap()).unwrap().keys().collect::<Vec<_>>(), [&long]);
}

#[test]
fn only_plain_files_and_folders_are_taken() {
    assert!(files(&entry(EntryType::Directory, "cells/")).unwrap().is_empty());
    for (kind, what) in [
        (EntryType::Symlink, "a symbolic link"),
        (EntryType::Link, "a hard link"),
        (EntryType::Fifo, "a pipe"),
        (EntryType::Char, "a device"),
    ] {
        assert_eq!(refused(&entry(kind, "x")), format!("`x` in the archive is {what}; a bundle holds plain files and folders"));
    }
}

#[test]
fn names_stay_inside() {
    for name in ["../x", "a/../../x", "/etc/passwd", "a\\b", "a\nb"] {
        assert!(refused(&tar(&[(name, b"x")])).contains("is not the name of a file in a bundle"), "{name}");
    }
    let mut builder = Builder::new(Vec::new());
    append(&mut builder, EntryType::Regular, b"\xff\xfe", b"x");
    assert!(refused(&builder.into_inner().unwrap()).contains("UTF-8"));
    assert_eq!(refused(&tar(&[("a", b"1"), ("./a", b"2")])), "`a` is in the archive twice");
}

#[test]
fn sizes_are_bounded() {
    let zeros = vec![0; 20_000];
    let bomb = zstd::encode_all(tar(&[("zeros", &zeros)]).as_slice(), 19).unwrap();
    assert!(bomb.len() < 200);
    assert_eq!(refused(&bomb), "the archive's files have more than 10000 bytes together");
    for (kind, name) in [(EntryType::Directory, "zeros"), (EntryType::Regular, "zeros/")] {
        let mut builder = Builder::new(Vec::new());
        append(&mut builder, kind, name.as_bytes(), &zeros);
        let wanted = format!("`{name}` in the archive is a folder with contents; a bundle holds plain files and folders");
        assert_eq!(refused(&zstd::encode_all(builder.into_inner().unwrap().as_slice(), 19).unwrap()), wanted);
    }
    let names: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"".as_slice())).collect();
    assert_eq!(refused(&tar(&many)), "the archive holds more than 10 files");
    let mut builder = Builder::new(Vec::new());
    append(&mut builder, EntryType::XHeader, b"pax", &vec![b' '; 100_000]);
    assert!(refused(&builder.into_inner().unwrap()).contains("an extended header"));
}

#[test]
fn a_window_beyond_the_bound_is_refused() {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(27).unwrap();
    io::copy(&mut tar(&[("a", &[1; 9000])]).as_slice(), &mut encoder).unwrap();
    assert!(refused(&encoder.finish().unwrap()).contains("too much memory"), "a frame that asks for 128 MiB");
}

#[test]
fn what_is_cut_off_is_refused_at_every_byte() {
    let archive = tar(&[("model.toml", b"name"), ("weights", &[7; 700])]);
    let end = archive.len() - 1024;
    for cut in 0..=end {
        assert!(files(&archive[..cut]).is_err(), "cut at {cut}");
    }
    let compressed = zstd::encode_all(archive.as_slice(), 3).unwrap();
    for cut in 0..compressed.len() {
        assert!(files(&compressed[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn other_things_are_no_archives() {
    for other in [b"PK\x03\x04 a zip file".as_slice(), &[b'x'; 2048]] {
        assert!(refused(other).starts_with("it cannot be read as a tar archive, plain or compressed by zstd"));
    }
}

#[test]
fn a_failing_reader_is_no_fault_of_the_archive() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the client left"))
        }
    }
    let archive = tar(&[("a", &[1; 9000])]);
    let cut = archive[..2000].chain(Broken);
    let error = unpack(cut, &ArchiveLimits::default(), &mut Kept::default()).unwrap_err();
    assert_eq!(error.to_string(), "the archive cannot be read: the client left");
}

#[test]
fn what_follows_an_archives_end_is_not_read() {
    let mut archive = tar(&[("model.toml", b"name")]);
    archive.extend_from_slice(b"a signature, or whatever else a tool left there");
    assert_eq!(files(&archive).unwrap().len(), 1);
    assert_eq!(files(&zstd::encode_all(archive.as_slice(), 3).unwrap()).unwrap().len(), 1);
}

#[test]
fn sentences_say_what_is_wrong_on_one_line() {
    assert_eq!(refused(&tar(&[("", b"x")])), "a file in the archive has no name");
    assert_eq!(refused(&tar(&[(".", b"x")])), "a file in the archive has no name");
    let gzip = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &[7; 2000]].concat();
    assert!(refused(&gzip).contains("gzip is not supported: send .tar or .tar.zst"));
    let mut damaged = tar(&[("model.toml", b"name")]);
    damaged[148..156].copy_from_slice(b"\x1b]0;xyz\x07");
    let sentence = refused(&damaged);
    assert!(sentence.contains("xyz") && sentence.chars().all(|character| !character.is_control()), "{sentence:?}");
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        let _ = files(&bytes);
    }

    #[test]
    fn no_damage_panics(at in 0_usize..4000, with in any::<u8>(), compress in any::<bool>()) {
        let mut archive = tar(&[("model.toml", b"name"), ("weights", &[7; 700])]);
        if compress {
            archive = zstd::encode_all(archive.as_slice(), 3).unwrap();
        }
        let at = at % archive.len();
        archive[at] = with;
        let _ = files(&archive);
    }
}

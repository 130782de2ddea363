//! A bundle as one stream of bytes: `.tar`, or `.tar.zst`, told apart by their first bytes.
//!
//! [`unpack`] hands every file on while it arrives and holds nothing but a buffer, whatever the archive claims: names, sizes, numbers of files
//! and the window of the compression are bounded, and everything but plain files and folders is refused. Where the files go is the caller's.

use std::collections::BTreeSet;
use std::io::{self, BufReader, Read, Write};

use cellwright_cell_graph::check::is_hidden;
use cellwright_protocol::messages::admin::BUNDLE_FILES_MAX;
use tar::{Archive, Entry, EntryType, PaxExtensions};

use crate::error::ArchiveError;

/// The first bytes of a zstd frame (RFC 8878, section 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// The first bytes of a gzip member (RFC 1952, section 2.3.1).
const GZIP_MAGIC: [u8; 2] = [0x1F, 0x8B];
/// Memory that unpacking may take for its window: 2^24 bytes, enough for every level of zstd but the "ultra" and "long" ones.
const ZSTD_WINDOW_LOG_MAX: u32 = 24;
/// Extended headers hold a name and a few times; more than this is no header.
const EXTENDED_HEADER_BYTES_MAX: u64 = 64 << 10;
const NAME_BYTES_MAX: usize = 512;
const COPY_BYTES: usize = 64 << 10;

/// What an archive may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Bytes of all files together, unpacked.
    pub bytes_max: u64,
    /// Files and folders.
    pub entries_max: usize,
}

impl Default for ArchiveLimits {
    fn default() -> Self {
        Self { bytes_max: 16 << 30, entries_max: BUNDLE_FILES_MAX }
    }
}

/// Where an archive's files go.
pub trait Unpack {
    /// A file that is being written.
    type File: Write;

    /// A file of so many bytes begins.
    ///
    /// # Errors
    /// If there is no room for it.
    fn begin(&mut self, size: u64) -> io::Result<Self::File>;

    /// A file is complete. Its name is relative, plain, and comes once.
    ///
    /// # Errors
    /// If it cannot be kept.
    fn keep(&mut self, name: String, file: Self::File) -> io::Result<()>;
}

/// Reads an archive to its end and hands its files to `into`.
///
/// # Errors
/// If it is no archive, is cut off, holds something that a bundle does not, or goes beyond a limit; or if reading or keeping fails.
pub fn unpack<U: Unpack>(reader: impl Read, limits: &ArchiveLimits, into: &mut U) -> Result<(), ArchiveError> {
    let mut reader = BufReader::with_capacity(COPY_BYTES, reader);
    let mut magic = [0; ZSTD_MAGIC.len()];
    let found = read_up_to(&mut reader, &mut magic).map_err(ArchiveError::Read)?;
    if magic.starts_with(&GZIP_MAGIC) {
        return Err(ArchiveError::Gzip);
    }
    let start = magic[..found].chain(reader);
    if magic == ZSTD_MAGIC {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(BufReader::new(start)).map_err(ArchiveError::Read)?;
        decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(ArchiveError::Read)?;
        unpack_tar(decoder, limits, into)
    } else {
        unpack_tar(start, limits, into)
    }
}

fn read_up_to(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut found = 0;
    while found < buffer.len() {
        match reader.read(&mut buffer[found..]) {
            Ok(0) => break,
            Ok(count) => found += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn unpack_tar<U: Unpack>(reader: impl Read, limits: &ArchiveLimits, into: &mut U) -> Result<(), ArchiveError> {
    let mut archive = Archive::new(Ending { inner: reader, is_over: false });
    let mut unpacking = Unpacking { limits, names: BTreeSet::new(), entries: 0, bytes: 0, long_name: None };
    // Raw: the extended headers are read here, where their size is bounded.
    for entry in archive.entries().map_err(ArchiveError::Read)?.raw(true) {
        unpacking.entry(&mut entry.map_err(ArchiveError::from_tar)?, into)?;
    }
    let rest = archive.into_inner();
    // Without a block of zeros at its end nobody can tell whether files are missing.
    if rest.is_over {
        return Err(ArchiveError::CutOff);
    }
    // What follows the end is nobody's, but has to be there: a compressed stream ends with its checksum.
    io::copy(&mut rest.take(limits.bytes_max), &mut io::sink()).map_err(ArchiveError::Read)?;
    Ok(())
}

struct Unpacking<'a> {
    limits: &'a ArchiveLimits,
    names: BTreeSet<String>,
    entries: usize,
    bytes: u64,
    /// What an extended header says the next entry is called.
    long_name: Option<Vec<u8>>,
}

impl Unpacking<'_> {
    fn entry<R: Read, U: Unpack>(&mut self, entry: &mut Entry<'_, R>, into: &mut U) -> Result<(), ArchiveError> {
        self.entries += 1;
        // Each file may have an extended header of its own.
        if self.entries > self.limits.entries_max.saturating_mul(2) || self.names.len() > self.limits.entries_max {
            return Err(ArchiveError::TooMany { bound: self.limits.entries_max });
        }
        match entry.header().entry_type() {
            EntryType::XGlobalHeader => {
                extended(entry)?;
                Ok(())
            }
            EntryType::XHeader => {
                let bytes = extended(entry)?;
                for extension in PaxExtensions::new(&bytes) {
                    let extension = extension.map_err(ArchiveError::from_tar)?;
                    match extension.key_bytes() {
                        b"path" => self.long_name = Some(extension.value_bytes().to_vec()),
                        b"size" => return Err(ArchiveError::Kind { name: "an entry".to_owned(), what: "larger than 8 GiB" }),
                        _ => {}
                    }
                }
                Ok(())
            }
            EntryType::GNULongName => {
                let mut bytes = extended(entry)?;
                while bytes.last() == Some(&0) {
                    bytes.pop();
                }
                self.long_name = Some(bytes);
                Ok(())
            }
            kind => {
                let raw = self.long_name.take().unwrap_or_else(|| entry.path_bytes().into_owned());
                self.plain(kind, &raw, entry, into)
            }
        }
    }

    fn plain<R: Read, U: Unpack>(
        &mut self,
        kind: EntryType,
        raw: &[u8],
        entry: &mut Entry<'_, R>,
        into: &mut U,
    ) -> Result<(), ArchiveError> {
        let refused = |what| Err(ArchiveError::Kind { name: shown(raw), what });
        let folder = match kind {
            EntryType::Regular | EntryType::Continuous => raw.ends_with(b"/"),
            EntryType::Directory => true,
            EntryType::Link => return refused("a hard link"),
            EntryType::Symlink => return refused("a symbolic link"),
            EntryType::Fifo => return refused("a pipe"),
            EntryType::Char | EntryType::Block => return refused("a device"),
            EntryType::GNUSparse => return refused("a sparse file"),
            _ => return refused("neither a file nor a folder"),
        };
        let name = name(raw)?;
        if folder {
            // What it held would be read over, however much that is.
            return if entry.size() == 0 { Ok(()) } else { refused("a folder with contents") };
        }
        if name.is_empty() {
            return Err(ArchiveError::Nameless);
        }
        if !self.names.insert(name.clone()) {
            return Err(ArchiveError::Twice { name });
        }
        let size = entry.size();
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.limits.bytes_max {
            return Err(ArchiveError::TooLarge { bound: self.limits.bytes_max });
        }
        let mut file = into.begin(size).map_err(ArchiveError::Keep)?;
        copy(entry, &mut file, size)?;
        into.keep(name, file).map_err(ArchiveError::Keep)
    }
}

/// Tells a reader's fault from a writer's, which `io::copy` does not.
fn copy(entry: &mut impl Read, file: &mut impl Write, size: u64) -> Result<(), ArchiveError> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut left = size;
    while left > 0 {
        let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match entry.read(&mut buffer[..room]) {
            Ok(0) => return Err(ArchiveError::CutOff),
            Ok(count) => {
                file.write_all(&buffer[..count]).map_err(ArchiveError::Keep)?;
                left -= count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ArchiveError::from_tar(error)),
        }
    }
    Ok(())
}

fn extended<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, ArchiveError> {
    if entry.size() > EXTENDED_HEADER_BYTES_MAX {
        return Err(ArchiveError::Kind { name: "an extended header".to_owned(), what: "too large" });
    }
    let mut bytes = Vec::new();
    entry.take(EXTENDED_HEADER_BYTES_MAX).read_to_end(&mut bytes).map_err(ArchiveError::from_tar)?;
    Ok(bytes)
}

/// A name in a sentence, on one line.
fn shown(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(&raw[..raw.len().min(NAME_BYTES_MAX)]);
    text.chars().flat_map(|character| if is_hidden(character) { character.escape_default().collect() } else { vec![character] }).collect()
}

/// A name as a bundle has it: relative, in plain parts. A leading `./` is nobody's intent.
fn name(raw: &[u8]) -> Result<String, ArchiveError> {
    let shown = || shown(raw);
    let text = std::str::from_utf8(raw).ok().filter(|text| raw.len() <= NAME_BYTES_MAX && !text.chars().any(is_hidden));
    let text = text.ok_or_else(|| ArchiveError::Name { name: shown() })?;
    let parts: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if text.starts_with('/') || text.contains('\\') || parts.contains(&"..") {
        return Err(ArchiveError::Name { name: shown() });
    }
    Ok(parts.join("/"))
}

/// Knows whether it was read beyond its last byte. An archive that has its end, POSIX's two blocks of zeros of which one is enough here, is read
/// no further than that.
struct Ending<R> {
    inner: R,
    is_over: bool,
}

impl<R: Read> Read for Ending<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.is_over |= count == 0 && !buffer.is_empty();
        Ok(count)
    }
}

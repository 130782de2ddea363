//! Sending a bundle: a folder as a tar archive that is made while it is sent.
//!
//! The same folder always gives the same archive: names in order, no times, no owners. Files and folders whose names begin with a dot stay behind; anything that is
//! neither file nor folder (a link) is refused, because it would mean something else at the server.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use cellwright_protocol::messages::admin::{BUNDLE_FILES_MAX, Uploaded};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::client::{Call, Client, name_segment};
use crate::error::ClientError;

/// Bytes that travel together.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that may wait to be sent.
const PIECES_MAX: usize = 4;
/// Deeper folders are refused.
const DEPTH_MAX: usize = 32;

/// How to send a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushOptions {
    /// Whether the new version serves from now on.
    pub activate: bool,
}

impl Default for PushOptions {
    fn default() -> Self {
        Self { activate: true }
    }
}

/// How far sending a bundle is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of files that were handed to the connection.
    pub sent: u64,
    /// Bytes of all files.
    pub total: u64,
}

/// What there is of a folder to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Files, those left out whose names begin with a dot.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Extent {
    /// Looks through a folder, as [`Client::push`] does before it sends anything.
    ///
    /// # Errors
    /// If it could not be sent: it cannot be read, or holds what is neither file nor folder.
    pub fn of(folder: &Path) -> Result<Self, ClientError> {
        match list(folder) {
            Ok(entries) => Ok(Self { files: entries.len(), bytes: entries.iter().map(|entry| entry.bytes).sum() }),
            Err(Stop::Folder { path, source }) => Err(ClientError::Folder { path, source }),
            Err(Stop::Unwanted) => unreachable!("nothing is sent"),
        }
    }
}

impl Client {
    /// Sends a folder as a new version of a model. `progress` hears, from another thread, how far it is.
    ///
    /// # Errors
    /// If the folder cannot be read, or the server refuses the bundle; then the version that served goes on serving. Where the connection broke, the version
    /// may be there ([`ClientError::is_undecided`]).
    pub async fn push(
        &self,
        model: &str,
        folder: &Path,
        options: PushOptions,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<Uploaded, ClientError> {
        let path = format!("/v1/models/{}?activate={}", name_segment(model)?, options.activate);
        let (sender, receiver) = mpsc::channel(PIECES_MAX);
        let root = folder.to_owned();
        let archiving = spawn_blocking(move || {
            let pieces = Pieces { sender, piece: BytesMut::with_capacity(PIECE_BYTES) };
            archive(&root, pieces, progress)
        });
        let mut call = Call::new(Method::PUT, path);
        call.headers.push((CONTENT_TYPE, HeaderValue::from_static("application/x-tar")));
        call.body = Archive { receiver }.boxed();
        let answer = self.answer(call).await;
        let archived = archiving.await;
        match (answer, archived) {
            // The server may know why before it has seen everything.
            (Err(refused @ ClientError::Status { .. }), _) => Err(refused),
            (_, Ok(Err(Stop::Folder { path, source }))) => Err(ClientError::Folder { path, source }),
            (answer, _) => answer,
        }
    }
}

/// Why an archive was not finished.
#[derive(Debug)]
enum Stop {
    Folder {
        path: PathBuf,
        source: io::Error,
    },
    /// Nobody reads it any more.
    Unwanted,
}

/// A file to send.
struct Entry {
    /// Where it is.
    path: PathBuf,
    /// What it is called in the archive, with `/` between its parts.
    name: String,
    bytes: u64,
}

fn archive(root: &Path, mut pieces: Pieces, mut progress: impl FnMut(Progress)) -> Result<(), Stop> {
    let result = list(root).and_then(|entries| {
        let mut far = Progress { sent: 0, total: entries.iter().map(|entry| entry.bytes).sum() };
        progress(far);
        for entry in &entries {
            append(&mut pieces, entry, |bytes| {
                far.sent += bytes;
                progress(far);
            })?;
        }
        // An archive ends with two empty blocks.
        pieces.write_all(&[0; 1024]).and_then(|()| pieces.send()).map_err(|_| Stop::Unwanted)
    });
    if let Err(Stop::Folder { .. }) = &result {
        // The server must not take what it has for the whole.
        let _ = pieces.sender.blocking_send(Err("the folder could not be read to its end".into()));
    }
    result
}

/// All files, in the order of their names.
fn list(root: &Path) -> Result<Vec<Entry>, Stop> {
    let mut entries = Vec::new();
    walk(root, "", 0, &mut entries)?;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

fn walk(folder: &Path, prefix: &str, depth: usize, entries: &mut Vec<Entry>) -> Result<(), Stop> {
    let stop = |path: &Path| {
        let path = path.to_owned();
        move |source| Stop::Folder { path, source }
    };
    let refuse = |path: &Path, what: &str| Stop::Folder { path: path.to_owned(), source: io::Error::other(what.to_owned()) };
    if depth > DEPTH_MAX {
        return Err(refuse(folder, "the folders are nested too deep for a bundle"));
    }
    for found in std::fs::read_dir(folder).map_err(stop(folder))? {
        let path = found.map_err(stop(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| refuse(&path, "the name is not UTF-8"))?;
        if name.starts_with('.') {
            continue;
        }
        let name = format!("{prefix}{name}");
        let metadata = std::fs::symlink_metadata(&path).map_err(stop(&path))?;
        if metadata.is_dir() {
            walk(&path, &format!("{name}/"), depth + 1, entries)?;
        } else if metadata.is_file() {
            entries.push(Entry { path, name, bytes: metadata.len() });
        } else if metadata.is_symlink() {
            return Err(refuse(&path, "it is a link; a bundle holds only files and folders"));
        } else {
            return Err(refuse(&path, "it is neither a file nor a folder; a bundle holds only those"));
        }
        if entries.len() > BUNDLE_FILES_MAX {
            return Err(refuse(folder, &format!("a bundle has at most {BUNDLE_FILES_MAX} files")));
        }
    }
    Ok(())
}

/// One file: its header and its bytes, filled up to whole blocks.
fn append(pieces: &mut Pieces, entry: &Entry, mut sent: impl FnMut(u64)) -> Result<(), Stop> {
    let stop = |source| Stop::Folder { path: entry.path.clone(), source };
    let mut file = File::open(&entry.path).map_err(stop)?;
    header(pieces, entry)?;
    let mut left = entry.bytes;
    while left > 0 {
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES - pieces.piece.len());
        let begin = pieces.piece.len();
        pieces.piece.resize(begin + room, 0);
        let read = file.read(&mut pieces.piece[begin..]).map_err(stop)?;
        pieces.piece.truncate(begin + read);
        if read == 0 {
            return Err(stop(io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter while it was sent")));
        }
        left -= read as u64;
        sent(read as u64);
        pieces.send_if_full().map_err(|_| Stop::Unwanted)?;
    }
    let over = usize::try_from(entry.bytes % 512).unwrap_or_default();
    let fill = (512 - over) % 512;
    pieces.write_all(&[0; 512][..fill]).map_err(|_| Stop::Unwanted)
}

fn header(pieces: &mut Pieces, entry: &Entry) -> Result<(), Stop> {
    // The builder knows what long names need; of its archive only the header is used.
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_entry_type(tar::EntryType::Regular);
    let mut builder = tar::Builder::new(Vec::new());
    let stop = |source| Stop::Folder { path: entry.path.clone(), source };
    builder.append_data(&mut header, &entry.name, io::empty()).map_err(stop)?;
    let mut bytes = std::mem::take(builder.get_mut());
    // The last block is the file's own header: now with its size.
    let own = bytes.len().checked_sub(512).and_then(|begin| bytes.get_mut(begin..));
    if let Some(own) = own {
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes().copy_from_slice(own);
        header.set_size(entry.bytes);
        header.set_cksum();
        own.copy_from_slice(header.as_bytes());
    }
    pieces.write_all(&bytes).map_err(|_| Stop::Unwanted)
}

type Piece = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// The archive on its way to the connection.
struct Pieces {
    sender: mpsc::Sender<Piece>,
    piece: BytesMut,
}

impl Pieces {
    fn send_if_full(&mut self) -> io::Result<()> {
        if self.piece.len() < PIECE_BYTES { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, BytesMut::with_capacity(PIECE_BYTES)).freeze();
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        self.send_if_full()?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The archive as the body of a request.
struct Archive {
    receiver: mpsc::Receiver<Piece>,
}

impl Body for Archive {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.receiver.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

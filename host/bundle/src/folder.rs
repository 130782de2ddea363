//! The files of a bundle, by names that cannot lead out of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

use crate::error::{BundleError, FileFault};

/// A bundle's files: a folder, or a list of files kept anywhere. Names are relative; `..`, absolute names and links that lead out are refused.
#[derive(Clone, Debug)]
pub struct Folder(Place);

#[derive(Clone, Debug)]
enum Place {
    Root(PathBuf),
    /// By name.
    Files(BTreeMap<String, PathBuf>),
}

impl Folder {
    /// Opens a folder.
    ///
    /// # Errors
    /// If it does not exist or is not a folder.
    pub fn open(path: &Path) -> Result<Self, BundleError> {
        let cannot = |cause| BundleError::Folder { folder: path.to_owned(), cause };
        let root = path.canonicalize().map_err(cannot)?;
        if !root.is_dir() {
            return Err(BundleError::NotAFolder { folder: path.to_owned() });
        }
        Ok(Self(Place::Root(root)))
    }

    /// Files that are kept one by one, by their names in the bundle.
    #[must_use]
    pub const fn of_files(files: BTreeMap<String, PathBuf>) -> Self {
        Self(Place::Files(files))
    }

    /// The contents of a file of at most so many bytes.
    ///
    /// # Errors
    /// If there is no such file in the bundle, or it is too large.
    pub fn read(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, FileFault> {
        let (file, length) = self.reader(name, bytes_max)?;
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        // One byte more than allowed shows a file that has grown since.
        file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(FileFault::Unreadable)?;
        let found = bytes.len() as u64;
        if found > bytes_max { Err(FileFault::TooLarge { found, bound: bytes_max }) } else { Ok(bytes) }
    }

    /// A file of at most so many bytes, to be read from its start, and how many it has.
    ///
    /// # Errors
    /// As [`Folder::read`].
    pub(crate) fn reader(&self, name: &str, bytes_max: u64) -> Result<(File, u64), FileFault> {
        let path = self.resolve(name)?;
        // Before it is opened: that of a pipe would wait for somebody who writes.
        if !path.metadata().map_err(FileFault::Unreadable)?.is_file() {
            return Err(FileFault::NotAFile);
        }
        let file = File::open(path).map_err(FileFault::Unreadable)?;
        let length = file.metadata().map_err(FileFault::Unreadable)?.len();
        if length > bytes_max { Err(FileFault::TooLarge { found: length, bound: bytes_max }) } else { Ok((file, length)) }
    }

    /// As [`Folder::read`], for text.
    ///
    /// # Errors
    /// Also if it is not UTF-8.
    pub fn read_text(&self, name: &str, bytes_max: u64) -> Result<String, FileFault> {
        String::from_utf8(self.read(name, bytes_max)?).map_err(|_| FileFault::NotText)
    }

    fn resolve(&self, name: &str) -> Result<PathBuf, FileFault> {
        let relative = Path::new(name);
        let inside = relative.components().all(|component| matches!(component, Component::Normal(_)));
        if name.is_empty() || name.contains('\0') || !inside {
            return Err(FileFault::Outside);
        }
        let root = match &self.0 {
            Place::Root(root) => root,
            Place::Files(files) => return files.get(name).cloned().ok_or(FileFault::Missing),
        };
        let path = root.join(relative).canonicalize().map_err(|cause| match cause.kind() {
            ErrorKind::NotFound => FileFault::Missing,
            _ => FileFault::Unreadable(cause),
        })?;
        if path.starts_with(root) { Ok(path) } else { Err(FileFault::Outside) }
    }
}

//! Bundles as archives, entry by entry, so that they can also hold what no honest program would write.

use std::path::Path;

use tar::{Builder, EntryType, Header};

/// A tar archive that is being written.
pub struct Tar(Builder<Vec<u8>>);

impl Default for Tar {
    fn default() -> Self {
        Self(Builder::new(Vec::new()))
    }
}

impl Tar {
    /// An archive that holds every file of a folder.
    ///
    /// # Panics
    /// If the folder cannot be read.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        let mut paths: Vec<_> = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        paths.iter().fold(Self::default(), |tar, path| {
            let name = path.file_name().and_then(|name| name.to_str()).expect("a plain name");
            tar.file(name.as_bytes(), &std::fs::read(path).expect("a file"))
        })
    }

    /// With one more file.
    #[must_use]
    pub fn file(self, name: &[u8], contents: &[u8]) -> Self {
        self.entry(EntryType::Regular, name, b"", contents.len() as u64, contents)
    }

    /// With one more entry, which need not be honest about its name or its size.
    ///
    /// # Panics
    /// If the names do not fit into a header.
    #[must_use]
    pub fn entry(mut self, kind: EntryType, name: &[u8], link: &[u8], claimed: u64, contents: &[u8]) -> Self {
        let mut header = Header::new_ustar();
        let fields = header.as_old_mut();
        fields.name[..name.len()].copy_from_slice(name);
        fields.linkname[..link.len()].copy_from_slice(link);
        header.set_entry_type(kind);
        header.set_size(claimed);
        header.set_mode(0o644);
        header.set_cksum();
        self.0.append(&header, contents).expect("a vector takes everything");
        self
    }

    /// The whole archive, with its end.
    ///
    /// # Panics
    /// Never: what was written is in memory.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.0.into_inner().expect("a vector takes everything")
    }
}

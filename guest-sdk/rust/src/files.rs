//! The bundle's files (a vocabulary and the like), readable while a plugin is described and never later.

use crate::abi::cellwright::plugin::types::Refusal;

/// The files a plugin may read at describe time.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Files of a test; none: the host's.
    #[cfg_attr(target_arch = "wasm32", expect(dead_code, reason = "files of a test exist outside of the sandbox only"))]
    given: Vec<(String, Vec<u8>)>,
}

impl Files {
    /// Those of the bundle.
    pub(crate) fn of_bundle() -> Self {
        Self::default()
    }

    /// Files of a test, by path.
    #[cfg(not(target_arch = "wasm32"))]
    #[must_use]
    pub fn of_test(files: &[(&str, &[u8])]) -> Self {
        Self { given: files.iter().map(|(path, contents)| ((*path).into(), contents.to_vec())).collect() }
    }

    /// The contents of a file.
    ///
    /// # Errors
    /// There is no such file, or the host does not give it out.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, Refusal> {
        self.fetch(path).map_err(|cause| Refusal::InvalidInput(format!("file `{path}` cannot be read: {cause}")))
    }

    /// The contents of a UTF-8 file.
    ///
    /// # Errors
    /// As [`Files::read`], or it is not UTF-8.
    pub fn text(&self, path: &str) -> Result<String, Refusal> {
        String::from_utf8(self.read(path)?).map_err(|_| Refusal::InvalidInput(format!("file `{path}` is not UTF-8 text")))
    }

    #[cfg(target_arch = "wasm32")]
    #[expect(clippy::unused_self, reason = "outside of the sandbox the files are its own")]
    fn fetch(&self, path: &str) -> Result<Vec<u8>, String> {
        crate::abi::cellwright::plugin::host::file(path)
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn fetch(&self, path: &str) -> Result<Vec<u8>, String> {
        let found = self.given.iter().find(|(known, _)| known == path);
        found.map(|(_, contents)| contents.clone()).ok_or_else(|| "there is no such file".into())
    }
}

//! What a bundle holds beside its parameters, readable while a plugin is described and never later: its files (a vocabulary and the like), and
//! the names and shapes of its weights.

mod weights;

use crate::abi::cellwright::plugin::types::{Refusal, Weight};

pub use weights::BundleWeights;

/// The bundle that a plugin is described for.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    /// What a test brings; in the sandbox, nothing: the host has it.
    #[cfg_attr(target_arch = "wasm32", expect(dead_code, reason = "what a test brings exists outside of the sandbox only"))]
    brought: Brought,
}

#[derive(Clone, Debug, Default)]
#[cfg_attr(target_arch = "wasm32", expect(dead_code, reason = "what a test brings exists outside of the sandbox only"))]
struct Brought {
    files: Vec<(String, Vec<u8>)>,
    weights: Vec<Weight>,
}

impl Bundle {
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
    /// As [`Bundle::read`], or it is not UTF-8.
    pub fn text(&self, path: &str) -> Result<String, Refusal> {
        String::from_utf8(self.read(path)?).map_err(|_| Refusal::InvalidInput(format!("file `{path}` is not UTF-8 text")))
    }

    /// Names, datatypes and shapes of its weights.
    #[must_use]
    pub fn weights(&self) -> BundleWeights {
        BundleWeights::new(self.list())
    }
}

#[cfg(target_arch = "wasm32")]
#[expect(clippy::unused_self, reason = "outside of the sandbox the contents are its own")]
impl Bundle {
    fn fetch(&self, path: &str) -> Result<Vec<u8>, String> {
        crate::abi::cellwright::plugin::host::file(path)
    }

    fn list(&self) -> Vec<Weight> {
        crate::abi::cellwright::plugin::host::weights()
    }
}

/// For tests: a bundle that is built file by file and weight by weight.
#[cfg(not(target_arch = "wasm32"))]
impl Bundle {
    /// A bundle without anything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With a file.
    #[must_use]
    pub fn file(mut self, path: &str, contents: &[u8]) -> Self {
        self.brought.files.push((path.into(), contents.to_vec()));
        self
    }

    /// With an FP32 weight, in place of one of that name.
    #[must_use]
    pub fn weight(self, name: &str, shape: &[u64]) -> Self {
        let mut bundle = self.without(name);
        let datatype = Some(crate::abi::cellwright::plugin::types::Datatype::Fp32);
        bundle.brought.weights.push(Weight { name: name.into(), datatype, shape: shape.to_vec() });
        bundle
    }

    /// Without that weight.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.brought.weights.retain(|weight| weight.name != name);
        self
    }

    fn fetch(&self, path: &str) -> Result<Vec<u8>, String> {
        let found = self.brought.files.iter().find(|(known, _)| known == path);
        found.map(|(_, contents)| contents.clone()).ok_or_else(|| "there is no such file".into())
    }

    fn list(&self) -> Vec<Weight> {
        let mut weights = self.brought.weights.clone();
        weights.sort_by(|a, b| a.name.cmp(&b.name));
        weights
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl From<&crate::testing::Weights> for Bundle {
    fn from(weights: &crate::testing::Weights) -> Self {
        weights.iter().fold(Self::new(), |bundle, (name, array)| {
            bundle.weight(name, &array.shape.iter().map(|extent| *extent as u64).collect::<Vec<_>>())
        })
    }
}

//! The weights of a bundle: which there are, and the contents of those that cells read.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::datatype::Datatype;
use crate::tensor::Tensor;

/// Names that a sentence suggests.
const SUGGESTIONS_MAX: usize = 3;
/// Names that are compared for a suggestion, and their bytes: comparing takes time by the product of both lengths.
const COMPARED_MAX: usize = 4096;
const COMPARED_BYTES_MAX: usize = 256;

/// A weight as the bundle's file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// Its name.
    pub name: String,
    /// The type of its elements; none if it is no [`Datatype`].
    pub datatype: Option<Datatype>,
    /// Extents, outermost first.
    pub shape: Vec<u64>,
}

/// The weights that the cells of a model read, by name.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    read: BTreeMap<String, Arc<Tensor>>,
    /// Names of the others in the bundle: what a missing one may be called.
    others: Vec<String>,
}

impl Weights {
    /// The same, of a bundle that also has weights of these names.
    #[must_use]
    pub fn beside(mut self, others: Vec<String>) -> Self {
        self.others = others;
        self
    }

    /// The weight of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Tensor>> {
        self.read.get(name)
    }

    /// Every weight that cells read, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Tensor>> {
        self.read.values()
    }

    /// How many cells read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read.len()
    }

    /// Whether cells read none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.read.is_empty()
    }

    /// The names in the bundle that are nearest to one that it does not have.
    #[must_use]
    pub fn nearest(&self, missing: &str) -> Nearest {
        let differs_by_prefix = |name: &str| prefix(name, missing).or_else(|| prefix(missing, name)).is_some();
        let names = self.read.keys().chain(&self.others).filter(|name| name.len() <= COMPARED_BYTES_MAX).take(COMPARED_MAX);
        let mut names: Vec<_> = names.map(|name| (!differs_by_prefix(name), strsim::levenshtein(name, missing), name)).collect();
        names.sort_unstable();
        names.truncate(SUGGESTIONS_MAX);
        Nearest { missing: missing.to_owned(), names: names.into_iter().map(|(.., name)| name.clone()).collect() }
    }
}

impl From<BTreeMap<String, Arc<Tensor>>> for Weights {
    fn from(read: BTreeMap<String, Arc<Tensor>>) -> Self {
        Self { read, others: Vec::new() }
    }
}

/// By the tensors' own names; of two with one name the later stays.
impl FromIterator<Tensor> for Weights {
    fn from_iter<I: IntoIterator<Item = Tensor>>(tensors: I) -> Self {
        tensors.into_iter().map(|tensor| (tensor.name.clone(), Arc::new(tensor))).collect::<BTreeMap<_, _>>().into()
    }
}

/// The prefix that makes one name the other, such as `module.`: frameworks put them before the names of parts.
fn prefix<'n>(long: &'n str, short: &str) -> Option<&'n str> {
    long.strip_suffix(short).filter(|prefix| prefix.ends_with('.'))
}

/// Names that stand in a bundle where another was looked for, nearest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    missing: String,
    names: Vec<String>,
}

/// What to add to the sentence that a weight is missing.
impl fmt::Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.names.first() else { return f.write_str("; the bundle has no weights") };
        if let Some(prefix) = prefix(first, &self.missing) {
            return write!(f, "; the bundle has `{first}`: its names begin with `{prefix}`");
        }
        if let Some(prefix) = prefix(&self.missing, first) {
            return write!(f, "; the bundle has `{first}`: its names do not begin with `{prefix}`");
        }
        write!(f, "; the nearest weights of the bundle are `{}`", self.names.join("`, `"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_name_has_suggestions() {
        let weights: Weights = ["lstm.weight_ih_l0", "lstm.bias_ih_l0"].iter().map(|name| Tensor::from_f32(name, &[], &[0.0])).collect();
        let weights = weights.beside(vec!["module.fc.weight".to_owned(), "x".repeat(COMPARED_BYTES_MAX + 1)]);
        let said = |name: &str| weights.nearest(name).to_string();
        assert_eq!(said("fc.weight"), "; the bundle has `module.fc.weight`: its names begin with `module.`");
        assert_eq!(said("encoder.lstm.bias_ih_l0"), "; the bundle has `lstm.bias_ih_l0`: its names do not begin with `encoder.`");
        let near = "; the nearest weights of the bundle are `lstm.weight_ih_l0`, `lstm.bias_ih_l0`, `module.fc.weight`";
        assert_eq!(said("lstm.weight_hh_l0"), near);
        assert_eq!(Weights::default().nearest("w").to_string(), "; the bundle has no weights");
    }
}

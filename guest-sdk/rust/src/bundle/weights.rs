//! Names and shapes of the bundle's weights, so that a plugin compares its parameters with them before it describes a model.

use crate::abi::cellwright::plugin::types::{Refusal, Weight};
use crate::nearest::nearest;

/// The weights of a bundle by name, without their contents.
#[derive(Clone, Debug)]
pub struct BundleWeights(Vec<Weight>);

impl BundleWeights {
    /// Wraps a list that is sorted by name.
    pub(super) const fn new(sorted: Vec<Weight>) -> Self {
        Self(sorted)
    }

    /// A weight.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Weight> {
        self.0.binary_search_by(|weight| weight.name.as_str().cmp(name)).ok().map(|found| &self.0[found])
    }

    /// Whether there is such a weight.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The shape of a weight.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[u64]> {
        self.get(name).map(|weight| &weight.shape[..])
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Weight> {
        self.0.iter()
    }

    /// The shape of a weight that the model needs.
    ///
    /// # Errors
    /// There is none; the sentence lists the nearest names that exist.
    pub fn require(&self, name: &str) -> Result<&[u64], Refusal> {
        self.shape(name).ok_or_else(|| Refusal::InvalidInput(format!("the bundle has no weight `{name}`{}", self.instead(name))))
    }

    /// What there is instead of a weight that there is not, to end a sentence with.
    #[must_use]
    pub fn instead(&self, name: &str) -> String {
        if self.0.is_empty() {
            return ": it has no weights; `weights` in model.toml names their file".into();
        }
        let near = nearest(name, self.0.iter().map(|weight| &weight.name[..]), 3);
        let Some(first) = near.first() else { return format!("; the first of its {} weights is `{}`", self.0.len(), self.0[0].name) };
        match (first.strip_suffix(name), name.strip_suffix(first)) {
            (Some(more), _) => format!("; it has `{first}`: put `{more}` before the names in model.toml"),
            (_, Some(less)) => format!("; it has `{first}`: leave `{less}` out of the names in model.toml"),
            _ => format!("; the nearest are {}", near.iter().map(|near| format!("`{near}`")).collect::<Vec<_>>().join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Bundle;

    fn sentence(names: &[&str], name: &str) -> String {
        let bundle = names.iter().fold(Bundle::new(), |bundle, name| bundle.weight(name, &[2, 3]));
        bundle.weights().require(name).unwrap_err().sentence().to_owned()
    }

    #[test]
    fn weights_are_found_by_name_in_whatever_order_they_came() {
        let weights = Bundle::new().weight("b", &[2, 3]).weight("a", &[]).weights();
        assert_eq!((weights.shape("b"), weights.shape("a"), weights.shape("c")), (Some(&[2, 3][..]), Some(&[][..]), None));
        assert!(weights.iter().map(|weight| &weight.name[..]).eq(["a", "b"]));
    }

    #[test]
    fn a_weight_that_is_missing_is_answered_with_the_nearest_that_exist() {
        assert_eq!(sentence(&[], "a"), "the bundle has no weight `a`: it has no weights; `weights` in model.toml names their file");
        assert_eq!(
            sentence(&["module.fc.bias", "module.fc.weight"], "fc.weight"),
            "the bundle has no weight `fc.weight`; it has `module.fc.weight`: put `module.` before the names in model.toml"
        );
        assert_eq!(
            sentence(&["weight_hh_l0", "weight_ih_l0"], "lstm.weight_ih_l0"),
            "the bundle has no weight `lstm.weight_ih_l0`; it has `weight_ih_l0`: leave `lstm.` out of the names in model.toml"
        );
        assert_eq!(
            sentence(&["lstm.weight_hh_l0", "lstm.weight_ih_l0", "x"], "weight_ih_10"),
            "the bundle has no weight `weight_ih_10`; the first of its 3 weights is `lstm.weight_hh_l0`"
        );
        assert_eq!(sentence(&["fc.bias", "fc.weigth"], "fc.weight"), "the bundle has no weight `fc.weight`; the nearest are `fc.weigth`");
    }
}

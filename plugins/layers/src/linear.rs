//! An `nn.Linear` with a bias.

use cellwright_guest::BundleWeights;
use cellwright_guest::prelude::*;

use crate::matrix::{Matrix, Prefix};

/// The weight of an `nn.Linear` of `PREFIXweight` and `PREFIXbias`: a row for each number that it gives, a column for each that it takes.
///
/// # Errors
/// It is missing, has no bias, or is several layers.
pub fn linear(weights: &BundleWeights, prefix: Prefix<'_>) -> Result<Matrix, Refusal> {
    if !weights.has(&prefix.name("weight")) {
        refuse_several(weights, prefix)?;
    }
    let matrix = Matrix::of(weights, prefix, "weight")?;
    let bias = prefix.name("bias");
    if weights.has(&bias) {
        return Ok(matrix);
    }
    let zeros = matrix.rows();
    Err(prefix.refusal(format!("a layer without bias, and this plugin needs one: add `{bias}` of {zeros} zeros to the weights")))
}

/// An `nn.Sequential` numbers its layers.
fn refuse_several(weights: &BundleWeights, prefix: Prefix<'_>) -> Result<(), Refusal> {
    let is_numbered =
        |name: &str| name.strip_prefix(prefix.value).is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    let numbered = weights.iter().filter(|weight| is_numbered(&weight.name) && weight.name.ends_with("weight"));
    let numbered: Vec<String> = numbered.take(4).map(|weight| format!("`{}`", weight.name)).collect();
    if numbered.is_empty() {
        return Ok(());
    }
    let sentence = "and this plugin takes one linear layer: name that of a single one, or write a plugin of your own";
    Err(prefix.refusal(format!("which has several layers ({}), {sentence}", numbered.join(", "))))
}

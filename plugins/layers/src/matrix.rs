//! A weight of two dimensions, and what parameters say of it.

use cellwright_guest::BundleWeights;
use cellwright_guest::prelude::*;

/// The parameter that names weights, and their names' beginning, which is its value.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a> {
    /// The parameter's name.
    pub parameter: &'a str,
    /// Its value.
    pub value: &'a str,
}

impl Prefix<'_> {
    /// The name of one of the weights.
    #[must_use]
    pub fn name(self, rest: &str) -> String {
        format!("{}{rest}", self.value)
    }

    /// A refusal of these weights: "parameter `P` is "VALUE", SENTENCE".
    #[must_use]
    pub fn refusal(self, sentence: impl std::fmt::Display) -> Refusal {
        Parameters::refusal(self.parameter, format!("is \"{}\", {sentence}", self.value))
    }

    /// A refusal because one of the weights is missing; it lists the nearest that exist.
    #[must_use]
    pub fn missing(self, name: &str, weights: &BundleWeights) -> Refusal {
        self.refusal(format!("but the bundle has no weight `{name}`{}", weights.instead(name)))
    }
}

/// The rows and columns of a weight.
#[derive(Clone, Debug)]
pub struct Matrix {
    name: String,
    rows: u64,
    columns: u64,
}

impl Matrix {
    /// A weight of two dimensions.
    ///
    /// # Errors
    /// It is missing, or has other dimensions.
    pub fn of(weights: &BundleWeights, prefix: Prefix<'_>, rest: &str) -> Result<Self, Refusal> {
        let name = prefix.name(rest);
        match weights.shape(&name) {
            None => Err(prefix.missing(&name, weights)),
            Some(&[rows, columns]) => Ok(Self { name, rows, columns }),
            Some(shape) => Err(prefix.refusal(format!("but `{name}` has the shape {shape:?}, and this plugin needs rows and columns"))),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many rows it has.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// How many columns it has.
    #[must_use]
    pub const fn columns(&self) -> u64 {
        self.columns
    }

    /// It has as many rows as that parameter says.
    ///
    /// # Errors
    /// It has not.
    pub fn check_rows(&self, parameter: &str, value: u32) -> Result<(), Refusal> {
        self.check(self.rows == value.into(), parameter, format!("is {value}"))
    }

    /// It has as many columns as that parameter says.
    ///
    /// # Errors
    /// It has not.
    pub fn check_columns(&self, parameter: &str, value: u32) -> Result<(), Refusal> {
        let sentence = || format!("is {value}, but `{}` has {} columns (its shape is {self})", self.name, self.columns);
        if self.columns == value.into() { Ok(()) } else { Err(Parameters::refusal(parameter, sentence())) }
    }

    /// It takes as many numbers as a layer below gives, of which those parameters say how many.
    ///
    /// # Errors
    /// It does not.
    pub fn check_inputs(&self, prefix: Prefix<'_>, inputs: u64, said_by: &str) -> Result<(), Refusal> {
        if self.columns == inputs {
            return Ok(());
        }
        let (name, have) = (&self.name, self.columns);
        Err(prefix.refusal(format!("but `{name}` takes {have} numbers (its shape is {self}), and it gets {inputs} by {said_by}")))
    }

    /// It has a row for each of so many things that a parameter lists.
    ///
    /// # Errors
    /// It has fewer.
    pub fn check_list(&self, parameter: &str, count: usize, things: &str) -> Result<(), Refusal> {
        self.check(self.rows >= count as u64, parameter, format!("holds {count} {things}"))
    }

    /// It has the row of the token that a parameter names.
    ///
    /// # Errors
    /// It has not.
    pub fn check_token(&self, parameter: &str, token: u32) -> Result<(), Refusal> {
        self.check(u64::from(token) < self.rows, parameter, format!("is token {token}"))
    }

    fn check(&self, holds: bool, parameter: &str, said: String) -> Result<(), Refusal> {
        let sentence = || format!("{said}, but `{}` has {} rows (its shape is {self})", self.name, self.rows);
        if holds { Ok(()) } else { Err(Parameters::refusal(parameter, sentence())) }
    }
}

impl std::fmt::Display for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}, {}]", self.rows, self.columns)
    }
}

/// The table of an `nn.Embedding`, whose rows have the size that the parameter `embedding` says.
///
/// # Errors
/// It is missing, or they have another size.
pub fn embedding(weights: &BundleWeights, prefix: Prefix<'_>, columns: u32) -> Result<Matrix, Refusal> {
    let table = Matrix::of(weights, prefix, "weight")?;
    table.check_columns("embedding", columns)?;
    Ok(table)
}

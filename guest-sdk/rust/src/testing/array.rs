//! A row, a weight or a stack of rows, in f64 whatever its datatype: exact for every f32, for truth, and for integers below 2⁵³.

use std::collections::BTreeMap;

/// A tensor's shape and elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Extents, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Row-major.
    pub values: Vec<f64>,
}

impl Array {
    /// An array of that shape.
    ///
    /// # Panics
    /// The values do not fill it.
    #[must_use]
    pub fn new(shape: &[usize], values: Vec<f64>) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "{} values do not fill {shape:?}", values.len());
        Self { shape: shape.to_vec(), values }
    }

    /// A scalar.
    #[must_use]
    pub fn scalar(value: f64) -> Self {
        Self::new(&[], vec![value])
    }

    /// Rows of equal shape, one above the other.
    #[must_use]
    pub fn stack(rows: &[Self]) -> Self {
        let row: &[usize] = rows.first().map_or(&[], |row| &row.shape);
        assert!(rows.iter().all(|other| other.shape == row), "rows of different shapes are no tensor");
        Self::new(&[&[rows.len()], row].concat(), rows.iter().flat_map(|row| row.values.clone()).collect())
    }

    /// One row of the outermost dimension.
    #[must_use]
    pub fn row(&self, index: usize) -> Self {
        let size = self.shape[1..].iter().product::<usize>();
        assert!(index < self.shape[0], "row {index} of {:?} does not exist", self.shape);
        Self::new(&self.shape[1..], self.values[index * size..(index + 1) * size].to_vec())
    }

    /// The largest difference between two arrays of one shape.
    ///
    /// # Panics
    /// Their shapes differ.
    #[must_use]
    pub fn distance(&self, other: &Self) -> f64 {
        assert_eq!(self.shape, other.shape);
        self.values.iter().zip(&other.values).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }
}

/// Weights of a bundle, by name.
pub type Weights = BTreeMap<String, Array>;

//! Whether an answer is the expected one.

use cellwright_cell_graph::{Datatype, Tensor};

/// How an answer differs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Difference {
    #[error("the answer has no output `{0}`")]
    Missing(String),
    #[error("output `{output}` is {found}, expected is {expected}")]
    Kind { output: String, found: String, expected: String },
    #[error("{worst}{}", others(first, *count))]
    Elements {
        /// The one that is furthest from what is expected; of what has no distance, the first.
        worst: Box<Element>,
        /// The first, if that is another one.
        first: Option<Box<Element>>,
        /// How many differ.
        count: usize,
        /// How far the worst is from what is expected: |a − b| / (1 + |b|). Infinite for what has no distance.
        distance: f64,
    },
}

impl Difference {
    /// How far the answer is from what is expected.
    pub(crate) const fn distance(&self) -> f64 {
        match self {
            Self::Missing(_) | Self::Kind { .. } => f64::INFINITY,
            Self::Elements { distance, .. } => *distance,
        }
    }
}

/// An element of an output that differs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("element {index} of output `{output}` is {found}, expected is {expected}")]
pub(crate) struct Element {
    output: String,
    index: String,
    found: String,
    expected: String,
}

fn others(first: &Option<Box<Element>>, count: usize) -> String {
    match first {
        _ if count < 2 => String::new(),
        None => format!("; {count} elements differ, and this is the first"),
        Some(first) => {
            let Element { index, found, expected, .. } = &**first;
            format!("; {count} elements differ: this one most, the first is {index} with {found} instead of {expected}")
        }
    }
}

/// Where an element is: its number, or its place along each dimension.
fn index(position: usize, shape: &[usize]) -> String {
    if shape.len() < 2 {
        return position.to_string();
    }
    let mut left = position;
    let mut places: Vec<usize> = shape.iter().rev().map(|extent| (left % extent, left /= extent).0).collect();
    places.reverse();
    format!("{places:?}")
}

/// Compares every expected output; others may be anything. Floats a and (expected) b agree if |a − b| ≤ tolerance · (1 + |b|), or if they are
/// the same infinity or both NaN; everything else must be equal.
pub(crate) fn outputs(expected: &[Tensor], found: &[Tensor], tolerance: f64) -> Result<(), Difference> {
    for wanted in expected {
        let given = found.iter().find(|tensor| tensor.name == wanted.name).ok_or_else(|| Difference::Missing(wanted.name.clone()))?;
        compare(wanted, given, tolerance)?;
    }
    Ok(())
}

fn compare(wanted: &Tensor, given: &Tensor, tolerance: f64) -> Result<(), Difference> {
    if (wanted.datatype, &wanted.shape) != (given.datatype, &given.shape) {
        let kind = |tensor: &Tensor| format!("{} {:?}", tensor.datatype, tensor.shape);
        return Err(Difference::Kind { output: wanted.name.clone(), found: kind(given), expected: kind(wanted) });
    }
    let unequal = |differs| if differs { f64::INFINITY } else { 0.0 };
    match wanted.datatype {
        Datatype::Fp32 => judge(wanted, &singles(wanted), &singles(given), tolerance, distance, single_text),
        Datatype::Fp64 => judge(wanted, &doubles(wanted), &doubles(given), tolerance, distance, ToString::to_string),
        Datatype::Bytes => {
            let quoted = |text: &&[u8]| format!("{:?}", String::from_utf8_lossy(text));
            let (expected, found) = (wanted.texts().unwrap_or_default(), given.texts().unwrap_or_default());
            judge(wanted, &expected, &found, 0.0, |a, b| unequal(a != b), quoted)
        }
        _ => match (wanted.to_i64(), given.to_i64()) {
            (Some(expected), Some(found)) => judge(wanted, &expected, &found, 0.0, |a, b| unequal(a != b), ToString::to_string),
            _ => judge(wanted, &wanted.data, &given.data, 0.0, |a, b| unequal(a != b), |byte| format!("byte {byte}")),
        },
    }
}

/// The distance of a float a from an expected b: |a − b| / (1 + |b|), infinite if one of them is not finite and the other is something else.
pub(super) fn distance(a: &f64, b: &f64) -> f64 {
    if a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    if a.is_finite() && b.is_finite() { (a - b).abs() / (1.0 + b.abs()) } else { f64::INFINITY }
}

/// A float of 32 bits in as few digits as tell it.
#[expect(clippy::cast_possible_truncation, reason = "it was a float of 32 bits")]
fn single_text(value: &f64) -> String {
    (*value as f32).to_string()
}

/// What is wrong with elements that are further from the expected ones than the tolerance.
fn judge<T>(
    output: &Tensor,
    wanted: &[T],
    given: &[T],
    tolerance: f64,
    distance: impl Fn(&T, &T) -> f64,
    text: impl Fn(&T) -> String,
) -> Result<(), Difference> {
    let distances = wanted.iter().zip(given).map(|(wanted, given)| distance(given, wanted)).enumerate();
    // An infinite tolerance lets every float pass that has a distance.
    let mut wrong = distances.filter(|(_, distance)| *distance > tolerance);
    let Some(first) = wrong.next() else { return Ok(()) };
    let (worst, count) = wrong.fold((first, 1), |(worst, count), one| (if one.1 > worst.1 { one } else { worst }, count + 1));
    let element = |position: usize| {
        let (found, expected) = (text(&given[position]), text(&wanted[position]));
        Box::new(Element { output: output.name.clone(), index: index(position, &output.shape), found, expected })
    };
    let other = (worst.0 != first.0).then(|| element(first.0));
    Err(Difference::Elements { worst: element(worst.0), first: other, count, distance: worst.1 })
}

pub(super) fn singles(tensor: &Tensor) -> Vec<f64> {
    tensor.data.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
}

pub(super) fn doubles(tensor: &Tensor) -> Vec<f64> {
    tensor.data.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(expected: Tensor, found: Tensor) -> String {
        outputs(&[expected], &[found], 1e-4).unwrap_err().to_string()
    }

    #[test]
    fn floats_agree_within_the_tolerance() {
        let four = |values: [f32; 4]| Tensor::from_f32("y", &[4], &values);
        let expected = four([1.0, -1000.0, f32::NAN, f32::INFINITY]);
        outputs(std::slice::from_ref(&expected), &[four([1.000_19, -1000.09, f32::NAN, f32::INFINITY])], 1e-4).unwrap();
        let far = sentence(expected.clone(), four([1.000_21, -1000.0, f32::NAN, f32::INFINITY]));
        assert!(far.starts_with("element 0 of output `y` is 1.0002"), "{far}");
        let number = sentence(expected.clone(), four([1.0, -1000.0, 0.0, f32::INFINITY]));
        assert_eq!(number, "element 2 of output `y` is 0, expected is NaN");
        let other = sentence(expected, four([1.0, -1000.0, f32::NAN, f32::NEG_INFINITY]));
        assert_eq!(other, "element 3 of output `y` is -inf, expected is inf");
    }

    #[test]
    fn the_worst_and_the_first_element_are_named() {
        let six = |values: [f32; 6]| Tensor::from_f32("y", &[3, 2], &values);
        let said = sentence(six([0.0; 6]), six([0.0, 0.25, 0.0, -2.0, 0.0, 0.5]));
        let worst = "element [1, 1] of output `y` is -2, expected is 0; ";
        assert_eq!(said, format!("{worst}3 elements differ: this one most, the first is [0, 1] with 0.25 instead of 0"));
        let first = sentence(six([0.0; 6]), six([0.0, 2.0, 0.0, 0.25, 0.0, 0.0]));
        assert_eq!(first, "element [0, 1] of output `y` is 2, expected is 0; 2 elements differ, and this is the first");
    }

    #[test]
    fn everything_else_is_equal() {
        let ints = |values: &[i64]| Tensor::from_i64("y", &[values.len()], values);
        assert_eq!(sentence(ints(&[1, 2]), ints(&[1, 3])), "element 1 of output `y` is 3, expected is 2");
        let text = |text: &str| Tensor::from_texts("y", &[1], &[text]);
        assert_eq!(sentence(text("a"), text("b")), r#"element 0 of output `y` is "b", expected is "a""#);
        assert_eq!(sentence(ints(&[1]), ints(&[1, 2])), "output `y` is INT64 [2], expected is INT64 [1]");
        assert_eq!(sentence(ints(&[1]), Tensor::from_i64("z", &[1], &[1])), "the answer has no output `y`");
    }
}

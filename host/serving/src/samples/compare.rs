//! Whether an answer is the expected one.

use cellwright_cell_graph::{Datatype, Tensor};

/// The first thing that differs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Difference {
    #[error("the answer has no output `{0}`")]
    Missing(String),
    #[error("output `{output}` is {found}, expected is {expected}")]
    Kind { output: String, found: String, expected: String },
    #[error("element {position} of output `{output}` is {found}, expected is {expected}")]
    Element { output: String, position: usize, found: String, expected: String },
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
    let difference = match wanted.datatype {
        Datatype::Fp32 => floats(&singles(wanted), &singles(given), tolerance),
        Datatype::Fp64 => floats(&doubles(wanted), &doubles(given), tolerance),
        Datatype::Bytes => {
            let quoted = |text: &&[u8]| format!("{:?}", String::from_utf8_lossy(text));
            first(&wanted.texts().unwrap_or_default(), &given.texts().unwrap_or_default(), quoted)
        }
        _ => match (wanted.to_i64(), given.to_i64()) {
            (Some(wanted), Some(given)) => first(&wanted, &given, ToString::to_string),
            _ => first(&wanted.data, &given.data, |byte| format!("byte {byte}")),
        },
    };
    match difference {
        None => Ok(()),
        Some((position, found, expected)) => Err(Difference::Element { output: wanted.name.clone(), position, found, expected }),
    }
}

/// Position of the first difference, what is there, and what should be.
type Found = (usize, String, String);

fn floats(wanted: &[f64], given: &[f64], tolerance: f64) -> Option<Found> {
    let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let agree = |a: f64, b: f64| (a - b).abs() <= tolerance * (1.0 + b.abs()) && b.is_finite() || same(a, b);
    let position = wanted.iter().zip(given).position(|(b, a)| !agree(*a, *b))?;
    Some((position, given[position].to_string(), wanted[position].to_string()))
}

fn first<T: PartialEq>(wanted: &[T], given: &[T], text: impl Fn(&T) -> String) -> Option<Found> {
    let position = wanted.iter().zip(given).position(|(b, a)| a != b)?;
    Some((position, text(&given[position]), text(&wanted[position])))
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
    fn everything_else_is_equal() {
        let ints = |values: &[i64]| Tensor::from_i64("y", &[values.len()], values);
        assert_eq!(sentence(ints(&[1, 2]), ints(&[1, 3])), "element 1 of output `y` is 3, expected is 2");
        let text = |text: &str| Tensor::from_texts("y", &[1], &[text]);
        assert_eq!(sentence(text("a"), text("b")), r#"element 0 of output `y` is "b", expected is "a""#);
        assert_eq!(sentence(ints(&[1]), ints(&[1, 2])), "output `y` is INT64 [2], expected is INT64 [1]");
        assert_eq!(sentence(ints(&[1]), Tensor::from_i64("z", &[1], &[1])), "the answer has no output `y`");
    }
}

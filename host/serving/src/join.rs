//! How a response tensor that comes in pieces is put together.

use cellwright_cell_graph::{Datatype, Tensor, TensorSpec};

/// Appends a piece: along the leading dimension where the model leaves it open; texts of a fixed extent grow element by element; anything else
/// is replaced by what came later.
pub(crate) fn join(spec: &TensorSpec, before: Tensor, after: Tensor) -> Tensor {
    if spec.shape.first() == Some(&-1) && before.datatype == after.datatype && before.shape.get(1..) == after.shape.get(1..) {
        return stack(before, &after);
    }
    if spec.datatype == Datatype::Bytes && before.shape == after.shape {
        let joined = texts(&before, &after);
        return joined.unwrap_or(after);
    }
    after
}

/// Whether a piece, appended to others, would leave them as they are.
pub(crate) fn adds_nothing(spec: &TensorSpec, piece: &Tensor) -> bool {
    if piece.shape.contains(&0) {
        return true;
    }
    if spec.shape.first() == Some(&-1) {
        return false;
    }
    spec.datatype == Datatype::Bytes && piece.texts().is_some_and(|texts| texts.iter().all(|text| text.is_empty()))
}

fn stack(mut before: Tensor, after: &Tensor) -> Tensor {
    before.shape[0] += after.shape[0];
    before.data.extend_from_slice(&after.data);
    before
}

fn texts(before: &Tensor, after: &Tensor) -> Option<Tensor> {
    let joined: Vec<Vec<u8>> = before.texts()?.iter().zip(after.texts()?).map(|(start, end)| [*start, end].concat()).collect();
    Some(Tensor::from_texts(&before.name, &before.shape, &joined))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(datatype: Datatype, shape: &[i64]) -> TensorSpec {
        TensorSpec { name: "y".to_owned(), datatype, shape: shape.to_vec() }
    }

    #[test]
    fn rows_are_stacked_where_the_extent_is_open() {
        let joined = join(&spec(Datatype::Int64, &[-1]), Tensor::from_i64("y", &[2], &[1, 2]), Tensor::from_i64("y", &[1], &[3]));
        assert_eq!(joined, Tensor::from_i64("y", &[3], &[1, 2, 3]));
    }

    #[test]
    fn texts_grow() {
        let joined = join(&spec(Datatype::Bytes, &[1]), Tensor::from_texts("y", &[1], &["20"]), Tensor::from_texts("y", &[1], &["26-"]));
        assert_eq!(joined, Tensor::from_texts("y", &[1], &["2026-"]));
    }

    #[test]
    fn a_piece_adds_nothing_if_it_holds_nothing_that_could_be_appended() {
        let (open, texts, fixed) = (spec(Datatype::Bytes, &[-1]), spec(Datatype::Bytes, &[2]), spec(Datatype::Fp32, &[1]));
        assert!(adds_nothing(&open, &Tensor::from_texts::<&str>("y", &[0], &[])));
        assert!(!adds_nothing(&open, &Tensor::from_texts("y", &[1], &[""])));
        assert!(adds_nothing(&spec(Datatype::Fp32, &[-1, -1]), &Tensor::from_f32("y", &[1, 0], &[])));
        assert!(adds_nothing(&spec(Datatype::Fp32, &[1, -1]), &Tensor::from_f32("y", &[1, 0], &[])));
        assert!(adds_nothing(&texts, &Tensor::from_texts("y", &[2], &["", ""])));
        assert!(!adds_nothing(&texts, &Tensor::from_texts("y", &[2], &["", "a"])));
        assert!(!adds_nothing(&fixed, &Tensor::from_f32("y", &[1], &[0.0])));
    }

    #[test]
    fn anything_else_is_replaced() {
        let joined = join(&spec(Datatype::Fp32, &[1]), Tensor::from_f32("y", &[1], &[1.0]), Tensor::from_f32("y", &[1], &[2.0]));
        assert_eq!(joined, Tensor::from_f32("y", &[1], &[2.0]));
    }
}

//! A response tensor that comes in pieces is put together once, when all of it is there.
//!
//! Until then its contents are shared, not copied. Pieces may be large, and the engine's thread
//! waits for the lock of whoever adds one.

use std::ops::Range;
use std::sync::Arc;

use cellwright_cell_graph::{Datatype, Tensor, TensorSpec};

/// What a piece takes beside its contents.
const PIECE_BYTES: u64 = 256;
/// Contents are copied rather than shared if they would hold on to more than so many times their bytes.
const PINNED_MAX: usize = 4;

/// Bytes that others may hold too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Run {
    pub(crate) const fn new(bytes: Arc<Vec<u8>>, range: Range<usize>) -> Self {
        Self { bytes, range }
    }

    #[cfg(test)]
    pub(crate) fn address(&self) -> *const u8 {
        self.data().as_ptr()
    }

    fn data(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }

    /// Copies only if others hold them too, or more than them.
    fn into_data(self) -> Vec<u8> {
        if self.range != (0..self.bytes.len()) {
            return self.data().to_vec();
        }
        Arc::unwrap_or_clone(self.bytes)
    }

    fn trimmed(self) -> Self {
        if self.range.len().saturating_mul(PINNED_MAX) >= self.bytes.len() {
            return self;
        }
        let own = self.data().to_vec();
        Self::new(Arc::new(own), 0..self.range.len())
    }
}

/// A tensor before it is put together: its contents are runs that follow one another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) datatype: Datatype,
    pub(crate) shape: Vec<usize>,
    pub(crate) runs: Vec<Run>,
}

impl From<Tensor> for Piece {
    fn from(tensor: Tensor) -> Self {
        let whole = 0..tensor.data.len();
        Self { datatype: tensor.datatype, shape: tensor.shape, runs: vec![Run::new(Arc::new(tensor.data), whole)] }
    }
}

impl Piece {
    /// Bytes of memory that it holds, and that will hold what is made of it.
    pub(crate) fn bytes(&self) -> u64 {
        let run = |run: &Run| (size_of::<Run>() + run.bytes.len() + run.range.len()) as u64;
        self.runs.iter().map(run).fold(PIECE_BYTES, u64::saturating_add)
    }

    /// The same, of which little holds on to much.
    pub(crate) fn trimmed(self) -> Self {
        Self { runs: self.runs.into_iter().map(Run::trimmed).collect(), ..self }
    }

    /// The tensor of that name.
    pub(crate) fn into_tensor(self, name: &str) -> Tensor {
        let data = match <[Run; 1]>::try_from(self.runs) {
            Ok([run]) => run.into_data(),
            Err(runs) => {
                let mut data = Vec::with_capacity(runs.iter().map(|run| run.range.len()).sum());
                runs.into_iter().for_each(|run| data.extend_from_slice(run.data()));
                data
            }
        };
        Tensor { name: name.to_owned(), datatype: self.datatype, shape: self.shape, data }
    }
}

/// Whether two pieces become one tensor; otherwise the later one replaces what was before it.
pub(crate) fn go_together(spec: &TensorSpec, before: &Piece, after: &Piece) -> bool {
    are_stacked(spec, before, after) || are_texts(spec, before, after)
}

/// Along the leading dimension, where the model leaves it open.
fn are_stacked(spec: &TensorSpec, before: &Piece, after: &Piece) -> bool {
    spec.shape.first() == Some(&-1) && before.datatype == after.datatype && before.shape.get(1..) == after.shape.get(1..)
}

/// Texts of a fixed extent grow element by element.
fn are_texts(spec: &TensorSpec, before: &Piece, after: &Piece) -> bool {
    spec.datatype == Datatype::Bytes && before.shape == after.shape
}

/// The tensor of pieces each of which goes together with the next; none of none, and of more than can be counted.
pub(crate) fn joined(spec: &TensorSpec, mut pieces: Vec<Piece>) -> Option<Tensor> {
    let stacked = match pieces.as_slice() {
        [before, after, ..] => are_stacked(spec, before, after),
        _ => return Some(pieces.pop()?.into_tensor(&spec.name)),
    };
    let first = pieces.first()?;
    let mut whole = Piece { datatype: first.datatype, shape: first.shape.clone(), runs: Vec::new() };
    if stacked {
        // Of rows without bytes a plugin may claim any number.
        let rows = pieces.iter().filter_map(|piece| piece.shape.first()).try_fold(0_usize, |sum, rows| sum.checked_add(*rows));
        *whole.shape.first_mut()? = rows?;
        whole.runs = pieces.into_iter().flat_map(|piece| piece.runs).collect();
        return Some(whole.into_tensor(&spec.name));
    }
    let tensor = whole.into_tensor(&spec.name);
    let texts: Vec<Vec<u8>> = pieces.into_iter().map(|piece| piece.into_tensor("").data).collect();
    Some(Tensor { data: element_by_element(tensor.elements()?, &texts)?, ..tensor })
}

/// So many texts of each piece, of which the first are put together, then the second, and so on.
fn element_by_element(elements: usize, pieces: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut rests: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
    let mut joined = Vec::with_capacity(pieces.iter().map(Vec::len).sum());
    for _ in 0..elements {
        let start = joined.len();
        joined.extend_from_slice(&[0; 4]);
        for rest in &mut rests {
            let (length, tail) = rest.split_first_chunk::<4>()?;
            let (text, tail) = tail.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
            joined.extend_from_slice(text);
            *rest = tail;
        }
        let length = u32::try_from(joined.len() - start - 4).ok()?;
        joined[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }
    Some(joined)
}

/// Whether a piece, appended to others, would leave them as they are.
pub(crate) fn adds_nothing(spec: &TensorSpec, piece: &Tensor) -> bool {
    if piece.shape.contains(&0) {
        return true;
    }
    if spec.shape.first() == Some(&-1) {
        return false;
    }
    // Of a text without letters there is only its length.
    spec.datatype == Datatype::Bytes && piece.elements().and_then(|elements| elements.checked_mul(4)) == Some(piece.data.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(datatype: Datatype, shape: &[i64]) -> TensorSpec {
        TensorSpec { name: "y".to_owned(), datatype, shape: shape.to_vec() }
    }

    fn join(spec: &TensorSpec, tensors: &[Tensor]) -> Tensor {
        let pieces: Vec<Piece> = tensors.iter().cloned().map(Piece::from).collect();
        assert!(pieces.windows(2).all(|pair| go_together(spec, &pair[0], &pair[1])));
        joined(spec, pieces).unwrap()
    }

    #[test]
    fn rows_are_stacked_where_the_extent_is_open() {
        let pieces = [Tensor::from_i64("y", &[2], &[1, 2]), Tensor::from_i64("y", &[0], &[]), Tensor::from_i64("y", &[1], &[3])];
        assert_eq!(join(&spec(Datatype::Int64, &[-1]), &pieces), Tensor::from_i64("y", &[3], &[1, 2, 3]));
        let texts = [Tensor::from_texts("y", &[1], &["20"]), Tensor::from_texts("y", &[1], &["26-"])];
        assert_eq!(join(&spec(Datatype::Bytes, &[-1]), &texts), Tensor::from_texts("y", &[2], &["20", "26-"]));
    }

    #[test]
    fn extents_that_nothing_stands_behind_add_up_to_no_panic() {
        let spec = spec(Datatype::Fp32, &[-1, 0]);
        let pieces = [usize::MAX, usize::MAX].map(|rows| Piece::from(Tensor::from_f32("y", &[rows, 0], &[])));
        assert_eq!(joined(&spec, pieces.to_vec()), None);
    }

    #[test]
    fn texts_grow() {
        let pieces = [["20", "a"], ["26-", ""], ["", "b"]].map(|texts| Tensor::from_texts("y", &[2], &texts));
        assert_eq!(join(&spec(Datatype::Bytes, &[2]), &pieces), Tensor::from_texts("y", &[2], &["2026-", "ab"]));
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
        let (one, two) = (Tensor::from_f32("y", &[1], &[1.0]), Tensor::from_f32("y", &[1], &[2.0]));
        assert!(!go_together(&spec(Datatype::Fp32, &[1]), &one.into(), &two.into()));
    }

    #[test]
    fn little_does_not_hold_on_to_much() {
        let block = Arc::new(vec![7; 1000]);
        let piece =
            |range: Range<usize>| Piece { datatype: Datatype::Uint8, shape: vec![range.len()], runs: vec![Run::new(block.clone(), range)] };
        for (range, bytes) in [(0..1000, 1000), (500..750, 1000), (500..749, 249)] {
            let trimmed = piece(range.clone()).trimmed();
            assert_eq!(trimmed.runs[0].bytes.len(), bytes);
            assert_eq!(trimmed.into_tensor("y"), piece(range).into_tensor("y"));
        }
        let whole = piece(0..1000);
        let at = block.as_ptr();
        drop(block);
        assert_eq!(whole.into_tensor("y").data.as_ptr(), at, "what nobody else holds is not copied");
    }
}

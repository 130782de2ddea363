//! Which element of a row stands where, once axes are spread, sliced or put into another order.

use super::super::copies::{Axis, Copies};

/// Elements of a value in the row-major order of another: along each axis of that, how many there are and how far apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Strided {
    first: usize,
    axes: Vec<(usize, isize)>,
}

/// The elements of `from` in the order of `shape`, over which it is spread; none if it does not fit. Leading extents of 1 that
/// `shape` does not have (a batch dimension written out) do not count.
pub(super) fn broadcast(from: &[usize], shape: &[usize]) -> Option<Strided> {
    let extra = from.len().saturating_sub(shape.len());
    if from[..extra].iter().any(|extent| *extent != 1) {
        return None;
    }
    let from = &from[extra..];
    let missing = shape.len() - from.len();
    let own = row_major(from);
    let axis = |at: usize| match at.checked_sub(missing).map(|own_at| (from[own_at], own[own_at])) {
        Some((extent, stride)) if extent == shape[at] => Some((extent, stride)),
        Some((1, _)) | None => Some((shape[at], 0)),
        Some(_) => None,
    };
    Some(Strided { first: 0, axes: (0..shape.len()).map(axis).collect::<Option<_>>()? })
}

/// The elements that a slice of `from`, itself of that `shape`, takes: of each axis given, from where on and by how many.
pub(super) fn slice(from: &[usize], shape: &[usize], axes: &[(u32, u32, i32)]) -> Strided {
    let mut strides = row_major(from);
    let mut first = 0;
    for (axis, start, step) in axes {
        let stride = &mut strides[*axis as usize];
        first += stride.unsigned_abs() * *start as usize;
        *stride *= *step as isize;
    }
    Strided { first, axes: shape.iter().copied().zip(strides).collect() }
}

/// The elements of a value of `shape` with its axes in that order.
pub(super) fn reordered(shape: &[usize], order: &[usize]) -> Strided {
    let strides = row_major(shape);
    Strided { first: 0, axes: order.iter().map(|axis| (shape[*axis], strides[*axis])).collect() }
}

/// The order that undoes that one.
pub(super) fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    for (at, axis) in order.iter().enumerate() {
        inverse[*axis] = at;
    }
    inverse
}

fn row_major(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1_isize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as isize;
    }
    strides
}

impl Strided {
    /// How many elements there are.
    pub(super) fn count(&self) -> usize {
        self.axes.iter().map(|(extent, _)| extent).product()
    }

    /// As copies of elements of that size, as much as possible at once.
    pub(super) fn copies(&self, size: usize) -> Copies {
        let mut axes: Vec<Axis> = Vec::new();
        let mut apart = size;
        // The last axis first. One that goes on where the one within it ends is one with it.
        for (count, stride) in self.axes.iter().rev().filter(|(extent, _)| *extent != 1) {
            let source = stride * size as isize;
            match axes.last_mut() {
                Some(inner) if source == inner.source * inner.count as isize => inner.count *= count,
                _ => axes.push(Axis { count: *count, source, result: apart }),
            }
            apart *= count;
        }
        axes.reverse();
        let bytes = match axes.last() {
            Some(last) if last.source == size as isize => axes.pop().map_or(size, |last| last.count * size),
            _ => size,
        };
        Copies { source: self.first * size, result: 0, bytes, axes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What copies of a row of numbered elements give.
    fn copied(strided: &Strided, elements: usize) -> Vec<u32> {
        let from: Vec<u8> = (0..elements as u32).flat_map(u32::to_ne_bytes).collect();
        let copied = strided.copies(size_of::<u32>()).copied(&from, strided.count() * size_of::<u32>());
        copied.chunks(size_of::<u32>()).map(|bytes| u32::from_ne_bytes(bytes.try_into().unwrap())).collect()
    }

    fn axes(strided: &Strided) -> (usize, usize) {
        let copies = strided.copies(4);
        (copies.bytes, copies.axes.len())
    }

    #[test]
    fn values_are_spread_over_axes_that_they_do_not_have() {
        assert_eq!(copied(&broadcast(&[1], &[5]).unwrap(), 1), [0; 5]);
        assert_eq!(copied(&broadcast(&[3], &[2, 3]).unwrap(), 3), [0, 1, 2, 0, 1, 2]);
        assert_eq!(copied(&broadcast(&[2, 1], &[2, 3]).unwrap(), 2), [0, 0, 0, 1, 1, 1]);
        assert_eq!(copied(&broadcast(&[1, 1, 2, 1], &[2, 2, 2]).unwrap(), 2), [0, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!(copied(&broadcast(&[], &[2]).unwrap(), 1), [0, 0]);
        assert_eq!((broadcast(&[2], &[3]), broadcast(&[2, 3], &[3])), (None, None));
    }

    #[test]
    fn slices_may_skip_elements_and_go_backwards() {
        assert_eq!(copied(&slice(&[6], &[3], &[(0, 1, 2)]), 6), [1, 3, 5]);
        assert_eq!(copied(&slice(&[2, 3], &[2, 3], &[(1, 2, -1)]), 6), [2, 1, 0, 5, 4, 3]);
        assert_eq!(copied(&slice(&[3, 2, 2], &[2, 1, 2], &[(0, 1, 1), (1, 1, 1)]), 12), [6, 7, 10, 11]);
        assert_eq!(copied(&slice(&[3, 2], &[3, 2], &[(0, 2, -1)]), 6), [4, 5, 2, 3, 0, 1]);
    }

    #[test]
    fn axes_change_their_order_and_back() {
        let (shape, order) = ([2, 3, 4], [2, 0, 1]);
        let there = copied(&reordered(&shape, &order), 24);
        let expected: Vec<u32> = (0..4).flat_map(|k| (0..2).flat_map(move |i| (0..3).map(move |j| (i * 3 + j) * 4 + k))).collect();
        assert_eq!(there, expected);
        let back = copied(&reordered(&order.map(|axis| shape[axis]), &inverse(&order)), 24);
        assert_eq!(back.iter().map(|at| there[*at as usize]).collect::<Vec<_>>(), (0..24).collect::<Vec<u32>>());
    }

    #[test]
    fn what_lies_together_is_copied_at_once_and_nothing_takes_memory_for_each_element() {
        assert_eq!(axes(&slice(&[4, 5, 6], &[2, 5, 6], &[(0, 1, 1)])), (2 * 5 * 6 * 4, 0));
        assert_eq!(axes(&slice(&[4, 5, 6], &[4, 2, 6], &[(1, 3, 1)])), (2 * 6 * 4, 1));
        assert_eq!(axes(&broadcast(&[1, 6], &[9, 6]).unwrap()), (6 * 4, 1));
        assert_eq!(axes(&broadcast(&[1, 1], &[3000, 5000]).unwrap()), (4, 1));
        assert_eq!(axes(&reordered(&[2, 1 << 20], &[1, 0])), (4, 2));
        assert_eq!(axes(&broadcast(&[1], &[1]).unwrap()), (4, 0));
    }
}

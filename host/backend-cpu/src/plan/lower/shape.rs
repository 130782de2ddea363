//! Which element of a row stands where, once axes are spread, sliced or put into another order.

use super::super::Run;

/// For each element of `shape`, which element of `from` it is when that is spread over it; none if it does not fit. Leading extents of 1 that
/// `shape` does not have (a batch dimension written out) do not count.
pub(super) fn broadcast_offsets(from: &[usize], shape: &[usize]) -> Option<Vec<usize>> {
    let extra = from.len().saturating_sub(shape.len());
    if from[..extra].iter().any(|extent| *extent != 1) {
        return None;
    }
    let from = &from[extra..];
    let missing = shape.len() - from.len();
    let mut strides = vec![0; shape.len()];
    let mut stride = 1;
    for axis in (0..from.len()).rev() {
        if from[axis] == shape[missing + axis] {
            strides[missing + axis] = stride;
        } else if from[axis] != 1 {
            return None;
        }
        stride *= from[axis];
    }
    Some(offsets(shape, 0, &strides))
}

/// Row-major walk over `shape`: the offset of each element, for strides that may be negative or zero.
fn walk(shape: &[usize], base: i64, strides: &[i64]) -> Vec<usize> {
    let count: usize = shape.iter().product();
    let mut at = vec![0_usize; shape.len()];
    let mut offset = base;
    let mut found = Vec::with_capacity(count);
    for _ in 0..count {
        found.push(offset as usize);
        for axis in (0..shape.len()).rev() {
            at[axis] += 1;
            offset += strides[axis];
            if at[axis] < shape[axis] {
                break;
            }
            offset -= strides[axis] * shape[axis] as i64;
            at[axis] = 0;
        }
    }
    found
}

fn offsets(shape: &[usize], base: usize, strides: &[usize]) -> Vec<usize> {
    walk(shape, base as i64, &strides.iter().map(|stride| *stride as i64).collect::<Vec<_>>())
}

fn row_major(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1_i64; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as i64;
    }
    strides
}

pub(super) fn slice_offsets(from: &[usize], shape: &[usize], axes: &[(u32, u32, i32)]) -> Vec<usize> {
    let mut strides = row_major(from);
    let mut base = 0;
    for (axis, start, step) in axes {
        let stride = &mut strides[*axis as usize];
        base += *stride * i64::from(*start);
        *stride *= i64::from(*step);
    }
    walk(shape, base, &strides)
}

/// Element i of the value with its axes in `order` is element `permutation[i]` of the value of `shape`.
pub(super) fn permutation(shape: &[usize], order: &[usize]) -> Vec<usize> {
    let strides = row_major(shape);
    let (shape, strides): (Vec<usize>, Vec<i64>) = order.iter().map(|axis| (shape[*axis], strides[*axis])).unzip();
    walk(&shape, 0, &strides)
}

pub(super) fn inverse(permutation: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; permutation.len()];
    for (at, offset) in permutation.iter().enumerate() {
        inverse[*offset] = at;
    }
    inverse
}

/// Offsets of elements as stretches of bytes.
pub(super) fn runs(offsets: &[usize], size: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (at, offset) in offsets.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.source + run.bytes == offset * size => run.bytes += size,
            _ => runs.push(Run { source: offset * size, result: at * size, bytes: size }),
        }
    }
    runs
}

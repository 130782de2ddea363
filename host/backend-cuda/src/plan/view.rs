//! Where the elements of a value lie: a place, and how far it is to the next element along each axis.

use cellwright_cell_graph::Datatype;

use crate::abi::{GROUP_AXES, GroupOperand};

/// Element types, as `abi_group.h` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    I64,
    I32,
    U8,
    Bool,
    /// Of values that are multiplied, and of no datatype.
    Bf16,
    /// Likewise.
    F16,
}

impl Element {
    /// The element type of a datatype; none if cells cannot compute with it.
    pub(super) const fn of(datatype: Datatype) -> Option<Self> {
        Some(match datatype {
            Datatype::Fp32 => Self::F32,
            Datatype::Int64 => Self::I64,
            Datatype::Int32 => Self::I32,
            Datatype::Uint8 => Self::U8,
            Datatype::Bool => Self::Bool,
            _ => return None,
        })
    }

    pub(super) const fn size(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::U8 | Self::Bool => 1,
        }
    }
}

/// What holds elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Base {
    /// A value of the row, by number: it is written once.
    Row(usize),
    /// A blob, by number.
    Blob(usize),
}

/// A value of that shape, seen somewhere.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub(super) base: Base,
    /// Bytes from the beginning of the row, or of the blob.
    pub(super) at: usize,
    pub(super) element: Element,
    pub(super) shape: Vec<usize>,
    /// In elements.
    pub(super) strides: Vec<i64>,
}

pub(super) fn row_major(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1_i64; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as i64;
    }
    strides
}

impl View {
    /// A value whose elements lie one after the other.
    pub(super) fn whole(base: Base, at: usize, element: Element, shape: &[usize]) -> Self {
        Self { base, at, element, shape: shape.to_vec(), strides: row_major(shape) }
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The value of the row that it lies in; none: a blob.
    pub(super) const fn value(&self) -> Option<usize> {
        match self.base {
            Base::Row(value) => Some(value),
            Base::Blob(_) => None,
        }
    }

    /// Whether its elements lie one after the other. How far it is to the next of one does not count.
    pub(super) fn is_whole(&self) -> bool {
        let axes = self.shape.iter().zip(&self.strides).zip(row_major(&self.shape));
        axes.into_iter().all(|((extent, stride), whole)| *extent == 1 || *stride == whole)
    }

    /// Without its leading extents of 1 beyond so many axes: a constant may have a batch dimension written out.
    pub(super) fn of_rank(&self, rank: usize) -> Option<Self> {
        let extra = self.shape.len().saturating_sub(rank);
        if self.shape[..extra].iter().any(|extent| *extent != 1) {
            return None;
        }
        Some(Self { shape: self.shape[extra..].to_vec(), strides: self.strides[extra..].to_vec(), ..self.clone() })
    }

    /// Spread over a shape, as ONNX does it: aligned at the right, extents of 1 repeated. None if it does not fit.
    pub(super) fn spread(&self, shape: &[usize]) -> Option<Self> {
        let own = self.of_rank(shape.len())?;
        let missing = shape.len() - own.shape.len();
        let mut strides = vec![0; shape.len()];
        for (axis, (extent, stride)) in own.shape.iter().zip(&own.strides).enumerate() {
            let wanted = shape[missing + axis];
            if *extent == wanted {
                strides[missing + axis] = *stride;
            } else if *extent != 1 {
                return None;
            }
        }
        Some(Self { shape: shape.to_vec(), strides, ..own })
    }

    /// Elements `start`, `start + step`, … of an axis, so many.
    pub(super) fn sliced(&self, axis: usize, start: usize, step: i64, extent: usize) -> Self {
        let mut view = self.clone();
        // A slice lies within its value, so this is not before its beginning.
        let skipped = start as i64 * self.strides[axis] * self.element.size() as i64;
        view.at = usize::try_from(self.at as i64 + skipped).unwrap_or(self.at);
        view.strides[axis] *= step;
        view.shape[axis] = extent;
        view
    }

    /// The same elements, one after the other, in another shape; none if they do not lie so.
    pub(super) fn reshaped(&self, shape: &[usize]) -> Option<Self> {
        self.is_whole().then(|| Self::whole(self.base, self.at, self.element, shape))
    }

    /// With its axes in that order.
    pub(super) fn permuted(&self, order: &[usize]) -> Self {
        let shape = order.iter().map(|axis| self.shape[*axis]).collect();
        let strides = order.iter().map(|axis| self.strides[*axis]).collect();
        Self { shape, strides, ..self.clone() }
    }

    /// For kernels, along axes of that many strides; blobs by number.
    pub(super) fn operand(&self, strides: &[i64]) -> Option<GroupOperand> {
        let mut operand = GroupOperand { kind: self.element as u32, ..GroupOperand::default() };
        match self.base {
            Base::Row(_) => operand.at = self.at as u64,
            Base::Blob(blob) => (operand.at, operand.is_address) = (blob as u64, 1),
        }
        if strides.len() > GROUP_AXES {
            return None;
        }
        for (to, from) in operand.strides.iter_mut().zip(strides) {
            *to = i32::try_from(*from).ok()?;
        }
        Some(operand)
    }
}

/// An index space in two parts, the axes of each as few as the operands' strides allow.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Space {
    pub(super) extents: Vec<usize>,
    pub(super) outer_axes: usize,
    /// For each operand, by axis.
    pub(super) strides: Vec<Vec<i64>>,
}

impl Space {
    /// A space of those extents, the first `outer_axes` of which are a part of their own.
    pub(super) fn new(extents: &[usize], outer_axes: usize, strides: &[Vec<i64>]) -> Self {
        let mut space = Self { strides: vec![Vec::new(); strides.len()], ..Self::default() };
        let of = |axis: usize| strides.iter().map(|strides| strides[axis]).collect::<Vec<_>>();
        (0..outer_axes).for_each(|axis| space.push(extents[axis], &of(axis), 0));
        space.outer_axes = space.extents.len();
        (outer_axes..extents.len()).for_each(|axis| space.push(extents[axis], &of(axis), space.outer_axes));
        space
    }

    /// One axis more, as a part of the one before it if every operand lets it; not of those before `first`.
    fn push(&mut self, extent: usize, strides: &[i64], first: usize) {
        if extent == 1 {
            return;
        }
        let last = self.extents.len().checked_sub(1).filter(|last| *last >= first);
        if let Some(last) = last
            && self.strides.iter().zip(strides).all(|(own, stride)| own[last] == stride * extent as i64)
        {
            self.extents[last] *= extent;
            self.strides.iter_mut().zip(strides).for_each(|(own, stride)| own[last] = *stride);
            return;
        }
        self.extents.push(extent);
        self.strides.iter_mut().zip(strides).for_each(|(own, stride)| own.push(*stride));
    }

    /// Indices of the first part, and of the second for each of those.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.extents[..self.outer_axes].iter().product(), self.extents[self.outer_axes..].iter().product())
    }
}

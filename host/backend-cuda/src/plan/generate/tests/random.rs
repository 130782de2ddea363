//! Random groups: every operation, on values that lie every way.

use std::ops::Range;

use cellwright_cell_graph::generate::Rng;

use super::super::{bytes, count, type_bytes};
use crate::abi::{GroupInstruction, GroupOperand, flag, op};

const F32: u32 = 0;
const KINDS: [u32; 5] = [0, 1, 2, 3, 4];
/// What floats are rounded to, and nothing reads.
pub(super) const ROUNDED: [u32; 2] = [5, 6];

/// Elements of the row, or of a blob by its number.
#[derive(Clone, Copy, Debug)]
struct Value {
    at: u64,
    is_blob: bool,
    kind: u32,
    count: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) instructions: Vec<GroupInstruction>,
    pub(super) threads: u32,
    pub(super) stride: u32,
    /// What others read.
    pub(super) kept: Vec<Range<u64>>,
    pub(super) blobs: Vec<Vec<u8>>,
    /// The frame before.
    pub(super) rows: Vec<u8>,
    floats: Vec<Range<u64>>,
}

impl Group {
    pub(super) fn new(seed: u64) -> Self {
        let mut maker = Maker { rng: Rng::new(seed), values: Vec::new(), end: 32, blobs: Vec::new(), shapes: Vec::new() };
        maker.begin();
        let inputs = maker.values.len();
        let operations: Vec<u32> = op::ALL.iter().map(|(_, number)| *number).collect();
        // All of them in two groups, and between them some at random so that they meet.
        let half = operations.len() / 2;
        let mut instructions = Vec::new();
        for number in 0..half {
            instructions.push(maker.instruction(operations[number + (seed as usize % 2) * half]));
            let drawn = maker.rng.below(operations.len() as u64) as usize;
            instructions.push(maker.instruction(operations[drawn]));
        }
        let results: Vec<Value> = maker.values[inputs..].to_vec();
        let span = |value: &Value| bytes(value.at, u64::from(value.count * type_bytes(value.kind)));
        let mut rng = Rng::new(seed + 1);
        let kept = results.iter().filter(|_| rng.one_in(2)).map(span).collect();
        let in_row = maker.values.iter().filter(|value| !value.is_blob);
        let floats = in_row.clone().filter(|value| value.kind == F32).map(span).collect();
        let stride = maker.end.next_multiple_of(16) as u32;
        let mut rows = vec![0xFF_u8; (stride * super::ROWS) as usize];
        for row in rows.chunks_mut(stride as usize) {
            row[..32].fill(0);
            for value in &maker.values[..inputs] {
                if !value.is_blob {
                    let data = elements(&mut maker.rng, value.kind, value.count);
                    row[value.at as usize..][..data.len()].copy_from_slice(&data);
                }
            }
        }
        let threads = [32, 64, 96, 256][maker.rng.below(4) as usize];
        Self { instructions, threads, stride, kept, blobs: maker.blobs, rows, floats }
    }

    /// Bytes of a row; of floats that are none always the same, for which of two operands' bits a sum has is nobody's promise.
    pub(super) fn bits(&self, row: usize, frame: &[u8], span: &Range<u64>) -> Vec<u8> {
        let mut bits = frame[row * self.stride as usize..][span.start as usize..span.end as usize].to_vec();
        if self.floats.contains(span) {
            for float in bits.as_chunks_mut::<4>().0 {
                if f32::from_le_bytes(*float).is_nan() {
                    *float = f32::NAN.to_le_bytes();
                }
            }
        }
        bits
    }
}

fn elements(rng: &mut Rng, kind: u32, count: u32) -> Vec<u8> {
    let small = |rng: &mut Rng| i64::from(rng.between(0, 12)) - 6;
    let one = |rng: &mut Rng| match kind {
        0 => match rng.below(12) {
            0 => [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40][rng.below(6) as usize].to_le_bytes().to_vec(),
            _ => (rng.float() * 4.0).to_le_bytes().to_vec(),
        },
        1 => if rng.one_in(20) { i64::MIN } else { small(rng) }.to_le_bytes().to_vec(),
        2 => if rng.one_in(20) { i32::MAX } else { small(rng) as i32 }.to_le_bytes().to_vec(),
        3 => vec![rng.below(256) as u8],
        _ => vec![rng.below(2) as u8],
    };
    (0..count).flat_map(|_| one(rng)).collect()
}

struct Maker {
    rng: Rng,
    values: Vec<Value>,
    end: u64,
    blobs: Vec<Vec<u8>>,
    /// Few, so that instructions find values of their size.
    shapes: Vec<Vec<u32>>,
}

impl Maker {
    fn begin(&mut self) {
        const EXTENTS: [u32; 6] = [1, 2, 3, 5, 7, 33];
        for axes in [1, 2, 3] {
            let shape = (0..axes).map(|_| EXTENTS[self.rng.below(if axes == 3 { 4 } else { 6 }) as usize]).collect();
            self.shapes.push(shape);
        }
        for shape in self.shapes.clone() {
            for kind in KINDS {
                let count = shape.iter().product();
                self.value(kind, count);
                if self.rng.one_in(2) {
                    let data = elements(&mut self.rng, kind, count);
                    self.values.push(Value { at: self.blobs.len() as u64, is_blob: true, kind, count });
                    self.blobs.push(data);
                }
            }
        }
    }

    fn value(&mut self, kind: u32, count: u32) -> Value {
        let value = Value { at: self.end.next_multiple_of(16), is_blob: false, kind, count };
        self.end = value.at + u64::from(count * type_bytes(kind));
        self.values.push(value);
        value
    }

    fn any(&mut self, kind: u32) -> Value {
        let fitting: Vec<Value> = self.values.iter().filter(|value| value.kind == kind).copied().collect();
        // Of the latest more often: what instructions leave is what others go on with.
        let back = self.rng.below(fitting.len() as u64).min(self.rng.below(fitting.len() as u64)) as usize;
        fitting[fitting.len() - 1 - back]
    }

    /// A value of that kind as a source over those extents.
    fn source(&mut self, kind: u32, extents: &[u32]) -> GroupOperand {
        let count: u32 = extents.iter().product();
        let mut value = self.any(kind);
        for _ in 0..4 {
            if value.count != count {
                value = self.any(kind);
            }
        }
        let mut strides = vec![0; extents.len()];
        let mut first = 0;
        let last = extents.len() - 1;
        if value.count == count && !self.rng.one_in(4) {
            let mut inner = 1;
            for axis in (0..extents.len()).rev() {
                strides[axis] = inner;
                inner *= extents[axis] as i32;
            }
        } else if value.count >= extents[last] && self.rng.one_in(2) {
            (strides[last], first) = if self.rng.one_in(2) { (1, 0) } else { (-1, extents[last] - 1) };
        } else {
            first = self.rng.below(u64::from(value.count)) as u32;
        }
        let at = if value.is_blob { value.at } else { value.at + u64::from(first * type_bytes(kind)) };
        // A blob is named by its number, which has no offset.
        let strides = if value.is_blob && first > 0 { vec![0; extents.len()] } else { strides };
        operand(at, value.is_blob, kind, &strides)
    }

    fn instruction(&mut self, op: u32) -> GroupInstruction {
        let extents = self.shapes[self.rng.below(3) as usize].clone();
        let mut instruction =
            GroupInstruction { op, flags: flag::BARRIER, axes: extents.len() as u32, results: 1, ..GroupInstruction::default() };
        instruction.extents[..extents.len()].copy_from_slice(&extents);
        instruction.outer_axes = if op >= op::SOFTMAX { extents.len() as u32 - 1 } else { 0 };
        if op == op::LOOKUP {
            return self.lookup(instruction);
        }
        let outer = &extents[..instruction.outer_axes as usize];
        (instruction.outer, instruction.inner) = (outer.iter().product(), extents[instruction.outer_axes as usize..].iter().product());
        let any = KINDS[self.rng.below(5) as usize];
        let number = KINDS[self.rng.below(4) as usize];
        let (sources, target) = match op {
            op::COPY => (vec![any], any),
            op::CAST if self.rng.one_in(2) => (vec![F32], ROUNDED[self.rng.below(2) as usize]),
            op::CAST => (vec![KINDS[self.rng.below(5) as usize]], any),
            op::NEG | op::RELU => (vec![number], number),
            op::NOT => (vec![4], 4),
            op::SIGMOID..=op::SQRT => (vec![F32], F32),
            op::ADD..=op::DIV => (vec![number; 2], number),
            op::POW => (vec![F32; 2], F32),
            op::EQUAL => (vec![any; 2], 4),
            op::GREATER | op::LESS => (vec![number; 2], 4),
            op::AND | op::OR => (vec![4; 2], 4),
            op::WHERE => (vec![4, any, any], any),
            op::SUM | op::MEAN | op::TOP => (vec![number], number),
            op::SOFTMAX | op::LOG_SOFTMAX => (vec![F32], F32),
            _ => (vec![F32; 1 + self.rng.below(3) as usize], F32),
        };
        instruction.sources = sources.len() as u32;
        for (number, kind) in sources.into_iter().enumerate() {
            instruction.source[number] = self.source(kind, &extents);
        }
        if op < op::SOFTMAX {
            instruction.result[0] = self.result(target, &extents);
            return instruction;
        }
        instruction.flags |= [0, flag::BY_WARP, flag::BY_BLOCK][self.rng.below(3) as usize];
        instruction.epsilon = 1e-5;
        match op {
            op::SUM | op::MEAN => instruction.result[0] = self.of_stretches(target, outer, 0),
            op::TOP => {
                instruction.k = self.rng.between(1, instruction.inner.min(4));
                instruction.flags |= [0, flag::SMALLEST, flag::LAST][self.rng.below(3) as usize];
                instruction.results = self.rng.between(1, 3);
                instruction.result = [self.of_stretches(target, outer, instruction.k), self.of_stretches(1, outer, instruction.k)];
            }
            _ => instruction.result[0] = self.result(F32, &extents),
        }
        instruction
    }

    /// A new value over those extents, at times with gaps.
    fn result(&mut self, kind: u32, extents: &[u32]) -> GroupOperand {
        let gap = if self.rng.one_in(6) { 2 } else { 1 };
        let value = self.value(kind, extents.iter().product::<u32>() * gap);
        let mut inner = gap as i32;
        let mut strides = vec![0; extents.len()];
        for axis in (0..extents.len()).rev() {
            strides[axis] = inner;
            inner *= extents[axis] as i32;
        }
        operand(value.at, false, kind, &strides)
    }

    /// A new value of `k` elements of each stretch, or of one that has no axis.
    fn of_stretches(&mut self, kind: u32, outer: &[u32], k: u32) -> GroupOperand {
        let value = self.value(kind, outer.iter().product::<u32>() * k.max(1));
        let mut strides = vec![i32::from(k > 0)];
        let mut inner = k.max(1) as i32;
        for extent in outer.iter().rev() {
            strides.insert(0, inner);
            inner *= *extent as i32;
        }
        operand(value.at, false, kind, &strides)
    }

    fn lookup(&mut self, mut instruction: GroupInstruction) -> GroupInstruction {
        let (rows, width, indices) = (self.rng.between(3, 7), self.rng.between(1, 6), self.rng.between(1, 5));
        let kind = KINDS[self.rng.below(5) as usize];
        let index = [1, 2][self.rng.below(2) as usize];
        let data = elements(&mut self.rng, kind, rows * width);
        self.blobs.push(data);
        (instruction.axes, instruction.outer_axes, instruction.sources) = (2, 1, 2);
        instruction.extents = [indices, width, 0, 0, 0, 0, 0, 0];
        (instruction.outer, instruction.inner, instruction.k, instruction.table_rows) = (indices, width, width, rows.into());
        let along = self.source(index, &[indices]);
        instruction.source[0] = GroupOperand { strides: [along.strides[0], 0, 0, 0, 0, 0, 0, 0], ..along };
        instruction.source[1] = operand(self.blobs.len() as u64 - 1, true, kind, &[0, 1]);
        instruction.result[0] = self.result(kind, &[indices, width]);
        assert_eq!(count(&instruction), indices * width);
        instruction
    }
}

fn operand(at: u64, is_blob: bool, kind: u32, strides: &[i32]) -> GroupOperand {
    let mut operand = GroupOperand { at, kind, is_address: u32::from(is_blob), ..GroupOperand::default() };
    operand.strides[..strides.len()].copy_from_slice(strides);
    operand
}

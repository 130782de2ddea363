//! Weights as products read them: the rule that stands in `kernels/abi.h`, in Rust.

use cellwright_cell_graph::Tensor;

use super::Arithmetic;

/// Columns of a panel.
const PANEL: usize = 64;
/// Rows of the weight to whose multiple a panel in 32-bit floats is padded, and those of a slab in tf32.
const F32_DEPTH: usize = 16;
/// Rows of a slab in bf16 and in f16,
const SLAB: usize = 32;
/// and of one for warpgroups.
const WIDE_SLAB: usize = crate::abi::WIDE_SLAB as usize;

/// Rows of a weight that are multiplied at once.
pub(super) const fn slab(arithmetic: Arithmetic) -> usize {
    match arithmetic {
        Arithmetic::F32 | Arithmetic::Tf32 => F32_DEPTH,
        Arithmetic::F16 | Arithmetic::Bf16 => SLAB,
        Arithmetic::WideF16 | Arithmetic::WideBf16 => WIDE_SLAB,
    }
}

/// Bytes of a weight of so many rows and columns, packed; none if there are no such numbers of bytes.
pub(super) fn packed_bytes(arithmetic: Arithmetic, k: usize, n: usize) -> Option<usize> {
    let size = if arithmetic.is_of_halves() { size_of::<u16>() } else { size_of::<f32>() };
    n.checked_next_multiple_of(PANEL)?.checked_mul(k.checked_next_multiple_of(slab(arithmetic))?)?.checked_mul(size)
}

/// A weight's numbers, `w[k][n]` times alpha.
pub(super) struct Weight<'a> {
    values: &'a [f32],
    pub(super) k: usize,
    pub(super) n: usize,
    transposed: bool,
    alpha: f32,
}

impl<'a> Weight<'a> {
    /// None if the values are not those of a matrix.
    pub(super) fn new(tensor: &Tensor, values: &'a [f32], transposed: bool, alpha: f32) -> Option<Self> {
        let [rows, columns] = tensor.shape[..] else { return None };
        let (k, n) = if transposed { (columns, rows) } else { (rows, columns) };
        (values.len() == k.checked_mul(n)?).then_some(Self { values, k, n, transposed, alpha })
    }

    fn at(&self, k: usize, n: usize) -> f32 {
        let value = self.alpha * self.values[if self.transposed { n * self.k + k } else { k * self.n + n }];
        // As kernels take rows.
        if value.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(value) } else { value }
    }

    /// Packed for products in that arithmetic.
    pub(super) fn packed(&self, arithmetic: Arithmetic) -> Vec<u8> {
        match arithmetic {
            Arithmetic::F32 => self.in_f32(),
            Arithmetic::Tf32 => self.in_slabs(F32_DEPTH, |value| to_tf32(value).to_le_bytes(), as_they_are),
            Arithmetic::F16 => self.in_slabs(SLAB, |value| to_f16(value).to_le_bytes(), as_they_are),
            Arithmetic::Bf16 => self.in_slabs(SLAB, |value| to_bf16(value).to_le_bytes(), as_they_are),
            Arithmetic::WideF16 => self.in_slabs(WIDE_SLAB, |value| to_f16(value).to_le_bytes(), swizzled),
            Arithmetic::WideBf16 => self.in_slabs(WIDE_SLAB, |value| to_bf16(value).to_le_bytes(), swizzled),
        }
    }

    fn in_f32(&self) -> Vec<u8> {
        let depth = self.k.next_multiple_of(F32_DEPTH);
        let mut packed = vec![0; self.n.next_multiple_of(PANEL) * depth * size_of::<f32>()];
        for k in 0..self.k {
            for n in 0..self.n {
                let place = ((n / PANEL) * depth + k) * PANEL + n % PANEL;
                packed[place * 4..][..4].copy_from_slice(&self.at(k, n).to_le_bytes());
            }
        }
        packed
    }

    /// Slabs of so many rows, each column after column, of which each number lies at the place that its row and its column say.
    fn in_slabs<const BYTES: usize>(
        &self,
        slab: usize,
        rounded: impl Fn(f32) -> [u8; BYTES],
        place_in_column: impl Fn(usize, usize) -> usize,
    ) -> Vec<u8> {
        let depth = self.k.next_multiple_of(slab);
        let mut packed = vec![0; self.n.next_multiple_of(PANEL) * depth * BYTES];
        for k in 0..self.k {
            for n in 0..self.n {
                let place = ((n / PANEL) * (depth / slab) + k / slab) * slab * PANEL + (n % PANEL) * slab + place_in_column(k % slab, n);
                packed[place * BYTES..][..BYTES].copy_from_slice(&rounded(self.at(k, n)));
            }
        }
        packed
    }
}

const fn as_they_are(k: usize, _: usize) -> usize {
    k
}

/// Chunks of eight numbers, of which neighbouring columns have others first: as warpgroups find every bank of shared memory once.
const fn swizzled(k: usize, n: usize) -> usize {
    ((k / 8) ^ (n % 8)) * 8 + k % 8
}

/// The nearest number of eleven significant bits; of two the one that is further from zero.
fn to_tf32(value: f32) -> u32 {
    if value.is_nan() {
        return 0x7fff_e000;
    }
    // From the largest number away from zero is infinity, as the bits are ordered; an infinity has no bits that go.
    (value.to_bits() + 0x1000) & 0xffff_e000
}

/// Units that the columns of gates are taken by,
const UNITS: usize = 8;
/// the groups of them whose multiple there are,
const GROUPS: usize = 8;
/// and the rows of their slabs.
const GATE_SLAB: usize = crate::abi::LSTM_SLAB as usize;

/// Bytes of the weights of so many gates, for so many states of so many units, without those of inputs; none if there are no such numbers of bytes.
pub(super) fn gate_bytes((gates, states): (usize, usize), units: usize) -> Option<usize> {
    let groups = units.div_ceil(UNITS).checked_next_multiple_of(GROUPS)?;
    groups.checked_mul(gates * UNITS * states)?.checked_mul(units.checked_next_multiple_of(GATE_SLAB)?)?.checked_mul(size_of::<u16>())
}

/// The weights of a cell's h, or of its children's, packed for its steps.
pub(super) struct GateWeight {
    rounded: fn(f32) -> u16,
    gates: usize,
    states: usize,
    units: usize,
    packed: Vec<u8>,
}

impl GateWeight {
    /// Zeros, of f16 or of bf16.
    pub(super) fn new(arithmetic: Arithmetic, (gates, states): (usize, usize), units: usize) -> Self {
        let rounded = if arithmetic.is_f16() { to_f16 } else { to_bf16 };
        Self { rounded, gates, states, units, packed: vec![0; gate_bytes((gates, states), units).unwrap_or_default()] }
    }

    /// Puts a gate's weights of states from that one on: the columns of a matrix from that one on. None if it has no such rows and columns.
    pub(super) fn put(&mut self, (gate, first_state): (usize, usize), weight: &Weight<'_>, column: usize) -> Option<()> {
        let states = weight.k / self.units;
        if !weight.k.is_multiple_of(self.units) || first_state + states > self.states || weight.n < column + self.units {
            return None;
        }
        let (of_state, width) = (self.units.div_ceil(GATE_SLAB), self.gates * UNITS);
        for unit in 0..self.units {
            let j = gate * UNITS + unit % UNITS;
            for row in 0..weight.k {
                // Every state begins a slab.
                let (state, k) = (first_state + row / self.units, row % self.units);
                let chunk = ((k % GATE_SLAB) / 8) ^ (j % 8);
                let slab = (unit / UNITS * self.states + state) * of_state + k / GATE_SLAB;
                let place = slab * width * GATE_SLAB + j * GATE_SLAB + chunk * 8 + k % 8;
                self.packed[2 * place..][..2].copy_from_slice(&(self.rounded)(weight.at(row, column + unit)).to_le_bytes());
            }
        }
        Some(())
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.packed
    }
}

/// The nearest number of eight significant bits; of two the even one.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        // Whatever was in its lower half, it stays one.
        return (bits >> 16) as u16 | 0x40;
    }
    let (kept, rest) = (bits >> 16, bits & 0xffff);
    let up = rest > 0x8000 || (rest == 0x8000 && kept % 2 == 1);
    // From the largest number up is infinity, as the bits are ordered.
    (kept + u32::from(up)) as u16
}

/// The nearest number of f16; of two the even one.
fn to_f16(value: f32) -> u16 {
    /// The least number with all its digits, as a float.
    const NORMAL: u32 = 0x3880_0000;
    /// By how much exponents count from further below in a float.
    const BIASES: u32 = (127 - 15) << 10;
    const INFINITY: u32 = 0x7c00;
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    let magnitude = value.abs().to_bits();
    if value.is_nan() {
        return sign | 0x7e00;
    }
    if magnitude < NORMAL {
        // Numbers of a float beside a half are as far apart as the least ones of f16: adding rounds.
        return sign | ((value.abs() + 0.5).to_bits() - 0.5_f32.to_bits()) as u16;
    }
    let (kept, rest) = (magnitude >> 13, magnitude & 0x1fff);
    let up = rest > 0x1000 || (rest == 0x1000 && kept % 2 == 1);
    sign | (kept + u32::from(up) - BIASES).min(INFINITY) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(k: usize, n: usize, transposed: bool) -> (Tensor, Vec<f32>) {
        let values: Vec<f32> = (0..k * n).map(|at| at as f32).collect();
        (Tensor::from_f32("w", &if transposed { [n, k] } else { [k, n] }, &values), values)
    }

    #[test]
    fn panels_in_floats_are_columns_of_64_and_padded_with_zeros() {
        let (tensor, values) = numbered(3, 70, false);
        let packed = Weight::new(&tensor, &values, false, 2.0).expect("a matrix").packed(Arithmetic::F32);
        let floats: Vec<f32> = packed.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!((floats.len(), packed_bytes(Arithmetic::F32, 3, 70)), (2 * 16 * 64, Some(packed.len())));
        assert_eq!(floats[2 * 64 + 5], 2.0 * (2.0 * 70.0 + 5.0));
        assert_eq!(floats[(16 + 1) * 64 + 3], 2.0 * (70.0 + 67.0));
        assert_eq!(floats[(16 + 1) * 64 + 6], 0.0);
        assert_eq!(floats[3 * 64], 0.0);
    }

    #[test]
    fn f16_has_the_slabs_of_bf16() {
        let (tensor, values) = numbered(40, 70, false);
        let weight = Weight::new(&tensor, &values, false, 0.5).expect("a matrix");
        let [f16, bf16] = [Arithmetic::F16, Arithmetic::Bf16].map(|arithmetic| weight.packed(arithmetic));
        assert_eq!(packed_bytes(Arithmetic::F16, 40, 70), Some(f16.len()));
        let halves = |bytes: &[u8]| bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half)).collect::<Vec<_>>();
        let (f16, bf16) = (halves(&f16), halves(&bf16));
        assert_eq!(f16.len(), bf16.len());
        for (f16, bf16) in f16.into_iter().zip(bf16) {
            let value = f32::from_bits(u32::from(bf16) << 16);
            // Both have numbers up to 127 in halves; larger ones are at least as near in f16.
            assert!(value > 127.0 || f16 == to_f16(value), "{value} is {f16:#x}");
        }
    }

    #[test]
    fn slabs_in_bf16_are_column_after_column() {
        let (tensor, values) = numbered(40, 3, true);
        let packed = Weight::new(&tensor, &values, true, 1.0).expect("a matrix").packed(Arithmetic::Bf16);
        let at = |place: usize| f32::from_bits(u32::from(u16::from_le_bytes([packed[2 * place], packed[2 * place + 1]])) << 16);
        assert_eq!((packed.len(), packed_bytes(Arithmetic::Bf16, 40, 3)), (2 * 64 * 64, Some(packed.len())));
        assert_eq!(packed_bytes(Arithmetic::Bf16, usize::MAX, 3), None);
        assert_eq!(at(9), 9.0);
        assert_eq!(at(2 * 32 + 9), 89.0);
        assert_eq!(at(2048 + 2 * 32 + 4), 2.0 * 40.0 + 36.0);
        assert_eq!(at(2048 + 8), 0.0, "beyond the depth are zeros");
    }

    #[test]
    fn slabs_for_warpgroups_are_swizzled() {
        let (tensor, values) = numbered(70, 130, false);
        let weight = Weight::new(&tensor, &values, false, 1.0).expect("a matrix");
        for (arithmetic, rounded) in [(Arithmetic::WideF16, to_f16 as fn(f32) -> u16), (Arithmetic::WideBf16, to_bf16)] {
            let packed = weight.packed(arithmetic);
            assert_eq!((packed.len(), packed_bytes(arithmetic, 70, 130)), (2 * 128 * 192, Some(packed.len())));
            let halves: Vec<u16> = packed.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half)).collect();
            // Row 69 of column 79: in the second panel the second slab, there column 15, whose first chunk is the last.
            assert_eq!(halves[(2 + 1) * 4096 + 15 * 64 + 7 * 8 + 5], rounded(69.0 * 130.0 + 79.0));
            assert_eq!(halves[(2 + 1) * 4096 + 15 * 64 + 7 * 8 + 6], 0, "beyond the depth are zeros");
            assert_eq!(halves[4 * 4096 + 64 + 8 + 1], rounded(130.0 + 129.0));
            assert_eq!(halves[4 * 4096 + 2 * 64 + 2 * 8], 0, "and beyond the columns");
        }
    }

    #[test]
    fn slabs_in_tf32_are_column_after_column() {
        let (tensor, values) = numbered(20, 70, false);
        let packed = Weight::new(&tensor, &values, false, 1.0).expect("a matrix").packed(Arithmetic::Tf32);
        let floats: Vec<f32> = packed.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!((floats.len(), packed_bytes(Arithmetic::Tf32, 20, 70)), (2 * 32 * 64, Some(packed.len())));
        assert_eq!(floats[5 * 16 + 3], 3.0 * 70.0 + 5.0);
        assert_eq!(floats[1024 + 5 * 16 + 3], 19.0 * 70.0 + 5.0);
        assert_eq!(floats[2 * 1024 + 2 * 16 + 1], 70.0 + 66.0);
        assert_eq!(floats[1024 + 4], 0.0, "beyond the depth are zeros");
        assert_eq!(floats[2 * 1024 + 6 * 16], 0.0, "and beyond the columns");
    }

    #[test]
    fn tf32_rounds_to_nearest_and_ties_away_from_zero() {
        for (bits, rounded) in [
            (0x3f80_1000, 0x3f80_2000),
            (0xbf80_1000, 0xbf80_2000),
            (0x3f80_0fff, 0x3f80_0000),
            (0x3f80_3000, 0x3f80_4000),
            (0x7f7f_ffff, 0x7f80_0000),
            (0xff80_0000, 0xff80_0000),
            (0x7f80_0001, 0x7fff_e000),
            (0xffff_ffff, 0x7fff_e000),
        ] {
            assert_eq!(to_tf32(f32::from_bits(bits)), rounded, "{bits:#x}");
        }
    }

    #[test]
    fn f16_rounds_to_nearest_and_ties_to_even() {
        let least = 2.0_f32.powi(-24);
        for (value, bits) in [
            (1.0 + 0.5 / 1024.0, 0x3c00),
            (1.0 + 0.501 / 1024.0, 0x3c01),
            (-1.0 - 1.5 / 1024.0, 0xbc02),
            (65504.0, 0x7bff),
            (65519.0, 0x7bff),
            (65520.0, 0x7c00),
            (-f32::MAX, 0xfc00),
            (f32::INFINITY, 0x7c00),
            (2.0_f32.powi(-14) - 0.5 * least, 0x0400),
            (2.5 * least, 0x0002),
            (-3.5 * least, 0x8004),
            (0.5 * least, 0x0000),
            (0.501 * least, 0x0001),
            (-1e-45, 0x8000),
        ] {
            assert_eq!(to_f16(value), bits, "{value}");
        }
        assert_eq!([f32::NAN, f32::from_bits(0x7f80_0001)].map(|value| to_f16(value) & 0x7fff), [0x7e00; 2]);
    }

    #[test]
    fn bf16_rounds_to_nearest_and_ties_to_even() {
        assert_eq!(to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert_eq!(to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(to_bf16(f32::MAX), 0x7f80);
        assert!(f32::from_bits(u32::from(to_bf16(f32::from_bits(0x7f80_0001))) << 16).is_nan());
    }
}

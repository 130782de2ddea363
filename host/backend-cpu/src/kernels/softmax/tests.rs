//! Rows that pass by in pieces, against rows that are there as a whole, and both against 64 bits.

use proptest::prelude::*;

use super::*;
use crate::kernels::element::Element;
use crate::kernels::rows::{RowOp, Rows, Shape};

/// All magnitudes, equal ones among them, and some rows with what is no number.
fn row() -> impl Strategy<Value = Vec<f32>> {
    let element = |special: f32| {
        prop_oneof![
            40 => -8.0_f32..8.0,
            4 => (-3_i8..4).prop_map(f32::from),
            2 => -1e-6_f32..1e-6,
            1 => Just(-300.0),
            1 => Just(f32::NEG_INFINITY),
            1 => Just(special),
        ]
    };
    let rows = |special| prop::collection::vec(element(special), 1..900);
    prop_oneof![8 => rows(-0.0), 1 => rows(f32::NAN), 1 => rows(f32::INFINITY), 1 => rows(f32::MAX), 1 => prop::collection::vec(Just(f32::NEG_INFINITY), 1..300)]
}

fn whole_row(is_log: bool, level: Level, row: &[f32]) -> Vec<f32> {
    let op = if is_log { RowOp::LogSoftmax } else { RowOp::Softmax };
    let mut result = vec![0.0_f32; row.len()];
    let work = Rows {
        source: (row.as_ptr().cast(), 0),
        result: (result.as_mut_ptr().cast(), 0),
        second: (std::ptr::null_mut(), 0),
        rows: 1,
        shape: Shape { outer: 1, n: row.len(), k: 1, epsilon: 0.0 },
    };
    // SAFETY: the level is this processor's, the row and its result are there.
    unsafe { op.kernel(Element::F32, level).expect("there is one")(work) };
    result
}

/// As the row passes by, its last blocks first.
fn passing(is_log: bool, level: Level, row: &[f32], cuts: &[usize]) -> Vec<f32> {
    let softmax = Softmax::new(row.len(), is_log, level);
    let (mut elements, mut known) = (row.to_vec(), vec![7.0_f32; softmax.words()]);
    let mut blocks: Vec<usize> = cuts.iter().map(|cut| cut % softmax.blocks()).chain([0, softmax.blocks()]).collect();
    blocks.sort_unstable();
    for blocks in blocks.windows(2).rev() {
        let columns = softmax.columns(blocks[0]..blocks[1]);
        // SAFETY: the row has these columns, and there is room for what is known of it.
        unsafe { softmax.look((elements.as_mut_ptr().wrapping_add(columns.start), 0), 1, columns, known.as_mut_ptr()) };
    }
    // SAFETY: all blocks were looked at.
    let scale = unsafe { softmax.settle(known.as_mut_ptr()) };
    for elements in elements.chunks_mut(100) {
        softmax.apply(elements, scale);
    }
    elements
}

fn exact(is_log: bool, row: &[f32]) -> Vec<f64> {
    let wide = || row.iter().map(|x| f64::from(*x));
    let top = wide().fold(f64::NEG_INFINITY, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) });
    let sum: f64 = wide().map(|x| (x - top).exp()).sum();
    wide().map(|x| if is_log { x - top - sum.ln() } else { (x - top).exp() / sum }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_the_pieces_the_results_are_the_same_and_right((row, cuts) in (row(), prop::collection::vec(0_usize..100, 0..5))) {
        for is_log in [false, true] {
            let right = exact(is_log, &row);
            let mut before: Option<Vec<u32>> = None;
            for level in [Level::Portable, Level::Avx2, Level::Avx512].map(Level::up_to) {
                let got = whole_row(is_log, level, &row);
                for (got, right) in got.iter().zip(&right) {
                    let most = 1e-5 * right.abs() + if is_log { 2e-6 * f64::from(row.iter().fold(1.0, |most: f32, x| if x.is_finite() { most.max(x.abs()) } else { most })) } else { 1e-38 };
                    prop_assert!(f64::from(*got) == *right || (f64::from(*got) - right).abs() < most || (got.is_nan() && right.is_nan()), "{} and not {}", got, right);
                }
                let bits = |results: &[f32]| results.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect::<Vec<_>>();
                prop_assert_eq!(bits(&passing(is_log, level, &row, &cuts)), bits(&got), "{:?}", level);
                // Also the same on every processor.
                let got = bits(&got);
                prop_assert!(before.as_ref().is_none_or(|before| *before == got));
                before = Some(got);
            }
        }
    }

    /// What is taken for apart is in the order of the elements, whatever the function's last bits.
    #[test]
    fn results_that_are_apart_have_the_order_of_their_elements((mut row, near) in (row(), 0.0_f32..1e-5)) {
        row.extend(row.clone().iter().map(|x| x + near));
        let results = whole_row(false, Level::detect(), &row);
        for (a, x) in results.iter().zip(&row) {
            for (b, z) in results.iter().zip(&row) {
                prop_assert!(!are_apart(*a, *b) || (a < b) == (x < z), "{} and {}: {} and {}", x, z, a, b);
            }
        }
    }
}

#[test]
fn what_may_be_equal_is_not_apart() {
    let one = f32::from_bits(1);
    for (a, b) in
        [(0.25, 0.25), (0.25, 0.25 + f32::EPSILON), (0.0, 0.0), (0.0, one), (one, 5.0 * one), (f32::NAN, 1.0), (f32::NAN, f32::NAN)]
    {
        assert!(!are_apart(a, b) && !are_apart(b, a), "{a} and {b}");
    }
    for (a, b) in [(0.25, 0.26), (1.0, 1.0 - 1e-5), (0.0, 1e-40), (1e-39, 2e-39)] {
        assert!(are_apart(a, b) && are_apart(b, a), "{a} and {b}");
    }
}

//! Rows that pass by in pieces, against rows that are looked at as a whole.

use proptest::prelude::*;

use super::*;
use crate::kernels::element::Element;
use crate::kernels::rows::{Rows, Shape};

const OPS: [RowOp; 4] =
    [RowOp::ArgMax { last: false }, RowOp::ArgMax { last: true }, RowOp::TopK { largest: true }, RowOp::TopK { largest: false }];

/// Few numbers, so that there are ties, and all that compares oddly.
fn element() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => (-3_i8..4).prop_map(f32::from),
        1 => Just(-0.0),
        1 => Just(f32::INFINITY),
        1 => Just(f32::NEG_INFINITY),
        1 => Just(f32::NAN),
        6 => -1.0_f32..1.0,
    ]
}

/// What the kernel for whole rows finds: elements' bits, if it gives elements, and columns.
fn whole(op: RowOp, k: usize, level: Level, row: &[f32]) -> (Vec<u32>, Vec<i64>) {
    let (mut values, mut columns) = (vec![0.0_f32; k], vec![0_i64; k]);
    let is_single = matches!(op, RowOp::ArgMax { .. });
    let work = Rows {
        source: (row.as_ptr().cast(), 0),
        result: if is_single { (columns.as_mut_ptr().cast(), 0) } else { (values.as_mut_ptr().cast(), 0) },
        second: if is_single { (std::ptr::null_mut(), 0) } else { (columns.as_mut_ptr().cast(), 0) },
        rows: 1,
        shape: Shape { outer: 1, n: row.len(), k, epsilon: 0.0 },
    };
    // SAFETY: the level is this processor's, the row and its results are there.
    unsafe { op.kernel(Element::F32, level).expect("there is one")(work) };
    (if is_single { Vec::new() } else { values.iter().map(|value| value.to_bits()).collect() }, columns)
}

/// What is found of two rows, each of which passes in those stretches, by two threads of which the second begins at a stretch of its own.
fn passing(op: RowOp, k: usize, level: Level, rows: [&[f32]; 2], (cuts, second): (&[usize], usize)) -> Vec<(Vec<u32>, Vec<i64>)> {
    let keeper = Keeper::new(op, k, level).expect("it keeps that many");
    let n = rows[0].len();
    let both: Vec<f32> = rows.concat();
    let mut kept = vec![vec![7_u32; 2 * keeper.words()]; 2];
    kept.iter_mut().flat_map(|kept| kept.chunks_exact_mut(keeper.words())).for_each(Keeper::begin);
    for (number, cut) in cuts.windows(2).enumerate() {
        let into = &mut kept[usize::from(number >= second)];
        // SAFETY: the columns are the rows', and so much is kept of two rows.
        unsafe { keeper.pass((both.as_ptr().add(cut[0]).cast_mut(), n), 2, &(cut[0]..cut[1]), into.as_mut_ptr()) };
    }
    let [mut first, mut second] = kept.try_into().expect("two threads");
    let found = |(kept, later): (&mut [u32], &mut [u32])| {
        keeper.join(kept, later);
        let found: Vec<(f32, i64)> = keeper.found(kept).collect();
        let values = if matches!(op, RowOp::ArgMax { .. }) { Vec::new() } else { found.iter().map(|(value, _)| value.to_bits()).collect() };
        (values, found.iter().map(|(_, column)| *column).collect())
    };
    first.chunks_exact_mut(keeper.words()).zip(second.chunks_exact_mut(keeper.words())).map(found).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_the_pieces_the_same_is_found(
        row in prop::collection::vec(element(), 1..300),
        cuts in prop::collection::vec(0_usize..300, 0..6),
        (second, kept) in (0_usize..7, 1_usize..70),
    ) {
        let other: Vec<f32> = row.iter().rev().copied().collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % row.len()).chain([0, row.len()]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        for op in OPS {
            let k = if matches!(op, RowOp::ArgMax { .. }) { 1 } else { kept.min(row.len()).min(KEPT_MOST) };
            for level in [Level::Portable, Level::Avx2, Level::Avx512].map(Level::up_to) {
                let found = passing(op, k, level, [&row, &other], (&cuts, second));
                prop_assert_eq!(&found[0], &whole(op, k, level, &row), "{:?} of the first {}, {:?}", op, k, level);
                prop_assert_eq!(&found[1], &whole(op, k, level, &other), "{:?} of the first {}, {:?}", op, k, level);
            }
        }
    }
}

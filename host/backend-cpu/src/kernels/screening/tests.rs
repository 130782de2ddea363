//! Candidates against what is told of all elements at once.

use proptest::prelude::*;

use super::*;

/// What is told of an element: few values and bounds, so that many are alike, and what is no number.
fn told() -> impl Strategy<Value = (f32, f32)> {
    let value = prop_oneof![
        20 => (-8_i8..8).prop_map(f32::from),
        20 => -9.0_f32..9.0,
        1 => Just(f32::NAN),
        1 => Just(f32::INFINITY),
        4 => Just(f32::NEG_INFINITY),
    ];
    let bound = prop_oneof![8 => (0_u8..8).prop_map(|eighths| f32::from(eighths) / 8.0), 1 => Just(f32::INFINITY)];
    (value, bound)
}

/// Columns that could have the largest element, of those that are told in that way.
fn expected(told: &[(f32, f32)]) -> Vec<u32> {
    let least = told.iter().map(|(value, bound)| value - bound).fold(f32::NEG_INFINITY, f32::max);
    let is_candidate = |(value, bound): &(f32, f32)| reaches(*value, *bound, least);
    told.iter().enumerate().filter(|(_, told)| is_candidate(told)).map(|(column, _)| column as u32).collect()
}

/// What is left of two rows, which pass in those stretches; none of a row that is lost.
fn found(level: Level, rows: &[Vec<(f32, f32)>; 2], cuts: &[usize]) -> [Option<Vec<u32>>; 2] {
    let n = rows[0].len();
    let values: Vec<f32> = rows.iter().flatten().map(|(value, _)| *value).collect();
    // Both have the bounds of the first.
    let rests: Vec<f32> = rows[0].iter().map(|(_, bound)| *bound).collect();
    let zeros = vec![0.0; n];
    let bounds = Columns { norms: &zeros, residuals: &zeros, rests: &rests };
    let mut known = vec![0_u32; 2 * WORDS];
    known.chunks_exact_mut(WORDS).for_each(|words| Candidates::of(words).begin(Some(Reach { norm: 1.0, residual: 1.0 })));
    for cut in cuts.windows(2) {
        let elements = (values.as_ptr().wrapping_add(cut[0]), n);
        // SAFETY: the columns are the rows', so much is kept of two of them, and the level is the processor's.
        unsafe { look(level, Looking { elements, rows: 2, columns: (cut[0], cut[1]), bounds, known: known.as_mut_ptr() }) };
    }
    let mut known = known.chunks_exact_mut(WORDS);
    std::array::from_fn(|_| {
        let mut candidates = Candidates::of(known.next()?);
        if candidates.is_lost() {
            return None;
        }
        let least = candidates.least();
        candidates.sift(least, |column, value| (value, rests[column]));
        Some(candidates.columns().to_vec())
    })
}

proptest! {
    #[test]
    fn candidates_are_those_that_could_be_the_largest(
        rows in (1_usize..3000).prop_flat_map(|n| [prop::collection::vec(told(), n), prop::collection::vec(told(), n)]),
        cuts in prop::collection::btree_set(0_usize..3000, 0..6),
    ) {
        let [first, mut second] = rows;
        second.iter_mut().zip(&first).for_each(|(second, first)| second.1 = first.1);
        let (n, rows) = (first.len(), [first, second]);
        let cuts: Vec<usize> = std::iter::once(0).chain(cuts.into_iter().filter(|cut| (1..n).contains(cut))).chain([n]).collect();
        for level in Level::ALL.into_iter().filter(|level| *level <= Level::detect()) {
            for (row, found) in rows.iter().zip(found(level, &rows, &cuts)) {
                let expected = expected(row);
                match found {
                    Some(found) => prop_assert_eq!(found, expected),
                    // Before the last columns pass there may have been more.
                    None => prop_assert!(n > CANDIDATES, "{} of {n} columns are no reason to give a row up", expected.len()),
                }
            }
        }
    }

    #[test]
    fn what_is_cut_off_is_what_was_large(
        row in prop::collection::vec(prop_oneof![9 => -1.0_f32..1.0, 1 => -90.0_f32..90.0, 1 => Just(0.0)], 1..200),
    ) {
        for level in Level::ALL.into_iter().filter(|level| *level <= Level::detect()) {
            let mut cut_row = vec![7.0; row.len()];
            let apart = cut(level, &row, &mut cut_row);
            let mut whole = cut_row.clone();
            for (place, excess) in apart.each() {
                prop_assert_ne!(excess, 0.0);
                whole[place] += excess;
            }
            let error = whole.iter().zip(&row).map(|(whole, number)| (whole - number).abs()).fold(0.0, f32::max);
            prop_assert!(error <= 1e-5, "{}", error);
            // At most eight are, and then the others are alike.
            let mut magnitudes: Vec<f32> = row.iter().map(|number| number.abs()).collect();
            magnitudes.sort_unstable_by(|a, b| b.total_cmp(a));
            let ninth = magnitudes.get(APART).copied().unwrap_or_default();
            let largest = cut_row.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
            prop_assert!(largest <= ninth * LARGE && apart.each().count() <= APART);
        }
    }
}

#[test]
fn a_row_of_nothing_but_candidates_is_given_up() {
    let row = |n: usize| vec![(1.0, 0.5); n];
    for level in Level::ALL.into_iter().filter(|level| *level <= Level::detect()) {
        let kept = |n: usize| found(level, &[row(n), row(n)], &[0, n / 3, n]);
        assert!(kept(CANDIDATES).iter().flatten().all(|columns| columns.len() == CANDIDATES));
        assert_eq!(kept(CANDIDATES + 1), [None, None]);
    }
}

#[test]
fn a_row_whose_list_is_full_now_and_then_is_sifted() {
    // Each element is a candidate when it comes, and not any more when some more have.
    let row: Vec<(f32, f32)> = (0..4 * CANDIDATES).map(|at| (at as f32, 20.0)).collect();
    for level in Level::ALL.into_iter().filter(|level| *level <= Level::detect()) {
        for found in found(level, &[row.clone(), row.clone()], &[0, row.len()]) {
            assert_eq!(found, Some(expected(&row)));
        }
    }
}

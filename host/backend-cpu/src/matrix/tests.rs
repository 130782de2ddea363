//! Products against sums in 64 bits, and the promise of this module: a row's bits are the row's own.

use std::sync::atomic::AtomicU64;

#[cfg(target_arch = "x86_64")]
use super::Isa;
use super::{Form, Left, Product, Rounded, Sharing, Target};
use crate::level::{Kernels, Level};
use cellwright_cell_graph::typed::Precision;

/// Deterministic values that are not symmetric in anything.
pub(super) fn value(seed: usize) -> f32 {
    let mut state = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((state ^ (state >> 31)) >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
}

fn product(form: Form, ks: &[usize], n: usize, bias: bool) -> Product {
    let mut product = Product::new(form, Level::detect(), n);
    for (term, k) in ks.iter().enumerate() {
        product.push(*k, &|row, column| value(term * 1_000_003 + row * 4099 + column));
    }
    if bias {
        product.set_bias(&(0..n).map(|column| value(77_000_000 + column)).collect::<Vec<_>>());
    }
    product
}

/// How many different rows there are.
pub(super) const ROWS: usize = 600;

/// All rows of every term, and one more that is nobody's.
pub(super) fn pool(ks: &[usize]) -> Vec<Vec<f32>> {
    let rows = |(term, k): (usize, &usize)| (0..(ROWS + 1) * k).map(|at| value(term * 31 + 7919 * at)).collect();
    ks.iter().enumerate().map(rows).collect()
}

pub(super) fn run(product: &Product, ks: &[usize], pool: &[Vec<f32>], rows: &[usize], threads: usize) -> Vec<f32> {
    let gather = |(pool, k): (&Vec<f32>, &usize)| rows.iter().chain([&ROWS]).flat_map(|row| pool[row * k..][..*k].to_vec()).collect();
    let inputs: Vec<Vec<f32>> = pool.iter().zip(ks).map(gather).collect();
    run_inputs(product, ks, &inputs, rows.len(), threads)
}

/// `inputs` have a row more than `rows`.
pub(super) fn run_inputs(product: &Product, ks: &[usize], inputs: &[Vec<f32>], rows: usize, threads: usize) -> Vec<f32> {
    let lefts: Vec<Left> = inputs.iter().zip(ks).map(|(input, k)| Left::floats(input.as_ptr(), *k)).collect();
    run_lefts(product, &lefts, rows, threads)
}

/// `lefts` have a row more than `rows`, or are packed.
pub(super) fn run_lefts(product: &Product, lefts: &[Left], rows: usize, threads: usize) -> Vec<f32> {
    let y = vec![f32::NAN; (rows + 1) * product.n];
    run_onto(product, lefts, (rows, y), std::ptr::null(), threads)
}

/// The same with a result that has something in it already, or with pointers to what sums begin with. An even number of rows is computed from the last column on.
pub(super) fn run_onto(
    product: &Product,
    lefts: &[Left],
    (rows, mut y): (usize, Vec<f32>),
    begins: *const *const f32,
    threads: usize,
) -> Vec<f32> {
    let mut scratch = crate::memory::Lines::zeroed(product.scratch(rows) * size_of::<f32>());
    scratch.floats_mut().fill(f32::NAN);
    let taken = AtomicU64::new(0);
    for thread in 0..threads {
        let target = Target::rows(y.as_mut_ptr(), product.n).begun(begins);
        let units = product.share_of_rows(rows, Sharing { thread, threads, backwards: rows % 2 == 0, taken: &taken });
        // SAFETY: the buffers have a row more than `rows`, and threads run one after the other.
        unsafe { product.run(lefts, target, rows, units, scratch.floats_mut().as_mut_ptr()) };
    }
    y.truncate(rows * product.n);
    y
}

pub(super) fn forms(k: usize, n: usize) -> Vec<Form> {
    let mut forms = vec![Form::Plain];
    if k > 2 && n > 1 {
        forms.push(Form::Library);
    }
    #[cfg(target_arch = "x86_64")]
    {
        let found = Level::detect();
        forms.extend((found >= Level::Avx2).then_some(Form::Panels(Isa::Avx2)));
        forms.extend((found >= Level::Avx512).then_some(Form::Panels(Isa::Avx512)));
        forms.extend(Rounded::choose(Precision::F32, found, Kernels::Tiles).map(Form::Rounded));
    }
    forms
}

pub(super) const SHAPES: [(&[usize], usize); 14] = [
    (&[1], 1),
    (&[2], 3),
    (&[3], 2),
    (&[5, 7], 28),
    (&[16, 16], 64),
    (&[16], 33),
    (&[64], 65),
    (&[100], 10),
    (&[300, 41], 97),
    (&[513], 129),
    (&[1025], 63),
    (&[64, 700], 256),
    (&[1030, 3], 300),
    (&[2051], 513),
];

#[test]
fn products_are_right() {
    for (ks, n) in SHAPES {
        for form in forms(*ks.iter().min().unwrap(), n) {
            for bias in [false, true] {
                let product = product(form, ks, n, bias);
                let rows: Vec<usize> = (0..29).collect();
                let x = pool(ks);
                let y = run(&product, ks, &x, &rows, 1);
                for row in 0..rows.len() {
                    for column in 0..n {
                        let mut sum = if bias { f64::from(value(77_000_000 + column)) } else { 0.0 };
                        let mut magnitude = sum.abs();
                        for (term, k) in ks.iter().enumerate() {
                            for i in 0..*k {
                                let product = f64::from(x[term][row * k + i]) * f64::from(value(term * 1_000_003 + i * 4099 + column));
                                sum += product;
                                magnitude += product.abs();
                            }
                        }
                        let got = f64::from(y[row * n + column]);
                        // Rounding errors of a sum of so many terms in a row add up like a random walk; a wrong term is of another size.
                        let tolerance = 1e-5 + 1e-6 * magnitude;
                        assert!((got - sum).abs() < tolerance, "{form:?} {ks:?} × {n}, row {row}, column {column}: {got} instead of {sum}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_is_the_same_at_every_batch_size_up_to_600_and_for_every_number_of_threads() {
    for (ks, n) in SHAPES {
        for form in forms(*ks.iter().min().unwrap(), n) {
            let product = product(form, ks, n, true);
            let pool = pool(ks);
            let alone: Vec<Vec<u32>> =
                (0..ROWS).map(|row| run(&product, ks, &pool, &[row], 1).iter().map(|y| y.to_bits()).collect()).collect();
            // Without optimisation every size takes minutes.
            let large = cfg!(debug_assertions) || ks.iter().sum::<usize>() * n > 20_000;
            for size in (1..=ROWS).filter(|size| !large || *size < 40 || size % 37 == 0 || size % 64 < 2) {
                // Another composition at every size, so that rows move through all positions.
                let rows: Vec<usize> = (0..size).map(|at| (at * 7 + size * 13) % ROWS).collect();
                let y = run(&product, ks, &pool, &rows, 1 + size % 3);
                for (at, row) in rows.iter().enumerate() {
                    let got: Vec<u32> = y[at * n..(at + 1) * n].iter().map(|y| y.to_bits()).collect();
                    assert!(got == alone[*row], "{form:?} {ks:?} × {n}: row {row} at {at} of {size}");
                }
            }
        }
    }
}

/// Forms of every precision.
fn all_forms(k: usize, n: usize) -> Vec<Form> {
    let rounded = [Precision::Bf16, Precision::Int8].into_iter().flat_map(|precision| {
        let levels = Level::ALL.into_iter().filter(|level| *level <= Level::detect());
        levels.filter_map(move |level| Rounded::choose(precision, level, Kernels::Best))
    });
    forms(k, n).into_iter().chain(rounded.map(Form::Rounded)).collect()
}

/// Wherever these lie, at whatever multiple of four.
#[test]
fn sums_begin_with_rows_wherever_they_are() {
    for (ks, n) in SHAPES {
        for (form, in_halves) in all_forms(*ks.iter().min().unwrap(), n).into_iter().flat_map(|form| [(form, false), (form, true)]) {
            let is_rounded = matches!(form, Form::Rounded(_));
            if is_rounded && in_halves {
                continue;
            }
            let mut product = Product::new(form, Level::detect(), n);
            if in_halves {
                product.round_to_halves();
            }
            ks.iter().enumerate().for_each(|(term, k)| product.push(*k, &|row, column| value(term * 1_000_003 + row * 4099 + column)));
            let x = pool(ks);
            let lefts: Vec<Left> = x.iter().zip(ks).map(|(x, k)| Left::floats(x.as_ptr(), *k)).collect();
            for (rows, threads) in [(1, 1), (2, 2), (29, 2), (70, 1), (301, 3)] {
                let plain = run_lefts(&product, &lefts, rows, 1);
                product.begin_with_rows();
                let begins: Vec<Vec<f32>> = (0..rows).map(|row| (0..n + row % 3).map(|at| value(row * 911 + at) * 3.0).collect()).collect();
                let begin = |row: usize| &begins[row][row % 3..];
                let there: Vec<f32> = (0..rows).flat_map(|row| begin(row).to_vec()).chain(vec![f32::NAN; n]).collect();
                let pointers: Vec<*const f32> = (0..rows).map(|row| begin(row).as_ptr()).collect();
                let onto = run_onto(&product, &lefts, (rows, there), std::ptr::null(), threads);
                let apart = run_onto(&product, &lefts, (rows, vec![f32::NAN; (rows + 1) * n]), pointers.as_ptr(), threads);
                product.onto_rows = false;
                assert!(onto == apart, "{form:?} {ks:?} × {n}, {rows} rows, {threads} threads");
                for (at, (sum, plain)) in apart.iter().zip(&plain).enumerate() {
                    let expected = plain + begin(at / n)[at % n];
                    assert!((sum - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{form:?} {ks:?} × {n}: {sum} instead of {expected}");
                }
            }
        }
    }
}

#[test]
fn rows_are_multiplied_wherever_they_lie() {
    for (ks, n) in SHAPES {
        for form in all_forms(*ks.iter().min().unwrap(), n) {
            let mut product = Product::new(form, Level::detect(), n);
            ks.iter().enumerate().for_each(|(term, k)| product.push(*k, &|row, column| value(term * 1_000_003 + row * 4099 + column)));
            if !product.takes_pointers() {
                continue;
            }
            let x = pool(ks);
            let even: Vec<Left> = x.iter().zip(ks).map(|(x, k)| Left::floats(x.as_ptr(), *k)).collect();
            for (rows, threads) in [(1, 1), (2, 2), (29, 2), (70, 1), (301, 3)] {
                // Rows of their own, backwards in memory or not, of which no two are equally far apart.
                let own: Vec<Vec<Vec<f32>>> = x
                    .iter()
                    .zip(ks)
                    .map(|(x, k)| {
                        let row = |row: usize| [vec![f32::NAN; row % 5], x[row * k..][..*k].to_vec()].concat();
                        let mut own: Vec<Vec<f32>> = (0..rows).rev().map(row).collect();
                        own.reverse();
                        own
                    })
                    .collect();
                let pointers = own.iter().map(|own| own.iter().enumerate().map(|(row, own)| own[row % 5..].as_ptr()).collect());
                let pointers: Vec<Vec<*const f32>> = pointers.collect();
                let pointed: Vec<Left> = pointers.iter().map(|pointers| Left::pointed(pointers.as_ptr())).collect();
                let right = run_lefts(&product, &even, rows, 1);
                assert!(run_lefts(&product, &pointed, rows, threads) == right, "{form:?} {ks:?} × {n}, {rows} rows, {threads} threads");
            }
        }
    }
}

#[test]
fn what_a_weight_takes_is_known_before_it_is_packed() {
    for (ks, n) in SHAPES {
        for k in ks {
            for form in all_forms(*k, n) {
                let mut product = Product::new(form, Level::detect(), n);
                product.push(*k, &|row, column| value(row + column));
                assert_eq!(form.packed_bytes(*k, n), product.bytes(), "{form:?} {k} × {n}");
            }
        }
    }
}

#[test]
fn threads_share_all_columns_once() {
    for n in [1, 31, 32, 33, 63, 64, 65, 4096] {
        for form in forms(8, n) {
            let product = Product::new(form, Level::detect(), n);
            for threads in 1..=5 {
                let mut next = 0;
                for thread in 0..threads {
                    let share = product.share(thread, threads);
                    assert_eq!(share.start, next);
                    next = share.end;
                }
                assert_eq!(next, product.units());
            }
        }
    }
}

#[test]
fn the_form_follows_the_processor_and_the_option() {
    #[cfg(target_arch = "x86_64")]
    {
        assert_eq!(Form::choose(Level::Avx512, Kernels::Best, 1, 1), Form::Panels(Isa::Avx512));
        assert_eq!(Form::choose(Level::Avx2, Kernels::Best, 100, 100), Form::Panels(Isa::Avx2));
    }
    assert_eq!(Form::choose(Level::Portable, Kernels::Best, 100, 100), Form::Library);
    assert_eq!(Form::choose(Level::Avx512, Kernels::Library, 100, 100), Form::Library);
    assert_eq!(Form::choose(Level::Portable, Kernels::Best, 2, 100), Form::Plain);
    assert_eq!(Form::choose(Level::Portable, Kernels::Best, 100, 1), Form::Plain);
}

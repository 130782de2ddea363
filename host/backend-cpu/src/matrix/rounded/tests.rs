//! Products of rounded numbers against exact sums of the same, and every kernel's promises.

#[cfg(target_arch = "x86_64")]
use super::super::Isa;
use super::super::tests::{ROWS, SHAPES, pool, run, run_inputs, run_lefts, value};
use super::super::{Form, Left, PANEL, Product};
use super::numbers::{Float, to_bf16};
use super::{Kernel, Rounded, Width};
use crate::level::Level;
use crate::memory::Lines;

/// Every kernel that this processor has.
fn kernels(width: Width) -> Vec<Rounded> {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "there is one"))]
    let mut kernels = if width == Width::Digits { vec![] } else { vec![Kernel::Plain] };
    #[cfg(target_arch = "x86_64")]
    {
        let level = Level::detect();
        let dot = match width {
            Width::Digits => None,
            Width::Half => Some(Level::Avx512Bf16),
            Width::Byte => Some(Level::Avx512Vnni),
        };
        kernels.extend(dot.is_some_and(|dot| level >= dot).then_some(Kernel::Dot));
        kernels.extend((level >= Level::Amx).then_some(Kernel::Tiles));
    }
    kernels.into_iter().map(|kernel| Rounded { width, kernel }).collect()
}

/// For every width.
fn all_kernels() -> impl Iterator<Item = Rounded> {
    [Width::Digits, Width::Half, Width::Byte].into_iter().flat_map(kernels)
}

fn weight(term: usize, row: usize, column: usize) -> f32 {
    value(term * 1_000_003 + row * 4099 + column)
}

fn product(rounded: Rounded, ks: &[usize], n: usize) -> Product {
    product_at(Level::detect(), rounded, ks, n)
}

fn product_at(level: Level, rounded: Rounded, ks: &[usize], n: usize) -> Product {
    let mut product = Product::new(Form::Rounded(rounded), level, n);
    ks.iter().enumerate().for_each(|(term, k)| product.push(*k, &|row, column| weight(term, row, column)));
    product.set_bias(&(0..n).map(|column| value(77_000_000 + column)).collect::<Vec<_>>());
    product
}

fn steps(values: &[f32]) -> (f32, f32) {
    super::numbers::steps(super::numbers::largest(Float::all(values)), 127.0)
}

/// What is multiplied.
fn rounded(width: Width, values: &[f32]) -> Vec<f64> {
    match width {
        Width::Digits => values.iter().map(|value| f64::from(*value)).collect(),
        Width::Half => values.iter().map(|value| f64::from(f32::from_bits(u32::from(to_bf16(*value)) << 16))).collect(),
        Width::Byte => {
            let (inverse, scale) = steps(values);
            values.iter().map(|value| f64::from((value * inverse).round_ties_even()) * f64::from(scale)).collect()
        }
    }
}

#[test]
fn products_are_those_of_rounded_numbers() {
    for (ks, n) in SHAPES {
        for rounded_to in all_kernels() {
            let width = rounded_to.width;
            // So many rows that tiles of every height are seen.
            for count in [1, 5, 16, 29, 51, 75] {
                let rows: Vec<usize> = (0..count).collect();
                let x = pool(ks);
                let y = run(&product(rounded_to, ks, n), ks, &x, &rows, 1);
                for column in 0..n {
                    let columns: Vec<Vec<f64>> = ks
                        .iter()
                        .enumerate()
                        .map(|(term, k)| rounded(width, &(0..*k).map(|row| weight(term, row, column)).collect::<Vec<_>>()))
                        .collect();
                    for row in &rows {
                        let mut sum = f64::from(value(77_000_000 + column));
                        let mut magnitude = sum.abs();
                        for (term, k) in ks.iter().enumerate() {
                            for (x, w) in rounded(width, &x[term][row * k..][..*k]).iter().zip(&columns[term]) {
                                sum += x * w;
                                magnitude += (x * w).abs();
                            }
                        }
                        let got = f64::from(y[row * n + column]);
                        let tolerance = 1e-6 + 1e-6 * magnitude;
                        assert!(
                            (got - sum).abs() < tolerance,
                            "{rounded_to:?} {ks:?} × {n}, row {row} of {count}, column {column}: {got} instead of {sum}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_is_the_same_at_every_batch_size_and_for_every_number_of_threads() {
    for (ks, n) in SHAPES {
        for rounded in all_kernels() {
            let product = product(rounded, ks, n);
            let pool = pool(ks);
            let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
            let alone: Vec<Vec<u32>> = (0..ROWS).map(|row| bits(&run(&product, ks, &pool, &[row], 1))).collect();
            let large = cfg!(debug_assertions) || ks.iter().sum::<usize>() * n > 20_000;
            for size in (1..=ROWS).filter(|size| !large || *size < 40 || size % 83 == 0 || size % 128 < 2) {
                let rows: Vec<usize> = (0..size).map(|at| (at * 7 + size * 13) % ROWS).collect();
                let y = run(&product, ks, &pool, &rows, 1 + size % 3);
                for (at, row) in rows.iter().enumerate() {
                    assert!(bits(&y[at * n..][..n]) == alone[*row], "{rounded:?} {ks:?} × {n}: row {row} at {at} of {size}");
                }
            }
        }
    }
}

#[test]
fn without_a_bias_sums_begin_at_zero() {
    for (ks, n) in SHAPES {
        for rounded in all_kernels() {
            let mut product = product(rounded, ks, n);
            product.set_bias(&vec![0.0; n]);
            let x = pool(ks);
            for rows in [vec![0], (0..7).collect::<Vec<_>>()] {
                let zeros = run(&product, ks, &x, &rows, 1);
                let bias = product.bias.take();
                assert!(run(&product, ks, &x, &rows, 1) == zeros, "{rounded:?} {ks:?} × {n}");
                product.bias = bias;
            }
        }
    }
}

/// Of the second shape's rows some are more than a block has, of every kernel, and blocks end with tiles that are not of the largest height.
#[test]
fn rows_that_are_packed_beforehand_give_the_same_bits() {
    let bits = |y: Vec<f32>| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
    for (ks, n, counts) in [(&[300, 41][..], 97, &[1, 5, 40, 75][..]), (&[2100, 3], 65, &[193, 545])] {
        for rounded in all_kernels() {
            let product = product(rounded, ks, n);
            assert!(counts != [193, 545] || super::block_rows(rounded, &product) < 545, "{rounded:?}");
            for rows in counts.iter().copied() {
                let inputs: Vec<Vec<f32>> = ks.iter().map(|k| (0..(rows + 1) * k).map(|at| value(at * 3 + k)).collect()).collect();
                let expected = bits(run_inputs(&product, ks, &inputs, rows, 1));
                for (which, threads) in [([true, true], 1), ([true, false], 3), ([false, true], 2)] {
                    let mut memory = Vec::new();
                    let lefts: Vec<Left> = (0..ks.len())
                        .map(|term| {
                            let (input, k) = (&inputs[term], ks[term]);
                            if !which[term] {
                                return Left::floats(input.as_ptr(), k);
                            }
                            // Room for more rows than there are, as a frame may have.
                            let packing = product.packing(term).expect("it packs");
                            let mut lines = Lines::zeroed(packing.bytes(rows + 1));
                            lines.bytes_mut().fill(0x5a);
                            let packed = packing.rows_at(lines.pointer_mut(), rows + 1);
                            // SAFETY: every row is there, and memory for it.
                            (0..rows).rev().for_each(|row| unsafe { packing.pack(input[row * k..].as_ptr().cast(), packed, (row, rows)) });
                            memory.push(lines);
                            Left::packed(packed)
                        })
                        .collect();
                    let y = bits(run_lefts(&product, &lefts, rows, threads));
                    assert!(y == expected, "{rounded:?} {ks:?} × {n}, {rows} rows, packed: {which:?}, {threads} threads");
                }
            }
        }
    }
}

#[test]
fn every_kernel_sums_integers_to_the_same_bits() {
    for (ks, n) in SHAPES {
        let rows: Vec<usize> = (0..40).collect();
        let x = pool(ks);
        let bits = |rounded| run(&product(rounded, ks, n), ks, &x, &rows, 1).iter().map(|y| y.to_bits()).collect::<Vec<_>>();
        let plain = bits(Rounded { width: Width::Byte, kernel: Kernel::Plain });
        for rounded in kernels(Width::Byte) {
            assert!(bits(rounded) == plain, "{rounded:?} {ks:?} × {n}");
        }
    }
}

#[test]
fn loops_give_the_same_bits_on_every_level() {
    let levels: Vec<Level> = Level::ALL.into_iter().filter(|level| *level <= Level::detect()).collect();
    for (ks, n) in SHAPES {
        let rows: Vec<usize> = (0..7).collect();
        let x = pool(ks);
        for rounded in all_kernels() {
            let bits = |level| {
                let product = product_at(level, rounded, ks, n);
                run(&product, ks, &x, &rows, 1).iter().map(|y| y.to_bits()).collect::<Vec<_>>()
            };
            let portable = bits(Level::Portable);
            for level in &levels {
                assert!(bits(*level) == portable, "{rounded:?} {ks:?} × {n}: {level:?}");
            }
        }
    }
}

#[test]
fn integers_at_their_ends_do_not_overflow() {
    let (k, n) = (super::BYTES_DEPTH_MAX, PANEL);
    for rounded in kernels(Width::Byte) {
        let mut product = Product::new(Form::Rounded(rounded), Level::detect(), n);
        product.push(k, &|_, column| if column % 2 == 0 { 0.25 } else { -0.25 });
        let x = vec![vec![2.0_f32; k * 2]];
        let y = run_inputs(&product, &[k], &x, 1, 1);
        for (column, y) in y.iter().enumerate() {
            let exact = if column % 2 == 0 { 32768.0 } else { -32768.0 };
            assert!((y - exact).abs() < 0.05, "{rounded:?}: {y} instead of {exact}");
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let (k, n) = (40, 33);
    for rounded in all_kernels() {
        let product = product(rounded, &[k], n);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![(0..4 * k).map(|at| value(at + 5)).collect::<Vec<_>>()];
            let clean = run_inputs(&product, &[k], &x, 3, 1);
            x[0][k + 7] = bad;
            let y = run_inputs(&product, &[k], &x, 3, 1);
            assert!(y[n..2 * n].iter().all(|y| !y.is_finite()), "{rounded:?} of {bad}");
            assert!(y[..n] == clean[..n] && y[2 * n..] == clean[2 * n..], "{rounded:?} of {bad}");
            let all_are = |is: fn(f32) -> bool| y[n..2 * n].iter().all(|y| is(*y));
            assert!(
                if bad.is_nan() || rounded.width == Width::Byte { all_are(f32::is_nan) } else { all_are(f32::is_infinite) },
                "{rounded:?} of {bad}"
            );
        }
    }
}

/// Wherever they are: in any tile of rows, and behind what is summed at once. Of two, one may be the other's opposite.
#[test]
fn infinities_meet_the_signs_of_weights() {
    let n = 33;
    for rounded in [Width::Digits, Width::Half].into_iter().flat_map(kernels) {
        for (k, at) in [(70, [69, 69]), (70, [69, 2]), (40_000, [39_999, 39_999]), (40_000, [3, 39_998])] {
            let mut product = Product::new(Form::Rounded(rounded), Level::detect(), n);
            let w = |row: usize, column: usize| match at.iter().position(|at| *at == row) {
                Some(0) => [0.7, -1.0, 0.0][column % 3],
                Some(_) => [-0.3, 0.5, 0.9, -0.1][column % 4],
                None => weight(0, row, column),
            };
            product.push(k, &w);
            let rows = if k < 100 { 60 } else { 2 };
            for infinite in [0, rows / 3, rows - 1] {
                let mut x: Vec<f32> = (0..(rows + 1) * k).map(|at| value(at + 9)).collect();
                at.iter().for_each(|at| x[infinite * k + at] = f32::NEG_INFINITY);
                let y = run_inputs(&product, &[k], std::slice::from_ref(&x), rows, 1);
                for (column, y) in y[infinite * n..][..n].iter().enumerate() {
                    let expected = f32::NEG_INFINITY * w(at[0], column) + f32::NEG_INFINITY * w(at[1], column);
                    assert!(*y == expected || y.is_nan() && expected.is_nan(), "{rounded:?} {k}, row {infinite}, column {column}: {y}");
                }
                assert!(y.iter().enumerate().all(|(at, y)| at / n == infinite || y.is_finite()), "{rounded:?}");
            }
        }
    }
}

#[test]
fn rows_longer_than_a_block_are_multiplied() {
    let halves = [Width::Digits, Width::Half].into_iter().flat_map(kernels).map(|rounded| (rounded, vec![262_145]));
    let bytes = kernels(Width::Byte).into_iter().map(|rounded| (rounded, vec![super::BYTES_DEPTH_MAX; 8]));
    for (rounded, ks) in halves.chain(bytes) {
        let exact = ks.iter().sum::<usize>() as f32 * 0.5;
        let mut product = Product::new(Form::Rounded(rounded), Level::detect(), 1);
        ks.iter().for_each(|k| product.push(*k, &|_, _| 0.5));
        let x: Vec<Vec<f32>> = ks.iter().map(|k| (0..3 * k).map(|at| (at / k + 1) as f32).collect()).collect();
        let y = run_inputs(&product, &ks, &x, 2, 1);
        for (y, exact) in y.iter().zip([exact, 2.0 * exact]) {
            assert!((y - exact).abs() < 1e-5 * exact, "{rounded:?}: {y} instead of {exact}");
        }
    }
}

#[test]
fn nothing_of_what_is_not_finite_is_rounded() {
    for rounded in kernels(Width::Byte) {
        let empty = if rounded.is_offset() { 0x80 } else { 0 };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut packed = [7_u8; 64];
            let scale = rounded.round(&[1.0, bad, -2.0], &mut packed, rounded.is_offset());
            assert!(scale.is_nan() && packed == [empty; 64], "{rounded:?} of {bad}: {scale}, {packed:?}");
        }
    }
}

#[test]
fn scales_that_multiplied_would_overflow_or_underflow_do_not() {
    for rounded in [Width::Digits, Width::Byte].into_iter().flat_map(kernels) {
        let run = |k: usize, w: &dyn Fn(usize) -> f32, x: &dyn Fn(usize) -> f32| {
            let mut product = Product::new(Form::Rounded(rounded), Level::detect(), 40);
            product.push(k, &|row, _| w(row));
            run_inputs(&product, &[k], &[(0..2 * k).map(|at| x(at % k)).collect()], 1, 1)
        };
        let even = |at: usize| if at.is_multiple_of(2) { 3e38 } else { 0.0 };
        let zeros = run(64, &even, &|at| even(at + 1));
        assert!(zeros.iter().all(|y| *y == 0.0), "{rounded:?}: {zeros:?}");
        let small = run(1024, &|_| 1e-20, &|_| 1e-20);
        assert!(small.iter().all(|y| (y / 1.024e-37 - 1.0).abs() < 1e-3), "{rounded:?}: {small:?}");
        if rounded.width == Width::Digits {
            let large = run(1024, &|_| 1e-3, &|_| 1e34);
            assert!(large.iter().all(|y| (y / 1.024e34 - 1.0).abs() < 1e-6), "{rounded:?}: {large:?}");
            let heavy = run(2, &|row| [1e38, 1.0][row], &|at| [1e-30, 0.0][at]);
            assert!(heavy.iter().all(|y| (y / 1e8 - 1.0).abs() < 1e-6), "{rounded:?}: {heavy:?}");
        }
    }
}

#[test]
fn rounding_is_to_nearest_and_to_even() {
    let bits = |value: u32| to_bf16(f32::from_bits(value));
    assert_eq!([bits(0x3f80_7fff), bits(0x3f80_8000), bits(0x3f80_8001), bits(0x3f81_8000)], [0x3f80, 0x3f80, 0x3f81, 0x3f82]);
    assert_eq!([to_bf16(f32::MAX), to_bf16(f32::NEG_INFINITY), to_bf16(-0.0)], [0x7f80, 0xff80, 0x8000]);
    for nan in [0x7f80_0001, 0xffff_ffff, 0x7fc0_0000] {
        assert!(f32::from_bits(u32::from(bits(nan)) << 16).is_nan());
    }
    assert_eq!(steps(&[0.0, 1e-38]), (0.0, 0.0));
    assert_eq!(steps(&[-2.0, 1.0]), (63.5, 2.0 / 127.0));
    assert!(steps(&[1.0, f32::NAN]).1.is_nan());
}

/// Sums of a product of random numbers against exact ones: the mean of the squared errors.
#[cfg(target_arch = "x86_64")]
fn squared_error(form: Form, (k, n): (usize, usize), rows: usize) -> f64 {
    let mut product = Product::new(form, Level::detect(), n);
    product.push(k, &|row, column| weight(0, row, column));
    let x: Vec<f32> = (0..(rows + 1) * k).map(|at| value(31 * at)).collect();
    let y = run_inputs(&product, &[k], std::slice::from_ref(&x), rows, 1);
    let error = |at: usize| {
        let (row, column) = (at / n, at % n);
        let exact: f64 = (0..k).map(|i| f64::from(x[row * k + i]) * f64::from(weight(0, i, column))).sum();
        (f64::from(y[at]) - exact).powi(2)
    };
    (0..rows * n).map(error).sum::<f64>() / (rows * n) as f64
}

/// That six products are enough, and their digits taken in the right order: of as many numbers as here sums of floats are less exact, whose every sum is rounded.
#[cfg(target_arch = "x86_64")]
#[test]
fn digits_are_no_less_exact_than_floats() {
    for rounded in kernels(Width::Digits) {
        for k in [100, 1000] {
            let [digits, floats] = [Form::Rounded(rounded), Form::Panels(Isa::Avx512)].map(|form| squared_error(form, (k, 64), 20));
            assert!(digits <= floats, "{k} elements: {digits:e}, {floats:e} by vectors");
        }
    }
}

/// Rows in units of their own: what numbers contribute is what counts, however large they and their weights are.
#[cfg(target_arch = "x86_64")]
#[test]
fn digits_are_as_exact_in_any_units() {
    let (k, n, rows) = (200, 40, 3);
    let unit = |at: usize| [1.0, 3e8, 1e-7, 20.0, 1e-12, 5e11, 0.0][at % 7];
    for rounded in kernels(Width::Digits) {
        let w = |row: usize, column: usize| weight(0, row, column) * unit(row) * unit(column + 2);
        let mut product = Product::new(Form::Rounded(rounded), Level::detect(), n);
        product.push(k, &w);
        let x: Vec<f32> = (0..(rows + 1) * k).map(|at| value(31 * at) / if unit(at % k) == 0.0 { 1e-30 } else { unit(at % k) }).collect();
        let y = run_inputs(&product, &[k], std::slice::from_ref(&x), rows, 1);
        for (at, y) in y.iter().enumerate() {
            let (row, column) = (at / n, at % n);
            let terms = (0..k).map(|at| f64::from(x[row * k + at]) * f64::from(w(at, column)));
            let (exact, magnitude) = terms.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()));
            assert!((f64::from(*y) - exact).abs() <= 1e-6 * magnitude, "row {row}, column {column}: {y} instead of {exact}");
        }
    }
}

/// Whatever the numbers: what is rounded of them, and left out of their products, is a part of the largest of their row and of their column.
#[cfg(target_arch = "x86_64")]
#[test]
fn digits_err_by_a_part_of_the_largest_product() {
    // Of both numbers half a step, and what is rounded of factors and steps; and the second and third digits of both, all at their largest.
    const PART: f64 = 4.8e-7;
    let (n, rows) = (40, 5);
    let steep = |at: usize| value(3 * at + 1) * 10_f32.powi(value(5 * at).abs().mul_add(-7.0, 2.0) as i32);
    for rounded in kernels(Width::Digits) {
        for k in [1, 3, 64, 200] {
            let w = |row: usize, column: usize| steep(row * 41 + column);
            let mut product = Product::new(Form::Rounded(rounded), Level::detect(), n);
            product.push(k, &w);
            let x: Vec<f32> = (0..(rows + 1) * k).map(|at| steep(7 * at + 3)).collect();
            let y = run_inputs(&product, &[k], std::slice::from_ref(&x), rows, 1);
            for (at, y) in y.iter().enumerate() {
                let (row, column) = (at / n, at % n);
                let of_row = &x[row * k..][..k];
                let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0_f32, |most, value| most.max(value.abs()));
                let most = f64::from(largest(&mut of_row.iter().copied())) * f64::from(largest(&mut (0..k).map(|row| w(row, column))));
                let exact: f64 = of_row.iter().enumerate().map(|(at, x)| f64::from(*x) * f64::from(w(at, column))).sum();
                let error = (f64::from(*y) - exact).abs();
                assert!(
                    error <= PART * most * k as f64 + 2.4e-7 * exact.abs(),
                    "{k} elements, row {row}, column {column}: {error:e} of {most:e}"
                );
            }
        }
    }
}

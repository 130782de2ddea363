//! What a screen says of elements, against the elements.

use super::super::super::tests::{run_inputs, value};
use super::*;
use cellwright_cell_graph::generate::Rng;

/// Rows of a product, of whatever kinds may be hard to tell anything of.
fn rows(k: usize) -> Vec<Vec<f32>> {
    let plain = |seed: usize| (0..k).map(move |at| value(seed * 7907 + at * 31));
    let mut rows: Vec<Vec<f32>> = (0..4).map(|seed| plain(seed).collect()).collect();
    // Like a hidden state: most are small.
    rows.extend((4..8).map(|seed| plain(seed).map(|value| value * value * value).collect()));
    // One number, or a few, are much larger than the others, at the ends too.
    for (seed, places) in [(8, vec![3]), (9, vec![0, k - 1]), (10, (0..9).collect()), (11, (0..8).collect())] {
        let mut row: Vec<f32> = plain(seed).map(|value| value * 0.01).collect();
        places.into_iter().for_each(|place| row[place] = 5.0 + place as f32);
        rows.push(row);
    }
    // Few numbers are not zero; none is; all are alike.
    rows.push((0..k).map(|at| if at % 13 == 5 { 0.7 } else { 0.0 }).collect());
    rows.push((0..k).map(|at| if at == 17 { -3.0 } else { 0.0 }).collect());
    rows.push(vec![0.0; k]);
    rows.push(vec![-0.25; k]);
    // One number is much larger than what could be squared.
    rows.push((0..k).map(|at| if at == 4 { 0.3 } else { 1e-37 * value(at) }).collect());
    // Large, and as small as anything is told of.
    rows.extend([1e15, 1e-11].map(|scale| plain(12).map(|value| value * scale).collect()));
    rows
}

/// A column of which nothing can be told, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unknown {
    None,
    Infinite,
    NoNumber,
    Large,
    InfiniteBias,
    NoBias,
    LargeBias,
}

const UNKNOWN: [Unknown; 7] =
    [Unknown::None, Unknown::Infinite, Unknown::NoNumber, Unknown::Large, Unknown::InfiniteBias, Unknown::NoBias, Unknown::LargeBias];

/// A product of one of these forms and its screen, with columns of which some are much larger than others, some hardly there, and some masked.
fn screened(form: Form, (k, n): (usize, usize), unknown: Unknown) -> Option<(Product, Screen)> {
    let level = Level::detect();
    let mut product = Product::new(form, level, n);
    let scale = |column: usize| match column {
        9 => 0.0,
        10 | 40 => 1e-35,
        41 => 1e-38,
        42 => 1e-42,
        _ if column.is_multiple_of(7) => 10.0,
        _ if column % 7 == 1 => 1e-3,
        _ => 1.0,
    };
    product.push(k, &|row, column| match (row, column, unknown) {
        (5, 20, Unknown::Infinite) => f32::INFINITY,
        (6, 21, Unknown::NoNumber) => f32::NAN,
        (7, 22, Unknown::Large) => 1e33,
        (8, 23, _) => -1000.0,
        _ => value(row * 4099 + column) * scale(column),
    });
    let bias = |column: usize| match (column, unknown) {
        (30, Unknown::InfiniteBias) => f32::INFINITY,
        (32, Unknown::NoBias) => f32::NAN,
        (33, Unknown::LargeBias) => 3e38,
        (31, _) => f32::NEG_INFINITY,
        (34, _) => -1e9,
        (35, _) => f32::MIN,
        (36, _) => -1e38,
        (37, _) => 9e36,
        (40..43, _) => [0.0, 1e-38, -1e-42][column - 40],
        _ => value(77_000_000 + column),
    };
    product.set_bias(&(0..n).map(bias).collect::<Vec<_>>());
    let how = (level, Kernels::Best);
    let bytes = Screen::bytes_for(&product, how)?;
    let screen = Screen::new(&product, how)?;
    assert_eq!(bytes.next_multiple_of(64), screen.bytes().next_multiple_of(64), "what it takes is known before");
    Some((product, screen))
}

fn forms() -> Vec<Form> {
    let level = Level::detect();
    let halves = Rounded::choose(Precision::Bf16, level, Kernels::Best).map(Form::Rounded);
    [Form::choose(level, Kernels::Best, 64, 2048)].into_iter().chain(halves).collect()
}

#[test]
fn elements_are_within_what_is_known_of_them() {
    for form in forms() {
        let shapes = [(32, 2048), (67, 2101), (301, 2100), (1024, 2080), (33, 2048), (64, 2050), (65, 2049)];
        for (shape, unknown) in shapes.into_iter().zip(UNKNOWN) {
            let Some((product, screen)) = screened(form, shape, unknown) else {
                assert!(Level::detect() < Level::Avx512Vnni, "{unknown:?}: there is a screen where integers are fast");
                return;
            };
            check(&product, &screen, shape);
        }
    }
}

/// A row, and one more that is nobody's.
fn twice(row: &[f32]) -> Vec<Vec<f32>> {
    vec![[row, row].concat()]
}

/// What integers of eight bits say of a prepared row's elements.
fn coarse_elements(screen: &Screen, cut: &[f32], apart: &Apart) -> Vec<f32> {
    let mut coarse = run_inputs(&screen.coarse, &[screen.k], &twice(cut), 1, 1);
    for (at, columns) in coarse.chunks_mut(PANEL).enumerate() {
        screen.add_apart(columns, at * PANEL, apart);
    }
    coarse
}

/// Numbers of magnitudes between powers of ten, sometimes all near one end, or halfway between steps of the largest.
fn numbers(rng: &mut Rng, k: usize, (least, most): (i32, i32)) -> Vec<f32> {
    let kind = rng.below(4);
    let number = |at: usize| {
        let exponent = match kind {
            0 => least as f32 + (most - least) as f32 * rng.float().abs(),
            1 if at % 31 == 7 => most as f32,
            1 => least as f32,
            _ => most as f32,
        };
        let size = if kind == 3 && at > 0 { ((rng.below(127) as f32) + 0.5) / 127.0 } else { rng.float() };
        (10.0_f64.powf(f64::from(exponent)) * f64::from(size)) as f32
    };
    (0..k).map(number).collect()
}

#[test]
fn whatever_numbers_are_multiplied_elements_are_within_bounds() {
    let level = Level::detect();
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        for form in forms() {
            let k = [32, 33, 63, 64, 65, 127, 300, 1025][rng.below(8) as usize];
            let n = 2048 + rng.below(70) as usize;
            // Large columns leave little to be told of rows, and so come seldom.
            let ranges = [
                (-3, 1),
                (-44, -30),
                (-44, -42),
                (-20, if seed % 4 == 1 { 20 } else { 2 }),
                (-2, 0),
                (-12, if seed % 4 == 3 { 28 } else { 3 }),
            ];
            let columns: Vec<Vec<f32>> = (0..n).map(|column| numbers(&mut rng, k, ranges[column % ranges.len()])).collect();
            let mut product = Product::new(form, level, n);
            product.push(k, &|row, column| columns[column][row]);
            let biases = [f32::NEG_INFINITY, 9e36, f32::MIN, -9e36, 1e-41, -1e-44, 1e20, 0.0, 0.5, -3.0];
            if seed % 3 != 0 {
                product.set_bias(&(0..n).map(|_| biases[rng.below(10) as usize] * (1.0 - rng.float().abs() / 2.0)).collect::<Vec<_>>());
            }
            let Some(screen) = Screen::new(&product, (level, Kernels::Best)) else {
                assert!(level < Level::Avx512Vnni, "there is a screen where integers are fast");
                return;
            };
            let mut told = 0;
            for number in 0..12 {
                let range = [(-12, 1), (-2, 1), (-44, 1), (-2, 0), (-12, -9)][rng.below(5) as usize];
                let row = match number % 3 {
                    // As like a column as can be: its products have one sign.
                    0 => {
                        let column = &columns[rng.below(n as u64) as usize];
                        let most = column.iter().fold(f32::MIN_POSITIVE, |most, number| most.max(number.abs()));
                        column.iter().map(|number| number / most).collect()
                    }
                    _ => numbers(&mut rng, k, range),
                };
                told += usize::from(within_bounds(&product, &screen, &row, seed));
            }
            assert!(told >= 8 || seed % 2 == 1, "seed {seed}, {form:?}, {k} x {n}: something is told of {told} rows of 12");
        }
    }
}

/// Checks a row; whether something is told of it.
fn within_bounds(product: &Product, screen: &Screen, row: &[f32], seed: u64) -> bool {
    let mut rounded = vec![0.0; row.len()];
    let operand = screen.operand(row, &mut rounded).to_vec();
    let mut cut = vec![0.0; row.len()];
    let (apart, Told::Within(reach)) = screen.prepare(&operand, &mut cut) else { return false };
    let elements = run_inputs(product, &[row.len()], &twice(row), 1, 1);
    let coarse = coarse_elements(screen, &cut, &apart);
    let (columns, fine_columns, fine_reach) = (screen.columns(), screen.fine_columns(), screen.fine_reach(reach));
    for (column, element) in elements.into_iter().enumerate() {
        let known =
            [(coarse[column], columns.bound(column, reach)), (screen.tell(&operand, column), fine_columns.bound(column, fine_reach))];
        for (value, bound) in known {
            // As they are compared.
            let is_outside = element > value + bound || element < value - bound;
            assert!(!is_outside, "seed {seed}, {:?}, column {column}: {element:e} is not {value:e} ± {bound:e}", product.form);
        }
    }
    true
}

/// That of a row of zeros those are the first and the last column with the largest element.
fn check_zeros(product: &Product, row: &[f32], [first, last]: [u32; 2], k: usize) {
    assert!(row.iter().all(|number| *number == 0.0));
    let elements = run_inputs(product, &[k], &twice(row), 1, 1);
    let largest = elements.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let found = [elements.iter().position(|element| *element == largest), elements.iter().rposition(|element| *element == largest)];
    assert_eq!(found, [first, last].map(|column| Some(column as usize)));
}

fn check(product: &Product, screen: &Screen, (k, n): (usize, usize)) {
    let (rows, mut told) = (rows(k), 0);
    for (number, row) in rows.iter().enumerate() {
        let mut rounded = vec![0.0; k];
        let operand = screen.operand(row, &mut rounded).to_vec();
        let mut cut = vec![0.0; k];
        let (apart, known) = screen.prepare(&operand, &mut cut);
        let reach = match known {
            Told::Within(reach) => reach,
            Told::Bias(columns) => {
                check_zeros(product, row, columns, k);
                told += 1;
                continue;
            }
            // Zero times what is no number is none.
            Told::Nothing if row.iter().all(|number| *number == 0.0) => continue,
            Told::Nothing => panic!("nothing is told of row {number}"),
        };
        let elements = run_inputs(product, &[k], &twice(row), 1, 1);
        let coarse = coarse_elements(screen, &cut, &apart);
        let fine_reach = screen.fine_reach(reach);
        let (mut bounds, mut fine_bounds) = (Vec::new(), Vec::new());
        for column in 0..n {
            let of = |value: f32, bound: f32| {
                let (value, bound, element) = (f64::from(value), f64::from(bound), f64::from(elements[column]));
                assert!(
                    bound == f64::INFINITY || value == element || (value - element).abs() <= bound,
                    "{:?}, {k} x {n}, row {number}, column {column}: {element:e} is not {value:e} ± {bound:e}",
                    product.form
                );
                bound
            };
            bounds.push(of(coarse[column], screen.columns().bound(column, reach)));
            fine_bounds.push(of(screen.tell(&operand, column), screen.fine_columns().bound(column, fine_reach)));
        }
        let median = |mut values: Vec<f64>| {
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let spread = median(elements.iter().map(|element| f64::from(element.abs())).collect());
        let (bound, fine_bound) = (median(bounds), median(fine_bounds));
        // Or it would rule nothing out.
        told += usize::from(bound < spread && fine_bound < spread / 30.0);
    }
    assert!(told + 3 >= rows.len(), "{:?}, {k} x {n}: of {told} rows of {} something is told", product.form, rows.len());
}

#[test]
fn of_rows_without_numbers_nothing_is_told() {
    let k = 64;
    for form in forms() {
        let Some((_, screen)) = screened(form, (k, 2048), Unknown::None) else { continue };
        for (place, bad) in [(0, f32::NAN), (63, f32::INFINITY), (5, f32::NEG_INFINITY), (9, 3e38), (11, 1e31)] {
            let mut row: Vec<f32> = (0..k).map(value).collect();
            row[place] = bad;
            let mut rounded = vec![0.0; k];
            let operand = screen.operand(&row, &mut rounded);
            assert!(matches!(screen.prepare(operand, &mut vec![0.0; k]).1, Told::Nothing), "{bad}");
        }
        let tiny: Vec<f32> = (0..k).map(|at| value(at) * 1e-30).collect();
        assert!(matches!(screen.prepare(&tiny, &mut vec![0.0; k]).1, Told::Nothing), "squares of such numbers are lost");
    }
}

#[test]
fn products_that_gain_nothing_have_none() {
    let how = (Level::detect(), Kernels::Best);
    let product = |form: Form, ks: &[usize], n: usize| {
        let mut product = Product::new(form, how.0, n);
        ks.iter().for_each(|k| product.push(*k, &|row, column| value(row * 31 + column)));
        product
    };
    let form = Form::choose(how.0, how.1, 64, 2048);
    let is_faster = how.0 >= Level::Avx512Vnni;
    assert_eq!(Screen::new(&product(form, &[64], 2048), how).is_some(), is_faster);
    assert!(Screen::new(&product(form, &[64], 2047), how).is_none(), "few columns");
    assert!(Screen::new(&product(form, &[31], 2048), how).is_none(), "short ones");
    assert!(Screen::new(&product(form, &[64, 64], 2048), how).is_none(), "two terms");
    assert!(Screen::new(&product(Form::Library, &[64], 2048), (how.0, Kernels::Library)).is_none(), "the library's");
    for level in [Level::Portable, Level::Avx2, Level::Avx512] {
        assert!(Screen::new(&product(form, &[64], 2048), (level, how.1)).is_none(), "{level:?}: integers are as slow");
    }
    let with_unknown = |count: usize| {
        let mut product = product(form, &[64], 2048);
        product.set_bias(&(0..2048).map(|column| if column < count { f32::NAN } else { 0.5 }).collect::<Vec<_>>());
        Screen::new(&product, how).is_some()
    };
    assert_eq!([1, 2].map(with_unknown), [is_faster, false], "two such columns and the largest are more than are computed of a row");
    let mut masked = product(form, &[64], 2048);
    masked.set_bias(&(0..2048).map(|column| if column % 3 == 1 { f32::MIN } else { 0.5 }).collect::<Vec<_>>());
    assert_eq!(Screen::new(&masked, how).is_some(), is_faster, "what is masked can be told");
    let bytes = Rounded::choose(Precision::Int8, how.0, how.1).expect("there is always one");
    assert!(Screen::new(&product(Form::Rounded(bytes), &[64], 2048), how).is_none(), "integers already");
}

#[test]
fn after_a_task_that_gained_nothing_some_do_without() {
    let Some((_, screen)) = screened(forms()[0], (64, 2048), Unknown::None) else { return };
    assert!(screen.is_worth_it() && screen.is_worth_it());
    screen.learn(1, 4);
    assert!(screen.is_worth_it(), "one row of four is no reason");
    screen.learn(2, 4);
    assert_eq!((0..200).filter(|_| !screen.is_worth_it()).count(), REST as usize);
}

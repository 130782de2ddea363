//! The operators' arithmetic, as their definitions put it.

use std::cmp::Ordering;

use cellwright_cell_graph::Datatype;
use cellwright_cell_graph::typed::{BinaryKind, ReduceKind, UnaryKind};

use super::Elements;

pub(super) fn unary(kind: UnaryKind, x: &Elements, datatype: Datatype) -> Elements {
    match x {
        Elements::Floats(x) => Elements::Floats(x.iter().map(|x| float(kind, *x)).collect()),
        Elements::Integers(x) => Elements::Integers(x.iter().map(|x| integer(kind, *x, datatype)).collect()),
    }
}

fn float(kind: UnaryKind, x: f64) -> f64 {
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    match kind {
        UnaryKind::Neg => -x,
        UnaryKind::Sigmoid => sigmoid,
        UnaryKind::Tanh => x.tanh(),
        UnaryKind::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        UnaryKind::Gelu => limit(x, 0.5 * x * erfc(-x / std::f64::consts::SQRT_2)),
        UnaryKind::GeluTanh => limit(x, 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())),
        UnaryKind::Silu => limit(x, x * sigmoid),
        UnaryKind::Exp => x.exp(),
        UnaryKind::Log => x.ln(),
        UnaryKind::Sqrt => x.sqrt(),
        UnaryKind::Not => panic!("Not takes BOOL"),
    }
}

/// These functions tend to zero where their factors are −∞ and 0.
fn limit(x: f64, y: f64) -> f64 {
    if x == f64::NEG_INFINITY { 0.0 } else { y }
}

/// 1 − erf(x): the power series near zero, Lentz's continued fraction beyond.
fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let a = x.abs();
    let tail = if a < 2.5 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-18 * sum.abs() {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        1.0 - sum * std::f64::consts::FRAC_2_SQRT_PI
    } else if a > 40.0 {
        0.0
    } else {
        let fraction = (1..=120).rev().fold(a, |fraction, n| a + f64::from(n) / 2.0 / fraction);
        (-a * a).exp() / fraction / std::f64::consts::PI.sqrt()
    };
    if x < 0.0 { 2.0 - tail } else { tail }
}

fn integer(kind: UnaryKind, x: i64, datatype: Datatype) -> i64 {
    match kind {
        UnaryKind::Neg => wrap(x.wrapping_neg(), datatype),
        UnaryKind::Relu => x.max(0),
        UnaryKind::Not => i64::from(x == 0),
        other => panic!("{other:?} does not take {datatype}"),
    }
}

/// What is left of an integer in its datatype.
fn wrap(x: i64, datatype: Datatype) -> i64 {
    match datatype {
        Datatype::Bool => i64::from(x != 0),
        Datatype::Uint8 => i64::from(x as u8),
        Datatype::Int32 => i64::from(x as i32),
        _ => x,
    }
}

/// `datatype` is the operands'.
pub(super) fn binary(kind: BinaryKind, a: &Elements, b: &Elements, datatype: Datatype) -> Elements {
    match (a, b) {
        (Elements::Floats(a), Elements::Floats(b)) => binary_floats(kind, a, b),
        (Elements::Integers(a), Elements::Integers(b)) => {
            Elements::Integers(a.iter().zip(b).map(|(a, b)| binary_integer(kind, *a, *b, datatype)).collect())
        }
        _ => panic!("operands have one datatype"),
    }
}

fn binary_floats(kind: BinaryKind, a: &[f64], b: &[f64]) -> Elements {
    let pairs = a.iter().copied().zip(b.iter().copied());
    let number = |of: fn(f64, f64) -> f64| Elements::Floats(pairs.clone().map(|(a, b)| of(a, b)).collect());
    let truth = |of: fn(&f64, &f64) -> bool| Elements::Integers(pairs.clone().map(|(a, b)| i64::from(of(&a, &b))).collect());
    match kind {
        BinaryKind::Add => number(|a, b| a + b),
        BinaryKind::Sub => number(|a, b| a - b),
        BinaryKind::Mul => number(|a, b| a * b),
        BinaryKind::Div => number(|a, b| a / b),
        BinaryKind::Pow => number(f64::powf),
        BinaryKind::Equal => truth(|a, b| a == b),
        BinaryKind::Greater => truth(|a, b| a > b),
        BinaryKind::Less => truth(|a, b| a < b),
        BinaryKind::And | BinaryKind::Or => panic!("{kind:?} takes BOOL"),
    }
}

fn binary_integer(kind: BinaryKind, a: i64, b: i64, datatype: Datatype) -> i64 {
    match kind {
        BinaryKind::Add => wrap(a.wrapping_add(b), datatype),
        BinaryKind::Sub => wrap(a.wrapping_sub(b), datatype),
        BinaryKind::Mul => wrap(a.wrapping_mul(b), datatype),
        BinaryKind::Div => wrap(if b == 0 { 0 } else { a.wrapping_div(b) }, datatype),
        BinaryKind::Pow => panic!("Pow takes floats"),
        BinaryKind::Equal => i64::from(a == b),
        BinaryKind::Greater => i64::from(a > b),
        BinaryKind::Less => i64::from(a < b),
        BinaryKind::And => a & b,
        BinaryKind::Or => a | b,
    }
}

pub(super) fn choose(condition: &Elements, then: &Elements, otherwise: &Elements) -> Elements {
    let condition = condition.integers();
    match (then, otherwise) {
        (Elements::Floats(then), Elements::Floats(otherwise)) => Elements::Floats(choose_each(condition, then, otherwise)),
        (Elements::Integers(then), Elements::Integers(otherwise)) => Elements::Integers(choose_each(condition, then, otherwise)),
        _ => panic!("branches have one datatype"),
    }
}

fn choose_each<T: Copy>(condition: &[i64], then: &[T], otherwise: &[T]) -> Vec<T> {
    condition
        .iter()
        .zip(then)
        .zip(otherwise)
        .map(|((condition, then), otherwise)| if *condition != 0 { *then } else { *otherwise })
        .collect()
}

pub(super) fn cast(x: &Elements, to: Datatype) -> Elements {
    match (x, to) {
        (Elements::Floats(x), Datatype::Fp32) => Elements::Floats(x.clone()),
        // What an integer becomes has 24 bits.
        (Elements::Integers(x), Datatype::Fp32) => Elements::Floats(x.iter().map(|x| f64::from(*x as f32)).collect()),
        (Elements::Integers(x), _) => Elements::Integers(x.iter().map(|x| wrap(*x, to)).collect()),
        (Elements::Floats(x), _) => Elements::Integers(x.iter().map(|x| float_to_integer(*x, to)).collect()),
    }
}

fn float_to_integer(x: f64, to: Datatype) -> i64 {
    match to {
        Datatype::Bool => i64::from(x != 0.0),
        Datatype::Uint8 => i64::from(x as u8),
        Datatype::Int32 => i64::from(x as i32),
        _ => x as i64,
    }
}

pub(super) fn reduce(kind: ReduceKind, x: &Elements, datatype: Datatype) -> Elements {
    match x {
        Elements::Floats(x) => Elements::Floats(vec![match kind {
            ReduceKind::Sum => x.iter().sum(),
            ReduceKind::Mean => x.iter().sum::<f64>() / x.len() as f64,
            ReduceKind::Max => *x.iter().max_by(|a, b| float_order(**a, **b)).expect("not empty"),
        }]),
        Elements::Integers(x) => {
            let sum = wrap(x.iter().fold(0, |sum: i64, x| sum.wrapping_add(*x)), datatype);
            Elements::Integers(vec![match kind {
                ReduceKind::Sum => sum,
                ReduceKind::Mean => sum / x.len() as i64,
                ReduceKind::Max => *x.iter().max().expect("not empty"),
            }])
        }
    }
}

/// NaN is the largest; both zeros are equal.
fn float_order(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn order(x: &Elements, a: usize, b: usize) -> Ordering {
    match x {
        Elements::Floats(x) => float_order(x[a], x[b]),
        Elements::Integers(x) => x[a].cmp(&x[b]),
    }
}

pub(super) fn arg_max(x: &Elements, last: bool) -> Elements {
    let positions = 0..x.len();
    let best = positions.reduce(|best, at| match order(x, at, best) {
        Ordering::Greater => at,
        Ordering::Equal if last => at,
        _ => best,
    });
    Elements::Integers(vec![best.expect("not empty") as i64])
}

/// The positions of the first k, sorted; ties by position.
pub(super) fn top_k(x: &Elements, k: usize, largest: bool) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..x.len()).collect();
    positions.sort_by(|a, b| if largest { order(x, *b, *a) } else { order(x, *a, *b) });
    positions.truncate(k);
    positions
}

pub(super) fn softmax(x: &[f64]) -> Vec<f64> {
    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = x.iter().map(|x| (x - most).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.iter().map(|e| e / sum).collect()
}

pub(super) fn log_softmax(x: &[f64]) -> Vec<f64> {
    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log = x.iter().map(|x| (x - most).exp()).sum::<f64>().ln();
    x.iter().map(|x| x - most - log).collect()
}

pub(super) fn standardize(x: &[f64], epsilon: f64) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / x.len() as f64;
    x.iter().map(|x| (x - mean) / (variance + epsilon).sqrt()).collect()
}

pub(super) fn root_mean_square(x: &[f64], epsilon: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().map(|x| x / (mean + epsilon).sqrt()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_has_its_table_values() {
        for (x, y) in [
            (0.0, 1.0),
            (0.5, 0.479_500_122_186_953_5),
            (1.0, 0.157_299_207_050_285_13),
            (2.0, 4.677_734_981_047_266e-3),
            (3.0, 2.209_049_699_858_544e-5),
        ] {
            assert!((erfc(x) - y).abs() < 1e-15 * (1.0 + 1.0 / y), "erfc({x}) = {}", erfc(x));
            assert!((erfc(-x) - (2.0 - y)).abs() < 1e-14);
        }
        assert_eq!((erfc(f64::INFINITY), erfc(f64::NEG_INFINITY)), (0.0, 2.0));
    }

    #[test]
    fn ties_and_nan_have_an_order() {
        let x = Elements::Floats(vec![1.0, 3.0, f64::NAN, 3.0, f64::NAN, -0.0, 0.0]);
        assert_eq!(arg_max(&x, false), Elements::Integers(vec![2]));
        assert_eq!(arg_max(&x, true), Elements::Integers(vec![4]));
        assert_eq!(top_k(&x, 4, true), [2, 4, 1, 3]);
        assert_eq!(top_k(&x, 4, false), [5, 6, 0, 1]);
    }
}

//! Every function, as the kernels of this processor compute it, against 64 bits, over floats of all magnitudes.

use cellwright_cell_graph::typed::UnaryKind;

use super::*;
use crate::kernels::element::{Element, ElementOp, Kernel};
use crate::level::Level;

/// Floats that are looked at: every so many of all there are.
const EVERY: usize = 6_007;
/// How many are computed at once.
const AT_ONCE: usize = 2048;
/// Threads that look at every float there is.
const THREADS: usize = 2;

type Function = (UnaryKind, fn(f64) -> f64);

const FUNCTIONS: [Function; 6] = [
    (UnaryKind::Exp, f64::exp),
    (UnaryKind::Sigmoid, |x| {
        let e = (-x.abs()).exp();
        (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
    }),
    (UnaryKind::Tanh, f64::tanh),
    (UnaryKind::Silu, |x| {
        let e = (-x.abs()).exp();
        (if x < 0.0 { x * e } else { x }) / (1.0 + e)
    }),
    (UnaryKind::Gelu, |x| x * if x < 0.0 { tail(-x) } else { 1.0 - tail(x) }),
    (UnaryKind::GeluTanh, |x| {
        let u = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        let e = (-u.abs()).exp();
        x * if x < 0.0 { e } else { 1.0 } / (1.0 + e)
    }),
];

/// How likely a normal variable is to exceed a ≥ 0: a series near zero, a continued fraction elsewhere.
fn tail(a: f64) -> f64 {
    let density = (-0.5 * a * a).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if density == 0.0 {
        return 0.0;
    }
    if a < 2.5 {
        let (mut term, mut sum) = (a, a);
        for k in 1..60 {
            term *= a * a / f64::from(2 * k + 1);
            // What follows is less than this.
            if term < 1e-18 * sum {
                break;
            }
            sum += term;
        }
        return 0.5 - density * sum;
    }
    let depth = if a < 6.0 { 200 } else { 40 };
    density / (1..depth).rev().fold(a, |below, k| a + f64::from(k) / below)
}

/// The error of a result in units of the last place of the exact one.
fn error(got: f32, right: f64) -> f64 {
    let nearest = (right as f32).abs();
    if nearest.is_infinite() {
        return if f64::from(got) == f64::from(right as f32) { 0.0 } else { f64::INFINITY };
    }
    let unit = f64::from(f32::from_bits(nearest.to_bits() + 1).min(f32::MAX)) - f64::from(nearest);
    (f64::from(got) - right).abs() / unit.max(f64::from(f32::from_bits(1)))
}

/// The largest error, and where it is, of every so many floats from one number on, as their bits have it, and their negatives.
fn worst(kernel: Kernel, exact: fn(f64) -> f64, bits: std::ops::Range<u32>, every: usize) -> (f64, f32) {
    let (mut worst, mut bits) = ((0.0, 0.0), bits.step_by(every).peekable());
    let (mut x, mut y) = ([0.0_f32; AT_ONCE], [0.0_f32; AT_ONCE]);
    while bits.peek().is_some() {
        // What is left of the last floats is looked at again.
        for (pair, bits) in x.chunks_exact_mut(2).zip(&mut bits) {
            (pair[0], pair[1]) = (f32::from_bits(bits), -f32::from_bits(bits));
        }
        // SAFETY: the kernel is this processor's, both have so many floats.
        unsafe { kernel(y.as_mut_ptr().cast(), 0, [(x.as_ptr().cast(), 0); 3], 1, AT_ONCE) };
        for (x, got) in x.iter().zip(&y) {
            let error = error(*got, exact(f64::from(*x)));
            if error > worst.0 || error.is_nan() {
                worst = (error, *x);
            }
        }
    }
    worst
}

/// Over all finite floats, parts of which several threads look at.
fn errors_are_small(every: usize, threads: usize) {
    for (kind, exact) in FUNCTIONS {
        let kernel = ElementOp::Unary(kind).kernel(Element::F32, Level::detect()).expect("there is one");
        // Parts of equal magnitudes take unequal times.
        let (parts, next) = (64, std::sync::atomic::AtomicU32::new(0));
        let look = || {
            let mut all = (0.0, 0.0);
            loop {
                let part = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if part >= parts {
                    return all;
                }
                let edge = |part: u32| (u64::from(f32::INFINITY.to_bits()) * u64::from(part) / u64::from(parts)) as u32;
                let found = worst(kernel, exact, edge(part)..edge(part + 1), every);
                if found.0 > all.0 || found.0.is_nan() {
                    all = found;
                }
            }
        };
        let found: Vec<(f64, f32)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(look)).collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
        });
        // Of silu, which rounds once more.
        let most = if kind == UnaryKind::Silu { 3.5 } else { 3.0 };
        for (error, at) in found {
            assert!(error < most, "{kind:?}: {error} units at {at}");
        }
    }
}

#[test]
fn errors_are_less_than_three_units_in_the_last_place() {
    errors_are_small(EVERY, 1);
}

/// `cargo test --release -p cellwright-backend-cpu --lib -- --ignored every_float`
#[test]
#[ignore = "every float there is; run it after a change of these functions"]
fn errors_are_less_than_three_units_for_every_float() {
    errors_are_small(1, THREADS);
}

#[test]
fn edges() {
    let inf = f32::INFINITY;
    for (name, f, cases) in [
        (
            "exp",
            exp as fn(f32) -> f32,
            vec![(0.0, 1.0), (-0.0, 1.0), (inf, inf), (-inf, 0.0), (89.0, inf), (-200.0, 0.0), (1e-40, 1.0), (-103.0, 1.4e-45)],
        ),
        (
            "sigmoid",
            sigmoid,
            vec![(0.0, 0.5), (-0.0, 0.5), (inf, 1.0), (-inf, 0.0), (200.0, 1.0), (-200.0, 0.0), (1e-40, 0.5), (-103.0, 1.4e-45)],
        ),
        ("tanh", tanh, vec![(0.0, 0.0), (-0.0, -0.0), (inf, 1.0), (-inf, -1.0), (1e-40, 1e-40), (-1e-40, -1e-40), (50.0, 1.0)]),
        ("gelu", gelu, vec![(0.0, 0.0), (-0.0, -0.0), (inf, inf), (-inf, -0.0), (30.0, 30.0), (-30.0, -0.0), (f32::MIN, -0.0)]),
        ("gelu_tanh", gelu_tanh, vec![(0.0, 0.0), (-0.0, -0.0), (inf, inf), (-inf, -0.0), (30.0, 30.0), (f32::MIN, -0.0)]),
        ("silu", silu, vec![(0.0, 0.0), (-0.0, -0.0), (inf, inf), (-inf, -0.0), (200.0, 200.0), (f32::MIN, -0.0), (f32::MAX, f32::MAX)]),
    ] {
        for (x, y) in cases {
            assert_eq!(f(x).to_bits(), f32::to_bits(y), "{name}({x}) = {}", f(x));
        }
        assert!(f(f32::NAN).is_nan(), "{name}(NaN) = {}", f(f32::NAN));
    }
}

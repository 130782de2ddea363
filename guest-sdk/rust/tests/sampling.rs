//! A model that draws: temperature and seed come with the request, the numbers are computed in the cell from the seed and the step alone, and so an answer
//! does not depend on what else runs.

#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

use cellwright_guest::prelude::*;
use cellwright_guest::testing::{Array, Described, TestRequest, Weights, evaluate};
use cellwright_guest::types::{Parameter, Rows, Value};
use cellwright_guest::{Cell, Value as Number};

/// The minimal standard generator in its later form (Park, Miller and Stockmeyer, 1993): s ← 48271·s mod (2³¹ − 1).
const FACTOR: i64 = 48_271;
const MODULUS: i64 = (1 << 31) - 1;
const CLASSES: usize = 4;

struct Sampler(Cell);

/// A number modulo `MODULUS`. Integers are not divided by cells, so the quotient is computed in floats, where it is off by one at most.
fn remainder(cell: &mut CellBuilder, number: Number) -> Number {
    let modulus = cell.constant_int(MODULUS);
    let (float, bound) = (cell.cast(number, Fp32), cell.constant_float(MODULUS as f32));
    let quotient = cell.div(float, bound);
    let quotient = cell.cast(quotient, Int64);
    let product = cell.mul(quotient, modulus);
    let rest = cell.sub(number, product);
    let (zero, more) = (cell.constant_int(0), cell.add(rest, modulus));
    let below = cell.less(rest, zero);
    let rest = cell.select(below, more, rest);
    let (inside, less) = (cell.less(rest, modulus), cell.sub(rest, modulus));
    cell.select(inside, rest, less)
}

impl Plugin for Sampler {
    fn describe(_: &Parameters, _: &Bundle) -> Result<(Self, Description), Refusal> {
        let mut model = ModelBuilder::new();
        model.input("temperature", Fp32, &[1, 1]).output("drawn", Int64, &[-1]);
        let cell = model.cell("draw", |cell| {
            // Rows of one dimension, like the scores: values of other ranks do not meet.
            let (seed, temperature) = (cell.state("seed", Int64, &[1]), cell.input("temperature", Fp32, &[1]));
            let factor = cell.constant_int(FACTOR);
            let product = cell.mul(seed, factor);
            let seed_next = remainder(cell, product);
            let (number, bound) = (cell.cast(seed_next, Fp32), cell.constant_float(MODULUS as f32));
            let uniform = cell.div(number, bound);
            // How many classes come before the one that is drawn: those whose sum of probabilities does not reach the number.
            let scores = cell.weight("scores");
            let sharp = cell.div(scores, temperature);
            let (probabilities, upto) = (cell.softmax(sharp), cell.weight("upto"));
            let sums = cell.mat_mul(probabilities, upto);
            let before = cell.less(sums, uniform);
            let before = cell.cast(before, Fp32);
            let before = cell.reduce_sum(before, false);
            let drawn = cell.cast(before, Int64);
            cell.next(seed, seed_next);
            cell.output("drawn", drawn, Int64, &[]);
        });
        Ok((Self(cell), model.finish()))
    }

    fn unfold(&self, request: &Request) -> Result<Growth, Refusal> {
        let temperature = request.input("temperature")?.sequence(Fp32, &[1], 1)?.tensor;
        let mut asked = (1, 1);
        for Parameter { name, value } in request.parameters() {
            match (name.as_str(), value) {
                ("seed", Value::Int(seed)) => asked.0 = seed,
                ("count", Value::Int(count)) => asked.1 = count,
                _ => return Err(Refusal::InvalidInput(format!("there is no parameter `{name}` of this kind"))),
            }
        }
        let (seed, count) = asked;
        let count = u32::try_from(count).map_err(|_| Refusal::InvalidInput("count must not be negative".into()))?;
        let mut growth = GrowthBuilder::new();
        let draws = growth
            .chain(count)
            .stage(&self.0)
            .input("seed", Source::Ints(vec![seed]))
            .input("temperature", Source::Rows(Rows { tensor: temperature, at: Affine::always(0) }))
            .add();
        growth.output_all("drawn", draws.output("drawn"));
        Ok(growth.finish())
    }
}

/// Probabilities of the classes at temperature 1.
const PROBABILITIES: [f64; CLASSES] = [0.1, 0.2, 0.3, 0.4];

fn weights() -> Weights {
    let upto = (0..CLASSES * CLASSES).map(|at| f64::from(u8::from(at / CLASSES <= at % CLASSES)));
    let scores = PROBABILITIES.map(f64::ln).to_vec();
    [("scores", Array::new(&[CLASSES], scores)), ("upto", Array::new(&[CLASSES, CLASSES], upto.collect()))]
        .map(|(name, array)| (name.to_owned(), array))
        .into()
}

fn draw(seed: i64, temperature: f32, count: i64) -> Vec<f64> {
    let sampler = Described::<Sampler>::new(&[]).unwrap();
    let request = TestRequest::new()
        .parameter("seed", Value::Int(seed))
        .floats("temperature", &[1, 1], &[temperature])
        .parameter("count", Value::Int(count));
    let growth = sampler.unfold(&request).unwrap();
    evaluate(&sampler.description, &growth, &request, &weights()).outputs["drawn"].values.clone()
}

#[test]
fn draws_follow_from_the_seed_and_the_step() {
    let expected: Vec<f64> = (0..50)
        .scan(7_i64, |seed, _| {
            *seed = *seed * FACTOR % MODULUS;
            let uniform = *seed as f64 / MODULUS as f64;
            let sums = (1..=CLASSES).map(|upto| PROBABILITIES[..upto].iter().sum::<f64>());
            Some(sums.filter(|sum| *sum < uniform).count() as f64)
        })
        .collect();
    assert_eq!(draw(7, 1.0, 50), expected);
    assert_eq!(draw(7, 1.0, 20), expected[..20], "how many are asked for changes none of them");
    assert_ne!(draw(8, 1.0, 50), expected);
}

#[test]
fn how_often_a_class_is_drawn_follows_its_probability_and_the_temperature() {
    const COUNT: i64 = 4000;
    let often = |temperature: f32| {
        let drawn = draw(1, temperature, COUNT);
        [0.0, 1.0, 2.0, 3.0].map(|class| drawn.iter().filter(|one| **one == class).count() as f64 / COUNT as f64)
    };
    for (share, probability) in often(1.0).into_iter().zip(PROBABILITIES) {
        assert!((share - probability).abs() < 0.03, "{share} of the draws, {probability} expected");
    }
    assert!(often(0.05)[3] > 0.95, "a low temperature leaves the likeliest");
}

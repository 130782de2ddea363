//! Rows that products and gates read where they lie, and gates leave where they will be looked for: no bit tells them from rows that are copied.

use std::sync::Arc;

use cellwright_backend::{Backend, CellTypeId, LaneId};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Kernels, Level};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Retention, Source, UnfoldedChain};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Deliveries, Driver, growth_of, independent};
use cellwright_conformance::hoisting::{self, Recurrent};
use cellwright_conformance::invariance;

/// Floats of a state: so many that a row of it is worth pointing to, and no whole number of vectors.
const HIDDEN: usize = 301;
const FEATURES: usize = 7;
const REQUESTS: usize = 12;
/// Rows of the table of tokens.
const TOKENS: usize = 11;

fn weight(gates: usize) -> impl Fn(&str) -> Tensor {
    move |name| {
        let n = gates * HIDDEN;
        let (seed, shape) = match name {
            "weight_ih" => (1, vec![n, FEATURES]),
            "weight_hh" => (2, vec![n, HIDDEN]),
            "emb.weight" => (4, vec![TOKENS, FEATURES]),
            _ => (3, vec![n]),
        };
        let mut rng = Rng::new(seed);
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * 0.2).collect();
        Tensor::from_f32(name, &shape, &values)
    }
}

/// The cell, and the same with an output more, for which its input and states are copied: a copy has to read them from the frame.
fn with_and_without(draft: &Draft, states: &[&str], feedback: &[(u32, u32)], precision: Precision) -> [Recurrent; 2] {
    let all: Vec<&str> = std::iter::once("x").chain(states.iter().copied()).collect();
    let copied = draft.clone().operator("Concat", &all, &["copies"]).with("axis", 1);
    let copied = copied.output("copies", Datatype::Fp32, &[FEATURES + states.len() * HIDDEN]);
    [draft.clone(), copied].map(|draft| Recurrent { cell: draft.at(precision).resolve(), feedback: feedback.to_vec() })
}

/// Workers that leave what does not depend on the state, look it up, or compute it ahead; and on several threads.
fn domain(table_bytes: u64, ahead_weights_least: u64, level: Option<Level>) -> Arc<CpuDomain> {
    let options = DomainOptions {
        arena_bytes: Some(16 << 20),
        level,
        kernels: Kernels::Best,
        table_bytes: Some(table_bytes),
        ahead_weights_least: Some(ahead_weights_least),
        ..DomainOptions::default()
    };
    CpuDomain::new(options).expect("16 MiB are there")
}

fn worker(domain: &Arc<CpuDomain>, threads: usize) -> Box<dyn Backend> {
    Box::new(CpuWorker::new(domain.clone(), CpuOptions { threads, ..CpuOptions::default() }).expect("threads start"))
}

/// An LSTM over tokens, and a chain of it that feeds its states back.
fn lstm_of_tokens(tokens: Vec<i64>, retention: Retention) -> (Arc<TypedCell>, UnfoldedChain) {
    let token = Draft::new("lstm of tokens").known("token", Datatype::Int64, &[]);
    let cell = cells::lstm_of_tokens(token, HIDDEN, &weight(4)).resolve();
    let steps = tokens.len() as u32;
    let begin = |tensor| Source::Rows { tensor, at: Affine { first: 0, stride: 0, from_end: false } };
    let mut chain = independent(0, 2, vec![Source::Ints(tokens), begin(0), begin(1)], steps);
    let stage = &mut chain.stages[0];
    (stage.inputs[1].feedback, stage.inputs[2].feedback) = (Some((0, 0)), Some((0, 1)));
    stage.retention = retention;
    (cell, chain)
}

/// What requests deliver whose tokens these are, in batches of all of them and tasks of so many steps; and how many rows were refused.
fn delivered(requests: &[Vec<i64>], retention: Retention, threads: usize, steps: u32) -> (Deliveries, usize) {
    let (cell, _) = lstm_of_tokens(vec![0], retention);
    let mut driver = Driver::new(worker(&domain(0, u64::MAX, None), threads), std::slice::from_ref(&cell));
    let state = |seed: u64| {
        let mut rng = Rng::new(seed);
        Arc::new(Tensor::from_f32("state", &[1, HIDDEN], &(0..HIDDEN).map(|_| rng.float()).collect::<Vec<_>>()))
    };
    let place = |(number, tokens): (usize, &Vec<i64>)| {
        let states = [state(number as u64), state(1_000 + number as u64)];
        driver.place(Arc::new(growth_of(vec![lstm_of_tokens(tokens.clone(), retention).1])), &states, 0, &[]).lanes[0][0]
    };
    let lanes: Vec<LaneId> = requests.iter().enumerate().map(place).collect();
    let longest = requests.iter().map(Vec::len).max().unwrap_or(0) as u32;
    let mut refused = 0;
    for first in (0..longest).step_by(steps as usize) {
        // Who has ended stays, as padding.
        let rows: Vec<(LaneId, u32)> = lanes.iter().map(|lane| (*lane, first)).collect();
        refused += driver.task(CellTypeId(0), &rows, steps).refused.len();
    }
    (driver.delivered, refused)
}

/// Batches of which each thread has rows of its own, and which are computed in parts; of lanes that hold every step, or two; beside rows that have ended, and rows that are refused.
#[test]
fn rows_of_large_batches_stay_apart() {
    let requests: Vec<Vec<i64>> =
        (0..300).map(|number| (0..3 + number % 5).map(|step| (number * 3 + step) % TOKENS as i64).collect()).collect();
    let (alone, _) = delivered(&requests, Retention::All, 1, 1);
    for retention in [Retention::Double, Retention::All] {
        for (threads, steps) in [(1, 1), (2, 1), (2, 3), (3, 5)] {
            let (together, refused) = delivered(&requests, retention, threads, steps);
            assert!(together == alone && refused == 0, "{retention:?}, {threads} threads, {steps} steps");
            let mut bad = requests.clone();
            (bad[7][1], bad[90][2]) = (TOKENS as i64, 99);
            let (mut others, refused) = delivered(&bad, retention, threads, steps);
            let is_good = |(lane, ..): &(LaneId, u32, u32)| ![7, 90].contains(&lane.index());
            others.retain(|key, _| is_good(key));
            let right: Deliveries = alone.iter().filter(|(key, _)| is_good(key)).map(|(key, bytes)| (*key, bytes.clone())).collect();
            assert!(others == right && refused == 2, "{retention:?}, {threads} threads, {steps} steps, with rows that are refused");
        }
    }
}

/// Nothing is held, and rows come from literals.
#[test]
fn rows_that_nobody_holds_stay_in_the_frame() {
    let cell = cells::lstm("lstm", FEATURES, HIDDEN, &weight(4)).operator("Identity", &["c_next"], &["again"]);
    let cell = cell.output("again", Datatype::Fp32, &[HIDDEN]);
    for precision in Precision::ALL {
        for threads in [1, 2] {
            let cell = cell.clone().at(precision).resolve();
            invariance::cell_at_sizes(&mut || worker(&domain(0, u64::MAX, None), threads), &cell, &[1, 2, 3, 17, 40, 150]);
        }
    }
}

#[test]
fn no_bit_depends_on_whether_a_row_is_copied() {
    let cells = [
        (cells::lstm("lstm", FEATURES, HIDDEN, &weight(4)), vec!["h", "c", "h_next", "c_next"], vec![(0, 1), (1, 2)]),
        (
            cells::lstm("lstm twice", FEATURES, HIDDEN, &weight(4)).operator("Identity", &["h_next"], &["again"]).output(
                "again",
                Datatype::Fp32,
                &[HIDDEN],
            ),
            vec!["h", "c", "h_next", "c_next"],
            vec![(0, 1), (1, 2)],
        ),
        (cells::gru("gru", FEATURES, HIDDEN, &weight(3)), vec!["h", "h_next"], vec![(0, 1)]),
        (cells::rnn("rnn", FEATURES, HIDDEN, "Tanh", &weight(1)), vec!["h", "h_next"], vec![(0, 1)]),
    ];
    for (draft, states, feedback) in &cells {
        for precision in Precision::ALL {
            let [pointed, copied] = with_and_without(draft, states, feedback, precision);
            let outputs = pointed.cell.outputs.len() as u32;
            let run = |recurrent: &Recurrent, domain: &Arc<CpuDomain>, threads: usize, most: (u64, u32)| {
                let mut delivered = hoisting::deliveries(&mut || worker(domain, threads), (recurrent, REQUESTS), most, &mut Rng::new(5));
                delivered.retain(|(_, output, _), _| *output < outputs);
                delivered
            };
            for level in [None, Some(Level::Avx2), Some(Level::Portable)] {
                let right = run(&copied, &domain(0, u64::MAX, level), 1, (1, 1));
                assert!(right.values().any(|bytes| bytes.iter().any(|byte| *byte != 0)));
                for ((table_bytes, ahead), threads) in [((0, u64::MAX), 1), ((0, u64::MAX), 2), ((0, 0), 1), ((1 << 20, u64::MAX), 2)] {
                    let domain = domain(table_bytes, ahead, level);
                    for most in [(1, 1), (12, 1), (12, 5)] {
                        let got = run(&pointed, &domain, threads, most);
                        assert!(
                            got == right,
                            "`{}` in {precision}, {level:?}, {threads} threads, up to {most:?} rows and steps",
                            pointed.cell.name
                        );
                    }
                }
            }
        }
    }
}

//! Rows that products and gates read where they lie, and gates leave where they will be looked for: no bit tells them from rows that are copied.

use std::sync::Arc;

use cellwright_backend::Backend;
use cellwright_backend::conformance::cells::{self, Draft};
use cellwright_backend::conformance::hoisting::{self, Recurrent};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Kernels, Level};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::{Datatype, Tensor};

/// Floats of a state: so many that a row of it is worth pointing to, and no whole number of vectors.
const HIDDEN: usize = 301;
const FEATURES: usize = 7;
const REQUESTS: usize = 12;

fn weight(gates: usize) -> impl Fn(&str) -> Tensor {
    move |name| {
        let n = gates * HIDDEN;
        let (seed, shape) = match name {
            "weight_ih" => (1, vec![n, FEATURES]),
            "weight_hh" => (2, vec![n, HIDDEN]),
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

#[test]
fn no_bit_depends_on_whether_a_row_is_copied() {
    let cells = [
        (cells::lstm("lstm", FEATURES, HIDDEN, &weight(4)), vec!["h", "c", "h_next", "c_next"], vec![(0, 1), (1, 2)]),
        (cells::gru("gru", FEATURES, HIDDEN, &weight(3)), vec!["h", "h_next"], vec![(0, 1)]),
        (cells::rnn("rnn", FEATURES, HIDDEN, "Tanh", &weight(1)), vec!["h", "h_next"], vec![(0, 1)]),
    ];
    for (draft, states, feedback) in &cells {
        for precision in Precision::ALL {
            let [pointed, copied] = with_and_without(draft, states, feedback, precision);
            let outputs = pointed.cell.outputs.len() as u32;
            let run = |recurrent: &Recurrent, domain: &Arc<CpuDomain>, threads: usize, most: (u64, u32)| {
                let options = CpuOptions { threads, ..CpuOptions::default() };
                let mut make = || Box::new(CpuWorker::new(domain.clone(), options.clone()).expect("threads start")) as Box<dyn Backend>;
                let mut delivered = hoisting::deliveries(&mut make, (recurrent, REQUESTS), most, &mut Rng::new(5));
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

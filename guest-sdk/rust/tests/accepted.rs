//! `evaluate` takes no cell that the host refuses: a plugin whose tests are green loads.

#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use cellwright_guest::prelude::*;
use cellwright_guest::testing::{Array, TestRequest, Weights, evaluate};
use cellwright_guest::types::{Parameter, Value};

type Build = fn(&mut CellBuilder);

/// One node of a cell with inputs `x` FP32 [4], `n` INT64 [4] and `s`, an FP32 scalar; or why it is refused.
fn outcome(build: Build) -> Result<Array, String> {
    let mut model = ModelBuilder::new();
    let cell = model.cell("cell", build);
    let description = model.finish();
    let literal = |name: &str| match name {
        "x" => Tensor::of_floats("", &[4], &[0.5, -1.0, 2.0, 0.0]),
        "n" => Tensor::of_ints("", &[4], &[1, 2, 3, 4]),
        "s" => Tensor::of_floats("", &[], &[2.0]),
        other => panic!("no input {other}"),
    };
    let mut growth = GrowthBuilder::new();
    let mut chain = growth.chain(1).stage(&cell);
    for port in &description.cells[0].inputs {
        chain = chain.input(&port.name, Source::Literal(literal(&port.name)));
    }
    let output = chain.add().output("y");
    let weights: Weights = [("w4", vec![4]), ("w44", vec![4, 4])]
        .map(|(name, shape)| (name.to_owned(), Array::new(&shape, (0..shape.iter().product::<usize>()).map(|n| n as f64).collect())))
        .into();
    let evaluated = catch_unwind(AssertUnwindSafe(|| evaluate(&description, &growth.finish(), &TestRequest::new(), &weights)));
    evaluated.map(|evaluated| evaluated.steps(output)[0].clone()).map_err(|panic| panic.downcast_ref::<String>().unwrap().clone())
}

#[test]
fn what_the_host_refuses_is_refused() {
    let cases: [(Build, &str); 15] = [
        (
            |cell| {
                let n = cell.input("n", Int64, &[4]);
                let half = cell.div(n, n);
                cell.output("y", half, Int64, &[4]);
            },
            "operator 0 (Div): an input is INT64, but must be FP32",
        ),
        (
            |cell| {
                let (s, w) = (cell.input("s", Fp32, &[]), cell.weight("w4"));
                let y = cell.div(w, s);
                cell.output("y", y, Fp32, &[4]);
            },
            "operator 0 (Div): a constant of shape [4] would be laid along the batch, because the rows have 0 dimensions",
        ),
        (
            |cell| {
                let (x, s) = (cell.input("x", Fp32, &[4]), cell.input("s", Fp32, &[]));
                let y = cell.add(x, s);
                cell.output("y", y, Fp32, &[4]);
            },
            "operator 0 (Add): its inputs have different ranks",
        ),
        (
            |cell| {
                let (x, n) = (cell.input("x", Fp32, &[4]), cell.input("n", Int64, &[4]));
                let y = cell.mul(x, n);
                cell.output("y", y, Fp32, &[4]);
            },
            "operator 0 (Mul): its inputs are FP32 and INT64, but must be of one datatype (Cast converts)",
        ),
        (
            |cell| {
                let (x, w) = (cell.input("x", Fp32, &[4]), cell.weight("w4"));
                let w = cell.exp(w);
                let y = cell.add(x, w);
                cell.output("y", y, Fp32, &[4]);
            },
            "operator 0 (Exp): it works on constants alone",
        ),
        (
            |cell| {
                let n = cell.input("n", Int64, &[4]);
                let y = cell.tanh(n);
                cell.output("y", y, Int64, &[4]);
            },
            "operator 0 (Tanh): an input is INT64, but must be FP32",
        ),
        (
            |cell| {
                let n = cell.input("n", Int64, &[4]);
                let y = cell.reduce_sum(n, true);
                cell.output("y", y, Int64, &[1]);
            },
            "operator 0 (ReduceSum): an input is INT64, but must be FP32",
        ),
        (
            |cell| {
                let (x, n) = (cell.input("x", Fp32, &[4]), cell.input("n", Int64, &[4]));
                let y = cell.select(n, x, x);
                cell.output("y", y, Fp32, &[4]);
            },
            "operator 0 (Where): an input is INT64, but must be BOOL",
        ),
        (
            |cell| {
                let x = cell.input("x", Fp32, &[4]);
                let y = cell.mat_mul(x, x);
                cell.output("y", y, Fp32, &[4]);
            },
            "operator 0 (MatMul): input 1 must be a constant",
        ),
        (
            |cell| {
                let (s, w) = (cell.input("s", Fp32, &[]), cell.weight("w44"));
                let y = cell.gather(w, s);
                cell.output("y", y, Fp32, &[4]);
            },
            "operator 0 (Gather): an input is FP32, but must be INT32 or INT64",
        ),
        (
            |cell| {
                let (x, w) = (cell.input("x", Fp32, &[4]), cell.weight("w4"));
                let _ = cell.add(x, w);
                cell.output("y", w, Fp32, &[4]);
            },
            "output `y` of cell `cell` is a constant, not a value of each row",
        ),
        (
            |cell| {
                let x = cell.input("x", Fp32, &[4]);
                let y = cell.equal(x, x);
                cell.output("y", y, Fp32, &[4]);
            },
            "output `y` of cell `cell` is declared FP32",
        ),
        (
            |cell| {
                let x = cell.input("x", Fp32, &[4]);
                let y = cell.operator("ArgMax", &[x], 1, vec![])[0];
                cell.output("y", y, Int64, &[1]);
            },
            "operator 0 (ArgMax): its axis must be that of the features (-1)",
        ),
        (
            |cell| {
                let x = cell.input("x", Fp32, &[4]);
                let alpha = Parameter { name: "alpha".into(), value: Value::Float(0.5) };
                let y = cell.operator("Elu", &[x], 1, vec![alpha])[0];
                cell.output("y", y, Fp32, &[4]);
            },
            "operator 0 (Elu): the host has no such operator",
        ),
        (
            |cell| {
                let x = cell.input("x", Datatype::Fp16, &[4]);
                cell.output("y", x, Datatype::Fp16, &[4]);
            },
            "input `x` of cell `cell` is FP16; nothing is converted silently",
        ),
    ];
    for (build, sentence) in cases {
        let refused = outcome(build).expect_err(sentence);
        assert!(refused.contains(sentence), "{refused} is not: {sentence}");
    }
}

#[test]
fn what_the_host_takes_is_computed_as_it_computes_it() {
    let cases: [(Build, &[f64]); 4] = [
        (
            |cell| {
                let (x, n) = (cell.input("x", Fp32, &[4]), cell.input("n", Int64, &[4]));
                let (zero, n) = (cell.constant_float(0.0), cell.cast(n, Fp32));
                let below = cell.less(x, zero);
                let y = cell.select(below, n, x);
                cell.output("y", y, Fp32, &[4]);
            },
            &[0.5, 2.0, 2.0, 0.0],
        ),
        (
            |cell| {
                let x = cell.input("x", Fp32, &[4]);
                let truth = cell.cast(x, Bool);
                let y = cell.cast(truth, Int64);
                cell.output("y", y, Int64, &[4]);
            },
            &[1.0, 1.0, 1.0, 0.0],
        ),
        (
            |cell| {
                let n = cell.input("n", Int64, &[4]);
                let (n, factor) = (cell.cast(n, Datatype::Int32), cell.constant_int(1_500_000_000));
                let wide = cell.cast(n, Int64);
                let product = cell.mul(wide, factor);
                let y = cell.cast(product, Datatype::Int32);
                cell.output("y", y, Datatype::Int32, &[4]);
            },
            &[1_500_000_000.0, -1_294_967_296.0, 205_032_704.0, 1_705_032_704.0],
        ),
        (
            |cell| {
                let (s, w) = (cell.input("s", Fp32, &[]), cell.weight("w4"));
                let s = cell.reshape(s, &[1]);
                let y = cell.mul(w, s);
                cell.output("y", y, Fp32, &[4]);
            },
            &[0.0, 2.0, 4.0, 6.0],
        ),
    ];
    for (build, expected) in cases {
        assert_eq!(outcome(build).unwrap().values, expected);
    }
}

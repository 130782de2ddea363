//! The cell families against what PyTorch computes, several steps through chains and slots.

use std::path::Path;
use std::sync::Arc;

use cellwright_cell_graph::check::{GraphLimits, Model, Unfolding};
use cellwright_cell_graph::graph::{Affine, Chain, Extent, Feedback, Growth, Node, OutputRef, Source, Stage};
use cellwright_cell_graph::resolve::{CellLimits, ResolveContext};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::weights::Weights;
use cellwright_cell_graph::{Datatype, Description, Tensor, TensorSpec};
use serde_json::Value;

use super::cells::{self, Draft};
use super::driver::{Driver, Placed, delivering_everything};
use super::{Make, Scope, Tolerance};

/// How a family is run, and how near it must come.
#[derive(Clone, Copy)]
struct At {
    precision: Precision,
    tolerance: Tolerance,
}

/// Runs every vector file at every precision of the scope.
///
/// # Panics
/// If the backend does not compute what PyTorch does.
pub fn run(make: &mut Make<'_>, tolerance: Tolerance, scope: &Scope) {
    for precision in scope.precisions.iter().copied() {
        // States pass through many steps, each of which rounds; what PyTorch computes in 32 bits is as near as samples are to have it.
        let wide = Tolerance { absolute: precision.tolerance(), relative: precision.tolerance() };
        let at = At { precision, tolerance: if precision == Precision::F32 { tolerance.times(4.0) } else { wide } };
        for family in ["lstm", "gru", "gru_taking", "rnn", "rnn_relu"] {
            recurrent(make, family, at);
        }
        stacked_bilstm(make, at);
        tree(make, at);
        projection(make, at);
    }
}

/// A file of vectors.
struct Vectors(Value);

impl Vectors {
    fn load(family: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors").join(format!("{family}.json"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    fn entry(&self, part: &str, name: &str) -> (Vec<usize>, Vec<f64>) {
        let entry = &self.0[part][name];
        let numbers = |value: &Value| value.as_array().unwrap_or_else(|| panic!("{part}/{name} is there")).clone();
        let shape = numbers(&entry["shape"]).iter().filter_map(Value::as_u64).map(|extent| extent as usize).collect();
        (shape, numbers(&entry["data"]).iter().filter_map(Value::as_f64).collect())
    }

    fn tensor(&self, part: &str, name: &str, called: &str) -> Tensor {
        let (shape, data) = self.entry(part, name);
        Tensor::from_f32(called, &shape, &data.iter().map(|value| *value as f32).collect::<Vec<_>>())
    }

    /// Row `[step, sequence]` of an input or output.
    fn row(&self, part: &str, name: &str, step: usize, sequence: usize) -> Vec<f64> {
        let (shape, data) = self.entry(part, name);
        let (batch, width) = (shape[1], shape[2..].iter().product::<usize>());
        data[(step * batch + sequence) * width..][..width].to_vec()
    }

    /// One sequence of a `[step, sequence, …]` input as a request tensor of so many rows.
    fn sequence(&self, name: &str, sequence: usize, steps: usize) -> Arc<Tensor> {
        let rows: Vec<f64> = (0..steps).flat_map(|step| self.row("inputs", name, step, sequence)).collect();
        let width = rows.len() / steps;
        Arc::new(Tensor::from_f32("x", &[steps, width], &rows.iter().map(|value| *value as f32).collect::<Vec<_>>()))
    }
}

fn model(precision: Precision, drafts: Vec<Draft>, inputs: Vec<TensorSpec>) -> Arc<Model> {
    let (cells, weights): (Vec<_>, Vec<_>) = drafts.into_iter().map(Draft::into_parts).unzip();
    let weights: Weights = weights.into_iter().flatten().collect();
    // The outputs are taken from where they are computed; a description must name one.
    let outputs = vec![TensorSpec { name: "y".to_owned(), datatype: Datatype::Fp32, shape: vec![-1] }];
    let description = Description { inputs, outputs, cells, ..Description::default() };
    let context =
        ResolveContext { weights: &weights, precision, tenant: "conformance", limits: CellLimits::default(), may_copy: &|_| true };
    Model::resolve(description, &context).map_or_else(|error| panic!("{error}"), Arc::new)
}

fn place(driver: &mut Driver, model: &Arc<Model>, chains: Vec<Chain>, tensors: &[Arc<Tensor>]) -> Placed {
    let growth = Growth { chains, ..Growth::default() };
    match Unfolding::new(model.clone(), GraphLimits::default()).grow(growth, 0, tensors) {
        Ok(unfolded) => driver.place(delivering_everything(&unfolded), tensors, 0, &[]),
        Err(error) => panic!("{error}"),
    }
}

fn expect(driver: &Driver, request: &Placed, at: (usize, u32, u32), expected: &[f64], tolerance: Tolerance, what: &str) {
    let (chain, output, step) = at;
    let got = driver.floats(request.lanes[chain][0], output, step);
    assert_eq!(got.len(), expected.len(), "{what}");
    for (index, (exact, got)) in expected.iter().zip(&got).enumerate() {
        assert!(tolerance.accepts(*exact, f64::from(*got)), "{what}, element {index}: {got} instead of {exact}");
    }
}

fn feedback(outputs: u32, first_input: u32) -> Vec<Feedback> {
    let feed = |output| Feedback { stage: 0, output, to_stage: 0, input: first_input + output };
    (0..outputs).map(feed).collect()
}

fn spec(width: usize) -> TensorSpec {
    TensorSpec { name: "x".to_owned(), datatype: Datatype::Fp32, shape: vec![-1, width as i64] }
}

fn literal(values: &[f64]) -> Source {
    Source::Literal(Tensor::from_f32("", &[values.len()], &values.iter().map(|value| *value as f32).collect::<Vec<_>>()))
}

const BACKWARDS: fn(usize) -> Affine = |steps| Affine { first: steps as i64 - 1, stride: -1, from_end: false };

fn recurrent(make: &mut Make<'_>, family: &str, at: At) {
    let vectors = Vectors::load(family.trim_end_matches("_taking"));
    let (shape, _) = vectors.entry("inputs", "x");
    let (steps, batch, features) = (shape[0], shape[1], shape[2]);
    let hidden = vectors.entry("inputs", "h0").0[1];
    let weight = |name: &str| vectors.tensor("weights", &format!("{name}_l0"), name);
    let draft = match family {
        "lstm" => cells::lstm(family, features, hidden, &weight),
        "gru" => cells::gru(family, features, hidden, &weight),
        "gru_taking" => cells::gru_taking(family, features, hidden, &|name: &str| with_z_negated(&weight(name))),
        "rnn" => cells::rnn(family, features, hidden, "Tanh", &weight),
        _ => cells::rnn(family, features, hidden, "Relu", &weight),
    };
    let states: &[&str] = if family == "lstm" { &["h", "c"] } else { &["h"] };
    let model = model(at.precision, vec![draft], vec![spec(features)]);
    let mut driver = Driver::new(make(), &model.cells);
    let mut requests = Vec::new();
    for sequence in 0..batch {
        let mut inputs = vec![Source::Rows { tensor: 0, at: Affine::EVERY }];
        for state in states {
            let (_, data) = vectors.entry("inputs", &format!("{state}0"));
            inputs.push(literal(&data[sequence * hidden..][..hidden]));
        }
        let stages = vec![Stage { cell: 0, inputs }];
        let chain =
            Chain { stages, length: Extent::Fixed(steps as u32), feedback: feedback(states.len() as u32, 1), stop: None, series: None };
        requests.push(place(&mut driver, &model, vec![chain], &[vectors.sequence("x", sequence, steps)]));
    }
    driver.run_all(&requests, &mut cellwright_cell_graph::generate::Rng::new(7), batch);
    for (sequence, request) in requests.iter().enumerate() {
        for step in 0..steps {
            for (output, state) in states.iter().enumerate() {
                let expected = vectors.row("outputs", state, step, sequence);
                let what = format!("{family}: {state} of step {step}, sequence {sequence}");
                expect(&driver, request, (0, output as u32, step as u32), &expected, at.tolerance, &what);
            }
        }
    }
}

/// A GRU's weight or bias, of which the gates are r, z and n.
fn with_z_negated(tensor: &Tensor) -> Tensor {
    let mut values = tensor.to_f32().expect("weights are of floats");
    let of_gate = values.len() / 3;
    values[of_gate..2 * of_gate].iter_mut().for_each(|value| *value = -*value);
    Tensor::from_f32(&tensor.name, &tensor.shape, &values)
}

fn stacked_bilstm(make: &mut Make<'_>, at: At) {
    let vectors = Vectors::load("stacked_bilstm");
    let features = vectors.entry("inputs", "x").0[2];
    let hidden = vectors.entry("weights", "weight_hh_l0").0[1];
    let (_, lengths) = vectors.entry("inputs", "lengths");
    // The four cells have weights of the same names, so each gets its own prefix.
    let drafts = ["l0", "l0_reverse", "l1", "l1_reverse"].map(|suffix| {
        let weight = |name: &str| vectors.tensor("weights", &format!("{name}_{suffix}"), name);
        let draft = if suffix.starts_with("l0") {
            cells::lstm(suffix, features, hidden, &weight)
        } else {
            cells::lstm_of_two(suffix, hidden, hidden, &weight)
        };
        draft.renamed(suffix)
    });
    let model = model(at.precision, drafts.to_vec(), vec![spec(features)]);
    let mut driver = Driver::new(make(), &model.cells);
    let mut requests = Vec::new();
    for (sequence, length) in lengths.iter().enumerate() {
        let steps = *length as usize;
        let own = |cell, from: Vec<Source>| {
            let first_state = from.len() as u32;
            let inputs = from.into_iter().chain([Source::Zeros, Source::Zeros]).collect();
            Chain {
                stages: vec![Stage { cell, inputs }],
                length: Extent::Fixed(steps as u32),
                feedback: feedback(2, first_state),
                stop: None,
                series: None,
            }
        };
        let below = |chain, at| Source::Steps { of: OutputRef { chain, stage: 0, output: 0 }, at };
        let chains = vec![
            own(0, vec![Source::Rows { tensor: 0, at: Affine::EVERY }]),
            own(1, vec![Source::Rows { tensor: 0, at: BACKWARDS(steps) }]),
            own(2, vec![below(0, Affine::EVERY), below(1, BACKWARDS(steps))]),
            own(3, vec![below(0, BACKWARDS(steps)), below(1, Affine { first: 0, stride: 1, from_end: false })]),
        ];
        requests.push((steps, place(&mut driver, &model, chains, &[vectors.sequence("x", sequence, steps)])));
    }
    let placed: Vec<Placed> = requests.iter().map(|(_, request)| request.clone()).collect();
    driver.run_all(&placed, &mut cellwright_cell_graph::generate::Rng::new(11), 3);
    for (sequence, (steps, request)) in requests.iter().enumerate() {
        for step in 0..*steps {
            for (layer, name) in [(0, "y_layer0"), (2, "y")] {
                let expected = vectors.row("outputs", name, step, sequence);
                let what = format!("stacked_bilstm: {name} at {step}, sequence {sequence}");
                expect(&driver, request, (layer, 0, step as u32), &expected[..hidden], at.tolerance, &what);
                expect(&driver, request, (layer + 1, 0, (steps - 1 - step) as u32), &expected[hidden..], at.tolerance, &what);
            }
        }
    }
}

fn tree(make: &mut Make<'_>, at: At) {
    let vectors = Vectors::load("treelstm");
    let numbers = |value: &Value| value.as_array().expect("a list").iter().filter_map(Value::as_i64).collect::<Vec<_>>();
    let tokens = numbers(&vectors.0["tree"]["tokens"]);
    let children: Vec<Vec<i64>> = vectors.0["tree"]["children"].as_array().expect("a list").iter().map(numbers).collect();
    let (states, h) = vectors.entry("outputs", "h");
    let (_, c) = vectors.entry("outputs", "c");
    let hidden = states[1];
    let weight = |name: &str| vectors.tensor("weights", name, name);
    let model = model(at.precision, vec![cells::tree_leaf(hidden, &weight), cells::tree_node(hidden, &weight)], vec![spec(1)]);
    let mut driver = Driver::new(make(), &model.cells);
    let node = |number: i64| match (number as usize).checked_sub(tokens.len()) {
        None => Node { chain: 0, step: number as u32 },
        Some(internal) => Node { chain: 1, step: internal as u32 },
    };
    let child = |side: usize, output| Source::Nodes { stage: 0, output, of: children.iter().map(|of| node(of[side])).collect() };
    let leaves = Chain {
        stages: vec![Stage { cell: 0, inputs: vec![Source::Ints(tokens.clone())] }],
        length: Extent::Fixed(tokens.len() as u32),
        feedback: vec![],
        stop: None,
        series: None,
    };
    let inner = Chain {
        stages: vec![Stage { cell: 1, inputs: vec![child(0, 0), child(0, 1), child(1, 0), child(1, 1)] }],
        length: Extent::Fixed(children.len() as u32),
        feedback: vec![],
        stop: None,
        series: None,
    };
    let request = place(&mut driver, &model, vec![leaves, inner], &[Arc::new(Tensor::from_f32("x", &[1, 1], &[0.0]))]);
    driver.run_all(std::slice::from_ref(&request), &mut cellwright_cell_graph::generate::Rng::new(13), 4);
    for number in 0..states[0] {
        let Node { chain, step } = node(number as i64);
        for (output, values) in [(0, &h), (1, &c)] {
            let what = format!("treelstm: output {output} of node {number}");
            expect(&driver, &request, (chain as usize, output, step), &values[number * hidden..][..hidden], at.tolerance, &what);
        }
    }
}

fn projection(make: &mut Make<'_>, at: At) {
    let vectors = Vectors::load("embedding_projection");
    let (shape, tokens) = vectors.entry("inputs", "tokens");
    let (features, classes) = (vectors.entry("outputs", "embedded").0[2], vectors.entry("outputs", "logits").0[2]);
    let weight = |name: &str| vectors.tensor("weights", name, name);
    let model = model(at.precision, vec![cells::projection(features, classes, &weight)], vec![spec(1)]);
    let mut driver = Driver::new(make(), &model.cells);
    let chain = Chain {
        stages: vec![Stage { cell: 0, inputs: vec![Source::Ints(tokens.iter().map(|token| *token as i64).collect())] }],
        length: Extent::Fixed(tokens.len() as u32),
        feedback: vec![],
        stop: None,
        series: None,
    };
    let request = place(&mut driver, &model, vec![chain], &[Arc::new(Tensor::from_f32("x", &[1, 1], &[0.0]))]);
    let lane = request.lanes[0][0];
    let rows: Vec<_> = (0..tokens.len() as u32).map(|step| (lane, step)).collect();
    driver.task(cellwright_backend::CellTypeId(0), &rows, 1);
    for (index, token) in vectors.entry("outputs", "token").1.iter().enumerate() {
        let (step, sequence) = (index / shape[1], index % shape[1]);
        for (output, name) in [(0, "embedded"), (1, "logits")] {
            let what = format!("embedding_projection: {name} of token {index}");
            expect(&driver, &request, (0, output, index as u32), &vectors.row("outputs", name, step, sequence), at.tolerance, &what);
        }
        assert_eq!(driver.delivered[&(lane, 2, index as u32)], (*token as i64).to_le_bytes(), "embedding_projection: token {index}");
    }
}

//! The cell families against PyTorch's results (`tests/vectors`, made by `make.py` there), step by step.

#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

use std::path::Path;

use cellwright_guest::prelude::*;
use cellwright_guest::testing::{Array, TestRequest, Weights, evaluate};
use cellwright_guest::types::Datatype::{Fp32, Int64};
use serde_json::Value;

/// Results are rounded to nine digits.
const TOLERANCE: f64 = 1e-8;

struct Vectors {
    weights: Weights,
    inputs: Weights,
    outputs: Weights,
    all: Value,
}

fn load(family: &str) -> Vectors {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/vectors/{family}.json"));
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    // Weights and inputs are 32-bit floats, written with nine digits.
    let table = |part: &str| {
        let value = |value: &Value| value.as_f64().map(|value| if part == "outputs" { value } else { f64::from(value as f32) }).unwrap();
        let array = |tensor: &Value| {
            let shape: Vec<usize> = tensor["shape"].as_array().unwrap().iter().map(|extent| extent.as_u64().unwrap() as usize).collect();
            Array::new(&shape, tensor["data"].as_array().unwrap().iter().map(value).collect())
        };
        all[part].as_object().unwrap().iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect()
    };
    Vectors { weights: table("weights"), inputs: table("inputs"), outputs: table("outputs"), all }
}

/// One element of the batch, of a tensor [step, batch, …].
fn of_batch(tensor: &Array, element: usize) -> Array {
    Array::stack(&(0..tensor.shape[0]).map(|step| tensor.row(step).row(element)).collect::<Vec<_>>())
}

fn floats(array: &Array) -> Vec<f32> {
    array.values.iter().map(|value| *value as f32).collect()
}

fn rows(name: &str, array: &Array) -> TestRequest {
    let shape: Vec<i64> = array.shape.iter().map(|extent| *extent as i64).collect();
    TestRequest::new().floats(name, &shape, &floats(array))
}

fn check_recurrent(file: &str, family: Recurrence) {
    let vectors = load(file);
    let (x, h) = (&vectors.inputs["x"], &vectors.outputs["h"]);
    let (features, hidden) = (x.shape[2] as u32, h.shape[2] as u32);
    let mut model = ModelBuilder::new();
    let cell = model.cell("cell", |cell| {
        let x = cell.input("x", Fp32, &[features]);
        cell.recurrent(family, x, hidden, "");
    });
    let description = model.finish();
    for element in 0..x.shape[1] {
        let request = rows("x", &of_batch(x, element));
        let x = Request::new(&request).input("x").unwrap().sequence(Fp32, &[features], 100).unwrap();
        let mut growth = GrowthBuilder::new();
        let mut chain = growth.chain(x.count).stage(&cell).input("x", x.forward());
        for state in family.states() {
            let first = vectors.inputs[&format!("{state}0")].row(element);
            chain = chain.input(state, Source::Literal(Tensor::of_floats("", &[hidden.into()], &floats(&first))));
        }
        let chain = chain.add();
        let evaluated = evaluate(&description, &growth.finish(), &request, &vectors.weights);
        for state in family.states() {
            for (step, row) in evaluated.steps(chain.output(state)).iter().enumerate() {
                let distance = row.distance(&vectors.outputs[*state].row(step).row(element));
                assert!(distance < TOLERANCE, "{file}: {state} of step {step}, element {element}: off by {distance}");
            }
        }
    }
}

#[test]
fn lstm_is_pytorchs() {
    check_recurrent("lstm", Recurrence::Lstm);
}

#[test]
fn gru_is_pytorchs() {
    check_recurrent("gru", Recurrence::Gru);
}

#[test]
fn rnn_is_pytorchs() {
    check_recurrent("rnn", Recurrence::RnnTanh);
    check_recurrent("rnn_relu", Recurrence::RnnRelu);
}

#[test]
fn embedding_and_projection_are_pytorchs() {
    let vectors = load("embedding_projection");
    let (tokens, logits) = (&vectors.inputs["tokens"], &vectors.outputs["logits"]);
    let mut model = ModelBuilder::new();
    let classes = logits.shape[2] as u32;
    let cell = model.cell("cell", |cell| {
        let token = cell.input("token", Int64, &[]);
        let x = cell.embedding(token, "emb.");
        let (logits, token) = cell.projection(x, "out.");
        cell.output("logits", logits, Fp32, &[classes]);
        cell.output("token", token, Int64, &[]);
    });
    let description = model.finish();
    for element in 0..tokens.shape[1] {
        let tokens: Vec<i64> = of_batch(tokens, element).values.iter().map(|token| *token as i64).collect();
        let mut growth = GrowthBuilder::new();
        let chain = growth.chain(tokens.len() as u32).stage(&cell).input("token", Source::Ints(tokens)).add();
        let evaluated = evaluate(&description, &growth.finish(), &TestRequest::new(), &vectors.weights);
        for name in ["logits", "token"] {
            let steps = Array::stack(&evaluated.steps(chain.output(name)));
            assert!(steps.distance(&of_batch(&vectors.outputs[name], element)) < TOLERANCE, "{name} of element {element}");
        }
    }
}

#[test]
fn tree_lstm_is_pytorchs() {
    let vectors = load("treelstm");
    let list = |value: &Value| value.as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect::<Vec<i64>>();
    let tokens = list(&vectors.all["tree"]["tokens"]);
    let children: Vec<Vec<i64>> = vectors.all["tree"]["children"].as_array().unwrap().iter().map(list).collect();
    let hidden = vectors.outputs["h"].shape[1] as u32;

    let mut model = ModelBuilder::new();
    let leaf = model.cell("leaf", |cell| {
        let token = cell.input("token", Int64, &[]);
        let x = cell.embedding(token, "emb.");
        cell.tree_leaf(x, hidden, "leaf.");
    });
    let node = model.cell("node", |cell| cell.tree_node(hidden, "node."));
    let description = model.finish();

    let leaves = tokens.len() as i64;
    let side = |side: usize| -> Vec<Node> {
        let node = |child: i64| {
            if child < leaves { Node { chain: 0, step: child as u32 } } else { Node { chain: 1, step: (child - leaves) as u32 } }
        };
        children.iter().map(|pair| node(pair[side])).collect()
    };
    let mut growth = GrowthBuilder::new();
    let leaves = growth.chain(tokens.len() as u32).stage(&leaf).input("token", Source::Ints(tokens)).add();
    let nodes = growth.chain(children.len() as u32).stage(&node).nodes("h_left", "h", side(0)).nodes("c_left", "c", side(0));
    let nodes = nodes.nodes("h_right", "h", side(1)).nodes("c_right", "c", side(1)).add();
    let evaluated = evaluate(&description, &growth.finish(), &TestRequest::new(), &vectors.weights);
    for name in ["h", "c"] {
        let all = [evaluated.steps(leaves.output(name)), evaluated.steps(nodes.output(name))].concat();
        assert!(Array::stack(&all).distance(&vectors.outputs[name]) < TOLERANCE, "{name}");
    }
}

//! What `describe` says: one honest model, and descriptions that the host must refuse.

use crate::cellwright::plugin::types::{Body, Cell, Datatype, Description, Operator, Parameter, Port, Refusal, TensorSpec, Value};

/// Columns of the input, and of every value.
pub const WIDTH: u32 = 4;

/// The description for that behaviour; the honest one if it is none of those below.
pub fn of(behaviour: &str) -> Result<Description, Refusal> {
    let mut description = honest();
    let cell = &mut description.cells[0];
    match behaviour {
        "refuse" => return Err(Refusal::Unsupported("this model will not describe itself".into())),
        "no-cells" => description.cells.clear(),
        "unknown-operator" => operators(cell)[0].kind = "Conjure".into(),
        "unknown-weight" => operators(cell)[1].inputs[1] = "nowhere".into(),
        "undeclared-output" => cell.outputs[0].name = "elsewhere".into(),
        "wrong-output-shape" => cell.outputs[0].shape = vec![WIDTH + 1],
        "crosses-batch" => operators(cell).push(Operator {
            kind: "ReduceSum".into(),
            inputs: vec!["sum".into()],
            outputs: vec!["everyone".into()],
            attributes: vec![Parameter { name: "axes".into(), value: Value::Ints(vec![0]) }],
        }),
        "same-names" => {
            let twin = description.cells[0].clone();
            description.cells.push(twin);
        }
        // Honest, too: calls of several rows, and an answer of every step.
        "rows" => {
            description.rows_are_requests = true;
            description.inputs[0].shape.insert(0, -1);
            description.outputs[0].shape.insert(0, -1);
        }
        "sums" => description.outputs.push(TensorSpec { name: "sums".into(), datatype: Datatype::Fp32, shape: vec![-1, WIDTH.into()] }),
        "ragged" => cell.inputs[0].ragged = true,
        "many-cells" => {
            let one = description.cells[0].clone();
            description.cells = (0..10_000).map(|n| Cell { name: format!("cell{n}"), ..one.clone() }).collect();
        }
        "huge-shape" => cell.inputs[0].shape = vec![u32::MAX, u32::MAX, u32::MAX],
        _ => {}
    }
    if behaviour == "crosses-batch" {
        description.cells[0].outputs.push(port("everyone", false));
    }
    Ok(description)
}

/// One cell, `sum = (x + before) + bias`, whose state is `before`.
fn honest() -> Description {
    let tensor = |name: &str, shape: Vec<i64>| TensorSpec { name: name.into(), datatype: Datatype::Fp32, shape };
    let add = |inputs: [&str; 2], output: &str| Operator {
        kind: "Add".into(),
        inputs: inputs.map(Into::into).into(),
        outputs: vec![output.into()],
        attributes: vec![],
    };
    Description {
        inputs: vec![tensor("x", vec![-1, i64::from(WIDTH)])],
        outputs: vec![tensor("sum", vec![i64::from(WIDTH)])],
        cells: vec![Cell {
            name: "add".into(),
            inputs: vec![port("x", false), port("before", true)],
            outputs: vec![port("sum", false)],
            body: Body::Operators(vec![add(["x", "before"], "both"), add(["both", "bias"], "sum")]),
            batch_max: None,
            priority: None,
        }],
        rows_are_requests: false,
        live_max: Some(64),
        ignored_weights: vec![],
    }
}

fn port(name: &str, carried: bool) -> Port {
    Port { name: name.into(), datatype: Datatype::Fp32, shape: vec![WIDTH], ragged: false, carried }
}

fn operators(cell: &mut Cell) -> &mut Vec<Operator> {
    match &mut cell.body {
        Body::Operators(operators) => operators,
        Body::Onnx(_) => unreachable!("the honest cell is written with operators"),
    }
}

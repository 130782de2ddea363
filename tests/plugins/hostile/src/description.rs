//! What `describe` says: one honest model, and descriptions that the host must refuse.

use crate::cellwright::plugin::types::{Body, Cell, Datatype, Description, Operator, Parameter, Port, Refusal, TensorSpec, Value};

/// Columns of the input, and of every value of the honest model.
pub const WIDTH: u32 = 4;
/// Columns of what the cell `heavy` computes, and how many products a row of it takes.
pub const HEAVY: u32 = 1024;
const PRODUCTS: usize = 200;
/// Columns of what the cell `wide` computes.
const WIDE: u32 = 1 << 16;

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
        // Honest, too: cells that take long, or much memory.
        "heavy" => description.cells.extend([heavy(), wide(), narrow()]),
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
    let add = |inputs: [&str; 2], output: &str| operator("Add", &inputs, output);
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
        optional_inputs: vec![],
        ignored_weights: vec![],
    }
}

/// Many products with one weight, one after the other: `y = square · … · square · x`.
fn heavy() -> Cell {
    let name = |product: usize| if product == PRODUCTS { "y".to_owned() } else { format!("x{product}") };
    let product = |n: usize| operator("MatMul", &[&if n == 0 { "x".to_owned() } else { name(n) }, "square"], &name(n + 1));
    let operators = (0..PRODUCTS).map(product).collect();
    cell("heavy", Port { shape: vec![HEAVY], ..port("x", true) }, Port { shape: vec![HEAVY], ..port("y", false) }, operators)
}

/// A large row of a small one: `y = x[0] + large`.
fn wide() -> Cell {
    let operators = vec![first("x", "one", 1), operator("Add", &["one", "large"], "y")];
    cell("wide", port("x", false), Port { shape: vec![WIDE], ..port("y", false) }, operators)
}

/// A small row of a large one: its first columns.
fn narrow() -> Cell {
    cell("narrow", Port { shape: vec![WIDE], ..port("x", false) }, port("y", false), vec![first("x", "y", WIDTH)])
}

fn cell(name: &str, input: Port, output: Port, operators: Vec<Operator>) -> Cell {
    Cell {
        name: name.into(),
        inputs: vec![input],
        outputs: vec![output],
        body: Body::Operators(operators),
        batch_max: None,
        priority: None,
    }
}

fn operator(kind: &str, inputs: &[&str], output: &str) -> Operator {
    let inputs = inputs.iter().map(|input| (*input).into()).collect();
    Operator { kind: kind.into(), inputs, outputs: vec![output.into()], attributes: vec![] }
}

/// The first columns of a value.
fn first(input: &str, output: &str, columns: u32) -> Operator {
    let bounds = [("starts", 0), ("ends", columns.into()), ("axes", 1)];
    let attributes = bounds.map(|(name, bound)| Parameter { name: name.into(), value: Value::Ints(vec![bound]) }).into();
    Operator { attributes, ..operator("Slice", &[input], output) }
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

//! The generator's model: one of each kind of cell that chains, decoders and trees are made of.

use crate::cell::{Attribute, AttributeValue, Body, Cell, Description, Operator, Port, TensorSpec};
use crate::datatype::Datatype;
use crate::generate::Rng;
use crate::tensor::Tensor;
use crate::weights::Weights;

/// Widths of a generated model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Of a row of the input tensor `x`.
    pub width: u32,
    /// Of states.
    pub hidden: u32,
    /// Of tokens; 0 is the token that ends a generated sequence.
    pub vocabulary: u32,
    /// Whether there is the cell with ragged inputs, too: the last one.
    pub spans: bool,
}

/// Where each cell stands in the description.
#[derive(Clone, Copy, Debug)]
pub struct Cells {
    /// LSTM over a row of `x`; like all LSTMs here: inputs x, h, c, outputs h, c.
    pub lstm: u32,
    /// LSTM over another's h.
    pub stacked: u32,
    /// LSTM over two states side by side.
    pub wide: u32,
    /// Two states side by side.
    pub concat: u32,
    /// h → logits, label.
    pub head: u32,
    /// LSTM over an embedded token.
    pub encoder: u32,
    /// token, h, c → h, c, next token, stop.
    pub decoder: u32,
    /// token, h, c → h, c.
    pub decoder_state: u32,
    /// h → token, stop.
    pub projection: u32,
    /// token → h, c.
    pub leaf: u32,
    /// left h, left c, right h, right c → h, c.
    pub internal: u32,
    /// Three states, two rows of `x` and h → h.
    pub window: u32,
    /// Any number of states, and h behind them, and of rows of `x`, and h → h. Only models with
    /// spans have it.
    pub span: u32,
}

/// Positions of the generated model's cells.
pub const CELLS: Cells = Cells {
    lstm: 0,
    stacked: 1,
    wide: 2,
    concat: 3,
    head: 4,
    encoder: 5,
    decoder: 6,
    decoder_state: 7,
    projection: 8,
    leaf: 9,
    internal: 10,
    window: 11,
    span: 12,
};

/// What a plugin for all of it would describe.
///
/// Inputs `x` (FP32 `[-1, width]`) and `tokens` (INT64 `[-1]`). Outputs `last` and `all` (states), `logits`, `scores` (stacked logits),
/// `label`, `generated` (tokens) and `listed` (states).
#[must_use]
pub fn description(shape: ModelShape) -> Description {
    let ModelShape { width, hidden, vocabulary, spans } = shape;
    let spec = |name: &str, datatype, shape: &[i64]| TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() };
    let span_cell = spans.then(|| span(shape));
    let (rows, states, scores) = (i64::from(width), i64::from(hidden), i64::from(vocabulary));
    Description {
        inputs: vec![spec("x", Datatype::Fp32, &[-1, rows]), spec("tokens", Datatype::Int64, &[-1])],
        outputs: vec![
            spec("last", Datatype::Fp32, &[states]),
            spec("all", Datatype::Fp32, &[-1, states]),
            spec("logits", Datatype::Fp32, &[scores]),
            spec("scores", Datatype::Fp32, &[-1, scores]),
            spec("label", Datatype::Int64, &[]),
            spec("generated", Datatype::Int64, &[-1]),
            spec("listed", Datatype::Fp32, &[-1, states]),
        ],
        cells: vec![
            lstm("lstm", "x", hidden, &[floats("x", width)]),
            lstm("stacked", "x", hidden, &[floats("x", hidden)]),
            lstm("wide", "x", hidden, &[floats("x", 2 * hidden)]),
            concat(hidden),
            head(shape),
            lstm("encoder", "e", hidden, &[token(false)]),
            decoder(hidden),
            lstm("decoder_state", "e", hidden, &[token(true)]),
            projection(hidden),
            leaf(hidden),
            internal(hidden),
            window(shape),
        ]
        .into_iter()
        .chain(span_cell)
        .collect(),
        optional_inputs: Vec::new(),
        rows_are_requests: false,
        live_max: Some(1 << 14),
        ignored_weights: Vec::new(),
    }
}

/// Random weights for the description of that shape.
#[must_use]
pub fn weights(shape: ModelShape, rng: &mut Rng) -> Weights {
    let [width, hidden, vocabulary] = [shape.width, shape.hidden, shape.vocabulary].map(|extent| extent as usize);
    let gates = |inputs: usize| [4 * hidden, inputs + hidden];
    let mut tensors = vec![Tensor::from_i64("end", &[], &[0])];
    let mut random = |name: &str, extents: &[usize]| {
        let count = extents.iter().product();
        let values: Vec<f32> = (0..count).map(|_| rng.float()).collect();
        tensors.push(Tensor::from_f32(name, extents, &values));
    };
    for (name, inputs) in [("lstm", width), ("stacked", hidden), ("wide", 2 * hidden), ("encoder", hidden), ("decoder", hidden)] {
        random(&format!("{name}.w"), &gates(inputs));
        random(&format!("{name}.b"), &[4 * hidden]);
    }
    random("decoder_state.w", &gates(hidden));
    random("decoder_state.b", &[4 * hidden]);
    random("embedding", &[vocabulary, hidden]);
    random("head.w", &[vocabulary, hidden]);
    random("head.b", &[vocabulary]);
    random("leaf.w", &[2 * hidden, hidden]);
    random("leaf.b", &[2 * hidden]);
    random("internal.w", &[5 * hidden, 2 * hidden]);
    random("internal.b", &[5 * hidden]);
    random("window.w", &[hidden, 4 * hidden + 2 * width]);
    random("window.b", &[hidden]);
    if shape.spans {
        random("span.w", &[hidden, 3 * hidden + width]);
        random("span.b", &[hidden]);
    }
    tensors.into_iter().collect()
}

fn port(name: &str, datatype: Datatype, shape: &[u32], carried: bool) -> Port {
    Port { name: name.to_owned(), datatype, shape: shape.to_vec(), ragged: false, carried }
}

fn floats(name: &str, extent: u32) -> Port {
    port(name, Datatype::Fp32, &[extent], false)
}

fn state(name: &str, extent: u32) -> Port {
    port(name, Datatype::Fp32, &[extent], true)
}

fn token(carried: bool) -> Port {
    port("token", Datatype::Int64, &[], carried)
}

fn cell(name: &str, inputs: Vec<Port>, outputs: Vec<Port>, operators: Vec<Operator>) -> Cell {
    Cell { name: name.to_owned(), inputs, outputs, body: Body::Operators(operators), batch_max: None, priority: None }
}

fn operator(kind: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, AttributeValue)]) -> Operator {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let attributes = attributes.iter().map(|(name, value)| Attribute { name: (*name).to_owned(), value: value.clone() }).collect();
    Operator { kind: kind.to_owned(), inputs: owned(inputs), outputs: owned(outputs), attributes }
}

fn along(axis: i64) -> [(&'static str, AttributeValue); 1] {
    [("axis", AttributeValue::Int(axis))]
}

fn gemm(x: &str, name: &str, y: &str) -> Operator {
    operator("Gemm", &[x, &format!("{name}.w"), &format!("{name}.b")], &[y], &[("transB", AttributeValue::Int(1))])
}

fn embed() -> Operator {
    operator("Gather", &["embedding", "token"], &["e"], &[])
}

/// Gates i, f, g, o of one product over the input and h.
fn lstm_body(name: &str, x: &str) -> Vec<Operator> {
    let mut body = if x == "e" { vec![embed()] } else { vec![] };
    body.extend([
        operator("Concat", &[x, "h"], &["xh"], &along(1)),
        gemm("xh", name, "gates"),
        operator("Split", &["gates"], &["i", "f", "g", "o"], &along(1)),
        operator("Sigmoid", &["i"], &["is"], &[]),
        operator("Sigmoid", &["f"], &["fs"], &[]),
        operator("Tanh", &["g"], &["gt"], &[]),
        operator("Sigmoid", &["o"], &["os"], &[]),
        operator("Mul", &["fs", "c"], &["fc"], &[]),
        operator("Mul", &["is", "gt"], &["ig"], &[]),
        operator("Add", &["fc", "ig"], &["c_next"], &[]),
        operator("Tanh", &["c_next"], &["ct"], &[]),
        operator("Mul", &["os", "ct"], &["h_next"], &[]),
    ]);
    body
}

fn lstm(name: &str, x: &str, hidden: u32, inputs: &[Port]) -> Cell {
    let inputs = inputs.iter().cloned().chain([state("h", hidden), state("c", hidden)]).collect();
    cell(name, inputs, vec![floats("h_next", hidden), floats("c_next", hidden)], lstm_body(name, x))
}

fn concat(hidden: u32) -> Cell {
    let body = vec![operator("Concat", &["a", "b"], &["ab"], &along(-1))];
    cell("concat", vec![floats("a", hidden), floats("b", hidden)], vec![floats("ab", 2 * hidden)], body)
}

fn arg_max(x: &str) -> Operator {
    operator("ArgMax", &[x], &["label"], &[("axis", AttributeValue::Int(1)), ("keepdims", AttributeValue::Int(0))])
}

fn head(shape: ModelShape) -> Cell {
    let outputs = vec![floats("logits", shape.vocabulary), port("label", Datatype::Int64, &[], false)];
    cell("head", vec![floats("h", shape.hidden)], outputs, vec![gemm("h", "head", "logits"), arg_max("logits")])
}

fn ends() -> Operator {
    operator("Equal", &["label", "end"], &["stop"], &[])
}

/// State, next token, and whether that token ends the sequence.
fn decoder(hidden: u32) -> Cell {
    let mut body = lstm_body("decoder", "e");
    body.extend([gemm("h_next", "head", "logits"), arg_max("logits"), ends()]);
    let outputs = vec![
        floats("h_next", hidden),
        floats("c_next", hidden),
        port("label", Datatype::Int64, &[], false),
        port("stop", Datatype::Bool, &[], false),
    ];
    cell("decoder", vec![token(true), state("h", hidden), state("c", hidden)], outputs, body)
}

fn projection(hidden: u32) -> Cell {
    let outputs = vec![port("label", Datatype::Int64, &[], false), port("stop", Datatype::Bool, &[], false)];
    cell("projection", vec![floats("h", hidden)], outputs, vec![gemm("h", "head", "logits"), arg_max("logits"), ends()])
}

fn leaf(hidden: u32) -> Cell {
    let body = vec![
        embed(),
        gemm("e", "leaf", "gates"),
        operator("Split", &["gates"], &["c_next", "o"], &along(1)),
        operator("Sigmoid", &["o"], &["os"], &[]),
        operator("Tanh", &["c_next"], &["ct"], &[]),
        operator("Mul", &["os", "ct"], &["h_next"], &[]),
    ];
    cell("leaf", vec![token(false)], vec![floats("h_next", hidden), floats("c_next", hidden)], body)
}

/// What two layers of a convolution over time are products over.
fn window(ModelShape { width, hidden, .. }: ModelShape) -> Cell {
    let windows =
        [("states", 3, hidden), ("rows", 2, width)].map(|(name, rows, extent)| port(name, Datatype::Fp32, &[rows, extent], false));
    let inputs = windows.into_iter().chain([state("h", hidden)]).collect();
    let body = vec![
        operator("Flatten", &["states"], &["s"], &[]),
        operator("Flatten", &["rows"], &["r"], &[]),
        operator("Concat", &["s", "r", "h"], &["srh"], &along(1)),
        gemm("srh", "window", "sum"),
        operator("Tanh", &["sum"], &["h_next"], &[]),
    ];
    cell("window", inputs, vec![floats("h_next", hidden)], body)
}

/// Attention to states, and the sums of states and rows.
fn span(ModelShape { width, hidden, .. }: ModelShape) -> Cell {
    let ragged = |name: &str, extent| Port { ragged: true, ..floats(name, extent) };
    let heads = [("q_num_heads", AttributeValue::Int(1)), ("kv_num_heads", AttributeValue::Int(1))];
    let over = |kind: &str, of: &str, y: &str| {
        operator(kind, &[of], &[y], &[("axes", AttributeValue::Ints(vec![1])), ("keepdims", AttributeValue::Int(0))])
    };
    let body = vec![
        operator("Unsqueeze", &["h"], &["q"], &[("axes", AttributeValue::Ints(vec![1]))]),
        operator("Attention", &["q", "states", "states"], &["a"], &heads),
        operator("Squeeze", &["a"], &["seen"], &[("axes", AttributeValue::Ints(vec![1]))]),
        operator("Concat", &["states", "q"], &["held"], &along(1)),
        operator("Tanh", &["held"], &["t"], &[]),
        over("ReduceSum", "t", "total"),
        over("ReduceSum", "rows", "sum"),
        operator("Concat", &["seen", "total", "sum", "h"], &["all"], &along(1)),
        gemm("all", "span", "y"),
        operator("Tanh", &["y"], &["h_next"], &[]),
    ];
    cell("span", vec![ragged("states", hidden), ragged("rows", width), state("h", hidden)], vec![floats("h_next", hidden)], body)
}

/// Binary TreeLSTM (Tai, Socher and Manning, 2015): gates i, fl, fr, o, u of one product over both children's h.
fn internal(hidden: u32) -> Cell {
    let inputs = ["hl", "cl", "hr", "cr"].map(|name| floats(name, hidden)).to_vec();
    let body = vec![
        operator("Concat", &["hl", "hr"], &["hh"], &along(1)),
        gemm("hh", "internal", "gates"),
        operator("Split", &["gates"], &["i", "fl", "fr", "o", "u"], &along(1)),
        operator("Sigmoid", &["i"], &["is"], &[]),
        operator("Sigmoid", &["fl"], &["fls"], &[]),
        operator("Sigmoid", &["fr"], &["frs"], &[]),
        operator("Sigmoid", &["o"], &["os"], &[]),
        operator("Tanh", &["u"], &["ut"], &[]),
        operator("Mul", &["is", "ut"], &["iu"], &[]),
        operator("Mul", &["fls", "cl"], &["fcl"], &[]),
        operator("Mul", &["frs", "cr"], &["fcr"], &[]),
        operator("Add", &["iu", "fcl"], &["part"], &[]),
        operator("Add", &["part", "fcr"], &["c_next"], &[]),
        operator("Tanh", &["c_next"], &["ct"], &[]),
        operator("Mul", &["os", "ct"], &["h_next"], &[]),
    ];
    cell("internal", inputs, vec![floats("h_next", hidden), floats("c_next", hidden)], body)
}

//! Cells for tests, written as a plugin would write them.

use std::sync::Arc;

use cellwright_cell_graph::resolve::{CellLimits, ResolveContext};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::weights::Weights;
use cellwright_cell_graph::{Attribute, AttributeValue, Body, Cell, Datatype, Operator, Port, Tensor, TypedCell};

/// A cell and its weights, put together piece by piece.
#[derive(Clone, Debug)]
pub struct Draft {
    cell: Cell,
    weights: Vec<Tensor>,
    precision: Precision,
}

/// An attribute's value from what it is in Rust.
pub trait IntoAttribute {
    /// The value.
    fn into_attribute(self) -> AttributeValue;
}

impl IntoAttribute for i64 {
    fn into_attribute(self) -> AttributeValue {
        AttributeValue::Int(self)
    }
}

impl IntoAttribute for f64 {
    fn into_attribute(self) -> AttributeValue {
        AttributeValue::Float(self)
    }
}

impl IntoAttribute for &str {
    fn into_attribute(self) -> AttributeValue {
        AttributeValue::Text(self.to_owned())
    }
}

impl IntoAttribute for &[i64] {
    fn into_attribute(self) -> AttributeValue {
        AttributeValue::Ints(self.to_vec())
    }
}

impl Draft {
    /// An empty cell.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let body = Body::Operators(Vec::new());
        let cell = Cell { name: name.to_owned(), inputs: Vec::new(), outputs: Vec::new(), body, batch_max: None, priority: None };
        Self { cell, weights: Vec::new(), precision: Precision::F32 }
    }

    /// Under another name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.cell.name);
        self
    }

    /// With an input (a carried one, so that a feedback may feed it).
    #[must_use]
    pub fn input(mut self, name: &str, datatype: Datatype, shape: &[usize]) -> Self {
        self.cell.inputs.push(Port { carried: true, ..port(name, datatype, shape) });
        self
    }

    /// With an input that is not carried, so that what depends on it alone may be computed ahead.
    #[must_use]
    pub fn known(mut self, name: &str, datatype: Datatype, shape: &[usize]) -> Self {
        self.cell.inputs.push(port(name, datatype, shape));
        self
    }

    /// With a ragged input.
    #[must_use]
    pub fn ragged(mut self, name: &str, datatype: Datatype, shape: &[usize]) -> Self {
        self.cell.inputs.push(Port { ragged: true, ..port(name, datatype, shape) });
        self
    }

    /// With a weight.
    #[must_use]
    pub fn weight(mut self, tensor: Tensor) -> Self {
        self.weights.push(tensor);
        self
    }

    /// With an operator.
    #[must_use]
    pub fn operator(mut self, kind: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        if let Body::Operators(operators) = &mut self.cell.body {
            operators.push(Operator { kind: kind.to_owned(), inputs: names(inputs), outputs: names(outputs), attributes: Vec::new() });
        }
        self
    }

    /// With an operator in front of all others, and an attribute of it.
    #[must_use]
    pub fn first(mut self, kind: &str, inputs: &[&str], outputs: &[&str], name: &str, value: &[i64]) -> Self {
        self = self.operator(kind, inputs, outputs).with(name, value);
        if let Body::Operators(operators) = &mut self.cell.body {
            operators.rotate_right(1);
        }
        self
    }

    /// With an attribute of the operator before.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl IntoAttribute) -> Self {
        if let Body::Operators(operators) = &mut self.cell.body
            && let Some(operator) = operators.last_mut()
        {
            operator.attributes.push(Attribute { name: name.to_owned(), value: value.into_attribute() });
        }
        self
    }

    /// With an output.
    #[must_use]
    pub fn output(mut self, name: &str, datatype: Datatype, shape: &[usize]) -> Self {
        self.cell.outputs.push(port(name, datatype, shape));
        self
    }

    /// To be computed at that precision.
    #[must_use]
    pub fn at(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// With its weights' names prefixed, so that cells of one model may have weights that they call the same.
    #[must_use]
    pub fn renamed(mut self, prefix: &str) -> Self {
        if let Body::Operators(operators) = &mut self.cell.body {
            for name in operators.iter_mut().flat_map(|operator| &mut operator.inputs) {
                if self.weights.iter().any(|weight| weight.name == *name) {
                    *name = format!("{prefix}.{name}");
                }
            }
        }
        self.weights.iter_mut().for_each(|weight| weight.name = format!("{prefix}.{}", weight.name));
        self
    }

    /// The cell as a plugin would describe it, and its weights.
    #[must_use]
    pub fn into_parts(self) -> (Cell, Vec<Tensor>) {
        (self.cell, self.weights)
    }

    /// Resolved.
    ///
    /// # Panics
    /// If it does not resolve.
    #[must_use]
    pub fn resolve(self) -> Arc<TypedCell> {
        let weights: Weights = self.weights.into_iter().collect();
        let context = ResolveContext {
            weights: &weights,
            precision: self.precision,
            tenant: "conformance",
            limits: CellLimits::default(),
            may_copy: &|_| true,
        };
        match TypedCell::resolve(&self.cell, &context) {
            Ok(cell) => Arc::new(cell),
            Err(error) => panic!("{error}"),
        }
    }
}

fn port(name: &str, datatype: Datatype, shape: &[usize]) -> Port {
    Port { name: name.to_owned(), datatype, shape: shape.iter().map(|extent| *extent as u32).collect(), ragged: false, carried: false }
}

/// A cell's weights by the names they have in PyTorch, renamed to what a body calls them.
pub type Named<'a> = &'a dyn Fn(&str) -> Tensor;

/// PyTorch's LSTM cell: inputs x, h, c; outputs h, c. Two products, summed: gates i, f, g, o.
#[must_use]
pub fn lstm(name: &str, x: usize, hidden: usize, weight: Named<'_>) -> Draft {
    lstm_over(Draft::new(name).known("x", Datatype::Fp32, &[x]), "x", hidden, weight)
}

/// The same over an embedded token: inputs token, h, c; outputs h, c.
#[must_use]
pub fn lstm_of_tokens(token: Draft, hidden: usize, weight: Named<'_>) -> Draft {
    lstm_over(token.weight(weight("emb.weight")).operator("Gather", &["emb.weight", "token"], &["x"]), "x", hidden, weight)
}

/// The same over two inputs `a` and `b` side by side.
#[must_use]
pub fn lstm_of_two(name: &str, each: usize, hidden: usize, weight: Named<'_>) -> Draft {
    let draft = Draft::new(name).input("a", Datatype::Fp32, &[each]).input("b", Datatype::Fp32, &[each]);
    lstm_over(draft.operator("Concat", &["a", "b"], &["ab"]).with("axis", 1), "ab", hidden, weight)
}

/// The same over a value of a draft.
#[must_use]
pub fn lstm_over(draft: Draft, x: &str, hidden: usize, weight: Named<'_>) -> Draft {
    draft
        .input("h", Datatype::Fp32, &[hidden])
        .input("c", Datatype::Fp32, &[hidden])
        .weight(weight("weight_ih"))
        .weight(weight("weight_hh"))
        .weight(weight("bias_ih"))
        .weight(weight("bias_hh"))
        .operator("Gemm", &[x, "weight_ih", "bias_ih"], &["from_x"])
        .with("transB", 1)
        .operator("Gemm", &["h", "weight_hh", "bias_hh"], &["from_h"])
        .with("transB", 1)
        .operator("Add", &["from_x", "from_h"], &["gates"])
        .operator("Split", &["gates"], &["i", "f", "g", "o"])
        .with("axis", -1)
        .operator("Sigmoid", &["i"], &["i_s"])
        .operator("Sigmoid", &["f"], &["f_s"])
        .operator("Tanh", &["g"], &["g_t"])
        .operator("Sigmoid", &["o"], &["o_s"])
        .operator("Mul", &["f_s", "c"], &["kept"])
        .operator("Mul", &["i_s", "g_t"], &["new"])
        .operator("Add", &["kept", "new"], &["c_next"])
        .operator("Tanh", &["c_next"], &["c_t"])
        .operator("Mul", &["o_s", "c_t"], &["h_next"])
        .output("h_next", Datatype::Fp32, &[hidden])
        .output("c_next", Datatype::Fp32, &[hidden])
}

/// PyTorch's GRU cell: inputs x, h; output h. Gates r, z, n.
#[must_use]
pub fn gru(name: &str, x: usize, hidden: usize, weight: Named<'_>) -> Draft {
    gates_of_gru(name, x, hidden, weight)
        .weight(Tensor::from_f32("one", &[], &[1.0]))
        .operator("Sub", &["one", "z"], &["z_not"])
        .operator("Mul", &["z_not", "n"], &["new"])
        .operator("Mul", &["z", "h"], &["kept"])
        .operator("Add", &["new", "kept"], &["h_next"])
        .output("h_next", Datatype::Fp32, &[hidden])
}

/// The same, but that z says how much is taken of n: with everything that z is computed of negated, it is the same function.
#[must_use]
pub fn gru_taking(name: &str, x: usize, hidden: usize, weight: Named<'_>) -> Draft {
    gates_of_gru(name, x, hidden, weight)
        .operator("Sub", &["n", "h"], &["far"])
        .operator("Mul", &["z", "far"], &["taken"])
        .operator("Add", &["h", "taken"], &["h_next"])
        .output("h_next", Datatype::Fp32, &[hidden])
}

/// z and n, from x and h.
fn gates_of_gru(name: &str, x: usize, hidden: usize, weight: Named<'_>) -> Draft {
    Draft::new(name)
        .known("x", Datatype::Fp32, &[x])
        .input("h", Datatype::Fp32, &[hidden])
        .weight(weight("weight_ih"))
        .weight(weight("weight_hh"))
        .weight(weight("bias_ih"))
        .weight(weight("bias_hh"))
        .operator("Gemm", &["x", "weight_ih", "bias_ih"], &["from_x"])
        .with("transB", 1)
        .operator("Gemm", &["h", "weight_hh", "bias_hh"], &["from_h"])
        .with("transB", 1)
        .operator("Split", &["from_x"], &["r_x", "z_x", "n_x"])
        .with("axis", 1)
        .operator("Split", &["from_h"], &["r_h", "z_h", "n_h"])
        .with("axis", 1)
        .operator("Add", &["r_x", "r_h"], &["r_sum"])
        .operator("Sigmoid", &["r_sum"], &["r"])
        .operator("Add", &["z_x", "z_h"], &["z_sum"])
        .operator("Sigmoid", &["z_sum"], &["z"])
        .operator("Mul", &["r", "n_h"], &["n_r"])
        .operator("Add", &["n_x", "n_r"], &["n_sum"])
        .operator("Tanh", &["n_sum"], &["n"])
}

/// PyTorch's RNN cell: inputs x, h; output h. The operator is `Tanh` or `Relu`.
#[must_use]
pub fn rnn(name: &str, x: usize, hidden: usize, operator: &str, weight: Named<'_>) -> Draft {
    Draft::new(name)
        .known("x", Datatype::Fp32, &[x])
        .input("h", Datatype::Fp32, &[hidden])
        .weight(weight("weight_ih"))
        .weight(weight("weight_hh"))
        .weight(weight("bias_ih"))
        .weight(weight("bias_hh"))
        .operator("Gemm", &["x", "weight_ih", "bias_ih"], &["from_x"])
        .with("transB", 1)
        .operator("Gemm", &["h", "weight_hh", "bias_hh"], &["from_h"])
        .with("transB", 1)
        .operator("Add", &["from_x", "from_h"], &["sum"])
        .operator(operator, &["sum"], &["h_next"])
        .output("h_next", Datatype::Fp32, &[hidden])
}

/// A leaf of a binary TreeLSTM: input token; outputs h, c.
#[must_use]
pub fn tree_leaf(hidden: usize, weight: Named<'_>) -> Draft {
    let draft = Draft::new("leaf")
        .input("token", Datatype::Int64, &[])
        .weight(weight("emb.weight"))
        .weight(weight("leaf.weight"))
        .weight(weight("leaf.bias"))
        .operator("Gather", &["emb.weight", "token"], &["x"])
        .operator("Gemm", &["x", "leaf.weight", "leaf.bias"], &["gates"])
        .with("transB", 1)
        .operator("Split", &["gates"], &["i", "o", "u"])
        .with("axis", 1)
        .operator("Sigmoid", &["i"], &["i_s"])
        .operator("Tanh", &["u"], &["u_t"])
        .operator("Mul", &["i_s", "u_t"], &["c_next"]);
    state_out(draft, hidden)
}

/// An inner node of a binary TreeLSTM: inputs h and c of the left and the right child; outputs h, c.
#[must_use]
pub fn tree_node(hidden: usize, weight: Named<'_>) -> Draft {
    let mut draft = Draft::new("node");
    for name in ["h_left", "c_left", "h_right", "c_right"] {
        draft = draft.input(name, Datatype::Fp32, &[hidden]);
    }
    let draft = draft
        .weight(weight("node.weight"))
        .weight(weight("node.bias"))
        .operator("Concat", &["h_left", "h_right"], &["both"])
        .with("axis", 1)
        .operator("Gemm", &["both", "node.weight", "node.bias"], &["gates"])
        .with("transB", 1)
        .operator("Split", &["gates"], &["i", "f_left", "f_right", "o", "u"])
        .with("axis", 1)
        .operator("Sigmoid", &["i"], &["i_s"])
        .operator("Sigmoid", &["f_left"], &["f_left_s"])
        .operator("Sigmoid", &["f_right"], &["f_right_s"])
        .operator("Tanh", &["u"], &["u_t"])
        .operator("Mul", &["i_s", "u_t"], &["new"])
        .operator("Mul", &["f_left_s", "c_left"], &["kept_left"])
        .operator("Mul", &["f_right_s", "c_right"], &["kept_right"])
        .operator("Add", &["new", "kept_left"], &["part"])
        .operator("Add", &["part", "kept_right"], &["c_next"]);
    state_out(draft, hidden)
}

/// h = σ(o) · tanh(c).
fn state_out(draft: Draft, hidden: usize) -> Draft {
    draft
        .operator("Sigmoid", &["o"], &["o_s"])
        .operator("Tanh", &["c_next"], &["c_t"])
        .operator("Mul", &["o_s", "c_t"], &["h_next"])
        .output("h_next", Datatype::Fp32, &[hidden])
        .output("c_next", Datatype::Fp32, &[hidden])
}

/// An embedding, a projection, and the largest score's index: input token; outputs embedded, logits, token.
#[must_use]
pub fn projection(features: usize, classes: usize, weight: Named<'_>) -> Draft {
    Draft::new("projection")
        .input("token", Datatype::Int64, &[])
        .weight(weight("emb.weight"))
        .weight(weight("out.weight"))
        .weight(weight("out.bias"))
        .operator("Gather", &["emb.weight", "token"], &["embedded"])
        .operator("Gemm", &["embedded", "out.weight", "out.bias"], &["logits"])
        .with("transB", 1)
        .operator("ArgMax", &["logits"], &["best"])
        .with("axis", 1)
        .with("keepdims", 0)
        .output("embedded", Datatype::Fp32, &[features])
        .output("logits", Datatype::Fp32, &[classes])
        .output("best", Datatype::Int64, &[])
}

/// An embedding and a projection of which only the best scores are read: input token; outputs the best token, and the best few with their scores.
#[must_use]
pub fn best_scores(kept: usize, weight: Named<'_>) -> Draft {
    Draft::new("best scores")
        .input("token", Datatype::Int64, &[])
        .weight(weight("emb.weight"))
        .weight(weight("out.weight"))
        .weight(weight("out.bias"))
        .weight(weight("few.weight"))
        .operator("Gather", &["emb.weight", "token"], &["embedded"])
        .operator("Gemm", &["embedded", "out.weight", "out.bias"], &["logits"])
        .with("transB", 1)
        .operator("ArgMax", &["logits"], &["best"])
        .with("axis", 1)
        .with("keepdims", 0)
        .operator("Gemm", &["embedded", "few.weight", "out.bias"], &["others"])
        .with("transB", 1)
        .operator("TopK", &["others"], &["scores", "tokens"])
        .with("axis", 1)
        .with("k", kept as i64)
        .output("best", Datatype::Int64, &[])
        .output("scores", Datatype::Fp32, &[kept])
        .output("tokens", Datatype::Int64, &[kept])
}

/// Embeds a number that is moved first, so far that zero is not in the table: inputs number; outputs row.
#[must_use]
pub fn moved_lookup(table_rows: usize, by: i64) -> Draft {
    let table: Vec<f32> = (0..table_rows * 3).map(|value| value as f32 * 0.25 - 1.0).collect();
    Draft::new("moved lookup")
        .input("number", Datatype::Int64, &[])
        .weight(Tensor::from_f32("table", &[table_rows, 3], &table))
        .weight(Tensor::from_i64("by", &[], &[by]))
        .operator("Add", &["number", "by"], &["index"])
        .operator("Gather", &["table", "index"], &["row"])
        .output("row", Datatype::Fp32, &[3])
}

/// Counts down a number, embeds what is left, and stops at zero: input count; outputs count, row, stop.
#[must_use]
pub fn countdown(table_rows: usize) -> Draft {
    let table: Vec<f32> = (0..table_rows * 3).map(|value| value as f32 * 0.25 - 1.0).collect();
    Draft::new("countdown")
        .input("count", Datatype::Int64, &[])
        .weight(Tensor::from_f32("table", &[table_rows, 3], &table))
        .weight(Tensor::from_i64("one", &[], &[1]))
        .weight(Tensor::from_i64("zero", &[], &[0]))
        .operator("Sub", &["count", "one"], &["left"])
        .operator("Gather", &["table", "left"], &["row"])
        .operator("Equal", &["left", "zero"], &["stop"])
        .output("left", Datatype::Int64, &[])
        .output("row", Datatype::Fp32, &[3])
        .output("stop", Datatype::Bool, &[])
}

//! The ONNX operators as methods, with ONNX's meaning, and the few compositions of them that have no state.

use crate::abi::cellwright::plugin::types::{Datatype, Parameter, Value as Attribute};
use crate::cell::{CellBuilder, Value};

fn int(name: &str, value: i64) -> Parameter {
    Parameter { name: name.into(), value: Attribute::Int(value) }
}

fn ints(name: &str, values: impl IntoIterator<Item = i64>) -> Parameter {
    Parameter { name: name.into(), value: Attribute::Ints(values.into_iter().collect()) }
}

fn float(name: &str, value: f64) -> Parameter {
    Parameter { name: name.into(), value: Attribute::Float(value) }
}

/// Methods for operators that take values, give one, and have no attributes.
macro_rules! plain_operators {
    ($($(#[$doc:meta])* $method:ident($($input:ident),+) = $kind:literal;)+) => {
        impl CellBuilder {
            $($(#[$doc])* pub fn $method(&mut self, $($input: Value),+) -> Value {
                self.one($kind, &[$($input),+], vec![])
            })+
        }
    };
}

plain_operators! {
    /// a + b, with broadcasting.
    add(a, b) = "Add";
    /// a − b.
    sub(a, b) = "Sub";
    /// a · b, element by element.
    mul(a, b) = "Mul";
    /// a / b.
    div(a, b) = "Div";
    /// aᵇ.
    pow(a, b) = "Pow";
    /// −a.
    neg(a) = "Neg";
    /// 1 / (1 + e⁻ᵃ).
    sigmoid(a) = "Sigmoid";
    /// Hyperbolic tangent.
    tanh(a) = "Tanh";
    /// max(a, 0).
    relu(a) = "Relu";
    /// a · Φ(a), with the error function.
    gelu(a) = "Gelu";
    /// a · σ(a).
    silu(a) = "Silu";
    /// eᵃ.
    exp(a) = "Exp";
    /// Natural logarithm.
    log(a) = "Log";
    /// Square root.
    sqrt(a) = "Sqrt";
    /// The matrix product of rows and a weight [in, out].
    mat_mul(a, b) = "MatMul";
    /// `condition` ? a : b.
    select(condition, a, b) = "Where";
    /// a = b, a BOOL.
    equal(a, b) = "Equal";
    /// a > b, a BOOL.
    greater(a, b) = "Greater";
    /// a < b, a BOOL.
    less(a, b) = "Less";
    /// Both, of BOOLs.
    and(a, b) = "And";
    /// Either, of BOOLs.
    or(a, b) = "Or";
    /// The other, of a BOOL.
    not(a) = "Not";
    /// The same value under another name.
    identity(a) = "Identity";
}

impl CellBuilder {
    /// The approximation of [`CellBuilder::gelu`] by tanh.
    pub fn gelu_tanh(&mut self, a: Value) -> Value {
        self.one("Gelu", &[a], vec![Parameter { name: "approximate".into(), value: Attribute::Text("tanh".into()) }])
    }

    /// The Euclidean norm of the features, `[1]`.
    pub fn euclidean_norm(&mut self, a: Value) -> Value {
        self.reduce("ReduceL2", a, true)
    }

    /// x · Wᵀ + b for a weight stored `[out, in]`, as `nn.Linear` and ONNX's Gemm with `transB` have it.
    pub fn gemm(&mut self, x: Value, weight: Value, bias: Option<Value>) -> Value {
        let inputs: Vec<Value> = [x, weight].into_iter().chain(bias).collect();
        self.one("Gemm", &inputs, vec![int("transB", 1)])
    }

    /// `nn.Linear` of the weights `PREFIXweight` `[out, in]` and `PREFIXbias` `[out]`.
    pub fn linear(&mut self, x: Value, prefix: &str) -> Value {
        let (weight, bias) = (self.weight(&format!("{prefix}weight")), self.weight(&format!("{prefix}bias")));
        self.gemm(x, weight, Some(bias))
    }

    /// `nn.Embedding` of the weight `PREFIXweight` `[V, E]`: the row of each token.
    pub fn embedding(&mut self, token: Value, prefix: &str) -> Value {
        let table = self.weight(&format!("{prefix}weight"));
        self.gather(table, token)
    }

    /// Rows of a table by index. Every index is checked when the cell runs; a bad one fails its request.
    pub fn gather(&mut self, table: Value, index: Value) -> Value {
        self.one("Gather", &[table, index], vec![int("axis", 0)])
    }

    /// [`CellBuilder::linear`] and the index of its largest entry as a scalar: `(logits, token)`.
    pub fn projection(&mut self, x: Value, prefix: &str) -> (Value, Value) {
        let logits = self.linear(x, prefix);
        (logits, self.arg_max(logits, false))
    }

    /// Values side by side along their features.
    pub fn concat(&mut self, values: &[Value]) -> Value {
        self.one("Concat", values, vec![int("axis", -1)])
    }

    /// The rows of ragged values one behind the other, and among them a node's own `[k, …row]`.
    pub fn concat_rows(&mut self, values: &[Value]) -> Value {
        self.one("Concat", values, vec![int("axis", 1)])
    }

    /// A value's features cut into runs of these sizes.
    pub fn split<const N: usize>(&mut self, value: Value, sizes: [u32; N]) -> [Value; N] {
        let attributes = vec![int("axis", -1), ints("split", sizes.map(i64::from))];
        let parts = self.operator("Split", &[value], N, attributes);
        std::array::from_fn(|part| parts[part])
    }

    /// A value's features `start..end`.
    pub fn slice(&mut self, value: Value, start: u32, end: u32) -> Value {
        let attributes = vec![ints("starts", [start.into()]), ints("ends", [end.into()]), ints("axes", [-1]), ints("steps", [1])];
        self.one("Slice", &[value], attributes)
    }

    /// Softmax over the features.
    pub fn softmax(&mut self, value: Value) -> Value {
        self.one("Softmax", &[value], vec![int("axis", -1)])
    }

    /// The logarithm of [`CellBuilder::softmax`].
    pub fn log_softmax(&mut self, value: Value) -> Value {
        self.one("LogSoftmax", &[value], vec![int("axis", -1)])
    }

    /// The index of the largest feature, the first of equals: an INT64, of shape `[1]` if the dimension is kept, else a scalar.
    pub fn arg_max(&mut self, value: Value, keep_dimension: bool) -> Value {
        self.one("ArgMax", &[value], vec![int("axis", -1), int("keepdims", keep_dimension.into())])
    }

    /// The `k` largest features, falling, and their indices.
    pub fn top_k(&mut self, value: Value, k: u32) -> (Value, Value) {
        let attributes = vec![int("axis", -1), ints("k", [k.into()])];
        let both = self.operator("TopK", &[value], 2, attributes);
        (both[0], both[1])
    }

    /// The features' sum.
    pub fn reduce_sum(&mut self, value: Value, keep_dimension: bool) -> Value {
        self.reduce("ReduceSum", value, keep_dimension)
    }

    /// The features' mean.
    pub fn reduce_mean(&mut self, value: Value, keep_dimension: bool) -> Value {
        self.reduce("ReduceMean", value, keep_dimension)
    }

    /// The largest feature.
    pub fn reduce_max(&mut self, value: Value, keep_dimension: bool) -> Value {
        self.reduce("ReduceMax", value, keep_dimension)
    }

    /// The sum of a ragged value's rows; 0 of none.
    pub fn sum_of_rows(&mut self, value: Value) -> Value {
        self.over_rows("ReduceSum", value)
    }

    /// The mean of a ragged value's rows; NaN of none.
    pub fn mean_of_rows(&mut self, value: Value) -> Value {
        self.over_rows("ReduceMean", value)
    }

    /// The largest of a ragged value's rows, element by element; −∞ of none.
    pub fn max_of_rows(&mut self, value: Value) -> Value {
        self.over_rows("ReduceMax", value)
    }

    /// Softmax over a ragged value's rows, element by element.
    pub fn softmax_over_rows(&mut self, value: Value) -> Value {
        self.one("Softmax", &[value], vec![int("axis", 1)])
    }

    /// The row of a ragged value that `number` says, a scalar INT64. A number below 0 counts from the
    /// end. A number that the span does not have fails the request. ONNX's `GatherND`.
    pub fn pick(&mut self, rows: Value, number: Value) -> Value {
        let index = self.unsqueeze(number, 1);
        self.one("GatherND", &[rows, index], vec![int("batch_dims", 1)])
    }

    /// Attention of a query `[heads · d]` to ragged keys `[heads · d]` and values `[heads · e]`.
    /// Each head gives `softmax(q·kᵀ / √d) · v`. The result `[heads · e]` has the heads side by side.
    /// It is 0 where there are no rows. ONNX's `Attention`, opset 23.
    pub fn attention(&mut self, query: Value, keys: Value, values: Value, heads: u32) -> Value {
        self.grouped_attention(query, keys, values, (heads, heads))
    }

    /// The same with fewer heads of keys and values than of queries, a divisor of these.
    pub fn grouped_attention(&mut self, query: Value, keys: Value, values: Value, (heads, key_heads): (u32, u32)) -> Value {
        let query = self.unsqueeze(query, 1);
        let attributes = vec![int("q_num_heads", heads.into()), int("kv_num_heads", key_heads.into())];
        let seen = self.one("Attention", &[query, keys, values], attributes);
        self.one("Squeeze", &[seen], vec![ints("axes", [1])])
    }

    /// Inserts an axis of extent 1. With axis 1 inserted, a node's row broadcasts over the rows of a
    /// ragged value.
    pub fn unsqueeze(&mut self, value: Value, axis: i64) -> Value {
        self.one("Unsqueeze", &[value], vec![ints("axes", [axis])])
    }

    /// `nn.LayerNorm` over the features, of the weights `PREFIXweight` and `PREFIXbias`.
    pub fn layer_normalization(&mut self, x: Value, prefix: &str, epsilon: f64) -> Value {
        let (scale, bias) = (self.weight(&format!("{prefix}weight")), self.weight(&format!("{prefix}bias")));
        self.one("LayerNormalization", &[x, scale, bias], vec![int("axis", -1), float("epsilon", epsilon)])
    }

    /// `nn.RMSNorm` over the features, of the weight `PREFIXweight`.
    pub fn rms_normalization(&mut self, x: Value, prefix: &str, epsilon: f64) -> Value {
        let scale = self.weight(&format!("{prefix}weight"));
        self.one("RMSNormalization", &[x, scale], vec![int("axis", -1), float("epsilon", epsilon)])
    }

    /// The value in another datatype.
    pub fn cast(&mut self, value: Value, to: Datatype) -> Value {
        self.one("Cast", &[value], vec![Parameter { name: "to".into(), value: Attribute::Text(to.name().into()) }])
    }

    /// Each row in another shape.
    pub fn reshape(&mut self, value: Value, row: &[u32]) -> Value {
        // ONNX: a 0 keeps the extent that stands there, here the batch.
        let shape = [0].into_iter().chain(row.iter().map(|extent| i64::from(*extent)));
        self.one("Reshape", &[value], vec![ints("shape", shape)])
    }

    /// An INT64 that is part of the cell.
    pub fn constant_int(&mut self, value: i64) -> Value {
        self.one("Constant", &[], vec![int("value_int", value)])
    }

    /// An FP32 that is part of the cell.
    pub fn constant_float(&mut self, value: f32) -> Value {
        self.one("Constant", &[], vec![float("value_float", value.into())])
    }

    pub(super) fn one(&mut self, kind: &'static str, inputs: &[Value], attributes: Vec<Parameter>) -> Value {
        self.operator(kind, inputs, 1, attributes)[0]
    }

    fn over_rows(&mut self, kind: &'static str, value: Value) -> Value {
        self.one(kind, &[value], vec![ints("axes", [1]), int("keepdims", 0)])
    }

    fn reduce(&mut self, kind: &'static str, value: Value, keep_dimension: bool) -> Value {
        self.one(kind, &[value], vec![ints("axes", [-1]), int("keepdims", keep_dimension.into())])
    }
}

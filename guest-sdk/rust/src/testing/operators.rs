//! What an operator means for one node: the rows of its inputs in, the rows of its outputs out. Slow and plain.

use crate::testing::Array;
use crate::types::{Datatype, Operator, Value};

/// Computes an operator.
///
/// # Panics
/// The operator is not known here, or its inputs do not fit it.
pub(super) fn compute(operator: &Operator, inputs: &[&Array]) -> Vec<Array> {
    let attributes = Attributes(operator);
    let one = |array: Array| vec![array];
    match (operator.kind.as_str(), inputs) {
        ("Identity", [x]) => one((*x).clone()),
        ("Constant", []) => one(Array::scalar(attributes.constant())),
        ("Gemm", [x, weight, bias @ ..]) => {
            assert_eq!(attributes.int("transB"), Some(1), "only weights stored [out, in] are evaluated");
            let product = product(x, weight, true);
            one(bias.first().map_or(product.clone(), |bias| pairwise(&product, bias, |a, b| a + b)))
        }
        ("MatMul", [x, weight]) => one(product(x, weight, false)),
        ("Gather", [table, index]) => one(table.row(integer(index))),
        ("Concat", parts) => {
            let values: Vec<f64> = parts.iter().flat_map(|part| features(part).to_vec()).collect();
            one(Array::new(&[values.len()], values))
        }
        ("Split", [x]) => {
            let mut left = features(x);
            let parts = attributes.ints("split").into_iter().map(|size| {
                let (part, rest) = left.split_at(size);
                left = rest;
                Array::new(&[size], part.to_vec())
            });
            parts.collect()
        }
        ("Slice", [x]) => {
            let values = features(x)[attributes.ints("starts")[0]..attributes.ints("ends")[0]].to_vec();
            one(Array::new(&[values.len()], values))
        }
        ("Where", [condition, a, b]) => {
            let (yes, no) = (pairwise(condition, a, choose), pairwise(&map(condition, |a| 1.0 - a), b, choose));
            // Of each pair one is 0, also where the other is infinite.
            one(pairwise(&yes, &no, |a, b| a + b))
        }
        ("Cast", [x]) => one((*x).clone()),
        ("Reshape", [x]) => one(Array::new(&attributes.ints("shape")[1..], x.values.clone())),
        (kind, [x]) => elementwise(kind, x).map_or_else(|| over_features(kind, x, &attributes), one),
        (kind, [a, b]) if binary(kind).is_some() => one(binary(kind).map_or_else(|| (*a).clone(), |f| pairwise(a, b, f))),
        (kind @ ("LayerNormalization" | "RMSNormalization"), [x, scale, bias @ ..]) => {
            one(normalized(kind, x, scale, bias.first().copied(), attributes.float("epsilon")))
        }
        (kind, inputs) => panic!("operator {kind} with {} inputs is not evaluated here", inputs.len()),
    }
}

/// A value as a datatype holds it: integers are exact here below 2⁵³, and INT32 wraps around as in the host.
///
/// # Panics
/// It holds none such.
pub(super) fn held(array: &mut Array, datatype: Datatype) {
    for value in &mut array.values {
        *value = match datatype {
            Datatype::Bool => f64::from(*value != 0.0),
            Datatype::Uint8 | Datatype::Int32 | Datatype::Int64 => {
                let whole = value.trunc();
                assert!(whole.abs() < EXACT_MOST, "the integer {whole} is not evaluated here: from 2⁵³ on integers are not exact");
                if datatype == Datatype::Int32 { wrapped(whole) } else { whole }
            }
            _ => *value,
        };
    }
}

const EXACT_MOST: f64 = 9_007_199_254_740_992.0;

#[expect(clippy::cast_possible_truncation, reason = "the host's 32-bit integers wrap around")]
fn wrapped(whole: f64) -> f64 {
    f64::from(whole as i64 as i32)
}

struct Attributes<'a>(&'a Operator);

impl Attributes<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.attributes.iter().find(|attribute| attribute.name == name).map(|attribute| &attribute.value)
    }

    fn int(&self, name: &str) -> Option<i64> {
        if let Some(Value::Int(value)) = self.get(name) { Some(*value) } else { None }
    }

    fn ints(&self, name: &str) -> Vec<usize> {
        let Some(Value::Ints(values)) = self.get(name) else { panic!("{} has no `{name}`", self.0.kind) };
        values.iter().map(|value| usize::try_from(*value).expect("only counts and places from the front are evaluated")).collect()
    }

    fn float(&self, name: &str) -> f64 {
        if let Some(Value::Float(value)) = self.get(name) { *value } else { panic!("{} has no `{name}`", self.0.kind) }
    }

    #[expect(clippy::cast_precision_loss, reason = "constants of a cell are small")]
    fn constant(&self) -> f64 {
        self.int("value_int").map_or_else(|| self.float("value_float"), |value| value as f64)
    }
}

fn choose(condition: f64, a: f64) -> f64 {
    if condition == 0.0 { 0.0 } else { a }
}

fn elementwise(kind: &str, x: &Array) -> Option<Array> {
    let sigmoid = |a: f64| 1.0 / (1.0 + (-a).exp());
    Some(match kind {
        "Neg" => map(x, |a| -a),
        "Sigmoid" => map(x, sigmoid),
        "Tanh" => map(x, f64::tanh),
        "Relu" => map(x, |a| if a < 0.0 { 0.0 } else { a }),
        "Silu" => map(x, |a| a * sigmoid(a)),
        "Exp" => map(x, f64::exp),
        "Log" => map(x, f64::ln),
        "Sqrt" => map(x, f64::sqrt),
        "Not" => map(x, |a| 1.0 - a),
        _ => return None,
    })
}

fn binary(kind: &str) -> Option<fn(f64, f64) -> f64> {
    Some(match kind {
        "Add" => |a, b| a + b,
        "Sub" => |a, b| a - b,
        "Mul" => |a, b| a * b,
        "Div" => |a, b| a / b,
        "Pow" => f64::powf,
        "Equal" => |a, b| f64::from(a == b),
        "Greater" => |a, b| f64::from(a > b),
        "Less" => |a, b| f64::from(a < b),
        "And" => f64::min,
        "Or" => f64::max,
        _ => return None,
    })
}

fn over_features(kind: &str, x: &Array, attributes: &Attributes<'_>) -> Vec<Array> {
    let values = features(x);
    let reduced = |value: f64| {
        let kept = attributes.int("keepdims") != Some(0);
        vec![Array::new(if kept { &[1] } else { &[] }, vec![value])]
    };
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weight: f64 = values.iter().map(|a| (a - largest).exp()).sum();
    match kind {
        "Softmax" => vec![map(x, |a| (a - largest).exp() / weight)],
        "LogSoftmax" => vec![map(x, |a| a - largest - weight.ln())],
        "ReduceSum" => reduced(values.iter().sum()),
        "ReduceMean" => reduced(values.iter().sum::<f64>() / count(values.len())),
        "ReduceMax" => reduced(largest),
        "ArgMax" => reduced(count(values.iter().position(|a| *a == largest).unwrap_or(0))),
        "TopK" => {
            let k = attributes.ints("k")[0];
            let mut order: Vec<usize> = (0..values.len()).collect();
            order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
            let (values, places) = order[..k].iter().map(|place| (values[*place], count(*place))).unzip();
            vec![Array::new(&[k], values), Array::new(&[k], places)]
        }
        _ => panic!("operator {kind} is not evaluated here"),
    }
}

fn normalized(kind: &str, x: &Array, scale: &Array, bias: Option<&Array>, epsilon: f64) -> Array {
    let n = count(x.values.len());
    let mean = if kind == "LayerNormalization" { x.values.iter().sum::<f64>() / n } else { 0.0 };
    let variance = x.values.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / n;
    let scaled = pairwise(&map(x, |a| (a - mean) / (variance + epsilon).sqrt()), scale, |a, b| a * b);
    bias.map_or(scaled.clone(), |bias| pairwise(&scaled, bias, |a, b| a + b))
}

/// A row times a weight, stored `[out, in]` if transposed, else [in, out].
fn product(x: &Array, weight: &Array, transposed: bool) -> Array {
    let x = features(x);
    let [rows, columns] = weight.shape[..] else { panic!("a weight of shape {:?} is no matrix", weight.shape) };
    let (outputs, inputs) = if transposed { (rows, columns) } else { (columns, rows) };
    assert_eq!(x.len(), inputs, "a row of {} does not fit a weight of shape {:?}", x.len(), weight.shape);
    let at = |output: usize, input: usize| weight.values[if transposed { output * columns + input } else { input * columns + output }];
    Array::new(&[outputs], (0..outputs).map(|output| (0..inputs).map(|input| x[input] * at(output, input)).sum()).collect())
}

fn map(x: &Array, f: impl Fn(f64) -> f64) -> Array {
    Array::new(&x.shape, x.values.iter().map(|a| f(*a)).collect())
}

/// Two arrays of one shape, or one of them of a single element.
fn pairwise(a: &Array, b: &Array, f: impl Fn(f64, f64) -> f64) -> Array {
    match (a.values.len(), b.values.len()) {
        (_, 1) => map(a, |a| f(a, b.values[0])),
        (1, _) => map(b, |b| f(a.values[0], b)),
        _ => {
            assert_eq!(a.shape, b.shape, "these shapes do not go together");
            Array::new(&a.shape, a.values.iter().zip(&b.values).map(|(a, b)| f(*a, *b)).collect())
        }
    }
}

/// The elements of a row of one dimension.
fn features(x: &Array) -> &[f64] {
    assert_eq!(x.shape.len(), 1, "only rows of one dimension are evaluated here, not {:?}", x.shape);
    &x.values
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index; a wild one finds no row")]
fn integer(x: &Array) -> usize {
    x.values[0] as usize
}

#[expect(clippy::cast_precision_loss, reason = "rows of a test are short")]
fn count(number: usize) -> f64 {
    number as f64
}

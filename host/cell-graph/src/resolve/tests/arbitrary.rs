//! No cell makes the resolver panic, and what it accepts hangs together.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{ports, resolve};
use crate::cell::{Attribute, AttributeValue, Body, Cell, Operator, Port};
use crate::datatype::Datatype;
use crate::resolve::CellFault;
use crate::typed::{Origin, TypedCell};

const KINDS: [&str; 46] = [
    "Add",
    "And",
    "ArgMax",
    "Cast",
    "Concat",
    "Constant",
    "Div",
    "Equal",
    "Exp",
    "Flatten",
    "Gather",
    "Gelu",
    "Gemm",
    "Greater",
    "Identity",
    "LayerNormalization",
    "Less",
    "Log",
    "LogSoftmax",
    "MatMul",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "Pow",
    "RMSNormalization",
    "ReduceMax",
    "ReduceMean",
    "ReduceSum",
    "Relu",
    "Reshape",
    "Sigmoid",
    "Silu",
    "Slice",
    "Softmax",
    "Split",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Tanh",
    "TopK",
    "Unsqueeze",
    "Where",
    "Loop",
    "",
    "gemm",
];

const NAMES: [&str; 24] = [
    "x", "m", "s", "n", "i", "b", "u", "w", "wt", "c4", "c5", "c14", "one", "k2", "axes1", "half", "broken", "", "v0", "v1", "v2", "v3",
    "v4", "v5",
];

const ATTRIBUTES: [&str; 20] = [
    "axis",
    "axes",
    "to",
    "alpha",
    "beta",
    "transA",
    "transB",
    "keepdims",
    "k",
    "starts",
    "ends",
    "steps",
    "split",
    "shape",
    "epsilon",
    "num_outputs",
    "value_float",
    "value_ints",
    "allowzero",
    "largest",
];

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -3_i64..5, 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => Just(i64::from(i32::MIN))]
}

fn value() -> impl Strategy<Value = AttributeValue> {
    prop_oneof![
        4 => number().prop_map(AttributeValue::Int),
        3 => prop::collection::vec(number(), 0..4).prop_map(AttributeValue::Ints),
        1 => any::<f64>().prop_map(AttributeValue::Float),
        1 => any::<bool>().prop_map(AttributeValue::Truth),
        1 => prop_oneof![Just("INT64"), Just("FP32"), Just("tanh"), Just("")].prop_map(|text| AttributeValue::Text(text.to_owned())),
    ]
}

fn names(names: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(prop::sample::select(names).prop_map(str::to_owned), 0..=most)
}

fn operator() -> impl Strategy<Value = Operator> {
    let attribute = (prop::sample::select(&ATTRIBUTES[..]), value());
    let attributes = prop::collection::vec(attribute, 0..3);
    let parts = (prop::sample::select(&KINDS[..]), names(&NAMES, 3), names(&NAMES[17..], 2), attributes);
    parts.prop_map(|(kind, inputs, outputs, attributes)| {
        let attributes = attributes.into_iter().map(|(name, value)| Attribute { name: name.to_owned(), value }).collect();
        Operator { kind: kind.to_owned(), inputs, outputs, attributes }
    })
}

fn output() -> impl Strategy<Value = Port> {
    let datatype = prop::sample::select(&Datatype::ALL[..]);
    let extent = prop_oneof![8 => 0_u32..6, 1 => Just(u32::MAX)];
    (prop::sample::select(&NAMES[..]), datatype, prop::collection::vec(extent, 0..4)).prop_map(|(name, datatype, shape)| Port {
        name: name.to_owned(),
        datatype,
        shape,
        ragged: false,
        carried: false,
    })
}

fn cells() -> impl Strategy<Value = Cell> {
    (prop::collection::vec(operator(), 0..6), prop::collection::vec(output(), 0..3)).prop_map(|(operators, outputs)| Cell {
        name: "c".to_owned(),
        inputs: ports(),
        outputs,
        body: Body::Operators(operators),
        batch_max: None,
        priority: None,
    })
}

/// Operands stand before results, numbers are in range, nothing is unused.
fn assert_whole(typed: &TypedCell) {
    let mut known: BTreeSet<u32> = (0..typed.inputs.len() as u32).collect();
    let mut used = known.clone();
    for (at, value) in typed.values.iter().enumerate() {
        if let Origin::Constant(tensor) = &value.origin {
            assert_eq!((tensor.elements(), &tensor.shape), (Some(value.elements()), &value.shape));
            assert!(!value.batched);
            known.insert(at as u32);
        }
        assert!(value.elements() > 0);
    }
    for (at, operation) in typed.operations.iter().enumerate() {
        assert!(operation.operands.iter().any(|id| typed.value(*id).batched));
        for operand in &operation.operands {
            assert!(known.contains(&operand.0), "operation {at} uses a value before it is there");
            used.insert(operand.0);
        }
        for result in &operation.results {
            assert!(typed.value(*result).batched && matches!(typed.value(*result).origin, Origin::Operation(by) if by == at as u32));
            assert!(known.insert(result.0));
        }
    }
    used.extend(typed.outputs.iter().map(|output| output.value.0));
    for operation in &typed.operations {
        assert!(operation.results.iter().any(|result| used.contains(&result.0)), "{operation:?} is not needed");
    }
    for (at, value) in typed.values.iter().enumerate() {
        assert!(!matches!(value.origin, Origin::Constant(_)) || used.contains(&(at as u32)), "a constant is not needed");
    }
}

/// Kinds, how many inputs they take, and attributes that may be theirs.
const PLAUSIBLE: [(&str, usize, &[&str]); 42] = [
    ("Add", 2, &[]),
    ("Sub", 2, &[]),
    ("Mul", 2, &[]),
    ("Div", 2, &[]),
    ("Pow", 2, &[]),
    ("Equal", 2, &[]),
    ("Greater", 2, &[]),
    ("Less", 2, &[]),
    ("And", 2, &[]),
    ("Or", 2, &[]),
    ("Not", 1, &[]),
    ("Neg", 1, &[]),
    ("Exp", 1, &[]),
    ("Log", 1, &[]),
    ("Sqrt", 1, &[]),
    ("Relu", 1, &[]),
    ("Silu", 1, &[]),
    ("Tanh", 1, &[]),
    ("Sigmoid", 1, &[]),
    ("Gelu", 1, &[]),
    ("Identity", 1, &[]),
    ("Flatten", 1, &[]),
    ("Where", 3, &[]),
    ("Cast", 1, &["to"]),
    ("Gemm", 2, &["transB", "alpha"]),
    ("Gemm", 3, &["transB"]),
    ("MatMul", 2, &[]),
    ("Gather", 2, &[]),
    ("Concat", 2, &["axis"]),
    ("Concat", 3, &["axis"]),
    ("Split", 1, &["axis"]),
    ("Slice", 1, &["starts", "ends", "axes", "steps"]),
    ("Softmax", 1, &["axis"]),
    ("LogSoftmax", 1, &["axis"]),
    ("ArgMax", 1, &["axis", "keepdims"]),
    ("TopK", 1, &["k", "axis"]),
    ("ReduceSum", 1, &["axes", "keepdims"]),
    ("ReduceMax", 2, &["keepdims"]),
    ("LayerNormalization", 2, &["axis"]),
    ("RMSNormalization", 2, &["axis"]),
    ("Reshape", 1, &["shape"]),
    ("Unsqueeze", 1, &["axes"]),
];

/// An operator that might do: its inputs by choice among what there is, its attributes those it has.
#[derive(Clone, Debug)]
struct Choice {
    kind: (&'static str, usize, &'static [&'static str]),
    inputs: [prop::sample::Index; 3],
    values: [i64; 4],
    given: [bool; 4],
}

fn choice() -> impl Strategy<Value = Choice> {
    let kind = prop::sample::select(&PLAUSIBLE[..]);
    let inputs = prop::array::uniform3(any::<prop::sample::Index>());
    let values = prop::array::uniform4(prop_oneof![12 => -1_i64..3, 1 => number()]);
    (kind, inputs, values, prop::array::uniform4(prop::bool::weighted(0.8))).prop_map(|(kind, inputs, values, given)| Choice {
        kind,
        inputs,
        values,
        given,
    })
}

impl Choice {
    fn operator(&self, values: &[String], position: usize) -> Operator {
        let (kind, arity, attributes) = self.kind;
        let input = |(position, index): (usize, &prop::sample::Index)| match (kind, position) {
            ("Gemm" | "MatMul", 1) | ("Gather", 0) => (*index.get(&["w", "wt"])).to_owned(),
            ("Where", 0) => "b".to_owned(),
            _ => index.get(values).clone(),
        };
        let inputs = self.inputs[..arity].iter().enumerate().map(input).collect();
        let attributes = attributes.iter().zip(self.values).zip(self.given).filter(|(_, given)| *given).map(|((name, value), _)| {
            let value = match *name {
                "alpha" => AttributeValue::Float(0.5),
                "shape" => AttributeValue::Ints(vec![0, value, 2]),
                "to" => AttributeValue::Int([1, 6, 7, 9][value.rem_euclid(4) as usize]),
                _ => AttributeValue::Int(value),
            };
            Attribute { name: (*name).to_owned(), value }
        });
        let attributes = attributes.collect();
        Operator { kind: kind.to_owned(), inputs, outputs: vec![format!("v{position}")], attributes }
    }
}

/// The cell with its last operator's result as its output, if it can be had.
fn declared(operators: Vec<Operator>) -> Option<(Cell, TypedCell)> {
    let name = operators.last()?.outputs.first()?.clone();
    let mut cell = super::cell(operators, vec![super::port(&name, Datatype::Fp32, &[])]);
    for _ in 0..3 {
        match resolve(&cell).map_err(|error| *error.fault) {
            Ok(typed) => return Some((cell, typed)),
            Err(CellFault::OutputDatatype { computed, .. }) => cell.outputs[0].datatype = computed,
            Err(CellFault::OutputShape { computed, .. }) => {
                let shape = computed.to_string();
                cell.outputs[0].shape = shape.trim_matches(['[', ']']).split(", ").filter_map(|extent| extent.parse().ok()).collect();
            }
            Err(_) => return None,
        }
    }
    None
}

/// Puts choices together, leaving out what is refused; gives every cell on the way.
fn built(choices: &[Choice]) -> Vec<TypedCell> {
    let mut values: Vec<String> = NAMES[..15].iter().map(|name| (*name).to_owned()).collect();
    let (mut operators, mut cells) = (Vec::new(), Vec::new());
    for (position, choice) in choices.iter().enumerate() {
        operators.push(choice.operator(&values, position));
        match declared(operators.clone()) {
            Some((_, typed)) => {
                values.push(format!("v{position}"));
                cells.push(typed);
            }
            None => drop(operators.pop()),
        }
    }
    cells
}

#[test]
fn every_kind_is_accepted_now_and_then() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut computed = BTreeSet::new();
    for _ in 0..3000 {
        let choices = prop::collection::vec(choice(), 8).new_tree(&mut runner).unwrap().current();
        let operations = built(&choices).into_iter().flat_map(|cell| cell.operations);
        computed.extend(operations.map(|operation| format!("{:?}", operation.compute).split(' ').next().unwrap().to_owned()));
    }
    // 10 of 11 unary (`GeluTanh` needs an attribute that choices do not have), 10 binary, 15 others.
    assert_eq!(computed.len(), 10 + 10 + 15, "{computed:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, ..ProptestConfig::default() })]

    #[test]
    fn any_cell_is_refused_or_whole(cell in cells()) {
        if let Ok(typed) = resolve(&cell) {
            assert_whole(&typed);
        }
    }

    #[test]
    fn cells_that_are_accepted_are_whole(choices in prop::collection::vec(choice(), 1..8)) {
        for typed in built(&choices) {
            assert_whole(&typed);
        }
    }
}

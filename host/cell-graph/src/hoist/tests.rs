//! What goes where. That both halves together mean the whole is the backends' conformance suite's to show.

use crate::cell::{Attribute, AttributeValue, Body, Cell, Operator, Port};
use crate::resolve::{CellError, CellLimits, ResolveContext};
use crate::sums::{self, Summed};
use crate::typed::{Compute, Origin, Precision, ValueId};
use crate::weights::Weights;
use crate::{Datatype, Tensor, TypedCell};

use super::{ByInput, ByToken, Feed, ahead, by_input, by_token, only_token};

fn port(name: &str, datatype: Datatype, shape: &[u32], carried: bool) -> Port {
    Port { name: name.to_owned(), datatype, shape: shape.to_vec(), ragged: false, carried }
}

fn operator(kind: &str, inputs: &[&str], output: &str) -> Operator {
    let inputs = inputs.iter().map(|name| (*name).to_owned()).collect();
    Operator { kind: kind.to_owned(), inputs, outputs: vec![output.to_owned()], attributes: Vec::new() }
}

/// next = tanh(h·u + embedding[token]·w + x·v + c), with `carried` of the inputs h, token, x.
fn cell(carried: [bool; 3]) -> TypedCell {
    let weight = |name: &str, shape: &[usize]| Tensor::from_f32(name, shape, &vec![0.25; shape.iter().product()]);
    let weights: Weights =
        [weight("u", &[6, 6]), weight("w", &[5, 6]), weight("v", &[4, 6]), weight("c", &[6]), weight("embedding", &[9, 5])]
            .into_iter()
            .collect();
    let inputs = vec![
        port("h", Datatype::Fp32, &[6], carried[0]),
        port("token", Datatype::Int64, &[], carried[1]),
        port("x", Datatype::Fp32, &[4], carried[2]),
    ];
    let body = vec![
        operator("MatMul", &["h", "u"], "hu"),
        operator("Gather", &["embedding", "token"], "e"),
        operator("MatMul", &["e", "w"], "ew"),
        operator("MatMul", &["x", "v"], "xv"),
        operator("Add", &["hu", "xv"], "part"),
        operator("Add", &["part", "ew"], "sum"),
        operator("Add", &["sum", "c"], "all"),
        operator("Tanh", &["all"], "next"),
    ];
    let outputs = vec![port("next", Datatype::Fp32, &[6], false)];
    let cell = Cell { name: "cell".to_owned(), inputs, outputs, body: Body::Operators(body), batch_max: None, priority: None };
    let context =
        ResolveContext { weights: &weights, precision: Precision::F32, tenant: "t", limits: CellLimits::default(), may_copy: &|_| true };
    TypedCell::resolve(&cell, &context).expect("it resolves")
}

/// The left-hand sides of the cell's one sum, by their widths.
fn order(cell: &TypedCell) -> Vec<usize> {
    let whole = sums::find(cell).into_iter().find_map(|summed| if let Summed::Whole(sum) = summed { Some(sum) } else { None });
    whole.expect("there is a sum").linears.iter().map(|linear| cell.value(linear.operands[0]).shape[0]).collect()
}

#[test]
fn terms_stand_in_the_order_in_which_they_are_known() {
    assert_eq!(order(&cell([true, false, false])), [5, 4, 6], "token, x, h");
    assert_eq!(order(&cell([true, true, false])), [4, 6, 5], "x; what is carried as it was written");
    assert_eq!(order(&cell([true, true, true])), [5, 6, 4], "a carried token has a table too");
    assert_eq!(order(&cell([false, false, false])), [5, 6, 4]);
}

#[test]
fn what_is_not_carried_is_split_off() {
    let whole = cell([true, false, false]);
    let split = ahead(&whole).expect("x and the token are known");
    assert_eq!(split.pre.feeds, [Feed::Own(1), Feed::Own(2)]);
    assert_eq!(split.step.feeds, [Feed::Own(0), Feed::Pre(0)]);
    assert_eq!((split.pre.cell.operations.len(), split.step.cell.operations.len()), (4, 2), "gather, two products, a sum; product, tanh");
    assert_eq!(split.step.cell.flops, 2 * 6 * 6 + 6 + 6);
    let split = ahead(&cell([true, true, false])).expect("x is known");
    assert_eq!((split.pre.feeds, split.step.feeds), (vec![Feed::Own(2)], vec![Feed::Own(0), Feed::Own(1), Feed::Pre(0)]));
    assert!(ahead(&cell([true, true, true])).is_none(), "nothing is known");
    assert!(ahead(&cell([false, false, false])).is_none(), "nothing is left");
}

#[test]
fn what_one_token_decides_is_split_off() {
    for (carried, expected) in [([true, false, false], true), ([true, true, false], false), ([true, true, true], true)] {
        let found = by_token(&cell(carried));
        assert_eq!(found.is_some(), expected, "{carried:?}");
        let Some(ByToken { input, tokens, hoisted }) = found else { continue };
        assert_eq!((input, tokens), (1, 9));
        assert_eq!(hoisted.pre.feeds, [Feed::Own(1)]);
        assert_eq!(hoisted.step.feeds, [Feed::Own(0), Feed::Own(2), Feed::Pre(0)]);
    }
}

#[test]
fn halves_say_what_they_are_given() {
    let split = ahead(&cell([true, false, false])).expect("it can be split");
    let given = &split.pre.cell.outputs[0];
    assert_eq!((given.port.datatype, given.port.shape.as_slice()), (Datatype::Fp32, [6].as_slice()));
    assert_eq!(split.step.cell.inputs[1].shape, given.port.shape);
    let sums = |half: &super::Half| half.sums.iter().map(|summed| matches!(summed, Summed::Whole(_))).collect::<Vec<_>>();
    assert_eq!([sums(&split.pre), sums(&split.step)], [vec![false, false, false, true], vec![true, false]]);
    let Summed::Whole(rest) = &split.step.sums[0] else { panic!("the first is a sum") };
    assert_eq!((rest.linears.len(), rest.begin), (1, Some(ValueId(1))), "it goes on where `pre` ended");
    assert!(split.pre.cell.values[..2].iter().all(|value| matches!(value.origin, crate::typed::Origin::Input(_))));
}

/// next = tanh([e, x, h, g]·w + c), or with w transposed, where h and g are carried, x is known and e is an embedded token.
fn concatenated(kind: &str, inputs: &[&str], weight: &Tensor) -> TypedCell {
    concatenated_within(kind, inputs, weight, (CellLimits::default(), &|_| true)).expect("it resolves")
}

fn concatenated_within(
    kind: &str,
    inputs: &[&str],
    weight: &Tensor,
    (limits, may_copy): (CellLimits, &dyn Fn(u64) -> bool),
) -> Result<TypedCell, CellError> {
    let bias = Tensor::from_f32("c", &[6], &[0.5; 6]);
    let embedding = Tensor::from_f32("embedding", &[9, 5], &[0.25; 45]);
    let weights: Weights = [weight.clone(), bias, embedding].into_iter().collect();
    let ports = vec![
        port("token", Datatype::Int64, &[], false),
        port("x", Datatype::Fp32, &[4], false),
        port("h", Datatype::Fp32, &[6], true),
        port("g", Datatype::Fp32, &[3], true),
        port("one", Datatype::Fp32, &[1], false),
    ];
    let mut concat = operator("Concat", inputs, "all");
    concat.attributes.push(Attribute { name: "axis".to_owned(), value: AttributeValue::Int(-1) });
    let mut product = operator(kind, if kind == "Gemm" { &["all", "w", "c"] } else { &["all", "w"] }, "sum");
    if weight.shape[0] == 6 {
        product.attributes.push(Attribute { name: "transB".to_owned(), value: AttributeValue::Int(1) });
    }
    let body = vec![operator("Gather", &["embedding", "token"], "e"), concat, product, operator("Tanh", &["sum"], "next")];
    let outputs = vec![port("next", Datatype::Fp32, &[6], false)];
    let cell = Cell { name: "cell".to_owned(), inputs: ports, outputs, body: Body::Operators(body), batch_max: None, priority: None };
    TypedCell::resolve(&cell, &ResolveContext { weights: &weights, precision: Precision::F32, tenant: "t", limits, may_copy })
}

/// A weight whose elements say where they are: row times 100 plus column.
fn places(rows: usize, is_transposed: bool) -> Tensor {
    let by_row = (0..rows).flat_map(|row| (0..6).map(move |column| (row * 100 + column) as f32)).collect::<Vec<_>>();
    let by_column = (0..6).flat_map(|column| (0..rows).map(move |row| (row * 100 + column) as f32)).collect::<Vec<_>>();
    if is_transposed { Tensor::from_f32("w", &[6, rows], &by_column) } else { Tensor::from_f32("w", &[rows, 6], &by_row) }
}

#[test]
fn a_product_of_a_concatenation_is_the_sum_of_those_of_its_parts() {
    for is_transposed in [false, true] {
        let whole = concatenated("Gemm", &["e", "x", "h", "g"], &places(18, is_transposed));
        assert_eq!(order(&whole), [5, 4, 9], "token, x, and what is carried together");
        let mut from = 0;
        for (operation, depth) in whole.operations.iter().filter(|of| matches!(of.compute, Compute::Linear { .. })).zip([5, 4, 9]) {
            let Origin::Constant(tensor) = &whole.value(operation.operands[1]).origin else { panic!("weights are constant") };
            assert_eq!(tensor.shape, if is_transposed { [6, depth] } else { [depth, 6] });
            let expected = |row: usize, column: usize| ((from + row) * 100 + column) as f32;
            let at = |row: usize, column: usize| if is_transposed { column * depth + row } else { row * 6 + column };
            let values = tensor.to_f32().expect("floats");
            assert!((0..depth).all(|row| (0..6).all(|column| values[at(row, column)].to_bits() == expected(row, column).to_bits())));
            assert_eq!(operation.operands.len(), if from == 0 { 3 } else { 2 }, "the bias is added once");
            from += depth;
        }
        let split = ahead(&whole).expect("the token and x are known");
        assert_eq!((split.pre.feeds, split.step.feeds), (vec![Feed::Own(0), Feed::Own(1)], vec![Feed::Own(2), Feed::Own(3), Feed::Pre(0)]));
        assert_eq!(by_token(&whole).expect("a table").hoisted.pre.feeds, [Feed::Own(0)]);
    }
}

#[test]
fn a_concatenation_that_hoisting_would_not_gain_by_stays() {
    let linears = |cell: &TypedCell| cell.operations.iter().filter(|of| matches!(of.compute, Compute::Linear { .. })).count();
    assert_eq!(linears(&concatenated("MatMul", &["h", "g"], &places(9, false))), 1, "both are carried");
    assert_eq!(linears(&concatenated("MatMul", &["x", "one"], &places(5, false))), 1, "both are known");
    assert_eq!(linears(&concatenated("MatMul", &["h", "one"], &places(7, false))), 1, "one row is not worth a product");
    assert_eq!(linears(&concatenated("MatMul", &["h", "x"], &places(10, false))), 2);
    assert_eq!(linears(&concatenated("MatMul", &["x", "h", "x"], &places(14, false))), 3, "what is known stands in two places");
    // Pieces of 10 rows of 6 stand beside what they are pieces of until that is dropped.
    let within = |weight_bytes_max| {
        let limits = CellLimits { weight_bytes_max, ..CellLimits::default() };
        linears(&concatenated_within("MatMul", &["h", "x"], &places(10, false), (limits, &|_| true)).expect("it resolves"))
    };
    assert_eq!((within(480), within(479)), (2, 1), "a cell's limit holds for both");
    let [one, other] = [&["x", "h"], &["h", "x"]].map(|inputs| concatenated("MatMul", inputs, &places(10, false)).key);
    assert_ne!(one, other);
}

#[test]
fn pieces_of_weights_are_made_where_there_is_room_for_them() {
    let asked = std::cell::Cell::new(0);
    let within = |most: u64| {
        let may_copy = |bytes: u64| {
            asked.set(bytes);
            bytes <= most
        };
        let cut = concatenated_within("MatMul", &["h", "x"], &places(10, false), (CellLimits::default(), &may_copy));
        cut.map(|cell| cell.weight_bytes).map_err(|error| error.to_string())
    };
    assert_eq!((within(240), asked.get()), (Ok(240), 240), "they are there instead of the whole");
    assert_eq!(within(239), Err("cell `cell`: there is no room to copy 240 bytes of its weights".to_owned()));
}

/// next = tanh([left, right]·w + c) of inputs that are so long, and are carried or not.
fn node(width: u32, carried: [bool; 2], written: &[&str]) -> TypedCell {
    let columns = 3;
    let of = |name: &str| if name == "left" { width } else { width + 1 };
    let depth: u32 = written.iter().map(|name| of(name)).sum();
    let values: Vec<f32> = (0..depth * columns).map(|at| at as f32).collect();
    let weights =
        [Tensor::from_f32("w", &[depth as usize, columns as usize], &values), Tensor::from_f32("c", &[columns as usize], &[0.5; 3])];
    let weights: Weights = weights.into_iter().collect();
    let inputs = vec![port("left", Datatype::Fp32, &[width], carried[0]), port("right", Datatype::Fp32, &[width + 1], carried[1])];
    let mut concat = operator("Concat", written, "both");
    concat.attributes.push(Attribute { name: "axis".to_owned(), value: AttributeValue::Int(-1) });
    let body = vec![concat, operator("Gemm", &["both", "w", "c"], "sum"), operator("Tanh", &["sum"], "next")];
    let outputs = vec![port("next", Datatype::Fp32, &[columns], false)];
    let cell = Cell { name: "node".to_owned(), inputs, outputs, body: Body::Operators(body), batch_max: None, priority: None };
    let context =
        ResolveContext { weights: &weights, precision: Precision::F32, tenant: "t", limits: CellLimits::default(), may_copy: &|_| true };
    TypedCell::resolve(&cell, &context).expect("it resolves")
}

#[test]
fn a_node_is_taken_input_by_input() {
    assert!(by_input(&node(128, [true, true], &["left", "right"])).is_some(), "as well if both are carried");
    let whole = node(128, [false, false], &["left", "right"]);
    let ByInput { parts, step } = by_input(&whole).expect("both are long");
    assert_eq!(parts.iter().map(|part| (part.input, part.numbers.clone())).collect::<Vec<_>>(), [(0, vec![0]), (1, vec![1])]);
    let feeds: Vec<_> = parts.iter().map(|part| part.half.feeds.clone()).collect();
    assert_eq!(feeds, [vec![Feed::Own(0)], vec![Feed::Own(1)]]);
    let begins = |half: &super::Half| {
        half.sums
            .iter()
            .filter_map(|summed| if let Summed::Whole(sum) = summed { Some(sum.constants.len()) } else { None })
            .collect::<Vec<_>>()
    };
    assert_eq!([begins(&parts[0].half), begins(&parts[1].half)], [[1], [0]], "the constant is added once");
    assert_eq!(step.feeds, [Feed::Pre(0), Feed::Pre(1)]);
    assert_eq!(step.cell.flops, 3 + 3, "an addition and a tanh");
    // The second part has the rows of the weight that belong to it.
    let weight = parts[1].half.cell.values.iter().find_map(|value| match &value.origin {
        Origin::Constant(tensor) if tensor.shape == [129, 3] => tensor.to_f32(),
        _ => None,
    });
    assert_eq!(weight.expect("a weight")[..3], [384.0, 385.0, 386.0]);
}

#[test]
fn cells_of_which_nothing_is_gained_are_not_taken_input_by_input() {
    let both = ["left", "right"];
    assert!(by_input(&node(127, [false, false], &both)).is_none(), "one is short");
    assert!(by_input(&node(128, [true, false], &both)).is_none(), "one is known, and is split off otherwise");
    assert!(by_input(&node(128, [false, false], &["left", "left"])).is_none(), "there is but one");
    let three = by_input(&node(128, [false, false], &["left", "right", "left"])).expect("two inputs, one of them twice");
    assert_eq!(
        three.parts.iter().map(|part| part.half.cell.operations.len()).collect::<Vec<_>>(),
        [3, 1],
        "two products added up, and one"
    );
}

#[test]
fn what_takes_a_token_alone_is_known_by_it() {
    let leaf = |extra: bool| {
        let embedding = Tensor::from_f32("embedding", &[9, 5], &[0.25; 45]);
        let weights: Weights = [embedding].into_iter().collect();
        let mut inputs = vec![port("token", Datatype::Int64, &[], true)];
        inputs.extend(extra.then(|| port("x", Datatype::Fp32, &[5], true)));
        let mut body = vec![operator("Gather", &["embedding", "token"], "e")];
        body.push(if extra { operator("Add", &["e", "x"], "next") } else { operator("Tanh", &["e"], "next") });
        let outputs = vec![port("next", Datatype::Fp32, &[5], false)];
        let cell = Cell { name: "leaf".to_owned(), inputs, outputs, body: Body::Operators(body), batch_max: None, priority: None };
        let context = ResolveContext {
            weights: &weights,
            precision: Precision::F32,
            tenant: "t",
            limits: CellLimits::default(),
            may_copy: &|_| true,
        };
        TypedCell::resolve(&cell, &context).expect("it resolves")
    };
    assert_eq!(
        [only_token(&leaf(false)), only_token(&leaf(true)), only_token(&node(128, [true; 2], &["left", "right"]))],
        [Some(9), None, None]
    );
}

//! Ragged inputs: what operators make of them, what they refuse, and where a cell is cut.

use super::{cell, int, ints, op, port, resolve};
use crate::cell::{AttributeValue, Operator, Port};
use crate::datatype::Datatype::{self, Bool, Fp32, Int64};
use crate::hoist::{self, Feed, Phase};
use crate::typed::{BinaryKind, Compute, JoinedSpan, Operation, ReduceKind, TypedCell, UnaryKind};

/// Beside the inputs of other tests: ragged `r`, `t` FP32 [4] and `d` BOOL [], `p` INT64 []; of nodes `q` FP32 [1, 4], `k` FP32 [4, 2].
fn ragged(operators: Vec<Operator>, outputs: Vec<Port>) -> Result<TypedCell, String> {
    let mut cell = cell(operators, outputs);
    let ragged = |name: &str, datatype, shape: &[u32]| Port { ragged: true, ..port(name, datatype, shape) };
    cell.inputs.extend([
        ragged("r", Fp32, &[4]),
        ragged("t", Fp32, &[4]),
        ragged("d", Bool, &[]),
        ragged("p", Int64, &[]),
        port("q", Fp32, &[1, 4]),
        port("k", Fp32, &[4, 2]),
    ]);
    resolve(&cell).map_err(|error| error.to_string())
}

fn computes(typed: &TypedCell) -> Vec<Compute> {
    typed.operations.iter().map(|operation| operation.compute.clone()).collect()
}

/// What the operators compute that give `y`.
fn accepted(operators: &[Operator], datatype: Datatype, shape: &[u32]) -> Vec<Compute> {
    match ragged(operators.to_vec(), vec![port("y", datatype, shape)]) {
        Ok(typed) => computes(&typed),
        Err(error) => panic!("{error}"),
    }
}

fn sum(of: &str) -> Operator {
    op(&format!("ReduceSum {of} -> y"), &[("axes", ints(&[1])), ("keepdims", int(0))])
}

fn heads(query: i64, key: i64) -> [(&'static str, AttributeValue); 2] {
    [("q_num_heads", int(query)), ("kv_num_heads", int(key))]
}

#[test]
fn whole_spans() {
    let reduce = Compute::SpanReduce;
    let axes = |axes: &[i64], keep: i64| [("axes", ints(axes)), ("keepdims", int(keep))];
    assert_eq!(accepted(&[sum("r")], Fp32, &[4]), [reduce(ReduceKind::Sum)]);
    assert_eq!(accepted(&[op("ReduceMax r -> y", &axes(&[-2], 1))], Fp32, &[1, 4]), [reduce(ReduceKind::Max), Compute::Reshape]);
    let both = Compute::Reduce { kind: ReduceKind::Mean, axes: vec![0] };
    assert_eq!(accepted(&[op("ReduceMean r -> y", &axes(&[1, 2], 0))], Fp32, &[]), [both, reduce(ReduceKind::Mean)]);
    let euclidean = accepted(&[op("ReduceL2 r -> y", &axes(&[1], 0))], Fp32, &[4]);
    assert_eq!(euclidean[..2], [Compute::Binary(BinaryKind::Mul), reduce(ReduceKind::Sum)]);
    let softmax = op("Softmax r -> v", &[("axis", int(1))]);
    assert_eq!(accepted(&[softmax, sum("v")], Fp32, &[4])[0], Compute::SpanSoftmax { log: false });
    let within = op("LogSoftmax r -> v", &[]);
    assert_eq!(accepted(&[within, sum("v")], Fp32, &[4])[0], Compute::LogSoftmax { axis: 0 });
    let best = op("ArgMax r -> y", &[("axis", int(1)), ("keepdims", int(0))]);
    assert_eq!(accepted(&[best], Int64, &[4]), [Compute::SpanArgMax { select_last: false }]);
    let first = op("TopK r -> y z", &[("axis", int(1)), ("k", int(3))]);
    assert_eq!(accepted(&[first], Fp32, &[3, 4]), [Compute::SpanTopK { k: 3, largest: true }]);
    let by_number = |data: &str, of: &str| op(&format!("GatherND {data} {of} -> y"), &[("batch_dims", int(1))]);
    let unsqueezed = op("Unsqueeze d -> d1", &[("axes", ints(&[2]))]);
    let number = op("ArgMax q -> best", &[("axis", int(-1))]);
    assert_eq!(accepted(&[number.clone(), by_number("r", "best")], Fp32, &[1, 4])[1], Compute::SpanGather);
    assert_eq!(accepted(&[number, unsqueezed, by_number("d1", "best")], Bool, &[1, 1])[2], Compute::SpanGather);
    let running = op("CumSum r -> v", &[("axis", int(1)), ("reverse", int(1))]);
    assert_eq!(accepted(&[running, sum("v")], Fp32, &[4])[0], Compute::SpanCumSum { exclusive: false, reverse: true });
    let attention = |scale, softcap| Compute::Attention { heads: 2, key_heads: 1, scale, softcap };
    let turned = |of: &str, name: &str| op(&format!("Transpose {of} -> {name}"), &[("perm", ints(&[0, 2, 1]))]);
    assert_eq!(
        accepted(&[op("Concat q q -> qq", &[("axis", int(2))]), op("Attention qq r t -> y", &heads(2, 1))], Fp32, &[1, 8])[1],
        attention(0.5, 0.0)
    );
    // Scores, and rows weighted by them.
    let scores = [op("MatMul r k -> v", &[]), turned("v", "st"), op("MatMul st t -> y", &[])];
    assert_eq!(accepted(&scores, Fp32, &[2, 4]), [Compute::SpanMatMul, Compute::Reshape, Compute::Reshape, Compute::SpanMix]);
    let turned_first = [turned("r", "rt"), op("MatMul q rt -> v", &[]), op("Softmax v -> z", &[]), op("MatMul z t -> y", &[])];
    let computed = accepted(&turned_first, Fp32, &[1, 4]);
    assert!(computed.contains(&Compute::SpanMatMul) && computed.contains(&Compute::SpanSoftmax { log: false }), "{computed:?}");
}

#[test]
fn rows_of_spans_meet_rows_of_nodes() {
    let added = accepted(&[op("Add r q -> v", &[]), sum("v")], Fp32, &[4]);
    let [flat, repeated, add] = [Compute::Reshape, Compute::Repeat, Compute::Binary(BinaryKind::Add)];
    assert_eq!(added, [flat, repeated, add, Compute::SpanReduce(ReduceKind::Sum)]);
    let scaled = accepted(&[op("Mul r c4 -> v", &[]), op("MatMul v w -> z", &[]), sum("z")], Fp32, &[5]);
    assert!(matches!(scaled[1], Compute::Linear { .. }), "{scaled:?}");
    let chosen = [op("Unsqueeze d -> e", &[("axes", ints(&[2]))]), op("Where e r one -> v", &[]), sum("v")];
    assert_eq!(accepted(&chosen, Fp32, &[4])[1], Compute::Where);
    let looked_up = [op("Gather w p -> v", &[]), sum("v")];
    assert_eq!(accepted(&looked_up, Fp32, &[5])[0], Compute::Gather);
    let split = [op("Split r -> a1 b1", &[("axis", int(-1))]), op("Concat b1 a1 -> v", &[("axis", int(2))]), sum("v")];
    assert_eq!(accepted(&split, Fp32, &[4])[..2], [Compute::Split { axis: 0, sizes: vec![2, 2] }, Compute::Concat { axis: 0 }]);
    let shaped = [op("Reshape r -> v", &[("shape", ints(&[0, -1, 2, 2]))]), sum("v")];
    assert_eq!(accepted(&shaped, Fp32, &[2, 2])[0], Compute::Reshape);
    let normal = [op("LayerNormalization r c4 -> v", &[]), sum("v")];
    assert!(matches!(accepted(&normal, Fp32, &[4])[0], Compute::LayerNormalization { axis: 0, .. }));
    let rotary = op("RotaryEmbedding q w5 w5 -> y", &[("num_heads", int(1))]);
    assert!(ragged(vec![rotary], vec![port("y", Fp32, &[1, 4])]).is_err(), "a table needs positions");
}

#[test]
fn inputs_that_meet_have_as_many_rows() {
    let met = ragged(vec![op("Add r t -> v", &[]), sum("v")], vec![port("y", Fp32, &[4])]).unwrap();
    // `r` is input 7.
    assert_eq!(met.spans[7..11], [Some(7), Some(7), Some(9), Some(10)]);
    assert!(met.values.iter().filter(|value| value.span.is_some()).all(|value| value.span != Some(8)));
    assert_eq!(met.span_elements, 4 + 4 + 1 + 1 + 4);
    assert_eq!(met.without_body().spans, met.spans);
    let apart = ragged(vec![sum("r")], vec![port("y", Fp32, &[4])]).unwrap();
    assert_eq!(apart.spans[7..9], [Some(7), Some(8)]);
    assert_ne!(met.key, apart.key);
}

fn concat(of: &str, name: &str) -> Operator {
    op(&format!("Concat {of} -> {name}"), &[("axis", int(1))])
}

fn joined(inputs: &[u32], rows: usize) -> JoinedSpan {
    JoinedSpan { inputs: inputs.to_vec(), rows }
}

#[test]
fn spans_are_joined() {
    let of = |operators: &[Operator], shape: &[u32]| ragged(operators.to_vec(), vec![port("y", Fp32, shape)]).unwrap();
    let both = of(&[concat("r t", "v"), op("Tanh v -> z", &[]), sum("z")], &[4]);
    let wanted = [Compute::SpanConcat, Compute::Unary(UnaryKind::Tanh), Compute::SpanReduce(ReduceKind::Sum)];
    assert_eq!(computes(&both), wanted);
    // There are 13 inputs; `r` is 7, `t` is 8.
    assert_eq!((both.spans[7..9].to_vec(), &both.joined[..]), (vec![Some(7), Some(8)], &[joined(&[7, 8], 0)][..]));
    assert!(both.operations[..2].iter().all(|operation| both.value(operation.results[0]).span == Some(13)));
    assert_eq!(both.span_elements, 4 + 4 + 1 + 1 + 2 * (4 + 4), "a joined span has the rows of both");
    assert_eq!(both.flops, 2 * 4 + 2 * 4);
    assert_eq!(computes(&of(&[concat("r", "v"), sum("v")], &[4])), [Compute::SpanReduce(ReduceKind::Sum)], "one is not joined");
    // What stands in its place has as many rows.
    let cached = of(&[concat("r q", "k1"), concat("t q", "v1"), op("Attention q k1 v1 -> y", &heads(1, 1))], &[1, 4]);
    assert_eq!((cached.spans[8], &cached.joined[..]), (Some(7), &[joined(&[7], 1)][..]));
    assert!(cached.operations[..2].iter().all(|operation| cached.value(operation.results[0]).span == Some(13)));
    // What both have does not matter, nor does the order in which sums are made.
    let added = |parts: [&str; 3]| {
        of(&[concat(parts[0], "v"), concat(parts[1], "z"), concat(parts[2], "e"), op("Add v e -> s1", &[]), sum("s1")], &[4])
    };
    let nested = added(["r q t", "q r", "t z"]);
    assert_eq!((nested.spans[7], nested.spans[8]), (Some(7), Some(8)));
    assert_eq!(nested.joined, [joined(&[7, 8], 1), joined(&[7], 1)]);
    // What no output needs has no number.
    let dead = of(&[concat("t q r", "d1"), concat("r t", "v"), op("Tanh v -> z", &[]), sum("z")], &[4]);
    assert_eq!((dead.key, dead.joined), (both.key, both.joined));
    // The ragged axis may stand elsewhere.
    let turned = [op("Transpose r -> rt", &[("perm", ints(&[0, 2, 1]))]), op("Reshape q -> qt", &[("shape", ints(&[0, 4, 1]))])];
    let last = op("Concat qt rt -> v", &[("axis", int(-1))]);
    let turned = of(&[&turned[..], &[last, op("ReduceSum v -> y", &[("axes", ints(&[2])), ("keepdims", int(0))])]].concat(), &[4]);
    assert_eq!(turned.joined, [joined(&[7], 1)]);
}

#[test]
fn refusals() {
    let refused = |operators: &[Operator]| ragged(operators.to_vec(), vec![port("y", Fp32, &[4])]).unwrap_err();
    let turned = op("Transpose r -> rt", &[("perm", ints(&[0, 2, 1]))]);
    let table = [
        (vec![op("Tanh r -> y", &[])], "output `y` is ragged, but only inputs may be: reduce it over its ragged axis"),
        (vec![op("Gemm r w -> y", &[])], "operator 0 (Gemm of `r`, `w`): input 0 is ragged, and this operator takes no ragged input there"),
        (
            vec![op("Add r x -> y", &[])],
            "operator 0 (Add of `r`, `x`): its inputs have different ranks, so that the batch of one would meet an axis of another, and \
             rows of a batch must stay independent",
        ),
        (
            vec![op("Add r m -> y", &[])],
            "operator 0 (Add of `r`, `m`): axis 1 is ragged, and an input with one extent for all nodes must have 1 there",
        ),
        (
            vec![op("Slice r -> y", &[("starts", ints(&[0])), ("ends", ints(&[2])), ("axes", ints(&[1]))])],
            "operator 0 (Slice of `r`): axis 1 is ragged, and this operator works along others only",
        ),
        (vec![turned.clone(), op("Add r rt -> y", &[])], "operator 1 (Add of `r`, `rt`): its inputs are ragged along different axes"),
        (
            vec![op("GatherND r n -> y", &[])],
            "operator 0 (GatherND of `r`, `n`): attribute `batch_dims` must be 1: each node has rows and indices of its own",
        ),
        (vec![op("GatherND m n -> y", &[("batch_dims", int(1))])], "operator 0 (GatherND of `m`, `n`): input 0 must be ragged"),
        (
            vec![op("GatherND r n -> y", &[("batch_dims", int(1))])],
            "operator 0 (GatherND of `r`, `n`): input 1 has the shape [N], but indices are [N, .., 1]",
        ),
        (vec![op("Concat r q -> y", &[("axis", int(2))])], "operator 0 (Concat of `r`, `q`): input 1 must be ragged"),
        (
            vec![concat("r t", "v"), op("Add v r -> y", &[])],
            "operator 1 (Add of `v`, `r`): its inputs join different spans, so that they need not have as many rows as one another",
        ),
        (
            vec![concat("r q", "v"), concat("t m", "z"), op("Add v z -> y", &[])],
            "operator 2 (Add of `v`, `z`): its inputs join different spans, so that they need not have as many rows as one another",
        ),
        (
            vec![concat("r c4", "y")],
            "operator 0 (Concat of `r`, `c4`): its data input is a constant, which has no row for each node, and rows of a batch must stay \
             independent",
        ),
        (vec![concat("x r", "y")], "operator 0 (Concat of `x`, `r`): shapes [N, ragged, 4] and [N, 4] do not fit together"),
        (
            vec![concat("r d", "y")],
            "operator 0 (Concat of `r`, `d`): its inputs are FP32 and BOOL, but must be of one datatype (Cast converts)",
        ),
        (vec![turned.clone(), concat("r rt", "y")], "operator 1 (Concat of `r`, `rt`): its inputs are ragged along different axes"),
        (
            vec![turned.clone(), op("Concat rt k -> y", &[("axis", int(2))])],
            "operator 1 (Concat of `rt`, `k`): axis 2 is ragged, and of a node one row alone joins it there: move it to axis 1 for more",
        ),
        (
            vec![concat("r r r r", "v"), concat("v v v v", "z"), concat("z r", "y")],
            "operator 2 (Concat of `z`, `r`): it has 17 spans in a concatenation, more than the limit of 16",
        ),
        (vec![op("CumSum m -> y", &[("axis", int(1))])], "operator 0 (CumSum of `m`): it sums along a ragged axis only"),
        (vec![op("Transpose m -> y", &[("perm", ints(&[0, 2, 1]))])], "operator 0 (Transpose of `m`): input 0 must be ragged"),
        (
            vec![op("Reshape r -> y", &[("shape", ints(&[0, 2, 2]))])],
            "operator 0 (Reshape of `r`): a ragged value's new shape begins with 0 and then 0 or -1",
        ),
        (
            vec![op("Attention x r t -> y", &heads(1, 1))],
            "operator 0 (Attention of `x`, `r`, `t`): input 0 has the shape [N, 4], but Attention takes [N, rows, heads · size]",
        ),
        (
            vec![op("Attention q m t -> y", &heads(1, 1))],
            "operator 0 (Attention of `q`, `m`, `t`): input 1 has the shape [N, 3, 4], but Attention takes [N, ragged, heads · size]",
        ),
        (
            vec![op("Attention q r t -> y", &heads(3, 2))],
            "operator 0 (Attention of `q`, `r`, `t`): attribute `q_num_heads` must be a multiple of kv_num_heads",
        ),
        (
            vec![op("Attention q r t -> y", &heads(2, 1))],
            "operator 0 (Attention of `q`, `r`, `t`): shapes [N, 1, 4] and [N, ragged, 4] do not fit together",
        ),
    ];
    for (operators, wanted) in table {
        let given = refused(&operators);
        assert!(given.ends_with(wanted), "{given}\n{wanted}");
    }
    // 45 rows of every node count as 180 elements, in the concatenation and each value after it.
    let mut many = vec![concat(&format!("r{}", " m".repeat(15)), "v0")];
    many.extend((0..22).map(|at| op(&format!("Neg v{at} -> v{}", at + 1), &[])));
    let given = refused(&many);
    assert!(given.contains("elements in the values of a row, more than the limit of 4000"), "{given}");
}

/// Where each phase's rows are, or what sees a whole span.
fn phases(typed: &TypedCell) -> Vec<String> {
    let cut = hoist::by_span(typed).unwrap();
    let named =
        |computes: &mut dyn Iterator<Item = &Operation>| computes.map(|of| format!("{:?}", of.compute)).collect::<Vec<_>>().join(" ");
    let phase = |phase: &Phase| match phase {
        Phase::Rows { span, half, gives } => {
            assert_eq!(gives.len(), half.cell.outputs.len());
            format!("{span:?}: {}", named(&mut half.cell.operations.iter()))
        }
        Phase::Whole(whole) => format!("{:?}", whole.compute),
    };
    let rest = named(&mut cut.step.cell.operations.iter());
    cut.phases.iter().map(phase).chain([rest]).collect()
}

#[test]
fn a_cell_is_cut_where_spans_are_seen() {
    let operators = vec![
        op("Add r q -> v", &[]),
        op("Tanh v -> z", &[]),
        op("ReduceSum z -> y", &[("axes", ints(&[1])), ("keepdims", int(0))]),
        op("Relu y -> last", &[]),
    ];
    let typed = ragged(operators, vec![port("last", Fp32, &[4])]).unwrap();
    let wanted = ["None: Reshape", "Repeat", "Some(7): Binary(Add) Unary(Tanh)", "SpanReduce(Sum)", "Unary(Relu)"];
    assert_eq!(phases(&typed), wanted);
    let joined = ragged(vec![concat("r q t", "v"), op("Tanh v -> z", &[]), sum("z")], vec![port("y", Fp32, &[4])]).unwrap();
    assert_eq!(phases(&joined), ["None: ", "SpanConcat", "Some(13): Unary(Tanh)", "SpanReduce(Sum)", ""]);
    let cut = hoist::by_span(&joined).unwrap();
    let Phase::Whole(whole) = &cut.phases[1] else { panic!("{cut:?}") };
    assert_eq!((whole.span, &whole.operands[..]), (13, &[Feed::Own(7), Feed::Pre(0), Feed::Own(8)][..]));
    assert_eq!(cut.values.iter().map(|value| value.span).collect::<Vec<_>>(), [None, Some(13), Some(13), None]);
    let attention =
        ragged(vec![op("Attention q r t -> z", &heads(1, 1)), op("Add z q -> y", &[])], vec![port("y", Fp32, &[1, 4])]).unwrap();
    let cut = hoist::by_span(&attention).unwrap();
    let [Phase::Rows { half, gives, span: None }, Phase::Whole(whole)] = &cut.phases[..] else { panic!("{cut:?}") };
    assert_eq!((half.cell.operations.len(), &gives[..]), (0, &[0][..]), "the query as it is given");
    assert_eq!(whole.operands, [Feed::Pre(0), Feed::Own(7), Feed::Own(8)]);
    assert_eq!((whole.results.as_slice(), cut.step.feeds.as_slice()), (&[Some(1)][..], &[Feed::Own(11), Feed::Pre(1)][..]));
    assert!(hoist::by_span(&ragged(vec![op("Tanh x -> y", &[])], vec![port("y", Fp32, &[4])]).unwrap()).is_some(), "it has such inputs");
}

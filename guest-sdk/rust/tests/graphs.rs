//! What the builders say on the wire, for graphs beyond a plain chain; and that an author's mistakes are named.

use cellwright_guest::Cell;
use cellwright_guest::prelude::*;
use cellwright_guest::testing::{TestRequest, Weights, evaluate};
use cellwright_guest::types::{Continuation, Extent, Feedback, Pace, Port, Rows, Sibling, SpanOf, Steps};

/// A counter: its state is its number.
fn counter(model: &mut ModelBuilder, name: &str) -> Cell {
    counter_by(model, name, CellBuilder::input)
}

/// What it counts by is an input, or a state.
fn counter_by(model: &mut ModelBuilder, name: &str, by: fn(&mut CellBuilder, &str, Datatype, &[u32]) -> cellwright_guest::Value) -> Cell {
    model.cell(name, |cell| {
        let (n, by) = (cell.state("n", Int64, &[]), by(cell, "by", Int64, &[]));
        let sum = cell.add(n, by);
        cell.next(n, sum);
    })
}

#[test]
fn an_output_of_an_inputs_name_gets_another_on_the_wire() {
    let mut model = ModelBuilder::new();
    let cell = counter(&mut model, "counter");
    assert_eq!((cell.input("n"), cell.input("by"), cell.output("n")), (0, 1, 0));
    let wire = &model.finish().cells[0];
    assert_eq!(wire.outputs[0].name, "next_n");
    assert!(wire.inputs[0].carried && !wire.inputs[1].carried && !wire.outputs[0].carried);
}

#[test]
fn whole_cells_have_the_ports_and_weights_that_their_layers_have() {
    let mut model = ModelBuilder::new();
    model.lstm("lstm", 2, 3, "a.");
    model.gru("gru", 2, 3, RecurrentWeights::cell("b.").without_bias());
    model.linear("head", 3, 4, "c.");
    let described = model.finish().cells.into_iter().map(|cell| {
        let cellwright_guest::types::Body::Operators(operators) = cell.body else { panic!("built from operators") };
        let inputs: Vec<_> = cell.inputs.into_iter().map(|port| (port.name, port.shape, port.carried)).collect();
        let outputs: Vec<_> = cell.outputs.into_iter().map(|port| (port.name, port.shape)).collect();
        let names = operators.into_iter().filter(|operator| operator.kind == "Gemm").flat_map(|gemm| gemm.inputs.into_iter().skip(1));
        (inputs, outputs, names.collect::<Vec<_>>().join(" "))
    });
    let input = |name: &str, width: u32, carried| (name.to_owned(), vec![width], carried);
    let output = |name: &str, width: u32| (name.to_owned(), vec![width]);
    let lstm = "a.weight_ih_l0 a.bias_ih_l0 a.weight_hh_l0 a.bias_hh_l0".to_owned();
    let expected = [
        (vec![input("x", 2, false), input("h", 3, true), input("c", 3, true)], vec![output("next_h", 3), output("next_c", 3)], lstm),
        (vec![input("x", 2, false), input("h", 3, true)], vec![output("next_h", 3)], "b.weight_ih b.weight_hh".to_owned()),
        (vec![input("x", 3, false)], vec![output("y", 4)], "c.weight c.bias".to_owned()),
    ];
    assert_eq!(described.collect::<Vec<_>>(), expected);
}

#[test]
fn a_window_begins_where_a_convolution_of_pytorch_does() {
    let of = OutputRef { chain: 3, stage: 1, output: 2 };
    let line = |window: cellwright_guest::Window| {
        let Source::Many(spans) = window.source() else { panic!("spans") };
        let [span] = spans[..] else { panic!("one span") };
        assert_eq!((span.of, span.count, span.at.from_end), (SpanOf::Chain(of), Some(3), false));
        (span.at.first, span.at.stride, span.every)
    };
    assert_eq!(line(of.window(3)), (-2, 1, 1), "it ends with the step's own row");
    assert_eq!(line(of.window(3).every(4)), (-8, 1, 4));
    assert_eq!(line(of.window(3).every(2).stride(5).before(1)), (-1, 5, 2));
    assert_eq!(line(of.window(3).before(0)), (0, 1, 1));
}

#[test]
fn a_chain_may_see_its_own_steps() {
    let mut model = ModelBuilder::new();
    let cell = model.cell("cell", |cell| {
        let x = cell.input("x", Fp32, &[3, 1]);
        let sum = cell.reshape(x, &[3]);
        let sum = cell.reduce_sum(sum, true);
        let one = cell.constant_float(1.0);
        let y = cell.add(sum, one);
        cell.output("y", y, Fp32, &[1]);
    });
    model.output("y", Fp32, &[-1, 1]);
    let mut growth = GrowthBuilder::new();
    let chain = growth.chain(4).stage(&cell);
    let y = chain.own(0, "y");
    // Each step is one more than the sum of the three before it, and then of three such sums.
    let chain = chain.input("x", y.window(3).before(3).source()).stage(&cell).input("x", y.window(3).source()).add();
    growth.output_all("y", chain.output("y"));
    let evaluated = evaluate(&model.finish(), &growth.finish(), &TestRequest::new(), &Weights::new());
    assert_eq!(evaluated.outputs["y"].values, [2.0, 4.0, 8.0, 15.0]);
}

#[test]
fn a_signal_has_the_frames_that_fit() {
    let request = TestRequest::new().floats("audio", &[61], &[0.5; 61]).ints("tokens", &[2], &[1, 2]).floats("rows", &[2, 2], &[0.0; 4]);
    let request = Request::new(&request);
    let frames = |name: &str, width, hop, max| request.input(name)?.frames(Fp32, (width, hop), max);
    let one = frames("audio", 16, 8, 100).unwrap();
    assert_eq!((one.tensor, one.count), (0, 6));
    let at = |first| Affine { first, stride: 8, from_end: false };
    assert_eq!(one.forward(), Source::Frames(Rows { tensor: 0, at: at(0) }));
    assert_eq!(one.before(5), Source::Frames(Rows { tensor: 0, at: at(-5) }));
    assert_eq!(frames("audio", 61, 100, 1).unwrap().count, 1);
    let refusal = |name, width, hop, max| frames(name, width, hop, max).unwrap_err();
    let invalid = |sentence: &str| Refusal::InvalidInput(sentence.into());
    assert_eq!(refusal("audio", 62, 8, 9), invalid("input `audio` has 61 elements, and a frame takes 62"));
    assert_eq!(refusal("audio", 16, 8, 5), invalid("input `audio` has 6 frames, and this model takes at most 5"));
    assert_eq!(refusal("tokens", 1, 1, 5), invalid("input `tokens` must be FP32 [any], it is INT64 [2]"));
    assert_eq!(refusal("rows", 1, 1, 5), invalid("input `rows` must be FP32 [any], it is FP32 [2, 2]"));
}

#[test]
fn a_graph_with_windows_and_frames_is_computed() {
    let mut model = ModelBuilder::new();
    model.input("audio", Fp32, &[-1]).output("y", Fp32, &[-1, 2]);
    let framed = model.cell("framed", |cell| {
        let x = cell.input("x", Fp32, &[2]);
        let y = cell.neg(x);
        cell.output("y", y, Fp32, &[2]);
    });
    let summed = model.cell("summed", |cell| {
        let (x, y) = (cell.input("x", Fp32, &[2, 2]), cell.input("y", Fp32, &[2, 2]));
        let [x, y] = [x, y].map(|rows| cell.reshape(rows, &[4]));
        let sum = cell.add(x, y);
        let [one, other] = cell.split(sum, [2, 2]);
        let y = cell.add(one, other);
        cell.output("y", y, Fp32, &[2]);
    });
    let request = TestRequest::new().floats("audio", &[7], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let mut growth = GrowthBuilder::new();
    let frames = Request::new(&request).input("audio").unwrap().frames(Fp32, (2, 2), 9).unwrap();
    let x = growth.chain(frames.count).stage(&framed).input("x", frames.before(1)).add().output("y");
    let both = growth.chain(3).stage(&summed).input("x", x.window(2).source()).input("y", x.window(2).before(0).source());
    let y = both.add().output("y");
    growth.output_all("y", y);
    let evaluated = evaluate(&model.finish(), &growth.finish(), &request, &Weights::new());
    // Frames are (0, 1), (2, 3), (4, 5) below zero: each step has its own twice, the one before it and the one after.
    assert_eq!(evaluated.outputs["y"].values, [-2.0, -5.0, -8.0, -12.0, -10.0, -13.0]);
}

#[test]
fn an_input_or_an_output_may_be_passed_on_under_another_name() {
    let mut model = ModelBuilder::new();
    model.cell("twice", |cell| {
        let x = cell.input("x", Int64, &[]);
        cell.output("y", x, Int64, &[]);
        let z = cell.neg(x);
        cell.output("z", z, Int64, &[]);
        cell.output("again", z, Int64, &[]);
    });
    let cells = model.finish().cells;
    let cellwright_guest::types::Body::Operators(operators) = &cells[0].body else { panic!("built from operators") };
    let wire: Vec<_> =
        operators.iter().map(|operator| (operator.kind.as_str(), &operator.inputs[0][..], &operator.outputs[0][..])).collect();
    assert_eq!(wire, [("Identity", "x", "y"), ("Neg", "x", "z"), ("Identity", "z", "again")]);
}

#[test]
fn stages_feedback_stop_like_and_continuations_are_said_as_meant() {
    let mut model = ModelBuilder::new();
    let (first, second) = (counter_by(&mut model, "first", CellBuilder::state), counter(&mut model, "second"));
    let mut growth = GrowthBuilder::after(5);
    let one = Source::Ints(vec![1; 9]);
    let loop_ =
        growth.chain(9).stage(&first).input("by", one).stage(&second).sibling("by", 0, "n").feedback((1, "n"), (0, "by")).stop("n").add();
    let follower = growth.chain_like(&loop_).stage(&first).input("by", loop_.output("n").at(Affine::FROM_END)).add();
    growth.watch_every(3, vec![follower.output("n")]).keep(loop_.output("n")).state(vec![7]).await_input(2).cancel(4);
    let growth = growth.finish();

    let of = |chain, stage| OutputRef { chain, stage, output: 0 };
    let replace = |stage, to_stage, input| Feedback { stage, output: 0, to_stage, input };
    assert_eq!((loop_.number, follower.number), (5, 6));
    assert_eq!(growth.chains[0].stages[1].inputs, [Source::Zeros, Source::Sibling(Sibling { stage: 0, output: 0 })]);
    assert_eq!(growth.chains[0].feedback, [replace(0, 0, 0), replace(1, 1, 0), replace(1, 0, 1)]);
    assert_eq!(growth.chains[0].stop, Some(Sibling { stage: 1, output: 0 }));
    assert_eq!(growth.chains[1].length, Extent::Like(5));
    assert_eq!(growth.chains[1].stages[0].inputs[1], Source::Steps(Steps { of: of(5, 1), at: Affine::FROM_END }));
    let next = Continuation { watch: vec![of(6, 0)], pace: Pace::Every(3), keep: vec![of(5, 1)], keep_tensors_from: 2, state: vec![7] };
    assert_eq!((growth.next, growth.cancel), (Some(next), vec![4]));
}

#[test]
#[should_panic(expected = "input `by` of cell `first` has no source")]
fn an_input_without_a_source_is_the_authors_mistake() {
    let mut model = ModelBuilder::new();
    let first = counter(&mut model, "first");
    GrowthBuilder::new().chain(3).stage(&first).add();
}

#[test]
#[should_panic(expected = "input `by` of cell `first` takes no feedback: it is no state")]
fn feedback_into_what_is_no_state_is_the_authors_mistake() {
    let mut model = ModelBuilder::new();
    let first = counter(&mut model, "first");
    let _ = GrowthBuilder::new().chain(3).stage(&first).feedback((0, "n"), (0, "by"));
}

#[test]
#[should_panic(expected = "input `x` of cell `file` takes no feedback: it is no state")]
fn a_loop_into_what_is_not_carried_is_refused_when_the_model_is_described() {
    let port = |name: &str| Port { name: name.into(), datatype: Int64, shape: vec![], ragged: false, carried: false };
    ModelBuilder::new().onnx_cell("file", "cell.onnx", vec![port("x")], vec![port("y")], &[("y", "x")]);
}

#[test]
#[should_panic(expected = "cell `first` has no output `m`")]
fn an_output_that_does_not_exist_is_the_authors_mistake() {
    let mut model = ModelBuilder::new();
    let _ = counter(&mut model, "first").output("m");
}

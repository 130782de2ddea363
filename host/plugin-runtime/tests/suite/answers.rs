//! Answers as the canonical ABI lays them out in a guest's memory: right ones, and ones that point anywhere.

use cellwright_cell_graph::Tensor;
use cellwright_cell_graph::graph::{Chain, Continuation, Extent, Feedback, Growth, Node, OutputRef, Pace, Series, Source, Stage};
use cellwright_plugin_runtime::{CallError, Event, LimitReached, Limits};

use crate::guest::{Guest, words};
use crate::{model, model_with, nothing};

/// A growth of this many chains, whose records lie at 4096.
fn chains(count: u32) -> Vec<u8> {
    words(&[4096, count, 0, 0, 0, 0, 0])
}

fn failure(guest: &Guest) -> String {
    match model(guest).unfold(&nothing()).unwrap_err() {
        CallError::Failed { cause, .. } => cause,
        other => panic!("{other}"),
    }
}

#[test]
fn a_growth_arrives_as_the_guest_laid_it_out() {
    // At 4096 a chain, at 4144 its stage, at 4160 three sources of 40 bytes, at 4280 a feedback, at 4296 two nodes.
    let chain = words(&[4144, 1, 0, 330, 4280, 1, 1, 0, 2, 1, 1, 6]);
    let stage = words(&[7, 4160, 3, 0]);
    let rows = words(&[4, 0, 1, 0, 329, 0, u32::MAX, 0, 0, 0]);
    let nodes = words(&[8, 0, 0, 1, 4296, 2, 0, 0, 0, 0]);
    let data = [chain, stage, words(&[0; 10]), rows, nodes, words(&[0, 1, 0, 2]), words(&[0, 5, 1, 6])].concat();
    let growth = model(&Guest::answering(&chains(1), &data)).unfold(&nothing()).unwrap();
    let at = cellwright_cell_graph::graph::Affine { first: 329, stride: -1, from_end: false };
    let nodes = Source::Nodes { stage: 0, output: 1, of: vec![Node { chain: 0, step: 5 }, Node { chain: 1, step: 6 }] };
    let expected = Chain {
        stages: vec![Stage { cell: 7, inputs: vec![Source::Zeros, Source::Rows { tensor: 1, at }, nodes] }],
        length: Extent::Fixed(330),
        feedback: vec![Feedback { stage: 0, output: 1, to_stage: 0, input: 2 }],
        stop: Some((0, 2)),
        series: Some(Series::Continues(6)),
    };
    assert_eq!(growth, Growth { chains: vec![expected], ..Growth::default() });
}

#[test]
fn a_continuation_arrives_whole_and_its_state_comes_back() {
    let next = words(&[1, 4096, 1, 1, 5, 0, 0, 3, 4108, 4]);
    let growth = [words(&[0; 6]), next].concat();
    let data = [words(&[9, 8, 7]), vec![1, 2, 3, 4]].concat();
    let answer = model(&Guest::answering(&growth, &data)).unfold(&nothing()).unwrap();
    let watch = vec![OutputRef { chain: 9, stage: 8, output: 7 }];
    let expected = Continuation { watch, pace: Pace::Every(5), keep: vec![], keep_tensors_from: 3, state: vec![1, 2, 3, 4] };
    assert_eq!(answer.next, Some(expected));
    // `resume` traps unless the state it gets is those four bytes and the event is the one sent.
    let expecting = |discriminant: u32, payload: u32| {
        Guest {
        resume: format!(
            "(if (i32.or (i32.ne (local.get 1) (i32.const 4)) (i32.ne (i32.load (local.get 0)) (i32.const 0x04030201))) (then (unreachable)))
            (if (i32.ne (local.get 2) (i32.const {discriminant})) (then (unreachable)))
            (if (i32.ne (local.get 3) (i32.const {payload})) (then (unreachable))) (i32.const 1024)"
        ),
        ..Guest::default()
    }
    };
    for (guest, event) in [(expecting(1, 17), Event::Input(17)), (expecting(2, 0), Event::EndOfInput)] {
        let reaction = model(&guest).resume(&[1, 2, 3, 4], event.clone(), &nothing()).unwrap();
        assert_eq!((reaction.emit.len(), reaction.growth), (0, None));
        assert!(model(&guest).resume(&[1, 2, 3, 5], event, &nothing()).is_err());
    }
}

#[test]
fn watched_values_arrive_and_parts_of_a_response_leave() {
    // A tensor is {name, datatype, shape, data}: its data's pointer lies at 20. The guest traps unless the first value is 2.5, and emits
    // the one FP32 whose record lies at 4096.
    let resume = "(if (i32.or (local.get 2) (i32.ne (local.get 4) (i32.const 1))) (then (unreachable)))
        (if (f32.ne (f32.load (i32.load offset=20 (local.get 3))) (f32.const 2.5)) (then (unreachable))) (i32.const 2048)";
    let record = words(&[4128, 1, 11, 4136, 1, 4144, 4, 0]);
    let data = [record, b"yyyyyyyy".to_vec(), words(&[1, 0]), 7.5_f32.to_le_bytes().to_vec()].concat();
    let guest = Guest { resume: resume.to_owned(), ..Guest::answering(&words(&[4096, 1, 0]), &data) };
    let value = |value| Event::Values(vec![Tensor::from_f32("h", &[1], &[value])]);
    let model = model(&guest);
    let reaction = model.resume(&[], value(2.5), &nothing()).unwrap();
    assert_eq!(reaction.emit, [Tensor::from_f32("y", &[1], &[7.5])]);
    assert!(model.resume(&[], value(2.0), &nothing()).is_err());
}

#[test]
fn pointers_and_lengths_that_leave_memory_are_errors() {
    for growth in [
        words(&[0xffff_fff0, 1, 0, 0, 0, 0, 0]),
        words(&[4096, u32::MAX, 0, 0, 0, 0, 0]),
        words(&[4096, 0x0800_0000, 0, 0, 0, 0, 0]),
        words(&[262_140, 1, 0, 0, 0, 0, 0]),
        words(&[0, 0, 0, 0, u32::MAX, 1, 0]),
    ] {
        let sentence = failure(&Guest::answering(&growth, &[]));
        assert!(sentence.contains("out of bounds"), "{sentence}");
    }
    let sentence = failure(&Guest::unfolding("(i32.const -4)"));
    assert!(sentence.contains("out of bounds"), "{sentence}");
    let sentence = failure(&Guest::unfolding("(i32.const 1025)"));
    assert!(sentence.contains("not aligned"), "{sentence}");
    let sentence = failure(&Guest::answering(&words(&[4097, 1, 0, 0, 0, 0, 0]), &[]));
    assert!(sentence.contains("not aligned"), "{sentence}");
}

#[test]
fn unknown_variants_are_errors() {
    let sentence = failure(&Guest::answering(&chains(1), &words(&[0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0])));
    assert!(sentence.contains("discriminant"), "{sentence}");
}

#[test]
fn text_that_is_not_utf8_is_an_error() {
    let growth = words(&[0, 0, 4096, 1, 0, 0, 0]);
    let output = [words(&[4200, 2, 0, 0, 0, 0, 0, 0]), vec![0; 72], vec![0xc3, 0x28]].concat();
    let sentence = failure(&Guest::answering(&growth, &output));
    assert!(sentence.contains("utf-8"), "{sentence}");
}

#[test]
fn lists_that_share_their_memory_do_not_multiply_in_the_host() {
    // 1200 chains, each with the same 15000 stages: 234 KiB for the guest, more than 500 MB for the host.
    let chain = words(&[65536, 15_000, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let guest = Guest::answering(&chains(1200), &chain.repeat(1200));
    let error = model(&guest).unfold(&nothing()).unwrap_err();
    assert!(matches!(error, CallError::Limit { limit: LimitReached::AnswerBytes(_), .. }), "{error}");
}

#[test]
fn answers_have_a_largest_number_of_chains_and_elements_and_bytes_of_state() {
    let limit = |guest: &Guest, limits: &Limits| match model_with(guest, limits).unfold(&nothing()) {
        Err(CallError::Limit { limit, .. }) => limit,
        other => panic!("{other:?}"),
    };
    let many = Guest::answering(&chains(10), &words(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]).repeat(10));
    assert_eq!(model_with(&many, &Limits { chains: 10, ..Limits::default() }).unfold(&nothing()).unwrap().chains.len(), 10);
    assert_eq!(limit(&many, &Limits { chains: 9, ..Limits::default() }), LimitReached::Chains(9));
    assert_eq!(limit(&many, &Limits { list_elements: 9, ..Limits::default() }), LimitReached::ListElements(9));
    let state = Guest::answering(&words(&[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 100]), &[]);
    assert_eq!(limit(&state, &Limits { state_bytes: 99, ..Limits::default() }), LimitReached::StateBytes(99));
}

#[test]
fn a_literal_that_contradicts_itself_is_an_error() {
    // One chain, one stage, one literal: FP32 (11) of shape [2] with four bytes.
    let literal = words(&[1, 0, 0, 0, 11, 4208, 1, 4208, 4, 0, 0, 0]);
    let data = [words(&[4144, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), words(&[0, 4160, 1, 0]), literal, words(&[2, 0])].concat();
    let sentence = failure(&Guest::answering(&chains(1), &data));
    assert_eq!(sentence, "tensor `` has 4 bytes, which do not make FP32 of shape [2]");
}

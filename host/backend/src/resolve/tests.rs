//! Where inputs are found: by chains, tensors, rings and ends.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use cellwright_cell_graph::unfolded::{Grouping, Length, Successors, UnfoldedChain, UnfoldedInput, UnfoldedStage};
use cellwright_cell_graph::{UnfoldedGrowth, graph};

use super::*;
use crate::{EarlierChain, RequestFlags};

const EARLIER: u32 = 4;

fn chain(cell: u32, bound: u32, like: Option<u32>, retention: Retention, inputs: Vec<UnfoldedInput>) -> UnfoldedChain {
    let stage = UnfoldedStage {
        cell,
        inputs,
        depends: vec![],
        named_producers: vec![],
        successors: Successors::default(),
        retention,
        grouping: Grouping::Each,
        delivery: vec![],
    };
    UnfoldedChain { stages: vec![stage], length: Length { bound, like }, sequential: false, stop: None, continues: None }
}

/// Chain 5, which stopped after three of its eight steps, and chain 6, which follows it and has that input.
fn lane(input: UnfoldedInput) -> Lane {
    let chains = vec![chain(0, 8, None, Retention::All, vec![]), chain(1, 8, Some(5), Retention::Double, vec![input])];
    let growth = UnfoldedGrowth { first_chain: 5, chains, outputs: vec![], cancel: vec![], next: None, nodes: 16, shared: None };
    let earlier = EarlierChain { chain: EARLIER, stages: vec![(Slot(900), Retention::All, 1)], executed: ([AtomicU32::new(2)].into(), 0) };
    let placed = PlacedGrowth {
        growth: Arc::new(growth),
        cells: [CellTypeId(30), CellTypeId(31)].into(),
        slots: [vec![Slot(100)], vec![Slot(200)]].into(),
        executed: [AtomicU32::new(3), AtomicU32::new(8)].into(),
        earlier: vec![earlier],
        tensors: [("x", &[0, 1, 10, 11, 20, 21, 30, 31][..]), ("z", &[7, 7]), ("x", &[40, 41, 50, 51])]
            .map(|(name, numbers)| Arc::new(Tensor::from_i64(name, &[numbers.len() / 2, 2], numbers)))
            .to_vec(),
        first_tensor: 2,
        flags: Arc::new(RequestFlags::default()),
    };
    Lane { growth: Arc::new(placed), chain: 1, stage: 0 }
}

fn seen(source: Source, step: u32) -> InputRef<'static> {
    Box::leak(Box::new(lane(UnfoldedInput { source, feedback: None }))).input(0, step)
}

const fn at(first: i64, stride: i32, from_end: bool) -> Affine {
    Affine { first, stride, from_end }
}

fn slot(first: u32, place: u32, cell: u32) -> InputRef<'static> {
    InputRef::Slot { first: Slot(first), place, output: 1, cell: CellTypeId(cell) }
}

#[test]
fn chains_end_where_they_stopped() {
    let steps = |chain, at| Source::Steps { chain, stage: 0, output: 1, at };
    assert_eq!(seen(steps(5, Affine::EVERY), 2), slot(100, 2, 30));
    assert_eq!(seen(steps(5, at(0, 1, true)), 0), slot(100, 2, 30), "the last executed step, not the last possible one");
    assert_eq!(seen(steps(5, at(0, 1, true)), 2), slot(100, 0, 30));
    assert_eq!(seen(steps(5, at(0, 1, true)), 3), InputRef::Zeros, "there is nothing before the first");
    assert_eq!(seen(Source::Last { chain: 5, stage: 0, output: 1 }, 0), slot(100, 2, 30));
    assert_eq!(seen(Source::Last { chain: 6, stage: 0, output: 1 }, 0), slot(200, 0, 31), "step 2 of a follower lies in place 0");
    assert_eq!(seen(Source::Last { chain: EARLIER, stage: 0, output: 1 }, 0), slot(900, 1, 31));
    assert_eq!(seen(Source::Last { chain: 3, stage: 0, output: 1 }, 0), InputRef::Zeros);
}

#[test]
fn nodes_rows_and_numbers() {
    let of = vec![graph::Node { chain: 5, step: 1 }, graph::Node { chain: EARLIER, step: 1 }];
    let nodes = Source::Nodes { stage: 0, output: 1, of };
    assert_eq!(seen(nodes.clone(), 0), slot(100, 1, 30));
    assert_eq!(seen(nodes.clone(), 1), slot(900, 1, 31));
    assert_eq!(seen(nodes, 2), InputRef::Zeros);
    let beyond = |step| Source::Nodes { stage: 0, output: 1, of: vec![graph::Node { chain: EARLIER, step }] };
    assert_eq!(seen(beyond(2), 0), InputRef::Zeros, "it executed two");
    assert_eq!(seen(Source::Steps { chain: EARLIER, stage: 0, output: 1, at: at(2, 0, false) }, 0), InputRef::Zeros);
    let bytes = |first: i64| InputRef::Host([first.to_le_bytes(), (first + 1).to_le_bytes()].concat().leak());
    assert_eq!(seen(Source::Rows { tensor: 2, at: at(3, -1, false) }, 1), bytes(20));
    assert_eq!(seen(Source::Rows { tensor: 2, at: at(0, 1, true) }, 1), bytes(20));
    assert_eq!(seen(Source::Rows { tensor: 2, at: at(4, 1, false) }, 0), InputRef::Zeros);
    assert_eq!(seen(Source::Rows { tensor: 1, at: Affine::EVERY }, 0), InputRef::Zeros, "a tensor that was let go of");
    assert_eq!(seen(Source::Ints(vec![7, 8]), 1), InputRef::Int(8));
    assert_eq!(seen(Source::Index(at(5, 2, false)), 3), InputRef::Int(11));
    assert_eq!(seen(Source::Index(at(0, 1, true)), 0), InputRef::Int(2));
}

#[test]
fn a_window_sees_rows_and_zeros_beyond_either_end() {
    let rows = |runs: &[Run], step| match seen(Source::Window(runs.into()), step) {
        InputRef::Window(window) => window.rows().collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let of = |chain| RunOf::Chain { chain, stage: 0, output: 1 };
    let run = |of, at, every, count| Run { of, at, every, count };
    let causal = [run(of(5), at(-1, 1, false), 1, 3)];
    assert_eq!(rows(&causal, 0), [InputRef::Zeros, slot(100, 0, 30), slot(100, 1, 30)]);
    assert_eq!(rows(&causal, 2), [slot(100, 1, 30), slot(100, 2, 30), InputRef::Zeros], "it executed three");
    let wide = [run(of(5), at(-2, 0, false), 2, 2), run(of(EARLIER), at(0, 1, true), 1, 2)];
    assert_eq!(rows(&wide, 0), [InputRef::Zeros, slot(100, 0, 30), slot(900, 1, 31), InputRef::Zeros]);
    assert_eq!(rows(&wide, 1), [InputRef::Zeros, slot(100, 0, 30), slot(900, 0, 31), slot(900, 1, 31)]);
    let tensor = [run(RunOf::Tensor(2), at(2, 3, false), 1, 2)];
    let bytes = |first: i64| InputRef::Host([first.to_le_bytes(), (first + 1).to_le_bytes()].concat().leak());
    assert_eq!(rows(&tensor, 0), [bytes(20), bytes(30)]);
    assert_eq!(rows(&tensor, 1), [InputRef::Zeros; 2]);
    assert_eq!(rows(&[run(RunOf::Tensor(1), Affine::EVERY, 1, 1)], 0), [InputRef::Zeros], "a tensor that was let go of");
}

#[test]
fn a_frame_sees_earlier_tensors_of_its_name_and_zeros_beyond_them() {
    let frame = |tensor, first, step| match seen(Source::Frames { tensor, at: at(first, 3, false) }, step) {
        InputRef::Frame(frame) => {
            let mut bytes = [9; 24];
            frame.copy_to(&mut bytes);
            bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect::<Vec<i64>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!([frame(2, -1, 0), frame(2, -1, 1)], [[0, 0, 1], [10, 11, 20]]);
    assert_eq!([frame(2, 7, 0), frame(2, 7, 1)], [[31, 0, 0], [0, 0, 0]]);
    assert_eq!([frame(4, -1, 0), frame(4, -1, 1)], [[31, 40, 41], [50, 51, 0]]);
    assert_eq!([frame(4, -9, 0), frame(4, -3, 0)], [[0, 0, 1], [21, 30, 31]], "another input's tensor is between them");
}

#[test]
fn rows_before_the_first_are_those_of_earlier_tensors() {
    let run = |first, every, count| [Run { of: RunOf::Tensor(4), at: at(first, 0, false), every, count }];
    let first_numbers = |from: InputRef<'_>| match from {
        InputRef::Host(bytes) => i64::from_le_bytes(*bytes.first_chunk::<8>().expect("a row")),
        _ => -1,
    };
    let window = |first, every, count| match seen(Source::Window(run(first, every, count).into()), 0) {
        InputRef::Window(window) => window.rows().map(first_numbers).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(window(-2, 1, 5), [20, 30, 40, 50, -1]);
    assert_eq!(window(-6, 2, 4), [-1, 0, 20, 40]);
    let span = |first, every, count| match seen(Source::Span(run(first, every, count).into()), 0) {
        InputRef::Span(span) => span.pieces().map(|piece| (first_numbers(piece.first), piece.rows)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(span(-9, 1, 20), [(0, 4), (40, 2)]);
    assert_eq!(span(-3, 2, 3), [(10, 2), (50, 1)]);
}

#[test]
fn rows_of_a_series_lie_in_a_ring() {
    let seen = |source: Source, step| {
        let mut lane = lane(UnfoldedInput { source, feedback: None });
        let graph = Arc::get_mut(&mut Arc::get_mut(&mut lane.growth).expect("nobody else has it").growth).expect("nor that");
        graph.chains[0].stages[0].retention = Retention::Ring { places: 8, first: 6, before: 3 };
        Box::leak(Box::new(lane)).input(0, step)
    };
    let of = RunOf::Chain { chain: 5, stage: 0, output: 1 };
    let run = |first, stride, every, count| [Run { of, at: at(first, stride, false), every, count }];
    let InputRef::Window(window) = seen(Source::Window(run(-4, 1, 1, 8).into()), 0) else { panic!("a window") };
    let places = [3, 4, 5, 6, 7, 0].map(|place| slot(100, place, 30));
    assert_eq!(window.rows().collect::<Vec<_>>(), [&[InputRef::Zeros][..], &places, &[InputRef::Zeros]].concat());
    let pieces = |runs: [Run; 1], step| match seen(Source::Span(runs.into()), step) {
        InputRef::Span(span) => span.pieces().map(|piece| (piece.first, piece.rows)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(pieces(run(-9, 1, 1, 20), 0), [(slot(100, 3, 30), 5), (slot(100, 0, 30), 1)], "two runs at most");
    assert_eq!(pieces(run(-3, 1, 2, 3), 1), [(slot(100, 4, 30), 2), (slot(100, 0, 30), 1)]);
    assert_eq!(pieces(run(-2, 0, 1, 1), 0), [(slot(100, 4, 30), 1)]);
}

#[test]
fn a_feedback_replaces_the_source_from_step_one_on() {
    let lane = lane(UnfoldedInput { source: Source::Ints(vec![7]), feedback: Some((0, 1)) });
    assert_eq!(lane.input(0, 0), InputRef::Int(7));
    assert_eq!([lane.input(0, 1), lane.input(0, 2)], [slot(200, 0, 31), slot(200, 1, 31)]);
    assert_eq!(lane.input(1, 0), InputRef::Zeros);
}

#[test]
fn a_giver_is_a_node_of_the_same_growth() {
    // Chain 5 takes the numbers 10 to 17, so step 2 takes 12.
    let giver = |source: Source, feedback, step| {
        let mut lane = lane(UnfoldedInput { source, feedback });
        let growth = Arc::get_mut(&mut lane.growth).expect("nobody else has it");
        let graph = Arc::get_mut(&mut growth.growth).expect("nor that");
        graph.chains[0].stages[0].inputs = vec![UnfoldedInput { source: Source::Ints((10..18).collect()), feedback: None }];
        lane.giver(0, step).map(|giver| {
            let InputRef::Int(number) = giver.input else { return (giver.cell.0, giver.output, None) };
            (giver.cell.0, giver.output, Some(number))
        })
    };
    let of = |chain| vec![graph::Node { chain, step: 2 }];
    assert_eq!(giver(Source::Nodes { stage: 0, output: 1, of: of(5) }, None, 0), Some((30, 1, Some(12))));
    assert_eq!(giver(Source::Steps { chain: 5, stage: 0, output: 0, at: at(0, 1, false) }, None, 1), Some((30, 0, Some(11))));
    assert_eq!(giver(Source::Last { chain: 5, stage: 0, output: 1 }, None, 0), Some((30, 1, Some(12))), "the last of three");
    assert_eq!(giver(Source::Nodes { stage: 0, output: 1, of: of(EARLIER) }, None, 0), None, "of an earlier growth");
    assert_eq!(giver(Source::Ints(vec![7, 8]), None, 1), None, "no node");
    let fed_back = |step| giver(Source::Nodes { stage: 0, output: 1, of: of(5) }, Some((0, 1)), step);
    assert_eq!(
        [fed_back(0), fed_back(1)],
        [Some((30, 1, Some(12))), Some((31, 1, None))],
        "its own step before, which takes what chain 5 gives"
    );
}

#[test]
fn spans_have_the_rows_that_are_there() {
    let span = |of: RunOf, at: Affine, every: u32, count: u32| Source::Span([Run { of, at, every, count }].into());
    let chain = RunOf::Chain { chain: 5, stage: 0, output: 1 };
    let pieces = |source: Source, step: u32| match seen(source, step) {
        InputRef::Span(span) => {
            assert_eq!(span.rows(), span.pieces().map(|piece| piece.rows).sum::<u32>());
            span.pieces().map(|piece| (piece.first, piece.rows, piece.every)).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let all = |at, count| pieces(span(chain, at, 1, count), 2);
    assert_eq!(all(at(0, 0, false), u32::MAX), [(slot(100, 0, 30), 3, 1)], "as far as it was executed");
    assert_eq!(all(at(-4, 1, false), 4), [(slot(100, 0, 30), 2, 1)], "rows before the first are none");
    assert_eq!(all(at(-4, 1, false), 2), []);
    assert_eq!(all(at(3, 0, false), u32::MAX), []);
    assert_eq!(all(at(1, 0, true), u32::MAX), [(slot(100, 1, 30), 2, 1)]);
    assert_eq!(
        pieces(span(chain, at(-3, 0, false), 2, 9), 0),
        [(slot(100, 1, 30), 1, 2)],
        "distances count from the first row, there or not"
    );
    let rows = |first, every, count| pieces(span(RunOf::Tensor(2), at(first, 0, false), every, count), 0);
    let counted = |pieces: Vec<(InputRef<'_>, u32, u32)>| {
        pieces
            .iter()
            .map(|(first, rows, every)| (matches!(first, InputRef::Host(bytes) if bytes.len() % 16 == 0), *rows, *every))
            .collect::<Vec<_>>()
    };
    assert_eq!(counted(rows(1, 2, u32::MAX)), [(true, 2, 2)]);
    assert_eq!(counted(rows(-1, 1, 4)), [(true, 3, 1)]);
}

#[test]
fn what_came_with_the_request_is_given() {
    let given = |source: Source, feedback| lane(UnfoldedInput { source, feedback }).is_given(0);
    let of = vec![graph::Node { chain: 5, step: 1 }];
    let given_ones = [
        Source::Zeros,
        Source::Literal([1].into()),
        Source::Ints(vec![7]),
        Source::Index(at(5, 2, false)),
        Source::Rows { tensor: 2, at: at(0, 1, true) },
    ];
    for source in given_ones {
        assert!(given(source.clone(), None), "{source:?}");
        assert!(!given(source.clone(), Some((0, 1))), "{source:?} and then what a node gives");
    }
    let others = [
        Source::Index(at(0, 1, true)),
        Source::Steps { chain: 5, stage: 0, output: 1, at: Affine::EVERY },
        Source::Last { chain: 5, stage: 0, output: 1 },
        Source::Nodes { stage: 0, output: 1, of },
        Source::Sibling { stage: 0, output: 1 },
    ];
    for source in others {
        assert!(!given(source.clone(), None), "{source:?}");
    }
}

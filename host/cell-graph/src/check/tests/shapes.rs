//! What checked growths look like, by hand.

use std::sync::Arc;

use crate::check::{GraphLimits, Model, Unfolding};
use crate::generate::{self, CELLS, ModelShape};
use crate::graph::{
    Affine, Chain, Continuation, Extent, Feedback, Gathered, Growth, Node, OutputRef, Pace, ResponseTensor, Source, Span, SpanOf, Stage,
};
use crate::tensor::Tensor;
use crate::unfolded::{self, Delivery, Dependency, Grouping, Length, ResponseFrom, Retention, Run, RunOf, UnfoldedGrowth};

fn model() -> Arc<Model> {
    generate::model_of(ModelShape { width: 2, hidden: 2, vocabulary: 4, spans: false }, 1)
}

fn tensors() -> Vec<Arc<Tensor>> {
    vec![Arc::new(Tensor::from_f32("x", &[7, 2], &[0.0; 14])), Arc::new(Tensor::from_i64("tokens", &[7], &[0; 7]))]
}

fn unfold(growth: Growth) -> UnfoldedGrowth {
    Unfolding::new(model(), GraphLimits::default()).grow(growth, 0, &tensors()).unwrap()
}

const fn of(chain: u32, stage: u32, output: u32) -> OutputRef {
    OutputRef { chain, stage, output }
}

const fn feed(stage: u32, output: u32, to_stage: u32, input: u32) -> Feedback {
    Feedback { stage, output, to_stage, input }
}

const fn at(first: i64, stride: i32, from_end: bool) -> Affine {
    Affine { first, stride, from_end }
}

fn chain(cell: u32, steps: u32, inputs: Vec<Source>, feedback: Vec<Feedback>) -> Chain {
    Chain { stages: vec![Stage { cell, inputs }], length: Extent::Fixed(steps), feedback, stop: None, series: None }
}

fn lstm(cell: u32, steps: u32, x: Source) -> Chain {
    chain(cell, steps, vec![x, Source::Zeros, Source::Zeros], vec![feed(0, 0, 0, 1), feed(0, 1, 0, 2)])
}

fn rows(at: Affine) -> Source {
    Source::Rows { tensor: 0, at }
}

fn steps(chain: u32, at: Affine) -> Source {
    Source::Steps { of: of(chain, 0, 0), at }
}

/// A decoder over `steps` at most, from nothing; it may stop.
fn decoder(steps: u32) -> Chain {
    let inputs = vec![Source::Ints(vec![1]), Source::Zeros, Source::Zeros];
    Chain { stop: Some((0, 3)), ..chain(CELLS.decoder, steps, inputs, vec![feed(0, 2, 0, 0), feed(0, 0, 0, 1), feed(0, 1, 0, 2)]) }
}

fn respond(name: &str, from: Gathered) -> ResponseTensor {
    ResponseTensor { name: name.to_owned(), from, stream: false }
}

fn of_chains(chains: Vec<Chain>) -> Growth {
    Growth { chains, ..Growth::default() }
}

#[test]
fn an_lstm_is_one_subgraph_that_holds_two_steps() {
    let mut growth = of_chains(vec![lstm(CELLS.lstm, 7, rows(at(6, -1, false)))]);
    growth.outputs = vec![respond("last", Gathered::Last(of(0, 0, 0)))];
    let unfolded = unfold(growth);
    let stage = &unfolded.chains[0].stages[0];
    assert_eq!(stage.depends, [Dependency::Previous { stage: 0 }]);
    assert_eq!((stage.retention, &stage.grouping), (Retention::Double, &Grouping::Whole));
    assert_eq!(stage.delivery, [Delivery::Last, Delivery::None]);
    assert_eq!(stage.inputs[0].source, unfolded::Source::Rows { tensor: 0, at: at(6, -1, false) });
    assert_eq!(stage.inputs[1].feedback, Some((0, 0)));
    assert_eq!(unfolded.chains[0].length, Length { bound: 7, like: None });
    assert!(unfolded.chains[0].sequential && !unfolded.chains[0].may_stop());
    assert_eq!((unfolded.nodes, unfolded.outputs[0].output), (7, 0));
    assert_eq!(unfolded.outputs[0].from, ResponseFrom::Last((0, 0, 0)));
}

#[test]
fn one_step_holds_nothing_that_nobody_reads() {
    let unfolded = unfold(of_chains(vec![lstm(CELLS.lstm, 1, rows(Affine::EVERY))]));
    assert_eq!(unfolded.chains[0].stages[0].retention, Retention::None);
}

#[test]
fn from_end_is_counted_from_the_front_where_the_end_is_known() {
    let unfolded = unfold(of_chains(vec![
        lstm(CELLS.lstm, 5, rows(at(1, 1, true))),
        lstm(CELLS.stacked, 5, steps(0, at(0, 1, true))),
        lstm(CELLS.stacked, 1, steps(0, at(1, i32::MIN, true))),
    ]));
    assert_eq!(unfolded.chains[0].stages[0].inputs[0].source, unfolded::Source::Rows { tensor: 0, at: at(5, -1, false) });
    let stage = &unfolded.chains[1].stages[0];
    assert_eq!(stage.inputs[0].source, unfolded::Source::Steps { chain: 0, stage: 0, output: 0, at: at(4, -1, false) });
    assert!(stage.depends.contains(&Dependency::Step { chain: 0, stage: 0, at: at(4, -1, false) }));
    assert!(unfolded.chains[2].stages[0].depends.contains(&Dependency::Step { chain: 0, stage: 0, at: at(3, 0, false) }));
    assert_eq!(unfolded.chains[0].stages[0].retention, Retention::All);
}

#[test]
fn who_follows_a_stop_learns_late_where_it_ends() {
    let like = |like, at| Chain { length: Extent::Like(like), ..lstm(CELLS.stacked, 1, steps(0, at)) };
    let mut growth = of_chains(vec![decoder(6), like(0, Affine::EVERY), like(1, at(0, 1, true))]);
    growth.outputs = vec![respond("last", Gathered::Last(of(2, 0, 0))), respond("generated", Gathered::All(of(0, 0, 2)))];
    let unfolded = unfold(growth);
    assert_eq!(unfolded.chains[0].length, Length { bound: 6, like: None });
    assert_eq!(unfolded.chains[1].length, Length { bound: 6, like: Some(0) });
    assert_eq!(unfolded.chains[2].length, Length { bound: 6, like: Some(0) });
    assert!(unfolded.chains[1].stages[0].depends.contains(&Dependency::Step { chain: 0, stage: 0, at: Affine::EVERY }));
    assert!(unfolded.chains[2].stages[0].depends.contains(&Dependency::End { chain: 0 }));
    assert_eq!(unfolded.chains[2].stages[0].delivery[0], Delivery::All);
    assert_eq!(unfolded.chains[0].stages[0].delivery, [Delivery::None, Delivery::None, Delivery::All, Delivery::None]);
}

#[test]
fn a_chain_like_one_that_never_stops_is_as_long() {
    let mut follower = lstm(CELLS.stacked, 1, steps(0, Affine::EVERY));
    follower.length = Extent::Like(0);
    let unfolded = unfold(of_chains(vec![lstm(CELLS.lstm, 5, rows(Affine::EVERY)), follower]));
    assert_eq!(unfolded.chains[1].length, Length { bound: 5, like: None });
}

#[test]
fn stages_that_feed_one_another_are_nodes_of_their_own() {
    let mut two = lstm(CELLS.decoder_state, 5, Source::Ints(vec![1]));
    two.stages.push(Stage { cell: CELLS.projection, inputs: vec![Source::Sibling { stage: 0, output: 0 }] });
    two.feedback.push(feed(1, 0, 0, 0));
    two.stop = Some((1, 1));
    let mut growth = of_chains(vec![two]);
    growth.outputs = vec![respond("last", Gathered::Last(of(0, 0, 0)))];
    let unfolded = unfold(growth);
    let [state, projection] = &unfolded.chains[0].stages[..] else { panic!("two stages") };
    // Its last row runs before the projection says that it was the last.
    assert_eq!(state.delivery[0], Delivery::All);
    assert_eq!(state.depends, [Dependency::Previous { stage: 0 }, Dependency::Previous { stage: 1 }]);
    assert_eq!(projection.depends, [Dependency::Sibling { stage: 0 }]);
    assert_eq!((&state.grouping, &projection.grouping), (&Grouping::Each, &Grouping::Each));
    assert_eq!((state.retention, projection.retention), (Retention::Double, Retention::Double));
}

#[test]
fn a_stage_that_may_run_ahead_is_held_whole() {
    // Stage 0 has no state, so that all its steps may run before stage 1 begins.
    let mut two = chain(CELLS.leaf, 5, vec![Source::Index(at(0, 0, false))], vec![]);
    two.stages.push(Stage { cell: CELLS.stacked, inputs: vec![Source::Sibling { stage: 0, output: 0 }, Source::Zeros, Source::Zeros] });
    two.feedback = vec![feed(1, 0, 1, 1), feed(1, 1, 1, 2)];
    let unfolded = unfold(of_chains(vec![two]));
    let [ahead, state] = &unfolded.chains[0].stages[..] else { panic!("two stages") };
    assert_eq!((ahead.retention, state.retention), (Retention::All, Retention::Double));
    assert_eq!((&ahead.grouping, &state.grouping), (&Grouping::Each, &Grouping::Whole));
}

/// A chain that sees three states of another at each step, and a frame of 4 elements.
fn window(chain: u32, steps: Extent, states: Affine, every: u32, frames: Affine) -> Chain {
    let span = Span { of: SpanOf::Chain(of(chain, 0, 0)), at: states, every, count: Some(3) };
    let inputs = vec![Source::Many(vec![span]), Source::Frames { tensor: 0, at: frames }, Source::Zeros];
    Chain { stages: vec![Stage { cell: CELLS.window, inputs }], length: steps, feedback: vec![], stop: None, series: None }
}

fn run(chain: u32, at: Affine, every: u32) -> unfolded::Source {
    unfolded::Source::Window([Run { of: RunOf::Chain { chain, stage: 0, output: 0 }, at, every, count: 3 }].into())
}

#[test]
fn a_window_waits_for_all_steps_as_far_as_its_last_row() {
    let frames = at(-4, 3, false);
    let unfolded = unfold(of_chains(vec![
        lstm(CELLS.lstm, 5, rows(Affine::EVERY)),
        window(0, Extent::Fixed(5), at(-4, 1, false), 2, frames),
        window(0, Extent::Fixed(5), at(0, 1, true), 1, at(13, -1, true)),
        window(0, Extent::Fixed(2), at(-9, 1, false), 2, frames),
    ]));
    assert_eq!(unfolded.chains[0].stages[0].retention, Retention::All);
    let [_, causal, backward, before] = &unfolded.chains[..] else { panic!("four chains") };
    let stage = &causal.stages[0];
    assert_eq!(stage.inputs[0].source, run(0, at(-4, 1, false), 2));
    assert_eq!(stage.inputs[1].source, unfolded::Source::Frames { tensor: 0, at: frames });
    assert_eq!(stage.depends, [Dependency::Through { chain: 0, stage: 0, at: at(0, 1, false) }]);
    assert_eq!((&stage.grouping, causal.sequential), (&Grouping::Each, false));
    // Counted from the front, where that is known: the last row of step 0 lies two steps behind the end.
    let stage = &backward.stages[0];
    assert_eq!(stage.inputs[0].source, run(0, at(4, -1, false), 1));
    assert_eq!(stage.inputs[1].source, unfolded::Source::Frames { tensor: 0, at: at(0, 1, false) });
    assert_eq!(stage.depends, [Dependency::Through { chain: 0, stage: 0, at: at(6, -1, false) }]);
    assert_eq!(before.stages[0].depends, [], "it sees zeros alone");
}

#[test]
fn a_window_over_a_chain_that_may_stop_waits_for_its_end_unless_it_follows_it() {
    let every = |first| at(first, 1, false);
    let of_decoder = |steps, first| window(0, steps, every(first), 1, Affine::EVERY);
    let unfolded = unfold(of_chains(vec![
        decoder(6),
        of_decoder(Extent::Like(0), -2),
        of_decoder(Extent::Like(0), -1),
        of_decoder(Extent::Fixed(6), -2),
        window(1, Extent::Like(0), every(-2), 1, Affine::EVERY),
        window(0, Extent::Like(1), at(-2, 1, true), 1, Affine::EVERY),
    ]));
    let depends: Vec<_> = unfolded.chains[1..].iter().map(|chain| &chain.stages[0].depends[..]).collect();
    let (end, through) = ([Dependency::End { chain: 0 }], |chain| [Dependency::Through { chain, stage: 0, at: Affine::EVERY }]);
    assert_eq!(depends, [&through(0)[..], &end, &end, &through(1), &end]);
    assert_eq!(unfolded.chains[5].stages[0].inputs[0].source, run(0, at(-2, 1, true), 1));
}

#[test]
fn a_window_over_its_own_chain_waits_for_earlier_steps_and_stages() {
    let span = |stage, first| Span { of: SpanOf::Chain(of(0, stage, 0)), at: at(first, 1, false), every: 1, count: Some(3) };
    let inputs = |states| vec![Source::Many(vec![states]), Source::Zeros, Source::Zeros];
    let mut two = chain(CELLS.window, 5, inputs(span(0, -3)), vec![]);
    two.stages.push(Stage { cell: CELLS.window, inputs: inputs(span(0, -2)) });
    let unfolded = unfold(of_chains(vec![two]));
    let [first, second] = &unfolded.chains[0].stages[..] else { panic!("two stages") };
    assert_eq!(first.depends, [Dependency::Through { chain: 0, stage: 0, at: at(-1, 1, false) }]);
    assert_eq!(second.depends, [Dependency::Through { chain: 0, stage: 0, at: at(0, 1, false) }]);
    assert_eq!((first.retention, second.retention), (Retention::All, Retention::None));
    assert_eq!((&first.grouping, &second.grouping), (&Grouping::Each, &Grouping::Each));
    assert!(!unfolded.chains[0].sequential);
    // One that sees its own steps and has a state, too, is no subgraph of several steps.
    let state = chain(CELLS.window, 5, inputs(span(0, -3)), vec![feed(0, 0, 0, 2)]);
    let unfolded = unfold(of_chains(vec![state]));
    assert_eq!(unfolded.chains[0].stages[0].grouping, Grouping::Each);
    // A state that a window of the other stage comes back to is no subgraph of several steps.
    let mut loops = lstm(CELLS.stacked, 5, Source::Zeros);
    loops.stages[0].inputs[0] = Source::Zeros;
    loops.stages.push(Stage { cell: CELLS.window, inputs: inputs(span(0, -2)) });
    loops.feedback[0] = feed(1, 0, 0, 1);
    let unfolded = unfold(of_chains(vec![loops]));
    assert!(unfolded.chains[0].stages.iter().all(|stage| stage.grouping == Grouping::Each));
}

#[test]
fn a_tree_knows_who_waits_for_whom() {
    // ((leaf 0, leaf 1), leaf 2), and leaf 2 again on its own.
    let node = |chain, step| Node { chain, step };
    let (left, right) = (vec![node(0, 0), node(1, 0), node(0, 2)], vec![node(0, 1), node(0, 2), node(0, 2)]);
    let nodes = |output, of: &Vec<Node>| Source::Nodes { stage: 0, output, of: of.clone() };
    let inputs = vec![nodes(0, &left), nodes(1, &left), nodes(0, &right), nodes(1, &right)];
    let leaves = chain(CELLS.leaf, 3, vec![Source::Rows { tensor: 1, at: Affine::EVERY }], vec![]);
    let unfolded = unfold(of_chains(vec![leaves, chain(CELLS.internal, 3, inputs, vec![])]));
    let (leaf, internal) = (&unfolded.chains[0].stages[0], &unfolded.chains[1].stages[0]);
    assert_eq!(leaf.successors.offsets, [0, 1, 2, 4]);
    assert_eq!(leaf.successors.targets, [(1, 0, 0), (1, 0, 0), (1, 0, 1), (1, 0, 2)]);
    assert_eq!(internal.successors.offsets, [0, 1, 1, 1]);
    assert_eq!(internal.successors.targets, [(1, 0, 1)]);
    assert_eq!(internal.named_producers, [2, 2, 1]);
    assert_eq!(internal.depends, [0, 1, 2, 3].map(|input| Dependency::Nodes { input }));
    assert_eq!((&leaf.grouping, &internal.grouping), (&Grouping::Each, &Grouping::Components(vec![0, 0, 1])));
    assert_eq!((leaf.retention, internal.retention), (Retention::All, Retention::All));
    assert!(!unfolded.chains[1].sequential);
}

#[test]
fn a_later_growth_waits_for_the_end_of_what_was_kept() {
    let mut first = of_chains(vec![lstm(CELLS.lstm, 5, rows(Affine::EVERY))]);
    first.next =
        Some(Continuation { watch: vec![of(0, 0, 0)], pace: Pace::All, keep: vec![of(0, 0, 0)], keep_tensors_from: 0, state: vec![7] });
    let mut unfolding = Unfolding::new(model(), GraphLimits::default());
    let unfolded = unfolding.grow(first, 0, &tensors()).unwrap();
    let stage = &unfolded.chains[0].stages[0];
    assert_eq!((stage.retention, &stage.delivery[0]), (Retention::All, &Delivery::All));
    let watch = unfolded.next.unwrap();
    assert_eq!(
        (watch.outputs.as_slice(), watch.keep.as_slice(), watch.state.as_slice()),
        ([(0, 0, 0)].as_slice(), [0].as_slice(), [7].as_slice())
    );
    let inputs = vec![Source::Nodes { stage: 0, output: 0, of: vec![Node { chain: 0, step: 3 }, Node { chain: 0, step: 1 }] }];
    let second = of_chains(vec![chain(CELLS.head, 2, inputs, vec![])]);
    let unfolded = unfolding.grow(second, 0, &tensors()).unwrap();
    assert_eq!(unfolded.first_chain, 1);
    let stage = &unfolded.chains[0].stages[0];
    assert_eq!(stage.depends, [Dependency::End { chain: 0 }]);
    assert!(stage.named_producers.is_empty());
}

#[test]
fn where_rows_are_requests_an_answer_is_one_row() {
    let mut model = Model::clone(&model());
    let description = std::sync::Arc::make_mut(&mut model.description);
    description.rows_are_requests = true;
    description.outputs[0].shape = vec![-1, 2];
    let mut growth = of_chains(vec![lstm(CELLS.lstm, 7, rows(Affine::EVERY))]);
    growth.outputs = vec![respond("last", Gathered::Last(of(0, 0, 0)))];
    assert!(Unfolding::new(Arc::new(model), GraphLimits::default()).grow(growth, 0, &tensors()).is_ok());
}

//! What is put together, what the plugin is shown and when, and that neither costs more than what changed.

use cellwright_cell_graph::check::{GraphLimits, Unfolding};
use cellwright_cell_graph::generate::{CELLS, ModelShape, model_of};
use cellwright_cell_graph::graph::{
    Affine, Chain, Continuation, Extent, Feedback, FeedbackMode, Gathered, Growth, OutputRef, Pace, ResponseTensor, Source, Stage,
};
use cellwright_cell_graph::{Datatype, Description};

use super::*;

const SHAPE: ModelShape = ModelShape { width: 2, hidden: 3, vocabulary: 5 };
const STATE: [u8; 12] = [7; 12];
const FIRST: Source = Source::Index(Affine { first: 0, stride: 0, from_end: false });

/// Independent steps of the generated model's leaves.
fn leaves(length: Extent) -> Chain {
    Chain { stages: vec![Stage { cell: CELLS.leaf, inputs: vec![FIRST] }], length, feedback: vec![], stop: None }
}

/// A decoder that may stop.
fn decoder(length: u32) -> Chain {
    let feed = |output, input| Feedback { stage: 0, output, to_stage: 0, input, mode: FeedbackMode::Replace };
    Chain {
        stages: vec![Stage { cell: CELLS.decoder, inputs: vec![FIRST, Source::Zeros, Source::Zeros] }],
        length: Extent::Fixed(length),
        feedback: vec![feed(0, 1), feed(1, 2), feed(2, 0)],
        stop: Some((0, 3)),
    }
}

const fn state_of(chain: u32) -> OutputRef {
    OutputRef { chain, stage: 0, output: 0 }
}

fn watching(chains: impl IntoIterator<Item = u32>, pace: Pace) -> Continuation {
    let watch = chains.into_iter().map(state_of).collect();
    Continuation { watch, pace, keep: vec![], keep_tensors_from: 0, state: vec![] }
}

/// Outputs of a first growth of the generated model, in a room of that size.
fn taken_in(growth: Growth, streaming: bool, bytes_max: u64) -> Result<Outputs, NoRoom> {
    let model = model_of(SHAPE, 1);
    let growth = Unfolding::new(model.clone(), GraphLimits::default()).grow(growth, 0, &[]).unwrap();
    let specs = model.description.outputs.clone().into();
    Outputs::new(Taking { model, specs, streaming, room: Arc::new(AnswerRoom::new(bytes_max)) }, &growth)
}

fn outputs_of(growth: Growth) -> Outputs {
    taken_in(growth, false, u64::MAX).unwrap()
}

fn value(outputs: &mut Outputs, chain: u32, step: u32) {
    outputs.value(Value { chain, stage: 0, output: 0, step, bytes: &STATE });
}

/// Rows of each tensor that the plugin is shown now.
fn shown(outputs: &mut Outputs) -> Option<Vec<usize>> {
    Some(outputs.watched()?.iter().map(|tensor| tensor.shape[0]).collect())
}

/// The whole list used to be gone through for every value: seconds of the engine's thread for one request.
#[test]
fn a_value_costs_the_same_however_much_is_watched() {
    for pace in [Pace::All, Pace::Every(4)] {
        const WATCHED: u32 = 3000;
        let chains = (0..WATCHED).map(|_| leaves(Extent::Fixed(4))).collect();
        let mut outputs = outputs_of(Growth { chains, next: Some(watching(0..WATCHED, pace)), ..Growth::default() });
        outputs.looks.set(0);
        for step in 0..4 {
            for chain in 0..WATCHED {
                assert!(!outputs.is_due(), "{pace:?}: step {step} of chain {chain} is missing");
                value(&mut outputs, chain, step);
            }
        }
        assert!(outputs.looks.get() <= 2 * 4 * u64::from(WATCHED), "{pace:?}: {} looks", outputs.looks.get());
        assert_eq!(shown(&mut outputs), Some(vec![4; WATCHED as usize]));
        assert!(outputs.watch_is_over());
        assert_eq!(shown(&mut outputs), None);
    }
}

#[test]
fn parts_cost_the_same_however_many_outputs_stream() {
    let names = ["last", "all", "listed"];
    let stream = |(chain, name): (u32, &str)| {
        let from = if name == "last" { Gathered::Last(state_of(chain)) } else { Gathered::All(state_of(chain)) };
        ResponseTensor { name: name.to_owned(), from, stream: true }
    };
    let chains = names.iter().map(|_| leaves(Extent::Fixed(100))).collect();
    let growth = Growth { chains, outputs: (0..).zip(names).map(stream).collect(), ..Growth::default() };
    let mut outputs = taken_in(growth, true, u64::MAX).unwrap();
    let mut parts = Vec::new();
    for step in 0..100 {
        for chain in 0..3 {
            value(&mut outputs, chain, step);
            outputs.parts(&mut parts);
        }
    }
    assert_eq!(parts.len(), 300);
    assert_eq!(outputs.looks.get(), 300);
}

#[test]
fn a_chain_named_twice_is_shown_twice() {
    let chains = vec![leaves(Extent::Fixed(2)), leaves(Extent::Fixed(1))];
    let mut outputs = outputs_of(Growth { chains, next: Some(watching([0, 1, 0], Pace::All)), ..Growth::default() });
    value(&mut outputs, 0, 1);
    value(&mut outputs, 1, 0);
    assert_eq!(shown(&mut outputs), None);
    value(&mut outputs, 0, 0);
    assert_eq!(shown(&mut outputs), Some(vec![2, 1, 2]));
}

#[test]
fn every_so_many_steps_the_plugin_sees_what_is_new() {
    let chains = vec![leaves(Extent::Fixed(5)), leaves(Extent::Fixed(2))];
    let mut outputs = outputs_of(Growth { chains, next: Some(watching([0, 1], Pace::Every(2))), ..Growth::default() });
    let steps = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 3), (0, 4)];
    let seen: Vec<_> = steps
        .map(|(chain, step)| {
            value(&mut outputs, chain, step);
            shown(&mut outputs)
        })
        .into();
    // The shorter one is shown when it has ended, and does not hold the other up any more.
    assert_eq!(seen, [None, None, None, None, Some(vec![3, 2]), None, Some(vec![2, 0])]);
    assert!(outputs.watch_is_over());
}

/// Of chains that end where another one stops, nobody knows that they are complete before it has.
#[test]
fn followers_are_due_when_their_leader_has_stopped() {
    let chains = vec![decoder(9), leaves(Extent::Like(0)), leaves(Extent::Like(0))];
    let mut outputs = outputs_of(Growth { chains, next: Some(watching([0, 1, 2], Pace::All)), ..Growth::default() });
    for step in 0..2 {
        (0..3).for_each(|chain| value(&mut outputs, chain, step));
    }
    value(&mut outputs, 1, 2);
    value(&mut outputs, 0, 2);
    assert_eq!(shown(&mut outputs), None);
    outputs.ended(0, 3);
    assert_eq!(shown(&mut outputs), None);
    value(&mut outputs, 2, 2);
    assert_eq!(shown(&mut outputs), Some(vec![3, 3, 3]));
}

/// 20,000 steps of 12 bytes take no slots in any arena; they take the host's memory.
#[test]
fn what_a_graph_will_deliver_has_its_bound_before_it_runs() {
    let all = ResponseTensor { name: "all".to_owned(), from: Gathered::All(state_of(0)), stream: false };
    let growth = Growth { chains: vec![leaves(Extent::Fixed(20_000))], outputs: vec![all], ..Growth::default() };
    // The rows, and the tensor that is made of them.
    let bytes = 20_000 * 13 * 2;
    assert!(taken_in(growth.clone(), false, bytes).is_ok());
    assert_eq!(taken_in(growth, false, bytes - 1).err(), Some(NoRoom { bytes_max: bytes - 1 }));
    let watching = Growth { chains: vec![leaves(Extent::Fixed(10))], next: Some(watching([0; 100], Pace::All)), ..Growth::default() };
    assert!(taken_in(watching.clone(), false, 101 * 130).is_ok());
    assert!(taken_in(watching, false, 101 * 130 - 1).is_err());
}

/// A row that grows on and on holds what it still may name, no more.
#[test]
fn what_was_forgotten_takes_no_room() {
    let model = model_of(SHAPE, 1);
    let mut unfolding = Unfolding::new(model.clone(), GraphLimits::default());
    let mut next = |first| {
        let growth = Growth { chains: vec![leaves(Extent::Fixed(10))], next: Some(watching([first], Pace::All)), ..Growth::default() };
        unfolding.grow(growth, 0, &[]).unwrap()
    };
    let taking = Taking { specs: model.description.outputs.clone().into(), model, streaming: false, room: Arc::new(AnswerRoom::new(300)) };
    let mut outputs = Outputs::new(taking, &next(0)).unwrap();
    for chain in 1..100 {
        outputs.grow(&next(chain)).unwrap();
    }
}

fn text(text: &str) -> Tensor {
    Tensor::from_texts("text", &[1], &[text])
}

fn texts(streaming: bool, bytes_max: u64) -> Outputs {
    let spec = TensorSpec { name: "text".to_owned(), datatype: Datatype::Bytes, shape: vec![1] };
    let description = Description { inputs: vec![], outputs: vec![spec.clone()], cells: vec![], rows_are_requests: false, live_max: None };
    let model = Arc::new(Model { description, cells: vec![] });
    let growth = UnfoldedGrowth { first_chain: 0, chains: vec![], outputs: vec![], cancel: vec![], next: None, nodes: 0 };
    let room = Arc::new(AnswerRoom::new(bytes_max));
    Outputs::new(Taking { model, specs: Arc::from([spec]), streaming, room }, &growth).unwrap()
}

fn sent(outputs: &mut Outputs, texts: &[&str]) -> Vec<Tensor> {
    let mut parts = Vec::new();
    texts.iter().for_each(|piece| outputs.emit(text(piece), &mut parts).unwrap());
    parts
}

#[test]
fn a_part_that_adds_nothing_is_sent_only_where_there_is_no_other() {
    assert_eq!(sent(&mut texts(true, 0), &["2", "", "6", ""]), [text("2"), text("6")]);
    assert_eq!(sent(&mut texts(true, 0), &["", "", "6"]), [text(""), text("6")]);
    let mut whole = texts(false, 100);
    assert_eq!(sent(&mut whole, &["2", "6", ""]), []);
    assert_eq!(whole.finish(), Ok(vec![text("26")]));
    assert_eq!(sent(&mut whole, &[""]), []);
    assert_eq!(whole.finish(), Ok(vec![text("")]));
}

#[test]
fn what_is_emitted_has_its_bound() {
    let mut outputs = texts(false, 20);
    assert_eq!(outputs.emit(text("123456"), &mut vec![]), Ok(()));
    assert_eq!(outputs.emit(text("7890"), &mut vec![]), Ok(()));
    assert_eq!(outputs.emit(text("1234"), &mut vec![]), Err(NoRoom { bytes_max: 20 }));
    assert_eq!(outputs.finish(), Ok(vec![text("1234567890")]));
}

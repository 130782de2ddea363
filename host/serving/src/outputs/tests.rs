//! What is put together, what the plugin is shown and when, and that neither costs more than what changed.

use cellwright_cell_graph::check::{GraphLimits, Unfolding};
use cellwright_cell_graph::generate::{CELLS, ModelShape, model_of};
use cellwright_cell_graph::graph::{
    Affine, Chain, Continuation, Extent, Feedback, Gathered, Growth, OutputRef, Pace, ResponseTensor, Source, Stage,
};
use cellwright_cell_graph::{Datatype, Description};

use super::*;
use crate::join::Run;

const SHAPE: ModelShape = ModelShape { width: 2, hidden: 3, vocabulary: 5, spans: false };
const STATE: [u8; 12] = [7; 12];
const FIRST: Source = Source::Index(Affine { first: 0, stride: 0, from_end: false });

/// Independent steps of the generated model's leaves.
fn leaves(length: Extent) -> Chain {
    Chain { stages: vec![Stage { cell: CELLS.leaf, inputs: vec![FIRST] }], length, feedback: vec![], stop: None, series: None }
}

/// A decoder that may stop.
fn decoder(length: u32) -> Chain {
    let feed = |output, input| Feedback { stage: 0, output, to_stage: 0, input };
    Chain {
        stages: vec![Stage { cell: CELLS.decoder, inputs: vec![FIRST, Source::Zeros, Source::Zeros] }],
        length: Extent::Fixed(length),
        feedback: vec![feed(0, 1), feed(1, 2), feed(2, 0)],
        stop: Some((0, 3)),
        series: None,
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
    try_taken(model, &growth, streaming, bytes_max)
}

fn try_taken(model: Arc<Model>, growth: &UnfoldedGrowth, streaming: bool, bytes_max: u64) -> Result<Outputs, NoRoom> {
    let specs = model.description.outputs.clone().into();
    Outputs::new(Taking { model, specs, streaming, room: Arc::new(AnswerRoom::alone(bytes_max)) }, growth)
}

fn taken(model: Arc<Model>, growth: &UnfoldedGrowth, streaming: bool, bytes_max: u64) -> Outputs {
    try_taken(model, growth, streaming, bytes_max).unwrap()
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
    assert_eq!(taken_in(growth, false, bytes - 1).err(), Some(NoRoom { bytes_max: bytes - 1, of_tenant: false }));
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
    let mut outputs = taken(model, &next(0), false, 300);
    for chain in 1..100 {
        outputs.grow(&next(chain)).unwrap();
    }
}

/// Whoever adds to an answer, or shows the plugin what there is of it, holds what the engine's thread waits for.
#[test]
fn nothing_is_copied_before_the_end() {
    const STEPS: u32 = 20_000;
    let model = model_of(SHAPE, 1);
    let mut unfolding = Unfolding::new(model.clone(), GraphLimits::default());
    let chains = vec![leaves(Extent::Fixed(STEPS))];
    let first = Growth { chains, outputs: vec![all(0, false)], next: Some(watching([0], Pace::Every(1))), ..Growth::default() };
    let mut outputs = taken(model, &unfolding.grow(first, 0, &[]).unwrap(), false, u64::MAX);
    let at = |piece: &Piece| piece.runs.iter().map(Run::address).collect::<Vec<_>>();
    (0..STEPS).for_each(|step| value(&mut outputs, 0, step));
    let held = outputs.columns[&(0, 0, 0)].stacked(0..STEPS);
    let rows = at(&held);
    assert!(rows.len() > 1);
    assert_eq!(at(&outputs.watched().unwrap()[0]), rows);
    outputs.grow(&unfolding.grow(Growth { next: Some(watching([], Pace::All)), ..Growth::default() }, 0, &[]).unwrap()).unwrap();
    assert!(outputs.columns.is_empty());
    let line = outputs.specs.iter().position(|spec| spec.name == "all").unwrap();
    assert_eq!(at(&outputs.lines[line].settled[0]), rows);
    let tensor = emitted();
    let added = tensor.data.as_ptr();
    outputs.emit(tensor, &mut vec![]).unwrap();
    assert_eq!(at(&outputs.lines[line].settled[1]), [added]);
    assert!(outputs.work() > STEPS as usize * 12);
}

/// Response tensors `all` of chain 0, then of chain 1, each of a growth of two steps.
fn following(streaming: bool) -> (Outputs, Unfolding) {
    let model = model_of(SHAPE, 1);
    let mut unfolding = Unfolding::new(model.clone(), GraphLimits::default());
    let mut growth = |chain| {
        let chains = vec![leaves(Extent::Fixed(2))];
        let growth = Growth { chains, outputs: vec![all(chain, streaming)], next: Some(watching([], Pace::All)), ..Growth::default() };
        unfolding.grow(growth, 0, &[]).unwrap()
    };
    let mut outputs = taken(model, &growth(0), streaming, u64::MAX);
    outputs.grow(&growth(1)).unwrap();
    (outputs, unfolding)
}

fn all(chain: u32, stream: bool) -> ResponseTensor {
    ResponseTensor { name: "all".to_owned(), from: Gathered::All(state_of(chain)), stream }
}

fn numbered(outputs: &mut Outputs, chain: u32, step: u32) {
    outputs.value(Value { chain, stage: 0, output: 0, step, bytes: &[chain as u8; 12] });
}

/// The chain of each row, of each tensor called `all`.
fn chains_of(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    let all = tensors.iter().filter(|tensor| tensor.name == "all");
    all.map(|tensor| tensor.data.chunks_exact(12).map(|row| row[0]).collect()).collect()
}

fn emitted() -> Tensor {
    Tensor::from_f32("all", &[1, 3], &[f32::from_le_bytes([9; 4]); 3])
}

/// Which chain is complete first depends on the host's other work; the answer must not.
#[test]
fn what_an_output_is_given_follows_in_the_order_of_growths() {
    for order in [[0, 1], [1, 0]] {
        let (mut outputs, mut unfolding) = following(false);
        outputs.specs = outputs.specs.iter().filter(|spec| spec.name == "all").cloned().collect();
        outputs.lines.retain(|line| !line.pending.is_empty());
        outputs.emit(emitted(), &mut vec![]).unwrap();
        (0..2).for_each(|step| numbered(&mut outputs, order[0], step));
        outputs.grow(&unfolding.grow(Growth { next: Some(watching([], Pace::All)), ..Growth::default() }, 0, &[]).unwrap()).unwrap();
        outputs.emit(emitted(), &mut vec![]).unwrap();
        (0..2).for_each(|step| numbered(&mut outputs, order[1], step));
        assert_eq!(chains_of(&outputs.answer().unwrap()), [vec![0, 0, 1, 1, 9, 9]], "{order:?}");
    }
}

#[test]
fn so_do_its_parts() {
    let (mut outputs, _) = following(true);
    let part = |outputs: &mut Outputs, chain, step| {
        let mut parts = Vec::new();
        numbered(outputs, chain, step);
        outputs.parts(&mut parts);
        assert!(!outputs.has_parts());
        chains_of(&parts)
    };
    let mut sent = Vec::new();
    let before = outputs.taken;
    assert!(part(&mut outputs, 1, 0).is_empty());
    assert_eq!(part(&mut outputs, 0, 0), [[0]]);
    outputs.emit(emitted(), &mut sent).unwrap();
    assert!(outputs.taken > before, "what waits is counted");
    assert!(part(&mut outputs, 1, 1).is_empty());
    assert_eq!(part(&mut outputs, 0, 1), [vec![0], vec![1, 1], vec![9]]);
    assert_eq!((outputs.taken, sent.len()), (before, 0));
    outputs.emit(emitted(), &mut sent).unwrap();
    assert_eq!(chains_of(&sent), [[9]], "nothing is ahead of it any more");
}

/// Whoever holds up the engine's thread copies little.
#[test]
fn what_piled_up_is_sent_bit_by_bit() {
    const STEPS: u32 = 100_000;
    let chains = vec![leaves(Extent::Fixed(STEPS))];
    let mut outputs = taken_in(Growth { chains, outputs: vec![all(0, true)], ..Growth::default() }, true, u64::MAX).unwrap();
    (1..STEPS).for_each(|step| value(&mut outputs, 0, step));
    let (mut parts, mut turns) = (Vec::new(), 0);
    outputs.parts(&mut parts);
    assert!(parts.is_empty() && !outputs.has_parts());
    value(&mut outputs, 0, 0);
    while outputs.has_parts() {
        let before = parts.len();
        outputs.parts(&mut parts);
        assert!(parts[before..].iter().map(|part| part.data.len()).sum::<usize>() <= 256 << 10);
        turns += 1;
    }
    assert!(turns > 4 && parts.iter().map(|part| part.shape[0]).sum::<usize>() == STEPS as usize);
}

fn text(text: &str) -> Tensor {
    Tensor::from_texts("text", &[1], &[text])
}

fn texts(streaming: bool, bytes_max: u64) -> Outputs {
    let spec = TensorSpec { name: "text".to_owned(), datatype: Datatype::Bytes, shape: vec![1] };
    let description = Description { outputs: vec![spec.clone()], ..Description::default() };
    let model = Arc::new(Model { description: description.into(), cells: vec![] });
    let growth = UnfoldedGrowth { first_chain: 0, chains: vec![], outputs: vec![], cancel: vec![], next: None, nodes: 0, shared: None };
    let room = Arc::new(AnswerRoom::alone(bytes_max));
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
    for (emitted, wanted) in [(&["2", "6", ""][..], "26"), (&[""], "")] {
        let mut whole = texts(false, 10_000);
        assert_eq!(sent(&mut whole, emitted), []);
        assert_eq!(whole.answer(), Ok(vec![text(wanted)]));
    }
    assert_eq!(texts(false, 0).answer(), Err("text".to_owned()));
}

#[test]
fn what_is_emitted_has_its_bound() {
    let bytes_max = 2 * Piece::from(text("123456")).bytes();
    let mut outputs = texts(false, bytes_max);
    assert_eq!(outputs.emit(text("123456"), &mut vec![]), Ok(()));
    assert_eq!(outputs.emit(text("7890"), &mut vec![]), Ok(()));
    assert_eq!(outputs.emit(text("1234"), &mut vec![]), Err(NoRoom { bytes_max, of_tenant: false }));
    assert_eq!(outputs.answer(), Ok(vec![text("1234567890")]));
}

/// What replaces what was before it takes its place.
#[test]
fn what_was_replaced_takes_no_room() {
    let growth = Growth { chains: vec![leaves(Extent::Fixed(1))], next: Some(watching([], Pace::All)), ..Growth::default() };
    let mut outputs = taken_in(growth, false, 1000).unwrap();
    for _ in 0..100 {
        let last = outputs.specs.iter().find(|spec| spec.name == "last").unwrap();
        let shape: Vec<usize> = last.shape.iter().map(|extent| *extent as usize).collect();
        let values = vec![1.0; shape.iter().product()];
        outputs.emit(Tensor::from_f32("last", &shape, &values), &mut vec![]).unwrap();
    }
}

/// The engine's thread does what is little work itself: what a response names again and again is no less to copy for having arrived once.
#[test]
fn what_is_given_often_is_work_each_time() {
    let listed = |times: usize| {
        let outputs = vec![ResponseTensor { name: "listed".to_owned(), from: Gathered::Listed(vec![state_of(0); times]), stream: false }];
        let growth = Growth { chains: vec![leaves(Extent::Fixed(1))], outputs, ..Growth::default() };
        outputs_of(growth).work()
    };
    assert!(listed(4000) >= 4000 * STATE.len());
}

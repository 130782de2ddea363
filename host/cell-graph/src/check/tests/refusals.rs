//! Every refusal, by its sentence.

use std::sync::Arc;

use crate::check::{GraphLimits, Model, Unfolding};
use crate::generate::{self, CELLS, Family, ModelShape, Rng};
use crate::graph::{
    Affine, Chain, Continuation, Extent, Feedback, Gathered, Growth, Node, OutputRef, Pace, ResponseTensor, Source, Span, SpanOf, Stage,
};
use crate::tensor::Tensor;

fn model() -> Arc<Model> {
    generate::model_of(ModelShape { width: 3, hidden: 2, vocabulary: 4, spans: false }, 1)
}

/// Chains: 0 encodes 5 tokens, 1 decodes up to 4 and may stop.
fn growth() -> (Growth, Vec<Arc<Tensor>>) {
    let mut rng = Rng::new(0);
    loop {
        let (growth, tensors) = generate::growth_of(&model(), Family::Seq2seq, 5, &mut rng);
        if growth.chains.len() == 2 && growth.chains[1].length == Extent::Fixed(4) {
            return (growth, tensors);
        }
    }
}

fn limits() -> GraphLimits {
    GraphLimits { nodes_max: 100, edges_max: 200, chains_max: 8, outputs_max: 4, state_bytes_max: 16 }
}

fn refusal(change: impl FnOnce(&mut Growth)) -> String {
    let (mut growth, mut tensors) = growth();
    tensors.push(Arc::new(Tensor::from_texts("text", &[1], &["a"])));
    tensors.push(Arc::new(Tensor { data: vec![0; 7], ..Tensor::from_i64("short", &[1], &[0]) }));
    tensors.push(Arc::new(Tensor::from_i64("scalar", &[], &[0])));
    change(&mut growth);
    match Unfolding::new(model(), limits()).grow(growth, 0, &tensors) {
        Ok(unfolded) => panic!("accepted: {unfolded:?}"),
        Err(error) => error.to_string(),
    }
}

/// A source for the encoder's token.
fn token(source: Source) -> String {
    refusal(|growth| growth.chains[0].stages[0].inputs[0] = source)
}

/// A source for the decoder's h, at its first step.
fn state(source: Source) -> String {
    refusal(|growth| growth.chains[1].stages[0].inputs[1] = source)
}

const fn of(chain: u32, stage: u32, output: u32) -> OutputRef {
    OutputRef { chain, stage, output }
}

const fn feedback(stage: u32, output: u32, to_stage: u32, input: u32) -> Feedback {
    Feedback { stage, output, to_stage, input }
}

const fn at(first: i64, stride: i32, from_end: bool) -> Affine {
    Affine { first, stride, from_end }
}

fn respond(name: &str, from: Gathered) -> impl FnOnce(&mut Growth) {
    let name = name.to_owned();
    move |growth| growth.outputs = vec![ResponseTensor { name, from, stream: false }]
}

fn next() -> Continuation {
    Continuation { watch: vec![of(1, 0, 2)], pace: Pace::All, keep: vec![of(1, 0, 0)], keep_tensors_from: 0, state: vec![] }
}

fn going_on(change: impl FnOnce(&mut Continuation)) -> String {
    refusal(|growth| {
        let mut next = next();
        change(&mut next);
        growth.next = Some(next);
    })
}

#[test]
fn the_unchanged_growth_is_accepted() {
    let (mut growth, tensors) = growth();
    growth.next = Some(next());
    assert!(Unfolding::new(model(), limits()).grow(growth, 0, &tensors).is_ok());
}

#[test]
fn chains() {
    let table = [
        (refusal(|g| g.chains[0].length = Extent::Fixed(0)), "chain 0: it has no steps; a chain has at least 1"),
        (refusal(|g| g.chains[0].stages.clear()), "chain 0: it has no stages"),
        (refusal(|g| g.chains[0].stages = vec![g.chains[0].stages[0].clone(); 65]), "chain 0: it has 65 stages, more than the limit of 64"),
        (refusal(|g| g.chains[0].length = Extent::Fixed(101)), "chain 0: up to here there are 101 nodes, more than the limit of 100"),
        (
            refusal(|g| g.chains[0].length = Extent::Fixed(u32::MAX)),
            "chain 0: up to here there are 4294967295 nodes, more than the limit of 100",
        ),
        (refusal(|g| g.chains[1].length = Extent::Fixed(98)), "chain 1: up to here there are 103 nodes, more than the limit of 100"),
        (refusal(|g| g.chains = vec![g.chains[0].clone(); 9]), "the graph: it has 9 chains, more than the limit of 8"),
        (
            refusal(|g| g.chains[0].length = Extent::Like(0)),
            "chain 0: chain 0 does not stand before it; a reference goes to an earlier chain, or by `nodes` to an earlier step",
        ),
        (refusal(|g| g.chains[1].length = Extent::Like(7)), "chain 1: chain 7 does not exist"),
        (
            refusal(|g| {
                let like = g.chains[1].clone();
                g.chains.push(crate::graph::Chain { length: Extent::Like(1), ..like });
            }),
            "chain 2: it is like chain 1, which may stop, and so cannot stop by itself",
        ),
        (refusal(|g| g.chains[0].stages[0].cell = 12), "chain 0, stage 0: there is no cell 12; the model has 12"),
        (refusal(|g| drop(g.chains[0].stages[0].inputs.pop())), "chain 0, stage 0: it has 2 sources, but its cell takes 3 inputs"),
        (refusal(|g| g.cancel = vec![0]), "the graph: chain 0 does not exist"),
        (refusal(|g| g.cancel = vec![0; 9]), "the graph: it has 9 cancelled chains, more than the limit of 8"),
    ];
    for (given, wanted) in table {
        assert_eq!(given, wanted);
    }
    let edges = refusal(|g| g.chains[1].length = Extent::Fixed(80));
    assert_eq!(edges, "chain 1, feedback 2: up to here there are 245 edges, more than the limit of 200");
}

#[test]
fn feedback_and_stop() {
    let fed = |feedback| refusal(move |growth: &mut Growth| growth.chains[0].feedback.push(feedback));
    let table = [
        (fed(feedback(1, 0, 0, 1)), "chain 0, feedback 2: chain 0 has no stage 1"),
        (fed(feedback(0, 2, 0, 1)), "chain 0, feedback 2: stage 0 of chain 0 has no output 2"),
        (fed(feedback(0, 0, 1, 1)), "chain 0, feedback 2: chain 0 has no stage 1"),
        (fed(feedback(0, 0, 0, 3)), "chain 0, feedback 2: stage 0 has no input 3"),
        (fed(feedback(0, 0, 0, 0)), "chain 0, feedback 2: input 0 of stage 0 is not carried, and only carried inputs take feedback"),
        (fed(feedback(0, 0, 0, 1)), "chain 0, feedback 2: input 1 of stage 0 takes feedback already"),
        (
            refusal(|g| g.chains[1].feedback[0].output = 0),
            "chain 1, feedback 0: it takes INT64, but is given FP32; nothing is converted silently",
        ),
        (refusal(|g| g.chains[0].stop = Some((0, 0))), "chain 0, stop: a stop is one BOOL (rows of shape [] or [1]), not FP32 [2]"),
        (refusal(|g| g.chains[1].stop = Some((2, 0))), "chain 1, stop: chain 1 has no stage 2"),
        (refusal(|g| g.chains[1].stop = Some((0, 9))), "chain 1, stop: stage 0 of chain 1 has no output 9"),
    ];
    for (given, wanted) in table {
        assert_eq!(given, wanted);
    }
}

#[test]
fn spans() {
    // Another chain of so many steps, which sees three states and two rows of `x` at each.
    let sees = |steps: u32, states: Vec<Span>| {
        refusal(|growth| {
            let inputs = vec![Source::Many(states), Source::Zeros, Source::Zeros];
            let stages = vec![Stage { cell: CELLS.window, inputs }];
            growth.chains.push(Chain { stages, length: Extent::Fixed(steps), feedback: vec![], stop: None, series: None });
        })
    };
    let span = |of, at, every, count| Span { of, at, every, count };
    let chain = |number, at, every, count| span(SpanOf::Chain(of(number, 0, 0)), at, every, count);
    let of_chain = |at, every, count| sees(5, vec![chain(0, at, every, count)]);
    let place = "chain 2, stage 0, input 0 (`states`): ";
    let table = [
        (of_chain(Affine::EVERY, 1, None), "a span without a count goes into a ragged input"),
        (of_chain(Affine::EVERY, 0, Some(3)), "a span has a count and a distance of at least 1"),
        (of_chain(Affine::EVERY, 1, Some(0)), "a span has a count and a distance of at least 1"),
        (of_chain(Affine::EVERY, 1, Some(2)), "its spans have 2 rows or more, but it takes 3"),
        (of_chain(Affine::EVERY, 1, Some(u32::MAX)), "its spans have 4294967295 rows or more, but it takes 3"),
        (sees(5, vec![chain(0, Affine::EVERY, 1, Some(1)); 257]), "it has 257 spans, more than the limit of 256"),
        (sees(5, vec![]), "its spans have 0 rows or more, but it takes 3"),
        (of_chain(at(i64::MAX, 1, false), 1, Some(3)), "step 0 would begin with step 2^53 or one further from 0"),
        (of_chain(at(i64::MIN, -1, true), 1, Some(3)), "step 0 would begin with step 2^53 or one further from 0"),
        (of_chain(at(1, i32::MIN, true), 1, Some(3)), "step 4 would begin with step 2^53 or one further from 0"),
        (sees(5, vec![chain(2, Affine::EVERY, 1, Some(3))]), "at step 0 a span of its own chain ends with step 2, which is not there yet"),
        (
            sees(5, vec![chain(2, at(0, 1, true), 1, Some(3))]),
            "a span of its own chain counts from the first step: the last one is not there yet",
        ),
        (
            sees(5, vec![chain(2, at(-1, 0, false), 1, Some(3))]),
            "at step 0 a span of its own chain ends with step 1, which is not there yet",
        ),
        (
            sees(5, vec![chain(2, at(-3, 2, false), 1, Some(3))]),
            "at step 4 a span of its own chain ends with step 7, which is not there yet",
        ),
        (sees(5, vec![chain(7, Affine::EVERY, 1, Some(3))]), "chain 7 does not exist"),
        (
            sees(5, vec![span(SpanOf::Chain(of(1, 0, 2)), Affine::EVERY, 1, Some(3))]),
            "it takes FP32, but is given INT64; nothing is converted silently",
        ),
        (sees(5, vec![span(SpanOf::Tensor(0), Affine::EVERY, 1, Some(3))]), "it takes rows of shape [2], but is given [3]"),
        (sees(90, vec![chain(0, Affine::EVERY, 1, Some(3))]), "up to here there are 289 edges, more than the limit of 200"),
    ];
    for (given, wanted) in table {
        assert_eq!(given, format!("{place}{wanted}"));
    }
}

#[test]
fn sources_from_outside() {
    let literal = |tensor| token(Source::Literal(tensor));
    let rows = |tensor, at| token(Source::Rows { tensor, at });
    let place = "chain 0, stage 0, input 0 (`token`): ";
    let table = [
        (literal(Tensor::from_f32("", &[], &[0.0])), "it takes INT64, but is given FP32; nothing is converted silently"),
        (literal(Tensor::from_i64("", &[1], &[0])), "it takes rows of shape [], but is given [1]"),
        (literal(Tensor { data: vec![], ..Tensor::from_i64("a", &[], &[0]) }), "tensor `a` does not hold what its datatype and shape say"),
        (token(Source::Ints(vec![1; 4])), "4 elements are given for 5 steps"),
        (token(Source::Index(at(3, -1, false))), "step 4 would take number -1, but there are 4294967296"),
        (token(Source::Index(at(1, 1, true))), "step 4 would take number 5, but there are 5"),
        (rows(1, at(0, 2, false)), "step 4 would take row 8, but there are 5"),
        (rows(1, at(1, 1, true)), "step 4 would take row 5, but there are 5"),
        (rows(1, at(4, -2, false)), "step 4 would take row -4, but there are 5"),
        (rows(1, at(i64::from(u32::MAX), i32::MIN, false)), "step 0 would take row 4294967295, but there are 5"),
        (rows(0, Affine::EVERY), "it takes INT64, but is given FP32; nothing is converted silently"),
        (rows(2, Affine::EVERY), "tensor `text` is BYTES, and cells take no BYTES; read it and pass numbers"),
        (rows(3, Affine::EVERY), "tensor `short` does not hold what its datatype and shape say"),
        (rows(4, Affine::EVERY), "tensor `scalar` has no rows, because it is a scalar"),
        (rows(5, Affine::EVERY), "tensor 5 does not exist; the request has 5"),
        (token(Source::Many(vec![])), "rows of spans go into ports of rank 2 or more, whose first extent is their number, not []"),
        (token(Source::Frames { tensor: 0, at: Affine::EVERY }), "it takes INT64, but is given FP32; nothing is converted silently"),
        (
            token(Source::Frames { tensor: 2, at: Affine::EVERY }),
            "tensor `text` is BYTES, and cells take no BYTES; read it and pass numbers",
        ),
        (token(Source::Frames { tensor: 1, at: at(1 << 54, 0, false) }), "step 0 would begin with element 2^53 or one further from 0"),
    ];
    for (given, wanted) in table {
        assert_eq!(given, format!("{place}{wanted}"));
    }
    let rows_of_x = state(Source::Rows { tensor: 0, at: Affine::EVERY });
    assert_eq!(rows_of_x, "chain 1, stage 0, input 1 (`h`): it takes rows of shape [2], but is given [3]");
    let numbers = state(Source::Ints(vec![1]));
    assert_eq!(numbers, "chain 1, stage 0, input 1 (`h`): numbers go into INT32 or INT64 ports with rows of shape [] or [1]");
    let own_end = refusal(|growth| {
        growth.chains[1].feedback.remove(0);
        growth.chains[1].stages[0].inputs[0] = Source::Index(at(0, 1, true));
    });
    assert_eq!(
        own_end,
        "chain 1, stage 0, input 0 (`token`): `from-end` counts from an end that is not known yet, because the chain may stop"
    );
}

#[test]
fn sources_from_chains() {
    let place = "chain 1, stage 0, input 1 (`h`): ";
    let backwards = "does not stand before it; a reference goes to an earlier chain, or by `nodes` to an earlier step";
    let nodes = |chain, step| state(Source::Nodes { stage: 0, output: 0, of: vec![Node { chain, step }] });
    let table = [
        (state(Source::Last(of(1, 0, 0))), format!("chain 1 {backwards}")),
        (state(Source::Last(of(2, 0, 0))), "chain 2 does not exist".to_owned()),
        (state(Source::Last(of(0, 1, 0))), "chain 0 has no stage 1".to_owned()),
        (state(Source::Last(of(0, 0, 2))), "stage 0 of chain 0 has no output 2".to_owned()),
        (state(Source::Steps { of: of(0, 0, 0), at: at(5, 0, false) }), "step 0 would take step 5, but there are 5".to_owned()),
        (state(Source::Steps { of: of(0, 0, 0), at: at(5, 0, true) }), "step 0 would take step 5, but there are 5".to_owned()),
        (state(Source::Steps { of: of(1, 0, 0), at: Affine::EVERY }), format!("chain 1 {backwards}")),
        (state(Source::Sibling { stage: 0, output: 0 }), "stage 0 is not an earlier stage of its step".to_owned()),
        (nodes(0, 5), "it names step 5 of chain 0, which has at most 5".to_owned()),
        (nodes(1, 0), "step 0 names step 0 of its own chain, which does not come before it".to_owned()),
        (nodes(3, 0), "chain 3 does not exist".to_owned()),
        (state(Source::Nodes { stage: 0, output: 0, of: vec![] }), "0 elements are given for 1 steps".to_owned()),
    ];
    for (given, wanted) in table {
        assert_eq!(given, format!("{place}{wanted}"));
    }
    let label = token(Source::Last(of(0, 0, 0)));
    assert_eq!(label, format!("chain 0, stage 0, input 0 (`token`): chain 0 {backwards}"));
    let own = refusal(|growth| {
        let of = (0..5).map(|step| Node { chain: 0, step: step / 2 + 1 }).collect();
        growth.chains[0].stages[0] = Stage { cell: CELLS.concat, inputs: vec![Source::Nodes { stage: 0, output: 0, of }, Source::Zeros] };
        growth.chains[0].feedback.clear();
    });
    assert_eq!(own, "chain 0, stage 0, input 0 (`a`): it takes rows of shape [2], but is given [4]");
}

#[test]
fn responses() {
    let table = [
        (refusal(respond("nothing", Gathered::Last(of(0, 0, 0)))), "output `nothing`: the model describes no such output"),
        (refusal(|g| g.outputs.push(g.outputs[0].clone())), "output `generated`: it is given twice"),
        (refusal(respond("listed", Gathered::Listed(vec![]))), "output `listed`: it lists nothing"),
        (
            refusal(respond("listed", Gathered::Listed(vec![of(0, 0, 0); 5]))),
            "output `listed`: it has 5 listed outputs, more than the limit of 4",
        ),
        (refusal(respond("last", Gathered::Last(of(1, 0, 2)))), "output `last`: the model describes FP32, but it is given INT64"),
        (
            refusal(respond("logits", Gathered::Last(of(0, 0, 0)))),
            "output `logits`: the model describes the shape [4], but it is given [2] (-1 is any extent)",
        ),
        (
            refusal(respond("last", Gathered::All(of(1, 0, 0)))),
            "output `last`: the model describes the shape [2], but it is given [-1, 2] (-1 is any extent)",
        ),
        (
            refusal(respond("all", Gathered::Last(of(1, 0, 0)))),
            "output `all`: the model describes the shape [-1, 2], but it is given [2] (-1 is any extent)",
        ),
        (refusal(respond("all", Gathered::All(of(2, 0, 0)))), "output `all`: chain 2 does not exist"),
        (refusal(|g| g.outputs = vec![g.outputs[0].clone(); 5]), "the graph: it has 5 response tensors, more than the limit of 4"),
    ];
    for (given, wanted) in table {
        assert_eq!(given, wanted);
    }
}

#[test]
fn continuations() {
    let table = [
        (going_on(|next| next.pace = Pace::Every(0)), "continuation: it asks to be called every 0 steps"),
        (going_on(|next| next.state = vec![0; 17]), "continuation: it has 17 bytes of state, more than the limit of 16"),
        (going_on(|next| next.watch = vec![of(0, 0, 0); 9]), "continuation: it has 9 watched outputs, more than the limit of 8"),
        (going_on(|next| next.keep = vec![of(0, 0, 0); 9]), "continuation: it has 9 kept outputs, more than the limit of 8"),
        (going_on(|next| next.keep_tensors_from = 6), "continuation: it keeps tensors from 6 on, but the request has those from 0 to 5"),
        (going_on(|next| next.watch = vec![of(0, 0, 0), of(9, 0, 0)]), "watched output 1: chain 9 does not exist"),
        (going_on(|next| next.keep = vec![of(0, 4, 0)]), "kept output 0: chain 0 has no stage 4"),
    ];
    for (given, wanted) in table {
        assert_eq!(given, wanted);
    }
}

/// What a second growth is told, after a first that kept the decoder's h and let the first tensor go.
fn later(change: impl FnOnce(&mut Growth)) -> String {
    let (mut first, tensors) = growth();
    first.outputs.clear();
    first.next = Some(Continuation { keep_tensors_from: 1, ..next() });
    let mut unfolding = Unfolding::new(model(), limits());
    unfolding.grow(first, 0, &tensors).unwrap();
    assert_eq!(unfolding.chains(), 2);
    let head = Stage { cell: CELLS.head, inputs: vec![Source::Last(of(1, 0, 0))] };
    let chain = crate::graph::Chain { stages: vec![head], length: Extent::Fixed(1), feedback: vec![], stop: None, series: None };
    let mut growth = Growth { chains: vec![chain], ..Growth::default() };
    change(&mut growth);
    match unfolding.grow(growth, 0, &tensors) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn later_growths() {
    let reading = |source| later(move |growth: &mut Growth| growth.chains[0].stages[0].inputs[0] = source);
    let place = "chain 2, stage 0, input 0 (`h`): ";
    assert_eq!(later(|_| {}), "");
    assert_eq!(reading(Source::Last(of(0, 0, 0))), format!("{place}chain 0 is of an earlier growth, and the continuation did not keep it"));
    assert_eq!(
        reading(Source::Last(of(1, 0, 1))),
        format!("{place}stage 0, output 1 of chain 1 is of an earlier growth, and the continuation did not keep it")
    );
    assert_eq!(later(|growth| growth.cancel = vec![1]), format!("{place}chain 1 is cancelled by the same growth"));
    assert_eq!(reading(Source::Rows { tensor: 0, at: Affine::EVERY }), format!("{place}tensor 0 was let go; tensors from 1 on are kept"));
    assert_eq!(
        later(respond("last", Gathered::Last(of(1, 0, 0)))),
        "output `last`: chain 1 is of an earlier growth; response tensors come from the growth that computes them"
    );
    assert_eq!(
        later(|growth| growth.next = Some(Continuation { watch: vec![of(1, 0, 0)], keep_tensors_from: 1, ..next() })),
        "watched output 0: chain 1 is of an earlier growth that did not watch this output, so that it was not sent"
    );
    assert_eq!(
        later(|growth| growth.next = Some(Continuation { watch: vec![], ..next() })),
        "continuation: it keeps tensors from 0 on, but the request has those from 1 to 2"
    );
}

/// A hundred thousand steps that are read far from one another are said in a few bytes, and listed one by one.
#[test]
fn what_is_read_here_and_there_has_its_bound() {
    let head = |stride, steps| crate::graph::Chain {
        stages: vec![Stage { cell: CELLS.head, inputs: vec![Source::Steps { of: of(0, 0, 0), at: at(0, stride, false) }] }],
        length: Extent::Fixed(steps),
        feedback: vec![],
        stop: None,
        series: None,
    };
    let limits = GraphLimits::default();
    let unfolded = |stride, steps, readers| {
        let (mut growth, tensors) = growth();
        growth.chains.truncate(1);
        growth.outputs.clear();
        growth.chains[0].length = Extent::Fixed(500_000);
        growth.chains[0].stages[0].inputs[0] = Source::Index(at(0, 0, false));
        growth.chains.extend((0..readers).map(|_| head(stride, steps)));
        Unfolding::new(model(), limits).grow(growth, 0, &tensors).map_err(|error| error.to_string())
    };
    let fault = "chain 18: up to here there are 135000 blocks of steps that are read here and there, more than the limit of 131072";
    assert_eq!(unfolded(66, 7_500, 20).unwrap_err(), fault);
    assert!(unfolded(66, 7_500, 17).is_ok());
    assert!(unfolded(1, 20_000, 20).is_ok(), "one after the other");
}

/// What a growth is told that cancels a chain of a first one: the decoder or its encoder, or one of those whose ends are the decoder's.
fn cancelling(chain: u32, answers: u32) -> String {
    let (mut first, tensors) = growth();
    let head = |like| crate::graph::Chain {
        stages: vec![Stage { cell: CELLS.head, inputs: vec![Source::Steps { of: of(1, 0, 0), at: Affine::EVERY }] }],
        length: Extent::Like(like),
        feedback: vec![],
        stop: None,
        series: None,
    };
    first.chains.extend([head(1), head(2)]);
    respond("scores", Gathered::All(of(answers, 0, 0)))(&mut first);
    first.next = Some(next());
    let mut unfolding = Unfolding::new(model(), limits());
    unfolding.grow(first, 0, &tensors).unwrap();
    // Nor may a later growth cancel it, when much has happened since.
    unfolding.grow(Growth { next: Some(Continuation { watch: vec![], ..next() }), ..Growth::default() }, 0, &tensors).unwrap();
    refused(&mut unfolding, &[chain])
}

/// What a growth is told that cancels those chains.
fn refused(unfolding: &mut Unfolding, cancel: &[u32]) -> String {
    match unfolding.grow(Growth { cancel: cancel.to_vec(), ..Growth::default() }, 0, &[]) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

/// How far a chain had come when it was cancelled depends on the host's other work; the answer must not.
#[test]
fn what_the_response_is_made_of_cannot_be_cancelled() {
    let sentence = |chain: u32| {
        format!(
            "the graph: chain {chain} is cancelled, but the response reads it, and would depend on its progress: emit the wanted part instead"
        )
    };
    assert_eq!(cancelling(2, 2), sentence(2));
    for answers in [2, 3] {
        assert_eq!(cancelling(1, answers), read(1, 3), "their ends are its, and they read it");
        assert_eq!(cancelling(0, answers), read(0, 1), "all of them come of it");
    }
    for (chain, answers) in [(3, 2), (2, 3)] {
        assert_eq!(cancelling(chain, answers), "", "{chain} is cancelled, {answers} answers");
    }
}

fn read(chain: u32, reader: u32) -> String {
    format!(
        "the graph: chain {chain} is cancelled, but chain {reader} reads it or ends where it does, and would depend on its progress: \
         cancel both, or neither"
    )
}

/// A first growth of three chains, of which 1 reads `read` of chain 0 and is watched.
fn reading(read: Source) -> Unfolding {
    let head = |input| crate::graph::Chain {
        stages: vec![Stage { cell: CELLS.head, inputs: vec![input] }],
        length: Extent::Fixed(1),
        feedback: vec![],
        stop: None,
        series: None,
    };
    let (first, tensors) = growth();
    let chains = vec![first.chains[0].clone(), head(read), head(Source::Zeros)];
    let mut unfolding = Unfolding::new(model(), limits());
    unfolding
        .grow(
            Growth { chains, next: Some(Continuation { watch: vec![of(1, 0, 0)], keep: vec![], ..next() }), ..Growth::default() },
            0,
            &tensors,
        )
        .unwrap();
    unfolding
}

/// A last step, or one by its number, would be another when the chain is cut short, or none.
#[test]
fn a_chain_is_cancelled_with_its_readers_or_not_at_all() {
    let nodes = Source::Nodes { stage: 0, output: 0, of: vec![Node { chain: 0, step: 4 }] };
    for source in [Source::Last(of(0, 0, 0)), Source::Steps { of: of(0, 0, 0), at: at(4, 0, false) }, nodes] {
        assert_eq!(refused(&mut reading(source.clone()), &[0]), read(0, 1), "{source:?}");
        assert_eq!(refused(&mut reading(source.clone()), &[0, 2]), read(0, 1), "{source:?}");
        assert_eq!(refused(&mut reading(source.clone()), &[1, 0]), "", "{source:?}");
        let mut unfolding = reading(source);
        let first = Growth { cancel: vec![1], next: Some(Continuation { watch: vec![], keep: vec![], ..next() }), ..Growth::default() };
        unfolding.grow(first, 0, &[]).unwrap();
        assert_eq!(refused(&mut unfolding, &[0]), "", "its reader was cancelled before");
    }
}

/// Each growth keeps only the newest of a line of followers, so that nobody can name the first any more.
#[test]
fn a_chain_whose_end_is_that_of_a_later_one_cannot_be_cancelled() {
    let (first, tensors) = growth();
    let mut unfolding = Unfolding::new(model(), limits());
    let keep = |chain| Some(Continuation { watch: vec![], keep: vec![of(chain, 0, 0)], ..next() });
    unfolding.grow(Growth { next: keep(1), outputs: vec![], ..first }, 0, &tensors).unwrap();
    for leader in [1, 2, 3] {
        let head = Stage { cell: CELLS.head, inputs: vec![Source::Zeros] };
        let chain = crate::graph::Chain { stages: vec![head], length: Extent::Like(leader), feedback: vec![], stop: None, series: None };
        let mut growth = Growth { chains: vec![chain], next: keep(leader + 1), ..Growth::default() };
        if leader == 3 {
            respond("scores", Gathered::All(of(4, 0, 0)))(&mut growth);
        }
        unfolding.grow(growth, 0, &tensors).unwrap();
    }
    assert_eq!(refused(&mut unfolding, &[1]), read(1, 2));
    assert!(refused(&mut unfolding, &[1, 2, 3, 4]).starts_with("the graph: chain 4 is cancelled, but the response reads it"));
}

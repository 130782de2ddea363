//! The graphs of `seq2seq`, its text as it comes, and what it refuses.

use cellwright_guest::prelude::*;
use cellwright_guest::testing::{Described, TestRequest};
use cellwright_guest::types::{Extent, Feedback, Pace, Rows, Sibling, Value};
use cellwright_seq2seq::Seq2seq;

type Parameter<'a> = (&'a str, Value);

const TEXT: [(&str, &str); 2] = [("alphabet", "abcä"), ("target_alphabet", "xyz")];

/// The parameters of a model, with some replaced or added.
fn described(mode: &[Parameter], changes: &[Parameter], bundle: &Bundle) -> Result<Described<Seq2seq>, Refusal> {
    let texts = ["source_embedding", "encoder", "target_embedding", "decoder", "head"].map(|name| (name, Value::from(name)));
    let sizes = [("embedding", 3), ("hidden", 4), ("eos", 3), ("go", 4), ("max_steps", 6), ("max_length", 5)]
        .map(|(name, size)| (name, Value::Int(size)));
    let mut parameters: Vec<Parameter> = vec![("cell", "lstm".into()), ("input", "in".into()), ("output", "out".into())];
    parameters.extend(texts.into_iter().chain(sizes).chain(mode.iter().cloned()));
    for change in changes {
        parameters.retain(|(name, _)| *name != change.0);
        parameters.push(change.clone());
    }
    Described::with_bundle(&parameters, bundle)
}

/// Of nine source tokens, three that are written and one that ends them, and one that begins.
fn weights(gates: u64) -> Bundle {
    let tables = [("source_embedding", [9, 3]), ("target_embedding", [5, 3]), ("head", [4, 4])];
    let bundle = tables.iter().fold(Bundle::new(), |bundle, (prefix, shape)| bundle.weight(&format!("{prefix}weight"), shape));
    let bundle = ["encoder", "decoder"].iter().fold(bundle, |bundle, prefix| {
        let name = |rest: &str| format!("{prefix}{rest}_l0");
        let bundle = bundle.weight(&name("weight_ih"), &[4 * gates, 3]).weight(&name("weight_hh"), &[4 * gates, 4]);
        bundle.weight(&name("bias_ih"), &[4 * gates]).weight(&name("bias_hh"), &[4 * gates])
    });
    bundle.weight("headbias", &[4])
}

fn text(changes: &[Parameter]) -> Result<Described<Seq2seq>, Refusal> {
    described(&TEXT.map(|(name, text)| (name, text.into())), changes, &weights(gates(changes)))
}

fn ids(changes: &[Parameter]) -> Result<Described<Seq2seq>, Refusal> {
    described(
        &[("mode", "ids".into()), ("source_vocabulary", 9.into()), ("target_vocabulary", 4.into())],
        changes,
        &weights(gates(changes)),
    )
}

fn gates(changes: &[Parameter]) -> u64 {
    if changes.contains(&("cell", "gru".into())) { 3 } else { 4 }
}

fn of(chain: u32, stage: u32, output: u32) -> OutputRef {
    OutputRef { chain, stage, output }
}

#[test]
fn the_decoder_starts_where_the_encoder_ended_and_feeds_itself_until_it_stops() {
    let growth = text(&[]).unwrap().unfold(&TestRequest::new().text("in", "cab")).unwrap();
    let [encoder, decoder] = &growth.chains[..] else { panic!("a chain that reads and one that writes") };
    assert_eq!(encoder.stages[0].inputs[0], Source::Ints(vec![2, 0, 1]));
    assert_eq!((encoder.length, decoder.length), (Extent::Fixed(3), Extent::Fixed(6)));
    let inputs = &decoder.stages[0].inputs;
    assert!(matches!(&inputs[0], Source::Literal(go) if go.ints().unwrap() == [4]));
    assert_eq!(inputs[1..], [of(0, 0, 0).last(), of(0, 0, 1).last()]);
    assert_eq!(decoder.feedback.len(), 3, "token, h and c");
    assert!(decoder.stop.is_some());
    let next = growth.next.unwrap();
    assert_eq!((next.pace, next.watch.len(), growth.outputs.len()), (Pace::Every(1), 1, 0));
}

#[test]
fn a_split_projection_is_a_second_stage_that_feeds_the_first() {
    let growth =
        text(&[("split_projection", true.into()), ("cell", "gru".into())]).unwrap().unfold(&TestRequest::new().text("in", "a")).unwrap();
    let decoder = &growth.chains[1];
    assert_eq!(decoder.stages[1].inputs, [Source::Sibling(Sibling { stage: 0, output: 0 })]);
    let replace = |stage, output, to_stage, input| Feedback { stage, output, to_stage, input };
    assert_eq!(decoder.feedback, [replace(0, 0, 0, 1), replace(1, 0, 0, 0)]);
    assert_eq!(decoder.stop, Some(Sibling { stage: 1, output: 1 }));
    assert_eq!(growth.next.unwrap().watch, [of(1, 1, 0)]);
}

#[test]
fn the_source_may_be_read_backwards() {
    let reversed = [("reverse", Value::Truth(true))];
    let growth = text(&reversed).unwrap().unfold(&TestRequest::new().text("in", "cab")).unwrap();
    assert_eq!(growth.chains[0].stages[0].inputs[0], Source::Ints(vec![1, 0, 2]));
    let growth = ids(&reversed).unwrap().unfold(&TestRequest::new().ints("in", &[3], &[7, 8, 1])).unwrap();
    assert_eq!(growth.chains[0].stages[0].inputs[0], Source::Rows(Rows { tensor: 0, at: Affine::backward(3) }));
}

#[test]
fn ids_are_streamed_without_a_call_into_the_plugin() {
    let growth = ids(&[]).unwrap().unfold(&TestRequest::new().ints("in", &[2], &[7, 8])).unwrap();
    assert!(growth.next.is_none() && growth.outputs[0].stream);
}

#[test]
fn tokens_become_text_as_they_come_and_the_end_is_told() {
    let model = text(&[]).unwrap();
    let request = TestRequest::new().text("in", "a");
    let emitted = |tokens: &[i64]| {
        let event = Event::Values(vec![Tensor::of_ints("", &[tokens.len() as u64], tokens)]);
        model.resume(&[], &event, &request).map(|reaction| reaction.emit)
    };
    let part = |text: &str| vec![Tensor::of_text("out", text)];
    assert_eq!(emitted(&[1]), Ok(part("y")));
    assert_eq!(emitted(&[2, 0, 3]), Ok([part("z"), part("x")].concat()), "each its own part");
    assert_eq!(emitted(&[3]), Ok(part("")), "a text without characters is a text");
    assert_eq!(emitted(&[]), Ok(vec![]));
    let wrong = emitted(&[5]).unwrap_err();
    assert_eq!(wrong, Refusal::Internal("the model wrote token 5, which is neither in `target_alphabet` nor `eos`".into()));
}

#[test]
fn wrong_parameters_are_refused_in_a_sentence() {
    let inside = "parameter `eos` must not be a character of `target_alphabet`, but 1 is 'y'";
    assert_eq!(text(&[("eos", 1.into())]).err().unwrap().sentence(), inside);
    assert_eq!(ids(&[("eos", 4.into())]).err().unwrap().sentence(), "parameter `eos` must be below `target_vocabulary` (4), it is 4");
    assert_eq!(text(&[("alphabet", "aba".into())]).err().unwrap().sentence(), "parameter `alphabet` holds 'a' twice");
    let unused = ids(&[("alphabet", "ab".into())]).err().unwrap();
    assert!(unused.sentence().starts_with("parameter `alphabet` is unknown or unused here"), "{unused:?}");
}

#[test]
fn parameters_that_contradict_the_weights_are_named() {
    type Change = fn(Bundle) -> Bundle;
    let cases: [(bool, &[Parameter], Change, &str); 13] = [
        (true, &[("eos", 99.into())], |b| b, "parameter `eos` is token 99, but `headweight` has 4 rows (its shape is [4, 4])"),
        (true, &[("go", 5.into())], |b| b, "parameter `go` is token 5, but `target_embeddingweight` has 5 rows"),
        (
            true,
            &[("alphabet", "abcdefghij".into())],
            |b| b,
            "parameter `alphabet` holds 10 characters, but `source_embeddingweight` has 9 rows",
        ),
        (
            true,
            &[("target_alphabet", "vwxyz".into()), ("eos", 5.into())],
            |b| b,
            "parameter `target_alphabet` holds 5 characters, but `headweight` has 4 rows",
        ),
        (false, &[("source_vocabulary", 8.into())], |b| b, "parameter `source_vocabulary` is 8, but `source_embeddingweight` has 9 rows"),
        (false, &[("target_vocabulary", 5.into())], |b| b, "parameter `target_vocabulary` is 5, but `headweight` has 4 rows"),
        (true, &[("embedding", 4.into())], |b| b, "parameter `embedding` is 4, but `source_embeddingweight` has 3 columns"),
        (true, &[("hidden", 5.into())], |b| b, "parameter `hidden` is 5, but `encoderweight_hh_l0` has 4 columns"),
        (true, &[], |b| b.weight("decoderweight_hh_l0", &[20, 5]), "parameter `hidden` is 4, but `decoderweight_hh_l0` has 5 columns"),
        (true, &[], |b| b.weight("headweight", &[4, 8]), "parameter `head` is \"head\", but `headweight` takes 8 numbers"),
        (
            true,
            &[],
            |b| b.weight("headweight", &[8, 4]).weight("headbias", &[8]),
            "parameter `target_embedding` is \"target_embedding\", but `target_embeddingweight` has 5 rows, and `headweight` scores token 7 too",
        ),
        (
            true,
            &[],
            |b| b.weight("encoderweight_ih_l1", &[16, 4]),
            "parameter `encoder` is \"encoder\", which has `encoderweight_ih_l1`: this",
        ),
        (
            true,
            &[],
            |b| b.without("decoderbias_ih_l0").without("decoderbias_hh_l0"),
            "parameter `decoder` is \"decoder\", a layer without `decoderbias_ih_l0`, and this plugin needs it: add it with 16 zeros",
        ),
    ];
    for (is_text, changes, change, sentence) in cases {
        let mode = TEXT.map(|(name, text)| (name, text.into()));
        let ids = [("mode", "ids".into()), ("source_vocabulary", 9.into()), ("target_vocabulary", 4.into())];
        let mode = if is_text { &mode[..] } else { &ids };
        let refusal = described(mode, changes, &change(weights(4))).err().unwrap();
        assert!(refusal.sentence().starts_with(sentence), "{refusal:?} is not: {sentence}");
    }
}

#[test]
fn an_alphabet_has_the_form_that_texts_are_read_in() {
    let jamo = |form: &str| text(&[("alphabet", "\u{1112}\u{1161}\u{11ab}".into()), ("normal_form", form.into())]);
    let model = jamo("nfd").unwrap();
    let growth = model.unfold(&TestRequest::new().text("in", "한")).unwrap();
    assert_eq!(growth.chains[0].stages[0].inputs[0], Source::Ints(vec![0, 1, 2]));
    assert!(jamo("nfc").err().unwrap().sentence().contains("`normal_form = \"nfc\"` joins to '하'"));
    assert_eq!(
        jamo("NFC").err().unwrap().sentence(),
        "parameter `normal_form` must be \"nfc\" or \"nfd\" or \"nfkc\" or \"none\", it is \"NFC\""
    );
}

#[test]
fn wrong_requests_are_refused_in_a_sentence() {
    let (text, ids) = (text(&[]).unwrap(), ids(&[]).unwrap());
    let cases = [
        (&text, TestRequest::new().text("in", ""), "input `in` is an empty text: there is nothing to read"),
        (&text, TestRequest::new().text("in", "aaaaaa"), "input `in` has 6 characters, and this model takes at most 5"),
        (&text, TestRequest::new().text("in", &"a".repeat(81)), "input `in` has 81 characters, and this model takes at most 5"),
        (&text, TestRequest::new().text("in", &"a".repeat(96)), "input `in` has 96 bytes, and this model takes at most 5 characters"),
        (&text, TestRequest::new().text("in", "abé"), "input `in` holds 'é' (U+00E9) as character 3, which this model does not know"),
        (&text, TestRequest::new().ints("in", &[1], &[1]), "input `in` must be BYTES [1], it is INT64 [1]"),
        (&ids, TestRequest::new().ints("in", &[0], &[]), "input `in` is empty: the sequence needs at least one element"),
        (&ids, TestRequest::new().ints("in", &[6], &[1; 6]), "input `in` has 6 elements, and this model takes at most 5"),
        (&ids, TestRequest::new().text("in", "a"), "input `in` must be INT64 [any], it is BYTES [1]"),
    ];
    for (model, request, sentence) in cases {
        assert_eq!(model.unfold(&request).unwrap_err(), Refusal::InvalidInput(sentence.into()));
    }
}

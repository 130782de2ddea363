//! What the host offers a guest: the request's contents, files and weights.

use std::sync::Arc;

use cellwright_cell_graph::{Datatype, Tensor, WeightSpec};
use cellwright_plugin_runtime::{BundleView, CallError, Event, Fault, Limits, RequestView};

use crate::guest::{EMPTY_ANSWER, Guest};
use crate::{model, nothing, runtime};

fn asking(what: &str, then: &str) -> Guest {
    let import = format!(r#"(import "cellwright:plugin/request@0.1.0" "{what}" (func $ask (param i32 i32)))"#);
    let ask = format!("(call $ask (i32.const 0) (i32.const 2048)) {then} {EMPTY_ANSWER}");
    Guest::unfolding(ask).with_import(&import)
}

fn request(tensor: Tensor) -> Arc<RequestView> {
    Arc::new(RequestView::new([Arc::new(tensor)], vec![]))
}

/// Traps unless the list at 2048 has this length and its first element, loaded so, equals that.
fn expecting(length: u32, loaded: &str) -> String {
    format!(
        "(if (i32.ne (i32.load (i32.const 2052)) (i32.const {length})) (then (unreachable)))
        (if (i32.eqz {loaded}) (then (unreachable)))"
    )
}

#[test]
fn integers_of_every_width_arrive_as_64_bits() {
    let guest = asking("ints", &expecting(2, "(i64.eq (i64.load (i32.load (i32.const 2048))) (i64.const -3))"));
    let model = model(&guest);
    model.unfold(&request(Tensor::from_i64("x", &[2], &[-3, 4]))).unwrap();
    let narrow =
        Tensor { name: "x".to_owned(), datatype: Datatype::Int16, shape: vec![2], data: [-3_i16, 4].map(i16::to_le_bytes).concat() };
    model.unfold(&request(narrow)).unwrap();
    assert!(model.unfold(&request(Tensor::from_i64("x", &[2], &[-2, 4]))).is_err());
}

#[test]
fn floats_and_texts_arrive() {
    let floats = asking("floats", &expecting(3, "(f32.eq (f32.load (i32.load (i32.const 2048))) (f32.const 1.5))"));
    model(&floats).unfold(&request(Tensor::from_f32("x", &[3], &[1.5, 2.0, 3.0]))).unwrap();
    let first = "(i32.eq (i32.load8_u (i32.load (i32.load (i32.const 2048)))) (i32.const 104))";
    model(&asking("texts", &expecting(2, first))).unfold(&request(Tensor::from_texts("x", &[2], &["hello", "you"]))).unwrap();
}

#[test]
fn contents_of_another_type_or_number_end_the_call_with_a_sentence() {
    let floats = request(Tensor::from_f32("x", &[1], &[1.0]));
    let ints = request(Tensor::from_i64("x", &[1], &[1]));
    let ask = |what, request| model(&asking(what, "")).unfold(request).unwrap_err().to_string();
    let prefix = "plugin `testee` failed in unfold: it asked for the";
    assert_eq!(ask("ints", &floats), format!("{prefix} ints of tensor 0, which is FP32"));
    assert_eq!(ask("floats", &ints), format!("{prefix} floats of tensor 0, which is INT64"));
    assert_eq!(ask("texts", &ints), format!("{prefix} texts of tensor 0, which is INT64"));
    assert_eq!(ask("ints", &nothing()), format!("{prefix} ints of tensor 0, and this request has tensors 0 to 0 (exclusive)"));
}

#[test]
fn a_clients_bad_bytes_are_the_clients_fault() {
    let bad = request(Tensor::from_texts("x", &[1], &[[0xff_u8, 0xfe]]));
    let error = model(&asking("texts", "")).unfold(&bad).unwrap_err();
    assert!(matches!(error, CallError::Refused { fault: Fault::InvalidInput, .. }), "{error}");
    assert!(error.to_string().starts_with("tensor `x` is not UTF-8 text: "), "{error}");
}

#[test]
fn contents_that_the_guest_could_not_hold_are_not_converted() {
    let huge = Tensor { name: "x".to_owned(), datatype: Datatype::Int8, shape: vec![9 << 20], data: vec![0; 9 << 20] };
    let text = Tensor::from_texts("x", &[1], &[vec![b'a'; 33 << 20]]);
    for (kind, tensor, bytes) in [("ints", huge, 9 << 20), ("texts", text, (33 << 20) + 4)] {
        let error = model(&asking(kind, "")).unfold(&request(tensor)).unwrap_err();
        assert!(matches!(error, CallError::Refused { fault: Fault::InvalidInput, .. }), "{error}");
        let sentence = format!("tensor `x` has {bytes} bytes, more than the plugin can read into its memory of 67108864 bytes");
        assert!(error.to_string().starts_with(&sentence), "{error}");
    }
}

#[test]
fn a_later_chunk_of_a_session_is_numbered_on() {
    let guest = asking("ints", "");
    let mut view = RequestView::new([Arc::new(Tensor::from_i64("x", &[1], &[1]))], vec![]);
    view.first_tensor = 3;
    let sentence = model(&guest).unfold(&Arc::new(view)).unwrap_err().to_string();
    assert!(sentence.ends_with("and this request has tensors 3 to 4 (exclusive)"), "{sentence}");
}

#[test]
fn there_is_a_request_in_unfold_and_resume_only() {
    let sentence = "it asked about the request, and there is one in unfold and resume only";
    for (function, params) in [("tensors", 1), ("parameters", 1), ("ints", 2), ("floats", 2), ("texts", 2)] {
        let import = format!(r#"(import "cellwright:plugin/request@0.1.0" "{function}" (func $ask (param {})))"#, "i32 ".repeat(params));
        let ask = format!("(call $ask {})", "(i32.const 2048)".repeat(params));
        let guest = Guest { describe: format!("{ask} {EMPTY_ANSWER}"), ..Guest::default() }.with_import(&import);
        let plugin = runtime().compile("acme", "testee", &guest.wasm()).unwrap();
        let error = plugin.with_parameters(&[], Arc::new(Vec::new()), &Limits::default()).err().unwrap();
        assert_eq!(error.to_string(), format!("plugin `testee` failed in describe: {sentence}"), "{function}");
    }
    let import = r#"(import "cellwright:plugin/request@0.1.0" "tensors" (func $ask (param i32)))"#;
    let ask = format!("(call $ask (i32.const 2048)) {EMPTY_ANSWER}");
    let model = model(&Guest { resume: ask.clone(), ..Guest::unfolding(ask) }.with_import(import));
    model.unfold(&nothing()).unwrap();
    model.resume(&[], Event::EndOfInput, &nothing()).unwrap();
}

/// A bundle of one file and one weight.
struct One([WeightSpec; 1]);

impl One {
    fn view() -> Arc<dyn BundleView> {
        Arc::new(Self([WeightSpec { name: "w".to_owned(), datatype: None, shape: vec![2, 3] }]))
    }
}

impl BundleView for One {
    fn file(&self, path: &str) -> Option<Vec<u8>> {
        (path == "vocab").then(|| b"abc".to_vec())
    }

    fn weights(&self) -> &[WeightSpec] {
        &self.0
    }
}

#[test]
fn weights_are_listed_while_describing_and_only_then() {
    let import = r#"(import "cellwright:plugin/host@0.1.0" "weights" (func $weights (param i32)))"#;
    let unless = |place: &str, value: u32| format!("(if (i32.ne (i32.load {place}) (i32.const {value})) (then (unreachable)))");
    let first = "(i32.load (i32.const 3100))";
    // One weight: the length of its name, no datatype, two extents of which the second is 3.
    let looked = [
        unless("(i32.const 3104)", 1),
        unless(&format!("offset=4 {first}"), 1),
        format!("(if (i32.load8_u offset=8 {first}) (then (unreachable)))"),
        unless(&format!("offset=16 {first}"), 2),
        unless(&format!("offset=8 (i32.load offset=12 {first})"), 3),
    ];
    let list = "(call $weights (i32.const 3100))";
    let describe = format!("{list} {} {EMPTY_ANSWER}", looked.concat());
    let guest = Guest { describe, ..Guest::unfolding(format!("{list} {EMPTY_ANSWER}")) }.with_import(import);
    let model = runtime().compile("acme", "testee", &guest.wasm()).unwrap().with_parameters(&[], One::view(), &Limits::default()).unwrap();
    let sentence = model.unfold(&nothing()).unwrap_err().to_string();
    assert!(sentence.ends_with("it asked for the bundle's weights, which are there in describe only"), "{sentence}");
}

#[test]
fn files_are_read_while_describing_and_only_then() {
    let import = r#"(import "cellwright:plugin/host@0.1.0" "file" (func $file (param i32 i32 i32)))"#;
    let read = "(call $file (i32.const 3000) (i32.const 5) (i32.const 3100))";
    let whole = format!("{read} (if (i32.ne (i32.load (i32.const 3108)) (i32.const 3)) (then (unreachable))) {EMPTY_ANSWER}");
    let guest = |path: &str| {
        Guest { describe: whole.clone(), ..Guest::unfolding(format!("{read} {EMPTY_ANSWER}")) }
            .with_import(import)
            .with_extra(&format!(r#"(data (i32.const 3000) "{path}")"#))
    };
    let describe =
        |path| runtime().compile("acme", "testee", &guest(path).wasm()).unwrap().with_parameters(&[], One::view(), &Limits::default());
    let model = describe("vocab").unwrap();
    assert!(describe("other").is_err());
    let sentence = model.unfold(&nothing()).unwrap_err().to_string();
    assert!(sentence.ends_with("it asked for the file \"vocab\", and files are there in describe only"), "{sentence}");
}

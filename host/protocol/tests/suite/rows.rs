//! Calls whose rows are requests.

use cellwright_cell_graph::Tensor;
use cellwright_protocol::{InferRequest, InferResponse, join_rows, split_rows};

fn call(inputs: Vec<Tensor>) -> InferRequest {
    InferRequest { id: Some("c".into()), inputs, ..InferRequest::default() }
}

#[test]
fn a_row_sees_its_inputs_without_the_leading_dimension() {
    let rows = Tensor::from_f32("x", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let texts = Tensor::from_texts("t", &[2, 2], &["a", "bc", "", "def"]);
    let requests = split_rows(&call(vec![rows, texts]), 8).unwrap();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].inputs, [Tensor::from_f32("x", &[3], &[4.0, 5.0, 6.0]), Tensor::from_texts("t", &[2], &["", "def"])]);
    assert_eq!(requests.iter().find_map(|request| request.id.as_deref()), None, "the call's id is its own");
}

#[test]
fn answers_are_stacked() {
    let answer = |value: f32| InferResponse {
        id: Some("c".into()),
        outputs: vec![Tensor::from_f32("y", &[1], &[value])],
        ..InferResponse::default()
    };
    let joined = join_rows(vec![answer(1.0), answer(2.0), answer(3.0)]).unwrap();
    assert_eq!(joined.outputs, [Tensor::from_f32("y", &[3, 1], &[1.0, 2.0, 3.0])]);
}

#[test]
fn each_fault_has_its_sentence() {
    let split = |inputs| split_rows(&call(inputs), 4).unwrap_err().to_string();
    let ints = |name: &str, rows: usize| Tensor::from_i64(name, &[rows], &vec![0; rows]);
    assert_eq!(
        split(vec![ints("a", 2), ints("b", 3)]),
        "input `b` has 3 rows, `a` has 2; the leading dimension of every input counts the same requests"
    );
    assert_eq!(split(vec![ints("a", 0)]), "the call has no rows: its leading dimension is 0");
    assert_eq!(split(vec![ints("a", 5)]), "the call has 5 rows, more than the limit of 4");
    assert_eq!(
        split(vec![ints(&"a".repeat(10 << 20), 4)]),
        "the call has 4 rows, each with about 10485832 bytes of parameters, names and shapes: at most 33554432 bytes are allowed in all"
    );
    assert!(split(vec![Tensor::from_i64("a", &[], &[1])]).starts_with("input `a` is a scalar"));
    let answer = |length: usize| InferResponse { outputs: vec![ints("y", length)], ..InferResponse::default() };
    let message = join_rows(vec![answer(1), answer(2)]).unwrap_err().to_string();
    assert!(message.contains("`y` INT64 [1] and `y` INT64 [2]"), "{message}");
}

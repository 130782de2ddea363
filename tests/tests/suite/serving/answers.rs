//! What reaches the client: parts that are the whole when they are put together, and nothing that the model does not declare.

use cellwright_cell_graph::Tensor;
use cellwright_tests::requests;

use super::{behaving, fault, host, refused};

/// The running sums of a request of the summing model.
fn running_sums(seed: usize, rows: usize) -> Vec<f32> {
    let data = requests::sum(seed, rows).inputs[0].to_f32().unwrap();
    let mut sums = Vec::new();
    let mut sum = [0.0; 4];
    for row in data.chunks(4) {
        for (column, value) in row.iter().enumerate() {
            sum[column] += value + [1.0, 2.0, 3.0, 4.0][column];
        }
        sums.extend(sum);
    }
    sums
}

#[test]
fn rows_as_they_come_are_the_whole() {
    let host = host();
    let model = host.model("sums");
    let (sum, sums) = (Tensor::from_f32("sum", &[4], &requests::sum_answer(5, 40)), running_sums(5, 40));
    let request = behaving("stream-all", requests::sum(5, 40));
    let whole = host.whole(&model, request.clone()).unwrap();
    assert_eq!(whole, [sum.clone(), Tensor::from_f32("sums", &[40, 4], &sums)]);
    let (parts, rest) = host.parts(&model, request);
    let joined: Vec<f32> = parts.iter().flat_map(|part| part.to_f32().unwrap()).collect();
    assert_eq!((joined, rest), (sums, vec![sum]), "what is not streamed is in the response");
    assert!(parts.len() > 1, "{} parts", parts.len());
    assert!(parts.iter().all(|part| part.name == "sums" && part.shape[1..] == [4] && part.is_consistent()));
    host.is_whole_again();
}

/// What a later growth gives is there long before what the first one does, unless that is short.
#[test]
fn what_several_growths_give_follows_in_their_order() {
    let host = host();
    let model = host.model("sums");
    for rows in [2, 5000] {
        let (sums, nothing) = (running_sums(5, rows), [0.0; 4]);
        let sum = Tensor::from_f32("sum", &[4], &sums[..4]);
        let wanted = [&sums[..], &nothing, &sums[..8], &nothing].concat();
        let whole = host.whole(&model, behaving("resume-overtakes", requests::sum(5, rows))).unwrap();
        assert!(whole == [sum.clone(), Tensor::from_f32("sums", &[rows + 4, 4], &wanted)], "{rows} rows are out of order");
        let (parts, rest) = host.parts(&model, behaving("resume-overtakes-parts", requests::sum(5, rows)));
        let joined: Vec<f32> = parts.iter().flat_map(|part| part.to_f32().unwrap()).collect();
        assert!(joined == wanted && rest == [sum], "parts of {rows} rows are out of order");
    }
    host.is_whole_again();
}

#[test]
fn the_last_of_what_replaces_itself_is_the_whole() {
    let host = host();
    let model = host.model("honest");
    let (sum, sums) = (Tensor::from_f32("sum", &[4], &requests::sum_answer(5, 40)), running_sums(5, 40));
    let each: Vec<Tensor> = sums.chunks(4).map(|sum| Tensor::from_f32("sum", &[4], sum)).collect();

    let request = behaving("stream-last", requests::sum(5, 40));
    assert_eq!(host.whole(&model, request.clone()).unwrap(), std::slice::from_ref(&sum));
    assert_eq!(host.parts(&model, request), (each.clone(), vec![]), "each step as it comes");

    // The same, emitted by the plugin every second step.
    let request = behaving("resume-every", requests::sum(5, 40));
    assert_eq!(host.whole(&model, request.clone()).unwrap(), std::slice::from_ref(&sum));
    let (parts, rest) = host.parts(&model, request);
    assert_eq!((parts.last(), rest), (Some(&sum), vec![]));
    // How many there are depends on how many steps had come when the plugin was shown them.
    assert!(parts.iter().all(|part| each.contains(part)), "{parts:?}");
    host.is_whole_again();
}

#[test]
fn what_a_plugin_emits_is_checked() {
    let host = host();
    let model = host.model("honest");
    let sentence = |behaviour| refused(host.whole(&model, behaving(behaviour, requests::sum(1, 3))));
    let emitted = |what: &str| fault(&format!("plugin `plugin.wasm` emitted {what}"));
    assert_eq!(sentence("resume-emits-unknown"), emitted("`product`, which is not an output of its model"));
    assert_eq!(sentence("resume-emits-wrong-shape"), emitted("`sum` as FP32 [3], which its description does not allow"));
    assert_eq!(sentence("resume-emits-wrong-datatype"), emitted("`sum` as INT32 [4], which its description does not allow"));
    host.is_whole_again();
}

#[test]
fn a_plugin_may_not_wait_for_what_never_comes() {
    let host = host();
    let sentence = refused(host.whole(&host.model("honest"), behaving("resume-waits", requests::sum(1, 3))));
    assert_eq!(sentence, fault("plugin `plugin.wasm` waits for more input after the end of the input"));
    host.is_whole_again();
}

//! The examples, served as anyone would serve them: right alone, and bit for bit the same under load.

use cellwright_bundle::Bundle;
use cellwright_cell_graph::Tensor;
use cellwright_protocol::InferRequest;
use cellwright_serving::Delivery;
use cellwright_tests::binary::root;
use cellwright_tests::host::Host;

#[test]
fn digits_are_the_same_alone_and_under_load() {
    alone_and_under_load("digits");
}

#[test]
fn dates_are_the_same_alone_and_under_load() {
    alone_and_under_load("dates");
}

#[test]
fn listops_are_the_same_alone_and_under_load() {
    alone_and_under_load("listops");
}

/// Every sample once alone, then many of each in flight at once, in several mixtures.
fn alone_and_under_load(example: &str) {
    let host = Host::shared();
    let bundle = Bundle::open(&root().join("examples").join(example)).expect("the example opens");
    let model = host.serving().load(&bundle, "tests").expect("the example loads");
    let infer = |request: &InferRequest| host.serving().infer(&model, request.clone(), Delivery::Whole).expect("a sample is taken");

    let samples = &bundle.samples().all;
    let alone: Vec<Vec<Tensor>> =
        samples.iter().map(|sample| infer(&sample.request).wait().expect("a sample is answered").outputs).collect();
    for (sample, outputs) in samples.iter().zip(&alone) {
        let expected = sample.expected.as_ref().expect("examples say what they expect");
        for wanted in expected.iter().filter(|tensor| tensor.to_f32().is_none()) {
            assert!(outputs.iter().any(|output| output == wanted), "{:?}: {wanted:?} is not among {outputs:?}", sample.request.id);
        }
    }
    for step in [1, 3, 5] {
        let order: Vec<usize> = (0..samples.len() * 20).map(|n| n * step % samples.len()).collect();
        let replies: Vec<_> = order.iter().map(|position| (*position, infer(&samples[*position].request))).collect();
        for (position, reply) in replies {
            assert_eq!(reply.wait().expect("a sample is answered under load").outputs, alone[position], "sample {position} of {example}");
        }
    }
}

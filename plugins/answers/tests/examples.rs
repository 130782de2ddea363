//! The example bundles' samples, through the stock plugins' graphs, computed natively, against PyTorch's answers.

#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

use answers::{Example, numbers};
use cellwright_guest::Plugin;
use cellwright_guest::testing::{Array, Described, evaluate};
use cellwright_guest::types::{Event, Tensor};

/// Every sample's tensors, to within the rounding of 32-bit sums.
fn check<P: Plugin>(example: &str) {
    let example = Example::load(example);
    let described = Described::<P>::with_bundle(&example.parameters(), &(&example.weights).into()).unwrap();
    assert!(!example.samples.is_empty());
    for (request, expected) in &example.samples {
        let growth = described.unfold(request).unwrap();
        let evaluated = evaluate(&described.description, &growth, request, &example.weights);
        assert_eq!(evaluated.outputs.len(), expected.len());
        for (name, data) in expected {
            let output = &evaluated.outputs[name];
            let distance = output.distance(&Array::new(&output.shape, numbers(data)));
            assert!(distance < 1e-4, "{name} is off by {distance}");
        }
    }
}

#[test]
fn chain_answers_digits_as_pytorch_does() {
    check::<cellwright_chain::Chain>("digits");
}

#[test]
fn tree_answers_listops_as_pytorch_does() {
    check::<cellwright_tree::Tree>("listops");
}

#[test]
fn seq2seq_writes_dates_as_pytorch_does_in_one_cell_or_two_a_step() {
    let example = Example::load("dates");
    for split in [false, true] {
        let mut parameters = example.parameters();
        parameters.push(("split_projection", split.into()));
        let described = Described::<cellwright_seq2seq::Seq2seq>::with_bundle(&parameters, &(&example.weights).into()).unwrap();
        for (request, expected) in &example.samples {
            let growth = described.unfold(request).unwrap();
            let evaluated = evaluate(&described.description, &growth, request, &example.weights);
            let next = growth.next.unwrap();
            let mut written = String::new();
            for token in evaluated.steps(next.watch[0]) {
                let event = Event::Values(vec![Tensor::of_ints("", &[1], &[token.values[0] as i64])]);
                let reaction = described.resume(&next.state, &event, request).unwrap();
                assert!(reaction.growth.is_none());
                // A part is a length and its text.
                written.extend(reaction.emit.iter().map(|part| String::from_utf8(part.data[4..].to_vec()).unwrap()));
            }
            assert_eq!(written, expected[0].1[0].as_str().unwrap());
        }
    }
}

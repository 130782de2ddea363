//! Requests that a sound model must refuse, or must let through unharmed.

use cellwright_cell_graph::Tensor;
use cellwright_protocol::InferRequest;
use cellwright_serving::ErrorKind;
use cellwright_tests::bundle_folder::{BundleFolder, HIDDEN};
use cellwright_tests::host::Host;
use cellwright_tests::neighbours::beside;
use cellwright_tests::requests;

use super::sentence::complaint;

/// What is wrong with the request, the request, and pieces of the sentence that its sender must read.
type Case = (&'static str, fn() -> Vec<Tensor>, &'static [&'static str]);

const DENSE: &[Case] = &[
    ("an empty sequence", || vec![Tensor::from_f32("x", &[0, 4], &[])], &["x"]),
    ("a sequence over the bound", || vec![Tensor::from_f32("x", &[17, 4], &[0.0; 68])], &["17", "16"]),
    ("too wide", || vec![Tensor::from_f32("x", &[2, 5], &[0.0; 10])], &["x", "5", "4"]),
    ("too flat", || vec![Tensor::from_f32("x", &[4], &[0.0; 4])], &["x", "[4]"]),
    ("integers", || vec![Tensor::from_i64("x", &[1, 4], &[0; 4])], &["x", "INT64", "FP32"]),
    ("another name", || vec![Tensor::from_f32("y", &[1, 4], &[0.0; 4])], &["y", "x"]),
    ("nothing", Vec::new, &["x"]),
    ("twice", || vec![Tensor::from_f32("x", &[1, 4], &[0.0; 4]), Tensor::from_f32("x", &[1, 4], &[0.0; 4])], &["x"]),
    ("one too many", || vec![Tensor::from_f32("x", &[1, 4], &[0.0; 4]), Tensor::from_f32("z", &[1], &[0.0])], &["z"]),
];

const TOKENS: &[Case] = &[
    ("a token past the vocabulary", || vec![Tensor::from_i64("tokens", &[3], &[0, 5, 1])], &["5"]),
    ("a token before the vocabulary", || vec![Tensor::from_i64("tokens", &[2], &[0, -6])], &["-6"]),
    ("a token that is huge", || vec![Tensor::from_i64("tokens", &[1], &[i64::MAX])], &["9223372036854775807"]),
    ("no tokens", || vec![Tensor::from_i64("tokens", &[0], &[])], &["tokens"]),
    ("too many tokens", || vec![Tensor::from_i64("tokens", &[17], &[0; 17])], &["17", "16"]),
    ("floats", || vec![Tensor::from_f32("tokens", &[1], &[0.0])], &["tokens", "FP32", "INT64"]),
];

#[test]
fn wrong_dense_inputs_are_the_clients_fault() {
    all_refused(&BundleFolder::dense(), DENSE);
}

/// A token is checked in the kernel, where it is among the rows of others: it fails alone.
#[test]
fn wrong_tokens_are_the_clients_fault() {
    all_refused(&BundleFolder::recurrent(), TOKENS);
}

/// NaN is a number like others: it reaches the answer of its own request, and no other.
#[test]
fn nan_passes_through_and_stays_where_it_is() {
    let host = Host::shared();
    let model = host.load(&BundleFolder::dense()).expect("the bundle loads");
    let request = |value: f32| requests::of(vec![Tensor::from_f32("x", &[2, 4], &[0.5, value, 0.25, 1.0, 0.1, 0.2, 0.3, 0.4])]);
    let alone = host.infer(&model, request(1.0)).expect("an answer");
    let replies: Vec<_> = (0..64)
        .map(|n| (n % 2 == 0, request(if n % 2 == 0 { 1.0 } else { f32::NAN })))
        .map(|(sound, request)| (sound, host.serving().infer(&model, request, cellwright_serving::Delivery::Whole).expect("it is taken")))
        .collect();
    for (sound, reply) in replies {
        let hidden = reply.wait().expect("an answer").outputs[0].to_f32().expect("floats");
        assert_eq!(hidden.len(), HIDDEN);
        if sound {
            assert_eq!(Some(hidden), alone.outputs[0].to_f32());
        } else {
            assert!(hidden.iter().all(|value| value.is_nan()), "{hidden:?}");
        }
    }
}

/// Beside honest requests of another model, and beside honest requests of the same model in the same batches.
fn all_refused(bundle: &BundleFolder, cases: &[Case]) {
    let host = Host::shared();
    let model = host.load(bundle).expect("the bundle loads");
    let sample = cellwright_bundle::Bundle::open(bundle.path()).expect("a sound bundle").samples().all[0].request.clone();
    let alone = host.infer(&model, sample.clone()).expect("an answer");
    let wrong: Vec<String> = beside(host, host.summing(), || {
        cases
            .iter()
            .flat_map(|(what, inputs, wanted)| {
                let send = |request: InferRequest| host.serving().infer(&model, request, cellwright_serving::Delivery::Whole);
                let honest: Vec<_> = (0..8).map(|_| send(sample.clone()).expect("it is taken")).collect();
                let outcome = send(requests::of(inputs())).and_then(|reply| reply.wait());
                let mut wrong: Vec<String> = honest
                    .into_iter()
                    .filter_map(|reply| match reply.wait() {
                        Ok(response) if response.outputs == alone.outputs => None,
                        other => Some(format!("{what}: an honest request beside it got {other:?}")),
                    })
                    .collect();
                if let Err(error) = &outcome
                    && error.kind() != ErrorKind::BadInput
                {
                    wrong.push(format!("{what}: is blamed on {:?}: {error}", error.kind()));
                }
                wrong.extend(complaint(what, outcome, wanted));
                wrong
            })
            .collect()
    });
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

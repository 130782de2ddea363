//! Models whose steps see other steps: what PyTorch computes, whatever runs beside it, under every policy.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use cellwright_cell_graph::Tensor;
use cellwright_cell_graph::generate::Rng;
use cellwright_engine::EngineOptions;
use cellwright_scheduler::Config;
use cellwright_tests::bundle_folder::{ATTENTION, BundleFolder, CONVOLUTION};
use cellwright_tests::host::Host;
use cellwright_tests::requests;
use cellwright_tests::sessions::open_session;
use serde_json::Value;

/// What PyTorch computed (`tests/vectors/make.py`).
struct Vectors(Value);

struct Array {
    name: String,
    shape: Vec<usize>,
    numbers: Vec<Value>,
}

impl Array {
    fn floats(&self) -> Vec<f32> {
        self.numbers.iter().map(|value| value.as_f64().expect("a number") as f32).collect()
    }

    /// As the model's input of that name and type.
    fn input(&self, name: &str) -> Tensor {
        match self.numbers.iter().map(Value::as_i64).collect::<Option<Vec<i64>>>() {
            Some(ids) => Tensor::from_i64(name, &self.shape, &ids),
            None => Tensor::from_f32(name, &self.shape, &self.floats()),
        }
    }
}

impl Vectors {
    fn load(family: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("vectors/{family}.json"));
        Self(serde_json::from_str(&std::fs::read_to_string(path).expect("vectors")).expect("JSON"))
    }

    fn arrays(&self, part: &str) -> Vec<Array> {
        let list = |value: &Value| value.as_array().expect("a list").clone();
        let array = |(name, entry): (&String, &Value)| Array {
            name: name.clone(),
            shape: list(&entry["shape"]).iter().map(|extent| extent.as_u64().expect("an extent") as usize).collect(),
            numbers: list(&entry["data"]),
        };
        self.0[part].as_object().expect("arrays").iter().map(array).collect()
    }

    fn bundle(&self, plugin: &[u8], parameters: &str, sample: &str) -> BundleFolder {
        let weights: Vec<_> = self.arrays("weights").into_iter().map(|array| (array.floats(), array)).collect();
        let weights: Vec<_> =
            weights.iter().map(|(floats, array)| (array.name.as_str(), array.shape.as_slice(), floats.as_slice())).collect();
        BundleFolder::own(plugin, parameters, &weights, sample)
    }
}

fn convolution(more: &str) -> (Vectors, BundleFolder) {
    let vectors = Vectors::load("convolution");
    let sample = format!(r#"{{"name":"audio","datatype":"FP32","shape":[24],"data":{:?}}}"#, [0.5; 24]);
    let bundle = vectors.bundle(CONVOLUTION, &format!("features = 5\nhidden = 7\noutputs = 4\n{more}"), &sample);
    (vectors, bundle)
}

/// A model with attention by its family, and its vectors.
fn attention((family, hidden, outputs, more): (&str, u32, u32, &str), session: bool) -> (Vectors, BundleFolder) {
    let vectors = Vectors::load(family);
    let parameters = format!("model = \"{family}\"\nhidden = {hidden}\noutputs = {outputs}\nsession = {session}\n{more}");
    let bundle = vectors.bundle(ATTENTION, &parameters, r#"{"name":"ids","datatype":"INT64","shape":[3],"data":[1,2,3]}"#);
    (vectors, bundle)
}

const FAMILIES: [(&str, u32, u32, &str); 6] = [
    ("decoder", 8, 13, ""),
    ("luong", 7, 7, ""),
    ("bahdanau", 7, 7, ""),
    ("transducer", 7, 6, "blank = 1\nmost = 3"),
    ("local", 8, 4, ""),
    ("pooling", 7, 4, ""),
];

const POLICIES: [&str; 8] = ["cellular", "adaptive", "graph", "serial", "merge", "lazy", "length-aware", "stages"];

fn host_of(policy: &str) -> Host {
    let scheduler = Config { policy: policy.parse().expect("a policy"), ..Config::default() };
    Host::start(EngineOptions { scheduler, ..EngineOptions::default() })
}

/// 50 requests at once, of several lengths, under every policy.
fn answers_as_pytorch_does(vectors: &Vectors, bundle: &BundleFolder, input: &str) {
    let (inputs, outputs) = (vectors.arrays("inputs"), vectors.arrays("outputs"));
    let inputs: Vec<_> = inputs.iter().map(|array| (array.name.trim_start_matches(input), array.input(input))).collect();
    let wanted: Vec<_> = outputs.iter().map(|array| (array.name.trim_start_matches('y'), array.floats())).collect();
    assert!(inputs.iter().map(|(length, _)| length).eq(wanted.iter().map(|(length, _)| length)));
    let mut first: Vec<Vec<f32>> = Vec::new();
    for policy in POLICIES {
        let host = host_of(policy);
        let model = host.load(bundle).expect("it loads");
        let answers: Vec<Vec<f32>> = thread::scope(|scope| {
            let calls = (0..50).map(|call| {
                let (host, model, (_, tensor)) = (&host, Arc::clone(&model), &inputs[call % inputs.len()]);
                scope.spawn(move || host.infer(&model, requests::of(vec![tensor.clone()])).expect("an answer"))
            });
            let calls: Vec<_> = calls.collect();
            calls.into_iter().map(|call| call.join().expect("no panic").outputs[0].to_f32().expect("floats")).collect()
        });
        for (answer, (length, wanted)) in answers.iter().zip(wanted.iter().cycle()) {
            assert_eq!(answer.len(), wanted.len(), "{policy}, {length}");
            for (at, (given, wanted)) in answer.iter().zip(wanted).enumerate() {
                let is_near = (given - wanted).abs() <= 1e-4 * (1.0 + wanted.abs());
                assert!(is_near, "{policy}, {length}, element {at}: {given} instead of {wanted}");
            }
        }
        if first.is_empty() {
            first = answers;
        } else {
            assert_eq!(answers, first, "{policy}: other bits");
        }
    }
}

#[test]
fn a_convolution_network_answers_as_pytorch_does() {
    let (vectors, bundle) = convolution("");
    answers_as_pytorch_does(&vectors, &bundle, "audio");
}

/// A decoder that keeps its keys and values, attention over a source in two forms, a transducer, attention to what is near, and pooling.
#[test]
fn models_with_attention_answer_as_pytorch_does() {
    for family in FAMILIES {
        let (vectors, bundle) = attention(family, false);
        answers_as_pytorch_does(&vectors, &bundle, "ids");
    }
}

/// A tensor in parts of random sizes along its only axis.
fn parts(whole: &Tensor, most: u32, rng: &mut Rng) -> Vec<Tensor> {
    let size = whole.datatype.size().expect("a fixed size");
    let (mut parts, mut from) = (Vec::new(), 0);
    while from < whole.shape[0] {
        let rows = (rng.between(1, most) as usize).min(whole.shape[0] - from);
        parts.push(Tensor { shape: vec![rows], data: whole.data[from * size..(from + rows) * size].to_vec(), ..whole.clone() });
        from += rows;
    }
    parts
}

/// Each request also as a session that gets its input in parts: the bits of one request.
fn answers_in_parts((vectors, whole): (&Vectors, &BundleFolder), in_parts: &BundleFolder, input: &str, policies: &[&str]) {
    let inputs: Vec<Tensor> = vectors.arrays("inputs").iter().map(|array| array.input(input)).collect();
    for policy in policies {
        let host = host_of(policy);
        let (whole, in_parts) = (host.load(whole).expect("it loads"), host.load(in_parts).expect("it loads"));
        let wanted: Vec<_> = inputs
            .iter()
            .map(|tensor| host.infer(&whole, requests::of(vec![tensor.clone()])).expect("an answer").outputs[0].to_f32().expect("floats"))
            .collect();
        thread::scope(|scope| {
            for session in 0..16_usize {
                let (host, model, inputs, wanted) = (&host, &in_parts, &inputs, &wanted);
                scope.spawn(move || {
                    let which = session % inputs.len();
                    let most = [3, 40, 100][session / inputs.len() % 3];
                    let parts = parts(&inputs[which], most, &mut Rng::new(session as u64));
                    let mut parts = parts.into_iter().map(|part| requests::of(vec![part]));
                    let open = open_session(host.serving(), model, parts.next().expect("a part")).expect("a session opens");
                    let rest = parts.try_for_each(|part| open.push(part));
                    let answer = open.wait().unwrap_or_else(|error| panic!("{policy}: {error}")).outputs;
                    rest.expect("a part is taken");
                    let given = answer[0].to_f32().expect("floats");
                    assert_eq!(given.len(), wanted[which].len(), "{policy}, {:?} in parts of {most}", inputs[which].shape);
                    assert_eq!(given, wanted[which], "{policy}, {:?} in parts of {most}: other bits", inputs[which].shape);
                });
            }
        });
    }
}

#[test]
fn a_convolution_network_answers_in_parts() {
    let (vectors, whole) = convolution("");
    answers_in_parts((&vectors, &whole), &convolution("session = true").1, "audio", &POLICIES);
}

#[test]
fn models_with_attention_answer_in_parts() {
    for (at, family) in FAMILIES.into_iter().enumerate() {
        let (vectors, whole) = attention(family, false);
        // Every model under the default policy, and each other policy with one.
        let policies = [&POLICIES[..1], &POLICIES[1 + at % 7..][..1]].concat();
        answers_in_parts((&vectors, &whole), &attention(family, true).1, "ids", &policies);
    }
}

#[test]
fn a_signal_without_enough_frames_is_refused() {
    let host = Host::shared();
    let model = host.load(&convolution("").1).expect("it loads");
    let refusal = |elements: usize| {
        host.infer(&model, requests::of(vec![Tensor::from_f32("audio", &[elements], &vec![0.5; elements])])).unwrap_err().to_string()
    };
    assert_eq!(refusal(7), "input `audio` has 7 elements, and a frame takes 16");
    assert_eq!(refusal(16), "input `audio` has one frame, and the last layer takes two");
    assert_eq!(refusal(16 + 8 * 4096), "input `audio` has 4097 frames, and this model takes at most 4096");
}

//! The example bundles answer their own samples as PyTorch did, alone and all at once.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cellwright_backend::Backend;
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_bundle::{Bundle, Sample};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::{Datatype, Tensor};
use cellwright_engine::EngineOptions;
use cellwright_plugin_runtime::{Compiler, RuntimeOptions};
use cellwright_serving::samples::{self, PrecisionFigures, SampleBounds, SampleReport};
use cellwright_serving::{Delivery, Serving, ServingOptions};

fn host(workers: usize) -> Serving {
    host_with(workers, None)
}

fn host_with(workers: usize, answers_bytes_max: Option<u64>) -> Serving {
    host_of(workers, answers_bytes_max, EngineOptions::default())
}

fn host_of(workers: usize, answers_bytes_max: Option<u64>, engine: EngineOptions) -> Serving {
    let domain = CpuDomain::new(DomainOptions::default()).unwrap();
    let backends = (0..workers).map(|_| -> Box<dyn Backend> { Box::new(CpuWorker::new(domain.clone(), CpuOptions::default()).unwrap()) });
    let options = ServingOptions { runtime: RuntimeOptions::new(Compiler::InProcess), engine, plugin_threads: 2, answers_bytes_max };
    Serving::start(options, backends.collect()).unwrap()
}

fn bundle(name: &str) -> Bundle {
    Bundle::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)).unwrap()
}

fn assert_expected(sample: &Sample, outputs: &[Tensor], tolerance: f64) {
    let id = sample.request.id.as_deref().unwrap_or_default();
    for expected in sample.expected.as_ref().expect("examples say what they expect") {
        let actual = outputs.iter().find(|tensor| tensor.name == expected.name).unwrap_or_else(|| panic!("{id}: no {}", expected.name));
        assert_eq!((actual.datatype, &actual.shape), (expected.datatype, &expected.shape), "{id}: {}", expected.name);
        if expected.datatype == Datatype::Fp32 {
            for (a, b) in actual.to_f32().unwrap().into_iter().zip(expected.to_f32().unwrap()) {
                assert!(
                    f64::from((a - b).abs()) <= tolerance * (1.0 + f64::from(b.abs())),
                    "{id}: {} has {a}, expected {b}",
                    expected.name
                );
            }
        } else {
            assert_eq!(actual.data, expected.data, "{id}: {}", expected.name);
        }
    }
}

fn check(name: &str) {
    let bundle = bundle(name);
    let serving = host(2);
    let model = serving.load(&bundle, "tests").unwrap();
    let samples = bundle.samples();
    assert!(!samples.all.is_empty());
    for sample in &samples.all {
        let response = serving.infer(&model, sample.request.clone(), Delivery::Whole).unwrap().wait().unwrap();
        assert_expected(sample, &response.outputs, samples.tolerance);
    }
    let many: Vec<&Sample> = samples.all.iter().cycle().take(500).collect();
    let replies: Vec<_> = many.iter().map(|sample| serving.infer(&model, sample.request.clone(), Delivery::Whole).unwrap()).collect();
    for (sample, reply) in many.into_iter().zip(replies) {
        assert_expected(sample, &reply.wait().unwrap().outputs, samples.tolerance);
    }
}

#[test]
fn digits() {
    check("digits");
}

#[test]
fn dates() {
    check("dates");
}

#[test]
fn listops() {
    check("listops");
}

/// Text that is streamed while it is generated comes in several parts, which together are the whole.
#[test]
fn dates_stream_their_text() {
    let bundle = bundle("dates");
    let serving = host(1);
    let model: Arc<_> = serving.load(&bundle, "tests").unwrap();
    let sample = &bundle.samples().all[0];
    let reply = serving.infer(&model, sample.request.clone(), Delivery::Parts).unwrap();
    let mut text = Vec::new();
    let mut parts = 0;
    while let Some(part) = reply.next_part() {
        text.extend_from_slice(part.texts().unwrap()[0]);
        parts += 1;
    }
    let expected = sample.expected.as_ref().unwrap()[0].texts().unwrap()[0].to_vec();
    assert_eq!(text, expected);
    assert!(parts > 1, "the text came in {parts} part(s)");
}

#[test]
fn samples_that_take_too_long_together_fail() {
    let (serving, bundle) = (host(1), bundle("digits"));
    let model = serving.load(&bundle, "tests").unwrap();
    let bounds = SampleBounds { time_max: Duration::ZERO, ..SampleBounds::default() };
    let reports = samples::run(&serving, &model, &bundle, &bounds);
    assert_eq!(reports.len(), bundle.samples().all.len());
    let late = |report: &SampleReport| report.fault.as_deref().is_some_and(|fault| fault.contains("took more than 0 ms"));
    assert!(reports.iter().all(late), "{reports:?}");
    let reports = samples::run(&serving, &model, &bundle, &SampleBounds::default());
    assert!(reports.iter().all(|report| report.fault.is_none()), "{reports:?}");
}

#[test]
fn samples_that_have_no_room_all_at_once_pass_one_after_the_other() {
    let bundle = bundle("digits");
    // One of its answers takes less than 100 bytes.
    let serving = host_with(1, Some(200));
    let model = serving.load(&bundle, "tests").unwrap();
    let reports = samples::run(&serving, &model, &bundle, &SampleBounds::default());
    assert!(reports.len() > 2 && reports.iter().all(|report| report.fault.is_none()), "{reports:?}");
}

/// A host with room for the model and no more has none for its twins beside it: they say so, and that is all.
#[test]
fn a_precision_that_does_not_fit_says_so() {
    let bundle = bundle("digits").with_precision(Precision::Bf16);
    // As they are read, and as they are packed; the plugin's code; what it says of the model and of a twin.
    let floats = host(1).load(&bundle.clone().with_precision(Precision::F32), "tests").unwrap();
    let weights = bundle.weight_bytes(floats.description()) + floats.loaded().weight_bytes();
    let weights = weights + floats.plugin().code_bytes() + 2 * floats.description().bytes();
    let serving = host_of(1, None, EngineOptions { weight_bytes_max: Some(weights), ..EngineOptions::default() });
    let model = serving.load(&bundle, "tests").unwrap();
    let [f32, _, bf16, _] = precisions(&serving, &bundle);
    assert!(f32.unwrap_err().contains("unload another model"));
    let bf16 = bf16.unwrap();
    assert_eq!((bf16.answered, bf16.error, bf16.right), (0, None, bf16.labelled));
    assert!(bf16.labelled > 0);
    serving.unload(&model);
    for found in precisions(&serving, &bundle) {
        assert_eq!(found.unwrap().answered, bundle.samples().all.len());
    }
}

fn precisions(serving: &Serving, bundle: &Bundle) -> [Result<PrecisionFigures, String>; 4] {
    let reports = samples::precisions(serving, bundle, "tests", &SampleBounds::default());
    let found: Vec<_> = reports.into_iter().map(|report| report.found).collect();
    found.try_into().unwrap()
}

//! Plugins that fault, refuse, or answer with what must not be run. The request (or the load) fails with a sentence that names the plugin, the
//! export and the cause; every other request, of the same model and so of the same plugin, gets its right answer.

use cellwright_serving::ErrorKind;
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::host::Host;
use cellwright_tests::neighbours::beside;
use cellwright_tests::requests;

use super::sentence::complaint;

/// What the plugin does, and pieces of the sentence.
type Case = (&'static str, &'static [&'static str]);

const FAULTS: &[Case] = &[
    ("trap", &["plugin.wasm", "unfold", "unreachable"]),
    ("panic", &["plugin.wasm", "unfold", "panicked on purpose, at step 7"]),
    ("loop", &["plugin.wasm", "longer than", "ms", "unfold"]),
    ("memory", &["plugin.wasm", "memory", "unfold"]),
    ("recurse", &["plugin.wasm", "stack", "unfold"]),
    ("notes", &["plugin.wasm", "unfold"]),
    ("read-no-such-tensor", &["plugin.wasm", "unfold", "99"]),
    ("read-wrong-type", &["plugin.wasm", "unfold", "FP32"]),
];

const REFUSALS: &[(&str, ErrorKind, &[&str])] = &[
    ("refuse-input", ErrorKind::BadInput, &["I do not like this input"]),
    ("refuse-unsupported", ErrorKind::Unsupported, &["I cannot do this"]),
    ("refuse-internal", ErrorKind::PluginFault, &["I am broken"]),
];

const CYCLES: &[Case] = &[
    ("cycle-own-step", &["plugin.wasm", "chain 0"]),
    ("cycle-later-step", &["plugin.wasm", "chain 0"]),
    ("cycle-two-chains", &["plugin.wasm", "chain 0", "chain 1"]),
    ("cycle-later-chain", &["plugin.wasm", "chain 0", "chain 1"]),
    ("cycle-like", &["plugin.wasm", "chain 0"]),
    ("cycle-sibling", &["plugin.wasm", "chain 0", "stage"]),
];

const OVERSIZED: &[Case] = &[
    ("long-chain", &["plugin.wasm"]),
    ("many-chains", &["plugin.wasm", "chains"]),
    ("many-long-chains", &["plugin.wasm"]),
    ("many-nodes", &["plugin.wasm"]),
    ("large-literal", &["plugin.wasm"]),
];

const OUT_OF_RANGE: &[Case] = &[
    ("no-such-row", &["plugin.wasm", "row"]),
    ("row-below-zero", &["plugin.wasm", "row"]),
    ("stride-overflow", &["plugin.wasm", "row"]),
    ("no-such-tensor", &["plugin.wasm", "tensor 7"]),
    ("no-such-cell", &["plugin.wasm", "cell 9"]),
    ("no-such-chain", &["plugin.wasm", "chain 4294967295"]),
    ("no-such-step", &["plugin.wasm", "step"]),
    ("no-such-stage", &["plugin.wasm", "stage 3"]),
    ("no-such-output", &["plugin.wasm", "output 5"]),
    ("no-such-name", &["plugin.wasm", "product"]),
    ("no-such-feedback", &["plugin.wasm", "input 17"]),
    ("feedback-not-carried", &["plugin.wasm", "carried"]),
    ("cancel-unknown", &["plugin.wasm", "chain 400"]),
];

const MALFORMED: &[Case] = &[
    ("no-chains", &["plugin.wasm"]),
    ("no-stages", &["plugin.wasm", "chain 0", "stage"]),
    ("no-steps", &["plugin.wasm", "chain 0", "step"]),
    ("too-few-inputs", &["plugin.wasm", "input"]),
    ("wrong-literal", &["plugin.wasm", "literal"]),
    ("wrong-shape", &["plugin.wasm", "[2]", "[4]"]),
    ("integers-for-floats", &["plugin.wasm", "FP32"]),
    ("stop-not-bool", &["plugin.wasm", "BOOL"]),
    ("no-answer", &["plugin.wasm", "sum"]),
    ("answer-twice", &["plugin.wasm", "sum"]),
];

const RESUMES: &[Case] = &[
    ("resume-trap", &["plugin.wasm", "resume", "unreachable"]),
    ("resume-loop", &["plugin.wasm", "longer than", "resume"]),
    ("resume-forever", &["plugin.wasm"]),
    ("resume-not-kept", &["plugin.wasm", "chain 0", "kept"]),
    ("resume-too-large", &["slots"]),
    ("resume-emits-unknown", &["plugin.wasm", "product"]),
    ("resume-large-state", &["plugin.wasm", "state"]),
];

const DESCRIPTIONS: &[Case] = &[
    ("trap", &["plugin.wasm", "describe", "unreachable"]),
    ("panic", &["plugin.wasm", "describe", "panicked on purpose, at step 7"]),
    ("loop", &["plugin.wasm", "longer than", "describe"]),
    ("memory", &["plugin.wasm", "memory", "describe"]),
    ("recurse", &["plugin.wasm", "stack", "describe"]),
    ("refuse", &["this model will not describe itself"]),
    ("unknown-operator", &["`add`", "Conjure"]),
    ("unknown-weight", &["`add`", "nowhere"]),
    ("undeclared-output", &["`add`", "elsewhere"]),
    ("wrong-output-shape", &["`add`", "sum", "5"]),
    ("crosses-batch", &["`add`", "ReduceSum", "batch"]),
    ("same-names", &["add"]),
    ("ragged", &["`add`", "ragged"]),
    ("many-cells", &["cells"]),
    ("huge-shape", &["`add`"]),
    ("no-cells", &["cell"]),
];

#[test]
fn faults_end_one_request_with_a_cause() {
    all_fail(FAULTS);
}

#[test]
fn cyclic_graphs_are_refused() {
    all_fail(CYCLES);
}

#[test]
fn oversized_graphs_are_refused() {
    all_fail(OVERSIZED);
}

#[test]
fn graphs_that_name_what_is_not_there_are_refused() {
    all_fail(OUT_OF_RANGE);
}

#[test]
fn malformed_graphs_are_refused() {
    all_fail(MALFORMED);
}

#[test]
fn faults_after_the_first_growth_end_one_request() {
    all_fail(RESUMES);
}

#[test]
fn refusals_say_who_is_at_fault() {
    let host = Host::shared();
    beside(host, host.summing(), || {
        for (behaviour, kind, wanted) in REFUSALS {
            let error = host.infer(host.summing(), requests::misbehaving(behaviour)).expect_err(behaviour);
            assert_eq!(error.kind(), *kind, "{error}");
            assert_eq!(complaint(behaviour, Err::<(), _>(error), wanted), None);
        }
    });
}

#[test]
fn models_that_do_not_describe_themselves_soundly_are_refused() {
    let host = Host::shared();
    let wrong: Vec<String> = beside(host, host.summing(), || {
        let load = |behaviour: &str| {
            let bundle = BundleFolder::summing();
            bundle.parameter("describe", &format!("{behaviour:?}"));
            host.load(&bundle).map(|_| ())
        };
        DESCRIPTIONS.iter().filter_map(|(behaviour, wanted)| complaint(behaviour, load(behaviour), wanted)).collect()
    });
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// A bundle may ask for less than the server gives; it is held to that.
#[test]
fn a_bundle_may_lower_its_limits() {
    let host = Host::shared();
    let bundle = BundleFolder::summing();
    bundle.edit("model.toml", "[samples]", "[limits]\nnodes_max = 10\nresumes_max = 3\n[samples]");
    let model = host.load(&bundle).expect("the bundle loads");
    host.infer(&model, requests::sum(1, 10)).expect("as many nodes as it allows");
    let too_many = host.infer(&model, requests::sum(1, 11)).map(|_| ());
    assert_eq!(complaint("eleven nodes", too_many, &["plugin.wasm", "10"]), None);
    let too_often = host.infer(&model, requests::misbehaving("resume-forever")).map(|_| ());
    assert_eq!(complaint("four calls", too_often, &["plugin.wasm", "3 times"]), None);
}

/// Many at once, of all kinds, and the host serves on.
#[test]
fn everything_at_once_leaves_the_others_right() {
    let host = Host::shared();
    let cases: Vec<&Case> = [FAULTS, CYCLES, OUT_OF_RANGE, MALFORMED].into_iter().flatten().collect();
    beside(host, host.summing(), || {
        std::thread::scope(|scope| {
            for offset in 0..4 {
                let cases = &cases;
                scope.spawn(move || {
                    for (behaviour, _) in cases.iter().cycle().skip(offset * 7).take(cases.len()) {
                        let outcome = host.infer(host.summing(), requests::misbehaving(behaviour));
                        assert!(outcome.is_err(), "{behaviour}: was answered");
                    }
                });
            }
        });
    });
}

fn all_fail(cases: &[Case]) {
    let host = Host::shared();
    let wrong: Vec<String> = beside(host, host.summing(), || {
        let infer = |behaviour: &str| host.infer(host.summing(), requests::misbehaving(behaviour));
        cases.iter().filter_map(|(behaviour, wanted)| complaint(behaviour, infer(behaviour), wanted)).collect()
    });
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

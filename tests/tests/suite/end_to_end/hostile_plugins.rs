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
    ("loop", &["plugin.wasm", "more than", "ms of processor time", "unfold"]),
    ("recurse", &["plugin.wasm", "unfold", "stack"]),
    ("notes", &["plugin.wasm", "unfold"]),
    ("read-no-such-tensor", &["plugin.wasm", "unfold", "tensor 99", "tensors 0 to 1"]),
    ("read-wrong-type", &["plugin.wasm", "unfold", "texts of tensor 0", "FP32"]),
];

const HOARD: Case = ("memory", &["plugin.wasm", "8388608 bytes of memory", "unfold"]);

const REFUSALS: &[(&str, ErrorKind, &[&str])] = &[
    ("refuse-input", ErrorKind::BadInput, &["I do not like this input"]),
    ("refuse-unsupported", ErrorKind::Unsupported, &["I cannot do this"]),
    ("refuse-internal", ErrorKind::PluginFault, &["I am broken"]),
];

const CYCLES: &[Case] = &[
    ("cycle-own-step", &["plugin.wasm", "chain 0", "input 1 (`before`)", "step 0"]),
    ("cycle-later-step", &["plugin.wasm", "chain 0", "input 1 (`before`)", "step 0"]),
    ("cycle-two-chains", &["plugin.wasm", "chain 0", "chain 1 does not stand before it"]),
    ("cycle-later-chain", &["plugin.wasm", "chain 0", "chain 1 does not stand before it"]),
    ("cycle-like", &["plugin.wasm", "chain 0", "chain 0 does not stand before it"]),
    ("cycle-sibling", &["plugin.wasm", "chain 0", "input 0 (`x`)", "stage 0 is not an earlier stage"]),
];

const OVERSIZED: &[Case] = &[
    ("long-chain", &["plugin.wasm", "chain 0", "4294967295 nodes", "limit of"]),
    ("many-chains", &["plugin.wasm", "more than 65536 chains"]),
    ("many-long-chains", &["plugin.wasm", "nodes", "limit of"]),
    ("many-nodes", &["plugin.wasm", "chain 2", "2097156 nodes", "limit of"]),
    ("large-literal", &["plugin.wasm", "chain 0", "[4]", "[1048576]"]),
];

const OUT_OF_RANGE: &[Case] = &[
    ("no-such-row", &["plugin.wasm", "input 0 (`x`)", "step 2 would take row 3", "there are 3"]),
    ("row-below-zero", &["plugin.wasm", "input 0 (`x`)", "step 2 would take row -2"]),
    ("stride-overflow", &["plugin.wasm", "input 0 (`x`)", "row 9223372036854775807"]),
    ("frame-too-far", &["plugin.wasm", "input 0 (`x`)", "step 0 would begin with element 2^53"]),
    ("endless-span", &["plugin.wasm", "input 0 (`x`)", "rows of spans go into ports of rank 2", "[4]"]),
    ("no-such-tensor", &["plugin.wasm", "input 0 (`x`)", "tensor 7 does not exist"]),
    ("no-such-cell", &["plugin.wasm", "chain 0, stage 0", "no cell 9"]),
    ("no-such-chain", &["plugin.wasm", "input 1 (`before`)", "chain 4294967295 does not exist"]),
    ("no-such-step", &["plugin.wasm", "chain 1", "step 3", "there are 3"]),
    ("no-such-stage", &["plugin.wasm", "output `sum`", "no stage 3"]),
    ("no-such-output", &["plugin.wasm", "output `sum`", "no output 5"]),
    ("no-such-name", &["plugin.wasm", "output `product`", "no such output"]),
    ("no-such-feedback", &["plugin.wasm", "chain 0, feedback 0", "no input 17"]),
    ("feedback-not-carried", &["plugin.wasm", "chain 0, feedback 0", "not carried"]),
    ("cancel-unknown", &["plugin.wasm", "chain 400 does not exist"]),
];

const MALFORMED: &[Case] = &[
    ("no-answer", &["plugin.wasm", "without its output `sum`"]),
    ("no-chains", &["plugin.wasm", "output `sum`", "chain 0 does not exist"]),
    ("no-stages", &["plugin.wasm", "chain 0", "no stages"]),
    ("no-steps", &["plugin.wasm", "chain 0", "no steps"]),
    ("too-few-inputs", &["plugin.wasm", "chain 0, stage 0", "1 sources", "2 inputs"]),
    ("wrong-literal", &["plugin.wasm", "3 bytes", "[4]"]),
    ("wrong-shape", &["plugin.wasm", "input 1 (`before`)", "[4]", "[2]"]),
    ("integers-for-floats", &["plugin.wasm", "input 1 (`before`)", "INT64"]),
    ("stop-not-bool", &["plugin.wasm", "chain 0, stop", "BOOL", "FP32"]),
    ("answer-twice", &["plugin.wasm", "output `sum`", "twice"]),
];

const RESUMES: &[Case] = &[
    ("resume-trap", &["plugin.wasm", "resume", "unreachable"]),
    ("resume-loop", &["plugin.wasm", "processor time", "resume"]),
    ("resume-forever", &["plugin.wasm"]),
    ("resume-not-kept", &["plugin.wasm", "chain 1", "chain 0 is of an earlier growth", "did not keep it"]),
    ("resume-too-large", &["grew beyond", "live-max"]),
    ("resume-emits-unknown", &["plugin.wasm", "product"]),
    ("resume-large-state", &["plugin.wasm", "state"]),
];

const DESCRIPTIONS: &[Case] = &[
    ("trap", &["plugin.wasm", "describe", "unreachable"]),
    ("panic", &["plugin.wasm", "describe", "panicked on purpose, at step 7"]),
    ("loop", &["plugin.wasm", "processor time", "describe"]),
    ("memory", &["plugin.wasm", "memory", "describe"]),
    ("recurse", &["plugin.wasm", "describe", "stack"]),
    ("refuse", &["this model will not describe itself"]),
    ("unknown-operator", &["`add`", "Conjure"]),
    ("unknown-weight", &["`add`", "nowhere"]),
    ("undeclared-output", &["`add`", "elsewhere"]),
    ("wrong-output-shape", &["`add`", "`sum`", "[5]", "[4]"]),
    ("crosses-batch", &["`add`", "ReduceSum", "axis 0 is the batch dimension"]),
    ("same-names", &["two cells", "`add`"]),
    ("ragged", &["`add`", "`x`", "different ranks"]),
    ("many-cells", &["10000 cells", "256"]),
    ("huge-shape", &["`add`", "elements", "limit of"]),
    ("no-cells", &["0 cells"]),
];

#[test]
fn faults_end_one_request_with_a_cause() {
    all_fail(FAULTS);
}

/// With less memory than there is by default, so that it is reached long before the time is, in a slow moment, too.
#[test]
fn a_hoarder_ends_at_the_memory_it_may_have() {
    let host = Host::shared();
    let bundle = BundleFolder::summing();
    bundle.edit("model.toml", "[samples]", "[limits]\nmemory_mb = 8\n[samples]");
    let model = host.load(&bundle).expect("the bundle loads");
    let outcome = beside(host, &model, || host.infer(&model, requests::misbehaving(HOARD.0)));
    assert_eq!(complaint(HOARD.0, outcome, HOARD.1), None);
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

/// Calls that are short enough one by one add up.
#[test]
fn all_calls_of_a_request_have_a_limit_together() {
    let host = Host::shared();
    let bundle = BundleFolder::summing();
    bundle.edit("model.toml", "[samples]", "[limits]\nrequest_cpu_ms = 10\n[samples]");
    let model = host.load(&bundle).expect("the bundle loads");
    let too_long = host.infer(&model, requests::misbehaving("resume-forever")).map(|_| ());
    assert_eq!(complaint("calls without end", too_long, &["plugin.wasm", "more than 10 ms", "one request"]), None);
    host.infer(&model, requests::misbehaving("resume-honest")).expect("a few calls");
}

/// Values that are only delivered take no place in an arena, but they do in the host's memory.
#[test]
fn answers_have_a_limit_before_they_are_computed() {
    let host = Host::shared();
    let bundle = BundleFolder::summing();
    bundle.edit("model.toml", "[samples]", "[limits]\nanswer_mb = 1\n[samples]");
    let model = host.load(&bundle).expect("the bundle loads");
    let watched = |rows| host.infer(&model, requests::behaving("resume-honest", requests::sum(1, rows)));
    watched(10_000).expect("10,000 watched steps of 16 bytes");
    let error = watched(40_000).expect_err("40,000 watched steps");
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    assert_eq!(complaint("40,000 watched steps", Err::<(), _>(error), &["plugin.wasm", "1048576 bytes", "shorter"]), None);
    host.infer(&model, requests::sum(1, 40_000)).expect("a last step alone is small");
}

/// Many at once, of all kinds, and the host serves on.
#[test]
fn everything_at_once_leaves_the_others_right() {
    let host = Host::shared();
    let cases: Vec<&Case> = [FAULTS, &[HOARD], CYCLES, OUT_OF_RANGE, MALFORMED].into_iter().flatten().collect();
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

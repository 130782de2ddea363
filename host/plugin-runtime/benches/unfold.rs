//! What unfolding costs: whole calls of the stock plugins, their answers converted, on warm and on fresh instances.
//!
//! `cargo bench -p cellwright-plugin-runtime`. Times are medians and 99th percentiles of single calls, in microseconds.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement: it prints, and stops at what it does not expect")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use cellwright_cell_graph::{Attribute, AttributeValue, Datatype, Tensor, WeightSpec};
use cellwright_plugin_runtime::{Compiler, Limits, PluginModel, RequestView, Runtime, RuntimeOptions};

const WARM_CALLS: usize = 100_000;
const FRESH_CALLS: usize = 2_000;

/// Names and shapes of weights, by name.
type Shapes = &'static [(&'static str, &'static [u64])];

const CHAIN_WEIGHTS: Shapes = &[("bias_hh_l0", &[32]), ("bias_ih_l0", &[32]), ("weight_hh_l0", &[32, 8]), ("weight_ih_l0", &[32, 8])];
const TREE_WEIGHTS: Shapes = &[
    ("head.bias", &[10]),
    ("head.weight", &[10, 8]),
    ("leaf.bias", &[24]),
    ("leaf.weight", &[24, 8]),
    ("leaf_embedding.weight", &[100, 8]),
    ("node.bias", &[40]),
    ("node.weight", &[40, 16]),
];

fn main() {
    let runtime = Runtime::new(RuntimeOptions::new(Compiler::InProcess)).unwrap();
    let chain = model(&runtime, "chain", chain_parameters(), CHAIN_WEIGHTS);
    let tree = model(&runtime, "tree", tree_parameters(), TREE_WEIGHTS);
    println!("{:28}  {:>8} {:>8}  {:>8}  {:>8}", "", "warm p50", "p99", "fresh", "described");
    measure("nothing", &nothing(&runtime), &Arc::default());
    for steps in [24, 330] {
        measure(&format!("lstm, {steps} steps"), &chain, &sequence(steps));
    }
    for leaves in [20, 56] {
        measure(&format!("tree, {leaves} leaves"), &tree, &balanced(leaves));
    }
}

/// `fresh`: start, describe, unfold and drop; `described`: the same without the unfolding.
fn measure(name: &str, model: &PluginModel, request: &Arc<RequestView>) {
    let mut warm = times(WARM_CALLS, || drop(std::hint::black_box(model.unfold(request).unwrap())));
    let mut fresh = times(FRESH_CALLS, || drop(std::hint::black_box(model.unfold_fresh(request).unwrap())));
    // Enough are idle already, so that this one is made and dropped.
    let mut described = times(FRESH_CALLS, || model.warm(1).unwrap());
    let (p50, p99) = (percentile(&mut warm, 0.5), percentile(&mut warm, 0.99));
    println!("{name:28}  {p50:8.2} {p99:8.2}  {:8.2}  {:8.2}", percentile(&mut fresh, 0.5), percentile(&mut described, 0.5));
}

fn times(calls: usize, mut call: impl FnMut()) -> Vec<f64> {
    (0..calls / 10).for_each(|_| call());
    let one = |_| {
        let begin = Instant::now();
        call();
        begin.elapsed().as_secs_f64() * 1e6
    };
    (0..calls).map(one).collect()
}

fn percentile(times: &mut [f64], at: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "an index into a small list")]
    times[((times.len() - 1) as f64 * at) as usize]
}

/// A guest that does nothing: what is left is the host's part of a call.
fn nothing(runtime: &Runtime) -> PluginModel {
    let module = r#"(module
        (memory (export "memory") 1)
        (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 8))
        (func (export "cellwright:plugin/unfolding@0.1.0#describe") (param i32 i32) (result i32) (i32.const 1024))
        (func (export "cellwright:plugin/unfolding@0.1.0#unfold") (result i32) (i32.const 1024))
        (func (export "cellwright:plugin/unfolding@0.1.0#resume") (param i32 i32 i32 i32 i32) (result i32) (i32.const 1024)))"#;
    described(runtime, "nothing", &wat::parse_str(module).unwrap(), &[], &[])
}

fn described(runtime: &Runtime, name: &str, wasm: &[u8], parameters: &[Attribute], weights: Shapes) -> PluginModel {
    let plugin = runtime.compile("acme", name, wasm).unwrap();
    let spec =
        |(name, shape): &(&str, &[u64])| WeightSpec { name: (*name).to_owned(), datatype: Some(Datatype::Fp32), shape: shape.to_vec() };
    let weights: Vec<WeightSpec> = weights.iter().map(spec).collect();
    let model = plugin.with_parameters(parameters, Arc::new(weights), &Limits::default()).unwrap();
    model.warm(64).unwrap();
    model
}

fn model(runtime: &Runtime, name: &str, parameters: Vec<Attribute>, weights: Shapes) -> PluginModel {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/prebuilt").join(name).with_extension("wasm");
    described(runtime, name, &std::fs::read(path).unwrap(), &parameters, weights)
}

fn text(name: &str, value: &str) -> Attribute {
    Attribute { name: name.to_owned(), value: AttributeValue::Text(value.to_owned()) }
}

fn int(name: &str, value: i64) -> Attribute {
    Attribute { name: name.to_owned(), value: AttributeValue::Int(value) }
}

fn chain_parameters() -> Vec<Attribute> {
    vec![text("cell", "lstm"), text("input", "x"), int("features", 8), int("hidden", 8)]
}

fn tree_parameters() -> Vec<Attribute> {
    let names = ["leaf_embedding", "leaf", "node", "head"].map(|name| text(name, &format!("{name}.")));
    let sizes = [("embedding", 8), ("hidden", 8), ("classes", 10)].map(|(name, value)| int(name, value));
    [text("mode", "arrays")].into_iter().chain(names).chain(sizes).collect()
}

fn sequence(steps: usize) -> Arc<RequestView> {
    Arc::new(RequestView::new([Arc::new(Tensor::from_f32("x", &[steps, 8], &vec![0.5; steps * 8]))], vec![]))
}

/// A tree over that many leaves: each internal node joins the two oldest that have no parent yet.
fn balanced(leaves: usize) -> Arc<RequestView> {
    let tokens: Vec<i64> = (0..leaves as i64).collect();
    let children: Vec<i64> = (0..2 * (leaves as i64 - 1)).collect();
    let tensors = [Tensor::from_i64("tokens", &[leaves], &tokens), Tensor::from_i64("children", &[leaves - 1, 2], &children)];
    Arc::new(RequestView::new(tensors.map(Arc::new), vec![]))
}

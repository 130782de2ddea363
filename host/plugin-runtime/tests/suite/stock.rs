//! The stock plugins, built: real guests with a real language runtime, through the same door as any upload.

use std::path::Path;
use std::sync::Arc;

use cellwright_cell_graph::graph::{Extent, Source};
use cellwright_cell_graph::{Attribute, AttributeValue, Datatype, Tensor, WeightSpec};
use cellwright_plugin_runtime::{CallError, Fault, Limits, PluginModel, RequestView};

use crate::runtime;

fn stock(name: &str, parameters: &[Attribute]) -> Result<PluginModel, CallError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/prebuilt").join(name);
    let plugin = runtime().compile("acme", name, &std::fs::read(path).unwrap()).unwrap();
    plugin.with_parameters(parameters, Arc::new(lstm_weights()), &Limits::default())
}

fn lstm_weights() -> Vec<WeightSpec> {
    let shapes: [(&str, &[u64]); 4] =
        [("bias_hh_l0", &[16]), ("bias_ih_l0", &[16]), ("weight_hh_l0", &[16, 4]), ("weight_ih_l0", &[16, 8])];
    let spec = |(name, shape): (&str, &[u64])| WeightSpec { name: name.to_owned(), datatype: Some(Datatype::Fp32), shape: shape.to_vec() };
    shapes.map(spec).to_vec()
}

fn lstm() -> Vec<Attribute> {
    let text = |name: &str, value: &str| Attribute { name: name.to_owned(), value: AttributeValue::Text(value.to_owned()) };
    let int = |name: &str, value| Attribute { name: name.to_owned(), value: AttributeValue::Int(value) };
    vec![text("cell", "lstm"), text("input", "x"), int("features", 8), int("hidden", 4)]
}

fn sequence(steps: usize) -> Arc<RequestView> {
    Arc::new(RequestView::new([Arc::new(Tensor::from_f32("x", &[steps, 8], &vec![0.5; steps * 8]))], vec![]))
}

#[test]
fn a_chain_describes_its_cells_and_unfolds_a_sequence() {
    let model = stock("chain.wasm", &lstm()).unwrap();
    let description = model.description();
    assert_eq!(description.inputs[0].name, "x");
    assert!(!description.cells.is_empty());
    let growth = model.unfold(&sequence(330)).unwrap();
    assert_eq!(growth.chains[0].length, Extent::Fixed(330));
    assert!(growth.chains[0].stages[0].inputs.iter().any(|source| matches!(source, Source::Rows { tensor: 0, .. })));
    assert!(growth.outputs.len() == 1 && growth.next.is_none());
    assert_eq!(model.unfold_fresh(&sequence(330)).unwrap(), growth, "used and fresh instances agree");
}

#[test]
fn a_stock_plugins_refusals_reach_the_caller() {
    let refused = stock("chain.wasm", &lstm()[1..]).err().unwrap();
    assert!(matches!(&refused, CallError::Refused { fault: Fault::InvalidInput, sentence, .. } if sentence.contains("cell")), "{refused}");
    let model = stock("chain.wasm", &lstm()).unwrap();
    let refused = model.unfold(&sequence(5000)).unwrap_err();
    assert!(matches!(&refused, CallError::Refused { fault: Fault::InvalidInput, .. }), "{refused}");
    model.unfold(&sequence(3)).unwrap();
}

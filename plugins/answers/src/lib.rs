//! Reads what PyTorch answered, for tests of the stock plugins: the example bundles, and the vectors of the cell families. A test's own crate:
//! no plugin depends on it, and what it cannot read ends the test.

#![expect(clippy::unwrap_used, reason = "a test stops where its files are not what they must be")]

use std::path::PathBuf;

use cellwright_guest::testing::{Array, TestRequest, Weights};
use cellwright_guest::types;
use serde_json::Value;

/// A bundle of `examples/`.
pub struct Example {
    /// As `model.toml` has them.
    pub parameters: Vec<(String, types::Value)>,
    /// Of `weights.safetensors`.
    pub weights: Weights,
    /// Requests, each with the outputs it must get, by name.
    pub samples: Vec<(TestRequest, Vec<(String, Value)>)>,
}

impl Example {
    /// Reads a bundle.
    #[must_use]
    pub fn load(name: &str) -> Self {
        let folder = root().join("examples").join(name);
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
        let manifest: toml::Table = toml::from_str(&read("model.toml")).unwrap();
        let parameters = manifest["parameters"].as_table().unwrap().iter();
        let lines = |file: &str| read(file).lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
        let samples = lines("samples.jsonl").into_iter().zip(lines("expected.jsonl"));
        Self {
            parameters: parameters.map(|(name, value)| (name.clone(), parameter(value))).collect(),
            weights: safetensors(&std::fs::read(folder.join("weights.safetensors")).unwrap()),
            samples: samples.map(|(asked, answer)| (request(&asked), outputs(&answer))).collect(),
        }
    }

    /// The parameters, as tests hand them in.
    #[must_use]
    pub fn parameters(&self) -> Vec<(&str, types::Value)> {
        self.parameters.iter().map(|(name, value)| (name.as_str(), value.clone())).collect()
    }
}

/// A part of a file of `tests/vectors`: `weights`, `inputs` or `outputs`.
#[must_use]
pub fn vectors(family: &str, part: &str) -> Weights {
    let path = root().join("tests/vectors").join(family).with_extension("json");
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let array = |tensor: &Value| Array::new(&shape(tensor), numbers(&tensor["data"]));
    all[part].as_object().unwrap().iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect()
}

/// The numbers of a JSON list, however nested.
#[must_use]
pub fn numbers(data: &Value) -> Vec<f64> {
    match data {
        Value::Array(list) => list.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn parameter(value: &toml::Value) -> types::Value {
    match value {
        toml::Value::String(text) => types::Value::Text(text.clone()),
        toml::Value::Integer(number) => types::Value::Int(*number),
        toml::Value::Float(number) => types::Value::Float(*number),
        toml::Value::Boolean(truth) => types::Value::Truth(*truth),
        toml::Value::Array(list) => types::Value::Texts(list.iter().map(|text| text.as_str().unwrap().to_owned()).collect()),
        other => panic!("no parameter looks like {other:?}"),
    }
}

fn shape(tensor: &Value) -> Vec<usize> {
    numbers(&tensor["shape"]).into_iter().map(|extent| extent as usize).collect()
}

fn request(asked: &Value) -> TestRequest {
    asked["inputs"].as_array().unwrap().iter().fold(TestRequest::new(), |request, input| {
        let (name, shape) = (input["name"].as_str().unwrap(), shape(input).into_iter().map(|extent| extent as i64).collect::<Vec<_>>());
        match input["datatype"].as_str().unwrap() {
            "BYTES" => request.text(name, input["data"][0].as_str().unwrap()),
            "FP32" => request.floats(name, &shape, &numbers(&input["data"]).into_iter().map(|value| value as f32).collect::<Vec<_>>()),
            "INT64" => request.ints(name, &shape, &numbers(&input["data"]).into_iter().map(|value| value as i64).collect::<Vec<_>>()),
            other => panic!("no example sends {other}"),
        }
    })
}

fn outputs(answer: &Value) -> Vec<(String, Value)> {
    answer["outputs"].as_array().unwrap().iter().map(|output| (output["name"].as_str().unwrap().into(), output["data"].clone())).collect()
}

/// A length, a JSON table of that length, and the tensors' bytes.
fn safetensors(bytes: &[u8]) -> Weights {
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (table, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let table: Value = serde_json::from_slice(table).unwrap();
    let array = |tensor: &Value| {
        assert_eq!(tensor["dtype"], "F32");
        let [from, to] = [0, 1].map(|end| tensor["data_offsets"][end].as_u64().unwrap() as usize);
        let values = data[from..to].as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
        Array::new(&shape(tensor), values.collect())
    };
    let tensors = table.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    tensors.map(|(name, tensor)| (name.clone(), array(tensor))).collect()
}

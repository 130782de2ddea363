//! A request made by a test.

use crate::request::Incoming;
use crate::testing::Array;
use crate::types::{Datatype, Parameter, TensorSpec, Value};

enum Contents {
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Texts(Vec<String>),
}

/// A request with contents, built tensor by tensor.
#[derive(Default)]
pub struct TestRequest {
    pub(super) first: u32,
    tensors: Vec<(TensorSpec, Contents)>,
    parameters: Vec<Parameter>,
}

impl TestRequest {
    /// A request without anything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What a session has left that has let go of its tensors before that number, by which the first of these goes.
    #[must_use]
    pub fn from_tensor(self, first: u32) -> Self {
        Self { first, ..self }
    }

    /// An FP32 tensor. Without values: zeros.
    #[must_use]
    pub fn floats(self, name: &str, shape: &[i64], values: &[f32]) -> Self {
        let count = elements(shape);
        assert!(values.is_empty() || values.len() == count, "{} values do not fill {shape:?}", values.len());
        let values = if values.is_empty() { vec![0.0; count] } else { values.to_vec() };
        self.tensor(name, Datatype::Fp32, shape, Contents::Floats(values))
    }

    /// An INT64 tensor.
    #[must_use]
    pub fn ints(self, name: &str, shape: &[i64], values: &[i64]) -> Self {
        assert_eq!(values.len(), elements(shape), "{} values do not fill {shape:?}", values.len());
        self.tensor(name, Datatype::Int64, shape, Contents::Ints(values.to_vec()))
    }

    /// A BYTES tensor of shape `[1]`.
    #[must_use]
    pub fn text(self, name: &str, text: &str) -> Self {
        self.tensor(name, Datatype::Bytes, &[1], Contents::Texts(vec![text.into()]))
    }

    /// A BYTES tensor of shape `[n]`.
    #[must_use]
    pub fn texts(self, name: &str, texts: &[&str]) -> Self {
        let shape = [i64::try_from(texts.len()).expect("a test has fewer texts")];
        self.tensor(name, Datatype::Bytes, &shape, Contents::Texts(texts.iter().map(|text| (*text).into()).collect()))
    }

    /// A parameter of the request.
    #[must_use]
    pub fn parameter(mut self, name: &str, value: Value) -> Self {
        self.parameters.push(Parameter { name: name.into(), value });
        self
    }

    /// A tensor's contents.
    pub(super) fn array(&self, tensor: u32) -> Array {
        let (spec, contents) = self.numbered(tensor);
        let shape: Vec<usize> = spec.shape.iter().map(|extent| usize::try_from(*extent).expect("checked when it was made")).collect();
        let values = match contents {
            Contents::Ints(values) => values.iter().map(|value| *value as f64).collect(),
            Contents::Floats(values) => values.iter().map(|value| f64::from(*value)).collect(),
            Contents::Texts(_) => panic!("rows of tensor {tensor} are texts, which no cell takes"),
        };
        Array::new(&shape, values)
    }

    /// A tensor's datatype.
    pub(super) fn datatype(&self, tensor: u32) -> Datatype {
        self.numbered(tensor).0.datatype
    }

    fn numbered(&self, tensor: u32) -> &(TensorSpec, Contents) {
        let position = tensor.checked_sub(self.first);
        let found = position.and_then(|position| self.tensors.get(position as usize));
        found.unwrap_or_else(|| panic!("the request has no tensor {tensor}"))
    }

    fn tensor(mut self, name: &str, datatype: Datatype, shape: &[i64], contents: Contents) -> Self {
        self.tensors.push((TensorSpec { name: name.into(), datatype, shape: shape.to_vec() }, contents));
        self
    }
}

fn elements(shape: &[i64]) -> usize {
    shape.iter().map(|extent| usize::try_from(*extent).expect("a request's extents are from 0 on")).product()
}

impl Incoming for TestRequest {
    fn tensors(&self) -> Vec<TensorSpec> {
        self.tensors.iter().map(|(spec, _)| spec.clone()).collect()
    }

    fn parameters(&self) -> Vec<Parameter> {
        self.parameters.clone()
    }

    fn ints(&self, tensor: u32) -> Vec<i64> {
        match &self.numbered(tensor).1 {
            Contents::Ints(values) => values.clone(),
            _ => panic!("tensor {tensor} holds no integers"),
        }
    }

    fn floats(&self, tensor: u32) -> Vec<f32> {
        match &self.numbered(tensor).1 {
            Contents::Floats(values) => values.clone(),
            _ => panic!("tensor {tensor} holds no floats"),
        }
    }

    fn texts(&self, tensor: u32) -> Vec<String> {
        match &self.numbered(tensor).1 {
            Contents::Texts(values) => values.clone(),
            _ => panic!("tensor {tensor} holds no texts"),
        }
    }
}

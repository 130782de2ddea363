//! `generate` and `generate_stream`: a request and its answers as plain JSON objects, with tensors by name and without shapes or datatypes.
//!
//! A request's key that names an input of the model is that input; `id` is the request's id, `parameters` an object of request parameters, and any
//! other key is a request parameter itself, or ignored if its value is none. Shapes follow from the values and the model.

use std::fmt;

use cellwright_cell_graph::{Datatype, Tensor, TensorSpec};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use crate::binary;
use crate::data::Data;
use crate::element::{self, PrintElement};
use crate::fault::{BadRequest, BadResponse, RequestFault, TensorFault};
use crate::options;
use crate::request::{InferRequest, some, unique};
use crate::response::InferResponse;
use crate::value::{OF_MESSAGE, Parameters, ValueOf};
use crate::words;

impl InferRequest {
    /// Reads the request of `generate`, for a model with these inputs.
    ///
    /// A value has its input's shape, or that without leading dimensions that may be 1 (so a single string is enough for most texts), or
    /// is one flat list, where at most one dimension is open.
    ///
    /// # Errors
    /// If it is no JSON object, a value cannot be that input, or an input is missing where other keys are given. Inputs that are missing
    /// otherwise, some but not all, are left to whoever reads the request.
    pub fn from_generate(inputs: &[TensorSpec], body: &[u8]) -> Result<Self, BadRequest> {
        let read = words::read(body, |body| {
            let mut reader = serde_json::Deserializer::from_slice(body);
            let read = Reading { inputs }.deserialize(&mut reader)?;
            reader.end()?;
            Ok(read)
        });
        let wire = read.map_err(|fault| BadRequest { id: None, fault })?;
        let id = wire.id.clone();
        wire.request(inputs).map_err(|fault| BadRequest { id, fault })
    }

    /// The request as `generate` and `generate_stream` take it: inputs by name, as an answer of theirs has outputs.
    ///
    /// # Errors
    /// If it asks for outputs, all of which `generate` gives, an input is called as what stands beside inputs, or has no form in JSON.
    pub fn to_generate(&self) -> Result<serde_json::Map<String, serde_json::Value>, BadResponse> {
        if !self.outputs.is_empty() {
            return Err(BadResponse::OutputsAsked);
        }
        let no_json = |cause: serde_json::Error| BadResponse::Json(cause.to_string());
        let mut object = serde_json::Map::new();
        object.extend(self.id.clone().map(|id| ("id".to_owned(), id.into())));
        if let Some(parameters) = some(&self.parameters) {
            object.insert("parameters".to_owned(), serde_json::to_value(parameters).map_err(no_json)?);
        }
        for input in &self.inputs {
            check_nested(input)?;
            let value = serde_json::to_value(PrintNested::of(input)).map_err(no_json)?;
            if object.insert(input.name.clone(), value).is_some() {
                return Err(BadResponse::NameTaken { input: input.name.clone() });
            }
        }
        Ok(object)
    }
}

/// What stands in the object.
#[derive(Default)]
struct WireGenerate {
    id: Option<String>,
    parameters: Parameters<OF_MESSAGE>,
    /// By position in the model's inputs.
    values: Vec<(usize, Data)>,
    /// The first keys that are no inputs: one of them may be an input's name, misspelt.
    beside: Vec<String>,
}

/// So many of them are told.
const BESIDE_MAX: usize = 4;

impl WireGenerate {
    fn request(self, specs: &[TensorSpec]) -> Result<InferRequest, RequestFault> {
        let mut inputs = Vec::with_capacity(self.values.len());
        for (position, data) in self.values {
            let Some(spec) = specs.get(position) else { continue };
            if inputs.iter().any(|input: &Tensor| input.name == spec.name) {
                return Err(RequestFault::Duplicate { role: "input", name: spec.name.clone() });
            }
            inputs.push(read(spec, &data).map_err(|fault| RequestFault::Tensor { role: "input", name: spec.name.clone(), fault })?);
        }
        let parameters = unique(Some(self.parameters))?;
        let missing = specs.iter().find(|spec| inputs.iter().all(|input| input.name != spec.name));
        match missing {
            Some(spec) if !self.beside.is_empty() => {
                let beside = quoted(self.beside.iter().map(String::as_str));
                return Err(RequestFault::InputMissing { name: spec.name.clone(), beside, takes: names(specs) });
            }
            _ if inputs.is_empty() => return Err(RequestFault::NothingGiven { names: names(specs) }),
            _ => {}
        }
        Ok(InferRequest { id: self.id, parameters, inputs, outputs: Vec::new() })
    }
}

fn names(specs: &[TensorSpec]) -> String {
    quoted(specs.iter().map(|spec| spec.name.as_str()))
}

fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn read(spec: &TensorSpec, data: &Data) -> Result<Tensor, TensorFault> {
    if let Some(depth) = data.ragged {
        return Err(TensorFault::Ragged { depth });
    }
    let shape = shape_of(spec, data).ok_or_else(|| TensorFault::Shape { found: data.nesting.clone(), wanted: spec.shape.clone() })?;
    let mut bytes = Vec::with_capacity(data.scalars.len().saturating_mul(spec.datatype.size().unwrap_or(8)));
    for (position, scalar) in data.scalars.iter().enumerate() {
        element::read(scalar, spec.datatype, position, &mut bytes)?;
    }
    Ok(Tensor { name: spec.name.clone(), datatype: spec.datatype, shape, data: bytes })
}

/// The shape of a value, if it can be that input.
fn shape_of(spec: &TensorSpec, data: &Data) -> Option<Vec<usize>> {
    let written = &data.nesting;
    if let Some(missing) = spec.shape.len().checked_sub(written.len()) {
        let shape: Vec<usize> = std::iter::repeat_n(1, missing).chain(written.iter().copied()).collect();
        let agrees = |(extent, wanted): (&usize, &i64)| *wanted < 0 || i64::try_from(*extent) == Ok(*wanted);
        let complete = binary::count(&shape).is_ok_and(|elements| elements == data.scalars.len());
        if complete && shape.iter().zip(&spec.shape).all(agrees) {
            return Some(shape);
        }
    }
    let flat = written.len() == 1;
    let shape = flat.then(|| binary::complete(&spec.shape, data.scalars.len()))??;
    (binary::count(&shape) == Ok(data.scalars.len())).then_some(shape)
}

/// Reads the object, knowing which of its keys are inputs.
struct Reading<'a> {
    inputs: &'a [TensorSpec],
}

impl<'de> DeserializeSeed<'de> for Reading<'_> {
    type Value = WireGenerate;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<WireGenerate, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Reading<'_> {
    type Value = WireGenerate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of inputs and parameters by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WireGenerate, A::Error> {
        let mut wire = WireGenerate::default();
        while let Some(name) = map.next_key::<String>()? {
            if let Some(position) = self.inputs.iter().position(|input| input.name == name) {
                if wire.values.len() > self.inputs.len() {
                    return Err(A::Error::custom("an input is given more than once"));
                }
                wire.values.push((position, map.next_value_seed(Data::of_any_rank())?));
            } else if name == "id" {
                wire.id = map.next_value()?;
            } else if name == "parameters" {
                wire.parameters.append(map.next_value::<Option<Parameters<OF_MESSAGE>>>()?.unwrap_or_default())?;
            } else {
                let value = map.next_value_seed(ValueOf(&name)).map_err(|cause| {
                    let inputs = names(self.inputs);
                    A::Error::custom(format_args!("`{name}` is neither an input of the model ({inputs}) nor a parameter: {cause}"))
                })?;
                if wire.beside.len() < BESIDE_MAX && !options::is_protocols(&name) {
                    wire.beside.push(name.clone());
                }
                wire.parameters.take(name, value)?;
            }
        }
        Ok(wire)
    }
}

/// Deeper lists are not written: how many dimensions an output has is a plugin's word, an input a file's, and each of them is a level of the writer's stack.
const NESTING_MAX: usize = 32;

/// Whether a tensor can be written as nested lists.
fn check_nested(tensor: &Tensor) -> Result<(), BadResponse> {
    if tensor.shape.len() > NESTING_MAX {
        return Err(BadResponse::TooDeep { tensor: tensor.name.clone(), found: tensor.shape.len(), bound: NESTING_MAX });
    }
    element::check_printable(tensor)
}

impl InferResponse {
    /// Writes an answer of `generate`, or one event of `generate_stream`: the outputs by name, as nested lists, and one element without lists.
    ///
    /// # Errors
    /// If an output has no form in JSON.
    pub fn to_generated(&self) -> Result<Vec<u8>, BadResponse> {
        self.outputs.iter().try_for_each(check_nested)?;
        serde_json::to_vec(&PrintGenerated(self)).map_err(|cause| BadResponse::Json(cause.to_string()))
    }
}

struct PrintGenerated<'a>(&'a InferResponse);

impl Serialize for PrintGenerated<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let response = self.0;
        let is_output = |name: &str| response.outputs.iter().any(|output| output.name == name);
        let mut map = serializer.serialize_map(None)?;
        let said = [
            ("id", response.id.as_deref()),
            ("model_name", Some(response.model_name.as_str())),
            ("model_version", response.model_version.as_deref()),
        ];
        for (name, value) in said {
            if let Some(value) = value.filter(|_| !is_output(name)) {
                map.serialize_entry(name, value)?;
            }
        }
        for output in &response.outputs {
            map.serialize_entry(&output.name, &PrintNested::of(output))?;
        }
        map.end()
    }
}

/// A tensor's elements, or those of a part of it, as lists of its shape.
struct PrintNested<'a> {
    datatype: Datatype,
    shape: &'a [usize],
    elements: Elements<'a>,
    first: usize,
}

/// Where elements stand.
#[derive(Clone)]
enum Elements<'a> {
    Sized(&'a [u8], usize),
    Texts(std::rc::Rc<[&'a [u8]]>),
}

impl<'a> Elements<'a> {
    fn get(&self, position: usize) -> &'a [u8] {
        match self {
            Self::Sized(data, size) => data.get(position * size..(position + 1) * size).unwrap_or_default(),
            Self::Texts(texts) => texts.get(position).copied().unwrap_or_default(),
        }
    }
}

impl<'a> PrintNested<'a> {
    fn of(tensor: &'a Tensor) -> Self {
        let elements = match tensor.datatype.size() {
            Some(size) => Elements::Sized(&tensor.data, size),
            None => Elements::Texts(tensor.texts().unwrap_or_default().into()),
        };
        let shape = if tensor.elements() == Some(1) { &[] } else { tensor.shape.as_slice() };
        Self { datatype: tensor.datatype, shape, elements, first: 0 }
    }
}

impl Serialize for PrintNested<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some((extent, shape)) = self.shape.split_first() else {
            return PrintElement(self.datatype, self.elements.get(self.first)).serialize(serializer);
        };
        // Beside an extent of 0 the others may be any, and their product too large to count.
        let stride: usize = if *extent == 0 { 0 } else { shape.iter().product() };
        // Lists of nothing are written as one empty list, however many there would be.
        let extent = if stride == 0 { 0 } else { *extent };
        let mut list = serializer.serialize_seq(Some(extent))?;
        for position in 0..extent {
            let first = self.first + position * stride;
            list.serialize_element(&PrintNested { datatype: self.datatype, shape, elements: self.elements.clone(), first })?;
        }
        list.end()
    }
}

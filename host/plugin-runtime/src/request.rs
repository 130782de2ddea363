//! What a plugin may look at: the structure and parameters of one request, its tensors where it asks for them, and the bundle's files.
//!
//! Contents are shared, never copied, until a plugin asks for them; what it asks for is converted here, within bounds.

use std::sync::Arc;

use cellwright_cell_graph::{Attribute, Datatype, Tensor, TensorSpec, WeightSpec};

use crate::abi::types;
use crate::convert;
use crate::error::Blame;

/// A tensor of a request as the plugin sees it.
#[derive(Clone, Debug)]
pub struct RequestTensor {
    /// Its name, type and actual shape.
    pub spec: TensorSpec,
    /// Its contents.
    pub contents: Arc<Tensor>,
}

impl RequestTensor {
    /// A tensor and the structure that is its own.
    #[must_use]
    pub fn new(contents: Arc<Tensor>) -> Self {
        let shape = contents.shape.iter().map(|extent| i64::try_from(*extent).unwrap_or(i64::MAX)).collect();
        Self { spec: TensorSpec { name: contents.name.clone(), datatype: contents.datatype, shape }, contents }
    }
}

/// One request, or the part of a session that a call is about.
#[derive(Clone, Debug, Default)]
pub struct RequestView {
    /// The number of the first tensor below: 0 for a request, more for a later chunk of a session, whose tensors are numbered on.
    pub first_tensor: u32,
    /// The tensors of this call, which the plugin's `tensors` lists.
    pub tensors: Vec<RequestTensor>,
    /// The request's parameters.
    pub parameters: Vec<Attribute>,
}

impl RequestView {
    /// The view of a request with these tensors.
    #[must_use]
    pub fn new(tensors: impl IntoIterator<Item = Arc<Tensor>>, parameters: Vec<Attribute>) -> Self {
        Self { first_tensor: 0, tensors: tensors.into_iter().map(RequestTensor::new).collect(), parameters }
    }

    fn tensor(&self, number: u32, wanted: &str) -> Result<&Tensor, Blame> {
        let position = number.checked_sub(self.first_tensor).and_then(|position| self.tensors.get(usize::try_from(position).ok()?));
        let first = u64::from(self.first_tensor);
        position.map(|tensor| &*tensor.contents).ok_or_else(|| {
            Blame::plugin(format!(
                "it asked for the {wanted} of tensor {number}, and this request has tensors {first} to {} (exclusive)",
                first + self.tensors.len() as u64
            ))
        })
    }

    pub(crate) fn specs(&self) -> Vec<types::TensorSpec> {
        self.tensors.iter().map(|tensor| convert::spec_to_guest(&tensor.spec)).collect()
    }

    pub(crate) fn parameters(&self) -> Vec<types::Parameter> {
        self.parameters.iter().map(convert::parameter_to_guest).collect()
    }

    /// The elements of an integer or BOOL tensor, as long as the guest could hold them.
    pub(crate) fn ints(&self, number: u32, bytes_max: usize) -> Result<Vec<i64>, Blame> {
        let tensor = self.tensor(number, "ints")?;
        let wrong = || Blame::plugin(wrong_datatype("ints", number, tensor.datatype));
        let size = tensor.datatype.size().ok_or_else(wrong)?;
        fits(tensor, tensor.data.len() / size, 8, bytes_max)?;
        match tensor.to_i64() {
            Some(values) => Ok(values),
            None if tensor.datatype == Datatype::Uint64 => {
                Err(Blame::request(format!("tensor `{}` has elements above the largest 64-bit signed integer", tensor.name)))
            }
            None => Err(wrong()),
        }
    }

    /// The elements of an FP32 tensor.
    pub(crate) fn floats(&self, number: u32, bytes_max: usize) -> Result<Vec<f32>, Blame> {
        let tensor = self.tensor(number, "floats")?;
        fits(tensor, tensor.data.len() / 4, 4, bytes_max)?;
        tensor.to_f32().ok_or_else(|| Blame::plugin(wrong_datatype("floats", number, tensor.datatype)))
    }

    /// The elements of a BYTES tensor, which must be UTF-8.
    pub(crate) fn texts(&self, number: u32, bytes_max: usize) -> Result<Vec<String>, Blame> {
        let tensor = self.tensor(number, "texts")?;
        if tensor.datatype != Datatype::Bytes {
            return Err(Blame::plugin(wrong_datatype("texts", number, tensor.datatype)));
        }
        fits(tensor, tensor.data.len(), 2, bytes_max)?;
        let name = &tensor.name;
        let texts = tensor.texts().ok_or_else(|| Blame::request(format!("the lengths in tensor `{name}` do not add up")))?;
        let utf8 = |text: &[u8]| std::str::from_utf8(text).map(str::to_owned);
        let texts = texts.into_iter().map(utf8).collect::<Result<_, _>>();
        texts.map_err(|error| Blame::request(format!("tensor `{name}` is not UTF-8 text: {error}")))
    }
}

fn wrong_datatype(wanted: &str, number: u32, datatype: Datatype) -> String {
    format!("it asked for the {wanted} of tensor {number}, which is {datatype}")
}

/// Whether a plugin could hold so many elements. It cannot ask how many bytes a text has before it reads it, so that one which is too long is the client's fault.
fn fits(tensor: &Tensor, elements: usize, size: usize, bytes_max: usize) -> Result<(), Blame> {
    if elements.checked_mul(size).is_some_and(|bytes| bytes <= bytes_max) {
        return Ok(());
    }
    let (name, bytes) = (&tensor.name, tensor.data.len());
    Err(Blame::request(format!("tensor `{name}` has {bytes} bytes, more than the plugin can read into its memory of {bytes_max} bytes")))
}

/// What a plugin may see of its bundle while it describes its model.
pub trait BundleView: Send + Sync {
    /// The contents of a file, or none if the bundle has no such file.
    ///
    /// The path is the plugin's word: an implementation resolves it inside the bundle only.
    fn file(&self, path: &str) -> Option<Vec<u8>>;

    /// The weights, without their contents, by name.
    fn weights(&self) -> &[WeightSpec];
}

/// A bundle of weights alone.
impl BundleView for Vec<WeightSpec> {
    fn file(&self, _: &str) -> Option<Vec<u8>> {
        None
    }

    fn weights(&self) -> &[WeightSpec] {
        self
    }
}

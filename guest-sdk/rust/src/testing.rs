//! Runs a plugin natively, so that its unit tests need neither WebAssembly nor a host: [`Described`] calls it, [`evaluate`] computes the graphs
//! it unfolds.

mod accept;
mod array;
mod evaluate;
mod operators;
mod request;

pub use array::{Array, Weights};
pub use evaluate::{Evaluated, evaluate};
pub use request::TestRequest;

use crate::Bundle;
use crate::plugin::{self, Plugin};
use crate::request::Request;
use crate::types::{Description, Event, Growth, Parameter, Reaction, Refusal, Value};

/// A plugin that has been described, as the host would.
pub struct Described<P> {
    /// The plugin.
    pub plugin: P,
    /// What it said of its model.
    pub description: Description,
}

impl<P: Plugin> Described<P> {
    /// Describes a plugin with these parameters, for a bundle without files and weights.
    ///
    /// # Errors
    /// The plugin's refusal, or that of a parameter it does not know.
    pub fn new(parameters: &[(&str, Value)]) -> Result<Self, Refusal> {
        Self::with_bundle(parameters, &Bundle::new())
    }

    /// Describes a plugin with these parameters, for that bundle.
    ///
    /// # Errors
    /// The plugin's refusal, or that of a parameter it does not know.
    pub fn with_bundle(parameters: &[(&str, Value)], bundle: &Bundle) -> Result<Self, Refusal> {
        let parameters = parameters.iter().map(|(name, value)| Parameter { name: (*name).into(), value: value.clone() });
        let (plugin, description) = plugin::describe_with(parameters.collect(), bundle)?;
        Ok(Self { plugin, description })
    }

    /// Unfolds a request.
    ///
    /// # Errors
    /// The plugin's refusal.
    pub fn unfold(&self, request: &TestRequest) -> Result<Growth, Refusal> {
        self.plugin.unfold(&Request::new(request))
    }

    /// Resumes a request.
    ///
    /// # Errors
    /// The plugin's refusal.
    pub fn resume(&self, state: &[u8], event: &Event, request: &TestRequest) -> Result<Reaction, Refusal> {
        self.plugin.resume(state, event, &Request::from_tensor(request, request.first))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Truth(truth)
    }
}

impl From<&[&str]> for Value {
    fn from(texts: &[&str]) -> Self {
        Self::Texts(texts.iter().map(|text| (*text).into()).collect())
    }
}

impl Refusal {
    /// Its sentence, whoever is at fault.
    #[must_use]
    pub fn sentence(&self) -> &str {
        match self {
            Self::InvalidInput(sentence) | Self::Unsupported(sentence) | Self::Internal(sentence) => sentence,
        }
    }
}

//! Parameters that the protocol itself gives a meaning, taken out of a request; what is left is the plugin's.

use std::time::Duration;

use cellwright_cell_graph::{Attribute, AttributeValue, Datatype, TensorSpec};

use crate::fault::{OutputFault, RequestFault};
use crate::request::{InferRequest, RequestedOutput};
use crate::value::{self, SEQUENCE_ID};

/// What a request asks of the server rather than of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// `priority`: 1 is the highest, larger numbers come later, and 0, the default, comes last.
    pub priority: u64,
    /// `timeout`, given in microseconds: how long the answer is worth waiting for. None if it was absent or 0.
    pub timeout: Option<Duration>,
    /// Which outputs, and in which form.
    pub wanted: Wanted,
}

/// Which outputs a client wants, and which of them as raw bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `binary_data_output`: how outputs travel that say nothing themselves.
    pub binary: bool,
    /// The outputs asked for, in the client's order, each with its own `binary_data`; empty: all of the model's.
    pub outputs: Vec<(String, Option<bool>)>,
}

impl InferRequest {
    /// Takes the protocol's own parameters out of the request and of the outputs it asks for.
    ///
    /// # Errors
    /// If one of them has a value it cannot have, or asks for what is not served (see [`RequestFault::is_unsupported`]).
    pub fn take_options(&mut self) -> Result<RequestOptions, RequestFault> {
        let mut options = RequestOptions::default();
        let mut in_sequence = false;
        for parameter in &self.parameters {
            match parameter.name.as_str() {
                "priority" => options.priority = number(parameter)?,
                "timeout" => {
                    let microseconds = number(parameter)?;
                    options.timeout = (microseconds > 0).then(|| Duration::from_micros(microseconds));
                }
                "binary_data_output" => options.wanted.binary = truth(parameter)?,
                SEQUENCE_ID => in_sequence |= names_sequence(parameter)?,
                "sequence_start" | "sequence_end" => in_sequence |= truth(parameter)?,
                _ => {}
            }
        }
        if in_sequence {
            return Err(RequestFault::Sequence);
        }
        options.wanted.outputs = self.outputs.iter().map(wanted).collect::<Result<_, _>>()?;
        self.parameters.retain(|parameter| !is_protocols(&parameter.name) && !is_reserved(&parameter.name));
        self.outputs.iter_mut().for_each(|output| output.parameters.clear());
        Ok(options)
    }
}

impl Wanted {
    /// Whether an output is to travel as raw bytes.
    #[must_use]
    pub fn is_binary(&self, output: &str) -> bool {
        let own = self.outputs.iter().find(|(name, _)| name == output).and_then(|(_, own)| *own);
        own.unwrap_or(self.binary)
    }

    /// Whether an output is wanted at all.
    #[must_use]
    pub fn takes(&self, output: &str) -> bool {
        self.outputs.is_empty() || self.outputs.iter().any(|(name, _)| name == output)
    }

    /// Whether a model with these outputs can answer that, so that a request need not run in vain.
    ///
    /// # Errors
    /// If an output is asked for that the model does not have, or one as JSON that has no form there.
    pub fn check(&self, model: &[TensorSpec]) -> Result<(), RequestFault> {
        let has = || model.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
        for (name, _) in &self.outputs {
            if !model.iter().any(|spec| spec.name == *name) {
                return Err(RequestFault::Output { name: name.clone(), fault: OutputFault::Unknown { has: has() } });
            }
        }
        for spec in model.iter().filter(|spec| self.takes(&spec.name)) {
            if matches!(spec.datatype, Datatype::Fp16 | Datatype::Bf16) && !self.is_binary(&spec.name) {
                return Err(RequestFault::Output { name: spec.name.clone(), fault: OutputFault::BinaryOnly(spec.datatype) });
            }
        }
        Ok(())
    }
}

fn wanted(output: &RequestedOutput) -> Result<(String, Option<bool>), RequestFault> {
    let mut binary = None;
    for parameter in &output.parameters {
        let fault = match (parameter.name.as_str(), &parameter.value) {
            ("binary_data", AttributeValue::Truth(truth)) => {
                binary = Some(*truth);
                continue;
            }
            ("binary_data", _) => OutputFault::BinaryData,
            // What clients send who do not want it.
            ("classification", AttributeValue::Int(0)) => continue,
            ("classification", _) => OutputFault::Classification,
            (name, _) if is_shared_memory(name) => OutputFault::SharedMemory,
            // An input's.
            _ => continue,
        };
        return Err(RequestFault::Output { name: output.name.clone(), fault });
    }
    Ok((output.name.clone(), binary))
}

pub(crate) fn is_protocols(name: &str) -> bool {
    matches!(name, "priority" | "timeout" | "binary_data_output" | SEQUENCE_ID | "sequence_start" | "sequence_end")
}

/// Whether the protocol reads that parameter of an input, an output or a requested output.
pub(crate) fn is_of_tensor(name: &str) -> bool {
    matches!(name, "binary_data_size" | "binary_data" | "classification") || is_shared_memory(name)
}

pub(crate) fn is_shared_memory(name: &str) -> bool {
    name.starts_with("shared_memory_")
}

/// What other servers read, and this one does not. It is no plugin's.
fn is_reserved(name: &str) -> bool {
    name == "headers" || name.starts_with("triton_")
}

fn refuse(parameter: &Attribute, takes: &'static str) -> RequestFault {
    RequestFault::Parameter { name: parameter.name.clone(), takes }
}

fn number(parameter: &Attribute) -> Result<u64, RequestFault> {
    let number = value::integer(&parameter.value).and_then(|int| u64::try_from(int).ok());
    number.ok_or_else(|| refuse(parameter, "an integer, 0 or more"))
}

fn truth(parameter: &Attribute) -> Result<bool, RequestFault> {
    let AttributeValue::Truth(truth) = parameter.value else { return Err(refuse(parameter, "true or false")) };
    Ok(truth)
}

/// 0 and "" name no sequence.
fn names_sequence(parameter: &Attribute) -> Result<bool, RequestFault> {
    match &parameter.value {
        AttributeValue::Text(text) => Ok(!text.is_empty()),
        number => value::integer(number).map(|int| int != 0).ok_or_else(|| refuse(parameter, "an integer or a string")),
    }
}

//! Builds a cell: ports, ONNX operators between them, and which outputs the next step's state comes from.
//!
//! A builder's values are named by handles; the names operators use on the wire are generated. Inside a body the batch is axis 0, so a port
//! of shape `[H]` is of rank 2 there and its features are axis 1, or −1. Misuse of a builder is the plugin author's mistake and panics while
//! the plugin is described; nothing that comes with a request reaches this module.

mod operators;
mod recurrent;
mod tree;
mod weights;

pub use recurrent::Recurrence;
pub use weights::RecurrentWeights;

use crate::abi::cellwright::plugin::types as abi;
use crate::abi::cellwright::plugin::types::{Datatype, Operator, Parameter, Port};

/// A value inside of one cell: an input, a weight, or what an operator computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Input,
    Weight,
    Computed,
    /// Computed, and bound to an output's name.
    Output,
}

/// An operator whose values may still be renamed.
struct Step {
    kind: &'static str,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
    attributes: Vec<Parameter>,
}

/// Builds one cell.
pub struct CellBuilder {
    name: String,
    values: Vec<(String, Origin)>,
    inputs: Vec<Port>,
    outputs: Vec<(String, Port)>,
    steps: Vec<Step>,
    /// `(output, input)`: the next step's input is this step's output.
    loops: Vec<(u32, u32)>,
    batch_max: Option<u32>,
    priority: Option<i32>,
}

impl CellBuilder {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            values: vec![],
            inputs: vec![],
            outputs: vec![],
            steps: vec![],
            loops: vec![],
            batch_max: None,
            priority: None,
        }
    }

    /// An input whose rows have that type and shape; `&[]` is a scalar, such as a token.
    pub fn input(&mut self, name: &str, datatype: Datatype, shape: &[u32]) -> Value {
        self.port(name, datatype, shape, false)
    }

    /// A ragged input: each node has any number of rows, each of that shape. In the body it is `[L, …shape]`,
    /// and L differs by node. Its source is made of spans, such as [`OutputRef::all`](abi::OutputRef::all).
    pub fn ragged(&mut self, name: &str, datatype: Datatype, shape: &[u32]) -> Value {
        let value = self.port(name, datatype, shape, false);
        self.inputs.iter_mut().rev().take(1).for_each(|port| port.ragged = true);
        value
    }

    /// A state: an input that the step before feeds. [`CellBuilder::next`] says with what. Step 0 sees zeros unless the chain says otherwise.
    pub fn state(&mut self, name: &str, datatype: Datatype, shape: &[u32]) -> Value {
        self.port(name, datatype, shape, true)
    }

    /// The value of a state after this step. It is also an output, of the state's name.
    ///
    /// # Panics
    /// `state` is not a state of this cell.
    pub fn next(&mut self, state: Value, value: Value) {
        let name = &self.values[state.0].0;
        let input = self.inputs.iter().position(|port| port.carried && port.name == *name);
        let input = input.unwrap_or_else(|| panic!("`{name}` is no state of cell `{}`", self.name));
        let Port { name, datatype, shape, .. } = self.inputs[input].clone();
        self.output(&name, value, datatype, &shape);
        self.loops.push((number(self.outputs.len() - 1), number(input)));
    }

    /// An output: a computed value under a name of its own. Where an input has the same name the host knows it as `next_NAME`.
    pub fn output(&mut self, name: &str, value: Value, datatype: Datatype, shape: &[u32]) {
        let value = if self.values[value.0].1 == Origin::Computed { value } else { self.identity(value) };
        let taken = self.inputs.iter().any(|port| port.name == name);
        let wire = if taken { format!("next_{name}") } else { name.into() };
        self.values[value.0] = (wire.clone(), Origin::Output);
        self.outputs.push((name.into(), Port { name: wire, datatype, shape: shape.to_vec(), ragged: false, carried: false }));
    }

    /// A tensor of the bundle's weights.
    pub fn weight(&mut self, name: &str) -> Value {
        let known = self.values.iter().position(|(known, origin)| *origin == Origin::Weight && known == name);
        known.map(Value).unwrap_or_else(|| self.value(name.into(), Origin::Weight))
    }

    /// Any operator: the ones without a method of their own.
    pub fn operator(&mut self, kind: &'static str, inputs: &[Value], outputs: usize, attributes: Vec<Parameter>) -> Vec<Value> {
        let first = self.values.len();
        let outputs: Vec<Value> = (first..first + outputs).map(|number| self.value(format!("{kind}#{number}"), Origin::Computed)).collect();
        self.steps.push(Step { kind, inputs: inputs.to_vec(), outputs: outputs.clone(), attributes });
        outputs
    }

    /// The largest batch this cell is to run in.
    pub fn batch_max(&mut self, batch_max: u32) {
        self.batch_max = Some(batch_max);
    }

    /// Higher runs first; by default, deeper cells.
    pub fn priority(&mut self, priority: i32) {
        self.priority = Some(priority);
    }

    fn port(&mut self, name: &str, datatype: Datatype, shape: &[u32], carried: bool) -> Value {
        self.inputs.push(Port { name: name.into(), datatype, shape: shape.to_vec(), ragged: false, carried });
        self.value(name.into(), Origin::Input)
    }

    fn value(&mut self, name: String, origin: Origin) -> Value {
        self.values.push((name, origin));
        Value(self.values.len() - 1)
    }

    /// What the host gets, and what unfolding needs to know of it.
    pub(crate) fn finish(self, index: u32) -> (abi::Cell, Cell) {
        let names = |values: &[Value]| values.iter().map(|value| self.values[value.0].0.clone()).collect();
        let operators = self.steps.iter().map(|step| Operator {
            kind: step.kind.into(),
            inputs: names(&step.inputs),
            outputs: names(&step.outputs),
            attributes: step.attributes.clone(),
        });
        let cell = abi::Cell {
            name: self.name.clone(),
            inputs: self.inputs.clone(),
            outputs: self.outputs.iter().map(|(_, port)| port.clone()).collect(),
            body: abi::Body::Operators(operators.collect()),
            batch_max: self.batch_max,
            priority: self.priority,
        };
        let handle = Cell {
            index,
            inputs: self.inputs.into_iter().map(|port| (port.name, port.carried)).collect(),
            outputs: self.outputs.into_iter().map(|(name, _)| name).collect(),
            loops: self.loops,
            name: self.name,
        };
        (cell, handle)
    }
}

/// A cell of the model, as graphs name it.
#[derive(Clone, Debug)]
pub struct Cell {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Name, and whether it is a state.
    pub(crate) inputs: Vec<(String, bool)>,
    pub(crate) outputs: Vec<String>,
    pub(crate) loops: Vec<(u32, u32)>,
}

impl Cell {
    /// The number of an input.
    ///
    /// # Panics
    /// The cell has no such input.
    #[must_use]
    pub fn input(&self, name: &str) -> u32 {
        let found = self.inputs.iter().position(|(known, _)| known == name);
        number(found.unwrap_or_else(|| panic!("cell `{}` has no input `{name}`", self.name)))
    }

    /// The number of a state: only a state takes feedback.
    pub(crate) fn state(&self, name: &str) -> u32 {
        let input = self.input(name);
        let carried = self.inputs[input as usize].1;
        assert!(
            carried,
            "input `{name}` of cell `{}` takes no feedback: it is no state (declare it with `state`, or as `carried`)",
            self.name
        );
        input
    }

    /// The number of an output.
    ///
    /// # Panics
    /// The cell has no such output.
    #[must_use]
    pub fn output(&self, name: &str) -> u32 {
        self.find_output(name).unwrap_or_else(|| panic!("cell `{}` has no output `{name}`", self.name))
    }

    pub(crate) fn find_output(&self, name: &str) -> Option<u32> {
        self.outputs.iter().position(|known| known == name).map(number)
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("a cell has fewer than 2³² ports")
}

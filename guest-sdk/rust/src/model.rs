//! Builds a model's description: its tensors and its cells.

use crate::abi::cellwright::plugin::types::{Body, Datatype, Description, Port, TensorSpec};
use crate::cell::{Cell, CellBuilder, RecurrentWeights};

/// Builds a [`Description`].
pub struct ModelBuilder {
    description: Description,
}

impl Default for ModelBuilder {
    fn default() -> Self {
        let (inputs, outputs, cells) = (vec![], vec![], vec![]);
        let (optional_inputs, ignored_weights) = (vec![], vec![]);
        Self {
            description: Description { inputs, outputs, cells, optional_inputs, rows_are_requests: false, live_max: None, ignored_weights },
        }
    }
}

impl ModelBuilder {
    /// A model without anything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A tensor that requests bring; −1 is any extent.
    pub fn input(&mut self, name: &str, datatype: Datatype, shape: &[i64]) -> &mut Self {
        self.description.inputs.push(TensorSpec { name: name.into(), datatype, shape: shape.to_vec() });
        self
    }

    /// A tensor that requests may bring: [`Request::optional`](crate::Request::optional).
    pub fn optional_input(&mut self, name: &str, datatype: Datatype, shape: &[i64]) -> &mut Self {
        self.description.optional_inputs.push(name.into());
        self.input(name, datatype, shape)
    }

    /// A tensor that responses carry; −1 is any extent.
    pub fn output(&mut self, name: &str, datatype: Datatype, shape: &[i64]) -> &mut Self {
        self.description.outputs.push(TensorSpec { name: name.into(), datatype, shape: shape.to_vec() });
        self
    }

    /// A cell whose body is built here.
    pub fn cell(&mut self, name: &str, build: impl FnOnce(&mut CellBuilder)) -> Cell {
        let mut builder = CellBuilder::new(name);
        build(&mut builder);
        let (cell, handle) = builder.finish(self.cells());
        self.description.cells.push(cell);
        handle
    }

    /// A cell that is a step of an `nn.LSTM` over rows: input `x` of shape `[features]`, states `h` and `c`, which are its outputs too.
    pub fn lstm(&mut self, name: &str, features: u32, hidden: u32, weights: impl Into<RecurrentWeights>) -> Cell {
        self.cell(name, |cell| {
            let x = cell.input("x", Datatype::Fp32, &[features]);
            cell.lstm(x, hidden, weights);
        })
    }

    /// A cell that is an `nn.GRU`'s step over rows: input `x` of shape `[features]`, state `h`, which is its output too.
    pub fn gru(&mut self, name: &str, features: u32, hidden: u32, weights: impl Into<RecurrentWeights>) -> Cell {
        self.cell(name, |cell| {
            let x = cell.input("x", Datatype::Fp32, &[features]);
            cell.gru(x, hidden, weights);
        })
    }

    /// A cell that is an `nn.Linear`: input `x` of shape `[features]`, output `y` of shape `[outputs]`.
    pub fn linear(&mut self, name: &str, features: u32, outputs: u32, prefix: &str) -> Cell {
        self.cell(name, |cell| {
            let x = cell.input("x", Datatype::Fp32, &[features]);
            let y = cell.linear(x, prefix);
            cell.output("y", y, Datatype::Fp32, &[outputs]);
        })
    }

    /// A cell whose body is an ONNX file of the bundle; `loops` names the outputs that feed the next step, each with its input.
    ///
    /// # Panics
    /// There is no such output or input, or the input is not carried.
    pub fn onnx_cell(&mut self, name: &str, file: &str, inputs: Vec<Port>, outputs: Vec<Port>, loops: &[(&str, &str)]) -> Cell {
        let mut handle = Cell {
            index: self.cells(),
            name: name.into(),
            inputs: inputs.iter().map(|port| (port.name.clone(), port.carried)).collect(),
            outputs: outputs.iter().map(|port| port.name.clone()).collect(),
            loops: vec![],
        };
        handle.loops = loops.iter().map(|(output, input)| (handle.output(output), handle.state(input))).collect();
        let body = Body::Onnx(file.into());
        self.description.cells.push(crate::abi::cellwright::plugin::types::Cell {
            name: name.into(),
            inputs,
            outputs,
            body,
            batch_max: None,
            priority: None,
        });
        handle
    }

    /// The leading dimension of every input counts independent requests.
    pub fn rows_are_requests(&mut self) -> &mut Self {
        self.description.rows_are_requests = true;
        self
    }

    /// The most values one request may hold at once: needed by models that grow.
    pub fn live_max(&mut self, values: u32) -> &mut Self {
        self.description.live_max = Some(values);
        self
    }

    /// Weights whose names begin so may be in the bundle though no cell reads them.
    pub fn ignore_weights(&mut self, prefix: &str) -> &mut Self {
        self.description.ignored_weights.push(prefix.into());
        self
    }

    /// The description.
    #[must_use]
    pub fn finish(self) -> Description {
        self.description
    }

    fn cells(&self) -> u32 {
        u32::try_from(self.description.cells.len()).expect("a model has fewer than 2³² cells")
    }
}

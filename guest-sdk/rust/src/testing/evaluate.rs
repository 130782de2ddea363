//! Computes a cell graph, node by node in f64: what the host will answer, but for rounding.

use std::collections::{BTreeMap, BTreeSet};

use crate::testing::{Array, TestRequest, Weights, operators};
use crate::types::{Affine, Body, Cell, Chain, Datatype, Description, Extent, Feedback, Gathered, Growth, OutputRef, Source, Tensor};

/// Every value of a graph.
pub struct Evaluated {
    /// By chain, step, stage and output.
    chains: Vec<Vec<Vec<Vec<Array>>>>,
    /// The response's tensors, by name.
    pub outputs: BTreeMap<String, Array>,
}

impl Evaluated {
    /// An output's value at every executed step.
    ///
    /// # Panics
    /// There is no such output.
    #[must_use]
    pub fn steps(&self, of: OutputRef) -> Vec<Array> {
        self.chains[of.chain as usize].iter().map(|stages| stages[of.stage as usize][of.output as usize].clone()).collect()
    }

    fn at(&self, of: OutputRef, step: usize) -> Array {
        self.chains[of.chain as usize][step][of.stage as usize][of.output as usize].clone()
    }

    fn last(&self, of: OutputRef) -> Array {
        self.at(of, self.chains[of.chain as usize].len() - 1)
    }
}

/// Computes the graph of a request's first growth. It stands in for the host in a test: what it does not know (ragged ports, ONNX files)
/// the host's first version refuses too.
///
/// # Panics
/// The graph or its weights do not fit the cells: the sentence says where.
#[must_use]
pub fn evaluate(description: &Description, growth: &Growth, request: &TestRequest, weights: &Weights) -> Evaluated {
    let mut evaluated = Evaluated { chains: vec![], outputs: BTreeMap::new() };
    for chain in &growth.chains {
        Run { description, request, weights, chain, evaluated: &mut evaluated }.run();
    }
    for output in &growth.outputs {
        let array = match &output.from {
            Gathered::Last(of) => evaluated.last(*of),
            Gathered::All(of) => Array::stack(&evaluated.steps(*of)),
            Gathered::Listed(all) => Array::stack(&all.iter().map(|of| evaluated.last(*of)).collect::<Vec<_>>()),
        };
        let spec = description.outputs.iter().find(|spec| spec.name == output.name);
        let spec = spec.unwrap_or_else(|| panic!("`{}` is no output of the model", output.name));
        let fits = spec.shape.len() == array.shape.len()
            && spec.shape.iter().zip(&array.shape).all(|(want, have)| *want < 0 || *want == *have as i64);
        assert!(fits, "output `{}` has shape {:?}, described is {:?}", output.name, array.shape, spec.shape);
        evaluated.outputs.insert(output.name.clone(), array);
    }
    evaluated
}

struct Run<'a> {
    description: &'a Description,
    request: &'a TestRequest,
    weights: &'a Weights,
    chain: &'a Chain,
    evaluated: &'a mut Evaluated,
}

impl Run<'_> {
    fn run(&mut self) {
        let bound = match self.chain.length {
            Extent::Fixed(steps) => steps as usize,
            Extent::Like(chain) => self.evaluated.chains[chain as usize].len(),
        };
        assert!(bound > 0, "chain {} has no steps", self.evaluated.chains.len());
        self.evaluated.chains.push(vec![]);
        for step in 0..bound {
            self.own().push(vec![]);
            for stage in 0..self.chain.stages.len() {
                let outputs = self.node(step, stage);
                self.own()[step].push(outputs);
            }
            let stop = self.chain.stop.is_some_and(|stop| self.own()[step][stop.stage as usize][stop.output as usize].values[0] != 0.0);
            if stop {
                return;
            }
        }
    }

    fn own(&mut self) -> &mut Vec<Vec<Vec<Array>>> {
        self.evaluated.chains.last_mut().expect("a run begins with its chain")
    }

    fn node(&mut self, step: usize, stage: usize) -> Vec<Array> {
        let (description, chain) = (self.description, self.chain);
        let cell = &description.cells[chain.stages[stage].cell as usize];
        let sources = &chain.stages[stage].inputs;
        assert_eq!(sources.len(), cell.inputs.len(), "a stage of cell `{}` has another number of inputs than the cell", cell.name);
        let mut inputs = vec![];
        for (input, source) in sources.iter().enumerate() {
            let fed = chain.feedback.iter().find(|fed| (fed.to_stage as usize, fed.input as usize) == (stage, input));
            let (array, port) = (self.input(step, source, fed, cell, input), &cell.inputs[input]);
            let shape: Vec<usize> = port.shape.iter().map(|extent| *extent as usize).collect();
            assert_eq!(array.shape, shape, "input `{}` of cell `{}`, step {step}", port.name, cell.name);
            inputs.push(array);
        }
        body(cell, inputs, self.weights)
    }

    fn input(&mut self, step: usize, source: &Source, fed: Option<&Feedback>, cell: &Cell, input: usize) -> Array {
        if let Some(fed) = fed.filter(|_| step > 0) {
            assert!(cell.inputs[input].carried, "input `{}` of cell `{}` is fed back, but is no state", cell.inputs[input].name, cell.name);
            return self.own()[step - 1][fed.stage as usize][fed.output as usize].clone();
        }
        match source {
            Source::Zeros => {
                let shape: Vec<usize> = cell.inputs[input].shape.iter().map(|extent| *extent as usize).collect();
                Array::new(&shape, vec![0.0; shape.iter().product()])
            }
            Source::Literal(tensor) => literal(tensor, &cell.inputs[input].shape),
            Source::Ints(values) => Array::scalar(values[step] as f64),
            Source::Index(at) => Array::scalar(place(*at, step, 0) as f64),
            Source::Rows(rows) => self.request.array(rows.tensor).row(place(rows.at, step, 0)),
            Source::Steps(steps) => {
                let executed = self.evaluated.chains[steps.of.chain as usize].len();
                self.evaluated.at(steps.of, place(steps.at, step, executed))
            }
            Source::Last(of) => self.evaluated.last(*of),
            Source::Nodes(nodes) => {
                let node = nodes.of[step];
                self.evaluated.at(OutputRef { chain: node.chain, stage: nodes.stage, output: nodes.output }, node.step as usize)
            }
            Source::Sibling(sibling) => self.own()[step][sibling.stage as usize][sibling.output as usize].clone(),
            Source::Pick(_) | Source::Many(_) => panic!("ragged ports and picks are not evaluated here"),
        }
    }
}

fn body(cell: &Cell, inputs: Vec<Array>, weights: &Weights) -> Vec<Array> {
    let Body::Operators(operators) = &cell.body else { panic!("cell `{}` is an ONNX file, which is not evaluated here", cell.name) };
    let mut values: BTreeMap<&str, Array> = cell.inputs.iter().map(|port| port.name.as_str()).zip(inputs).collect();
    let integers = cell
        .inputs
        .iter()
        .filter(|port| !matches!(port.datatype, Datatype::Fp16 | Datatype::Bf16 | Datatype::Fp32 | Datatype::Fp64 | Datatype::Bool));
    let mut whole: BTreeSet<&str> = integers.map(|port| port.name.as_str()).collect();
    for operator in operators {
        let find = |name: &String| {
            let found = values.get(name.as_str()).or_else(|| weights.get(name));
            found.unwrap_or_else(|| panic!("`{name}` in cell `{}` is neither a value nor a weight", cell.name))
        };
        let mut outputs = operators::compute(operator, &operator.inputs.iter().map(find).collect::<Vec<_>>());
        let inputs: Vec<bool> = operator.inputs.iter().map(|name| whole.contains(name.as_str())).collect();
        if operators::is_whole(operator, &inputs) {
            outputs.iter_mut().flat_map(|array| &mut array.values).for_each(|value| *value = value.trunc());
            whole.extend(operator.outputs.iter().map(String::as_str));
        }
        for (name, array) in operator.outputs.iter().zip(outputs) {
            assert!(values.insert(name, array).is_none(), "`{name}` in cell `{}` is computed twice", cell.name);
        }
    }
    let output = |port: &crate::types::Port| {
        let array =
            values.get(port.name.as_str()).unwrap_or_else(|| panic!("output `{}` of cell `{}` is not computed", port.name, cell.name));
        let shape: Vec<usize> = port.shape.iter().map(|extent| *extent as usize).collect();
        assert_eq!(array.shape, shape, "output `{}` of cell `{}`", port.name, cell.name);
        array.clone()
    };
    cell.outputs.iter().map(output).collect()
}

fn place(at: Affine, step: usize, executed: usize) -> usize {
    let place = i64::from(at.first) + i64::try_from(step).unwrap_or(i64::MAX) * i64::from(at.stride);
    let place = usize::try_from(place).unwrap_or_else(|_| panic!("step {step} names step {place}"));
    if at.from_end { executed.checked_sub(1 + place).unwrap_or_else(|| panic!("step {step} names one before the first")) } else { place }
}

fn literal(tensor: &Tensor, shape: &[u32]) -> Array {
    let shape: Vec<usize> = shape.iter().map(|extent| *extent as usize).collect();
    let values = match tensor.datatype {
        Datatype::Fp32 => tensor.floats().map(|values| values.into_iter().map(f64::from).collect()),
        _ => tensor.ints().map(|values| values.into_iter().map(|value| value as f64).collect()),
    };
    Array::new(&shape, values.unwrap_or_else(|refusal| panic!("{}", refusal.sentence())))
}

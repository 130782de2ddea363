//! Computes a cell graph, node by node in f64: what the host will answer, but for rounding.

use std::collections::BTreeMap;

use crate::testing::accept::{self, Typed};
use crate::testing::{Array, TestRequest, Weights, operators};
use crate::types::{
    Affine, Body, Cell, Chain, Datatype, Description, Extent, Feedback, Gathered, Growth, OutputRef, Port, Source, Span, SpanOf, Tensor,
};

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

/// Computes the graph of a request's first growth. It stands in for the host in a test, and takes no cell that the host refuses. All weights
/// are FP32, and integers are exact below 2⁵³.
///
/// # Panics
/// The host would refuse a cell, or the graph or its weights do not fit the cells: the sentence says where.
#[must_use]
pub fn evaluate(description: &Description, growth: &Growth, request: &TestRequest, weights: &Weights) -> Evaluated {
    let mut evaluated = Evaluated { chains: vec![], outputs: BTreeMap::new() };
    for chain in &growth.chains {
        Run { description, growth, request, weights, chain, evaluated: &mut evaluated }.run();
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
    growth: &'a Growth,
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
            if let Some(stop) = self.chain.stop {
                let port = self.port(self.chain, stop.stage, stop.output);
                let fits = port.datatype == Datatype::Bool && matches!(port.shape[..], [] | [1]);
                assert!(fits, "a stop is one BOOL, not `{}`, {} {:?}", port.name, port.datatype.name(), port.shape);
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
            assert_eq!(array.shape, extents(port), "input `{}` of cell `{}`, step {step}", port.name, cell.name);
            let (given, wanted) = (self.datatype(source, port), port.datatype);
            assert_eq!(given, wanted, "input `{}` of cell `{}` is {}; nothing is converted silently", port.name, cell.name, wanted.name());
            inputs.push(array);
        }
        body(cell, inputs, self.weights)
    }

    fn input(&mut self, step: usize, source: &Source, fed: Option<&Feedback>, cell: &Cell, input: usize) -> Array {
        if let Some(fed) = fed.filter(|_| step > 0) {
            assert!(cell.inputs[input].carried, "input `{}` of cell `{}` is fed back, but is no state", cell.inputs[input].name, cell.name);
            let (from, to) = (self.port(self.chain, fed.stage, fed.output), &cell.inputs[input]);
            assert_eq!(from.datatype, to.datatype, "input `{}` of cell `{}` takes feedback of another datatype", to.name, cell.name);
            return self.own()[step - 1][fed.stage as usize][fed.output as usize].clone();
        }
        match source {
            Source::Zeros => {
                let shape = extents(&cell.inputs[input]);
                Array::new(&shape, vec![0.0; shape.iter().product()])
            }
            Source::Literal(tensor) => literal(tensor, &cell.inputs[input].shape),
            Source::Ints(values) => Array::new(&extents(&cell.inputs[input]), vec![values[step] as f64]),
            Source::Index(at) => Array::new(&extents(&cell.inputs[input]), vec![place(*at, step, 0) as f64]),
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
            Source::Frames(rows) => {
                let (all, shape) = (self.request.array(rows.tensor), extents(&cell.inputs[input]));
                let first = line(rows.at, step, all.values.len());
                let values = (0..shape.iter().product::<usize>() as i64).map(|at| usize::try_from(first + at).ok());
                Array::new(&shape, values.map(|at| at.and_then(|at| all.values.get(at).copied()).unwrap_or(0.0)).collect())
            }
            Source::Many(spans) => {
                let shape = extents(&cell.inputs[input]);
                let rows: Vec<Array> = spans.iter().flat_map(|span| self.span(*span, step, &shape[1..])).collect();
                Array::stack(&rows)
            }
        }
    }
}

impl Run<'_> {
    /// The rows of a span with a count, each of that shape.
    fn span(&self, span: Span, step: usize, shape: &[usize]) -> Vec<Array> {
        let count = span.count.unwrap_or_else(|| panic!("spans without a count are not evaluated here"));
        let rows = match span.of {
            // Earlier stages of the step that is being computed count, too.
            SpanOf::Chain(of) => self.evaluated.chains[of.chain as usize].iter().filter(|stages| stages.len() > of.stage as usize).count(),
            SpanOf::Tensor(tensor) => self.request.array(tensor).shape[0],
        };
        let first = line(span.at, step, rows);
        let numbers = (0..i64::from(count)).map(|row| usize::try_from(first + row * i64::from(span.every)).ok().filter(|row| *row < rows));
        let row = |number: usize| match span.of {
            SpanOf::Chain(of) => self.evaluated.at(of, number),
            SpanOf::Tensor(tensor) => self.request.array(tensor).row(number),
        };
        numbers.map(|number| number.map_or_else(|| Array::new(shape, vec![0.0; shape.iter().product()]), row)).collect()
    }

    /// The datatype that a source gives to a port.
    fn datatype(&self, source: &Source, port: &Port) -> Datatype {
        let of = |of: &OutputRef| self.port(&self.growth.chains[of.chain as usize], of.stage, of.output).datatype;
        match source {
            Source::Zeros => port.datatype,
            Source::Many(spans) => match spans.first().map(|span| span.of) {
                Some(SpanOf::Chain(output)) => of(&output),
                Some(SpanOf::Tensor(tensor)) => self.request.datatype(tensor),
                None => port.datatype,
            },
            Source::Literal(tensor) => tensor.datatype,
            // Numbers go into INT32 and INT64.
            Source::Ints(_) | Source::Index(_) if port.datatype == Datatype::Int32 => Datatype::Int32,
            Source::Ints(_) | Source::Index(_) => Datatype::Int64,
            Source::Rows(rows) | Source::Frames(rows) => self.request.datatype(rows.tensor),
            Source::Steps(steps) => of(&steps.of),
            Source::Last(last) => of(last),
            Source::Nodes(nodes) => {
                let chain = nodes.of.first().map_or(self.chain, |node| &self.growth.chains[node.chain as usize]);
                self.port(chain, nodes.stage, nodes.output).datatype
            }
            Source::Sibling(sibling) => self.port(self.chain, sibling.stage, sibling.output).datatype,
        }
    }

    fn port(&self, chain: &Chain, stage: u32, output: u32) -> &Port {
        &self.description.cells[chain.stages[stage as usize].cell as usize].outputs[output as usize]
    }
}

fn body(cell: &Cell, inputs: Vec<Array>, weights: &Weights) -> Vec<Array> {
    let Body::Operators(operators) = &cell.body else { panic!("cell `{}` is an ONNX file, which is not evaluated here", cell.name) };
    accept::ports(cell).unwrap_or_else(|sentence| panic!("cell `{}`: {sentence}", cell.name));
    let mut values: BTreeMap<&str, Typed> = BTreeMap::new();
    let bind = |values: &mut BTreeMap<_, _>, name, value| {
        let taken = weights.contains_key(name) || values.insert(name, value).is_some();
        assert!(!taken, "`{name}` in cell `{}` is the name of two values, or of a weight", cell.name);
    };
    for (port, array) in cell.inputs.iter().zip(inputs) {
        bind(&mut values, port.name.as_str(), Typed { array, datatype: port.datatype, batched: true });
    }
    for (position, operator) in operators.iter().enumerate() {
        let find = |name: &String| {
            let found = values.get(name.as_str()).cloned().or_else(|| weights.get(name).cloned().map(Typed::weight));
            found.unwrap_or_else(|| panic!("`{name}` in cell `{}` is neither a value nor a weight", cell.name))
        };
        let inputs: Vec<Typed> = operator.inputs.iter().map(find).collect();
        let inputs: Vec<&Typed> = inputs.iter().collect();
        let datatypes = accept::operator(operator, &inputs);
        let refused = |sentence| panic!("cell `{}`, operator {position} ({}): {sentence}", cell.name, operator.kind);
        let datatypes = datatypes.unwrap_or_else(refused);
        let batched = inputs.iter().any(|input| input.batched);
        let arrays = operators::compute(operator, &inputs.iter().map(|input| &input.array).collect::<Vec<_>>());
        for ((name, mut array), datatype) in operator.outputs.iter().zip(arrays).zip(datatypes) {
            operators::held(&mut array, datatype);
            bind(&mut values, name, Typed { array, datatype, batched });
        }
    }
    let output = |port: &Port| {
        let value = values.get(port.name.as_str());
        let value = value.unwrap_or_else(|| panic!("output `{}` of cell `{}` is not computed", port.name, cell.name));
        let (declared, computed) = (port.datatype.name(), value.datatype.name());
        assert!(value.batched, "output `{}` of cell `{}` is a constant, not a value of each row", port.name, cell.name);
        assert_eq!(declared, computed, "output `{}` of cell `{}` is declared {declared}", port.name, cell.name);
        assert_eq!(value.array.shape, extents(port), "output `{}` of cell `{}`", port.name, cell.name);
        value.array.clone()
    };
    cell.outputs.iter().map(output).collect()
}

fn extents(port: &Port) -> Vec<usize> {
    port.shape.iter().map(|extent| *extent as usize).collect()
}

fn place(at: Affine, step: usize, executed: usize) -> usize {
    let place = at.first + step as i64 * i64::from(at.stride);
    let place = usize::try_from(place).unwrap_or_else(|_| panic!("step {step} names step {place}"));
    if at.from_end { executed.checked_sub(1 + place).unwrap_or_else(|| panic!("step {step} names one before the first")) } else { place }
}

/// The row, of so many, that a step means; perhaps beyond either end.
fn line(at: Affine, step: usize, rows: usize) -> i64 {
    let number = at.first + step as i64 * i64::from(at.stride);
    if at.from_end { rows as i64 - 1 - number } else { number }
}

fn literal(tensor: &Tensor, shape: &[u32]) -> Array {
    let shape: Vec<usize> = shape.iter().map(|extent| *extent as usize).collect();
    let values = match tensor.datatype {
        Datatype::Fp32 => tensor.floats().map(|values| values.into_iter().map(f64::from).collect()),
        _ => tensor.ints().map(|values| values.into_iter().map(|value| value as f64).collect()),
    };
    Array::new(&shape, values.unwrap_or_else(|refusal| panic!("{}", refusal.sentence())))
}

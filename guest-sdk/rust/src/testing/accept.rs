//! Which cells the host takes: operators, their attributes, datatypes and shapes. What it refuses is refused here too, in like words, so that a plugin
//! whose tests are green is not refused when it is loaded.
//!
//! Some of what the host takes is not evaluated here, such as rows of several dimensions in most operators. That is refused as well.

use crate::testing::Array;
use crate::types::{Cell, Datatype, Operator, Value};

/// A value of a cell: its elements, their datatype, and whether it has a row for each node; a constant has not.
#[derive(Clone, Debug)]
pub(super) struct Typed {
    pub(super) array: Array,
    pub(super) datatype: Datatype,
    pub(super) batched: bool,
}

impl Typed {
    /// A weight. Weights of tests have no datatype: they count as FP32.
    pub(super) const fn weight(array: Array) -> Self {
        Self { array, datatype: Datatype::Fp32, batched: false }
    }
}

/// Every operator that is evaluated here, and the attributes that are.
const OPERATORS: [(&str, &[&str]); 39] = [
    ("Add", &[]),
    ("And", &[]),
    ("ArgMax", &["axis", "keepdims"]),
    ("Cast", &["to"]),
    ("Concat", &["axis"]),
    ("Constant", &["value_int", "value_float"]),
    ("Div", &[]),
    ("Equal", &[]),
    ("Exp", &[]),
    ("Gather", &["axis"]),
    ("Gemm", &["transB"]),
    ("Greater", &[]),
    ("Identity", &[]),
    ("LayerNormalization", &["axis", "epsilon"]),
    ("Less", &[]),
    ("Log", &[]),
    ("LogSoftmax", &["axis"]),
    ("MatMul", &[]),
    ("Mul", &[]),
    ("Neg", &[]),
    ("Not", &[]),
    ("Or", &[]),
    ("Pow", &[]),
    ("RMSNormalization", &["axis", "epsilon"]),
    ("ReduceMax", &["axes", "keepdims"]),
    ("ReduceMean", &["axes", "keepdims"]),
    ("ReduceSum", &["axes", "keepdims"]),
    ("Relu", &[]),
    ("Reshape", &["shape"]),
    ("Sigmoid", &[]),
    ("Silu", &[]),
    ("Slice", &["starts", "ends", "axes", "steps"]),
    ("Softmax", &["axis"]),
    ("Split", &["axis", "split"]),
    ("Sqrt", &[]),
    ("Sub", &[]),
    ("Tanh", &[]),
    ("TopK", &["axis", "k"]),
    ("Where", &[]),
];

const FLOAT: &[Datatype] = &[Datatype::Fp32];
const SIGNED: &[Datatype] = &[Datatype::Fp32, Datatype::Int32, Datatype::Int64];
const NUMBER: &[Datatype] = &[Datatype::Fp32, Datatype::Int32, Datatype::Int64, Datatype::Uint8];
const TRUTH: &[Datatype] = &[Datatype::Bool];
const ANY: &[Datatype] = &[Datatype::Fp32, Datatype::Int32, Datatype::Int64, Datatype::Uint8, Datatype::Bool];

/// Checks what a cell says of its ports.
///
/// # Errors
/// What the host would refuse.
pub(super) fn ports(cell: &Cell) -> Result<(), String> {
    if cell.outputs.is_empty() {
        return Err("it has no outputs".into());
    }
    for port in cell.inputs.iter().chain(&cell.outputs) {
        let name = &port.name;
        if !ANY.contains(&port.datatype) {
            return Err(format!("port `{name}` is {}, but ports are BOOL, UINT8, INT32, INT64 or FP32", port.datatype.name()));
        }
        if port.ragged {
            return Err(format!("port `{name}` is ragged, and ragged inputs are not evaluated here: test the plugin with a host"));
        }
        if port.shape.contains(&0) {
            return Err(format!("port `{name}` has an extent of 0"));
        }
    }
    Ok(())
}

/// The datatypes of an operator's outputs.
///
/// # Errors
/// What the host would refuse, or what is not evaluated here.
pub(super) fn operator(operator: &Operator, inputs: &[&Typed]) -> Result<Vec<Datatype>, String> {
    let kind = operator.kind.as_str();
    let Some((_, known)) = OPERATORS.iter().find(|(known, _)| *known == kind) else {
        return Err("the host has no such operator, or it is not evaluated here".into());
    };
    if let Some(attribute) = operator.attributes.iter().find(|attribute| !known.contains(&attribute.name.as_str())) {
        return Err(format!("it has no attribute `{}`, or it is not evaluated here", attribute.name));
    }
    let keeps_constants = matches!(kind, "Constant" | "Identity" | "Reshape");
    if !keeps_constants && inputs.iter().all(|input| !input.batched) {
        return Err("it works on constants alone; give its result as a weight".into());
    }
    axes(operator)?;
    let call = Call { inputs };
    let datatypes = call.datatypes(kind, operator)?;
    if operator.outputs.is_empty() || operator.outputs.len() > datatypes.len() {
        return Err(format!("it has {} outputs, not {}", datatypes.len(), operator.outputs.len()));
    }
    Ok(datatypes)
}

/// Operators work on the features. ONNX's axis 0 is the batch, and some defaults are it.
fn axes(operator: &Operator) -> Result<(), String> {
    let value = |name: &str| operator.attributes.iter().find(|attribute| attribute.name == name).map(|attribute| &attribute.value);
    let fits = match operator.kind.as_str() {
        "Gather" => matches!(value("axis"), None | Some(Value::Int(0))),
        "ArgMax" | "Concat" | "Split" => matches!(value("axis"), Some(Value::Int(-1 | 1))),
        "ReduceMax" | "ReduceMean" | "ReduceSum" => matches!(value("axes"), Some(Value::Ints(axes)) if matches!(axes[..], [-1 | 1])),
        "Slice" => {
            let steps = value("steps").is_none_or(|steps| *steps == Value::Ints(vec![1]));
            steps && matches!(value("axes"), Some(Value::Ints(axes)) if matches!(axes[..], [-1 | 1]))
        }
        _ => matches!(value("axis"), None | Some(Value::Int(-1 | 1))),
    };
    if fits { Ok(()) } else { Err("its axis must be that of the features (-1): rows of a batch must stay independent".into()) }
}

struct Call<'a> {
    inputs: &'a [&'a Typed],
}

impl Call<'_> {
    fn datatypes(&self, kind: &str, operator: &Operator) -> Result<Vec<Datatype>, String> {
        use Datatype::{Bool, Fp32, Int64};
        Ok(vec![match kind {
            "Constant" => {
                self.arity(0, 0)?;
                let integer = operator.attributes.iter().any(|attribute| attribute.name == "value_int");
                if integer { Int64 } else { Fp32 }
            }
            "Identity" | "Reshape" => {
                self.arity(1, 1)?;
                self.inputs[0].datatype
            }
            "Add" | "Sub" | "Mul" => self.binary(SIGNED)?,
            "Div" | "Pow" => self.binary(FLOAT)?,
            "And" | "Or" => self.binary(TRUTH)?,
            "Equal" => self.binary(ANY).map(|_| Bool)?,
            "Greater" | "Less" => self.binary(NUMBER).map(|_| Bool)?,
            "Where" => {
                self.arity(3, 3)?;
                of(self.inputs[0].datatype, TRUTH)?;
                self.broadcast()?;
                Call { inputs: &self.inputs[1..] }.all_of(ANY)?
            }
            "Neg" => self.row(SIGNED)?,
            "Not" => self.row(TRUTH)?,
            "Cast" => self.row(ANY).and_then(|_| cast_to(operator))?,
            "Gather" => {
                self.arity(2, 2)?;
                self.constant(0)?;
                self.batched(1, &[Datatype::Int32, Int64])?;
                self.inputs[0].datatype
            }
            "Gemm" | "MatMul" => {
                self.arity(2, if kind == "Gemm" { 3 } else { 2 })?;
                self.batched(0, FLOAT)?;
                self.constant(1)?;
                self.all_of(FLOAT)?
            }
            "LayerNormalization" | "RMSNormalization" => {
                self.arity(2, if kind == "LayerNormalization" { 3 } else { 2 })?;
                self.batched(0, FLOAT)?;
                (1..self.inputs.len()).try_for_each(|input| self.constant(input))?;
                self.all_of(FLOAT)?
            }
            "Concat" => self.all_of(ANY)?,
            "Split" => {
                let datatype = self.row(ANY)?;
                return Ok(vec![datatype; operator.outputs.len()]);
            }
            "Slice" => self.row(ANY)?,
            "ArgMax" => self.row(FLOAT).map(|_| Int64)?,
            "TopK" => return self.row(FLOAT).map(|datatype| vec![datatype, Int64]),
            _ => self.row(FLOAT)?,
        }])
    }

    fn arity(&self, least: usize, most: usize) -> Result<(), String> {
        let given = self.inputs.len();
        if (least..=most).contains(&given) { Ok(()) } else { Err(format!("it takes {least} to {most} inputs, not {given}")) }
    }

    /// The only input, with a row for each node.
    fn row(&self, datatypes: &[Datatype]) -> Result<Datatype, String> {
        self.arity(1, 1)?;
        self.batched(0, datatypes)
    }

    /// An input with a row for each node, of one of those datatypes.
    fn batched(&self, input: usize, datatypes: &[Datatype]) -> Result<Datatype, String> {
        let value = self.inputs[input];
        if !value.batched {
            return Err("its data input is a constant, which has no row for each node".into());
        }
        of(value.datatype, datatypes)
    }

    fn constant(&self, input: usize) -> Result<(), String> {
        let sentence = || format!("input {input} must be a constant: a weight of the bundle or an output of Constant");
        if self.inputs[input].batched { Err(sentence()) } else { Ok(()) }
    }

    /// One datatype, the same for all inputs.
    fn all_of(&self, datatypes: &[Datatype]) -> Result<Datatype, String> {
        let first = of(self.inputs[0].datatype, datatypes)?;
        match self.inputs.iter().find(|input| input.datatype != first) {
            None => Ok(first),
            Some(other) => {
                let (left, right) = (first.name(), other.datatype.name());
                Err(format!("its inputs are {left} and {right}, but must be of one datatype (Cast converts)"))
            }
        }
    }

    fn binary(&self, datatypes: &[Datatype]) -> Result<Datatype, String> {
        self.arity(2, 2)?;
        self.broadcast()?;
        self.all_of(datatypes)
    }

    /// Broadcasting, kept off the batch.
    fn broadcast(&self) -> Result<(), String> {
        let ranks: Vec<usize> = self.inputs.iter().filter(|input| input.batched).map(|input| input.array.shape.len()).collect();
        if ranks.windows(2).any(|ranks| ranks[0] != ranks[1]) {
            return Err(
                "its inputs have different ranks, so that the batch of one would meet an axis of another (Reshape gives them one)".into()
            );
        }
        let along_the_batch = |input: &&&Typed| !input.batched && input.array.shape.len() > ranks[0] && input.array.shape != [1];
        match self.inputs.iter().find(along_the_batch) {
            None => Ok(()),
            Some(input) => Err(format!(
                "a constant of shape {:?} would be laid along the batch, because the rows have {} dimensions (Reshape gives them more)",
                input.array.shape, ranks[0]
            )),
        }
    }
}

fn cast_to(operator: &Operator) -> Result<Datatype, String> {
    let to = operator.attributes.iter().find(|attribute| attribute.name == "to").map(|attribute| &attribute.value);
    let Some(Value::Text(to)) = to else { return Err("it needs `to`, a datatype's name".into()) };
    let found = ANY.iter().copied().find(|datatype| datatype.name() == to);
    found.ok_or_else(|| format!("it cannot cast to `{to}`: a datatype is BOOL, UINT8, INT32, INT64 or FP32"))
}

fn of(datatype: Datatype, datatypes: &[Datatype]) -> Result<Datatype, String> {
    if datatypes.contains(&datatype) {
        return Ok(datatype);
    }
    let wanted: Vec<&str> = datatypes.iter().map(|datatype| datatype.name()).collect();
    Err(format!("an input is {}, but must be {}", datatype.name(), wanted.join(" or ")))
}

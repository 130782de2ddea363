//! Whether what a client sent is what the model takes.

use std::sync::Arc;

use cellwright_cell_graph::{Tensor, TensorSpec};

use crate::error::InferError;

/// The model's inputs in the order of its description, without optional ones that were not given.
///
/// # Errors
/// One sentence that names the first tensor that is missing, unknown, given twice, or of another datatype or shape.
pub(crate) fn arrange(specs: &[TensorSpec], optional: &[String], given: Vec<Tensor>) -> Result<Vec<Arc<Tensor>>, InferError> {
    let invalid = |text: String| Err(InferError::Invalid(text));
    let mut arranged: Vec<Option<Arc<Tensor>>> = vec![None; specs.len()];
    for tensor in given {
        let Some(position) = specs.iter().position(|spec| spec.name == tensor.name) else {
            return invalid(format!("the model has no input `{}`: it takes {}", tensor.name, names(specs)));
        };
        let spec = &specs[position];
        if tensor.datatype != spec.datatype {
            return invalid(format!("input `{}` is {}, the model takes {}", tensor.name, tensor.datatype, spec.datatype));
        }
        if !fits(&spec.shape, &tensor.shape) {
            return invalid(format!("input `{}` has shape {:?}, the model takes {}", tensor.name, tensor.shape, shape(&spec.shape)));
        }
        if !tensor.is_consistent() {
            return invalid(format!("input `{}` does not hold as much data as its shape {:?} says", tensor.name, tensor.shape));
        }
        if arranged[position].replace(Arc::new(tensor)).is_some() {
            return invalid(format!("input `{}` is given twice", spec.name));
        }
    }
    let missing = arranged.iter().zip(specs).position(|(tensor, spec)| tensor.is_none() && !optional.contains(&spec.name));
    match missing {
        Some(position) => invalid(format!("input `{}` is missing: the model takes {}", specs[position].name, names(specs))),
        None => Ok(arranged.into_iter().flatten().collect()),
    }
}

/// Whether a shape is one that the specification (−1: any extent) allows.
pub(crate) fn fits(spec: &[i64], shape: &[usize]) -> bool {
    let extent_fits = |(allowed, extent): (&i64, &usize)| *allowed == -1 || i64::try_from(*extent) == Ok(*allowed);
    spec.len() == shape.len() && spec.iter().zip(shape).all(extent_fits)
}

fn names(specs: &[TensorSpec]) -> String {
    specs.iter().map(|spec| format!("`{}`", spec.name)).collect::<Vec<_>>().join(", ")
}

fn shape(spec: &[i64]) -> String {
    let extents: Vec<String> = spec.iter().map(|extent| if *extent == -1 { "any".to_owned() } else { extent.to_string() }).collect();
    format!("[{}]", extents.join(", "))
}

#[cfg(test)]
mod tests {
    use cellwright_cell_graph::Datatype;

    use super::*;

    fn specs() -> Vec<TensorSpec> {
        vec![
            TensorSpec { name: "x".to_owned(), datatype: Datatype::Fp32, shape: vec![-1, 2] },
            TensorSpec { name: "k".to_owned(), datatype: Datatype::Int64, shape: vec![1] },
        ]
    }

    fn sentence(given: Vec<Tensor>) -> String {
        arrange(&specs(), &[], given).expect_err("it should be refused").to_string()
    }

    fn x() -> Tensor {
        Tensor::from_f32("x", &[3, 2], &[0.0; 6])
    }

    fn k() -> Tensor {
        Tensor::from_i64("k", &[1], &[1])
    }

    #[test]
    fn inputs_come_in_the_order_of_the_description() {
        let arranged = arrange(&specs(), &[], vec![k(), x()]).unwrap();
        assert_eq!(arranged.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(), ["x", "k"]);
    }

    #[test]
    fn optional_inputs_may_be_left_out() {
        let given = |optional: &str| arrange(&specs(), &[optional.to_owned()], vec![k()]).map(|given| given.len());
        assert_eq!(given("x").unwrap(), 1);
        assert_eq!(given("k").unwrap_err().to_string(), "input `x` is missing: the model takes `x`, `k`");
    }

    #[test]
    fn each_fault_has_its_sentence() {
        assert_eq!(sentence(vec![x()]), "input `k` is missing: the model takes `x`, `k`");
        assert_eq!(sentence(vec![x(), x(), k()]), "input `x` is given twice");
        assert_eq!(sentence(vec![Tensor::from_i64("z", &[1], &[1])]), "the model has no input `z`: it takes `x`, `k`");
        assert_eq!(sentence(vec![Tensor::from_i64("x", &[3, 2], &[0; 6]), k()]), "input `x` is INT64, the model takes FP32");
        assert_eq!(sentence(vec![Tensor::from_f32("x", &[3], &[0.0; 3]), k()]), "input `x` has shape [3], the model takes [any, 2]");
        let short = Tensor::from_f32("x", &[3, 2], &[0.0; 5]);
        assert_eq!(sentence(vec![short, k()]), "input `x` does not hold as much data as its shape [3, 2] says");
    }
}

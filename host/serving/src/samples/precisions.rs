//! What each precision makes of a bundle's samples: how far answers move from those in 32-bit floats, and how many stay right.

use std::sync::Arc;
use std::time::Instant;

use cellwright_bundle::{Bundle, Sample};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::{Datatype, Tensor};
use cellwright_protocol::InferResponse;

use super::compare::{self, doubles, singles};
use super::{AT_ONCE, Runner, SampleBounds};
use crate::error::{InferError, LoadError};
use crate::model::ServedModel;
use crate::serving::Serving;

/// A precision, and what came of it.
#[derive(Clone, Debug)]
pub struct PrecisionReport {
    /// Which.
    pub precision: Precision,
    /// What came of it; or why it cannot be, in a sentence.
    pub found: Result<PrecisionFigures, String>,
}

/// What answers are like at a precision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrecisionFigures {
    /// Samples with an answer, here and in 32-bit floats.
    pub answered: usize,
    /// The largest difference of floats a here and b in 32-bit floats, as |a − b| / (1 + |b|): what a tolerance is held against. None: no answer has
    /// floats. Infinite: where one of the two is not finite, the other is something else.
    pub error: Option<f64>,
    /// Answered samples whose other outputs (and the shapes of all) are as in 32-bit floats.
    pub same: usize,
    /// Samples whose expected answer has outputs that are no floats: their labels.
    pub labelled: usize,
    /// How many of these have just those labels.
    pub right: usize,
}

/// Runs the samples at every precision, on a model of its own for each, one after the other, and lays the answers beside those in 32-bit floats.
/// A precision at which the bundle cannot be loaded says why; if that is the one of 32-bit floats, nothing is compared.
#[must_use]
pub fn precisions(serving: &Serving, bundle: &Bundle, tenant: &str, bounds: &SampleBounds) -> Vec<PrecisionReport> {
    let samples = &bundle.samples().all;
    let answers_at = |precision| -> Result<Answers, LoadError> {
        let model = serving.load(&bundle.clone().with_precision(precision), tenant)?;
        let answers = answers(serving, &model, samples, bounds);
        serving.unload(&model);
        Ok(answers.into_iter().map(Result::ok).collect())
    };
    let all = Precision::ALL.map(|precision| (precision, answers_at(precision)));
    let exact = all.iter().find(|(precision, _)| *precision == Precision::F32).and_then(|(_, answers)| answers.as_ref().ok());
    let nothing: Answers = vec![None; samples.len()];
    let exact = exact.unwrap_or(&nothing);
    let found = |answers: &Result<Answers, LoadError>| match answers {
        Ok(answers) => Ok(figures(samples, answers, exact)),
        Err(error) => Err(error.to_string()),
    };
    all.iter().map(|(precision, answers)| PrecisionReport { precision: *precision, found: found(answers) }).collect()
}

/// Of each sample, if it has one.
type Answers = Vec<Option<InferResponse>>;

fn answers(
    serving: &Serving,
    model: &Arc<ServedModel>,
    samples: &[Sample],
    bounds: &SampleBounds,
) -> Vec<Result<InferResponse, InferError>> {
    let until = Instant::now() + bounds.time_max;
    let mut runner = Runner { serving, model, until, abandoned: &bounds.abandoned, stays_busy: false };
    samples.chunks(AT_ONCE).flat_map(|group| runner.answers(group)).collect()
}

fn figures(samples: &[Sample], answers: &[Option<InferResponse>], exact: &[Option<InferResponse>]) -> PrecisionFigures {
    let mut figures = PrecisionFigures::default();
    for ((sample, answer), exact) in samples.iter().zip(answers).zip(exact) {
        let labels: Vec<Tensor> = sample.expected.iter().flatten().filter(|tensor| !is_float(tensor)).cloned().collect();
        figures.labelled += usize::from(!labels.is_empty());
        let Some(answer) = answer else { continue };
        figures.right += usize::from(!labels.is_empty() && compare::outputs(&labels, &answer.outputs, 0.0).is_ok());
        let Some(exact) = exact else { continue };
        figures.answered += 1;
        // Floats agree at any distance here; how far they are is the error.
        figures.same += usize::from(compare::outputs(&exact.outputs, &answer.outputs, f64::INFINITY).is_ok());
        for (a, b) in answer.outputs.iter().zip(&exact.outputs).filter(|(a, b)| is_float(b) && a.shape == b.shape) {
            figures.error = difference(a, b).into_iter().chain(figures.error).reduce(f64::max);
        }
    }
    figures
}

fn is_float(tensor: &Tensor) -> bool {
    matches!(tensor.datatype, Datatype::Fp32 | Datatype::Fp64)
}

/// The largest difference of two tensors' floats; none if they have none.
fn difference(a: &Tensor, b: &Tensor) -> Option<f64> {
    let values = |tensor: &Tensor| if tensor.datatype == Datatype::Fp32 { singles(tensor) } else { doubles(tensor) };
    values(a).into_iter().zip(values(b)).map(|(a, b)| compare::distance(&a, &b)).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use cellwright_protocol::InferRequest;

    use super::*;

    fn answer(y: [f32; 2], label: i64) -> InferResponse {
        let text = format!(
            r#"{{"model_name":"m","outputs":[{{"name":"y","shape":[2],"datatype":"FP32","data":[{},{}]}},{{"name":"label","shape":[1],"datatype":"INT64","data":[{label}]}}]}}"#,
            y[0], y[1]
        );
        InferResponse::from_json(text.as_bytes()).unwrap()
    }

    fn sample(label: Option<i64>) -> Sample {
        let request = InferRequest::from_json(br#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}"#).unwrap();
        Sample { request, expected: label.map(|label| answer([0.0, 0.0], label).outputs) }
    }

    #[test]
    fn errors_labels_and_answers_are_counted() {
        let samples = [sample(Some(3)), sample(Some(4)), sample(None), sample(Some(5))];
        let exact = [Some(answer([1.0, -3.0], 3)), Some(answer([0.0, 0.0], 3)), Some(answer([2.0, 2.0], 1)), Some(answer([0.0, 0.0], 5))];
        let found = [Some(answer([1.5, -3.0], 3)), Some(answer([0.0, 0.0], 4)), Some(answer([2.0, 5.0], 1)), None];
        let figures = figures(&samples, &found, &exact);
        // The third's: |5 − 2| / (1 + 2). A label that is right may differ from the one in 32-bit floats.
        assert_eq!(figures, PrecisionFigures { answered: 3, error: Some(1.0), same: 2, labelled: 3, right: 2 });
    }

    #[test]
    fn labels_are_right_whatever_there_is_in_f32() {
        let figures =
            figures(&[sample(Some(3)), sample(Some(4))], &[Some(answer([1.0, 1.0], 3)), Some(answer([1.0, 1.0], 3))], &[None, None]);
        assert_eq!(figures, PrecisionFigures { answered: 0, error: None, same: 0, labelled: 2, right: 1 });
    }

    #[test]
    fn what_is_not_finite_is_far_from_everything_else() {
        let of = |a: f32, b: f32| difference(&Tensor::from_f32("y", &[1], &[a]), &Tensor::from_f32("y", &[1], &[b]));
        assert_eq!([of(f32::NAN, f32::NAN), of(f32::INFINITY, f32::INFINITY), of(0.0, -0.0)], [Some(0.0); 3]);
        assert_eq!([of(f32::NAN, 1.0), of(1.0, f32::INFINITY), of(f32::NEG_INFINITY, f32::INFINITY)], [Some(f64::INFINITY); 3]);
    }
}

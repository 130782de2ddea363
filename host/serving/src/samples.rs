//! Runs a bundle's samples on the model made of it: the test that every version passes before it serves.

mod compare;
mod determinism;
mod precisions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_bundle::{Bundle, Sample};
use cellwright_cell_graph::Tensor;
use cellwright_engine::RequestFailure;
use cellwright_plugin_runtime::RequestView;
use cellwright_protocol::{InferRequest, InferResponse, RowsFault, split_rows};

use crate::abandoned::Abandoned;
use crate::answer::{Answer, Delivery};
use crate::error::{ErrorKind, InferError, Lateness};
use crate::model::ServedModel;
use crate::serving::Serving;

pub use precisions::{PrecisionFigures, PrecisionReport, precisions};

/// Time that all samples of a bundle may take together.
pub const TIME_MAX: Duration = Duration::from_secs(600);
/// Samples in flight at once.
const AT_ONCE: usize = 64;
/// How often a sample that met a busy host is tried again by itself, and after how long each time.
const AGAIN_MAX: usize = 10;
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Characters of a sample's name. An id may have thousands, and there may be thousands of samples.
const NAME_CHARACTERS_MAX: usize = 128;

/// What became of a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleReport {
    /// Its id, cut short if it is long, or its position.
    pub name: String,
    /// Whether its answer was compared with one that the bundle has for it.
    pub compared: bool,
    /// What is wrong with its answer; none: nothing.
    pub fault: Option<String>,
    /// Of which kind the error is that it ended in, if it has no answer.
    pub error: Option<ErrorKind>,
    /// How far its answer is from the expected one, |a − b| / (1 + |b|) of the worst element, if it is too far. Infinite for what has no distance.
    pub distance: Option<f64>,
}

impl SampleReport {
    /// Whether it failed because of what the host has to do beside: that says nothing about its bundle.
    #[must_use]
    pub const fn is_of_the_moment(&self) -> bool {
        matches!(self.error, Some(ErrorKind::Busy | ErrorKind::Unavailable | ErrorKind::Draining))
    }
}

/// What is wrong with a sample, as [`SampleReport`] has it.
#[derive(Debug)]
struct Fault {
    sentence: String,
    error: Option<ErrorKind>,
    distance: Option<f64>,
}

impl Fault {
    /// One that is no error of a request.
    fn of(problem: impl ToString) -> Self {
        Self { sentence: problem.to_string(), error: None, distance: None }
    }
}

/// How long samples may run.
#[derive(Clone, Debug)]
pub struct SampleBounds {
    /// All of them together.
    pub time_max: Duration,
    /// Whether whoever brought them still waits.
    pub abandoned: Abandoned,
}

impl Default for SampleBounds {
    fn default() -> Self {
        Self { time_max: TIME_MAX, abandoned: Abandoned::default() }
    }
}

/// Runs all samples, in flight together as requests would be, and compares the graphs that used and fresh instances make of them.
/// Those that have not ended in time have failed, and go on no more than those that nobody waits for.
#[must_use]
pub fn run(serving: &Serving, model: &Arc<ServedModel>, bundle: &Bundle, bounds: &SampleBounds) -> Vec<SampleReport> {
    let until = Instant::now() + bounds.time_max.min(TIME_MAX);
    let mut runner = Runner { serving, model, until, abandoned: &bounds.abandoned, stays_busy: false };
    let samples = &bundle.samples().all;
    let mut reports = Vec::with_capacity(samples.len());
    // As many at once as a host holds, whatever rows each may have.
    for group in samples.chunks(AT_ONCE) {
        let answers = runner.answers(group);
        for (sample, answer) in group.iter().zip(answers) {
            let fault = match (answer, runner.over()) {
                (Err(InferError::Late(_)), _) | (Ok(_), Some(InferError::Late(_))) => Some(Fault::of(late(bounds.time_max.min(TIME_MAX)))),
                (Ok(_), Some(error)) => Some(Fault { error: Some(error.kind()), ..Fault::of(error) }),
                (answer, _) => judge(sample.expected.as_deref(), answer, bundle.samples().tolerance)
                    .err()
                    .or_else(|| determinism::check(model, &sample.request).err()),
            };
            let position = reports.len();
            let name = sample.request.id.as_deref().map_or_else(|| format!("sample {}", position + 1), shortened);
            let (error, distance) = fault.as_ref().map_or((None, None), |fault| (fault.error, fault.distance));
            let compared = sample.expected.is_some() && error.is_none();
            reports.push(SampleReport { name, compared, fault: fault.map(|fault| fault.sentence), error, distance });
        }
    }
    reports
}

/// Has samples answered, as requests would be.
struct Runner<'a> {
    serving: &'a Serving,
    model: &'a Arc<ServedModel>,
    until: Instant,
    abandoned: &'a Abandoned,
    /// The host was busy for longer than this waits.
    stays_busy: bool,
}

impl Runner<'_> {
    /// Why nothing more is begun.
    fn over(&self) -> Option<InferError> {
        if self.abandoned.is_so() {
            return Some(InferError::Engine(RequestFailure::Cancelled));
        }
        (Instant::now() >= self.until).then(|| InferError::Late(Lateness::default()))
    }

    /// The answers to samples that are in flight together; those that met a busy host are tried again by themselves.
    fn answers(&mut self, group: &[Sample]) -> Vec<Result<InferResponse, InferError>> {
        let begin = |sample: &Sample| match self.over() {
            Some(error) => Err(error),
            None => self.serving.infer(self.model, sample.request.clone(), Delivery::Whole),
        };
        let end = |reply: Result<Answer, InferError>| reply.and_then(|reply| reply.wait_until(self.until, self.abandoned));
        let replies: Vec<_> = group.iter().map(begin).collect();
        let mut answers: Vec<_> = replies.into_iter().map(end).collect();
        let is_busy = |answer: &Result<_, InferError>| answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy);
        let mut stays_busy = self.stays_busy;
        for (sample, answer) in group.iter().zip(&mut answers) {
            // Perhaps there was too little room for all of them at once, or the answer before still has some.
            let mut tries = if stays_busy { 0 } else { AGAIN_MAX };
            while tries > 0 && is_busy(answer) {
                std::thread::sleep(AGAIN_AFTER);
                *answer = end(begin(sample));
                tries -= 1;
            }
            stays_busy |= is_busy(answer);
        }
        self.stays_busy = stays_busy;
        answers
    }
}

/// What a plugin sees of a request that its model accepts: the inputs in the order of the description.
#[must_use]
pub fn view(model: &ServedModel, request: InferRequest) -> RequestView {
    let mut inputs = request.inputs;
    inputs.sort_by_key(|input| model.description().inputs.iter().position(|spec| spec.name == input.name));
    RequestView::new(inputs.into_iter().map(Arc::new), request.parameters)
}

/// The same of the first of its rows, where rows are requests by themselves.
///
/// # Errors
/// Its rows cannot be taken apart.
pub fn view_of_first(model: &ServedModel, request: &InferRequest) -> Result<RequestView, RowsFault> {
    let first =
        if model.description().rows_are_requests { split_rows(request, model.limits().rows_max)?.swap_remove(0) } else { request.clone() };
    Ok(view(model, first))
}

fn shortened(id: &str) -> String {
    if id.chars().nth(NAME_CHARACTERS_MAX).is_none() {
        return id.to_owned();
    }
    id.chars().take(NAME_CHARACTERS_MAX - 1).chain(['…']).collect()
}

fn late(time_max: Duration) -> String {
    format!("the samples took more than {} ms together: use fewer or shorter ones", time_max.as_millis())
}

fn judge(expected: Option<&[Tensor]>, answer: Result<InferResponse, InferError>, tolerance: f64) -> Result<(), Fault> {
    let answer = answer.map_err(|error| Fault { error: Some(error.kind()), ..Fault::of(format!("it failed: {error}")) })?;
    let Some(expected) = expected else { return Ok(()) };
    compare::outputs(expected, &answer.outputs, tolerance)
        .map_err(|difference| Fault { distance: Some(difference.distance()), ..Fault::of(difference) })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn long_ids_are_cut() {
        let long = "é".repeat(128);
        assert_eq!([shortened(""), shortened("one"), shortened(&long)], ["", "one", &long]);
        assert_eq!(shortened(&format!("{long}x")), format!("{}…", "é".repeat(127)));
    }
}

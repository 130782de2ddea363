//! Sample requests, and what their answers must be: how the host learns shapes, warms up, and tests a version before it serves.

use cellwright_cell_graph::Tensor;
use cellwright_cell_graph::typed::Precision;
use cellwright_protocol::{InferRequest, InferResponse};

use crate::error::{BundleError, SampleFault};
use crate::folder::Folder;
use crate::manifest::SampleSettings;

pub(crate) const BYTES_MAX: u64 = 64 << 20;
const SAMPLES_MAX: usize = 10_000;

/// A bundle's samples.
#[derive(Clone, Debug)]
pub struct Samples {
    /// At least one.
    pub all: Vec<Sample>,
    /// Floats of an answer may differ from the expected ones by `tolerance · (1 + |expected|)`; everything else is equal.
    pub tolerance: f64,
}

/// A request and, if the bundle has it, its answer.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The request.
    pub request: InferRequest,
    /// Its outputs; those not named here may be anything.
    pub expected: Option<Vec<Tensor>>,
}

impl Samples {
    pub(crate) fn read(folder: &Folder, settings: &SampleSettings, precision: Precision) -> Result<Self, BundleError> {
        let mut all = Vec::new();
        read_lines(folder, &settings.requests, |_, line| {
            let request = InferRequest::from_json(line).map_err(|bad| SampleFault::Message(Box::new(bad.fault)))?;
            all.push(Sample { request, expected: None });
            Ok(())
        })?;
        if all.is_empty() {
            return Err(BundleError::NoSamples { file: settings.requests.clone() });
        }
        if let Some(expected) = &settings.expected {
            read_expected(folder, expected, settings, &mut all)?;
        }
        let tolerance = settings.tolerance.unwrap_or(precision.tolerance());
        Ok(Self { all, tolerance })
    }
}

fn read_expected(folder: &Folder, file: &str, settings: &SampleSettings, all: &mut [Sample]) -> Result<(), BundleError> {
    let mut found = 0;
    read_lines(folder, file, |position, line| {
        found = position + 1;
        let Some(sample) = all.get_mut(position) else { return Ok(()) };
        let answer = InferResponse::from_json(line).map_err(|bad| SampleFault::Message(Box::new(bad.fault)))?;
        match (&answer.id, &sample.request.id) {
            (Some(found), Some(wanted)) if found != wanted => {
                return Err(SampleFault::Id { found: found.clone(), wanted: wanted.clone() });
            }
            _ => sample.expected = Some(answer.outputs),
        }
        Ok(())
    })?;
    if found != all.len() {
        let (expected, requests) = (file.to_owned(), settings.requests.clone());
        return Err(BundleError::SampleCounts { expected, found, requests, wanted: all.len() });
    }
    Ok(())
}

/// Calls with each line that is not blank and its position among them.
fn read_lines(folder: &Folder, file: &str, mut each: impl FnMut(usize, &[u8]) -> Result<(), SampleFault>) -> Result<(), BundleError> {
    let text = folder.read_text(file, BYTES_MAX).map_err(|fault| BundleError::File { file: file.to_owned(), fault })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (position, (number, line)) in lines.enumerate() {
        let at_line = |fault| BundleError::Sample { file: file.to_owned(), line: number + 1, fault };
        if position >= SAMPLES_MAX {
            return Err(at_line(SampleFault::TooMany(SAMPLES_MAX)));
        }
        each(position, line.as_bytes()).map_err(at_line)?;
    }
    Ok(())
}

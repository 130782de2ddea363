//! `--worker`: devices by name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context;
use cellwright_backend::Backend;
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};

/// Threads of a worker of which nothing is said, at most: beyond, memory is the bound.
const DEFAULT_THREADS_MAX: usize = 8;
const THREADS_MAX: usize = 256;

/// A worker as it is written on the command line: `cpu`, `cpu:threads=2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerSpec {
    /// None: as many as fit.
    threads: Option<usize>,
}

impl fmt::Display for WorkerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.threads {
            None => f.write_str("cpu"),
            Some(threads) => write!(f, "cpu:threads={threads}"),
        }
    }
}

impl FromStr for WorkerSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, settings) = text.split_once(':').unwrap_or((text, ""));
        if device != "cpu" {
            return Err(format!("there is no device `{device}`; the devices are `cpu` and `cpu:threads=N`"));
        }
        let mut threads = None;
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            match setting.split_once('=') {
                Some(("threads", number)) => match number.parse() {
                    Ok(number @ 1..=THREADS_MAX) => threads = Some(number),
                    _ => return Err(format!("`{number}` is no number of threads from 1 to {THREADS_MAX}")),
                },
                _ => return Err(format!("a cpu worker has no setting `{setting}`; write `cpu:threads=N`")),
            }
        }
        Ok(Self { threads })
    }
}

/// The devices of these workers, all in one memory domain. Without any: one worker with a thread for each core. Several of which nothing is
/// said share the cores evenly.
pub(crate) fn backends(specs: &[WorkerSpec]) -> anyhow::Result<Vec<Box<dyn Backend>>> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let specs = if specs.is_empty() { &[WorkerSpec { threads: None }] } else { specs };
    let share = (cores / specs.len()).clamp(1, DEFAULT_THREADS_MAX);
    let domain = CpuDomain::new(DomainOptions::default()).context("the CPU workers' memory")?;
    let worker = |spec: &WorkerSpec| -> anyhow::Result<Box<dyn Backend>> {
        let options = CpuOptions { threads: spec.threads.unwrap_or(share), ..CpuOptions::default() };
        Ok(Box::new(CpuWorker::new(Arc::clone(&domain), options).context("a CPU worker")?))
    };
    specs.iter().map(worker).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_read_as_they_are_written() {
        assert_eq!("cpu".parse(), Ok(WorkerSpec { threads: None }));
        assert_eq!("cpu:threads=2".parse(), Ok(WorkerSpec { threads: Some(2) }));
        assert_eq!(WorkerSpec { threads: Some(2) }.to_string(), "cpu:threads=2");
        let refused = |text: &str| text.parse::<WorkerSpec>().unwrap_err();
        assert!(refused("cuda").contains("no device `cuda`"));
        assert!(refused("cpu:threads=0").contains("`0` is no number of threads"));
        assert!(refused("cpu:cores=2").contains("no setting `cores=2`"));
    }
}

//! `--worker cuda:0`: workers on GPUs, where the program was built with them.

use std::fmt;
use std::str::FromStr;

use cellwright_backend::Backend;

/// How such a worker is written.
const FORM: &str = "cuda:N";

/// What may stand behind it.
pub(super) const WHOLE_FORM: &str = "cuda:N,tf32=true,debug=true";

/// Which GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gpus {
    /// Each that this process may use.
    All,
    /// One, by its number.
    Device(u32),
}

/// Workers on GPUs: what may stand behind `cuda:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaSpec {
    gpus: Gpus,
    settings: Settings,
}

/// How they work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Settings {
    /// Whether products of models in 32-bit floats are in tf32.
    tf32: bool,
    /// Whether to check after every task that nothing was written outside its memory.
    debug: bool,
}

impl fmt::Display for CudaSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gpus {
            Gpus::All => f.write_str("all")?,
            Gpus::Device(number) => write!(f, "{number}")?,
        }
        for (is_set, name) in [(self.settings.tf32, "tf32"), (self.settings.debug, "debug")] {
            if is_set {
                write!(f, ",{name}=true")?;
            }
        }
        Ok(())
    }
}

impl FromStr for CudaSpec {
    type Err = String;

    /// Of what stands behind `cuda:`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (device, settings) = text.split_once(',').unwrap_or((text, ""));
        let gpus = match (device, device.parse()) {
            ("all", _) => Gpus::All,
            (_, Ok(number)) => Gpus::Device(number),
            _ => return Err(format!("`{device}` is not a GPU; write `cuda:all`, or `{FORM}` with a number from 0 up")),
        };
        let mut spec = Self { gpus, settings: Settings::default() };
        for setting in super::settings(settings)? {
            let (name, whether) = setting.split_once('=').unwrap_or((setting, ""));
            let set = match name {
                "tf32" => &mut spec.settings.tf32,
                "debug" => &mut spec.settings.debug,
                _ => return Err(format!("a GPU worker has no setting `{setting}`; write `{WHOLE_FORM}`")),
            };
            *set = whether.parse().map_err(|_| format!("`{whether}` is neither `true` nor `false`"))?;
        }
        Ok(spec)
    }
}

#[cfg(not(feature = "cuda"))]
mod device {
    use super::{Backend, CudaSpec};

    const WITHOUT: &str = "this program was built without the feature `cuda`";

    pub(in crate::worker) fn backends(_: &[CudaSpec]) -> anyhow::Result<Vec<Box<dyn Backend>>> {
        anyhow::bail!(WITHOUT)
    }

    pub(in crate::worker) fn found() -> Result<Vec<Box<dyn Backend>>, String> {
        Err(WITHOUT.to_owned())
    }
}

#[cfg(feature = "cuda")]
mod device {
    use anyhow::{Context, bail};
    use cellwright_backend_cuda::driver::Facts;
    use cellwright_backend_cuda::driver::cuda::{CudaDriver, IMAGES, devices};
    use cellwright_backend_cuda::{CudaOptions, CudaWorker};

    use super::{Backend, CudaSpec, Gpus, Settings};
    use crate::process::Usage;

    /// The GPUs of these workers, each once.
    pub(in crate::worker) fn backends(specs: &[CudaSpec]) -> anyhow::Result<Vec<Box<dyn Backend>>> {
        let named = |specs: &[CudaSpec]| specs.iter().map(|spec| format!("cuda:{spec}")).collect::<Vec<_>>().join(", ");
        let found = devices().with_context(|| format!("cannot start worker `{}`", named(specs)))?;
        chosen(specs, &found)?.into_iter().map(|(facts, settings)| worker(facts, settings)).collect()
    }

    /// The GPUs that the specs name, in their order, each with its settings.
    fn chosen(specs: &[CudaSpec], found: &[Facts]) -> anyhow::Result<Vec<(Facts, Settings)>> {
        let mut chosen: Vec<(Facts, Settings)> = Vec::new();
        for spec in specs {
            let meant: Vec<&Facts> = match spec.gpus {
                Gpus::All => found.iter().collect(),
                Gpus::Device(number) => found.iter().filter(|facts| facts.ordinal == number).collect(),
            };
            if meant.is_empty() {
                let known: Vec<String> = found.iter().map(|facts| format!("cuda:{} ({})", facts.ordinal, facts.name)).collect();
                bail!("there is no GPU `cuda:{spec}`; there are: {}", known.join(", "));
            }
            if let Some(twice) = meant.iter().find(|facts| chosen.iter().any(|(other, _)| other.ordinal == facts.ordinal)) {
                return Err(Usage(format!("`cuda:{}` is given twice; a GPU has one worker", twice.ordinal)).into());
            }
            chosen.extend(meant.into_iter().map(|facts| (facts.clone(), spec.settings)));
        }
        Ok(chosen)
    }

    fn worker(facts: Facts, Settings { tf32, debug }: Settings) -> anyhow::Result<Box<dyn Backend>> {
        let ordinal = facts.ordinal;
        let driver = CudaDriver::open(facts, IMAGES).map(Box::new);
        let worker = driver.and_then(|driver| CudaWorker::new(driver, CudaOptions { tf32, debug, ..CudaOptions::default() }));
        Ok(Box::new(worker.with_context(|| format!("cannot start worker `cuda:{ordinal}`"))?))
    }

    /// A worker for each GPU of the newest architecture that there is, because all workers of a host give the same bits; or why there is none.
    pub(in crate::worker) fn found() -> Result<Vec<Box<dyn Backend>>, String> {
        let found = devices().map_err(|absent| absent.to_string())?;
        let newest = found.iter().map(|facts| facts.capability).max();
        let mut workers = Vec::new();
        for facts in found {
            let (name, capability) = (format!("cuda:{} ({})", facts.ordinal, facts.name), facts.capability);
            if Some(capability) != newest {
                tracing::warn!("{name} is not used: its architecture differs from the newest GPU's; `--worker cuda:N` uses it instead");
                continue;
            }
            match worker(facts, Settings::default()) {
                Ok(worker) => workers.push(worker),
                Err(error) => tracing::warn!("{name} is not used: {error:#}"),
            }
        }
        if workers.is_empty() { Err("none of the GPUs can be used".to_owned()) } else { Ok(workers) }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn gpu(ordinal: u32) -> Facts {
            Facts {
                name: "GPU".to_owned(),
                ordinal,
                capability: (9, 0),
                memory_bytes: 0,
                multiprocessors: 1,
                shared_bytes_max: 0,
                uuid: String::new(),
                driver_version: 13_000,
            }
        }

        #[test]
        fn gpus_are_chosen_once_each_and_in_order() {
            let found = [gpu(0), gpu(1), gpu(2)];
            let numbers = |specs: &[CudaSpec]| -> Result<Vec<u32>, String> {
                let chosen = chosen(specs, &found).map_err(|error| error.to_string())?;
                assert!(chosen.iter().all(|(facts, settings)| settings.tf32 == (facts.ordinal == 2) && !settings.debug));
                Ok(chosen.iter().map(|(facts, _)| facts.ordinal).collect())
            };
            let all = CudaSpec { gpus: Gpus::All, settings: Settings::default() };
            let device = |number| CudaSpec { gpus: Gpus::Device(number), settings: Settings { tf32: number == 2, debug: false } };
            assert_eq!(chosen(&[all], &found).map(|chosen| chosen.len()).ok(), Some(3));
            assert_eq!(numbers(&[device(2), device(0)]), Ok(vec![2, 0]));
            assert_eq!(
                numbers(&[device(3)]),
                Err("there is no GPU `cuda:3`; there are: cuda:0 (GPU), cuda:1 (GPU), cuda:2 (GPU)".to_owned())
            );
            assert_eq!(numbers(&[device(1), all]), Err("`cuda:1` is given twice; a GPU has one worker".to_owned()));
        }
    }
}

pub(super) use device::{backends, found};

//! `--worker`: devices by name.

mod cpu;
mod cuda;

use std::fmt;
use std::str::FromStr;

use cellwright_backend::Backend;
use cellwright_backend_cpu::DomainOptions;

use cpu::CpuSpec;
use cuda::CudaSpec;

use crate::process::ensure_usage;

/// A worker as it is written on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerSpec {
    /// `cpu`, `cpu:threads=2`, `cpu:threads=2,node=1,table_mib=0`.
    Cpu(CpuSpec),
    /// `cuda:0`, `cuda:all`, `cuda:0,tf32=true,debug=true`.
    Cuda(CudaSpec),
    /// `auto`: every GPU, or the default CPU workers if there is none.
    Auto,
}

impl fmt::Display for WorkerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(spec) if *spec == CpuSpec::default() => f.write_str("cpu"),
            Self::Cpu(spec) => write!(f, "cpu:{spec}"),
            Self::Cuda(spec) => write!(f, "cuda:{spec}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for WorkerSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("cpu", settings) => settings.parse().map(Self::Cpu),
            ("cuda", device) => device.parse().map(Self::Cuda),
            ("auto", "") => Ok(Self::Auto),
            (device, _) => {
                let known = ["cpu", cpu::FORM, cuda::WHOLE_FORM, "cuda:all", "auto"].map(|form| format!("`{form}`")).join(", ");
                Err(format!("`{device}` is not a worker; the workers are {known}"))
            }
        }
    }
}

/// The devices of these workers. Without any, the default: a CPU worker for each core.
///
/// # Errors
/// If a device is missing or cannot be used.
pub fn backends(specs: &[WorkerSpec]) -> anyhow::Result<Vec<Box<dyn Backend>>> {
    if specs.contains(&WorkerSpec::Auto) {
        ensure_usage(specs.len() == 1, || "`--worker auto` chooses all workers: give no other `--worker`".to_owned())?;
        return cuda::found().or_else(|why| {
            tracing::warn!("no GPU is used, so workers run on the CPU: {why}");
            cpu::backends(&[], DomainOptions::default())
        });
    }
    let on_cpu: Vec<CpuSpec> = specs.iter().filter_map(|spec| if let WorkerSpec::Cpu(spec) = spec { Some(*spec) } else { None }).collect();
    let on_gpu: Vec<CudaSpec> =
        specs.iter().filter_map(|spec| if let WorkerSpec::Cuda(spec) = spec { Some(*spec) } else { None }).collect();
    let mut backends = if on_gpu.is_empty() { Vec::new() } else { cuda::backends(&on_gpu)? };
    if on_gpu.is_empty() || !on_cpu.is_empty() {
        backends.extend(cpu::backends(&on_cpu, DomainOptions::default())?);
    }
    Ok(backends)
}

/// A second set of these devices, which computes each step of a cell as a whole. None if one of them is
/// a GPU, because its memory is in use.
///
/// # Errors
/// If a device is missing or cannot be used.
pub fn step_by_step(specs: &[WorkerSpec]) -> anyhow::Result<Option<Vec<Box<dyn Backend>>>> {
    let on_cpu = specs.iter().map(|spec| if let WorkerSpec::Cpu(spec) = spec { Some(*spec) } else { None });
    let Some(on_cpu) = on_cpu.collect::<Option<Vec<CpuSpec>>>() else { return Ok(None) };
    cpu::backends(&on_cpu, DomainOptions { ahead_weights_least: Some(u64::MAX), ..DomainOptions::default() }).map(Some)
}

/// Settings behind a worker's name. A setting that is given twice is an error.
fn settings(text: &str) -> Result<Vec<&str>, String> {
    let settings: Vec<&str> = text.split(',').filter(|setting| !setting.is_empty()).collect();
    let name = |setting: &&str| setting.split_once('=').map_or(*setting, |(name, _)| name).to_owned();
    for (at, setting) in settings.iter().enumerate() {
        if settings[..at].iter().any(|earlier| name(earlier) == name(setting)) {
            return Err(format!("the setting `{}` of a worker is given twice: `{setting}`", name(setting)));
        }
    }
    Ok(settings)
}

/// Names of devices; equal neighbours are counted (`2 × cpu`).
pub fn alike(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut alike: Vec<(String, usize)> = Vec::new();
    for name in names {
        match alike.last_mut() {
            Some((last, count)) if *last == name => *count += 1,
            _ => alike.push((name, 1)),
        }
    }
    alike.into_iter().map(|(name, count)| if count == 1 { name } else { format!("{count} × {name}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_are_alike_are_named_once() {
        let of = |names: &[&str]| alike(names.iter().map(|name| (*name).to_owned()));
        assert_eq!(of(&["gpu", "cpu", "cpu", "cpu"]), ["gpu", "3 × cpu"]);
        assert_eq!(of(&["cpu"]), ["cpu"]);
    }

    #[test]
    fn workers_are_read_as_they_are_written() {
        for text in [
            "cpu",
            "cpu:threads=2",
            "cpu:node=1",
            "cpu:table_mib=0",
            "cpu:amx=true",
            "cpu:threads=2,node=0,table_mib=64,amx=true",
            "cuda:0",
            "cuda:12",
            "cuda:all",
            "cuda:0,tf32=true",
            "cuda:all,tf32=true",
            "cuda:0,debug=true",
            "cuda:all,tf32=true,debug=true",
            "auto",
        ] {
            let spec: WorkerSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
        }
        assert_eq!("cpu:".parse(), Ok(WorkerSpec::Cpu(CpuSpec::default())));
        let refused = |text: &str| text.parse::<WorkerSpec>().unwrap_err();
        assert!(refused("tpu").contains("`tpu` is not a worker") && refused("tpu").contains("`cuda:N,tf32=true,debug=true`"));
        assert!(refused("auto:2").contains("`auto` is not a worker"));
        assert!(refused("cuda").contains("`` is not a GPU; write `cuda:all`, or `cuda:N`"));
        assert!(refused("cuda:0,fast=true").contains("no setting `fast=true`"));
        assert!(refused("cuda:-1").contains("`-1` is not a GPU"));
        assert!(refused("cuda:tf32=true").contains("`tf32=true` is not a GPU"));
        assert!(refused("cuda:0,tf32=yes").contains("`yes` is neither `true` nor `false`"));
        assert!(refused("cuda:0,bf16=true").contains("a GPU worker has no setting `bf16=true`; write `cuda:N,tf32=true,debug=true`"));
        assert_eq!("cuda:1,tf32=false".parse::<WorkerSpec>(), "cuda:1".parse());
        assert!(refused("cpu:threads=0").contains("`0` is not a number of threads"));
        assert!(refused("cpu:table_mib=lots").contains("`lots` is not a number of MiB from 0"));
        assert!(refused("cpu:node=all").contains("`all` is not the number of a NUMA node"));
        assert!(refused("cpu:amx=yes").contains("`yes` is neither `true` nor `false`"));
        assert!(refused("cpu:cores=2").contains("no setting `cores=2`"));
        assert!(refused("cpu:threads=2,threads=3").contains("`threads` of a worker is given twice: `threads=3`"));
        assert!(refused("cuda:0,tf32=true,debug=true,tf32=false").contains("`tf32` of a worker is given twice"));
    }

    #[test]
    fn all_workers_on_the_cpu_multiply_alike() {
        let specs = ["cpu:amx=true", "cpu"].map(|text| text.parse().unwrap());
        let told = backends(&specs).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(told.contains("set `amx=true` for all CPU workers or for none"), "{told}");
    }

    #[test]
    fn auto_stands_alone() {
        let specs = ["auto", "cpu"].map(|text| text.parse().unwrap());
        let told = backends(&specs).err().map(|error| error.to_string());
        assert_eq!(told.as_deref(), Some("`--worker auto` chooses all workers: give no other `--worker`"));
    }
}

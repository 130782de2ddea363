//! `--worker cpu`: workers on the machine's own processors.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context;
use cellwright_backend::Backend;
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Kernels, Node, Seat, Topology};

use crate::process::ensure_usage;

/// Threads of a worker, and workers of a node, of which nothing is said, at most: beyond, memory is the bound.
const DEFAULT_THREADS_MAX: usize = 8;
const THREADS_MAX: usize = 256;

/// A table by token takes no more than so many MiB, whatever is said.
const TABLE_MIB_MAX: u64 = 1 << 20;

/// How a worker is written.
pub(super) const FORM: &str = "cpu:threads=N,node=N,table_mib=N,amx=true";

/// A worker on processors: what may stand behind `cpu:`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSpec {
    /// None: as many as fit.
    threads: Option<usize>,
    /// The NUMA node that it keeps to. None: it runs wherever the system puts it.
    node: Option<usize>,
    /// MiB that tables by token may take together. None: as it is without being said.
    table_mib: Option<u64>,
    /// Whether AMX multiplies for models in 32-bit floats too.
    amx: bool,
}

impl fmt::Display for CpuSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = [
            self.threads.map(|threads| format!("threads={threads}")),
            self.node.map(|node| format!("node={node}")),
            self.table_mib.map(|mib| format!("table_mib={mib}")),
            self.amx.then(|| "amx=true".to_owned()),
        ];
        let settings: Vec<String> = settings.into_iter().flatten().collect();
        f.write_str(&settings.join(","))
    }
}

impl FromStr for CpuSpec {
    type Err = String;

    /// Of what stands behind `cpu:`.
    fn from_str(settings: &str) -> Result<Self, String> {
        let mut spec = Self::default();
        for setting in super::settings(settings)? {
            match setting.split_once('=') {
                Some(("threads", number)) => match number.parse() {
                    Ok(number @ 1..=THREADS_MAX) => spec.threads = Some(number),
                    _ => return Err(format!("`{number}` is not a number of threads from 1 to {THREADS_MAX}")),
                },
                Some(("node", number)) => {
                    spec.node = Some(number.parse().map_err(|_| format!("`{number}` is not the number of a NUMA node"))?);
                }
                Some(("table_mib", number)) => match number.parse() {
                    Ok(number @ 0..=TABLE_MIB_MAX) => spec.table_mib = Some(number),
                    _ => return Err(format!("`{number}` is not a number of MiB from 0 to {TABLE_MIB_MAX}")),
                },
                Some(("amx", answer)) => spec.amx = answer.parse().map_err(|_| format!("`{answer}` is neither `true` nor `false`"))?,
                _ => return Err(format!("a CPU worker has no setting `{setting}`; write `{FORM}`")),
            }
        }
        Ok(spec)
    }
}

/// The devices of these workers, those of a node in a memory domain of its own, for which what workers do not say is as in `base`. Without any: a worker of
/// one thread for each core.
pub(super) fn backends(specs: &[CpuSpec], base: DomainOptions) -> anyhow::Result<Vec<Box<dyn Backend>>> {
    let amx = specs.iter().any(|spec| spec.amx);
    ensure_usage(!amx || specs.iter().all(|spec| spec.amx), || {
        "all workers must give the same results, bit for bit: set `amx=true` for all CPU workers or for none".to_owned()
    })?;
    let kernels = if amx { Kernels::Tiles } else { base.kernels };
    let parallelism = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let seats = seats(specs, &Topology::of_machine(), parallelism)?;
    let number = |seat: &Seat| seat.node.as_ref().map(|node| node.number);
    let mut domains: BTreeMap<Option<usize>, Option<Arc<CpuDomain>>> = seats.iter().map(|seat| (number(seat), None)).collect();
    let shares = u32::try_from(domains.len()).ok().and_then(NonZeroU32::new);
    for (node, domain) in &mut domains {
        // Tables are shared: the largest that any worker asks for.
        let table_mib = specs.iter().filter(|spec| spec.node == *node).filter_map(|spec| spec.table_mib).max();
        let table_bytes = table_mib.map(|mib| mib << 20);
        let options = DomainOptions { table_bytes, node: *node, domains: shares, kernels, ..base };
        *domain = Some(CpuDomain::new(options).context(if amx {
            "cannot start CPU workers with `amx=true`"
        } else {
            "cannot start CPU workers"
        })?);
    }
    let worker = |seat: &Seat| -> anyhow::Result<Box<dyn Backend>> {
        let domain = domains.get(&number(seat)).and_then(Option::as_ref).context("a worker has no memory")?;
        let processors = seat.node.as_ref().map(|node| node.processors.clone());
        let options = CpuOptions { threads: seat.threads, processors, ..CpuOptions::default() };
        Ok(Box::new(CpuWorker::new(Arc::clone(domain), options).context("cannot start a CPU worker")?))
    };
    seats.iter().map(worker).collect()
}

/// Where these workers are, and how many threads they have. Several of which nothing is said share the cores evenly, those of a node that one's.
fn seats(specs: &[CpuSpec], topology: &Topology, parallelism: usize) -> anyhow::Result<Vec<Seat>> {
    if specs.is_empty() {
        return Ok(topology.seats(parallelism, DEFAULT_THREADS_MAX));
    }
    let seat = |spec: &CpuSpec| {
        let (node, cores, sharers) = match spec.node {
            None => (None, topology.cores(), specs.len()),
            Some(number) => {
                let node = node(topology, number)?;
                (Some(node.clone()), node.cores, specs.iter().filter(|other| other.node == spec.node).count())
            }
        };
        // All of them together have no more threads than there are cores to run on, wherever they are.
        let share = (cores / sharers.max(1)).min(parallelism.min(topology.cores()) / specs.len()).clamp(1, DEFAULT_THREADS_MAX);
        Ok(Seat { node, threads: spec.threads.unwrap_or(share) })
    };
    specs.iter().map(seat).collect()
}

fn node(topology: &Topology, number: usize) -> anyhow::Result<&Node> {
    let known = || topology.nodes().iter().map(|node| node.number.to_string()).collect::<Vec<_>>().join(", ");
    topology
        .nodes()
        .iter()
        .find(|node| node.number == number)
        .with_context(|| format!("there is no NUMA node {number} whose processors this process may use; there are: {}", known()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of what stands on the command line.
    fn specs_of(texts: &[&str]) -> Vec<CpuSpec> {
        texts.iter().map(|text| text.strip_prefix("cpu").unwrap().trim_start_matches(':').parse().unwrap()).collect()
    }

    /// Two nodes, of four cores and of two, each with two processors.
    fn two_nodes() -> Topology {
        let node = |number: usize, processors: std::ops::Range<usize>| Node {
            number,
            cores: processors.len() / 2,
            processors: cellwright_backend_cpu::Processors::new(processors),
        };
        Topology::new(vec![node(0, 0..8), node(1, 8..12)])
    }

    /// Nodes and threads.
    fn seated(specs: &[&str], parallelism: usize) -> Vec<(Option<usize>, usize)> {
        let specs = specs_of(specs);
        let seats = seats(&specs, &two_nodes(), parallelism).unwrap();
        seats.iter().map(|seat| (seat.node.as_ref().map(|node| node.number), seat.threads)).collect()
    }

    #[test]
    fn workers_without_threads_share_the_cores() {
        assert_eq!(seated(&[], 12), [[(Some(0), 1); 4].as_slice(), &[(Some(1), 1); 2]].concat(), "one for each core");
        assert_eq!(seated(&["cpu"], 12), [(None, 6)]);
        assert_eq!(seated(&["cpu", "cpu:threads=3"], 12), [(None, 3), (None, 3)]);
        assert_eq!(seated(&["cpu"; 9], 12), [(None, 1); 9]);
        assert_eq!(seated(&["cpu:node=0", "cpu:node=0", "cpu:node=1"], 12), [(Some(0), 2), (Some(0), 2), (Some(1), 2)]);
        assert_eq!(seated(&["cpu:node=0"], 3), [(Some(0), 3)], "a container may have fewer");
        assert_eq!(seated(&["cpu:node=0", "cpu:node=1"], 3), [(Some(0), 1), (Some(1), 1)], "and has them once");
        assert_eq!(seated(&["cpu", "cpu:node=0"], 12), [(None, 3), (Some(0), 3)]);
    }

    #[test]
    fn a_node_that_is_not_there_is_named() {
        let error = seats(&specs_of(&["cpu:node=2"]), &two_nodes(), 12).unwrap_err().to_string();
        assert!(error.contains("no NUMA node 2") && error.contains("there are: 0, 1"), "{error}");
    }

    #[test]
    fn workers_of_one_node_share_memory_and_others_do_not() {
        let devices = |specs: &[&str]| -> Vec<String> {
            let specs = specs_of(specs);
            backends(&specs, DomainOptions::default()).unwrap().iter().map(|backend| backend.info().domain).collect()
        };
        let here = format!("cpu:node={}", Topology::of_machine().nodes()[0].number);
        let domains = devices(&["cpu:threads=1", &here, "cpu:threads=1", &here]);
        assert_eq!([&domains[0], &domains[1]], [&domains[2], &domains[3]]);
        assert_ne!(domains[0], domains[1]);
    }
}

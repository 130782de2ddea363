//! The machine's processors: which of them share a core, and which memory is near to which, as
//! Linux says under `/sys/devices/system`.
//!
//! It lays out workers where nobody else does, and keeps threads to a node's processors. A worker's
//! threads are counted by cores, not by processors: two processors of one core share the units that
//! multiply, and one thread keeps those busy. A thread keeps to its node, not to one core. The
//! engine's and the connections' threads come and go on the same cores, and a bound thread would
//! wait for its own core beside an idle one.
//!
//! On a machine of one node no thread is placed. Missing facts count as a machine of one node whose
//! processors are cores; nothing here fails.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::path::Path;
use std::sync::Arc;

/// Processors beyond are not looked for, nor are nodes: the system's own sets of processors end there.
const NUMBERS_END: usize = 1024;

/// Some of the machine's processors, by the system's numbers, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processors(Arc<[usize]>);

impl Processors {
    /// Those numbers.
    #[must_use]
    pub fn new(numbers: impl IntoIterator<Item = usize>) -> Self {
        let numbers: BTreeSet<usize> = numbers.into_iter().filter(|number| *number < NUMBERS_END).collect();
        Self(numbers.into_iter().collect())
    }

    /// Those that this thread may run on, which a container's set of processors bounds too.
    #[must_use]
    pub fn allowed() -> Self {
        #[cfg(target_os = "linux")]
        if let Ok(set) = rustix::thread::sched_getaffinity(None) {
            return Self::new((0..rustix::thread::CpuSet::MAX_CPU).filter(|number| set.is_set(*number)));
        }
        Self::new(0..std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
    }

    /// Their numbers.
    #[must_use]
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }

    /// As the system writes lists: `0-3,8`. None: it is no list.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
            numbers.extend(first..=last.min(NUMBERS_END - 1));
        }
        Some(Self(numbers.into_iter().collect()))
    }

    fn read(path: &Path) -> Option<Self> {
        Self::parse(&read_to_string(path).ok()?)
    }

    fn within(&self, others: &Self) -> Self {
        Self(self.0.iter().copied().filter(|number| others.0.binary_search(number).is_ok()).collect())
    }

    /// The calling thread runs on these from now on, as far as the system lets it: a thread that may not stays where it is.
    pub(crate) fn keep_thread(&self) {
        #[cfg(target_os = "linux")]
        {
            let mut set = rustix::thread::CpuSet::new();
            self.0.iter().for_each(|number| set.set(*number));
            let _ = rustix::thread::sched_setaffinity(None, &set);
        }
    }
}

/// A NUMA node that has processors for this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The system's number of it.
    pub number: usize,
    /// Its processors that this process may use.
    pub processors: Processors,
    /// How many cores these are on: processors of one core share what computes, so that one thread keeps it busy.
    pub cores: usize,
}

/// A worker where nobody says how they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Where it keeps to; none: the machine has one node, and the system may place threads as it likes.
    pub node: Option<Node>,
    /// Threads that it has.
    pub threads: usize,
}

/// The machine's nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Node>,
}

impl Topology {
    /// A machine of these nodes, one at least, which have no processor in common.
    #[must_use]
    pub fn new(nodes: Vec<Node>) -> Self {
        Self { nodes }
    }

    /// What this process may use of this machine.
    #[must_use]
    pub fn of_machine() -> Self {
        Self::read(Path::new("/sys/devices/system"), &Processors::allowed())
    }

    /// What is `allowed` of the machine that a folder describes as Linux does in `/sys/devices/system`.
    #[must_use]
    pub fn read(root: &Path, allowed: &Processors) -> Self {
        let online = Processors::read(&root.join("cpu/online")).map_or_else(|| allowed.clone(), |online| allowed.within(&online));
        // A list that leaves nothing is none to go by: this very thread runs somewhere.
        let usable = if online.0.is_empty() { allowed } else { &online };
        let node = |number: usize, processors: Processors| Node { number, cores: cores(root, &processors), processors };
        let listed = Processors::read(&root.join("node/online")).unwrap_or_default();
        let of = |number: &usize| Some(Processors::read(&root.join(format!("node/node{number}/cpulist")))?.within(usable));
        let mut nodes: Vec<Node> = listed.0.iter().filter_map(|number| Some(node(*number, of(number)?))).collect();
        // Nodes may be of memory alone, or of processors that are others'.
        nodes.retain(|node| node.cores > 0);
        let placed: usize = nodes.iter().map(|node| node.processors.0.len()).sum();
        // What leaves a processor out, or has one twice, is no account of where memory is near.
        if placed != usable.0.len() || nodes.is_empty() {
            nodes = vec![node(0, usable.clone())];
        }
        Self { nodes }
    }

    /// Nodes with processors for this process, by number; one at least.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Cores that this process may use; one at least.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.nodes.iter().map(|node| node.cores).sum::<usize>().max(1)
    }

    /// For each node a worker of one thread for each of its cores, but no more than `workers_most`: workers of a node lend each other their threads, so that one
    /// alone has them all. All together are no more than `parallelism`, which a container may bound below the number of processors that it may use; then the largest
    /// nodes have workers, as few as take them.
    #[must_use]
    pub fn seats(&self, parallelism: usize, workers_most: usize) -> Vec<Seat> {
        let (parallelism, workers_most) = (parallelism.max(1), workers_most.max(1));
        if let [only] = &*self.nodes {
            return vec![Seat { node: None, threads: 1 }; only.cores.clamp(1, workers_most).min(parallelism)];
        }
        let mut nodes: Vec<&Node> = self.nodes.iter().collect();
        nodes.sort_by_key(|node| (std::cmp::Reverse(node.cores), node.number));
        let mut left = parallelism;
        let mut seats: Vec<Seat> = Vec::new();
        for node in nodes.into_iter().take(parallelism) {
            let workers = node.cores.min(workers_most).min(left);
            seats.extend(std::iter::repeat_n(Seat { node: Some(node.clone()), threads: 1 }, workers));
            left -= workers;
        }
        seats.sort_by_key(|seat| seat.node.as_ref().map(|node| node.number));
        seats
    }
}

/// On how many cores these are.
fn cores(root: &Path, processors: &Processors) -> usize {
    let first = |number: &usize| {
        let folder = root.join(format!("cpu/cpu{number}/topology"));
        let siblings = ["core_cpus_list", "thread_siblings_list"].into_iter().find_map(|name| Processors::read(&folder.join(name)));
        let own = |siblings: Processors| siblings.0.first().copied().filter(|_| siblings.0.contains(number));
        siblings.and_then(own).unwrap_or(*number)
    };
    processors.0.iter().map(first).collect::<BTreeSet<usize>>().len()
}

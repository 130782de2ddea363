//! Machines as their system describes them, and how workers are laid out on each.

use std::fs;
use std::path::Path;

use cellwright_backend::{Backend, CellTypeId};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Processors, Topology};
use cellwright_cell_graph::Tensor;
use cellwright_conformance::cells;

/// A folder that describes a machine.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    /// The same with a file more.
    fn file(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("files lie in folders")).expect("a folder");
        fs::write(path, format!("{text}\n")).expect("a file");
        self
    }

    /// Nodes with these lists of processors, all online.
    fn nodes(lists: &[&str]) -> Self {
        let machine = Self::new().file("node/online", &format!("0-{}", lists.len() - 1));
        lists.iter().enumerate().fold(machine, |machine, (number, list)| machine.file(&format!("node/node{number}/cpulist"), list))
    }

    /// Processors that are one core.
    fn core(self, processors: &[usize]) -> Self {
        let list: Vec<String> = processors.iter().map(usize::to_string).collect();
        let of = |machine: Self, number: &usize| machine.file(&format!("cpu/cpu{number}/topology/core_cpus_list"), &list.join(","));
        processors.iter().fold(self, of)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// What is said of each node: its number, its processors, its cores.
    fn seen(&self, allowed: &Processors) -> Vec<(usize, Vec<usize>, usize)> {
        let topology = Topology::read(self.path(), allowed);
        topology.nodes().iter().map(|node| (node.number, node.processors.numbers().to_vec(), node.cores)).collect()
    }

    /// Nodes, and how many workers of one thread each has where nobody says anything.
    fn seats(&self, allowed: &Processors, parallelism: usize) -> Vec<(Option<usize>, usize)> {
        let mut counted: Vec<(Option<usize>, usize)> = Vec::new();
        for seat in Topology::read(self.path(), allowed).seats(parallelism, 8) {
            let node = seat.node.map(|node| node.number);
            assert_eq!(seat.threads, 1);
            match counted.last_mut().filter(|(last, _)| *last == node) {
                Some((_, workers)) => *workers += 1,
                None => counted.push((node, 1)),
            }
        }
        counted
    }
}

fn first(count: usize) -> Processors {
    Processors::new(0..count)
}

#[test]
fn workers_of_a_machine_of_one_node_are_put_nowhere() {
    let machine = Machine::nodes(&["0-3"]);
    assert_eq!(machine.seen(&first(4)), [(0, vec![0, 1, 2, 3], 4)]);
    assert_eq!(machine.seats(&first(4), 4), [(None, 4)]);
    assert_eq!(Machine::nodes(&["0-31"]).seats(&first(32), 32), [(None, 8)], "beyond, memory is the bound");
}

#[test]
fn each_node_has_a_worker_for_each_core() {
    let two = Machine::nodes(&["0-2,6", "3-5"]);
    assert_eq!(two.seen(&first(7)), [(0, vec![0, 1, 2, 6], 4), (1, vec![3, 4, 5], 3)]);
    assert_eq!(two.seats(&first(7), 7), [(Some(0), 4), (Some(1), 3)]);
    let four = Machine::nodes(&["0-15", "16-31", "32-47", "48-63"]);
    assert_eq!(four.seats(&first(64), 64), [0, 1, 2, 3].map(|node| (Some(node), 8)));
}

#[test]
fn processors_of_one_core_are_one_worker() {
    let machine = Machine::nodes(&["0,1,4,5", "2,3,6,7"]).core(&[0, 4]).core(&[1, 5]).core(&[2, 6]).core(&[3, 7]);
    assert_eq!(machine.seen(&first(8)), [(0, vec![0, 1, 4, 5], 2), (1, vec![2, 3, 6, 7], 2)]);
    // The same core by whichever of its processors is allowed.
    assert_eq!(machine.seen(&Processors::new([0, 5, 6])), [(0, vec![0, 5], 2), (1, vec![6], 1)]);
    let older = Machine::new().file("cpu/cpu0/topology/thread_siblings_list", "0-1").file("cpu/cpu1/topology/thread_siblings_list", "0-1");
    assert_eq!(older.seen(&first(2)), [(0, vec![0, 1], 1)]);
}

#[test]
fn only_what_is_online_and_allowed_is_used() {
    let machine = Machine::nodes(&["0-3", "4-7"]).file("cpu/online", "0-2,4-7");
    assert_eq!(machine.seats(&first(8), 8), [(Some(0), 3), (Some(1), 4)]);
    assert_eq!(machine.seats(&Processors::new([1, 2, 4]), 3), [(Some(0), 2), (Some(1), 1)]);
    assert_eq!(machine.seats(&Processors::new([5, 6]), 2), [(None, 2)], "all of it is on one node");
    assert_eq!(machine.seen(&Processors::new([5, 6])), [(1, vec![5, 6], 2)]);
    // A list that has none of those that are allowed cannot be true.
    assert_eq!(machine.seen(&Processors::new([3])), [(0, vec![3], 1)]);
}

#[test]
fn nodes_without_processors_are_no_place_for_a_worker() {
    let machine = Machine::nodes(&["0-1", "", "2-3"]);
    assert_eq!(machine.seats(&first(4), 4), [(Some(0), 2), (Some(2), 2)]);
}

#[test]
fn a_bound_below_the_processors_takes_as_few_nodes_as_hold_it() {
    let machine = Machine::nodes(&["0-3", "4-9"]);
    assert_eq!(machine.seats(&first(10), 5), [(Some(1), 5)], "the larger node alone");
    assert_eq!(machine.seats(&first(10), 7), [(Some(0), 1), (Some(1), 6)]);
    assert_eq!(machine.seats(&first(10), 0), [(Some(1), 1)], "a worker there always is");
}

#[test]
fn what_is_not_said_or_makes_no_sense_is_one_node() {
    let all = [(0, vec![0, 1, 2, 3], 4)];
    assert_eq!(Machine::new().seen(&first(4)), all);
    for machine in [
        Machine::nodes(&["0-3"]).file("node/node0/cpulist", "zero to three"),
        Machine::nodes(&["0-1"]),
        Machine::nodes(&["0-2", "2-3"]),
        Machine::nodes(&["0-3"]).file("node/online", "0-x"),
        Machine::nodes(&["0-3"]).file("cpu/online", "-"),
        Machine::nodes(&["0-3"]).file("cpu/cpu2/topology/core_cpus_list", "0-1"),
        Machine::nodes(&["0-3"]).file("node/online", "0-99999999999"),
    ] {
        assert_eq!(machine.seen(&first(4)), all);
    }
    assert_eq!(Machine::new().seats(&Processors::default(), 4), [(None, 1)]);
    assert!(Topology::of_machine().cores() >= 1);
}

#[cfg(target_os = "linux")]
#[test]
fn the_thread_that_loads_a_workers_cells_keeps_to_its_processors() {
    let ones = |name: &str| {
        let shape: &[usize] = if name.starts_with("bias") { &[4] } else { &[4, 1] };
        Tensor::from_f32(name, shape, &[0.5; 4])
    };
    let cell = cells::lstm("lstm", 1, 1, &ones).resolve();
    let before = Processors::allowed();
    let last = Processors::new(before.numbers().last().copied());
    let domain = CpuDomain::new(DomainOptions { arena_bytes: Some(1 << 20), ..DomainOptions::default() }).expect("1 MiB is there");
    let mut worker = CpuWorker::new(domain, CpuOptions { processors: Some(last.clone()), ..CpuOptions::default() }).expect("threads start");
    assert_eq!(Processors::allowed(), before, "the thread that made it is not its own");
    let kept = std::thread::spawn(move || {
        worker.load(CellTypeId(0), &cell).expect("it loads");
        Processors::allowed()
    });
    assert_eq!(kept.join().expect("it does not panic"), last);
}

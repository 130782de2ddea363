//! Graphs of an emulated device: launches, and products of the library, that were looked at when their graph was made, and are queued again and again as they were then.

use super::Emulated;
use super::device::Work;
use crate::driver::products::{ProductOperands, ProductPlan};
use crate::driver::{Done, Fault, Graph, GraphLaunch, Stream};

/// What the emulated device takes of its memory for each piece of a graph. What a real one takes nobody here knows.
const NODE_BYTES: u64 = 1 << 10;

/// One piece of a graph.
#[derive(Clone)]
pub(super) enum Node {
    Launch(GraphLaunch),
    Product(ProductPlan, ProductOperands),
}

/// Those that are there; none where one was given back.
#[derive(Default)]
pub(super) struct Graphs(Vec<Option<Vec<Node>>>);

impl Graphs {
    fn of(&self, graph: Graph) -> Done<&Vec<Node>> {
        let found = self.0.get(graph.0 as usize).and_then(Option::as_ref);
        found.ok_or_else(|| Fault::Refused("a graph is named that is not there".to_owned()))
    }

    fn add(&mut self, nodes: Vec<Node>) -> Graph {
        let place = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if place == self.0.len() {
            self.0.push(None);
        }
        self.0[place] = Some(nodes);
        Graph(place as u32)
    }

    fn forget(&mut self, graph: Graph) -> Done {
        self.of(graph)?;
        self.0[graph.0 as usize] = None;
        Ok(())
    }
}

impl Emulated {
    pub(super) fn make_graph(&mut self, launches: &[GraphLaunch]) -> Done<Graph> {
        self.graph_of(launches.iter().cloned().map(Node::Launch).collect())
    }

    pub(super) fn graph_of(&mut self, nodes: Vec<Node>) -> Done<Graph> {
        if self.device.state()?.faults.graph_fails() {
            return Err(Fault::Refused("no graphs are made any more".to_owned()));
        }
        if nodes.is_empty() {
            return Err(Fault::Refused("a graph has no launch".to_owned()));
        }
        nodes.iter().try_for_each(|node| self.work(node).map(drop))?;
        let needed = NODE_BYTES * nodes.len() as u64;
        let free = self.facts.memory_bytes.saturating_sub(self.device.state()?.taken());
        if needed > free {
            return Err(Fault::OutOfMemory { needed, free });
        }
        let mut state = self.device.lock();
        state.graphs += 1;
        state.graph_bytes += needed;
        drop(state);
        Ok(self.graphs.add(nodes))
    }

    fn work(&mut self, node: &Node) -> Done<Work> {
        match node {
            Node::Launch(GraphLaunch { launch, .. }) if launch.cooperative => {
                Err(Fault::Refused("a launch of a graph is cooperative".to_owned()))
            }
            Node::Launch(GraphLaunch { launch, arguments }) => self.checked(launch, arguments),
            Node::Product(plan, operands) => self.product(*plan, operands).map(Work::Product),
        }
    }

    pub(super) fn forget_graph(&mut self, graph: Graph) -> Done {
        self.device.drain()?;
        let nodes = self.graphs.of(graph)?.len() as u64;
        self.graphs.forget(graph)?;
        let mut state = self.device.lock();
        state.graphs -= 1;
        state.graph_bytes -= NODE_BYTES * nodes;
        Ok(())
    }

    pub(super) fn queue_graph(&mut self, stream: Stream, graph: Graph) -> Done {
        let nodes = self.graphs.of(graph)?.clone();
        if self.device.state()?.faults.launch_of_graph_fails() {
            return Err(Fault::OutOfMemory { needed: NODE_BYTES * nodes.len() as u64, free: 0 });
        }
        // Whose kernels may have been given back since.
        let mut work = nodes.iter().map(|node| self.work(node)).collect::<Done<Vec<Work>>>()?;
        // Behind a product of the library a launch begins when that has ended.
        let mut follows = false;
        for piece in &mut work {
            follows = match piece {
                Work::Launch(queued) => {
                    queued.follows = follows;
                    true
                }
                _ => false,
            };
        }
        self.device.queue_all(stream, std::iter::once(Work::Graph { launches: work.len() }).chain(work))
    }
}

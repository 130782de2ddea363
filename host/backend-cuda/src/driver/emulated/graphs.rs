//! Graphs of an emulated device: launches that were looked at when their graph was made, and are queued again and again as they were then.

use super::Emulated;
use super::device::Work;
use crate::driver::{Done, Fault, Graph, GraphLaunch, Stream};

/// What the emulated device takes of its memory for each launch of a graph. What a real one takes nobody here knows.
const NODE_BYTES: u64 = 1 << 10;

/// Those that are there; none where one was given back.
#[derive(Default)]
pub(super) struct Graphs(Vec<Option<Vec<GraphLaunch>>>);

impl Graphs {
    fn of(&self, graph: Graph) -> Done<&Vec<GraphLaunch>> {
        let found = self.0.get(graph.0 as usize).and_then(Option::as_ref);
        found.ok_or_else(|| Fault::Refused("a graph is named that is not there".to_owned()))
    }

    fn add(&mut self, launches: Vec<GraphLaunch>) -> Graph {
        let place = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if place == self.0.len() {
            self.0.push(None);
        }
        self.0[place] = Some(launches);
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
        if self.device.state()?.faults.graph_fails() {
            return Err(Fault::Refused("no graphs are made any more".to_owned()));
        }
        if launches.is_empty() {
            return Err(Fault::Refused("a graph has no launch".to_owned()));
        }
        launches.iter().try_for_each(|launch| self.queued(launch).map(drop))?;
        let needed = NODE_BYTES * launches.len() as u64;
        let free = self.facts.memory_bytes.saturating_sub(self.device.state()?.taken());
        if needed > free {
            return Err(Fault::OutOfMemory { needed, free });
        }
        let mut state = self.device.lock();
        state.graphs += 1;
        state.graph_bytes += needed;
        drop(state);
        Ok(self.graphs.add(launches.to_vec()))
    }

    fn queued(&mut self, GraphLaunch { launch, arguments }: &GraphLaunch) -> Done<Work> {
        if launch.cooperative {
            return Err(Fault::Refused("a launch of a graph is cooperative".to_owned()));
        }
        self.checked(launch, arguments)
    }

    pub(super) fn forget_graph(&mut self, graph: Graph) -> Done {
        self.device.drain()?;
        let launches = self.graphs.of(graph)?.len() as u64;
        self.graphs.forget(graph)?;
        let mut state = self.device.lock();
        state.graphs -= 1;
        state.graph_bytes -= NODE_BYTES * launches;
        Ok(())
    }

    pub(super) fn queue_graph(&mut self, stream: Stream, graph: Graph) -> Done {
        let launches = self.graphs.of(graph)?.clone();
        if self.device.state()?.faults.launch_of_graph_fails() {
            return Err(Fault::OutOfMemory { needed: NODE_BYTES * launches.len() as u64, free: 0 });
        }
        // Whose kernels may have been given back since.
        let mut work = launches.iter().map(|launch| self.queued(launch)).collect::<Done<Vec<Work>>>()?;
        for behind in work.iter_mut().skip(1) {
            if let Work::Launch(queued) = behind {
                queued.follows = true;
            }
        }
        self.device.queue_all(stream, std::iter::once(Work::Graph { launches: work.len() }).chain(work))
    }
}

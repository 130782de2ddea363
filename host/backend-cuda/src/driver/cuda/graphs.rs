//! Graphs, made of nodes rather than of what a stream captured: nothing here is known only by its being queued.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::CudaDriver;
use crate::driver::{Done, Fault, Graph, GraphLaunch, Stream};

/// Devices of this capability and of newer ones begin a launch before the one in front of it has ended, if a graph says that they may.
const BEGINS_EARLY: (u32, u32) = (9, 0);

/// That a node begins when the one in front of it has ended,
const WHOLE: sys::CUgraphEdgeData = sys::CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] };
/// and that it may when all blocks of that one have said so (`launch_next` in `kernels/`), or have ended: `CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC`,
/// `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`.
const EARLY: sys::CUgraphEdgeData = sys::CUgraphEdgeData { from_port: 1, to_port: 0, type_: 1, reserved: [0; 5] };

impl CudaDriver {
    pub(super) fn make_graph(&mut self, stream: Stream, launches: &[GraphLaunch]) -> Done<Graph> {
        if launches.is_empty() {
            return Err(Fault::Refused("a graph has no launch".to_owned()));
        }
        self.enter()?;
        let stream = self.stream_of(stream)?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the handle is ours.
        let code = unsafe { sys::cuGraphCreate(&raw mut graph, 0) };
        self.making(code)?;
        if let Err(fault) = self.add_nodes(graph, launches) {
            // SAFETY: it was made above, and is given back once. That it goes is not what went wrong.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
            return Err(fault);
        }
        self.instantiated(stream, graph)
    }

    /// What a call says that only makes a graph.
    fn making(&mut self, code: sys::CUresult) -> Done {
        self.made(code.result())
    }

    /// A graph as it is launched, of one that was just made, which is given back. A driver may put off taking the device's memory for it until its first launch,
    /// unless it is uploaded.
    fn instantiated(&mut self, stream: sys::CUstream, graph: sys::CUgraph) -> Done<Graph> {
        let mut executable = std::ptr::null_mut();
        // SAFETY: a graph that was just made, and a handle of ours.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0) };
        let made = self.making(made);
        // SAFETY: it is given back once; what was instantiated does not need it.
        let code = unsafe { sys::cuGraphDestroy(graph) };
        made?;
        // SAFETY: it was just instantiated, and the stream is this driver's.
        let uploaded = unsafe { sys::cuGraphUpload(executable, stream) };
        if let Err(fault) = self.making(uploaded) {
            // SAFETY: given back once; nothing of it was queued. That it goes is not what went wrong.
            let _ = unsafe { sys::cuGraphExecDestroy(executable) };
            return Err(fault);
        }
        let place = self.graphs.iter().position(|known| known.is_null()).unwrap_or(self.graphs.len());
        if place == self.graphs.len() {
            self.graphs.push(executable);
        } else {
            self.graphs[place] = executable;
        }
        self.call(code).map(|()| Graph(place as u32))
    }

    /// One node behind the other. Kernels wait for the launch in front of theirs by themselves: where a device can begin one earlier, it does.
    fn add_nodes(&mut self, graph: sys::CUgraph, launches: &[GraphLaunch]) -> Done {
        let behind = if self.facts.capability >= BEGINS_EARLY { EARLY } else { WHOLE };
        let mut before: sys::CUgraphNode = std::ptr::null_mut();
        for GraphLaunch { launch, arguments } in launches {
            if launch.cooperative {
                return Err(Fault::Refused("a launch of a graph is cooperative".to_owned()));
            }
            let function = self.taking(launch.kernel, arguments)?;
            let mut parameters: [*mut c_void; 1] = [arguments.as_ptr().cast_mut().cast()];
            let [x, y, z] = launch.grid;
            let node_is = sys::CUDA_KERNEL_NODE_PARAMS {
                func: function,
                gridDimX: x,
                gridDimY: y,
                gridDimZ: z,
                blockDimX: launch.threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: launch.shared_bytes,
                kernelParams: parameters.as_mut_ptr(),
                extra: std::ptr::null_mut(),
                kern: std::ptr::null_mut(),
                ctx: std::ptr::null_mut(),
            };
            let mut node: sys::CUgraphNode = std::ptr::null_mut();
            // SAFETY: the kernel takes one structure of just that many bytes, which are copied before the call returns.
            let code = unsafe { sys::cuGraphAddKernelNode_v2(&raw mut node, graph, std::ptr::null(), 0, &raw const node_is) };
            self.making(code)?;
            if !before.is_null() {
                // SAFETY: both nodes are this graph's.
                let code = unsafe { sys::cuGraphAddDependencies_v2(graph, &raw const before, &raw const node, &raw const behind, 1) };
                self.making(code)?;
            }
            before = node;
        }
        Ok(())
    }

    fn graph_of(&self, graph: Graph) -> Done<sys::CUgraphExec> {
        let found = self.graphs.get(graph.0 as usize).copied().filter(|graph| !graph.is_null());
        found.ok_or_else(|| Fault::Refused("a graph is named that is not there".to_owned()))
    }

    pub(super) fn queue_graph(&mut self, stream: Stream, graph: Graph) -> Done {
        self.enter()?;
        let (stream, graph) = (self.stream_of(stream)?, self.graph_of(graph)?);
        // SAFETY: both are this driver's; what its launches read and write is the caller's promise.
        let code = unsafe { sys::cuGraphLaunch(graph, stream) };
        self.call(code)
    }

    pub(super) fn destroy_graph(&mut self, graph: Graph) -> Done {
        self.enter()?;
        let executable = self.graph_of(graph)?;
        self.settle_all()?;
        self.graphs[graph.0 as usize] = std::ptr::null_mut();
        // SAFETY: a graph of this driver, given back once, that nothing which is queued needs.
        let code = unsafe { sys::cuGraphExecDestroy(executable) };
        self.call(code)
    }
}

//! What goes with a driver, and what it leaves to its peers.

use cudarc::driver::sys;

use super::CudaDriver;

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // Whatever fails here fails because the device is lost; then there is nothing to give back.
        if self.context.bind_to_thread().is_err() {
            self.shared.lose();
            return;
        }
        // SAFETY: handles of this driver, given back once, after all that was queued has run.
        unsafe {
            let _ = sys::cuCtxSynchronize();
            self.products = None;
            for graph in self.graphs.drain(..).filter(|graph| !graph.is_null()) {
                let _ = sys::cuGraphExecDestroy(graph);
            }
            for event in self.events.drain(..) {
                let _ = sys::cuEventDestroy_v2(event);
            }
            for stream in self.streams.drain(..) {
                let _ = sys::cuStreamDestroy_v2(stream);
            }
            for module in self.own_modules().chain([self.module]) {
                let _ = sys::cuModuleUnload(module);
            }
        }
        self.shared.leave(std::mem::take(&mut self.allocations));
    }
}

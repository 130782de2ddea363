//! Plans and packed weights, made while the worker runs other tasks.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use cellwright_backend::{LoadError, Prepare, Prepared};
use cellwright_cell_graph::TypedCell;

use crate::compiled::Compiled;
use crate::denormals;
use crate::domain::CpuDomain;
use crate::topology::Processors;

/// Of one worker.
pub(super) struct Preparer {
    pub(super) domain: Arc<CpuDomain>,
    /// Those of the node on which its weights are to lie.
    pub(super) processors: Option<Processors>,
}

impl Prepare for Preparer {
    fn prepare(&self, cell: &Arc<TypedCell>, weight_bytes_max: u64) -> Result<Prepared, LoadError> {
        // Weights are rounded as rows are.
        let plan = || denormals::as_zeros(|| self.domain.plan(cell, weight_bytes_max));
        let (plan, weight_bytes) = match &self.processors {
            None => plan(),
            Some(processors) => near(processors, plan),
        }?;
        let threads = self.processors.as_ref().map_or_else(|| Processors::allowed().numbers().len(), |near| near.numbers().len());
        let row_bytes = plan.frame_row_bytes(threads) as u64;
        Ok(Prepared { cell: Box::new(plan), weight_bytes, row_bytes })
    }
}

/// Does it on a thread that keeps to these: memory lies where it is touched first. Where there is no thread to be had, it is done here.
fn near<T: Send>(processors: &Processors, make: impl Fn() -> T + Sync) -> T {
    let placed = || {
        processors.keep_thread();
        make()
    };
    thread::scope(|scope| match thread::Builder::new().name("cell-packer".to_owned()).spawn_scoped(scope, placed) {
        Ok(packer) => packer.join().unwrap_or_else(|panic| resume_unwind(panic)),
        Err(_) => make(),
    })
}

/// What a [`Preparer`] of the same domain made.
pub(super) fn plan_of(prepared: Prepared) -> Arc<Compiled> {
    let Ok(plan) = prepared.cell.downcast() else { unreachable!("a worker is given what its own preparer made") };
    *plan
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_near_processors_leaves_the_calling_thread_where_it_is() {
        let allowed = Processors::allowed();
        let one = Processors::new(allowed.numbers().last().copied());
        assert_eq!(near(&one, Processors::allowed), one);
        assert_eq!(Processors::allowed(), allowed);
    }
}

//! The same batches by themselves: on as many workers as the engine has, all of which run steps of a cell at the same time, while nothing else does
//! anything. All steps are of the batches' mean size. They gather and scatter their rows as tasks do, and each is computed whole when it comes, so that an
//! engine which computes several steps' inputs at once may take less.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use anyhow::anyhow;
use cellwright_backend::Backend;
use cellwright_cell_graph::Random;
use cellwright_cell_graph::TypedCell;
use cellwright_command::worker::{self, WorkerSpec};

use crate::commands::bench::steps::{Drawn, Steps};

/// For how long steps of a cell are run, and how many of the first do not count.
const MEASURED: Duration = Duration::from_secs(1);
const WARM_UP: usize = 5;
/// Tokens are drawn below this: every vocabulary has so many.
const TOKENS: usize = 2;

/// Which share of all workers' time so many steps of each cell a second take, of so many rows; none, if a worker is not on the processors. A worker's steps
/// take their median.
pub(super) fn share<'a>(
    workers: &[WorkerSpec],
    cells: impl Iterator<Item = (&'a Arc<TypedCell>, &'a (f64, f64))>,
    seed: u64,
) -> anyhow::Result<Option<f64>> {
    let mut share = 0.0;
    for (cell, (asked_per_s, rows)) in cells.filter(|(_, (asked_per_s, _))| *asked_per_s > 0.0) {
        let Some(backends) = worker::step_by_step(workers)? else { return Ok(None) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a step's rows are few and not less than none")]
        let rows = rows.round().max(1.0) as u32;
        let steps_per_s: f64 = steps(backends, cell, rows, seed)?.into_iter().map(|median| 1.0 / median.as_secs_f64()).sum();
        share += asked_per_s / steps_per_s;
    }
    Ok(Some(share))
}

/// Medians of the workers' steps, all of which run at the same time.
fn steps(backends: Vec<Box<dyn Backend>>, cell: &Arc<TypedCell>, rows: u32, seed: u64) -> anyhow::Result<Vec<Duration>> {
    let together = Barrier::new(backends.len());
    thread::scope(|scope| {
        // A worker keeps to the processors of the thread that it loads its cells on.
        let running: Vec<_> = (0..)
            .zip(backends)
            .map(|(worker, backend)| {
                let together = &together;
                scope.spawn(move || {
                    let warm = catch_unwind(AssertUnwindSafe(|| warm(backend, cell, rows, (worker, seed))));
                    // Whoever fails goes no further, so that nobody waits for it there.
                    together.wait();
                    warm.map_err(|_| anyhow!("steps of the cell `{}` failed", cell.name))??.median(MEASURED)
                })
            })
            .collect();
        running.into_iter().map(|worker| worker.join().map_err(|_| anyhow!("steps of the cell `{}` failed", cell.name))?).collect()
    })
}

fn warm(backend: Box<dyn Backend>, cell: &Arc<TypedCell>, rows: u32, (worker, seed): (u32, u64)) -> anyhow::Result<Steps> {
    let mut random = Random::new(seed.wrapping_add(worker.into()));
    let mut steps = Steps::new(backend, cell, rows, Drawn { random: &mut random, tokens: TOKENS, worker })?;
    for _ in 0..WARM_UP {
        steps.step()?;
    }
    Ok(steps)
}

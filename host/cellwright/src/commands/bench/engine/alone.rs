//! The same batches by themselves: on as many workers as the engine has, all of which run steps of a cell at the same time, while nothing else does
//! anything. Steps gather and scatter their rows as tasks do, and each is computed whole when it comes, so that an engine which computes several
//! steps' inputs at once may take less.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use cellwright_backend::Backend;
use cellwright_cell_graph::TypedCell;
use cellwright_simulator::Random;

use crate::commands::bench::steps::{Drawn, Steps};
use crate::worker::{self, WorkerSpec};

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
    let mut random = Random::new(seed);
    let steps = backends.into_iter().map(|backend| Steps::new(backend, cell, rows, Drawn { random: &mut random, tokens: TOKENS }));
    let steps = steps.collect::<anyhow::Result<Vec<_>>>()?;
    let together = Barrier::new(steps.len());
    thread::scope(|scope| {
        let running: Vec<_> = steps.into_iter().map(|steps| scope.spawn(|| run(steps, &together))).collect();
        running.into_iter().map(|worker| worker.join().map_err(|_| anyhow!("steps of a cell failed"))?).collect()
    })
}

fn run(mut steps: Steps, together: &Barrier) -> anyhow::Result<Duration> {
    // Whoever fails goes no further than the barrier, so that nobody waits for it there.
    let warm: anyhow::Result<Vec<_>> = (0..WARM_UP).map(|_| steps.step()).collect();
    together.wait();
    warm?;
    let (began, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || began.elapsed() < MEASURED {
        times.push(steps.step()?);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

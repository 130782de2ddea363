//! Cellular batching: Algorithm 1 of BatchMaker (EuroSys'18, section 4.3), with its gaps filled.
//!
//! Only nodes that the asking worker may run count. An empty batch is never submitted. Ties go to
//! the oldest ready node, then to the smallest id. Queues are first come, first served, within a
//! rank. The model is chosen first, by device time owed. The algorithm then runs among the types of
//! that model that have ready nodes. Ready nodes of other models of the chosen type join the batch.
//!
//! Some types are filled first (`CellInfo::fill_first`). Where workers lend each other their
//! threads, few rows may be done sooner as one batch with all threads than as several batches that
//! each read all weights. So a worker leaves nodes of such a type to another worker of its domain,
//! if all tasks of that worker are of such types of the model. The nodes join that worker's next
//! batch, and the asking worker lends its threads. The asking worker takes nodes itself in four
//! cases:
//!
//! - A full batch is ready.
//! - Half a batch is ready, and the other worker has a full batch of the type already.
//! - Half a batch is ready that no other worker may run.
//! - The other worker has passed the nodes over twice and has no batch of the type.
//!
//! So few requests are one batch with all threads, and requests that fill the workers' batches are
//! shared out. Of several such workers the one with the lowest number goes on.

use crate::id::WorkerId;
use crate::policy::{Key, ModelType, Pick, Policy, Tally, View, Worker};

/// Cellular batching needs to remember nothing.
#[derive(Debug)]
pub(super) struct Cellular;

impl Policy for Cellular {
    fn has_work(&self, view: View<'_>, worker: WorkerId) -> bool {
        has_work(view, worker)
    }

    fn oldest(&self, view: View<'_>, worker: WorkerId) -> Option<Key> {
        oldest(view, worker)
    }

    fn choose(&mut self, view: View<'_>, worker: WorkerId) -> Option<Pick> {
        Some(pick(view, choose_type(view, worker)?, worker))
    }
}

/// Whether a worker that wants a task would get any of the model's.
pub(super) fn has_work(view: View<'_>, worker: WorkerId) -> bool {
    let asks = || view.worker(worker).is_some_and(|state| state.outstanding <= view.config().low_water);
    // A sole worker may run whatever is ready.
    let is_offered = || (0..view.types().len()).any(|at| offered(view, at, &view.types()[at].tally, worker) > 0);
    view.model().ready > 0 && asks() && (view.is_sole_worker() || is_offered())
}

/// Since when the model has a node that a worker could run.
pub(super) fn oldest(view: View<'_>, worker: WorkerId) -> Option<Key> {
    let domain = view.worker(worker)?.domain;
    let types = view.types().iter().filter(|known| known.tally.runnable(worker, domain) > 0);
    types.filter_map(|known| view.oldest_node(known.cell_type, worker, true)).min()
}

/// The type at a position among the model's, for a worker.
pub(super) fn pick(view: View<'_>, position: usize, worker: WorkerId) -> Pick {
    Pick::Oldest { cell_type: view.types()[position].cell_type, own: part_of(view, position, worker) == Part::Own }
}

/// Algorithm 1, lines 5 to 10, for the model's types of which it has ready nodes that the worker
/// may run.
pub(super) fn choose_type(view: View<'_>, worker: WorkerId) -> Option<usize> {
    let types = view.types();
    let candidates = || (0..types.len()).filter(|at| offered(view, *at, &types[*at].tally, worker) > 0);
    let ready = |at: usize| offered(view, at, &view.queue(types[at].cell_type).tally, worker);
    let full = |at: &usize| ready(*at) >= types[*at].batch.max;
    let idle = |at: &usize| view.queue(types[*at].cell_type).running == 0;
    let rank = |at: &usize| types[*at].priority;
    let best = candidates().filter(full).map(|at| rank(&at)).max().map(|rank| (rank, 0));
    let best = best.or_else(|| candidates().filter(idle).map(|at| rank(&at)).max().map(|rank| (rank, 1)));
    let (highest, criterion) = best.or_else(|| candidates().map(|at| rank(&at)).max().map(|rank| (rank, 2)))?;
    let mut finalists =
        candidates().filter(|at| rank(at) == highest && (criterion == 2 || (criterion == 0 && full(at)) || (criterion == 1 && idle(at))));
    let first = finalists.next()?;
    let Some(second) = finalists.next() else { return Some(first) };
    let age = |at: usize| (view.oldest_node(types[at].cell_type, worker, false), types[at].cell_type);
    [first, second].into_iter().chain(finalists).min_by_key(|at| age(*at))
}

/// How many ready nodes of one of the model's types, out of `tally`, are a worker's to run. Where
/// batches of the type are filled first, that may be fewer than it could run.
pub(super) fn offered(view: View<'_>, at: usize, tally: &Tally, worker: WorkerId) -> u32 {
    let Some(domain) = view.worker(worker).map(|state| state.domain) else { return 0 };
    if tally.runnable(worker, domain) == 0 {
        return 0;
    }
    match part_of(view, at, worker) {
        Part::All => tally.runnable(worker, domain),
        Part::Own => tally.own(worker),
        Part::None => 0,
    }
}

/// Which of the ready nodes that a worker may run are its to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    All,
    /// The nodes that no other worker may run.
    Own,
    None,
}

/// Which ready nodes of one of the model's types are a worker's to run: see the top of this file.
///
/// A worker takes nodes from another worker's batch only if they are half a batch or more. For
/// fewer it would read weights that the other worker has read. Nodes that would queue behind other
/// work there are not left to it.
fn part_of(view: View<'_>, at: usize, worker: WorkerId) -> Part {
    let types = view.types();
    let (one, Some(own)) = (&types[at], view.worker(worker)) else { return Part::None };
    let tally = &view.queue(one.cell_type).tally;
    let full = one.batch.full();
    if !one.fill_first || tally.runnable(worker, own.domain) >= full {
        return Part::All;
    }
    let is_filled = |of_task| types.iter().any(|of: &ModelType| of.fill_first && of.cell_type == of_task);
    let fills = |worker: &Worker| !worker.tasks.is_empty() && worker.tasks.iter().all(|task| is_filled(task.cell_type));
    let before = if fills(own) { worker.index() } else { usize::MAX };
    let others = view.workers().filter(|(id, other)| id.index() < before && other.domain == own.domain && fills(other));
    let mut others = others.map(|(_, other)| other).peekable();
    if others.peek().is_none() {
        return Part::All;
    }
    let half = |rows: u32| 2 * rows >= full;
    let mut any_passed = false;
    let no_room = others.all(|other| {
        let mut of_type = other.tasks.iter().filter(|task| task.cell_type == one.cell_type).peekable();
        if of_type.peek().is_some() {
            return of_type.any(|task| task.rows >= full as usize);
        }
        let ready = view.oldest_node(one.cell_type, worker, false).map(|oldest| oldest.time);
        let passed = ready.is_some_and(|ready| other.chosen[1] > ready);
        any_passed |= passed;
        passed
    });
    match no_room {
        true if any_passed || half(tally.runnable(worker, own.domain)) => Part::All,
        false if half(tally.own(worker)) => Part::Own,
        _ => Part::None,
    }
}

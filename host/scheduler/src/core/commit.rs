//! Checks what a policy picked, and carries it out.
//!
//! Everything is checked before anything changes. A pick that breaks a rule is a [`Fault`] of the
//! model's policy and changes nothing. Rows that `batches` takes from a queue need no check.

use crate::command::{Failure, Refusal, Row};
use crate::core::Core;
use crate::core::lane::Progress;
use crate::core::readiness::Verdict;
use crate::core::request::{Chain, Phase, Request};
use crate::id::{CellTypeId, ModelId, RequestId, Time, WorkerId};
use crate::policy::{Fault, Pick, Takes};

impl Core {
    /// Carries out what a model's policy picked for a worker. False if there was nothing to run.
    ///
    /// # Errors
    /// If the pick breaks a rule: then nothing has changed.
    pub(crate) fn commit(&mut self, model: ModelId, worker: WorkerId, pick: Pick) -> Result<bool, Fault> {
        match pick {
            Pick::Oldest { cell_type, own } => return self.commit_oldest(model, worker, cell_type, own),
            Pick::Run(cell_type, rows) => {
                self.check_rows(model, worker, cell_type, &rows)?;
                self.run_rows(model, worker, cell_type, &rows);
            }
            Pick::Take(requests) => {
                let domain = self.worker(worker).ok_or(Fault::NotAsked)?.domain;
                self.check_requests(model, &requests, |request| request.offered().is_some() && request.domain == domain)?;
                requests.into_iter().for_each(|request| self.take(request, worker));
                self.settle_failures();
            }
            Pick::Release(requests) => {
                self.check_requests(model, &requests, |request| {
                    request.taken() == Some(worker) && request.flying == 0 && request.live_chains == 0
                })?;
                requests.into_iter().for_each(|request| self.release(request));
            }
            Pick::GiveUp(failures) => {
                let requests: Vec<RequestId> = failures.iter().map(|(request, _)| *request).collect();
                self.check_requests(model, &requests, |_| true)?;
                failures.into_iter().for_each(|(request, failure)| self.doom(request, failure));
                self.settle_failures();
            }
        }
        Ok(true)
    }

    /// A model's policy broke a rule: its requests fail, and nothing else changes.
    #[cold]
    pub(crate) fn refuse(&mut self, model: ModelId, worker: WorkerId, fault: Fault) {
        let policy = self.model(model).policy;
        self.out.refused.push(Refusal { model, policy, worker, fault });
        self.give_up_where(Failure::Policy { policy, fault }, |_, request| {
            request.model == model && matches!(request.phase, Phase::Waiting | Phase::Placed)
        });
        self.settle();
    }

    fn commit_oldest(&mut self, model: ModelId, worker: WorkerId, cell_type: CellTypeId, own: bool) -> Result<bool, Fault> {
        let known = self.model(model);
        let position = known.types.iter().position(|one| one.cell_type == cell_type).ok_or(Fault::Type)?;
        if known.takes != Takes::Nodes {
            return Err(Fault::Foreign);
        }
        let state = self.worker(worker).ok_or(Fault::NotAsked)?;
        let any = known.types[position].tally.runnable(worker, state.domain) > 0;
        Ok(any && self.run_oldest(worker, model, position, own))
    }

    fn check_requests(&self, model: ModelId, requests: &[RequestId], may: impl Fn(&Request) -> bool) -> Result<(), Fault> {
        let is_fine = |id: &RequestId| self.alive(*id).is_some_and(|request| request.model == model && may(request));
        match () {
            () if requests.is_empty() => Err(Fault::Empty),
            () if !requests.iter().all(is_fine) => Err(Fault::Request),
            () if !are_distinct(requests) => Err(Fault::Twice),
            () => Ok(()),
        }
    }

    fn check_rows(&self, model: ModelId, worker: WorkerId, cell_type: CellTypeId, rows: &[Row]) -> Result<(), Fault> {
        let known = self.model(model).types.iter().find(|one| one.cell_type == cell_type).ok_or(Fault::Type)?;
        if rows.is_empty() {
            return Err(Fault::Empty);
        }
        rows.iter().try_for_each(|row| self.check_row(model, worker, cell_type, *row))?;
        if rows.len() > known.batch.max as usize || !rows.iter().all(self.fits(known.span_rows)) {
            return Err(Fault::TooMany);
        }
        if are_distinct(rows) { Ok(()) } else { Err(Fault::Twice) }
    }

    /// Whether a model's policy may run a node on a worker now.
    fn check_row(&self, model: ModelId, worker: WorkerId, cell_type: CellTypeId, row: Row) -> Result<(), Fault> {
        let lane = self.lanes.get(row.lane.index()).ok_or(Fault::Foreign)?;
        let state = self.worker(worker).ok_or(Fault::NotAsked)?;
        let request = self.request(lane.request);
        let stage = u32::from(lane.stage);
        // A released lane still names its last request.
        let is_held = |chain: &Chain| !chain.gone() && stage < chain.stages() && chain.lane(stage) == row.lane;
        let is_its_own = request.phase == Phase::Placed && request.chain(lane.chain).is_some_and(is_held);
        if !is_its_own || (lane.model, lane.cell_type, lane.domain) != (model, cell_type, state.domain) {
            return Err(Fault::Foreign);
        }
        let takes = self.model(model).takes;
        if takes != Takes::Nodes && request.taken() != Some(worker) {
            return Err(Fault::Request);
        }
        let is_ready = match &lane.progress {
            Progress::Front(front) if takes == Takes::RequestsInOrder => {
                let is_next = front.queued == row.step;
                let is_padding = row.step >= lane.limit;
                is_next
                    && (is_padding
                        || matches!(self.weigh(row.lane, row.step, true), Verdict::Ready(only) if only.is_none_or(|only| only == worker)))
            }
            _ => self.runs_on(row, worker),
        };
        if is_ready { Ok(()) } else { Err(Fault::NotReady) }
    }

    /// Launches rows that were checked.
    fn run_rows(&mut self, model: ModelId, worker: WorkerId, cell_type: CellTypeId, rows: &[Row]) {
        let in_order = self.model(model).takes == Takes::RequestsInOrder;
        let listed: Vec<Option<Time>> = if in_order { Vec::new() } else { rows.iter().map(|row| self.listed_since(*row)).collect() };
        let merge = self.config.merge_steps && self.continues_last(worker, cell_type, &self.out.rows, rows);
        self.launch(worker, cell_type, model, rows.iter().copied(), merge);
        for row in rows {
            self.queue_nodes(row.lane, std::slice::from_ref(row), worker);
        }
        if in_order {
            return;
        }
        for row in rows {
            self.after_queued(row.lane, std::slice::from_ref(row), worker);
        }
        self.check_notified(Some(worker));
        for (row, ready) in rows.iter().zip(listed) {
            self.tidy(row.lane, row.step, ready);
        }
        self.settle_failures();
    }

    /// When a node of a run became ready: part of the run's key in the queue.
    fn listed_since(&self, row: Row) -> Option<Time> {
        match &self.lane(row.lane).progress {
            Progress::Each(nodes) => Some(nodes.states.ready(row.step, &self.moments).time),
            Progress::Front(_) | Progress::Grouped(_) => None,
        }
    }
}

/// Whether none is there twice.
fn are_distinct<T: Copy + Ord>(all: &[T]) -> bool {
    if all.is_sorted_by(|one, next| one < next) {
        return true;
    }
    let mut sorted = all.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}

//! Algorithm 2 of TurboTransformers (PPoPP'21) line by line, and when section 5 has it run.

use std::collections::{BTreeMap, VecDeque};

use cellwright_scheduler::{Config, LengthAware, PolicyKind, RequestId, WorkerId};

use super::{Query, Shape, Task, Transcribed};
use crate::suite::model::NodeId;

/// A batch that runs: who is in it, and the nodes that are left to submit.
struct Running {
    members: Vec<RequestId>,
    nodes: VecDeque<NodeId>,
}

pub(super) struct Oracle {
    shape: Shape,
    config: Config,
    /// The paper's MQ.
    queue: Vec<Query>,
    /// Batches that algorithm 2 packed and that wait for a worker.
    packed: VecDeque<Vec<Query>>,
    running: BTreeMap<WorkerId, Running>,
    flying: BTreeMap<WorkerId, usize>,
}

impl Oracle {
    /// The paper's `cached_cost`, times the batch size by which its lines multiply it.
    fn cost(&self, length: &Query, batch_size: usize) -> u64 {
        self.shape.nodes(&length.lengths).iter().map(|(_, cell)| self.shape.cost(*cell, batch_size)).sum()
    }

    /// Lines 1 to 24. Line 23 as printed (`i = start_idx - 1`) would leave out the request before a batch: it is `i = start_idx`. Batches run from the
    /// shortest on, so that the list is turned round.
    fn algorithm_2(&self, mut request_list: Vec<Query>) -> VecDeque<Vec<Query>> {
        request_list.sort_by_key(|request| self.cost(request, 1)); // 1
        let n = request_list.len(); // 2
        let (mut states, mut start_idx_list) = (vec![0; n + 1], vec![0; n + 1]); // 3
        let mut i = 1; // 4
        while i <= n {
            let mut j = i - 1; // 6
            let mut start_idx = i - 1;
            let cur_length = &request_list[i - 1]; // 7
            let mut min_cost = self.cost(cur_length, 1) + states[j]; // 8
            while j > 0 {
                let tmp_cost = states[j - 1] + self.cost(cur_length, i - j + 1); // 10
                if tmp_cost < min_cost {
                    min_cost = tmp_cost; // 12
                    start_idx = j - 1;
                }
                j -= 1; // 14
            }
            states[i] = min_cost; // 16
            start_idx_list[i] = start_idx;
            i += 1; // 17
        }
        let mut packed = VecDeque::new();
        i = n; // 19
        while i > 0 {
            let (end_idx, start_idx) = (i, start_idx_list[i]); // 21
            packed.push_front(request_list[start_idx..end_idx].to_vec()); // 22
            i = start_idx; // 23
        }
        packed
    }

    /// Hungry: always. Lazy: if there are as many as a batch may have, if the first has waited for the timeout, or if what it has waited and what the
    /// batch would take exceed half of the objective.
    fn evoked(&self, now: u64) -> bool {
        let PolicyKind::LengthAware(LengthAware { timeout_ns, objective_ns }) = self.config.policy else { panic!("another policy") };
        let in_batch = &self.queue[..self.queue.len().min(self.shape.limit as usize)];
        let Some(front) = in_batch.first() else { return false };
        let elapsed = now - front.came;
        let takes = in_batch.iter().map(|request| self.cost(request, in_batch.len())).max().unwrap_or(0);
        timeout_ns == 0
            || in_batch.len() >= self.shape.limit as usize
            || elapsed >= timeout_ns
            || (objective_ns > 0 && elapsed + takes > objective_ns / 2)
    }
}

impl Transcribed for Oracle {
    fn new(shape: Shape, config: Config) -> Self {
        let (queue, packed, running, flying) = Default::default();
        Self { shape, config, queue, packed, running, flying }
    }

    fn come(&mut self, queries: Vec<Query>) {
        self.queue.extend(queries);
    }

    fn complete(&mut self, worker: WorkerId, tasks: usize) {
        *self.flying.entry(worker).or_default() -= tasks;
        if self.flying[&worker] == 0 && self.running.get(&worker).is_some_and(|running| running.nodes.is_empty()) {
            self.running.remove(&worker);
        }
    }

    fn asks(&self, worker: WorkerId) -> bool {
        (self.flying.get(&worker).copied().unwrap_or(0) as u32) < self.config.max_tasks_to_submit
    }

    fn choose(&mut self, now: u64, worker: WorkerId) -> Option<Task> {
        if !self.running.contains_key(&worker) {
            if self.packed.is_empty() {
                if !self.evoked(now) {
                    return None;
                }
                let looked_at = self.queue.drain(..self.queue.len().min(self.shape.limit as usize)).collect();
                self.packed = self.algorithm_2(looked_at);
            }
            let batch = self.packed.pop_front()?;
            let longest = |chain: usize| batch.iter().map(|query| query.lengths[chain]).max().unwrap_or(0);
            let padded: Vec<u32> = (0..self.shape.chains.len()).map(longest).collect();
            let nodes = self.shape.nodes(&padded).into_iter().map(|(node, _)| node).collect();
            self.running.insert(worker, Running { members: batch.iter().map(|query| query.id).collect(), nodes });
        }
        let running = self.running.get_mut(&worker)?;
        let node = running.nodes.pop_front()?;
        *self.flying.entry(worker).or_default() += 1;
        Some((worker, running.members.iter().map(|id| (*id, node)).collect()))
    }
}

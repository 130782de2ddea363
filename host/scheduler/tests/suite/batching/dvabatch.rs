//! DVABatch (ATC'22): the table of batches, what its rows say of each query, and the operations new, stretch and split, over batches expanded node by node.

use std::collections::{BTreeMap, VecDeque};

use cellwright_scheduler::{Config, PolicyKind, RequestId, Stages, WorkerId};

use super::{Query, Shape, Task, Transcribed};
use crate::suite::model::NodeId;

/// Queries that a stage's executor takes from its queue together.
struct Item {
    queries: Vec<RequestId>,
    /// How many nodes of them were submitted.
    submitted: usize,
    /// The stage whose executor has it.
    stage: usize,
}

/// A row of the table.
struct Row {
    id: u64,
    began: u64,
    /// What lengths its queries round up to.
    class: Vec<u32>,
    padded: Vec<u32>,
    nodes: Vec<(NodeId, u32)>,
    /// The stage of each node.
    stages: Vec<usize>,
    /// For how long it may be stretched.
    threshold: u64,
    was_split: bool,
    /// The first runs; where a query was added, those who catch up are the second.
    items: VecDeque<Item>,
}

impl Row {
    fn ends_a_stage(&self, item: &Item) -> bool {
        self.stages.get(item.submitted).is_none_or(|next| *next > item.stage)
    }

    fn is_stretched(&self) -> bool {
        !self.was_split && self.items.len() == 2
    }
}

/// What lengths a query has, as far as it matters with whom it is batched.
fn class_of(query: &Query) -> Vec<u32> {
    query.lengths.iter().map(|length| length.next_power_of_two()).collect()
}

pub(super) struct Oracle {
    shape: Shape,
    config: Config,
    queue: Vec<Query>,
    tables: BTreeMap<WorkerId, Vec<Row>>,
    /// Whose each task in flight is: a row, and a query of its item.
    flying: BTreeMap<WorkerId, VecDeque<(u64, RequestId)>>,
    begun: u64,
}

impl Oracle {
    fn takes(&self, nodes: &[(NodeId, u32)], rows: usize) -> u64 {
        nodes.iter().map(|(_, cell)| self.shape.cost(*cell, rows)).sum()
    }

    /// Whether a batch of so many gains nothing by being twice as large: it fills the device. Measured times are taken to be proportional from 95 % on.
    fn is_full(&self, nodes: &[(NodeId, u32)], half: usize, whole: usize) -> bool {
        self.takes(nodes, whole) * 100 >= 2 * self.takes(nodes, half) * 95
    }

    /// The least batch size that fills the device, of 1, 2, 4, ….
    fn preferred(&self, nodes: &[(NodeId, u32)]) -> usize {
        let limit = self.shape.limit as usize;
        let sizes = (0..).map(|power| 1 << power).take_while(|size| 2 * size <= limit);
        sizes.into_iter().find(|size| self.is_full(nodes, *size, 2 * size)).unwrap_or(limit)
    }

    /// Stages of equal time for a batch of the preferred size; one ends, too, where chains, or cells of a chain of one step, prefer another size.
    fn divide(&self, nodes: &[(NodeId, u32)], padded: &[u32], count: u32) -> Vec<usize> {
        let size = self.preferred(nodes);
        let total = self.takes(nodes, size);
        let mut begins = vec![false; nodes.len()];
        for part in 1..u64::from(count) {
            let first = (0..nodes.len()).find(|at| self.takes(&nodes[..*at], size) >= total * part / u64::from(count));
            first.into_iter().for_each(|at| begins[at] = true);
        }
        let unit = |at: usize| {
            let NodeId { chain, stage, .. } = nodes[at].0;
            let alone = padded[chain as usize] == 1;
            let same = nodes.iter().filter(|(node, _)| node.chain == chain && node.step == 0 && (!alone || node.stage == stage));
            self.preferred(&same.copied().collect::<Vec<_>>())
        };
        let sizes: Vec<usize> = (0..nodes.len()).map(unit).collect();
        for (begins, pair) in begins[1..].iter_mut().zip(sizes.windows(2)) {
            *begins |= pair[0] != pair[1];
        }
        begins[0] = false;
        let mut stage = 0;
        begins
            .into_iter()
            .map(|begins| {
                stage += usize::from(begins);
                stage
            })
            .collect()
    }

    fn active(&self, worker: WorkerId) -> usize {
        let items = self.tables.get(&worker).into_iter().flatten().flat_map(|row| &row.items);
        items.map(|item| item.queries.len()).sum()
    }

    fn stretch(&mut self, now: u64, worker: WorkerId) {
        let active = self.active(worker);
        let Some(row) = self.tables.get(&worker).and_then(|table| table.last()) else { return };
        let last_stage = row.stages.last().copied().unwrap_or(0);
        let base = &row.items[0];
        let open = match row.items.len() {
            1 => base.stage < last_stage,
            _ => row.is_stretched() && row.items[1].submitted == 0,
        };
        if row.was_split || !open || now >= row.began + row.threshold {
            return;
        }
        let size: usize = row.items.iter().map(|item| item.queries.len()).sum();
        let wanted = self.preferred(&row.nodes[base.submitted..]).saturating_sub(size);
        let mut room = (self.shape.limit as usize).saturating_sub(active).min(wanted);
        let padded = row.padded.clone();
        let (class, stage) = (row.class.clone(), base.stage);
        let mut joined = Vec::new();
        self.queue.retain(|query| {
            let joins = room > 0 && class_of(query) == class && query.lengths.iter().zip(&padded).all(|(length, padded)| length <= padded);
            room -= usize::from(joins);
            joined.extend(joins.then_some(query.id));
            !joins
        });
        let Some(row) = self.tables.get_mut(&worker).and_then(|table| table.last_mut()).filter(|_| !joined.is_empty()) else { return };
        if row.items.len() == 2 {
            row.items[1].queries.extend(joined);
        } else {
            row.items.push_back(Item { queries: joined, submitted: 0, stage });
        }
    }

    /// A new row for the oldest who waits and those like it.
    fn new_row(&mut self, now: u64, worker: WorkerId) -> bool {
        let PolicyKind::Stages(Stages { count, stretch_ns }) = self.config.policy else { panic!("another policy") };
        let mut room = (self.shape.limit as usize).saturating_sub(self.active(worker));
        let table = self.tables.entry(worker).or_default();
        let Some(oldest) = self.queue.first().filter(|_| table.len() < 2 && room > 0) else { return false };
        let class = class_of(oldest);
        let mut queries = Vec::new();
        self.queue.retain(|query| {
            let taken = room > 0 && class_of(query) == class;
            room -= usize::from(taken);
            queries.extend(taken.then(|| query.clone()));
            !taken
        });
        let padded: Vec<u32> = (0..class.len()).map(|chain| queries.iter().map(|query| query.lengths[chain]).max().unwrap_or(0)).collect();
        let nodes = self.shape.nodes(&padded);
        let stages = self.divide(&nodes, &padded, count);
        let threshold = stretch_ns.unwrap_or(self.takes(&nodes, self.preferred(&nodes)) / u64::from(count));
        let items = [Item { queries: queries.iter().map(|query| query.id).collect(), submitted: 0, stage: 0 }].into();
        let row = Row { id: self.begun, began: now, class, padded, nodes, stages, threshold, was_split: false, items };
        self.begun += 1;
        self.tables.entry(worker).or_default().push(row);
        true
    }

    /// The next node of a row, and whose.
    fn next(&mut self, worker: WorkerId, at: usize) -> Option<(NodeId, Vec<RequestId>)> {
        let row = &mut self.tables.get_mut(&worker)?[at];
        if row.is_stretched() && row.items[0].submitted == row.items[1].submitted {
            // They have caught up: the queries are one item again.
            let caught_up = row.items.pop_back()?;
            row.items[0].queries.extend(caught_up.queries);
        }
        let catches_up = row.is_stretched();
        let turn = usize::from(catches_up && (row.items[1].submitted > 0 || row.ends_a_stage(&row.items[0])));
        let (submitted, size) = (row.items[turn].submitted, row.items[turn].queries.len());
        let (node, _) = *row.nodes.get(submitted)?;
        if !catches_up && row.ends_a_stage(&row.items[0]) {
            let row = &self.tables[&worker][at];
            let splits = size > 1 && self.is_full(&row.nodes[submitted..], size.div_ceil(2), size);
            let row = &mut self.tables.get_mut(&worker)?[at];
            let stage = row.stages[submitted];
            row.items[0].stage = stage;
            if splits {
                let queries = row.items[0].queries.split_off(size.div_ceil(2));
                row.items.insert(1, Item { queries, submitted, stage });
                row.was_split = true;
            }
        }
        let item = &mut self.tables.get_mut(&worker)?[at].items[turn];
        item.submitted += 1;
        Some((node, item.queries.clone()))
    }

    /// Queries whose last node is complete leave.
    fn leave(&mut self, worker: WorkerId) {
        let flying = self.flying.entry(worker).or_default();
        for row in self.tables.entry(worker).or_default() {
            let (id, nodes) = (row.id, row.nodes.len());
            row.items.retain(|item| item.submitted < nodes || flying.iter().any(|(of, query)| *of == id && item.queries.contains(query)));
        }
        self.tables.entry(worker).or_default().retain(|row| !row.items.is_empty());
    }
}

impl Transcribed for Oracle {
    fn new(shape: Shape, config: Config) -> Self {
        let (queue, tables, flying) = Default::default();
        Self { shape, config, queue, tables, flying, begun: 0 }
    }

    fn come(&mut self, queries: Vec<Query>) {
        self.queue.extend(queries);
    }

    fn complete(&mut self, worker: WorkerId, tasks: usize) {
        self.flying.entry(worker).or_default().drain(..tasks);
        self.leave(worker);
    }

    fn asks(&self, worker: WorkerId) -> bool {
        self.flying.get(&worker).map_or(0, VecDeque::len) as u32 <= self.config.low_water
    }

    fn choose(&mut self, now: u64, worker: WorkerId) -> Option<Task> {
        self.stretch(now, worker);
        let rows = self.tables.get(&worker).map_or(0, Vec::len);
        let next = (0..rows).find_map(|at| self.next(worker, at).map(|next| (at, next)));
        let (at, (node, queries)) = match next {
            Some(next) => next,
            None if self.new_row(now, worker) => (rows, self.next(worker, rows)?),
            None => return None,
        };
        let id = self.tables[&worker][at].id;
        self.flying.entry(worker).or_default().push_back((id, queries[0]));
        Some((worker, queries.into_iter().map(|query| (query, node)).collect()))
    }
}

//! Values of single nodes, as the engine hands them out, become response tensors, streamed parts, and what a continuation watches.

use std::collections::BTreeMap;
use std::ops::Range;

use cellwright_cell_graph::graph::Pace;
use cellwright_cell_graph::unfolded::{Delivery, ResponseFrom};
use cellwright_cell_graph::{Datatype, Tensor, TensorSpec, UnfoldedGrowth};
use cellwright_engine::Value;

use crate::join::join;
use crate::model::ServedModel;

/// One output of one stage of one chain.
type Key = (u32, u32, u32);

/// What is known of where a chain ends.
#[derive(Clone, Copy, Debug)]
struct ChainEnd {
    bound: u32,
    like: Option<u32>,
    stops: bool,
    executed: Option<u32>,
}

/// The rows of one output that have arrived.
#[derive(Debug)]
struct Column {
    datatype: Datatype,
    row_shape: Vec<usize>,
    row_bytes: usize,
    /// Only the last step matters.
    last_only: bool,
    /// Step of the row held, if `last_only`.
    last_step: Option<u32>,
    rows: Vec<u8>,
    arrived: Vec<bool>,
    /// Steps 0..in_order have arrived.
    in_order: u32,
    /// Steps that were streamed.
    streamed: u32,
    /// Steps that the plugin has seen.
    seen: u32,
}

impl Column {
    fn take(&mut self, step: u32, bytes: &[u8]) {
        if bytes.len() != self.row_bytes {
            return;
        }
        if self.last_only {
            if self.last_step.is_none_or(|last| last <= step) {
                self.last_step = Some(step);
                self.rows.clear();
                self.rows.extend_from_slice(bytes);
            }
            return;
        }
        let index = step as usize;
        if self.arrived.len() <= index {
            self.arrived.resize(index + 1, false);
            self.rows.resize((index + 1) * self.row_bytes, 0);
        }
        self.rows[index * self.row_bytes..(index + 1) * self.row_bytes].copy_from_slice(bytes);
        self.arrived[index] = true;
        while self.arrived.get(self.in_order as usize) == Some(&true) {
            self.in_order += 1;
        }
    }

    /// Those steps, stacked.
    fn stacked(&self, name: &str, steps: Range<u32>) -> Tensor {
        let bytes = steps.start as usize * self.row_bytes..steps.end as usize * self.row_bytes;
        let mut shape = vec![steps.len()];
        shape.extend_from_slice(&self.row_shape);
        Tensor { name: name.to_owned(), datatype: self.datatype, shape, data: self.rows.get(bytes).unwrap_or_default().to_vec() }
    }

    /// The row of one step, by itself.
    fn row(&self, name: &str, step: u32) -> Option<Tensor> {
        let data = if self.last_only {
            self.rows.clone()
        } else {
            self.rows.get(step as usize * self.row_bytes..(step as usize + 1) * self.row_bytes)?.to_vec()
        };
        let shape = if self.row_shape.is_empty() { vec![1] } else { self.row_shape.clone() };
        Some(Tensor { name: name.to_owned(), datatype: self.datatype, shape, data })
    }
}

/// A response tensor that some growth fills.
#[derive(Debug)]
struct Response {
    output: usize,
    from: ResponseFrom,
    stream: bool,
}

/// What the plugin waits to see.
#[derive(Debug)]
struct Watching {
    keys: Vec<Key>,
    pace: Pace,
    /// Everything has been shown.
    over: bool,
}

/// All that has arrived for one request.
#[derive(Debug)]
pub(crate) struct Outputs {
    chains: BTreeMap<u32, ChainEnd>,
    columns: BTreeMap<Key, Column>,
    responses: Vec<Response>,
    watching: Option<Watching>,
    /// Whether the client takes parts as they come; otherwise they are put together.
    streaming: bool,
    /// Tensors of the response so far, by the description's position: what was emitted, and what streamed growths left.
    gathered: Vec<Option<Tensor>>,
}

impl Outputs {
    pub(crate) fn new(model: &ServedModel, growth: &UnfoldedGrowth, streaming: bool) -> Self {
        let gathered = model.description().outputs.iter().map(|_| None).collect();
        let mut outputs =
            Self { chains: BTreeMap::new(), columns: BTreeMap::new(), responses: Vec::new(), watching: None, streaming, gathered };
        outputs.grow(model, growth);
        outputs
    }

    /// Expects what a growth delivers.
    pub(crate) fn grow(&mut self, model: &ServedModel, growth: &UnfoldedGrowth) {
        for (chain, number) in growth.chains.iter().zip(growth.first_chain..) {
            let end = ChainEnd { bound: chain.length.bound, like: chain.length.like, stops: chain.stop.is_some(), executed: None };
            self.chains.insert(number, end);
            for (stage, stage_number) in chain.stages.iter().zip(0..) {
                let Some(cell) = model.cell(stage.cell) else { continue };
                for ((delivery, output), output_number) in stage.delivery.iter().zip(&cell.outputs).zip(0..) {
                    if *delivery == Delivery::None {
                        continue;
                    }
                    let row_shape: Vec<usize> = output.port.shape.iter().map(|extent| *extent as usize).collect();
                    let row_bytes = row_shape.iter().product::<usize>() * output.port.datatype.size().unwrap_or(0);
                    let column = Column {
                        datatype: output.port.datatype,
                        row_shape,
                        row_bytes,
                        last_only: *delivery == Delivery::Last,
                        last_step: None,
                        rows: Vec::new(),
                        arrived: Vec::new(),
                        in_order: 0,
                        streamed: 0,
                        seen: 0,
                    };
                    self.columns.insert((number, stage_number, output_number), column);
                }
            }
        }
        for response in &growth.outputs {
            self.responses.push(Response { output: response.output as usize, from: response.from.clone(), stream: response.stream });
        }
        self.watching = growth.next.as_ref().map(|watch| Watching { keys: watch.outputs.clone(), pace: watch.pace, over: false });
    }

    /// How many steps a chain executed, once that is known.
    fn executed(&self, chain: u32) -> Option<u32> {
        let mut end = self.chains.get(&chain)?;
        let mut bound = end.bound;
        // A chain follows an earlier one, so this ends.
        while let (false, Some(like)) = (end.stops, end.like) {
            let Some(followed) = self.chains.get(&like) else { break };
            end = followed;
            bound = bound.min(end.bound);
        }
        if end.stops { end.executed.map(|executed| executed.min(bound)) } else { Some(bound) }
    }

    pub(crate) fn value(&mut self, value: Value<'_>) {
        if let Some(column) = self.columns.get_mut(&(value.chain, value.stage, value.output)) {
            column.take(value.step, value.bytes);
        }
    }

    pub(crate) fn ended(&mut self, chain: u32, executed: u32) {
        if let Some(end) = self.chains.get_mut(&chain) {
            end.executed = Some(executed);
        }
    }

    /// Parts of streamed outputs that have arrived since the last call.
    pub(crate) fn parts(&mut self, model: &ServedModel, parts: &mut Vec<Tensor>) {
        if !self.streaming {
            return;
        }
        for response in self.responses.iter().filter(|response| response.stream) {
            let ResponseFrom::All(key) = &response.from else { continue };
            let limit = executed_of(&self.chains, key.0);
            let Some(column) = self.columns.get_mut(key) else { continue };
            let until = limit.map_or(column.in_order, |limit| column.in_order.min(limit));
            if until > column.streamed {
                parts.push(column.stacked(&model.description().outputs[response.output].name, column.streamed..until));
                column.streamed = until;
            }
        }
    }

    /// What the plugin is to be shown now, if anything. It is shown once.
    pub(crate) fn watched(&mut self) -> Option<Vec<Tensor>> {
        let watching = self.watching.as_ref().filter(|watching| !watching.over && !watching.keys.is_empty())?;
        let keys = watching.keys.clone();
        let mut complete = true;
        let mut least_new = u32::MAX;
        let mut ranges = Vec::with_capacity(keys.len());
        for key in &keys {
            let column = self.columns.get(key)?;
            let executed = self.executed(key.0);
            let until = executed.map_or(column.in_order, |executed| column.in_order.min(executed));
            let ended = executed.is_some_and(|executed| column.in_order >= executed);
            complete &= ended;
            if !ended {
                least_new = least_new.min(until - column.seen.min(until));
            }
            ranges.push(column.seen.min(until)..until);
        }
        let due = match watching.pace {
            Pace::All => complete,
            Pace::Every(steps) => complete || least_new >= steps.max(1),
        };
        if !due {
            return None;
        }
        let shown = keys.iter().zip(&ranges).filter_map(|(key, range)| Some(self.columns.get(key)?.stacked("", range.clone())));
        let shown = shown.collect();
        for (key, range) in keys.iter().zip(&ranges) {
            if let Some(column) = self.columns.get_mut(key) {
                column.seen = range.end;
            }
        }
        if let Some(watching) = self.watching.as_mut() {
            watching.over = complete;
        }
        Some(shown)
    }

    /// Whether the plugin has been shown all it asked for, so that without a new growth the request ends.
    pub(crate) fn watch_is_over(&self) -> bool {
        self.watching.as_ref().is_none_or(|watching| watching.over || watching.keys.is_empty())
    }

    /// Whether the continuation waits for input (sessions).
    pub(crate) fn waits_for_input(&self) -> bool {
        self.watching.as_ref().is_some_and(|watching| watching.keys.is_empty())
    }

    /// Adds a tensor that the plugin emitted, unless the client takes parts: then it is the caller's to send.
    pub(crate) fn emit(&mut self, model: &ServedModel, tensor: Tensor, parts: &mut Vec<Tensor>) {
        if self.streaming {
            parts.push(tensor);
            return;
        }
        let specs = &model.description().outputs;
        if let Some(position) = specs.iter().position(|spec| spec.name == tensor.name) {
            self.gather(&specs[position], position, tensor);
        }
    }

    fn gather(&mut self, spec: &TensorSpec, position: usize, tensor: Tensor) {
        let before = self.gathered[position].take();
        self.gathered[position] = Some(match before {
            Some(before) => join(spec, before, tensor),
            None => tensor,
        });
    }

    /// Forgets what no later growth can name: everything before `first_chain` that is not kept, once it is in the response.
    pub(crate) fn prune(&mut self, model: &ServedModel, first_chain: u32, keep: &[u32]) {
        let settled = |outputs: &Self, key: &Key| {
            key.0 >= first_chain
                || outputs.columns.get(key).is_none_or(|column| {
                    column.last_only && column.last_step.is_some()
                        || outputs.executed(key.0).is_some_and(|executed| column.in_order >= executed)
                })
        };
        let early = |from: &ResponseFrom| response_keys(from).iter().all(|key| key.0 < first_chain);
        let ready: Vec<bool> = self
            .responses
            .iter()
            .map(|response| early(&response.from) && response_keys(&response.from).iter().all(|key| settled(self, key)))
            .collect();
        let mut ready = ready.into_iter();
        let (done, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.responses).into_iter().partition(|_| ready.next() == Some(true));
        self.responses = rest;
        for response in done {
            self.settle(model, &response);
        }
        let needed: Vec<u32> = self.responses.iter().flat_map(|response| response_keys(&response.from)).map(|key| key.0).collect();
        let watched: Vec<u32> = self.watching.iter().flat_map(|watching| &watching.keys).map(|key| key.0).collect();
        let wanted = |chain: u32| chain >= first_chain || keep.contains(&chain) || needed.contains(&chain) || watched.contains(&chain);
        self.columns.retain(|key, _| wanted(key.0));
        let followed: Vec<u32> = self.chains.iter().filter(|(chain, _)| wanted(**chain)).filter_map(|(_, end)| end.like).collect();
        self.chains.retain(|chain, _| wanted(*chain) || followed.contains(chain));
    }

    /// Puts a response tensor whose values are all there into the response.
    fn settle(&mut self, model: &ServedModel, response: &Response) {
        if response.stream && self.streaming {
            return;
        }
        let Some(spec) = model.description().outputs.get(response.output) else { return };
        let tensor = match &response.from {
            ResponseFrom::Last(key) => self.last(&spec.name, key),
            ResponseFrom::All(key) => {
                let executed = self.executed(key.0).unwrap_or(0);
                self.columns.get(key).map(|column| column.stacked(&spec.name, 0..executed))
            }
            ResponseFrom::Listed(keys) => self.listed(&spec.name, keys),
        };
        if let Some(tensor) = tensor {
            self.gather(spec, response.output, tensor);
        }
    }

    fn last(&self, name: &str, key: &Key) -> Option<Tensor> {
        let step = self.executed(key.0)?.checked_sub(1)?;
        self.columns.get(key)?.row(name, step)
    }

    fn listed(&self, name: &str, keys: &[Key]) -> Option<Tensor> {
        let mut stacked: Option<Tensor> = None;
        for key in keys {
            let step = self.executed(key.0)?.checked_sub(1)?;
            let column = self.columns.get(key)?;
            let row = column.row(name, step)?;
            let stack = stacked.get_or_insert_with(|| {
                let mut shape = vec![0];
                shape.extend_from_slice(&column.row_shape);
                Tensor { name: name.to_owned(), datatype: column.datatype, shape, data: Vec::new() }
            });
            stack.shape[0] += 1;
            stack.data.extend_from_slice(&row.data);
        }
        stacked
    }

    /// The response, once the request has finished.
    pub(crate) fn finish(&mut self, model: &ServedModel) -> Vec<Tensor> {
        for response in std::mem::take(&mut self.responses) {
            self.settle(model, &response);
        }
        self.gathered.iter_mut().filter_map(Option::take).collect()
    }
}

fn executed_of(chains: &BTreeMap<u32, ChainEnd>, chain: u32) -> Option<u32> {
    let end = chains.get(&chain)?;
    if end.stops { end.executed } else { None }
}

fn response_keys(from: &ResponseFrom) -> Vec<Key> {
    match from {
        ResponseFrom::Last(key) | ResponseFrom::All(key) => vec![*key],
        ResponseFrom::Listed(keys) => keys.clone(),
    }
}

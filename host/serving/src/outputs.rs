//! Values of single nodes, as the engine hands them out, become response tensors, streamed parts, and what a continuation watches.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::graph::Pace;
use cellwright_cell_graph::unfolded::{Delivery, ResponseFrom, UnfoldedResponse};
use cellwright_cell_graph::{Datatype, Tensor, TensorSpec, UnfoldedGrowth};
use cellwright_engine::Value;

use crate::join::{adds_nothing, join};

/// One output of one stage of one chain.
type Key = (u32, u32, u32);

/// What is known of where a chain ends.
#[derive(Clone, Copy, Debug)]
struct ChainEnd {
    bound: u32,
    /// The chain with a stop that it follows, directly or along others.
    root: Option<u32>,
    stops: bool,
    /// Known of chains with a stop.
    executed: Option<u32>,
    /// What has not arrived may never do so.
    cancelled: bool,
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
        let data = match self.last_step {
            Some(_) => self.rows.clone(),
            None => self.rows.get(step as usize * self.row_bytes..(step as usize + 1) * self.row_bytes)?.to_vec(),
        };
        Some(Tensor { name: name.to_owned(), datatype: self.datatype, shape: self.row_shape.clone(), data })
    }
}

/// A response tensor that some growth fills.
#[derive(Debug)]
struct Response {
    output: usize,
    from: ResponseFrom,
    stream: bool,
    /// Steps that were streamed.
    streamed: u32,
}

impl Response {
    /// Whether it has been sent by parts to a client that takes them. What is listed has no steps to send one by one.
    const fn is_sent(&self, streaming: bool) -> bool {
        streaming && self.stream && !matches!(self.from, ResponseFrom::Listed(_))
    }
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
    model: Arc<Model>,
    /// The model's outputs as one request sees them.
    specs: Arc<[TensorSpec]>,
    chains: BTreeMap<u32, ChainEnd>,
    columns: BTreeMap<Key, Column>,
    responses: Vec<Response>,
    watching: Option<Watching>,
    /// Whether the client takes parts as they come; otherwise they are put together.
    streaming: bool,
    /// Tensors of the response so far, by the description's position: what was emitted, and what streamed growths left.
    gathered: Vec<Option<Tensor>>,
    /// Which of them have been emitted to a client that takes parts.
    begun: Vec<bool>,
}

impl Outputs {
    pub(crate) fn new(model: Arc<Model>, specs: Arc<[TensorSpec]>, growth: &UnfoldedGrowth, streaming: bool) -> Self {
        let (gathered, begun) = (vec![None; specs.len()], vec![false; specs.len()]);
        let (chains, columns) = (BTreeMap::new(), BTreeMap::new());
        let mut outputs = Self { model, specs, chains, columns, responses: Vec::new(), watching: None, streaming, gathered, begun };
        outputs.grow(growth);
        outputs
    }

    /// Expects what a growth delivers.
    pub(crate) fn grow(&mut self, growth: &UnfoldedGrowth) {
        for (chain, number) in growth.chains.iter().zip(growth.first_chain..) {
            let followed = chain.length.like.and_then(|like| Some((like, *self.chains.get(&like)?)));
            let bound = followed.map_or(chain.length.bound, |(_, followed)| followed.bound.min(chain.length.bound));
            let root = followed.and_then(|(like, followed)| if followed.stops { Some(like) } else { followed.root });
            let stops = chain.stop.is_some();
            self.chains.insert(number, ChainEnd { bound, root: root.filter(|_| !stops), stops, executed: None, cancelled: false });
            for (stage, stage_number) in chain.stages.iter().zip(0..) {
                let Some(cell) = self.model.cells.get(stage.cell as usize) else { continue };
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
                        seen: 0,
                    };
                    self.columns.insert((number, stage_number, output_number), column);
                }
            }
        }
        for cancelled in &growth.cancel {
            if let Some(end) = self.chains.get_mut(cancelled) {
                end.cancelled = true;
            }
        }
        for response in &growth.outputs {
            let UnfoldedResponse { output, from, stream } = response.clone();
            self.responses.push(Response { output: output as usize, from, stream, streamed: 0 });
        }
        self.watching = growth.next.as_ref().map(|watch| Watching { keys: watch.outputs.clone(), pace: watch.pace, over: false });
    }

    /// How many steps a chain executed, once that is known.
    fn executed(&self, chain: u32) -> Option<u32> {
        let end = self.chains.get(&chain)?;
        let stopped = match end.root {
            Some(root) => self.chains.get(&root)?.executed?,
            None if end.stops => end.executed?,
            None => end.bound,
        };
        Some(stopped.min(end.bound))
    }

    /// Steps of an output that are there in order, and whether they are all that will ever be.
    fn arrived(&self, key: &Key) -> Option<(u32, bool)> {
        let (column, end) = (self.columns.get(key)?, self.chains.get(&key.0)?);
        let cancelled = end.cancelled || end.root.and_then(|root| self.chains.get(&root)).is_some_and(|root| root.cancelled);
        Some(match self.executed(key.0) {
            Some(executed) => (column.in_order.min(executed), cancelled || column.in_order >= executed),
            None => (column.in_order, cancelled),
        })
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
    pub(crate) fn parts(&mut self, parts: &mut Vec<Tensor>) {
        if !self.streaming {
            return;
        }
        for index in 0..self.responses.len() {
            let response = &self.responses[index];
            let (ResponseFrom::All(key) | ResponseFrom::Last(key)) = &response.from else { continue };
            let Some((until, _)) = self.arrived(key).filter(|(until, _)| response.stream && *until > response.streamed) else { continue };
            let (Some(column), Some(spec)) = (self.columns.get(key), self.specs.get(response.output)) else { continue };
            match &response.from {
                ResponseFrom::All(_) => parts.push(column.stacked(&spec.name, response.streamed..until)),
                _ => parts.extend((response.streamed..until).filter_map(|step| column.row(&spec.name, step))),
            }
            self.responses[index].streamed = until;
        }
    }

    /// What the plugin is to be shown now, if anything. It is shown once.
    pub(crate) fn watched(&mut self) -> Option<Vec<Tensor>> {
        let mut watching = self.watching.take()?;
        let shown = self.due(&mut watching);
        self.watching = Some(watching);
        shown
    }

    fn due(&mut self, watching: &mut Watching) -> Option<Vec<Tensor>> {
        if watching.over || watching.keys.is_empty() {
            return None;
        }
        let mut complete = true;
        let mut least_new = u32::MAX;
        for key in &watching.keys {
            // The checks of growths see to it that what is watched is there.
            let (Some((until, ended)), Some(column)) = (self.arrived(key), self.columns.get(key)) else { continue };
            complete &= ended;
            if !ended {
                least_new = least_new.min(until.saturating_sub(column.seen));
            }
        }
        let due = match watching.pace {
            Pace::All => complete,
            Pace::Every(steps) => complete || least_new >= steps.max(1),
        };
        if !due {
            return None;
        }
        watching.over = complete;
        let news: Vec<Range<u32>> = watching.keys.iter().map(|key| self.news(key)).collect();
        let shown = watching.keys.iter().zip(&news).filter_map(|(key, news)| Some(self.columns.get(key)?.stacked("", news.clone())));
        let shown = shown.collect();
        for (key, news) in watching.keys.iter().zip(news) {
            if let Some(column) = self.columns.get_mut(key) {
                column.seen = news.end;
            }
        }
        Some(shown)
    }

    /// Steps of an output that the plugin has not seen.
    fn news(&self, key: &Key) -> Range<u32> {
        let until = self.arrived(key).map_or(0, |(until, _)| until);
        self.columns.get(key).map_or(0, |column| column.seen).min(until)..until
    }

    /// Whether the plugin has been shown all it asked for, so that without a new growth the request ends.
    pub(crate) fn watch_is_over(&self) -> bool {
        self.watching.as_ref().is_none_or(|watching| watching.over || watching.keys.is_empty())
    }

    /// Whether the continuation waits for input (sessions).
    pub(crate) fn waits_for_input(&self) -> bool {
        self.watching.as_ref().is_some_and(|watching| watching.keys.is_empty())
    }

    /// Adds a tensor that the plugin emitted, unless the client takes parts: then it is the caller's to send, if it adds anything.
    pub(crate) fn emit(&mut self, tensor: Tensor, parts: &mut Vec<Tensor>) {
        let Some(position) = self.specs.iter().position(|spec| spec.name == tensor.name) else { return };
        if !self.streaming {
            self.gather(position, tensor);
        } else if !self.begun[position] || !adds_nothing(&self.specs[position], &tensor) {
            self.begun[position] = true;
            parts.push(tensor);
        }
    }

    fn gather(&mut self, position: usize, tensor: Tensor) {
        let before = self.gathered[position].take();
        self.gathered[position] = Some(match before {
            Some(before) => join(&self.specs[position], before, tensor),
            None => tensor,
        });
    }

    /// Forgets what no later growth can name: everything before `first_chain` that is not kept, once it is in the response.
    pub(crate) fn prune(&mut self, first_chain: u32, keep: &[u32]) {
        let settled = |outputs: &Self, key: &Key| {
            let is_last = outputs.columns.get(key).is_none_or(|column| column.last_step.is_some());
            is_last || outputs.arrived(key).is_none_or(|(_, all)| all)
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
            self.settle(&response);
        }
        let needed: Vec<u32> = self.responses.iter().flat_map(|response| response_keys(&response.from)).map(|key| key.0).collect();
        let watched: Vec<u32> = self.watching.iter().flat_map(|watching| &watching.keys).map(|key| key.0).collect();
        let wanted = |chain: u32| chain >= first_chain || keep.contains(&chain) || needed.contains(&chain) || watched.contains(&chain);
        self.columns.retain(|key, _| wanted(key.0));
        let followed: Vec<u32> = self.chains.iter().filter(|(chain, _)| wanted(**chain)).filter_map(|(_, end)| end.root).collect();
        self.chains.retain(|chain, _| wanted(*chain) || followed.contains(chain));
    }

    /// Puts a response tensor whose values are all there into the response.
    fn settle(&mut self, response: &Response) {
        if response.is_sent(self.streaming) {
            return;
        }
        let Some(spec) = self.specs.get(response.output) else { return };
        let tensor = match &response.from {
            ResponseFrom::Last(key) => self.last(&spec.name, key),
            ResponseFrom::All(key) => self.arrived(key).and_then(|(steps, _)| Some(self.columns.get(key)?.stacked(&spec.name, 0..steps))),
            ResponseFrom::Listed(keys) => self.listed(&spec.name, keys),
        };
        if let Some(tensor) = tensor {
            self.gather(response.output, tensor);
        }
    }

    /// The last executed step. Where that step alone is delivered, it is there before it is known to be the last.
    fn last(&self, name: &str, key: &Key) -> Option<Tensor> {
        let column = self.columns.get(key)?;
        let step = column.last_step.or_else(|| self.arrived(key)?.0.checked_sub(1))?;
        column.row(name, step)
    }

    fn listed(&self, name: &str, keys: &[Key]) -> Option<Tensor> {
        let mut stacked: Option<Tensor> = None;
        for key in keys {
            let column = self.columns.get(key)?;
            let row = self.last(name, key)?;
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
    ///
    /// # Errors
    /// The name of an output that the model declares and nothing gave. A client that takes parts has seen for itself what came.
    pub(crate) fn finish(&mut self) -> Result<Vec<Tensor>, String> {
        for response in std::mem::take(&mut self.responses) {
            self.settle(&response);
        }
        let missing = self.gathered.iter().zip(self.specs.iter()).find(|(tensor, _)| tensor.is_none());
        if let Some((_, spec)) = missing.filter(|_| !self.streaming) {
            return Err(spec.name.clone());
        }
        Ok(self.gathered.iter_mut().filter_map(Option::take).collect())
    }
}

fn response_keys(from: &ResponseFrom) -> Vec<Key> {
    match from {
        ResponseFrom::Last(key) | ResponseFrom::All(key) => vec![*key],
        ResponseFrom::Listed(keys) => keys.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell_graph::Description;

    fn outputs(streaming: bool) -> Outputs {
        let spec = TensorSpec { name: "text".to_owned(), datatype: Datatype::Bytes, shape: vec![1] };
        let description =
            Description { inputs: vec![], outputs: vec![spec.clone()], cells: vec![], rows_are_requests: false, live_max: None };
        let model = Arc::new(Model { description, cells: vec![] });
        let growth = UnfoldedGrowth { first_chain: 0, chains: vec![], outputs: vec![], cancel: vec![], next: None, nodes: 0 };
        Outputs::new(model, Arc::from([spec]), &growth, streaming)
    }

    fn sent(outputs: &mut Outputs, texts: &[&str]) -> Vec<Tensor> {
        let mut parts = Vec::new();
        for text in texts {
            outputs.emit(Tensor::from_texts("text", &[1], &[text]), &mut parts);
        }
        parts
    }

    #[test]
    fn a_part_that_adds_nothing_is_sent_only_where_there_is_no_other() {
        let text = |text: &str| Tensor::from_texts("text", &[1], &[text]);
        assert_eq!(sent(&mut outputs(true), &["2", "", "6", ""]), [text("2"), text("6")]);
        assert_eq!(sent(&mut outputs(true), &["", "", "6"]), [text(""), text("6")]);
        let mut whole = outputs(false);
        assert_eq!(sent(&mut whole, &["2", "6", ""]), []);
        assert_eq!(whole.finish(), Ok(vec![text("26")]));
        assert_eq!(sent(&mut whole, &[""]), []);
        assert_eq!(whole.finish(), Ok(vec![text("")]));
    }
}

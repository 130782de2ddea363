//! Values of single nodes, as the engine hands them out, become response tensors, streamed parts, and what a continuation watches.

mod column;
#[cfg(test)]
mod tests;
mod watching;

use std::collections::BTreeMap;
use std::sync::Arc;

use cellwright_cell_graph::check::Model;
use cellwright_cell_graph::unfolded::{Delivery, ResponseFrom, UnfoldedResponse};
use cellwright_cell_graph::{Tensor, TensorSpec, UnfoldedGrowth};
use cellwright_engine::Value;

use crate::answer_room::{AnswerRoom, NoRoom};
use crate::join::{adds_nothing, join};
use column::Column;
use watching::Watching;

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

    /// What it is made of.
    fn keys(&self) -> &[Key] {
        match &self.from {
            ResponseFrom::Last(key) | ResponseFrom::All(key) => std::slice::from_ref(key),
            ResponseFrom::Listed(keys) => keys,
        }
    }
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
    /// Streamed responses by what they are made of, where the client takes parts: positions in `responses`.
    streams: BTreeMap<Key, Vec<usize>>,
    /// Those of which more arrived since parts were last asked for.
    fresh: Vec<usize>,
    watching: Option<Watching>,
    /// Whether the client takes parts as they come; otherwise they are put together.
    streaming: bool,
    /// Tensors of the response so far, by the description's position: what was emitted, and what streamed growths left.
    gathered: Vec<Option<Tensor>>,
    /// Which of them have been emitted to a client that takes parts.
    begun: Vec<bool>,
    /// How much all of this may take, and what is taken of it.
    room: Arc<AnswerRoom>,
    taken: u64,
    /// How often it was asked what has arrived of an output: what the work grows with.
    #[cfg(test)]
    looks: std::cell::Cell<u64>,
}

/// What a request's outputs are taken in for.
pub(crate) struct Taking {
    pub(crate) model: Arc<Model>,
    /// The model's outputs as one request sees them.
    pub(crate) specs: Arc<[TensorSpec]>,
    /// Whether the client takes parts as they come.
    pub(crate) streaming: bool,
    pub(crate) room: Arc<AnswerRoom>,
}

impl Outputs {
    /// Expects what a first growth delivers.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(crate) fn new(taking: Taking, growth: &UnfoldedGrowth) -> Result<Self, NoRoom> {
        let Taking { model, specs, streaming, room } = taking;
        let mut outputs = Self {
            model,
            chains: BTreeMap::new(),
            columns: BTreeMap::new(),
            responses: Vec::new(),
            streams: BTreeMap::new(),
            fresh: Vec::new(),
            watching: None,
            streaming,
            gathered: specs.iter().map(|_| None).collect(),
            begun: vec![false; specs.len()],
            specs,
            room,
            taken: 0,
            #[cfg(test)]
            looks: std::cell::Cell::new(0),
        };
        outputs.expect(growth);
        outputs.take_room()?;
        Ok(outputs)
    }

    /// Expects what a growth delivers, and forgets what it does not keep.
    ///
    /// # Errors
    /// If there is no room for what may come of it.
    pub(crate) fn grow(&mut self, growth: &UnfoldedGrowth) -> Result<(), NoRoom> {
        self.expect(growth);
        self.prune(growth.first_chain, growth.next.as_ref().map(|watch| watch.keep.as_slice()).unwrap_or_default());
        self.take_room()
    }

    fn expect(&mut self, growth: &UnfoldedGrowth) {
        for (chain, number) in growth.chains.iter().zip(growth.first_chain..) {
            let followed = chain.length.like.and_then(|like| Some((like, *self.chains.get(&like)?)));
            let bound = followed.map_or(chain.length.bound, |(_, followed)| followed.bound.min(chain.length.bound));
            let root = followed.and_then(|(like, followed)| if followed.stops { Some(like) } else { followed.root });
            let stops = chain.stop.is_some();
            self.chains.insert(number, ChainEnd { bound, root: root.filter(|_| !stops), stops, executed: None, cancelled: false });
            for (stage, stage_number) in chain.stages.iter().zip(0..) {
                let Some(cell) = self.model.cells.get(stage.cell as usize) else { continue };
                for ((delivery, output), output_number) in stage.delivery.iter().zip(&cell.outputs).zip(0..) {
                    if *delivery != Delivery::None {
                        let column = Column::new(&output.port, *delivery == Delivery::Last);
                        self.columns.insert((number, stage_number, output_number), column);
                    }
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
        self.index_streams();
        self.watch(growth.next.as_ref());
    }

    fn index_streams(&mut self) {
        self.streams.clear();
        self.fresh.clear();
        for (position, response) in self.responses.iter().enumerate().filter(|_| self.streaming) {
            if let (ResponseFrom::All(key) | ResponseFrom::Last(key), true) = (&response.from, response.stream) {
                self.streams.entry(*key).or_default().push(position);
            }
        }
    }

    /// Takes room for all that may still be held at once: rows as they arrive, and copies of them for the response and for the plugin.
    fn take_room(&mut self) -> Result<(), NoRoom> {
        let bytes = self.bytes();
        self.room.change(self.taken, bytes)?;
        self.taken = bytes;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let column = |key: &Key| self.columns.get(key).map_or(0, |column| column.bytes(self.chains.get(&key.0).map_or(0, |end| end.bound)));
        let row = |key: &Key| self.columns.get(key).map_or(0, Column::row_bytes);
        let response = |response: &Response| match &response.from {
            _ if response.is_sent(self.streaming) => 0,
            ResponseFrom::Last(key) => row(key),
            ResponseFrom::All(key) => column(key),
            ResponseFrom::Listed(keys) => keys.iter().map(row).fold(0, u64::saturating_add),
        };
        let columns = self.columns.keys().map(column);
        let responses = self.responses.iter().map(response);
        let watched = self.watching.iter().flat_map(|watching| &watching.keys).map(column);
        let gathered = self.gathered.iter().flatten().map(|tensor| tensor.data.len() as u64);
        columns.chain(responses).chain(watched).chain(gathered).fold(0, u64::saturating_add)
    }

    /// Lets go of everything: nobody will ask any more. What was taken of the room stays taken, because the answer is on its way.
    pub(crate) fn clear(&mut self) {
        self.watching = None;
        self.columns.clear();
        self.chains.clear();
        self.responses.clear();
        self.streams.clear();
        self.fresh.clear();
        self.gathered.fill(None);
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
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        let (column, end) = (self.columns.get(key)?, self.chains.get(&key.0)?);
        let cancelled = end.cancelled || end.root.and_then(|root| self.chains.get(&root)).is_some_and(|root| root.cancelled);
        Some(match self.executed(key.0) {
            Some(executed) => (column.in_order.min(executed), cancelled || column.in_order >= executed),
            None => (column.in_order, cancelled),
        })
    }

    pub(crate) fn value(&mut self, value: Value<'_>) {
        let key = (value.chain, value.stage, value.output);
        let Some(column) = self.columns.get_mut(&key) else { return };
        column.take(value.step, value.bytes);
        if column.awaited {
            self.look_at(&key);
        }
        if let Some(streams) = self.streams.get(&key) {
            self.fresh.extend_from_slice(streams);
        }
    }

    pub(crate) fn ended(&mut self, chain: u32, executed: u32) {
        if let Some(end) = self.chains.get_mut(&chain) {
            end.executed = Some(executed);
            self.look_at_followers(chain);
        }
    }

    /// Parts of streamed outputs that have arrived since the last call.
    pub(crate) fn parts(&mut self, parts: &mut Vec<Tensor>) {
        while let Some(index) = self.fresh.pop() {
            let Some(response) = self.responses.get(index) else { continue };
            let (ResponseFrom::All(key) | ResponseFrom::Last(key)) = &response.from else { continue };
            let Some((until, _)) = self.arrived(key).filter(|(until, _)| *until > response.streamed) else { continue };
            let (Some(column), Some(spec)) = (self.columns.get(key), self.specs.get(response.output)) else { continue };
            match &response.from {
                ResponseFrom::All(_) => parts.push(column.stacked(&spec.name, response.streamed..until)),
                _ => parts.extend((response.streamed..until).filter_map(|step| column.row(&spec.name, step))),
            }
            self.responses[index].streamed = until;
        }
    }

    /// Adds a tensor that the plugin emitted, unless the client takes parts: then it is the caller's to send, if it adds anything.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(crate) fn emit(&mut self, tensor: Tensor, parts: &mut Vec<Tensor>) -> Result<(), NoRoom> {
        let Some(position) = self.specs.iter().position(|spec| spec.name == tensor.name) else { return Ok(()) };
        if !self.streaming {
            return self.gather_emitted(position, tensor);
        }
        if !self.begun[position] || !adds_nothing(&self.specs[position], &tensor) {
            self.begun[position] = true;
            parts.push(tensor);
        }
        Ok(())
    }

    fn gather_emitted(&mut self, position: usize, tensor: Tensor) -> Result<(), NoRoom> {
        let held = |tensor: &Option<Tensor>| tensor.as_ref().map_or(0, |tensor| tensor.data.len() as u64);
        // Both pieces are there while they are joined.
        let both = self.taken.saturating_add(tensor.data.len() as u64);
        self.room.change(self.taken, both)?;
        let before = held(&self.gathered[position]);
        self.gather(position, tensor);
        let joined = self.taken.saturating_sub(before).saturating_add(held(&self.gathered[position]));
        self.taken = both;
        self.room.change(both, joined)?;
        self.taken = joined;
        Ok(())
    }

    fn gather(&mut self, position: usize, tensor: Tensor) {
        let before = self.gathered[position].take();
        self.gathered[position] = Some(match before {
            Some(before) => join(&self.specs[position], before, tensor),
            None => tensor,
        });
    }

    /// Forgets what no later growth can name: everything before `first_chain` that is not kept (`keep` ascends), once it is in the response.
    fn prune(&mut self, first_chain: u32, keep: &[u32]) {
        let settled = |outputs: &Self, key: &Key| {
            let is_last = outputs.columns.get(key).is_none_or(|column| column.last_step.is_some());
            is_last || outputs.arrived(key).is_none_or(|(_, all)| all)
        };
        let ready = |response: &Response| response.keys().iter().all(|key| key.0 < first_chain && settled(self, key));
        let ready: Vec<bool> = self.responses.iter().map(ready).collect();
        let mut ready = ready.into_iter();
        let (done, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.responses).into_iter().partition(|_| ready.next() == Some(true));
        self.responses = rest;
        for response in done {
            self.settle(&response);
        }
        self.index_streams();
        let watched = self.watching.iter().flat_map(|watching| &watching.keys);
        let named = self.responses.iter().flat_map(|response| response.keys()).chain(watched).map(|key| key.0);
        let named = ascending(named.chain(keep.iter().copied()).filter(|chain| *chain < first_chain).collect());
        let wanted = |chain: u32| chain >= first_chain || named.binary_search(&chain).is_ok();
        self.columns.retain(|key, _| wanted(key.0));
        let followed = self.chains.iter().filter(|(chain, _)| wanted(**chain)).filter_map(|(_, end)| end.root);
        let followed = ascending(followed.collect());
        self.chains.retain(|chain, _| wanted(*chain) || followed.binary_search(chain).is_ok());
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
            let stack = stacked.get_or_insert_with(|| column.no_rows(name));
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

fn ascending(mut chains: Vec<u32>) -> Vec<u32> {
    chains.sort_unstable();
    chains.dedup();
    chains
}

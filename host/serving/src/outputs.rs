//! Values of single nodes, as the engine hands them out, become response tensors, streamed parts, and what a continuation watches.

mod column;
mod graphs;
mod ordered;
mod sending;
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
use crate::join::{Piece, adds_nothing, joined};
use column::Column;
use graphs::Graphs;
use ordered::{Given, OrderedOutput, keys};
use sending::Sending;
use watching::Watching;

/// What taking in or putting together a value costs, as if it were so many bytes more.
const VALUE_WORK: usize = 64;

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

impl ChainEnd {
    /// The chain with a stop that must end before it is known where this `chain` does: itself, or the one that it follows.
    fn awaited(&self, chain: u32) -> Option<u32> {
        self.root.or_else(|| self.stops.then_some(chain))
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
    /// What the response is made of, by the description's position.
    lines: Vec<OrderedOutput>,
    /// Where the client takes parts as they come; otherwise they are put together.
    sending: Option<Sending>,
    watching: Option<Watching>,
    /// How many bytes it will take to put together what has arrived.
    work: usize,
    /// How much all of this may take, and what is taken of it.
    room: Arc<AnswerRoom>,
    taken: u64,
    graphs: Graphs,
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
        let mut outputs = Self::empty(taking);
        outputs.expect(growth);
        outputs.take_room()?;
        Ok(outputs)
    }

    fn empty(taking: Taking) -> Self {
        let Taking { model, specs, streaming, room } = taking;
        Self {
            model,
            chains: BTreeMap::new(),
            columns: BTreeMap::new(),
            lines: specs.iter().map(|_| OrderedOutput::default()).collect(),
            sending: streaming.then(Sending::default),
            watching: None,
            work: 0,
            specs,
            room,
            taken: 0,
            graphs: Graphs::default(),
            #[cfg(test)]
            looks: std::cell::Cell::new(0),
        }
    }

    /// All that has arrived, for whoever ends the request: nobody will ask here any more, and nothing is taken in.
    pub(crate) fn take(&mut self) -> Self {
        let nothing = Self::empty(Taking { room: Arc::new(AnswerRoom::alone(0)), ..self.taking() });
        std::mem::replace(self, nothing)
    }

    /// Takes room for a growth, which lasts as long as anybody holds it.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn hold(&mut self, growth: &Arc<UnfoldedGrowth>) -> Result<(), NoRoom> {
        self.graphs.hold(growth, &self.room)
    }

    /// Lets go of what has arrived, and gives back the room for it: what others are taken in for instead of these.
    pub(crate) fn anew(mut self) -> Taking {
        self.give_back(self.taken);
        self.graphs.give_back(&self.room);
        self.taking()
    }

    fn taking(&self) -> Taking {
        let (model, specs, room) = (self.model.clone(), self.specs.clone(), self.room.clone());
        Taking { model, specs, streaming: self.sending.is_some(), room }
    }

    /// The room that it takes from. What was taken stays taken as long as somebody holds this.
    pub(crate) const fn room(&self) -> &Arc<AnswerRoom> {
        &self.room
    }

    /// How many bytes it will take, about, to put together what has arrived.
    pub(crate) fn work(&self) -> usize {
        // What arrived once may be given more than once; room for all of that was taken.
        self.work.max(usize::try_from(self.taken).unwrap_or(usize::MAX))
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
                        let column = Column::new(&output.port, *delivery == Delivery::Last, bound);
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
        for UnfoldedResponse { output, from, stream } in &growth.outputs {
            self.give(*output as usize, from.clone(), *stream);
        }
        self.watch(growth.next.as_ref());
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
        let pending = |given: &Given| match given {
            Given::Graph(ResponseFrom::Last(key)) => row(key),
            Given::Graph(ResponseFrom::All(key)) => column(key),
            Given::Graph(ResponseFrom::Listed(keys)) => keys.iter().map(row).fold(0, u64::saturating_add),
            Given::Piece(_) => 0,
        };
        let columns = self.columns.keys().map(column);
        let pending = self.lines.iter().flat_map(|line| &line.pending).map(pending);
        let watched = self.watching.iter().flat_map(|watching| &watching.keys).map(column);
        let pieces = self.lines.iter().map(|line| line.bytes).chain(self.sending.iter().map(|sending| sending.bytes));
        columns.chain(pending).chain(watched).chain(pieces).fold(0, u64::saturating_add)
    }

    /// How many steps a chain executed, once that is known.
    fn executed(&self, chain: u32) -> Option<u32> {
        let end = self.chains.get(&chain)?;
        let stopped = match end.awaited(chain) {
            Some(root) => self.chains.get(&root)?.executed?,
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

    /// Whether everything has arrived that the graph so far delivers.
    pub(crate) fn is_complete(&self) -> bool {
        self.columns.iter().all(|(key, column)| match self.executed(key.0) {
            Some(executed) if column.last_only => executed <= column.last_step.map_or(0, |step| step + 1),
            _ => false,
        } || self.arrived(key).is_none_or(|(_, all)| all))
    }

    pub(crate) fn value(&mut self, value: Value<'_>) {
        let key = (value.chain, value.stage, value.output);
        let Some(column) = self.columns.get_mut(&key) else { return };
        column.take(value.step, value.bytes);
        self.work = self.work.saturating_add(value.bytes.len() + VALUE_WORK);
        if column.awaited {
            self.look_at(&key);
        }
        if let Some(sending) = self.sending.as_mut() {
            sending.arrived(&key);
        }
    }

    pub(crate) fn ended(&mut self, chain: u32, executed: u32) {
        if let Some(end) = self.chains.get_mut(&chain) {
            end.executed = Some(executed);
            self.look_at_followers(chain);
            if let Some(sending) = self.sending.as_mut() {
                sending.ended(chain);
            }
        }
    }

    /// Adds a tensor that the plugin emitted. Where the client takes parts it is one, as soon as it is its turn; it is left out if it adds nothing.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(crate) fn emit(&mut self, tensor: Tensor, parts: &mut Vec<Tensor>) -> Result<(), NoRoom> {
        let Some(output) = self.specs.iter().position(|spec| spec.name == tensor.name) else { return Ok(()) };
        let (line, spec) = (&mut self.lines[output], &self.specs[output]);
        if self.sending.is_some() {
            if line.begun && adds_nothing(spec, &tensor) {
                return Ok(());
            }
            line.begun = true;
            if line.sent.is_empty() {
                parts.push(tensor);
                return Ok(());
            }
        }
        self.work = self.work.saturating_add(tensor.data.len() + VALUE_WORK);
        let piece = Piece::from(tensor);
        let bytes = self.taken.saturating_add(piece.bytes());
        self.room.change(self.taken, bytes)?;
        self.taken = bytes;
        let line = &mut self.lines[output];
        match self.sending.as_mut() {
            Some(sending) => sending.wait(line, piece),
            None => {
                let replaced = line.add(&self.specs[output], piece);
                self.give_back(replaced);
            }
        }
        Ok(())
    }

    fn give_back(&mut self, bytes: u64) {
        let taken = self.taken.saturating_sub(bytes);
        // To take less always succeeds.
        let _ = self.room.change(self.taken, taken);
        self.taken = taken;
    }

    /// Forgets what no later growth can name: everything before `first_chain` that is not kept (`keep` ascends), once it is in the response.
    fn prune(&mut self, first_chain: u32, keep: &[u32]) {
        self.settle(|outputs, key| {
            let is_last = || outputs.columns.get(key).is_none_or(|column| column.last_step.is_some());
            key.0 < first_chain && (is_last() || outputs.arrived(key).is_none_or(|(_, all)| all))
        });
        let watched = self.watching.iter().flat_map(|watching| &watching.keys);
        let named = self.lines.iter().flat_map(OrderedOutput::keys).chain(watched).map(|key| key.0);
        let named = ascending(named.chain(keep.iter().copied()).filter(|chain| *chain < first_chain).collect());
        let wanted = |chain: u32| chain >= first_chain || named.binary_search(&chain).is_ok();
        self.columns.retain(|key, _| wanted(key.0));
        let followed = self.chains.iter().filter(|(chain, _)| wanted(**chain)).filter_map(|(_, end)| end.root);
        let followed = ascending(followed.collect());
        self.chains.retain(|chain, _| wanted(*chain) || followed.binary_search(chain).is_ok());
    }

    /// Puts into the response what is there, as far as everything before it is.
    fn settle(&mut self, is_there: impl Fn(&Self, &Key) -> bool) {
        for output in 0..self.lines.len() {
            while let Some(given) = self.lines[output].pending.pop_front() {
                let piece = match given {
                    Given::Graph(from) if !keys(&from).iter().all(|key| is_there(self, key)) => {
                        self.lines[output].pending.push_front(Given::Graph(from));
                        break;
                    }
                    Given::Graph(from) => self.piece(&from),
                    Given::Piece(piece) => {
                        self.lines[output].bytes -= piece.bytes();
                        Some(piece)
                    }
                };
                if let Some(piece) = piece {
                    self.lines[output].settle(&self.specs[output], piece);
                }
            }
        }
    }

    /// What a growth gives, once it is there.
    fn piece(&self, from: &ResponseFrom) -> Option<Piece> {
        match from {
            ResponseFrom::Last(key) => Some(self.last(key)?.trimmed()),
            ResponseFrom::All(key) => {
                let (steps, _) = self.arrived(key)?;
                Some(self.columns.get(key)?.stacked(0..steps).trimmed())
            }
            ResponseFrom::Listed(keys) => self.listed(keys),
        }
    }

    /// The last executed step. Where that step alone is delivered, it is there before it is known to be the last.
    fn last(&self, key: &Key) -> Option<Piece> {
        let column = self.columns.get(key)?;
        let step = column.last_step.or_else(|| self.arrived(key)?.0.checked_sub(1))?;
        column.row(step)
    }

    fn listed(&self, keys: &[Key]) -> Option<Piece> {
        let mut stacked = self.columns.get(keys.first()?)?.no_rows();
        stacked.shape[0] = keys.len();
        for key in keys {
            stacked.runs.append(&mut self.last(key)?.runs);
        }
        Some(stacked)
    }

    /// The response, once the request has finished: what is large of it is copied here.
    ///
    /// # Errors
    /// The name of an output that the model declares and nothing gave. A client that takes parts has seen for itself what came.
    pub(crate) fn answer(mut self) -> Result<Vec<Tensor>, String> {
        self.settle(|_, _| true);
        // The rows are where they are needed, or nowhere.
        self.columns.clear();
        let mut answer = Vec::with_capacity(self.specs.len());
        for (line, spec) in self.lines.into_iter().zip(self.specs.iter()) {
            match joined(spec, line.settled) {
                Some(tensor) => answer.push(tensor),
                None if self.sending.is_some() => {}
                None => return Err(spec.name.clone()),
            }
        }
        Ok(answer)
    }
}

fn ascending(mut chains: Vec<u32>) -> Vec<u32> {
    chains.sort_unstable();
    chains.dedup();
    chains
}

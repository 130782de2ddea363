//! Which models requests may name, and how many requests of each there are: a model's cells go when its last request has left.

use std::sync::Arc;

use cellwright_scheduler::ModelId;
use crossbeam_channel::Sender;

use crate::model::LoadedModel;

struct Entry {
    model: Arc<LoadedModel>,
    requests: u32,
    /// The last task that has rows of it.
    task: u64,
    /// Who wants to hear when there are none left; with the first of them no more are taken.
    closed: Vec<Sender<()>>,
}

/// Models by id.
#[derive(Default)]
pub(super) struct Models {
    entries: Vec<Option<Entry>>,
    /// Tasks so far.
    tasks: u64,
}

/// The models that have rows in a task, each counted once.
pub(super) struct OfTask<'a> {
    models: &'a mut Models,
    last: Option<ModelId>,
    rows: usize,
    steps: u32,
}

impl OfTask<'_> {
    pub(super) fn have_row(&mut self, model: ModelId) {
        if self.last.replace(model) == Some(model) {
            return;
        }
        let task = self.models.tasks;
        if let Some(Some(entry)) = self.models.entries.get_mut(model.index())
            && std::mem::replace(&mut entry.task, task) != task
        {
            entry.model.counters.launched(self.rows, self.steps);
        }
    }
}

impl Models {
    pub(super) fn up(&mut self, model: Arc<LoadedModel>) {
        let index = model.id.index();
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        self.entries[index] = Some(Entry { model, requests: 0, task: 0, closed: Vec::new() });
    }

    /// The model, until its last request has left.
    pub(super) fn get(&self, model: ModelId) -> Option<&LoadedModel> {
        self.entries.get(model.index())?.as_ref().map(|entry| &*entry.model)
    }

    /// A task of so many rows and steps is made up.
    pub(super) fn of_task(&mut self, (rows, steps): (usize, u32)) -> OfTask<'_> {
        self.tasks += 1;
        OfTask { models: self, last: None, rows, steps }
    }

    pub(super) fn down(&mut self, model: ModelId, gone: Sender<()>) {
        if let Some(Some(entry)) = self.entries.get_mut(model.index()) {
            entry.closed.push(gone);
        }
        self.forget_if_left(model);
    }

    /// Counts a request in, of the model that was loaded under that id at that time; false if that is not, or no longer, taking any.
    pub(super) fn enter(&mut self, model: ModelId, load: u64) -> bool {
        let Some(Some(entry)) = self.entries.get_mut(model.index()) else { return false };
        let open = entry.closed.is_empty() && entry.model.load == load;
        entry.requests += u32::from(open);
        open
    }

    /// Counts a request out.
    pub(super) fn leave(&mut self, model: ModelId) {
        if let Some(Some(entry)) = self.entries.get_mut(model.index()) {
            entry.requests = entry.requests.saturating_sub(1);
        }
        self.forget_if_left(model);
    }

    fn forget_if_left(&mut self, model: ModelId) {
        let Some(place) = self.entries.get_mut(model.index()) else { return };
        let left = place.take_if(|entry| entry.requests == 0 && !entry.closed.is_empty());
        for gone in left.into_iter().flat_map(|entry| entry.closed) {
            // Who asked may have given up waiting.
            let _ = gone.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{TryRecvError, bounded};

    use super::*;
    use crate::figures::ModelCounters;

    #[test]
    fn everybody_who_asked_hears_that_the_last_request_has_left() {
        let (name, counters) = (String::new(), Arc::new(ModelCounters::new(Vec::new())));
        let model = Arc::new(LoadedModel { id: ModelId(0), load: 0, name, tenant: 0, cells: Vec::new(), indices: [].into(), counters });
        let mut models = Models::default();
        models.up(model.clone());
        assert!(models.enter(model.id, model.load));
        let heard = [(); 2].map(|()| {
            let (gone, heard) = bounded(1);
            models.down(model.id, gone);
            heard
        });
        assert!(!models.enter(model.id, model.load), "it takes no more");
        assert!(heard.iter().all(|heard| heard.try_recv() == Err(TryRecvError::Empty)), "a request of it goes on");
        models.leave(model.id);
        assert!(heard.iter().all(|heard| heard.try_recv() == Ok(())));
    }
}

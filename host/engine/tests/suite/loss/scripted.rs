//! A device that computes nothing: it completes as many tasks as it is let, is lost when that is due, and notes what it is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cellwright_backend::{Backend, CellTypeId, Completed, DeviceInfo, DeviceLost, Lane, LoadError, Prepared, SLOT_BYTES, Slot, Task};
use cellwright_cell_graph::TypedCell;

/// Nothing in these tests takes nearly as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What a device was told, with the slots concerned.
#[derive(Clone, Debug)]
enum Note {
    /// To run a task: the first slots of its rows' stages.
    Task(Vec<u32>),
    Read,
    Write(Range<u32>),
}

/// A device as the test sees it.
#[derive(Clone)]
pub(crate) struct Scripted {
    info: DeviceInfo,
    script: Arc<(Mutex<Script>, Condvar)>,
}

struct Script {
    notes: Vec<Note>,
    /// Tasks that it may still complete.
    may_complete: usize,
    /// The task with which it is lost.
    lost_with: usize,
}

impl Scripted {
    pub(crate) fn new(name: &str, domain: &str, arena_slots: u32) -> Self {
        let [name, domain, numeric_class, hardware] = [name, domain, "none", "none"].map(str::to_owned);
        let script = Script { notes: Vec::new(), may_complete: 0, lost_with: usize::MAX };
        let info = DeviceInfo { name, numeric_class, domain, arena_slots, hardware, threads: 0 };
        Self { info, script: Arc::new((Mutex::new(script), Condvar::new())) }
    }

    pub(crate) fn device(&self) -> Box<dyn Backend> {
        Box::new(Device { scripted: self.clone(), lanes: BTreeMap::new(), tasks: VecDeque::new() })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Script) -> T) -> T {
        let done = act(&mut self.script.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.script.1.notify_all();
        done
    }

    /// So many tasks more may be completed.
    pub(crate) fn complete(&self, tasks: usize) {
        self.with(|script| script.may_complete += tasks);
    }

    /// It is lost with the task of that number, the first being 1.
    pub(crate) fn is_lost_with_task(&self, number: usize) {
        self.with(|script| script.lost_with = number);
    }

    fn notes(&self) -> Vec<Note> {
        self.with(|script| script.notes.clone())
    }

    /// Tasks that it was given.
    pub(crate) fn tasks(&self) -> usize {
        self.notes().iter().filter(|note| matches!(note, Note::Task(_))).count()
    }

    /// First slots of the stages whose rows it was given, but for its first tasks.
    pub(crate) fn slots_run(&self, after: usize) -> BTreeSet<u32> {
        let slots = |note| if let Note::Task(slots) = note { Some(slots) } else { None };
        self.notes().into_iter().filter_map(slots).skip(after).flatten().collect()
    }

    /// Whether it was asked for somebody's state.
    pub(crate) fn has_read(&self) -> bool {
        self.notes().iter().any(|note| matches!(note, Note::Read))
    }

    pub(crate) fn slots_written(&self) -> BTreeSet<u32> {
        let slots = |note| if let Note::Write(slots) = note { slots } else { 0..0 };
        self.notes().into_iter().flat_map(slots).collect()
    }
}

struct Device {
    scripted: Scripted,
    lanes: BTreeMap<u32, Arc<Lane>>,
    tasks: VecDeque<Task>,
}

impl Backend for Device {
    fn info(&self) -> DeviceInfo {
        self.scripted.info.clone()
    }

    fn install(&mut self, _: CellTypeId, _: &Arc<TypedCell>, _: Prepared) -> Result<(), LoadError> {
        Ok(())
    }

    fn unload(&mut self, _: CellTypeId) {}

    fn submit(&mut self, task: Task) -> Result<(), DeviceLost> {
        self.lanes.retain(|lane, _| !task.leaves.iter().any(|leaves| leaves.0 == *lane));
        self.lanes.extend(task.joins.iter().map(|(index, lane)| (index.0, lane.clone())));
        let slots = task.rows.iter().map(|row| self.lanes[&row.lane.0].slot().0).collect();
        self.tasks.push_back(task);
        self.scripted.with(|script| {
            let number = 1 + script.notes.iter().filter(|note| matches!(note, Note::Task(_))).count();
            script.notes.push(Note::Task(slots));
            if number < script.lost_with {
                return Ok(());
            }
            Err(DeviceLost { device: self.scripted.info.name.clone(), cause: "its script says so".to_owned() })
        })
    }

    fn complete(&mut self) -> Result<Option<Completed>, DeviceLost> {
        let Some(task) = self.tasks.pop_front() else { return Ok(None) };
        let script = self.scripted.script.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.scripted.script.1.wait_timeout_while(script, PATIENCE, |script| script.may_complete == 0);
        let (mut script, _) = waited.unwrap_or_else(PoisonError::into_inner);
        // Whoever is not let for so long ends all the same, so that a test that fails does.
        script.may_complete = script.may_complete.saturating_sub(1);
        Ok(Some(Completed { seq: task.seq, busy_ns: 1000, rows: task.rows, ..Completed::default() }))
    }

    fn read(&mut self, _: Slot, count: u32) -> Result<Vec<u8>, DeviceLost> {
        self.scripted.with(|script| script.notes.push(Note::Read));
        Ok(vec![0; count as usize * SLOT_BYTES])
    }

    fn write(&mut self, first: Slot, bytes: &[u8]) -> Result<(), DeviceLost> {
        let count = u32::try_from(bytes.len() / SLOT_BYTES).unwrap_or(u32::MAX);
        self.scripted.with(|script| script.notes.push(Note::Write(first.0..first.0 + count)));
        Ok(())
    }

    fn time_batch(&mut self, _: CellTypeId, _: u32) -> Result<Duration, DeviceLost> {
        Ok(Duration::from_micros(10))
    }
}

/// Waits until something holds.
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "still waiting until {what}");
        std::thread::yield_now();
    }
}

//! Writes a recording beside a running scheduler, which never waits for it: a thread does the work, and if it cannot keep up the recording ends.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_scheduler::{Commands, Config, Event, Time};
use serde::Serialize;

use super::entry::{Entry, Header, Told, bare};
use super::{FORMAT, FRAME_BYTES_MAX, MARK, RecordingError, fingerprint};

/// Calls of the scheduler that may wait to be written.
const QUEUE: usize = 1 << 14;
/// Graphs that are known by number at once, and what they may take in memory.
const GROWTHS_MAX: usize = 1 << 16;
const GROWTHS_BYTES_MAX: usize = 64 << 20;

/// A call of the scheduler, on its way to the file.
struct Call {
    now: Time,
    events: Vec<Event>,
    ended: Vec<Time>,
    decisions: u64,
}

/// Records a scheduler.
#[derive(Debug)]
pub struct Recorder {
    /// None once the recording has ended.
    calls: Option<SyncSender<Call>>,
    /// What the scheduler is told at the moment.
    told: Option<(Time, Vec<Event>, Vec<Time>)>,
    thread: Option<JoinHandle<()>>,
    file: String,
}

impl Recorder {
    /// A recording in a new file, of a scheduler with that configuration that was told nothing yet.
    ///
    /// # Errors
    /// If there is such a file already, or none can be made.
    pub fn create(path: &Path, config: &Config) -> Result<Self, RecordingError> {
        let name = path.display().to_string();
        let cannot = |error: &io::Error| {
            let problem = match error.kind() {
                io::ErrorKind::AlreadyExists => "the file exists already; a recording needs a new one".to_owned(),
                _ => error.to_string(),
            };
            RecordingError { file: path.display().to_string(), problem }
        };
        let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| cannot(&error))?;
        let mut frames = Frames { file: BufWriter::new(file), growths: BTreeMap::new(), growths_bytes: 0, body: Vec::new() };
        frames.begin(config).map_err(|error| {
            // Nothing is in it, and it would be in the way of the next one.
            let _ = std::fs::remove_file(path);
            cannot(&error)
        })?;
        let (calls, queue) = sync_channel(QUEUE);
        let label = name.clone();
        let run = move || {
            if let Err(error) = frames.run(&queue) {
                tracing::warn!("the recording {label} ends early: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("recorder".to_owned()).spawn(run).map_err(|error| cannot(&error))?;
        Ok(Self { calls: Some(calls), told: None, thread: Some(thread), file: name })
    }

    /// The scheduler is told this; when the tasks of which [`Event::Done`] tells ended, in their order.
    pub fn told(&mut self, now: Time, events: &[Event], ended: &[Time]) {
        if self.calls.is_some() {
            self.told = Some((now, events.to_vec(), ended.to_vec()));
        }
    }

    /// It decided this.
    pub fn decided(&mut self, commands: &Commands) {
        let (Some(calls), Some((now, events, ended))) = (&self.calls, self.told.take()) else { return };
        match calls.try_send(Call { now, events, ended, decisions: fingerprint::of_commands(commands) }) {
            Ok(()) => {}
            Err(error) => {
                // A recording with a gap would be worth nothing from there on.
                if matches!(error, TrySendError::Full(_)) {
                    tracing::warn!("the recording {} ends early: events come faster than they can be written", self.file);
                }
                self.calls = None;
            }
        }
    }
}

/// What was taken is written before a recorder is gone.
impl Drop for Recorder {
    fn drop(&mut self) {
        self.calls = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by it.
            let _ = thread.join();
        }
    }
}

/// The file.
struct Frames {
    file: BufWriter<File>,
    /// Graphs without contents, as they are written, and their numbers.
    growths: BTreeMap<Vec<u8>, u32>,
    growths_bytes: usize,
    body: Vec<u8>,
}

impl Frames {
    fn begin(&mut self, config: &Config) -> io::Result<()> {
        self.file.write_all(MARK)?;
        self.file.write_all(&FORMAT.to_le_bytes())?;
        self.frame(&Header { program: env!("CARGO_PKG_VERSION").to_owned(), config: *config })?;
        self.file.flush()
    }

    /// Until the recorder is gone.
    fn run(&mut self, queue: &Receiver<Call>) -> io::Result<()> {
        loop {
            let call = match queue.try_recv() {
                Ok(call) => call,
                Err(TryRecvError::Disconnected) => return self.file.flush(),
                Err(TryRecvError::Empty) => {
                    // Nothing waits: a good moment to let go of what is held back.
                    self.file.flush()?;
                    match queue.recv() {
                        Ok(call) => call,
                        Err(_) => return Ok(()),
                    }
                }
            };
            self.call(call)?;
        }
    }

    fn call(&mut self, call: Call) -> io::Result<()> {
        let events = call.events.into_iter();
        let told = events.map(|event| Told::of(event, &mut |growth| self.number(growth))).collect::<io::Result<Vec<_>>>()?;
        self.frame(&Entry::Handled { now: call.now, told, ended: call.ended, decisions: call.decisions })
    }

    /// The number of a graph, which is written before if it has none.
    fn number(&mut self, growth: &UnfoldedGrowth) -> io::Result<u32> {
        let growth = bare(growth);
        let bytes = bincode::serialize(&growth).map_err(io::Error::other)?;
        if let Some(number) = self.growths.get(&bytes) {
            return Ok(*number);
        }
        if self.growths.len() >= GROWTHS_MAX || self.growths_bytes + bytes.len() > GROWTHS_BYTES_MAX {
            self.growths.clear();
            self.growths_bytes = 0;
        }
        let number = self.growths.len() as u32;
        self.growths_bytes += bytes.len();
        self.growths.insert(bytes, number);
        self.frame(&Entry::Growth { number, growth })?;
        Ok(number)
    }

    fn frame(&mut self, what: &impl Serialize) -> io::Result<()> {
        self.body.clear();
        bincode::serialize_into(&mut self.body, what).map_err(io::Error::other)?;
        if self.body.len() > FRAME_BYTES_MAX {
            return Err(io::Error::other(format!("a graph takes {} bytes, more than {FRAME_BYTES_MAX}", self.body.len())));
        }
        self.file.write_all(&(self.body.len() as u32).to_le_bytes())?;
        self.file.write_all(&fingerprint::of_bytes(&self.body).to_le_bytes())?;
        self.file.write_all(&self.body)
    }
}

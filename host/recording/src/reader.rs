//! Reads a recording, frame by frame.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_scheduler::{Config, Event, Time};
use serde::de::DeserializeOwned;

use super::entry::{Entry, Header};
use super::{FORMAT, FRAME_BYTES_MAX, MARK, RecordingError, fingerprint};

/// A call of the scheduler.
#[derive(Clone, Debug)]
pub struct Handled {
    /// When.
    pub now: Time,
    /// What it was told.
    pub events: Vec<Event>,
    /// When each task of which [`Event::Done`] tells ended, in their order.
    pub ended: Vec<Time>,
    /// A fingerprint of what it decided.
    pub decisions: u64,
}

/// A recording that is being read.
#[derive(Debug)]
pub struct Recording {
    file: BufReader<File>,
    name: String,
    config: Config,
    program: String,
    growths: Vec<Arc<UnfoldedGrowth>>,
    frames: u64,
    cut: bool,
}

impl Recording {
    /// Opens a recording.
    ///
    /// # Errors
    /// If it cannot be read, or is none.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let name = path.display().to_string();
        let problem = |problem: String| RecordingError { file: path.display().to_string(), problem };
        let mut file = BufReader::new(File::open(path).map_err(|error| problem(error.to_string()))?);
        let (mut mark, mut format) = ([0; MARK.len()], [0; 4]);
        if file.read_exact(&mut mark).is_err() || mark != *MARK || file.read_exact(&mut format).is_err() {
            return Err(problem("this is not a recording; `cellwright serve --record FILE` writes one".to_owned()));
        }
        let format = u32::from_le_bytes(format);
        if format != FORMAT {
            return Err(problem(format!("it has format {format}, and this program reads {FORMAT}")));
        }
        let config = Config::default();
        let mut recording = Self { file, name, config, program: String::new(), growths: Vec::new(), frames: 0, cut: false };
        let Some(Header { program, config }) = recording.frame()? else { return Err(problem("it ends before its first entry".to_owned())) };
        Ok(Self { program, config, ..recording })
    }

    /// The scheduler's configuration.
    #[must_use]
    pub const fn config(&self) -> Config {
        self.config
    }

    /// The version of the program that wrote it.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Whether it ended in the middle of a frame, once it has been read to its end.
    #[must_use]
    pub const fn was_cut(&self) -> bool {
        self.cut
    }

    /// The next call; none at the end.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub fn next_call(&mut self) -> Result<Option<Handled>, RecordingError> {
        loop {
            match self.frame()? {
                None => return Ok(None),
                Some(Entry::Growth { number, growth }) => {
                    let (at, growth) = (number as usize, Arc::new(growth));
                    if at < self.growths.len() {
                        self.growths[at] = growth;
                    } else if at == self.growths.len() {
                        self.growths.push(growth);
                    } else {
                        return Err(self.damaged());
                    }
                }
                Some(Entry::Handled { now, told, ended, decisions }) => {
                    let growth = |number: u32| self.growths.get(number as usize).cloned();
                    let events: Option<Vec<Event>> = told.into_iter().map(|told| told.event(growth)).collect();
                    let events = events.ok_or_else(|| self.damaged())?;
                    if events.iter().filter(|event| matches!(event, Event::Done { .. } | Event::Paused { .. })).count() != ended.len() {
                        return Err(self.damaged());
                    }
                    return Ok(Some(Handled { now, events, ended, decisions }));
                }
            }
        }
    }

    fn damaged(&self) -> RecordingError {
        RecordingError { file: self.name.clone(), problem: format!("frame {} is damaged", self.frames) }
    }

    /// The next frame's contents; none at the end, or where the file was cut.
    fn frame<T: DeserializeOwned>(&mut self) -> Result<Option<T>, RecordingError> {
        let mut head = [0; 12];
        let found = self.fill(&mut head)?;
        if found < head.len() {
            self.cut = found > 0;
            return Ok(None);
        }
        self.frames += 1;
        let (length, sum) = head.split_at(4);
        let length = length.try_into().map_or(usize::MAX, |length| u32::from_le_bytes(length) as usize);
        if length > FRAME_BYTES_MAX {
            return Err(self.damaged());
        }
        let mut body = Vec::new();
        let read = self.file.by_ref().take(length as u64).read_to_end(&mut body);
        read.map_err(|error| RecordingError { file: self.name.clone(), problem: error.to_string() })?;
        if body.len() < length {
            self.cut = true;
            return Ok(None);
        }
        if sum != fingerprint::of_bytes(&body).to_le_bytes() {
            return Err(self.damaged());
        }
        bincode::deserialize(&body).map(Some).map_err(|_| self.damaged())
    }

    /// Reads until the buffer is full or the file ends; how much there was.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, RecordingError> {
        let mut found = 0;
        while found < buffer.len() {
            match self.file.read(&mut buffer[found..]) {
                Ok(0) => break,
                Ok(more) => found += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(RecordingError { file: self.name.clone(), problem: error.to_string() }),
            }
        }
        Ok(found)
    }
}

//! Measured batch sizes, kept between starts. A cache: keyed by all it depends on, written whole or not at all, and safe to delete.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cellwright_backend::DeviceInfo;
use cellwright_cell_graph::CellTypeKey;

use crate::calibration::Calibration;

/// Raised whenever something else is measured, or is measured in another way; what was kept before then counts as not there.
const METHOD: u32 = 7;

/// Files that are kept: of some blocks each, those of many models.
const FILES_MAX: usize = 1 << 14;

/// What a calibration is of.
pub(crate) struct Subject<'a> {
    pub(crate) cell: CellTypeKey,
    pub(crate) device: &'a DeviceInfo,
    /// Names of the other workers of its domain.
    pub(crate) beside: Vec<&'a str>,
    /// Whether the device looks up what the cell computes of a token.
    pub(crate) table: bool,
    pub(crate) batch_max: u32,
    pub(crate) task_time_max: Duration,
}

impl Subject<'_> {
    fn file_name(&self) -> String {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.cell.0);
        let DeviceInfo { name, numeric_class, hardware, .. } = self.device;
        hash.update(&METHOD.to_le_bytes());
        let own = [name, numeric_class, hardware, env!("CARGO_PKG_VERSION")];
        for text in own.into_iter().chain(self.beside.iter().copied()) {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        hash.update(&[u8::from(self.table)]);
        hash.update(&self.batch_max.to_le_bytes());
        hash.update(&self.task_time_max.as_nanos().to_le_bytes());
        format!("{}.calibration", hash.finalize().to_hex())
    }
}

/// A folder of calibrations.
#[derive(Debug)]
pub(crate) struct CalibrationStore {
    folder: PathBuf,
    /// Files that it may have; the oldest go first.
    files_max: usize,
    /// Files that it has at most, once they were counted.
    files: Mutex<Option<usize>>,
}

impl CalibrationStore {
    pub(crate) const fn new(folder: PathBuf) -> Self {
        Self { folder, files_max: FILES_MAX, files: Mutex::new(None) }
    }

    /// What was measured before. Anything unreadable counts as not there.
    pub(crate) fn find(&self, subject: &Subject<'_>) -> Option<Calibration> {
        let bytes = std::fs::read(self.folder.join(subject.file_name())).ok()?;
        let (digest, body) = bytes.split_first_chunk::<{ blake3::OUT_LEN }>()?;
        if blake3::hash(body) != *digest {
            return None;
        }
        let calibration: Calibration = bincode::deserialize(body).ok()?;
        let is_ascending = calibration.points.is_sorted_by(|point, next| point.rows < next.rows);
        let begins = calibration.points.first().is_some_and(|point| point.rows == 1);
        (begins && is_ascending).then_some(calibration)
    }

    /// Keeps what was measured. That it cannot be kept is worth a line in the log, not an error.
    pub(crate) fn keep(&self, subject: &Subject<'_>, calibration: &Calibration) {
        if let Err(error) = self.write(subject, calibration).and_then(|()| self.make_room()) {
            tracing::warn!(folder = %self.folder.display(), "measured batch sizes could not be stored: {error}");
        }
    }

    fn write(&self, subject: &Subject<'_>, calibration: &Calibration) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let body = bincode::serialize(calibration).map_err(std::io::Error::other)?;
        let name = subject.file_name();
        let temporary = self.folder.join(format!("{name}.{}", std::process::id()));
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(blake3::hash(&body).as_bytes())?;
        file.write_all(&body)?;
        // What a crash leaves of it counts as not there.
        std::fs::rename(temporary, self.folder.join(name))
    }

    /// One file more was written. If there are too many now, a quarter goes, so that they are seldom listed.
    fn make_room(&self) -> std::io::Result<()> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.is_some_and(|files| files < self.files_max) {
            *files = files.map(|files| files + 1);
            return Ok(());
        }
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            all.push((entry.metadata()?.modified()?, entry.path()));
        }
        all.sort();
        let gone = if all.len() > self.files_max { all.len() - self.files_max * 3 / 4 } else { 0 };
        all[..gone].iter().try_for_each(|(_, path)| std::fs::remove_file(path))?;
        *files = Some(all.len() - gone);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::Point;

    fn device(name: &str) -> DeviceInfo {
        DeviceInfo {
            name: name.to_owned(),
            numeric_class: "c".to_owned(),
            domain: "d".to_owned(),
            arena_slots: 1,
            hardware: "h".to_owned(),
            threads: 1,
        }
    }

    #[test]
    fn a_calibration_comes_back_for_its_own_subject_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = CalibrationStore::new(folder.path().join("deeper"));
        let (here, elsewhere) = (device("a"), device("b"));
        let subject = |device, batch_max| Subject {
            cell: CellTypeKey([7; 32]),
            device,
            beside: Vec::new(),
            table: false,
            batch_max,
            task_time_max: Duration::from_millis(50),
        };
        let calibration = Calibration { points: vec![Point { rows: 1, time: Duration::from_micros(3) }], workers: 2, lent: Vec::new() };
        assert_eq!(store.find(&subject(&here, 8)), None);
        store.keep(&subject(&here, 8), &calibration);
        assert_eq!(store.find(&subject(&here, 8)), Some(calibration));
        assert_eq!(store.find(&subject(&here, 16)), None);
        assert_eq!(store.find(&subject(&elsewhere, 8)), None);
        assert_eq!(store.find(&Subject { table: true, ..subject(&here, 8) }), None);
        assert_eq!(store.find(&Subject { beside: vec!["a"], ..subject(&here, 8) }), None);
        let other_processor = DeviceInfo { hardware: "i".to_owned(), ..here.clone() };
        assert_eq!(store.find(&subject(&other_processor, 8)), None);
    }

    #[test]
    fn the_oldest_files_go() {
        let folder = tempfile::tempdir().unwrap();
        let device = device("a");
        let subject = |batch_max| Subject {
            cell: CellTypeKey([7; 32]),
            device: &device,
            beside: Vec::new(),
            table: false,
            batch_max,
            task_time_max: Duration::from_millis(50),
        };
        let calibration = Calibration { points: vec![Point { rows: 1, time: Duration::from_micros(3) }], workers: 2, lent: Vec::new() };
        let of_another_start = CalibrationStore::new(folder.path().to_owned());
        (0..6).for_each(|number| of_another_start.keep(&subject(number), &calibration));
        let store = CalibrationStore { files_max: 8, ..CalibrationStore::new(folder.path().to_owned()) };
        for number in 6..50 {
            store.keep(&subject(number), &calibration);
            assert!(store.find(&subject(number)).is_some(), "the newest is there");
            assert!(std::fs::read_dir(folder.path()).unwrap().count() <= 8);
        }
        assert!(store.find(&subject(0)).is_none());
    }

    #[test]
    fn a_damaged_file_counts_as_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let store = CalibrationStore::new(folder.path().to_owned());
        let device = device("a");
        let subject = Subject {
            cell: CellTypeKey([7; 32]),
            device: &device,
            beside: Vec::new(),
            table: false,
            batch_max: 8,
            task_time_max: Duration::from_millis(50),
        };
        store
            .keep(&subject, &Calibration { points: vec![Point { rows: 1, time: Duration::from_micros(3) }], workers: 2, lent: Vec::new() });
        let file = folder.path().join(subject.file_name());
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&file, bytes).unwrap();
        assert_eq!(store.find(&subject), None);
    }
}

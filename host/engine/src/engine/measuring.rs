//! How batch sizes are found: from what is kept of earlier starts, or else by measuring. The least
//! time counts, and a row that takes too long refuses its cell.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cellwright_backend::DeviceInfo;
use cellwright_cell_graph::TypedCell;
use cellwright_cell_graph::typed::CellTypeKey;

use super::loading::ModelError;
use crate::calibration::{Calibration, calibrate, calibrate_lent};
use crate::calibration_store::{CalibrationStore, Subject};
use crate::options::EngineOptions;

/// How often the time of a single row that would refuse its cell is measured again, and how many times the bound is too much for that, or to go on with.
const ROW_DOUBTS: usize = 3;
const ROW_FAR: u32 = 4;

/// How batch sizes are found.
pub(super) struct Measuring {
    batch_max: u32,
    task_time_max: Duration,
    row_time_max: Duration,
    /// For all cells of a load.
    pub(super) load_time_max: Duration,
    recalibrate: bool,
    /// What was measured since the start, if that is to be done again: once is enough, whatever is unloaded and loaded meanwhile.
    again: Mutex<BTreeSet<CellTypeKey>>,
    store: Option<CalibrationStore>,
}

impl Measuring {
    pub(super) fn new(options: &EngineOptions) -> Self {
        Self {
            batch_max: options.batch_max.max(1),
            task_time_max: options.task_time_max,
            row_time_max: options.row_time_max,
            load_time_max: options.load_time_max,
            recalibrate: options.recalibrate,
            again: Mutex::default(),
            store: options.calibration_folder.clone().map(CalibrationStore::new),
        }
    }

    /// What is known of a cell's batch sizes, or else what `time` says. How far it may be used is each model's own matter.
    pub(super) fn calibration(
        &self,
        cell: &TypedCell,
        (device, beside, table): (&DeviceInfo, Vec<&str>, bool),
        mut time: impl FnMut(u32, bool) -> Result<Duration, ModelError>,
    ) -> Result<Calibration, ModelError> {
        let subject = Subject { cell: cell.key, device, beside, table, batch_max: self.batch_max, task_time_max: self.task_time_max };
        let is_to_be_known = || !self.recalibrate || self.again().contains(&cell.key);
        let known = self.store.as_ref().filter(|_| is_to_be_known()).and_then(|store| store.find(&subject));
        let calibration = match known {
            Some(known) => known,
            None => {
                let workers = u32::try_from(subject.beside.len() + 1).unwrap_or(u32::MAX);
                let apart = calibrate(self.batch_max, self.task_time_max, |rows| time(rows, false))?;
                let mut measured = calibrate_lent(apart, workers, |rows| time(rows, true))?;
                let row = measured.points.first_mut().map(|row| &mut row.time);
                let may_run = row.map_or(Ok(true), |row| self.doubt(row, || time(1, false)))?;
                // What would refuse the cell may be what the machine did meanwhile: it is not to hold for ever.
                if let Some(store) = self.store.as_ref().filter(|_| may_run) {
                    store.keep(&subject, &measured);
                }
                if self.recalibrate {
                    self.again().insert(cell.key);
                }
                measured
            }
        };
        match calibration.points.first() {
            Some(row) if row.time > self.row_time_max => {
                Err(ModelError::Slow { cell: cell.name.clone(), took: row.time, bound: self.row_time_max })
            }
            _ => Ok(calibration),
        }
    }

    /// How long a batch is tried.
    pub(super) const fn tried_max(&self) -> Duration {
        self.row_time_max.saturating_mul(ROW_FAR)
    }

    fn again(&self) -> MutexGuard<'_, BTreeSet<CellTypeKey>> {
        self.again.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures a row again that takes too long, unless it is far too long: the least time counts. Whether it is one that may run.
    fn doubt(&self, row: &mut Duration, mut time: impl FnMut() -> Result<Duration, ModelError>) -> Result<bool, ModelError> {
        for _ in 0..ROW_DOUBTS {
            if *row <= self.row_time_max || *row > self.tried_max() {
                break;
            }
            *row = (*row).min(time()?);
        }
        Ok(*row <= self.row_time_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_which_one_row_takes_too_long_is_refused() {
        let cell = cellwright_cell_graph::generate::model(3).cells[0].clone();
        let hardware = String::new();
        let device =
            DeviceInfo { name: String::new(), numeric_class: String::new(), domain: String::new(), arena_slots: 1, hardware, threads: 1 };
        let options = EngineOptions { row_time_max: Duration::from_millis(80), ..EngineOptions::default() };
        let (measuring, mut timed) = (Measuring::new(&options), 0);
        let mut measure = |row_ms: u64| {
            measuring.calibration(&cell, (&device, Vec::new(), false), |rows, _| {
                timed += 1;
                Ok(Duration::from_millis(row_ms) * rows)
            })
        };
        assert_eq!(measure(70).expect("beyond a task's time, within a row's").rows_max(), 1);
        let error = measure(9000).expect_err("nine seconds").to_string();
        assert!(error.ends_with("one row takes 9000 ms, more than the 80 ms that a row may take: make the cell smaller"), "{error}");
        assert!(timed < 8, "a slow cell is timed again and again");
    }

    #[test]
    fn a_row_that_takes_too_long_beside_other_work_is_measured_again() {
        let cell = cellwright_cell_graph::generate::model(3).cells[0].clone();
        let hardware = String::new();
        let device =
            DeviceInfo { name: String::new(), numeric_class: String::new(), domain: String::new(), arena_slots: 1, hardware, threads: 1 };
        let folder = tempfile::tempdir().expect("a folder");
        let kept = Some(folder.path().to_owned());
        let options = EngineOptions { row_time_max: Duration::from_millis(80), calibration_folder: kept, ..EngineOptions::default() };
        let measuring = Measuring::new(&options);
        let measure = |busy_for: usize, row_ms: u64| {
            let mut timed = 0;
            let found = measuring.calibration(&cell, (&device, Vec::new(), false), |rows, _| {
                timed += 1;
                let times = if timed <= busy_for { 3 } else { 1 };
                Ok(Duration::from_millis(row_ms) * rows * times)
            });
            found.map(|found| (found.points[0].time.as_millis(), timed))
        };
        assert!(measure(usize::MAX, 70).is_err(), "it is busy all the time");
        assert_eq!(measure(2, 70).expect("it is slow for a while"), (70, 3), "and was not kept before");
        assert_eq!(measure(usize::MAX, 70).expect("it is known"), (70, 0));
    }
}

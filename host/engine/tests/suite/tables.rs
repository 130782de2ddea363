//! What is said of a cell's tables is said of all that there are: those of every memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cellwright_backend::{Backend, CellTypeId, Completed, DeviceInfo, DeviceLost, LoadError, Prepared, Slot, TableInfo, Task};
use cellwright_cell_graph::{TypedCell, generate};
use cellwright_engine::{Engine, EngineOptions, ModelSpec, TableCounts};

/// A device that computes nothing, with that table, if it has one.
struct Device {
    domain: String,
    table: Option<Arc<TableInfo>>,
}

impl Backend for Device {
    fn info(&self) -> DeviceInfo {
        let [name, numeric_class, hardware] = [(); 3].map(|()| "none".to_owned());
        DeviceInfo { name, numeric_class, domain: self.domain.clone(), arena_slots: 1, hardware, threads: 0 }
    }

    fn install(&mut self, _: CellTypeId, _: &Arc<TypedCell>, _: Prepared) -> Result<(), LoadError> {
        Ok(())
    }

    fn table(&self, _: CellTypeId) -> Option<Arc<TableInfo>> {
        self.table.clone()
    }

    fn unload(&mut self, _: CellTypeId) {}

    fn submit(&mut self, _: Task) -> Result<(), DeviceLost> {
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completed>, DeviceLost> {
        Ok(None)
    }

    fn read(&mut self, _: Slot, _: u32) -> Result<Vec<u8>, DeviceLost> {
        Ok(Vec::new())
    }

    fn write(&mut self, _: Slot, _: &[u8]) -> Result<(), DeviceLost> {
        Ok(())
    }

    fn time_batch(&mut self, _: CellTypeId, _: u32) -> Result<Duration, DeviceLost> {
        Ok(Duration::from_micros(10))
    }
}

/// What an engine says of the tables of a cell that it loaded on devices with those memories and tables, before and after one row more is filled of each.
fn said(devices: &[(&str, Option<&Arc<TableInfo>>)]) -> [Option<TableCounts>; 2] {
    let device = |(domain, table): &(&str, Option<&Arc<TableInfo>>)| -> Box<dyn Backend> {
        Box::new(Device { domain: (*domain).to_owned(), table: table.cloned() })
    };
    let engine = Engine::start(EngineOptions::default(), devices.iter().map(device).collect()).unwrap();
    let cells = generate::model(7).cells[..1].to_vec();
    let (name, overrides, charged) = Default::default();
    let spec = ModelSpec { name, tenant: 0, weight: 1, policy: None, cells, overrides, live_max: None, charged };
    let tables = engine.load(&spec).unwrap().cells[0].tables.clone();
    let before = tables.counts();
    for table in devices.iter().filter_map(|(_, table)| *table) {
        table.filled.fetch_add(1, Ordering::Relaxed);
    }
    [before, tables.counts()]
}

#[test]
fn tables_of_all_memories_are_counted_each_once() {
    let table = |filled: u64| Arc::new(TableInfo { bytes: 640.into(), tokens: 10.into(), filled: filled.into() });
    let counts = |tables: u64, filled| Some(TableCounts { bytes: 640 * tables, tokens: 10 * tables, filled });
    let [left, right] = [3, 5].map(table);
    assert_eq!(said(&[("left", Some(&left)), ("right", Some(&right))]), [counts(2, 8), counts(2, 10)]);
    assert_eq!(said(&[("left", None), ("right", Some(&right))]), [counts(1, 6), counts(1, 7)], "there may be room on one alone");
    let shared = table(3);
    assert_eq!(said(&[("left", Some(&shared)); 2])[0], counts(1, 3), "workers of one memory share theirs");
    assert_eq!(said(&[("left", None), ("right", None)]), [None; 2]);
}

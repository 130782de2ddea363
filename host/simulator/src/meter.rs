//! Measures what tasks cost a running host, as the device that [`crate::run()`] takes.
//!
//! It sees what the scheduler is told and what it decides, while somebody else makes load at every batch size. So it measures what a task takes when
//! all workers are busy, with gathering and scattering, and not what a batch takes alone; and what passes beside a task until its end is heard of.

use std::collections::VecDeque;
use std::fmt::Write;

use cellwright_scheduler::{CellTypeId, Commands, CostTable, Event, Knot, TaskSeq, Time};

use crate::costs::Samples;

/// Tasks in flight.
#[derive(Clone, Copy, Debug)]
struct Task {
    seq: TaskSeq,
    cell_type: CellTypeId,
    rows: u32,
    steps: u32,
    /// When it was launched, if its worker had nothing else to do.
    alone_ns: Option<u64>,
}

/// What was seen of a host's tasks.
#[derive(Debug, Default)]
pub struct Meter {
    now: Time,
    flying: Vec<VecDeque<Task>>,
    samples: Samples,
}

impl Meter {
    /// The scheduler is told this, at that time.
    pub fn told(&mut self, now: Time, events: &[Event]) {
        self.now = now;
        for event in events {
            let Event::Done { worker, up_to, busy_ns, .. } = event else { continue };
            let Some(flying) = self.flying.get_mut(worker.index()) else { continue };
            let count = flying.iter().take_while(|task| task.seq <= *up_to).count();
            let tasks: Vec<Task> = flying.drain(..count).collect();
            // Of several tasks together it is not known how long each took.
            if let [task] = tasks[..] {
                if let Some(launched_ns) = task.alone_ns {
                    self.samples.add_handover(now.0.saturating_sub(launched_ns).saturating_sub(*busy_ns));
                }
                self.samples.add(task.cell_type, task.rows, busy_ns / u64::from(task.steps.max(1)));
            }
        }
    }

    /// It decided this.
    pub fn decided(&mut self, commands: &Commands) {
        for launch in &commands.launches {
            let worker = launch.worker.index();
            if worker >= self.flying.len() {
                self.flying.resize_with(worker + 1, VecDeque::new);
            }
            let rows = launch.rows.len() as u32;
            let flying = &mut self.flying[worker];
            let alone_ns = flying.is_empty().then_some(self.now.0);
            flying.push_back(Task { seq: launch.seq, cell_type: launch.cell_type, rows, steps: launch.steps, alone_ns });
        }
    }

    /// Mean times of a cell type by batch size, so that none is below that of a smaller batch.
    #[must_use]
    pub fn knots(&self, cell_type: CellTypeId) -> Vec<Knot> {
        CostTable::measured(self.samples.seen(cell_type)).knots().to_vec()
    }

    /// What passes on average, beside the task, from its launch until its end is heard of, where a worker has nothing else to do.
    #[must_use]
    pub fn handover_ns(&self) -> u64 {
        self.samples.mean_handover_ns()
    }
}

/// A table in TOML of a device like a CPU's workers, which share their memory: how long ends of tasks take to be heard of, and its cells with their times.
/// What a cell that it does not name costs is what the last one does.
#[must_use]
pub fn table(name: &str, handover_ns: u64, cells: &[(String, Vec<Knot>)]) -> String {
    let mut text = format!("name = {}\nshares_memory = true\nhandover_us = {}\n", quoted(name), handover_ns as f64 / 1e3);
    let mut cell = |head: String, knots: &[Knot]| {
        let knots: Vec<String> = knots.iter().map(|knot| format!("[{}, {}]", knot.rows, knot.nanoseconds as f64 / 1e3)).collect();
        // Writing to a String does not fail.
        let _ = write!(text, "\n[{head}]\ncompute_us = [{}]\n", knots.join(", "));
    };
    if let Some((_, knots)) = cells.last() {
        cell("default".to_owned(), knots);
    }
    for (name, knots) in cells {
        cell(format!("cells.{}", quoted(name)), knots);
    }
    text
}

/// A text as TOML writes it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(character))),
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use cellwright_scheduler::{Launch, ModelId, Row, WorkerId};

    use super::*;
    use crate::device::Device;

    #[test]
    fn the_mean_of_each_batch_size_is_a_devices_table() {
        let mut meter = Meter::default();
        for (seq, (rows, busy_ns)) in [(4, 80_000), (4, 90_000), (4, 70_000), (4, 85_000), (4, 75_000), (8, 7)].into_iter().enumerate() {
            let (seq, worker) = (TaskSeq(seq as u64 + 1), WorkerId(1));
            let mut commands = Commands { rows: vec![Row { lane: Default::default(), step: 0 }; rows], ..Commands::default() };
            let (cell_type, model) = (CellTypeId(3), ModelId(0));
            commands.launches.push(Launch { worker, cell_type, model, seq, steps: 2, rows: 0..rows });
            // Each is alone: a microsecond and half passes beside it.
            let launched = 1_000_000 * seq.0;
            meter.told(Time(launched), &[]);
            meter.decided(&commands);
            let heard = Time(launched + 2 * busy_ns + 1500);
            meter.told(heard, &[Event::Done { worker, up_to: seq, busy_ns: 2 * busy_ns, stopped: Vec::new(), failed: Vec::new() }]);
        }
        let knots = meter.knots(CellTypeId(3));
        assert_eq!(knots, [Knot { rows: 4, nanoseconds: 80_000 }]);
        assert_eq!(meter.handover_ns(), 1500);
        let text = table("two \"cpus\"", meter.handover_ns(), &[("a.cell".to_owned(), knots)]);
        let device = Device::from_toml("x.toml", &text).unwrap_or_else(|error| panic!("{error} in {text}"));
        assert_eq!((device.name.as_str(), device.shares_memory, device.handover_ns), ("two \"cpus\"", true, 1500));
        for cell in ["a.cell", "any other"] {
            assert_eq!(device.costs(cell).unwrap().compute.at(4), 80_000);
        }
    }
}

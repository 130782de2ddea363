//! `bench cell`: steps of one cell on the CPU worker, against what the processor can do at most, measured in turns with them.

mod model;
mod roofline;

use std::io::{Write, stdout};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use cellwright_backend::{Backend, CellTypeId};
use cellwright_backend_cpu::{CellWork, CpuDomain, CpuOptions, CpuWorker, DomainOptions, Kernels, Roofline, Shares};
use cellwright_cell_graph::Random;
use cellwright_cell_graph::TypedCell;
use cellwright_command::progress;
use cellwright_command::table::table;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value};

use super::steps::{Drawn, Steps};
use crate::cli::CellArguments;

/// Turns of one batch size: in each the limits are measured, and steps are run.
const TURNS: u32 = 40;
/// Parts of a turn that measure the limits, each.
const LIMITS_SHARE: f64 = 0.15;
/// Turns that say where the time goes, on a worker that keeps account.
const ACCOUNTED_TURNS: u32 = 5;

/// What steps of one batch size came to: medians over the turns.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    batch: u32,
    step_us: f64,
    rows_per_s: f64,
    gflops: f64,
    peak_gflops: f64,
    peak_share: f64,
    gb_per_s: f64,
    read_gb_per_s: f64,
    read_share: f64,
    /// Of what both limits together allow for so many rows: the peak, or as many operations as there are while the weights are read once.
    roof_share: f64,
    /// Rows from their slots and back; like the other parts a median of steps after the turns.
    gather_us: f64,
    gemm_us: f64,
    element_us: f64,
    packed_bytes: usize,
    row_flops: usize,
}

pub(crate) fn cell(arguments: &CellArguments) -> anyhow::Result<()> {
    let bar = progress::spinner("preparing the cell".to_owned());
    let bench = Bench::new(arguments)?;
    let mut all = Vec::new();
    for batch in &arguments.batch {
        bar.set_message(format!("steps of {batch} rows"));
        let figures = bench.measure(*batch)?;
        if arguments.json {
            // Printed at once, so that an interrupted run keeps its results.
            bar.suspend(|| bench.print_line(&figures))?;
        }
        all.push(figures);
    }
    bar.finish_and_clear();
    if !arguments.json {
        bench.print(&all)?;
    }
    if let Some(file) = &arguments.plot {
        roofline::draw(file, &bench.title(), &all).with_context(|| format!("the plot {} cannot be drawn", file.display()))?;
    }
    Ok(())
}

struct Bench<'a> {
    arguments: &'a CellArguments,
    cell: Arc<TypedCell>,
    domain: Arc<CpuDomain>,
    /// Of the worker.
    name: String,
    work: CellWork,
}

impl<'a> Bench<'a> {
    fn new(arguments: &'a CellArguments) -> anyhow::Result<Self> {
        let cell = model::cell(arguments)?;
        // What is measured is one step of the whole cell: no table of its results, nothing of it for many steps at once.
        let kernels = if arguments.amx { Kernels::Tiles } else { Kernels::Best };
        let without = DomainOptions { table_bytes: Some(0), ahead_weights_least: Some(u64::MAX), kernels, ..DomainOptions::default() };
        let domain = CpuDomain::new(without).context("cannot start the CPU worker")?;
        let mut worker = CpuWorker::new(Arc::clone(&domain), options(arguments))?;
        worker.load(CellTypeId(0), &cell)?;
        let work = worker.work(CellTypeId(0)).context("the cell was just loaded")?;
        Ok(Self { arguments, cell, domain, name: worker.info().name, work })
    }

    fn steps(&self, batch: u32, account: Option<&Arc<Mutex<Shares>>>) -> anyhow::Result<Steps> {
        let mut worker = CpuWorker::new(Arc::clone(&self.domain), options(self.arguments))?;
        if let Some(account) = account {
            worker = worker.accounting(Arc::clone(account));
        }
        let mut random = Random::new(self.arguments.seed);
        Steps::new(
            Box::new(worker),
            &self.cell,
            batch,
            Drawn { random: &mut random, tokens: self.arguments.vocabulary as usize, worker: 0 },
        )
    }

    fn measure(&self, batch: u32) -> anyhow::Result<Figures> {
        let turn = Duration::from_secs_f64(self.arguments.seconds) / TURNS;
        let (limits, stepping) = (turn.mul_f64(LIMITS_SHARE), turn.mul_f64(1.0 - 2.0 * LIMITS_SHARE));
        let mut roofline = Roofline::new(&self.domain, self.arguments.threads.into(), self.work.packed_bytes, self.arguments.precision)?;
        let mut steps = self.steps(batch, None)?;
        steps.median(stepping)?;
        let (mut times, mut peaks, mut reads) = (vec![], vec![], vec![]);
        let (mut peak_shares, mut read_shares, mut roof_shares) = (vec![], vec![], vec![]);
        let flops = self.work.row_flops as f64 * f64::from(batch);
        for _ in 0..TURNS {
            let peak = roofline.flops_per_s(limits);
            let time = steps.median(stepping)?.as_secs_f64();
            let read = roofline.read_bytes_per_s(limits);
            let (of_peak, of_read) = (flops / time / peak, self.work.packed_bytes as f64 / time / read);
            peak_shares.push(of_peak);
            read_shares.push(of_read);
            // The limit that is reached first is the one of which more is used.
            roof_shares.push(of_peak.max(of_read));
            times.push(time);
            peaks.push(peak);
            reads.push(read);
        }
        let step = median(times);
        // A worker that has nothing to do lends its threads to the next.
        drop(steps);
        let [gather_us, gemm_us, element_us] = self.parts(batch, stepping)?;
        Ok(Figures {
            batch,
            step_us: step * 1e6,
            rows_per_s: f64::from(batch) / step,
            gflops: flops / step / 1e9,
            peak_gflops: median(peaks) / 1e9,
            peak_share: median(peak_shares),
            gb_per_s: self.work.packed_bytes as f64 / step / 1e9,
            read_gb_per_s: median(reads) / 1e9,
            read_share: median(read_shares),
            roof_share: median(roof_shares),
            gather_us,
            gemm_us,
            element_us,
            packed_bytes: self.work.packed_bytes,
            row_flops: self.work.row_flops,
        })
    }

    /// Microseconds of a step in transfer, in products and in the rest: of steps after the turns, because keeping account takes time.
    fn parts(&self, batch: u32, time: Duration) -> anyhow::Result<[f64; 3]> {
        let account = Arc::default();
        let mut steps = self.steps(batch, Some(&account))?;
        let taken = || std::mem::take(&mut *account.lock().unwrap_or_else(PoisonError::into_inner));
        // Steps that find everything cold do not count.
        steps.median(time)?;
        taken();
        let (mut parts, began) = (Vec::new(), Instant::now());
        while parts.is_empty() || began.elapsed() < time * ACCOUNTED_TURNS {
            steps.step()?;
            parts.push(taken());
        }
        Ok(middle(&parts))
    }

    fn title(&self) -> String {
        let kind = self.arguments.cell.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        format!("{kind}, hidden {}, {}, {}", self.arguments.hidden, self.arguments.precision, self.name)
    }

    fn print_line(&self, figures: &Figures) -> anyhow::Result<()> {
        let mut line = Map::new();
        let kind = self.arguments.cell.to_possible_value().map(|value| value.get_name().to_owned());
        line.insert("cell".to_owned(), kind.into());
        line.insert("hidden".to_owned(), self.arguments.hidden.into());
        line.insert("precision".to_owned(), self.arguments.precision.name().into());
        line.insert("threads".to_owned(), self.arguments.threads.into());
        line.insert("device".to_owned(), self.name.clone().into());
        if let Value::Object(figures) = serde_json::to_value(figures)? {
            line.extend(figures);
        }
        Ok(writeln!(stdout(), "{}", Value::Object(line))?)
    }

    fn print(&self, all: &[Figures]) -> anyhow::Result<()> {
        let limits = ["GFLOP/s", "of peak", "%", "GB/s", "of reading", "%", "of both %"];
        let head = [&["rows", "µs", "rows/s"][..], &limits, &["gather µs", "GEMM µs", "element µs"]].concat();
        let rows: Vec<_> = all.iter().map(row).collect();
        Ok(write!(stdout(), "{}\n{}", self.title(), table(&head, &rows))?)
    }
}

fn options(arguments: &CellArguments) -> CpuOptions {
    CpuOptions { threads: arguments.threads.into(), ..CpuOptions::default() }
}

fn row(figures: &Figures) -> Vec<String> {
    vec![
        figures.batch.to_string(),
        format!("{:.1}", figures.step_us),
        format!("{:.0}", figures.rows_per_s),
        format!("{:.1}", figures.gflops),
        format!("{:.1}", figures.peak_gflops),
        format!("{:.0}", figures.peak_share * 100.0),
        format!("{:.1}", figures.gb_per_s),
        format!("{:.1}", figures.read_gb_per_s),
        format!("{:.0}", figures.read_share * 100.0),
        format!("{:.0}", figures.roof_share * 100.0),
        format!("{:.1}", figures.gather_us),
        format!("{:.1}", figures.gemm_us),
        format!("{:.1}", figures.element_us),
    ]
}

/// Medians of the steps' parts, each by itself, in microseconds.
fn middle(parts: &[Shares]) -> [f64; 3] {
    let of = |part: fn(&Shares) -> Duration| median(parts.iter().map(|shares| part(shares).as_secs_f64() * 1e6).collect());
    [of(|shares| shares.transfer), of(|shares| shares.products), of(|shares| shares.others)]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_step_does_not_move_the_parts() {
        let shares = |products, others, transfer| {
            let [products, others, transfer] = [products, others, transfer].map(Duration::from_micros);
            Shares { products, others, transfer }
        };
        let parts = middle(&[shares(9000, 20, 3), shares(100, 21, 4), shares(101, 7000, 5)]);
        assert!(parts.into_iter().zip([4.0, 101.0, 21.0]).all(|(part, expected)| (part - expected).abs() < 1e-9), "{parts:?}");
    }
}

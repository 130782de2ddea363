//! One step of a decoder: an LSTM over a token, a projection of its state on a vocabulary, and the best word, which is the next step's token.
//!
//! `cargo bench -p cellwright-backend-cpu --bench decoder -- 1024 30000 x16 x64 f32 bf16 top5`: hidden size, words, after an `x` batches, precisions, and what is found: the
//! best word (`best`), the five likeliest and how likely they are (`top5`), or how likely every word is (`all`).
//! To compare two versions, run their programs in turns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_backend::{CellTypeId, LaneId, Row, Task};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Delivery, Retention, Source};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Driver, growth_of, independent};

/// How long each figure is measured.
const BUDGET: Duration = Duration::from_millis(1500);

/// What is found of the scores, beside the best word.
#[derive(Clone, Copy, Debug)]
enum Found {
    Best,
    Top5,
    All,
}

/// Inputs token, h, c; outputs h, c, token, and probabilities if any are found.
fn decoder(hidden: usize, words: usize, precision: Precision, found: Found) -> Arc<TypedCell> {
    let weight = |name: &str| {
        let shape = match name {
            "emb.weight" | "out.weight" => vec![words, hidden],
            "out.bias" => vec![words],
            _ if name.starts_with("bias") => vec![4 * hidden],
            _ => vec![4 * hidden, hidden],
        };
        let mut rng = Rng::new(name.len() as u64 + u64::from(name.ends_with("hh")));
        let scale = 1.0 / (hidden as f32).sqrt();
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * scale).collect();
        Tensor::from_f32(name, &shape, &values)
    };
    let token = Draft::new("decoder").input("token", Datatype::Int64, &[]);
    let draft = cells::lstm_of_tokens(token, hidden, &weight).weight(weight("out.weight")).weight(weight("out.bias"));
    let draft = draft.operator("Gemm", &["h_next", "out.weight", "out.bias"], &["scores"]).with("transB", 1);
    let softmax = |draft: Draft| draft.operator("Softmax", &["scores"], &["all"]).with("axis", 1);
    let best = |draft: Draft, of: &str| draft.operator("ArgMax", &[of], &["word"]).with("axis", 1).with("keepdims", 0);
    let draft = match found {
        Found::Best => best(draft, "scores").output("word", Datatype::Int64, &[]),
        Found::Top5 => {
            let draft = softmax(draft).operator("TopK", &["all"], &["few", "at"]).with("axis", 1).with("k", 5);
            let draft = draft.operator("Slice", &["at"], &["first"]).with("starts", [0].as_slice()).with("ends", [1].as_slice());
            let draft = draft.with("axes", [1].as_slice()).operator("Squeeze", &["first"], &["word"]).with("axes", [1].as_slice());
            draft.output("word", Datatype::Int64, &[]).output("few", Datatype::Fp32, &[5])
        }
        Found::All => best(softmax(draft), "all").output("word", Datatype::Int64, &[]).output("all", Datatype::Fp32, &[words]),
    };
    draft.at(precision).resolve()
}

/// So many endless chains on a fresh worker of one thread.
fn lanes(cell: &Arc<TypedCell>, count: usize) -> (Driver, Vec<LaneId>) {
    let options = DomainOptions { table_bytes: Some(0), ..DomainOptions::default() };
    let domain = CpuDomain::new(options).expect("an arena");
    let worker = CpuWorker::new(domain, CpuOptions { threads: 1, ..CpuOptions::default() }).expect("a thread");
    let mut driver = Driver::new(Box::new(worker), std::slice::from_ref(cell));
    let lanes = (0..count).map(|number| {
        let token = Source::Literal((number as i64).to_le_bytes().to_vec().into_boxed_slice());
        let mut chain = independent(0, cell.outputs.len(), vec![token, Source::Zeros, Source::Zeros], u32::MAX - 1);
        chain.sequential = true;
        let stage = &mut chain.stages[0];
        stage.inputs[0].feedback = Some((0, 2));
        stage.inputs[1].feedback = Some((0, 0));
        stage.inputs[2].feedback = Some((0, 1));
        stage.retention = Retention::Double;
        stage.delivery = vec![Delivery::None; cell.outputs.len()];
        stage.delivery[0] = Delivery::Last;
        driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]).lanes[0][0]
    });
    let lanes = lanes.collect();
    (driver, lanes)
}

/// Milliseconds of a task of one step: the median and the best.
fn measure(driver: &mut Driver, lanes: &[LaneId]) -> (f64, f64) {
    let rows: Vec<(LaneId, u32)> = lanes.iter().map(|lane| (*lane, 0)).collect();
    let first = driver.task(CellTypeId(0), &rows, 1);
    let (mut rows, mut step, mut seq, mut times) = (first.rows, 1, first.seq, Vec::new());
    let began = Instant::now();
    while began.elapsed() < BUDGET {
        rows.clear();
        rows.extend(lanes.iter().map(|lane| Row { lane: *lane, step }));
        seq += 1;
        let submitted = Instant::now();
        driver.submit(Task { seq, cell: CellTypeId(0), steps: 1, rows: std::mem::take(&mut rows), ..Task::default() });
        if let Ok(Some(mut completed)) = driver.backend.complete() {
            times.push(submitted.elapsed());
            rows = std::mem::take(&mut completed.rows);
            driver.backend.recycle(completed);
        }
        step += 1;
    }
    times.sort_unstable();
    (times[times.len() / 2].as_secs_f64() * 1e3, times[0].as_secs_f64() * 1e3)
}

/// What this process holds of the memory, in KiB; none where the system does not say.
fn resident_kib() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok())
}

#[expect(clippy::print_stdout, reason = "a bench prints")]
fn main() {
    let sizes: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let batches: Vec<usize> = std::env::args().filter_map(|argument| argument.strip_prefix('x')?.parse().ok()).collect();
    let batches = if batches.is_empty() { vec![1, 16, 64, 256] } else { batches };
    let (hidden, words) = (sizes.first().copied().unwrap_or(1024), sizes.get(1).copied().unwrap_or(30_000));
    let precisions: Vec<Precision> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let precisions = if precisions.is_empty() { vec![Precision::F32] } else { precisions };
    let known = [("best", Found::Best), ("top5", Found::Top5), ("all", Found::All)];
    let asked: Vec<String> = std::env::args().collect();
    let mut found: Vec<_> = known.into_iter().filter(|(name, _)| asked.iter().any(|argument| argument == name)).collect();
    if found.is_empty() {
        found.push(known[0]);
    }
    println!("precision  hidden   words found  batch  median ms   best ms  GFLOP/s (best)  KiB of memory that running took");
    for (precision, (name, found)) in precisions.iter().flat_map(|precision| found.iter().map(move |found| (*precision, *found))) {
        let cell = decoder(hidden, words, precision, found);
        for batch in &batches {
            let (mut driver, lanes) = lanes(&cell, *batch);
            let before = resident_kib().unwrap_or(0);
            let (median, best) = measure(&mut driver, &lanes);
            let flops = (2 * hidden * (8 * hidden + words) * batch) as f64 / 1e6;
            let taken = resident_kib().unwrap_or(0) - before;
            println!(
                "{:>9} {hidden:>7} {words:>7} {name:>5} {batch:>6} {median:>10.3} {best:>9.3} {:>15.1} {taken:>10}",
                precision.name(),
                flops / best,
            );
        }
    }
}

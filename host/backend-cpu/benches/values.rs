//! How long a row takes, by its values: none should make a cell slow.
//!
//! `cargo bench -p cellwright-backend-cpu --bench values`: for each cell the time of a row of zeros, and how many times as long rows of other numbers take.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_backend::CellTypeId;
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Driver, growth_of, independent};

/// How long each figure is measured.
const BUDGET: Duration = Duration::from_millis(300);
const WIDTH: usize = 1024;

/// Rows: a name, and an element by its place.
type Row = (&'static str, fn(usize) -> f32);

const ROWS: [Row; 8] = [
    ("zeros", |_| 0.0),
    ("plain", |at| 0.5 - (at * 7919 % 1024) as f32 / 1024.0),
    ("denormal", |at| 1e-39 / (1 + at % 9) as f32),
    ("vanishing", |at| 1e-20 * (at % 9) as f32),
    ("infinite", |at| if at % 2 == 0 { f32::INFINITY } else { f32::NEG_INFINITY }),
    ("NaN", |_| f32::NAN),
    ("rising", |at| at as f32 / 1024.0),
    ("large", |at| 1e30 * at as f32),
];

fn tensor(name: &str, shape: &[usize], of: impl Fn(usize) -> f32) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(of).collect();
    Tensor::from_f32(name, shape, &values)
}

/// A chain of so many operators of that kind, each over what the one before gave and the weight, if it takes one.
fn chain(kind: &str, weight: Option<&Tensor>, count: usize) -> Draft {
    let mut draft = Draft::new(kind).input("v0", Datatype::Fp32, &[WIDTH]);
    draft = weight.iter().fold(draft, |draft, weight| draft.weight((*weight).clone()));
    for at in 0..count {
        let (from, to) = (format!("v{at}"), format!("v{}", at + 1));
        let operands: Vec<&str> = [from.as_str()].into_iter().chain(weight.map(|weight| weight.name.as_str())).collect();
        draft = draft.operator(kind, &operands, &[&to]);
    }
    draft.output(&format!("v{count}"), Datatype::Fp32, &[WIDTH])
}

fn cells() -> Vec<Arc<TypedCell>> {
    let identity = tensor("w", &[WIDTH, WIDTH], |at| if at / WIDTH == at % WIDTH { 1.0 } else { 0.0 });
    let mean = tensor("w", &[WIDTH, WIDTH], |_| 1.0 / WIDTH as f32);
    let small = tensor("w", &[WIDTH, WIDTH], |at| 1e-20 * (at % 5) as f32);
    let factor = tensor("c", &[1], |_| 0.9999);
    let mut cells: Vec<Draft> = [Precision::F32, Precision::F16, Precision::Bf16, Precision::Int8]
        .into_iter()
        .flat_map(|precision| [chain("MatMul", Some(&mean), 4).at(precision), chain("MatMul", Some(&identity), 4).at(precision)])
        .collect();
    cells.push(chain("MatMul", Some(&small), 2).named("MatMul, small"));
    cells.push(chain("Mul", Some(&factor), 400));
    cells.push(chain("Pow", Some(&factor), 20));
    cells.push(chain("Div", Some(&factor), 100));
    cells.extend(["Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Gelu", "Silu", "Relu"].map(|kind| chain(kind, None, 40)));
    let along = |kind: &str| {
        let draft = Draft::new(kind).input("x", Datatype::Fp32, &[WIDTH]).operator(kind, &["x"], &["y"]);
        draft.with("axis", 1).output("y", Datatype::Fp32, &[WIDTH])
    };
    cells.extend(["Softmax", "LogSoftmax"].map(along));
    for k in [8, 64, 65, 512] {
        let draft = Draft::new(&format!("TopK {k}")).input("x", Datatype::Fp32, &[WIDTH]).operator("TopK", &["x"], &["y", "at"]);
        cells.push(draft.with("axis", 1).with("k", k).output("y", Datatype::Fp32, &[k as usize]));
    }
    // A projection of which the best is wanted: its weight gives each column's element that place in the row.
    let words = tensor("words", &[WIDTH, 8192], |at| if at % 8192 % WIDTH == at / 8192 { 1.0 } else { 0.0 });
    let draft = Draft::new("ArgMax of 8192").input("x", Datatype::Fp32, &[WIDTH]).weight(words).operator("MatMul", &["x", "words"], &["y"]);
    cells.push(draft.operator("ArgMax", &["y"], &["at"]).with("axis", 1).output("at", Datatype::Int64, &[1]));
    cells.into_iter().map(Draft::resolve).collect()
}

/// The best of many, microseconds.
fn time(cell: &Arc<TypedCell>, row: fn(usize) -> f32) -> f64 {
    let domain = CpuDomain::new(DomainOptions { arena_bytes: Some(16 << 20), ..DomainOptions::default() }).expect("an arena");
    let worker = CpuWorker::new(domain, CpuOptions::default()).expect("a thread");
    let mut driver = Driver::new(Box::new(worker), std::slice::from_ref(cell));
    let bytes = (0..WIDTH).map(row).flat_map(f32::to_le_bytes).collect();
    let chain = independent(0, cell.outputs.len(), vec![Source::Literal(bytes)], u32::MAX - 1);
    let lane = driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]).lanes[0][0];
    let (mut best, began) = (f64::INFINITY, Instant::now());
    for step in 0.. {
        let started = Instant::now();
        driver.task(CellTypeId(0), &[(lane, step)], 1);
        best = best.min(started.elapsed().as_secs_f64() * 1e6);
        driver.delivered.clear();
        if began.elapsed() >= BUDGET {
            break;
        }
    }
    best
}

#[expect(clippy::print_stdout, reason = "a bench prints")]
fn main() {
    print!("{:24} {:>9}", "cell", "zeros µs");
    ROWS[1..].iter().for_each(|(name, _)| print!(" {name:>10}"));
    println!();
    for cell in cells() {
        let zeros = time(&cell, ROWS[0].1);
        print!("{:24} {zeros:>9.1}", format!("{} {}", cell.name, cell.precision.name()));
        ROWS[1..].iter().for_each(|(_, row)| print!(" {:>10.2}", time(&cell, *row) / zeros));
        println!();
    }
}

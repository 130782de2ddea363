//! What is the CPU worker's own: threads, domains that workers share, and what it refuses.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cellwright_backend::{Backend, CellTypeId, LoadError, Task};
use cellwright_backend_cpu::{CpuDomain, CpuOptions, CpuWorker, DomainOptions, Kernels, Level, Shares};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Retention, Source};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Driver, growth_of, independent};

fn random(seed: u64, shape: &[usize], scale: f32) -> Tensor {
    let mut rng = Rng::new(seed);
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * scale).collect();
    Tensor::from_f32("x", shape, &values)
}

/// So large that its steps are worth more than one thread, and of a width that no unit of work divides.
fn lstm(hidden: usize) -> Arc<TypedCell> {
    lstm_at(hidden, Precision::F32)
}

fn lstm_at(hidden: usize, precision: Precision) -> Arc<TypedCell> {
    let weight = |name: &str| {
        let shape = if name.starts_with("bias") { vec![4 * hidden] } else { vec![4 * hidden, hidden] };
        Tensor { name: name.to_owned(), ..random(name.len() as u64 * 3 + u64::from(name.ends_with("hh")), &shape, 0.2) }
    };
    cells::lstm("lstm", hidden, hidden, &weight).at(precision).resolve()
}

fn domain(options: DomainOptions) -> Arc<CpuDomain> {
    CpuDomain::new(DomainOptions { arena_bytes: Some(16 << 20), ..options }).expect("16 MiB are there")
}

fn worker(domain: &Arc<CpuDomain>, threads: usize) -> CpuWorker {
    CpuWorker::new(domain.clone(), CpuOptions { threads, ..CpuOptions::default() }).expect("threads start")
}

/// Three steps of these chains: every output of every step.
fn outputs(worker: CpuWorker, cell: &Arc<TypedCell>, chains: Range<usize>) -> Vec<Vec<u8>> {
    let mut driver = Driver::new(Box::new(worker), std::slice::from_ref(cell));
    let width = cell.inputs[0].shape[0] as usize;
    let place = |number: usize| {
        let rows = Source::Rows { tensor: 0, at: Affine::EVERY };
        let mut chain = independent(0, 2, vec![rows, Source::Zeros, Source::Zeros], 3);
        chain.stages[0].retention = Retention::Double;
        (chain.stages[0].inputs[1].feedback, chain.stages[0].inputs[2].feedback) = (Some((0, 0)), Some((0, 1)));
        let tensor = Arc::new(random(number as u64, &[3, width], 1.0));
        driver.place(Arc::new(growth_of(vec![chain])), &[tensor], 0, &[]).lanes[0][0]
    };
    let lanes: Vec<_> = chains.map(place).collect();
    for step in 0..3 {
        let rows: Vec<_> = lanes.iter().map(|lane| (*lane, step)).collect();
        driver.task(CellTypeId(0), &rows, 1);
    }
    driver.delivered.into_values().collect()
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let in_f32 = [(Kernels::Best, None), (Kernels::Best, Some(Level::Avx2)), (Kernels::Library, None), (Kernels::Tiles, None)];
    let in_f32 = in_f32
        .into_iter()
        .filter(|(kernels, _)| *kernels != Kernels::Tiles || Level::detect() >= Level::Amx)
        .map(|how| (Precision::F32, how));
    let rounded = [Precision::Bf16, Precision::Int8]
        .into_iter()
        .flat_map(|precision| [None, Some(Level::Avx512Bf16), Some(Level::Portable)].map(|level| (precision, (Kernels::Best, level))));
    for (precision, (kernels, level)) in in_f32.into_iter().chain(rounded) {
        let cell = lstm_at(163, precision);
        let options = DomainOptions { kernels, level, ..DomainOptions::default() };
        let one = outputs(worker(&domain(options), 1), &cell, 0..70);
        for threads in [2, 3, 5] {
            let several = outputs(worker(&domain(options), threads), &cell, 0..70);
            assert!(several == one, "{precision}, {kernels:?}, {level:?}, {threads} threads");
        }
    }
}

#[test]
fn results_do_not_depend_on_threads_that_are_lent() {
    let cell = lstm(163);
    // So many that the second step begins long enough after the first for the third to be lent threads of the worker that has nothing to do.
    let chains = 0..700;
    let one = outputs(worker(&domain(DomainOptions::default()), 1), &cell, chains.clone());
    let shared = domain(DomainOptions::default());
    let _idle = worker(&shared, 2);
    assert!(outputs(worker(&shared, 1), &cell, chains) == one);
}

#[test]
fn results_do_not_depend_on_the_parts_that_a_batch_is_computed_in() {
    for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
        let cell = lstm_at(163, precision);
        let outputs = |chains| outputs(worker(&domain(DomainOptions::default()), 1), &cell, chains);
        // More rows than stay near.
        let many = outputs(0..700);
        let each = many.len() / 700;
        for first in (0..700).step_by(20) {
            let few = outputs(first..first + 20);
            assert!(many[first * each..(first + 20) * each] == few[..], "{precision}: chains from {first} on");
        }
    }
}

/// What a cell's weights take of a worker's memory, of so many bytes.
fn taken(worker: &CpuWorker, cell: &Arc<TypedCell>, bytes_max: u64) -> Result<u64, LoadError> {
    worker.preparer().prepare(cell, bytes_max).map(|prepared| prepared.weight_bytes)
}

#[test]
fn workers_of_a_domain_share_slots_and_weights() {
    let cell = lstm(64);
    let shared = domain(DomainOptions::default());
    let mut workers = [worker(&shared, 1), worker(&shared, 1)];
    let mut loaded = |number: usize| {
        let prepared = workers[number].preparer().prepare(&cell, u64::MAX)?;
        let bytes = prepared.weight_bytes;
        workers[number].install(CellTypeId(0), &cell, prepared).map(|()| bytes)
    };
    let bytes = loaded(0).expect("it can run");
    // Both biases are one.
    assert!(bytes > cell.weight_bytes / 2, "{bytes}");
    assert_eq!(loaded(1), Ok(0), "they are there already");
    assert_eq!(workers[0].info().domain, workers[1].info().domain);
    assert_ne!(workers[0].info().domain, worker(&domain(DomainOptions::default()), 1).info().domain);
    workers[0].unload(CellTypeId(0));
    assert_eq!(taken(&workers[0], &cell, u64::MAX), Ok(0), "one of them has them still");
    workers[1].unload(CellTypeId(0));
    assert_eq!(taken(&workers[0], &cell, u64::MAX), Ok(bytes));

    let [first, second] = &mut workers;
    let slot = cellwright_backend::Slot(7);
    first.write(slot, &[5; 64]).expect("the device is there");
    assert_eq!(second.read(slot, 1), Ok(vec![5; 64]));
}

#[test]
fn weights_that_packed_take_more_than_there_is_are_refused() {
    // Columns are padded to whole panels, and depth to whole cache lines: 256 bytes become some thousands.
    let draft = Draft::new("thin").input("x", Datatype::Fp32, &[64]).weight(Tensor::from_f32("w", &[64, 1], &[0.5; 64]));
    let cell = draft.operator("MatMul", &["x", "w"], &["y"]).output("y", Datatype::Fp32, &[1]).at(Precision::Int8).resolve();
    assert_eq!(cell.weight_bytes, 256);
    let worker = worker(&domain(DomainOptions::default()), 1);
    let packed = 64 * 32 + 2 * 32 * 4;
    let refused = taken(&worker, &cell, packed - 1);
    assert!(matches!(refused, Err(LoadError::OutOfMemory { needed, .. }) if needed == packed), "{refused:?}");
    assert_eq!(taken(&worker, &cell, packed), Ok(packed));
}

#[test]
fn what_several_use_is_there_once() {
    let named = |name: &str, shape: &[usize]| Tensor { name: name.to_owned(), ..random(42, shape, 0.1) };
    let draft = Draft::new("tied").input("x", Datatype::Fp32, &[64]).weight(named("w", &[64, 64]));
    let draft = draft.operator("MatMul", &["x", "w"], &["once"]).operator("MatMul", &["once", "w"], &["y"]);
    let products = draft.output("y", Datatype::Fp32, &[64]).resolve();
    let draft = Draft::new("pair").input("left", Datatype::Int64, &[]).input("right", Datatype::Int64, &[]).weight(named("w", &[64, 64]));
    let draft = draft.operator("Gather", &["w", "left"], &["y"]).operator("Gather", &["w", "right"], &["z"]);
    let lookups = draft.output("y", Datatype::Fp32, &[64]).output("z", Datatype::Fp32, &[64]).resolve();
    for cell in [products, lookups] {
        let bytes = taken(&worker(&domain(DomainOptions::default()), 1), &cell, cell.weight_bytes + cell.weight_bytes / 2);
        assert!(bytes.is_ok(), "{}: {bytes:?}", cell.name);
    }
}

#[test]
fn screens_are_made_where_there_is_room_for_them() {
    if Level::detect() < Level::Avx512Vnni {
        return;
    }
    // Columns and depth fill panels and cache lines.
    let (k, n) = (64_usize, 4096_usize);
    let weight = Tensor { name: "w".to_owned(), ..random(41, &[k, n], 1.0) };
    let draft = Draft::new("best").input("x", Datatype::Fp32, &[k]).weight(weight);
    let draft = draft.operator("MatMul", &["x", "w"], &["y"]).operator("ArgMax", &["y"], &["best"]).with("axis", 1);
    let cell = draft.output("best", Datatype::Int64, &[1]).resolve();
    let (floats, bytes, halves, known) = (4 * k * n, k * n, 2 * k * n, 7 * 4 * n);
    let scales = 8 * n;
    let worker = worker(&domain(DomainOptions::default()), 1);
    let within = |bytes: usize| taken(&worker, &cell, bytes as u64).map(|bytes| bytes as usize);
    let whole = floats + bytes + scales + halves + known;
    assert_eq!(within(whole), Ok(whole), "the weight is there three times");
    assert_eq!(within(whole - 1), Ok(floats));
    assert_eq!(within(floats), Ok(floats), "there is room for the weights alone");
    assert!(matches!(within(floats - 1), Err(LoadError::OutOfMemory { needed, .. }) if needed == floats as u64));
}

#[test]
fn what_it_cannot_do_it_says_in_a_sentence() {
    let mut worker = worker(&domain(DomainOptions::default()), 1);
    let mut strange = (*Draft::new("strange")
        .input("x", Datatype::Fp32, &[4])
        .operator("Neg", &["x"], &["y"])
        .output("y", Datatype::Fp32, &[4])
        .resolve())
    .clone();
    strange.values[0].datatype = Datatype::Fp64;
    let error = worker.load(CellTypeId(0), &Arc::new(strange)).expect_err("there are no kernels for it").to_string();
    assert_eq!(error, "cell `strange`: the CPU worker cannot run values of datatype FP64");
    worker.submit(Task { seq: 1, cell: CellTypeId(3), steps: 1, ..Task::default() }).expect("it is taken");
    assert!(worker.complete().is_ok(), "a task without rows does nothing");
    let error = worker.time_batch(CellTypeId(3), 4).expect_err("nothing is loaded there").to_string();
    assert!(error.ends_with("is lost: cell 3 is to be timed, but is not loaded"), "{error}");
}

#[test]
fn it_accounts_for_its_time() {
    let account = Arc::default();
    let measured = worker(&domain(DomainOptions::default()), 1).accounting(Arc::clone(&account));
    outputs(measured, &lstm(96), 0..20);
    let Shares { products, others, transfer } = *account.lock().expect("nobody panicked");
    assert!(products > Duration::ZERO && others > Duration::ZERO && transfer > Duration::ZERO);
}

/// All products of these cells can be computed before their state is known: they are accounted for as products nevertheless.
#[test]
fn it_accounts_for_products_that_run_ahead_or_fill_a_table() {
    let matrix = |name: &str, shape: &[usize]| Tensor { name: name.to_owned(), ..random(3, shape, 0.5) };
    let of_rows = Draft::new("of rows").known("x", Datatype::Fp32, &[48]);
    let of_tokens = Draft::new("of tokens").known("x", Datatype::Int64, &[]).weight(matrix("e", &[7, 48]));
    let of_tokens = of_tokens.operator("Gather", &["e", "x"], &["row"]);
    for (draft, left, source) in
        [(of_rows, "x", Source::Rows { tensor: 0, at: Affine::EVERY }), (of_tokens, "row", Source::Ints(vec![3, 1, 3]))]
    {
        let draft = draft.input("h", Datatype::Fp32, &[32]).weight(matrix("w", &[48, 32]));
        let draft = draft.operator("MatMul", &[left, "w"], &["xw"]).operator("Mul", &["xw", "h"], &["next"]);
        let cell = draft.output("next", Datatype::Fp32, &[32]).resolve();
        let options = DomainOptions { table_bytes: Some(1 << 20), ahead_weights_least: Some(0), ..DomainOptions::default() };
        let account = Arc::default();
        let measured = worker(&domain(options), 1).accounting(Arc::clone(&account));
        let mut driver = Driver::new(Box::new(measured), std::slice::from_ref(&cell));
        let mut chain = independent(0, 1, vec![source, Source::Zeros], 3);
        chain.stages[0].retention = Retention::Double;
        chain.stages[0].inputs[1].feedback = Some((0, 0));
        let lane = driver.place(Arc::new(growth_of(vec![chain])), &[Arc::new(random(4, &[3, 48], 1.0))], 0, &[]).lanes[0][0];
        driver.task(CellTypeId(0), &[(lane, 0)], 3);
        let Shares { products, others, transfer } = *account.lock().expect("nobody panicked");
        assert!(products > Duration::ZERO && others > Duration::ZERO && transfer > Duration::ZERO, "`{}`", cell.name);
    }
}

#[test]
fn rows_too_long_for_one_frame_are_computed_in_parts() {
    // 16 MiB a row and value, so that a batch of forty would take more than a gibibyte.
    let width = 4 << 20;
    let draft = Draft::new("long").input("x", Datatype::Fp32, &[1]).weight(Tensor::from_f32("w", &[width], &vec![2.0; width]));
    let cell = draft
        .operator("Mul", &["x", "w"], &["wide"])
        .operator("ReduceMax", &["wide"], &["y"])
        .with("axes", [1].as_slice())
        .output("y", Datatype::Fp32, &[1])
        .resolve();
    let mut driver = Driver::new(Box::new(worker(&domain(DomainOptions::default()), 1)), std::slice::from_ref(&cell));
    let rows: Vec<f32> = (0..40).map(|row| row as f32 - 7.0).collect();
    let sources = vec![Source::Rows { tensor: 0, at: Affine::EVERY }];
    let growth = Arc::new(growth_of(vec![independent(0, 1, sources, 40)]));
    let lane = driver.place(growth, &[Arc::new(Tensor::from_f32("x", &[40, 1], &rows))], 0, &[]).lanes[0][0];
    let steps: Vec<_> = (0..40).map(|step| (lane, step)).collect();
    driver.task(CellTypeId(0), &steps, 1);
    for (step, row) in rows.iter().enumerate() {
        assert_eq!(driver.floats(lane, 0, step as u32), [row * 2.0]);
    }
}

#[test]
fn a_domain_has_a_plain_name_of_its_own() {
    use cellwright_backend::Backend as _;
    let (one, other) = (domain(DomainOptions::default()), domain(DomainOptions::default()));
    let name = |domain: &Arc<CpuDomain>| worker(domain, 1).info().domain;
    assert_eq!(name(&one), name(&one));
    assert_ne!(name(&one), name(&other));
    let number = name(&one).strip_prefix("cpu-").map(str::to_owned).unwrap_or_default();
    assert!(number.len() < 6 && number.bytes().all(|byte| byte.is_ascii_digit()), "{number}");
}

//! The parts: what the driver promises, what every backend must pass, faults, and figures.

use std::time::Duration;

use cellwright_backend::Backend;
use cellwright_backend_cuda::driver::emulated::{Emulated, Emulation, Injection};
use cellwright_backend_cuda::driver::{DeviceAddress, Driver, Fault, promises};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::Tensor;
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_conformance::{
    ARENA_SLOTS, Scope, Tolerance, behaviour, cells, denormals, families, hoisting, invariance, operators, spans,
};
use serde_json::{Value, json};

use super::figures::done;
use super::{Where, ahead, figures, graphs, groups, guards, peers, steps};

/// A part: what it is called, and what runs it. It panics if it fails, and gives figures if it has any.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) run: fn(Where) -> Value,
}

/// In the order in which one wants to know.
pub(crate) const PARTS: &[Part] = &[
    Part { name: "driver", run: driver },
    Part { name: "peers", run: peers::run },
    Part { name: "behaviour", run: |place| suite(place, Suite::Behaviour, Precision::F32) },
    Part { name: "operators-f32", run: |place| suite(place, Suite::Operators, Precision::F32) },
    Part { name: "operators-bf16", run: |place| suite(place, Suite::Operators, Precision::Bf16) },
    Part { name: "operators-f16", run: |place| suite(place, Suite::Operators, Precision::F16) },
    Part { name: "denormals-f32", run: |place| suite(place, Suite::Denormals, Precision::F32) },
    Part { name: "denormals-bf16", run: |place| suite(place, Suite::Denormals, Precision::Bf16) },
    Part { name: "denormals-f16", run: |place| suite(place, Suite::Denormals, Precision::F16) },
    Part { name: "families-f32", run: |place| suite(place, Suite::Families, Precision::F32) },
    Part { name: "families-bf16", run: |place| suite(place, Suite::Families, Precision::Bf16) },
    Part { name: "families-f16", run: |place| suite(place, Suite::Families, Precision::F16) },
    Part { name: "invariance-f32", run: |place| suite(place, Suite::Invariance, Precision::F32) },
    Part { name: "invariance-bf16", run: |place| suite(place, Suite::Invariance, Precision::Bf16) },
    Part { name: "invariance-f16", run: |place| suite(place, Suite::Invariance, Precision::F16) },
    Part { name: "hoisting-f32", run: |place| suite(place, Suite::Hoisting, Precision::F32) },
    Part { name: "hoisting-bf16", run: |place| suite(place, Suite::Hoisting, Precision::Bf16) },
    Part { name: "hoisting-f16", run: |place| suite(place, Suite::Hoisting, Precision::F16) },
    Part { name: "spans-f32", run: |place| suite(place, Suite::Spans, Precision::F32) },
    Part { name: "spans-bf16", run: |place| suite(place, Suite::Spans, Precision::Bf16) },
    Part { name: "spans-f16", run: |place| suite(place, Suite::Spans, Precision::F16) },
    Part { name: "operators-tf32", run: |place| in_tf32(place, Suite::Operators) },
    Part { name: "denormals-tf32", run: |place| in_tf32(place, Suite::Denormals) },
    Part { name: "families-tf32", run: |place| in_tf32(place, Suite::Families) },
    Part { name: "invariance-tf32", run: |place| in_tf32(place, Suite::Invariance) },
    Part { name: "hoisting-tf32", run: |place| in_tf32(place, Suite::Hoisting) },
    Part { name: "lstm-wide-bf16", run: |place| lstm_wide(place, Precision::Bf16) },
    Part { name: "lstm-wide-f16", run: |place| lstm_wide(place, Precision::F16) },
    Part { name: "gru-wide-bf16", run: |place| gru_wide(place, Precision::Bf16) },
    Part { name: "gru-wide-f16", run: |place| gru_wide(place, Precision::F16) },
    Part { name: "tree-wide-bf16", run: |place| tree_wide(place, Precision::Bf16) },
    Part { name: "tree-wide-f16", run: |place| tree_wide(place, Precision::F16) },
    Part { name: "graphs", run: graphs::bits },
    Part { name: "ahead", run: ahead::bits },
    Part { name: "groups-f32", run: |place| groups::both_ways(place, Precision::F32) },
    Part { name: "groups-bf16", run: |place| groups::both_ways(place, Precision::Bf16) },
    Part { name: "guards", run: guards::run },
    Part { name: "faults", run: faults },
    Part { name: "figures-signals", run: figures::signals },
    Part { name: "figures-lstm", run: figures::lstm },
    Part { name: "figures-steps", run: steps::times },
    Part { name: "figures-composed", run: steps::composed },
    Part { name: "figures-decoder", run: figures::decoder },
    Part { name: "figures-gru", run: figures::gru },
    Part { name: "figures-tree", run: figures::tree },
    Part { name: "figures-graphs", run: graphs::times },
    Part { name: "figures-ahead", run: ahead::times },
];

/// Of the suite that every backend must pass.
#[derive(Clone, Copy)]
enum Suite {
    Behaviour,
    Operators,
    Denormals,
    Families,
    Invariance,
    Hoisting,
    Spans,
}

fn suite(place: Where, suite: Suite, precision: Precision) -> Value {
    let make = &mut || worker(place, false);
    let (tolerance, scope) = (Tolerance::default(), scope(precision, place));
    match suite {
        Suite::Behaviour => behaviour::run(make),
        Suite::Operators => operators::run(make, tolerance, &scope),
        Suite::Denormals => denormals::run(make, &scope),
        Suite::Families => families::run(make, tolerance, &scope),
        Suite::Invariance => invariance::run(make, &scope),
        Suite::Hoisting => hoisting::run(make, &scope),
        Suite::Spans => spans::run(make, tolerance, &scope),
    }
    json!({})
}

/// Models in 32-bit floats, multiplied in tf32.
fn in_tf32(place: Where, suite: Suite) -> Value {
    let make = &mut || worker(place, true);
    let scope = scope(Precision::F32, place);
    match suite {
        Suite::Behaviour => behaviour::run(make),
        Suite::Operators => operators::run_in_tf32(make, Tolerance::default(), &scope),
        Suite::Denormals => denormals::run_in_tf32(make, &scope),
        Suite::Families => families::run(make, Tolerance::TF32, &scope),
        Suite::Invariance => invariance::run(make, &scope),
        Suite::Hoisting => hoisting::run(make, &scope),
        Suite::Spans => spans::run(make, Tolerance::TF32, &scope),
    }
    json!({})
}

/// LSTMs of those widths.
fn lstm_wide(place: Where, precision: Precision) -> Value {
    wide(place, &|units| hoisting::Recurrent { cell: lstm_of(units).at(precision).resolve(), feedback: vec![(0, 1), (1, 2)] })
}

/// And GRUs.
fn gru_wide(place: Where, precision: Precision) -> Value {
    wide(place, &|units| hoisting::Recurrent { cell: gru_of(units).at(precision).resolve(), feedback: vec![(0, 1)] })
}

/// And nodes of trees, which have no steps.
fn tree_wide(place: Where, precision: Precision) -> Value {
    let (sizes, units): (&[usize], usize) = match place {
        Where::Device(_) => (&[1, 2, 63, 64, 65, 128, 256, 257, 512, 1000, 2048], 1024),
        Where::Emulated => (&[1, 65], 128),
    };
    let cell = tree_of(units).at(precision).resolve();
    invariance::cell_at_sizes(&mut || with(place, CudaOptions { arena_bytes: Some(64 << 20), ..CudaOptions::default() }), &cell, sizes);
    json!({})
}

/// Cells as wide as models have them, so that their own kernels run with tiles of every size: at many sizes of a batch, and over several steps at once,
/// by weights that stay and by weights that do not.
fn wide(place: Where, of: &dyn Fn(usize) -> hoisting::Recurrent) -> Value {
    let (sizes, wide): (&[usize], &[(usize, usize)]) = match place {
        Where::Device(_) => (&[1, 2, 63, 64, 65, 128, 256, 257, 512, 1000, 2048], &[(1024, 24), (1024, 128), (2048, 64), (2048, 300)]),
        Where::Emulated => (&[1, 65], &[(128, 24)]),
    };
    // Room for the rows of many steps at once.
    let room = match place {
        Where::Device(_) => CudaOptions { frame_bytes: Some(1 << 30), ring_bytes: 64 << 20, ..CudaOptions::default() },
        Where::Emulated => {
            CudaOptions { arena_bytes: Some(32 << 20), frame_bytes: Some(64 << 20), ring_bytes: 4 << 20, ..CudaOptions::default() }
        }
    };
    let make = &mut || with(place, room);
    invariance::cell_at_sizes(make, &of(wide[0].0).cell, sizes);
    for (units, requests) in wide {
        let recurrent = of(*units);
        let chains = (&recurrent, *requests);
        let most_rows = *requests as u64;
        let alone = hoisting::deliveries(make, chains, (1, 1), &mut Rng::new(1));
        for most in [(most_rows, 1), (1, 9), (most_rows, 9), (7, 4)] {
            let together = hoisting::deliveries(make, chains, most, &mut Rng::new(2));
            assert!(together == alone, "{units} units, {requests} chains: tasks of up to {most:?} rows and steps give other bits");
        }
    }
    json!({})
}

fn lstm_of(units: usize) -> cells::Draft {
    cells::lstm("wide lstm", units, units, &weights(4, units))
}

fn gru_of(units: usize) -> cells::Draft {
    cells::gru("wide gru", units, units, &weights(3, units))
}

pub(crate) fn tree_of(units: usize) -> cells::Draft {
    let weight = |name: &str| {
        let shape: &[usize] = if name.ends_with("bias") { &[5 * units] } else { &[5 * units, 2 * units] };
        let mut rng = Rng::new(name.len() as u64);
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() / (units as f32).sqrt()).collect();
        Tensor::from_f32(name, shape, &values)
    };
    cells::tree_node(units, &weight)
}

/// Weights of so many gates, by PyTorch's names.
pub(crate) fn weights(gates: usize, units: usize) -> impl Fn(&str) -> Tensor {
    move |name| {
        let shape = if name.starts_with("bias") { vec![gates * units] } else { vec![gates * units, units] };
        let mut rng = Rng::new(name.len() as u64);
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() / (units as f32).sqrt()).collect();
        Tensor::from_f32(name, &shape, &values)
    }
}

pub(crate) fn open(place: Where) -> Box<dyn Driver> {
    place.open().unwrap_or_else(|why| panic!("{why}"))
}

/// How large a worker of the suite is.
pub(crate) fn small() -> CudaOptions {
    let arena_bytes = Some(u64::from(ARENA_SLOTS) * 64);
    CudaOptions { arena_bytes, frame_bytes: Some(64 << 20), ring_bytes: 4 << 20, ..CudaOptions::default() }
}

/// A worker as the suite wants it.
fn worker(place: Where, tf32: bool) -> Box<dyn Backend> {
    with(place, CudaOptions { tf32, ..small() })
}

pub(crate) fn with(place: Where, options: CudaOptions) -> Box<dyn Backend> {
    Box::new(CudaWorker::new(open(place), options).unwrap_or_else(|fault| panic!("no worker: {fault}")))
}

/// Every size of a batch on a device; those around which something begins anew on threads, which take long.
pub(crate) fn scope(precision: Precision, place: Where) -> Scope {
    let sizes = match place {
        Where::Device(_) => Scope::default().sizes,
        Where::Emulated => vec![1, 2, 7, 16, 17, 33, 64, 65, 129],
    };
    Scope { precisions: vec![precision], sizes }
}

fn driver(place: Where) -> Value {
    for (name, part) in promises::PARTS {
        eprintln!("conformance: driver: {name}");
        part(&mut || open(place));
    }
    json!({})
}

/// A kernel that leaves its memory takes the device out, and nothing else: calls say so, the process lives, and nobody waits for ever.
fn faults(place: Where) -> Value {
    let (mut driver, emulated): (Box<dyn Driver>, bool) = match place {
        Where::Device(_) => (open(place), false),
        Where::Emulated => {
            let driver = Emulated::new(&Emulation::default());
            driver.control().inject(Injection::IllegalAccess { after_launches: 1 });
            (Box::new(driver), true)
        }
    };
    let driver = driver.as_mut();
    let (stream, at, word) = (done(driver.stream()), done(driver.allocate(4096)), done(driver.pinned(8)));
    // SAFETY: so much was allocated.
    done(unsafe { promises::fill(driver, stream, at, 1024, 1) });
    // Where no memory is ever mapped. On threads it is the order above that makes it fail, without a look at the address.
    let nowhere = if emulated { at } else { DeviceAddress(64) };
    // SAFETY: it is not safe, which is the point: the device stops the kernel, and the driver tells of it.
    let queued = unsafe { promises::fill(driver, stream, nowhere, 16, 1) };
    let queued = queued.and_then(|()| driver.signal(stream, &word, 0, 1));
    let fault = match queued.and_then(|()| promises::await_word(driver, &word, 0, 1)) {
        Err(fault) => fault,
        Ok(()) => panic!("a kernel wrote where there is no memory, and the signal behind it came"),
    };
    assert!(fault.is_lost(), "the device is not lost: {fault}");
    let other = driver.allocate(16).err();
    assert!(other.as_ref().is_some_and(Fault::is_lost), "a lost device goes on: {other:?}");
    std::thread::sleep(Duration::from_millis(10));
    assert!(driver.check().is_err_and(|fault| fault.is_lost()), "a lost device comes back");
    json!({ "fault": fault.to_string() })
}

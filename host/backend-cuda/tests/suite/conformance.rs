//! The suite that every backend must pass, on an emulated device that runs the kernels' own sources.
//!
//! In 32-bit floats, in bf16 and in f16: the worker has no products in int8, and says so when such a cell is loaded. What has kernels of its own must run by
//! them here, or the suite would say nothing of those.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use cellwright_backend::Backend;
use cellwright_backend_cuda::driver::emulated::{Control, Emulated, Emulation, What};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::typed::Precision;
use cellwright_conformance::{ARENA_SLOTS, Scope, Tolerance, behaviour, denormals, families, hoisting, invariance, operators, spans};

/// What stands for a graph among the names of kernels.
const A_GRAPH: &str = "a graph";

/// What a device is like: whether it has a compiler for groups, and which compute capability.
#[derive(Clone, Copy)]
struct Of {
    compiles: bool,
    capability: (u32, u32),
}

const HOPPER: Of = Of { compiles: false, capability: (9, 0) };

/// A worker with an arena as small as the suite allows, on a device whose streams and threads take turns in an order of their own.
fn worker(seed: u64, of: Of) -> (Box<dyn Backend>, Control) {
    let Of { compiles, capability } = of;
    let driver = Emulated::new(&Emulation { seed, compiles, capability, lag: Duration::from_micros(20), ..Emulation::default() });
    let control = driver.control();
    let options = CudaOptions {
        arena_bytes: Some(u64::from(ARENA_SLOTS) * 64),
        frame_bytes: Some(8 << 20),
        ring_bytes: 1 << 20,
        rows_most: 256,
        spin: Duration::ZERO,
        ..CudaOptions::default()
    };
    (Box::new(CudaWorker::new(Box::new(driver), options).expect("a device made of threads")), control)
}

/// Workers, each on a device with another order.
fn make() -> impl FnMut() -> Box<dyn Backend> {
    let mut seed = 0;
    move || {
        seed += 1;
        worker(seed, HOPPER).0
    }
}

/// Workers as [`make`] makes them, and the kernels that they launched.
#[derive(Default)]
struct Watched {
    latest: RefCell<Option<Control>>,
    launched: RefCell<BTreeSet<&'static str>>,
    /// Those on another stream than that of the steps.
    beside: RefCell<BTreeSet<&'static str>>,
}

impl Watched {
    fn make(&self) -> impl FnMut() -> Box<dyn Backend> {
        self.on(HOPPER)
    }

    /// The same, on another device.
    fn on(&self, of: Of) -> impl FnMut() -> Box<dyn Backend> {
        let mut seed = 0;
        move || {
            seed += 1;
            let (worker, control) = worker(seed, of);
            self.look();
            self.latest.replace(Some(control));
            worker
        }
    }

    fn look(&self) {
        let log: Vec<_> = self.latest.borrow().iter().flat_map(Control::take_log).collect();
        let is_finish = |what: &What| matches!(what, What::Launch { kernel: "finish", .. });
        let steps = log.iter().find(|ran| is_finish(&ran.what)).map(|ran| ran.stream);
        for ran in log {
            let name = match ran.what {
                What::Launch { kernel, .. } => kernel,
                What::Graph { .. } => A_GRAPH,
                _ => continue,
            };
            self.launched.borrow_mut().insert(name);
            if steps.is_some_and(|steps| steps != ran.stream) {
                self.beside.borrow_mut().insert(name);
            }
        }
    }

    /// Whether a kernel was launched beside the steps whose name begins so.
    fn has_launched_beside(&self, name: &str) -> bool {
        self.look();
        self.beside.borrow().iter().any(|kernel| kernel.starts_with(name))
    }

    /// Whether a kernel was launched whose name begins so.
    fn has_launched(&self, name: &str) -> bool {
        self.look();
        self.launched.borrow().iter().any(|kernel| kernel.starts_with(name))
    }
}

/// Sizes around those at which tiles, warps and parts begin anew.
fn scope(precision: Precision) -> Scope {
    let sizes = [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 129, 255, 256, 257];
    Scope { precisions: vec![precision], sizes: sizes.to_vec() }
}

#[test]
fn behaviour() {
    let watched = Watched::default();
    behaviour::run(&mut watched.make());
    assert!(watched.has_launched(A_GRAPH));
}

#[test]
fn operators_in_f32() {
    operators::run(&mut make(), Tolerance::default(), &scope(Precision::F32));
}

#[test]
fn operators_in_bf16() {
    operators::run(&mut make(), Tolerance::default(), &scope(Precision::Bf16));
}

#[test]
fn operators_in_f16() {
    operators::run(&mut make(), Tolerance::default(), &scope(Precision::F16));
}

#[test]
fn denormal_numbers_are_zeros() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        denormals::run(&mut make(), &scope(precision));
        denormals::run(&mut Watched::default().on(Of { compiles: true, ..HOPPER }), &scope(precision));
    }
}

#[test]
fn families_in_f16() {
    let watched = Watched::default();
    families::run(&mut watched.make(), Tolerance::default(), &scope(Precision::F16));
    for kernel in ["wide_f16_", "lstm_f16_step_", "gru_f16_step_", "tree_f16_step_", A_GRAPH] {
        assert!(watched.has_launched(kernel), "{kernel}");
    }
    assert!(!watched.has_launched("lstm_step_") && !watched.has_launched("wide_bf16_") && !watched.has_launched("product_f16_"));
}

#[test]
fn families() {
    families::run(&mut make(), Tolerance::default(), &scope(Precision::F32));
    let watched = Watched::default();
    families::run(&mut watched.make(), Tolerance::default(), &scope(Precision::Bf16));
    for kernel in ["lstm_step_", "gru_step_", "tree_step_", A_GRAPH] {
        assert!(watched.has_launched(kernel), "{kernel}");
    }
}

#[test]
fn spans_in_compiled_groups() {
    let watched = Watched::default();
    spans::run(&mut watched.on(COMPILING), Tolerance::default(), &compiled_scope());
    for kernel in ["compiled_group", "span", "attention", "span_check"] {
        assert!(watched.has_launched(kernel), "{kernel}");
    }
}

#[test]
fn spans_in_16_bits() {
    for (precision, kernel) in [(Precision::Bf16, "wide_bf16_"), (Precision::F16, "wide_f16_")] {
        let watched = Watched::default();
        spans::run(&mut watched.make(), Tolerance::default(), &scope(precision));
        assert!(watched.has_launched(kernel) && watched.has_launched("attention"), "{kernel}");
    }
}

#[test]
fn invariance_in_f32() {
    invariance::run(&mut make(), &scope(Precision::F32));
}

#[test]
fn invariance_in_bf16() {
    let watched = Watched::default();
    invariance::run(&mut watched.make(), &scope(Precision::Bf16));
    assert!(watched.has_launched(A_GRAPH));
    for tile in ["64x8", "64x16", "128x32"] {
        assert!(watched.has_launched(&format!("lstm_step_{tile}")), "{tile}");
    }
}

#[test]
fn invariance_in_f16() {
    let watched = Watched::default();
    invariance::run(&mut watched.make(), &scope(Precision::F16));
    for tile in ["64x64", "128x64"] {
        assert!(watched.has_launched(&format!("wide_f16_{tile}")), "{tile}");
    }
    for tile in ["64x8", "64x16", "128x32"] {
        assert!(watched.has_launched(&format!("lstm_f16_step_{tile}")), "{tile}");
    }
}

#[test]
fn hoisting_in_f16() {
    let watched = Watched::default();
    hoisting::run(&mut watched.make(), &scope(Precision::F16));
    for kernel in ["lstm_f16_step_", "lstm_f16_resident_", "gru_f16_step_", "gru_f16_resident_"] {
        assert!(watched.has_launched(kernel), "{kernel}");
    }
    assert!(watched.has_launched_beside("wide_f16_"), "what is known of a step is computed ahead of it");
}

#[test]
fn hoisting_in_f32() {
    hoisting::run(&mut make(), &scope(Precision::F32));
}

#[test]
fn hoisting_in_bf16() {
    let watched = Watched::default();
    hoisting::run(&mut watched.make(), &scope(Precision::Bf16));
    for kernel in ["lstm_step_", "lstm_resident_", "gru_step_", "gru_resident_"] {
        assert!(watched.has_launched(kernel), "{kernel}");
    }
    assert!(watched.has_launched_beside("wide_bf16_"), "what is known of a step is computed ahead of it");
}

/// Warpgroups do not multiply there: other products do, of rows that are not rounded before.
#[test]
fn devices_before_hopper_pass_it_too() {
    for (precision, own) in [(Precision::Bf16, "product_bf16_"), (Precision::F16, "product_f16_")] {
        let (watched, ampere) = (Watched::default(), Of { capability: (8, 0), ..HOPPER });
        let scope = Scope { precisions: vec![precision], sizes: vec![1, 17, 129] };
        families::run(&mut watched.on(ampere), Tolerance::default(), &scope);
        invariance::run(&mut watched.on(ampere), &scope);
        for tile in [16, 64, 128] {
            assert!(watched.has_launched(&format!("{own}{tile}")), "{own}{tile}");
        }
        assert!(!watched.has_launched("wide_") && !watched.has_launched("lstm_"));
    }
}

const COMPILING: Of = Of { compiles: true, ..HOPPER };

/// Fewer precisions and sizes: groups are the same in all of them.
fn compiled_scope() -> Scope {
    Scope { precisions: vec![Precision::F32], sizes: vec![1, 17, 33] }
}

#[test]
fn behaviour_in_compiled_groups() {
    let watched = Watched::default();
    behaviour::run(&mut watched.on(COMPILING));
    assert!(watched.has_launched("compiled_group"));
}

#[test]
fn families_in_compiled_groups() {
    // An LSTM's own kernels read what groups leave, and groups what they leave.
    for (precision, own) in [(Precision::F32, "product_f32"), (Precision::Bf16, "lstm_step_")] {
        let watched = Watched::default();
        families::run(&mut watched.on(COMPILING), Tolerance::default(), &Scope { precisions: vec![precision], ..compiled_scope() });
        assert!(watched.has_launched("compiled_group") && watched.has_launched(own), "{precision:?}");
    }
}

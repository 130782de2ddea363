//! A worker with words around everything that it has on its device (`debug=true`): it computes what it should, and none of its kernels writes one of them.
//!
//! On threads, where memory of the device can be written behind the worker's back, such a write is planted, and must be found.

use std::sync::Arc;

use cellwright_backend::{CellTypeId, DeviceLost};
use cellwright_backend_cuda::driver::emulated::{Emulated, Emulation, What};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::Datatype;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::Source;
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Driver, growth_of, independent};
use cellwright_conformance::{Tolerance, behaviour, families, operators};
use serde_json::{Value, json};

use super::Where;
use super::parts::{scope, small, with};

/// The part: a suite that takes every kind of launch, then the planted write.
pub(crate) fn run(place: Where) -> Value {
    let options = CudaOptions { debug: true, ..small() };
    let make = &mut || with(place, options);
    behaviour::run(make);
    if matches!(place, Where::Emulated) {
        return json!({ "planted": planted() });
    }
    for precision in [Precision::F32, Precision::Bf16] {
        operators::run(make, Tolerance::default(), &scope(precision, place));
        families::run(make, Tolerance::default(), &scope(precision, place));
    }
    json!({})
}

/// Writes in front of the frame between two tasks: what the worker says of it.
fn planted() -> String {
    let device = Emulated::new(&Emulation::default());
    let control = device.control();
    let options = CudaOptions { debug: true, ..small() };
    let worker = CudaWorker::new(Box::new(device), options).unwrap_or_else(|fault| panic!("no worker: {fault}"));
    let cell = Draft::new("plain").input("x", Datatype::Fp32, &[8]).operator("Tanh", &["x"], &["y"]).output("y", Datatype::Fp32, &[8]);
    let mut driver = Driver::new(Box::new(worker), &[cell.resolve()]);
    assert!(task(&mut driver).is_ok(), "a guard was overwritten before anybody did");
    let frame = control.take_log().into_iter().find_map(|ran| match ran.what {
        What::Launch { kernel: "gather", arguments, .. } => arguments.first_chunk().map(|word| u64::from_ne_bytes(*word)),
        _ => None,
    });
    let frame = frame.unwrap_or_else(|| panic!("nothing was gathered"));
    // SAFETY: the guard in front of the frame, on a device that does nothing at the moment.
    unsafe { (frame as *mut u8).sub(3).write(7) };
    match task(&mut driver) {
        Ok(()) => panic!("a guard was overwritten, and nobody says so"),
        Err(lost) => {
            assert!(lost.cause.contains("of the frame was overwritten"), "{}", lost.cause);
            lost.cause
        }
    }
}

/// A task of one row.
fn task(driver: &mut Driver) -> Result<(), DeviceLost> {
    let request = driver.place(Arc::new(growth_of(vec![independent(0, 1, vec![Source::Zeros], 1)])), &[], 0, &[]);
    let task = driver.prepare(CellTypeId(0), &[(request.lanes[0][0], 0)], 1);
    driver.backend.submit(task)?;
    driver.backend.complete().map(drop)
}

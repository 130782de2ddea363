//! Words that nobody may write, around everything that a worker has on its device: whoever writes one loses the device, with a sentence that says where.
#![expect(unsafe_code, reason = "memory of the emulated device is written behind the worker's back")]

use std::sync::Arc;
use std::time::Duration;

use cellwright_backend::{CellTypeId, DeviceLost};
use cellwright_backend_cuda::driver::emulated::{Control, Emulated, Emulation, What};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::Datatype;
use cellwright_cell_graph::unfolded::Source;
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Driver, growth_of, independent};

/// A kernel's arguments that are addresses, by name: the kernel, the number of its word, what lies there.
const PLACES: [(&str, usize, &str); 3] =
    [("gather", 0, "the frame"), ("gather", 7, "the table of chains"), ("finish", 11, "the ring of downloads")];

/// With direct launches, whose arguments say where things lie.
fn driver(debug: bool) -> (Driver, Control) {
    driver_with(debug, false)
}

fn driver_with(debug: bool, graphs: bool) -> (Driver, Control) {
    let device = Emulated::new(&Emulation { lag: Duration::ZERO, memory_bytes: 64 << 20, ..Emulation::default() });
    let control = device.control();
    let options = CudaOptions {
        arena_bytes: Some(1 << 20),
        frame_bytes: Some(1 << 20),
        ring_bytes: 1 << 18,
        debug,
        graphs,
        ..CudaOptions::default()
    };
    let worker = CudaWorker::new(Box::new(device), options).expect("a device made of threads");
    let cell = Draft::new("plain").input("x", Datatype::Fp32, &[8]).operator("Tanh", &["x"], &["y"]).output("y", Datatype::Fp32, &[8]);
    (Driver::new(Box::new(worker), &[cell.resolve()]), control)
}

/// Submits a task of one row; what completing it gives.
fn task(driver: &mut Driver) -> Result<(), DeviceLost> {
    let request = driver.place(Arc::new(growth_of(vec![independent(0, 1, vec![Source::Zeros], 1)])), &[], 0, &[]);
    let task = driver.prepare(CellTypeId(0), &[(request.lanes[0][0], 0)], 1);
    driver.backend.submit(task)?;
    driver.backend.complete().map(drop)
}

/// Where a launch of that kernel says that something lies.
fn place(control: &Control, kernel: &str, word: usize) -> u64 {
    let launched = control.take_log().into_iter().find_map(|ran| match ran.what {
        What::Launch { kernel: name, arguments, .. } if name == kernel => Some(arguments),
        _ => None,
    });
    let arguments = launched.expect("the kernel was launched");
    u64::from_le_bytes(arguments[8 * word..][..8].try_into().expect("eight bytes"))
}

#[test]
fn what_is_written_beside_memory_loses_the_device_and_is_named() {
    for (kernel, word, name) in PLACES {
        let (mut driver, control) = driver(true);
        task(&mut driver).expect("nothing was overwritten");
        let at = place(&control, kernel, word);
        // SAFETY: the guard in front of an allocation, on a device that does nothing at the moment.
        unsafe { (at as *mut u8).sub(3).write(7) };
        let lost = task(&mut driver).expect_err("a guard was overwritten");
        let said = "memory in front of the ";
        assert!(lost.cause.starts_with(said) && lost.cause.contains(&format!("of {name} was overwritten")), "{}", lost.cause);
        assert!(lost.cause.ends_with("which was seen after a task of cell `plain`"), "{}", lost.cause);
        assert!(task(&mut driver).is_err(), "it stays lost");
    }
}

/// With graphs, whose batches' heads lie there.
#[test]
fn what_is_written_beside_the_desk_is_named() {
    let (mut driver, control) = driver_with(true, true);
    task(&mut driver).expect("nothing was overwritten");
    let at = place(&control, "gather", 2);
    // SAFETY: as above.
    unsafe { (at as *mut u8).sub(3).write(7) };
    let lost = task(&mut driver).expect_err("a guard was overwritten");
    assert!(lost.cause.starts_with("memory in front of the ") && lost.cause.contains("of the desk was overwritten"), "{}", lost.cause);
}

#[test]
fn what_is_written_behind_memory_is_named_too() {
    let (mut driver, control) = driver(true);
    task(&mut driver).expect("nothing was overwritten");
    let at = place(&control, "gather", 7);
    let bytes = 4 * CudaOptions::default().chains as usize;
    // SAFETY: the guard behind the table of chains, on a device that does nothing at the moment.
    unsafe { (at as *mut u8).add(bytes).write(7) };
    let lost = task(&mut driver).expect_err("a guard was overwritten");
    assert!(lost.cause.starts_with(&format!("memory behind the {bytes} bytes of the table of chains was overwritten")), "{}", lost.cause);
}

#[test]
fn without_being_asked_nobody_looks() {
    let (mut driver, control) = driver(false);
    task(&mut driver).expect("nothing was overwritten");
    let downloads = |control: &Control| control.take_log().iter().filter(|ran| matches!(ran.what, What::Download { .. })).count();
    assert_eq!(downloads(&control), 0);
    task(&mut driver).expect("nothing was overwritten");
    assert_eq!(downloads(&control), 0, "what is little is left with the host");
}

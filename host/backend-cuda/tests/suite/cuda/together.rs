//! Launches whose blocks wait for one another, on a device that has none, or has no room for them: what they would compute is computed without them.

use cellwright_backend_cuda::driver::{Fault, Launch, promises};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_conformance::hoisting;

use crate::cuda::{open, whole};

#[test]
fn a_device_need_not_run_blocks_at_once() {
    whole("no-cooperation", "together::has_no_cooperation");
    for wrong in ["", "no-cooperation", "crowded"] {
        whole(wrong, "together::steps_are_what_they_are");
    }
    whole("crowded", "together::is_refused_a_launch");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn has_no_cooperation() {
    let mut driver = open();
    let kernel = driver.kernel("fill").unwrap();
    assert_eq!(driver.resident_blocks(kernel, 32, 0), Ok(0));
    let (_, part) = promises::PARTS.iter().find(|(name, _)| *name == "cooperation").unwrap();
    part(&mut open);
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn is_refused_a_launch() {
    let mut driver = open();
    let (stream, at, kernel) = (driver.stream().unwrap(), driver.allocate(4).unwrap(), driver.kernel("fill").unwrap());
    assert!(driver.resident_blocks(kernel, 32, 0).unwrap() > 0, "it says that there is room");
    let launch = Launch { kernel, grid: [1, 1, 1], threads: 32, shared_bytes: 0, cooperative: true };
    // SAFETY: one word was allocated.
    let refused = unsafe { driver.launch(stream, &launch, &[at.0, 1, 7].map(u64::to_ne_bytes).concat()) };
    assert!(matches!(refused, Err(Fault::Refused(_))) && driver.check().is_ok(), "{refused:?}");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn steps_are_what_they_are() {
    let options = CudaOptions { arena_bytes: Some(4 << 20), frame_bytes: Some(8 << 20), ring_bytes: 1 << 20, ..CudaOptions::default() };
    let lstm = hoisting::recurrent_cells(Precision::Bf16).remove(0);
    let run = |most| {
        let make = &mut || Box::new(CudaWorker::new(open(), options).unwrap()) as _;
        hoisting::deliveries(make, (&lstm, hoisting::REQUESTS), most, &mut Rng::new(5))
    };
    assert!(run((24, 9)) == run((1, 1)), "tasks of several steps give other bits");
}

//! A device whose work never ends: no call is made that would wait for that, by whoever notices, nor by a driver that goes, nor for what outlives it.
//!
//! The library that stands in ends the process with a call that would wait for ever.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_backend::{CellTypeId, Progress};
use cellwright_backend_cuda::driver::{DeviceAddress, Done, Driver, Fault, Graph, GraphLaunch, Launch, Stream, promises};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::unfolded::Source;
use cellwright_conformance::cells;
use cellwright_conformance::driver::{Driver as Desk, growth_of, independent};

use crate::cuda::{open, open_second, whole};

const WAIT_MAX: Duration = Duration::from_millis(500);
const SAID: &str = "what was queued first has not ended within ";

#[test]
fn nothing_waits_for_a_device_whose_work_never_ends() {
    for test in ["gives_up_a_device", "goes_without_it", "gives_up_a_worker"] {
        whole("endless:1", &format!("ending::{test}"));
    }
}

/// A driver with a stream, memory and a graph, that waits for a moment.
fn endless() -> (Box<dyn Driver>, Stream, DeviceAddress, Graph) {
    let mut driver = open();
    driver.wait_at_most(WAIT_MAX);
    let (stream, at) = (driver.stream().unwrap(), driver.allocate(4096).unwrap());
    let launch = Launch { kernel: driver.kernel("fill").unwrap(), grid: [1, 1, 1], threads: 32, shared_bytes: 0, cooperative: false };
    let arguments = [at.0, 1, 7].map(u64::to_ne_bytes).concat();
    let graph = driver.graph(stream, &[GraphLaunch { launch, arguments }]).unwrap();
    // SAFETY: so much was allocated. The first one never ends.
    unsafe { promises::fill(driver.as_mut(), stream, at, 16, 1) }.unwrap();
    (driver, stream, at, graph)
}

type Wait = fn(&mut dyn Driver, Stream, DeviceAddress, Graph) -> Done;

#[test]
#[ignore = "run by others, with a library of its own"]
fn gives_up_a_device() {
    let waits: [(&str, Wait); 5] = [
        ("everything", |driver, _, _, _| driver.synchronize()),
        ("memory", |driver, _, at, _| driver.free(at)),
        ("a graph", |driver, _, _, graph| driver.release_graph(graph)),
        ("a write", |driver, stream, at, _| driver.write(stream, at, &[1])),
        ("a read", |driver, stream, at, _| driver.read(stream, at, &mut [0])),
    ];
    for (what, wait) in waits {
        let (mut driver, stream, at, graph) = endless();
        let pinned = driver.pinned(64).unwrap();
        assert_eq!(driver.check(), Ok(()), "it says that it is not ready, which is no fault");
        let began = Instant::now();
        let fault = wait(driver.as_mut(), stream, at, graph).unwrap_err();
        assert!(matches!(&fault, Fault::Lost(cause) if cause.contains(SAID)) && began.elapsed() >= WAIT_MAX, "{what}: {fault}");
        assert!(driver.peer().is_lost(), "others are not to read what it may be writing");
        for (other, wait) in waits {
            assert_eq!(wait(driver.as_mut(), stream, at, graph), Err(fault.clone()), "{other} after {what}");
        }
        drop(driver);
        drop(pinned);
    }
}

/// Who goes first notices it then, and leaves everything: its own, and what it reads of others.
#[test]
#[ignore = "run by others, with a library of its own"]
fn goes_without_it() {
    let mut other = open_second();
    let (peer, there) = (other.peer(), other.allocate(1 << 20).unwrap());
    let (mut driver, stream, at, _) = endless();
    let pinned = driver.pinned(64).unwrap();
    assert_eq!((driver.reach(&peer), driver.fetch(stream, (&peer, there), at, 64)), (Ok(true), Ok(true)));
    let began = Instant::now();
    drop(driver);
    assert!(began.elapsed() >= WAIT_MAX);
    drop((pinned, peer, other));
    let mut again = open_second();
    let free = again.memory_free().unwrap();
    assert!(free <= again.facts().memory_bytes - (1 << 20) - 4096, "{free} bytes are free: what may be read and written yet is gone");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn gives_up_a_worker() {
    let options = CudaOptions {
        arena_bytes: Some(1 << 20),
        frame_bytes: Some(1 << 20),
        ring_bytes: 1 << 16,
        wait_max: WAIT_MAX,
        ..CudaOptions::default()
    };
    let worker = CudaWorker::new(open(), options).unwrap();
    let mut desk = Desk::new(Box::new(worker), &[cells::countdown(8).resolve()]);
    let placed = desk.place(Arc::new(growth_of(vec![independent(0, 3, vec![Source::Ints(vec![3])], 4)])), &[], 0, &[]);
    let task = desk.prepare(CellTypeId(0), &[(placed.lanes[0][0], 0)], 1);
    desk.submit(task);
    let lost = loop {
        match desk.backend.progress() {
            Ok(Progress::Complete) => panic!("its work has ended"),
            Ok(_) => std::thread::yield_now(),
            Err(lost) => break lost,
        }
    };
    assert!(lost.cause.contains(SAID), "{lost}");
    assert_eq!(desk.backend.complete().err(), Some(lost), "and goes on saying so");
    let began = Instant::now();
    drop(desk);
    assert!(began.elapsed() < WAIT_MAX, "it was waited for again");
}

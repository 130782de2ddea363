//! A device that says for ever that it is not ready: whoever waits for it gives it up, and nobody who takes his time.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use cellwright_backend::{Backend, CellTypeId, DeviceLost, LoadError, Progress, Slot, Taken};
use cellwright_backend_cuda::driver::emulated::{Control, Emulated, Emulation, Injection};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::unfolded::Source;
use cellwright_cell_graph::{Datatype, TypedCell};
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Driver, Placed, growth_of, independent};

const CELL: CellTypeId = CellTypeId(0);
/// Of another cell.
const OTHER: CellTypeId = CellTypeId(1);

/// How long these workers wait: longer than a machine with much to do keeps a thread from running.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// When a test is taken to hang.
const PATIENCE: Duration = Duration::from_secs(60);

const SAID: &str = "what was queued first has not ended within ";

fn worker(ordinal: u32, wait_max: Duration, debug: bool) -> (CudaWorker, Control) {
    let device = Emulated::new(&Emulation { seed: 5, ordinal, memory_bytes: 64 << 20, ..Emulation::default() });
    let control = device.control();
    let options = CudaOptions {
        arena_bytes: Some(1 << 20),
        frame_bytes: Some(1 << 20),
        ring_bytes: 1 << 16,
        wait_max,
        debug,
        ..CudaOptions::default()
    };
    (CudaWorker::new(Box::new(device), options).expect("a device made of threads"), control)
}

fn negated(values: usize) -> Arc<TypedCell> {
    let draft = Draft::new("negated").input("x", Datatype::Fp32, &[values]).operator("Neg", &["x"], &["y"]);
    draft.output("y", Datatype::Fp32, &[values]).resolve()
}

/// A worker that has two cells and a request of the first.
fn driver(debug: bool) -> (Driver, Control, Placed) {
    let (worker, control) = worker(0, WAIT_MAX, debug);
    let mut driver = Driver::new(Box::new(worker), &[negated(4), negated(5)]);
    let chain = independent(0, 1, vec![Source::Literal(vec![0; 16].into())], 64);
    let placed = driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]);
    (driver, control, placed)
}

fn submit(driver: &mut Driver, placed: &Placed, step: u32) {
    let task = driver.prepare(CELL, &[(placed.lanes[0][0], step)], 1);
    driver.submit(task);
}

/// What comes of it, unless it hangs.
fn in_time<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = sync_channel(1);
    let thread = std::thread::spawn(move || done.send(run()));
    let outcome = outcome.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(thread.join().is_ok());
    outcome
}

type Wait = fn(&mut dyn Backend) -> Result<(), DeviceLost>;

/// Everything that waits for a device, or looks whether it is ready.
const WAITS: [(&str, Wait); 7] = [
    ("looking for a task's end", |worker| {
        while worker.progress()? != Progress::Complete {
            std::thread::yield_now();
        }
        Ok(())
    }),
    ("waiting for a task's end", |worker| worker.complete().map(drop)),
    ("measuring", |worker| worker.time_batch(CELL, 3).map(drop)),
    ("reading", |worker| worker.read(Slot(0), 1).map(drop)),
    ("writing", |worker| worker.write(Slot(0), &[1; 64])),
    ("loading", |worker| match worker.load(CellTypeId(2), &negated(6)) {
        Err(LoadError::Unsupported { what, .. }) if what.contains(SAID) => worker.read(Slot(0), 1).map(drop),
        loaded => panic!("{loaded:?}"),
    }),
    ("unloading", |worker| {
        worker.unload(OTHER);
        worker.read(Slot(0), 1).map(drop)
    }),
];

#[test]
fn whoever_waits_gives_up_a_device_whose_work_does_not_end() {
    let wait = |(what, wait): (&'static str, Wait), debug: bool| {
        move || {
            let (mut driver, control, placed) = driver(debug);
            control.hold();
            submit(&mut driver, &placed, 0);
            let began = Instant::now();
            let lost = wait(&mut *driver.backend).expect_err(what);
            assert!(began.elapsed() >= WAIT_MAX && lost.cause.contains(SAID), "{what}: {lost} after {:?}", began.elapsed());
            // From then on nobody waits, also of those who come as it goes.
            let began = Instant::now();
            for (other, wait) in WAITS {
                assert_eq!(
                    wait(&mut *driver.backend),
                    Err(DeviceLost { device: lost.device.clone(), cause: lost.cause.clone() }),
                    "{other}"
                );
            }
            drop(driver);
            assert!(began.elapsed() < WAIT_MAX, "{what}: a device that was given up is waited for again");
        }
    };
    std::thread::scope(|scope| {
        for (number, one) in WAITS.into_iter().enumerate() {
            scope.spawn(move || in_time(one.0, wait(one, number % 2 == 1)));
        }
    });
}

#[test]
fn a_copy_from_a_peer_that_does_not_end_is_given_up() {
    in_time("taking", || {
        let [(first, _), (mut second, control)] = [0, 1].map(|ordinal| worker(ordinal, WAIT_MAX, false));
        assert!(second.reach(0, &first.peer().expect("others may read its memory")), "it is within reach");
        control.hold();
        second.take(0, &[(Slot(1), Slot(2), 3)]).expect("the device is there");
        let lost = loop {
            match second.taken() {
                Ok(Taken::Soon | Taken::Later(_)) => std::thread::yield_now(),
                Ok(taken) => panic!("{taken:?}"),
                Err(lost) => break lost,
            }
        };
        assert!(lost.cause.contains(SAID), "{lost}");
    });
}

/// Each signal has its own time, however many are outstanding, and however long all of them take.
#[test]
fn a_device_that_takes_long_for_all_but_not_for_one_is_waited_for() {
    in_time("waiting", || {
        let (mut driver, control, placed) = driver(false);
        let began = Instant::now();
        for step in 0..3 {
            control.hold();
            submit(&mut driver, &placed, step);
            let task = Instant::now();
            while task.elapsed() < WAIT_MAX / 2 {
                assert_ne!(driver.backend.progress(), Ok(Progress::Complete), "the device stands still");
            }
            control.release();
            drop(driver.complete());
        }
        assert!(began.elapsed() > WAIT_MAX && driver.delivered.len() == 3);
    });
}

/// A fault that is told comes first, whatever was waited for.
#[test]
fn a_device_that_says_what_is_wrong_is_believed() {
    let (mut driver, control, placed) = driver(false);
    control.hold();
    submit(&mut driver, &placed, 0);
    control.inject(Injection::DeviceLost { after_work: 0 });
    control.release();
    let lost = driver.backend.complete().expect_err("it is lost");
    assert!(lost.cause.contains("fallen off the bus"), "{lost}");
}

//! State that a worker takes out of the memory of another device: nothing of it passes through the host, nobody waits for anybody, and who is lost takes
//! nobody along.
#![expect(unsafe_code, reason = "memory of the emulated device is written behind the worker's back")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_backend::{Backend, CellTypeId, Peer, SLOT_BYTES, Slot, Taken};
use cellwright_backend_cuda::driver::emulated::{Control, Emulated, Emulation, Injection, What};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::Datatype;
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::unfolded::Source;
use cellwright_conformance::cells::Draft;
use cellwright_conformance::driver::{Driver, growth_of, independent};

const SLOTS: u32 = 1 << 14;

/// The runs that are moved in most tests.
const RUNS: [(Slot, Slot, u32); 3] = [(Slot(5), Slot(70), 3), (Slot(100), Slot(8), 1), (Slot(200), Slot(300), 40)];

fn device(seed: u64, ordinal: u32, reaches: bool) -> (Emulated, Control) {
    let device = Emulated::new(&Emulation { seed, ordinal, reaches, memory_bytes: 64 << 20, ..Emulation::default() });
    let control = device.control();
    (device, control)
}

fn worker((device, control): (Emulated, Control), debug: bool) -> (CudaWorker, Control) {
    let options = CudaOptions {
        arena_bytes: Some(u64::from(SLOTS) * SLOT_BYTES as u64),
        frame_bytes: Some(1 << 20),
        ring_bytes: 1 << 16,
        spin: Duration::ZERO,
        debug,
        ..CudaOptions::default()
    };
    (CudaWorker::new(Box::new(device), options).expect("a device made of threads"), control)
}

/// Two workers, of which the second reaches the first, that is its number 0.
fn pair(seed: u64) -> [(CudaWorker, Control); 2] {
    let [first, mut second] = [0, 1].map(|ordinal| worker(device(seed + u64::from(ordinal), ordinal, true), false));
    reach(&mut second.0, 0, &first.0);
    [first, second]
}

fn reach(worker: &mut CudaWorker, number: u32, other: &CudaWorker) {
    assert!(worker.reach(number, &other.peer().expect("others may read its memory")), "it is within reach");
}

/// Random bytes in every slot.
fn scribble(worker: &mut CudaWorker, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let bytes: Vec<u8> = (0..SLOTS as usize * SLOT_BYTES).map(|_| rng.below(256) as u8).collect();
    worker.write(Slot(0), &bytes).expect("the device is there");
    bytes
}

/// What is over, waited for.
fn wait(worker: &mut CudaWorker) -> Taken {
    let began = Instant::now();
    loop {
        match worker.taken().expect("the device is there") {
            over @ (Taken::Moved | Taken::NotMoved) => return over,
            Taken::Soon | Taken::Later(_) => assert!(began.elapsed() < Duration::from_secs(120), "it is never over"),
        }
    }
}

fn slots(bytes: &[u8], first: Slot, count: u32) -> &[u8] {
    &bytes[first.index() * SLOT_BYTES..][..count as usize * SLOT_BYTES]
}

/// What `before` is with those runs of `from`.
fn moved(mut before: Vec<u8>, from: &[u8], runs: &[(Slot, Slot, u32)]) -> Vec<u8> {
    for (there, here, count) in runs {
        before[here.index() * SLOT_BYTES..][..*count as usize * SLOT_BYTES].copy_from_slice(slots(from, *there, *count));
    }
    before
}

fn contents(worker: &mut CudaWorker) -> Vec<u8> {
    worker.read(Slot(0), SLOTS).expect("the device is there")
}

/// Bytes that went up or down, and bytes that came from a peer.
fn passed(control: &Control) -> (usize, usize) {
    control.take_log().into_iter().fold((0, 0), |(host, peer), ran| match ran.what {
        What::Upload { bytes, .. } | What::Download { bytes, .. } => (host + bytes, peer),
        What::Fetch { bytes, .. } => (host, peer + bytes),
        _ => (host, peer),
    })
}

#[test]
fn state_is_taken_from_one_device_to_another_without_the_host() {
    for seed in 0..8 {
        let [(mut first, its), (mut second, own)] = pair(seed);
        let (from, before) = (scribble(&mut first, 1), scribble(&mut second, 2));
        let _ = (its.take_log(), own.take_log());
        // The first has other things to do, or does nothing: it is not asked.
        its.hold();
        second.take(0, &RUNS).expect("the device is there");
        assert_eq!(wait(&mut second), Taken::Moved);
        let bytes = RUNS.iter().map(|(.., count)| *count as usize * SLOT_BYTES).sum();
        assert_eq!((passed(&own), its.take_log().len(), its.queued()), ((0, bytes), 0, 0));
        its.release();
        assert!(contents(&mut second) == moved(before, &from, &RUNS), "seed {seed}");
    }
}

#[test]
fn it_is_over_when_it_was_copied_and_not_before() {
    let [(mut first, _), (mut second, own)] = pair(3);
    let (from, before) = (scribble(&mut first, 1), scribble(&mut second, 2));
    own.hold();
    for (there, here, count) in RUNS {
        second.take(0, &[(there, here, count)]).expect("the device is there");
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(20) {
        // Whoever was told that it is over would give the slots to others.
        assert!(matches!(second.taken(), Ok(Taken::Soon | Taken::Later(_))), "nothing was copied yet");
    }
    own.release();
    assert_eq!([(); 3].map(|()| wait(&mut second)), [Taken::Moved; 3]);
    // From here on they are others'.
    scribble(&mut first, 4);
    assert!(contents(&mut second) == moved(before, &from, &RUNS));
}

#[test]
fn two_take_from_each_other_at_once() {
    for seed in 0..6 {
        let [(mut first, _), (mut second, _)] = pair(10 * seed);
        reach(&mut first, 1, &second);
        let befores = [scribble(&mut first, 1), scribble(&mut second, 2)];
        let mut threads = Vec::new();
        // Even slots come, odd ones go.
        let runs: Vec<_> = (0..200).map(|number| (Slot(2 * number + 1), Slot(2 * number), 1)).collect();
        for (mut worker, from) in [(first, 1), (second, 0)] {
            let runs = runs.clone();
            threads.push(std::thread::spawn(move || {
                for run in runs.chunks(20) {
                    worker.take(from, run).expect("the device is there");
                }
                assert!((0..10).all(|_| wait(&mut worker) == Taken::Moved));
                worker
            }));
        }
        // Neither is gone before the other has all.
        let workers: Vec<CudaWorker> = threads.into_iter().map(|thread| thread.join().expect("nobody waits for ever")).collect();
        for (number, mut worker) in workers.into_iter().enumerate() {
            assert!(contents(&mut worker) == moved(befores[number].clone(), &befores[1 - number], &runs), "seed {seed}, worker {number}");
        }
    }
}

/// A task of one row, to see that a worker goes on.
fn runs_a_task(worker: CudaWorker) {
    let cell = Draft::new("plain").input("x", Datatype::Fp32, &[8]).operator("Tanh", &["x"], &["y"]).output("y", Datatype::Fp32, &[8]);
    let mut driver = Driver::new(Box::new(worker), &[cell.resolve()]);
    let request = driver.place(Arc::new(growth_of(vec![independent(0, 1, vec![Source::Zeros], 1)])), &[], 0, &[]);
    driver.task(CellTypeId(0), &[(request.lanes[0][0], 0)], 1);
}

fn lose(worker: &mut CudaWorker, control: &Control) {
    control.inject(Injection::DeviceLost { after_work: 0 });
    assert!(worker.write(Slot(0), &[0; SLOT_BYTES]).is_err(), "the fault surfaces");
}

#[test]
fn a_device_that_is_lost_gives_nothing_and_takes_nobody_along() {
    // Before anything was asked of it.
    let [(mut first, its), (mut second, own)] = pair(1);
    let before = scribble(&mut second, 2);
    lose(&mut first, &its);
    second.take(0, &RUNS).expect("it is not this device that is lost");
    assert_eq!(wait(&mut second), Taken::NotMoved);
    assert!(contents(&mut second) == before, "of a device that is lost nothing is read");
    assert_eq!(passed(&own).1, 0);
    runs_a_task(second);
    // While it is on its way.
    let [(mut first, its), (mut second, own)] = pair(2);
    own.hold();
    second.take(0, &RUNS).expect("the device is there");
    lose(&mut first, &its);
    assert!(matches!(second.taken(), Ok(Taken::Soon | Taken::Later(_))), "it may write still");
    own.release();
    assert_eq!(wait(&mut second), Taken::NotMoved, "what came may be anything");
    runs_a_task(second);
}

#[test]
fn a_worker_that_ends_leaves_its_memory_to_those_that_take_from_it() {
    let [(first, _), (mut second, own)] = pair(1);
    own.hold();
    second.take(0, &RUNS).expect("the device is there");
    drop(first);
    own.release();
    assert_eq!(wait(&mut second), Taken::NotMoved, "whose state it was is gone");
    runs_a_task(second);
    // And the other way about: what is queued there goes with its worker, the first goes on.
    let [(first, _), (mut second, own)] = pair(1);
    own.hold();
    second.take(0, &RUNS).expect("the device is there");
    drop(second);
    runs_a_task(first);
}

#[test]
fn what_cannot_be_taken_is_said() {
    let [(first, _), (mut second, own)] = pair(1);
    let before = scribble(&mut second, 2);
    second.take(0, &[(Slot(0), Slot(0), 1), (Slot(SLOTS - 1), Slot(4), 2)]).expect("the device goes on");
    assert_eq!(wait(&mut second), Taken::NotMoved, "the other's arena ends there");
    assert!(contents(&mut second)[SLOT_BYTES..] == before[SLOT_BYTES..]);
    // Here it would be this worker's fault.
    let beyond = second.take(0, &[(Slot(0), Slot(SLOTS - 1), 2)]).expect_err("its own arena ends there");
    assert!(beyond.cause.contains("beyond the arena"), "{beyond}");
    assert_eq!(passed(&own).1, SLOT_BYTES);
    drop(first);
}

/// Behind the other's arena lies more of its memory, which no device keeps a copy from: its worker's guards.
#[test]
fn nothing_beyond_the_other_arena_is_read() {
    let (mut first, _) = worker(device(0, 0, true), true);
    let (mut second, own) = worker(device(1, 1, true), false);
    reach(&mut second, 0, &first);
    let before = scribble(&mut second, 2);
    scribble(&mut first, 1);
    for (from, count) in [(SLOTS - 1, 2), (SLOTS, 1), (u32::MAX, 2)] {
        second.take(0, &[(Slot(from), Slot(4), count)]).expect("the device goes on");
        assert_eq!(wait(&mut second), Taken::NotMoved, "the other's arena ends there");
    }
    assert!(contents(&mut second) == before && passed(&own).1 == 0, "it was read");
    second.take(0, &[(Slot(SLOTS - 1), Slot(4), 1)]).expect("the device is there");
    assert_eq!(wait(&mut second), Taken::Moved);
}

#[test]
fn who_is_out_of_reach_is_told_apart() {
    let (first, _) = worker(device(0, 0, true), false);
    let (mut alone, _) = worker(device(1, 1, false), false);
    let peer = first.peer().expect("others may read its memory");
    assert!(!alone.reach(0, &peer), "its driver says so");
    let (mut second, _) = worker(device(2, 1, true), false);
    assert!(!second.reach(0, &Peer::new("another kind of backend")));
    let own = second.peer().expect("others may read its memory");
    assert!(!second.reach(1, &own), "nobody reaches themselves");
    assert!(second.reach(0, &peer));
}

#[test]
fn guards_are_looked_at_after_state_came() {
    let (mut first, _) = worker(device(0, 0, true), true);
    let (mut second, own) = worker(device(1, 1, true), true);
    reach(&mut second, 0, &first);
    let (from, before) = (scribble(&mut first, 1), scribble(&mut second, 2));
    let _ = own.take_log();
    second.take(0, &RUNS).expect("the device is there");
    assert_eq!(wait(&mut second), Taken::Moved);
    let came = own.take_log().into_iter().find_map(|ran| match ran.what {
        What::Fetch { to, .. } => Some(to.0),
        _ => None,
    });
    assert!(contents(&mut second) == moved(before, &from, &RUNS));
    let arena = came.expect("something came") - (RUNS[0].1.index() * SLOT_BYTES) as u64;
    // SAFETY: the guard in front of the arena, on a device that does nothing at the moment.
    unsafe { (arena as *mut u8).sub(3).write(7) };
    second.take(0, &RUNS).expect("the device is there");
    let lost = loop {
        match second.taken() {
            Ok(Taken::Soon | Taken::Later(_)) => {}
            Ok(over) => panic!("{over:?}, and nobody says that a guard was overwritten"),
            Err(lost) => break lost,
        }
    };
    assert!(lost.cause.contains("of the arena was overwritten, which was seen after state came from another device"), "{}", lost.cause);
}

//! The emulated device keeps what a driver promises, and shows what a worker must not rely on.
#![expect(unsafe_code, reason = "kernels are launched, and pinned memory is read and written, as a worker does it")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cellwright_backend_cuda::driver::emulated::{Emulated, Emulation, Injection, Ran, What};
use cellwright_backend_cuda::driver::promises;
use cellwright_backend_cuda::driver::{DeviceAddress, Driver, Fault, Kernel, Launch, Pinned, Stream};

fn device(seed: u64) -> Emulated {
    Emulated::new(&Emulation { seed, ..Emulation::default() })
}

/// The arguments of the kernel `fill`.
fn fill_arguments(words: DeviceAddress, count: u64, value: u32) -> Vec<u8> {
    [words.0.to_le_bytes().as_slice(), &count.to_le_bytes(), &u64::from(value).to_le_bytes()].concat()
}

/// Queues the filling of so many words.
fn fill(driver: &mut dyn Driver, stream: Stream, words: DeviceAddress, count: u64, value: u32) -> Result<(), Fault> {
    let launch = Launch { kernel: driver.kernel("fill")?, grid: [2, 1, 1], threads: 64, shared_bytes: 0, cooperative: false };
    // SAFETY: tests that pass more words than there are want to see it caught, within the guard behind the block.
    unsafe { driver.launch(stream, &launch, &fill_arguments(words, count, value)) }
}

fn words(driver: &mut dyn Driver, stream: Stream, at: DeviceAddress, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    driver.read(stream, at, &mut bytes).unwrap();
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Polls a word as a worker does.
fn seen(word: &Pinned, value: u64) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(120) {
        if word.word(0).load(Ordering::Acquire) == value {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
fn it_keeps_what_every_driver_promises() {
    for seed in 0..4 {
        promises::run(&mut || Box::new(device(seed)));
    }
}

/// Two devices, the first of which reaches others or does not.
fn pair(seed: u64, reaches: bool) -> [Emulated; 2] {
    [(0, reaches), (1, true)].map(|(ordinal, reaches)| {
        Emulated::new(&Emulation { seed: seed + 7 * u64::from(ordinal), ordinal, reaches, ..Emulation::default() })
    })
}

#[test]
fn two_devices_keep_what_they_promise_each_other() {
    for seed in 0..4 {
        let make = |ordinal| move || -> Box<dyn Driver> { Box::new(Emulated::new(&Emulation { seed, ordinal, ..Emulation::default() })) };
        assert!(promises::peers(&mut make(0), &mut make(1)));
        assert!(!promises::peers(&mut make(1), &mut make(1)), "a device reaches itself");
    }
    let alone = || -> Box<dyn Driver> { Box::new(Emulated::new(&Emulation { reaches: false, ..Emulation::default() })) };
    let other = || -> Box<dyn Driver> { Box::new(Emulated::new(&Emulation { ordinal: 1, ..Emulation::default() })) };
    assert!(!promises::peers(&mut { alone }, &mut { other }));
}

/// What it shows that nobody must rely on: a device that is lost while it is copied from, and memory that is given back too early.
#[test]
fn a_fetch_from_what_is_not_there_any_more_brings_nothing_to_rely_on() {
    let [mut one, mut other] = pair(1, true);
    let (stream, at, from) = (one.stream().unwrap(), one.allocate(16).unwrap(), other.allocate(16).unwrap());
    let peer = other.peer();
    assert_eq!(one.reach(&peer), Ok(true));
    for (from, to, bytes) in [(at, at, 16), (from.plus(1), at, 16), (from, from, 16), (from, at.plus(8), 9)] {
        let fetched = one.fetch(stream, (&peer, from), to, bytes);
        assert!(matches!(&fetched, Err(Fault::Refused(why)) if why.contains("leaves the device's memory")), "{fetched:?}");
    }
    let there = other.stream().unwrap();
    one.control().hold();
    assert_eq!(one.fetch(stream, (&peer, from), at, 16), Ok(true));
    other.control().inject(Injection::DeviceLost { after_work: 0 });
    other.zero(there, from, 16).unwrap();
    assert!(other.synchronize().is_err());
    assert_eq!(one.fetch(stream, (&peer, from), at, 16), Ok(false));
    assert_eq!(one.control().queued(), 1);
    one.control().release();
    assert!(words(&mut one, stream, at, 4).iter().all(|word| f32::from_bits(*word).is_nan()));
    assert!(peer.is_lost() && one.check().is_ok());

    let [mut one, mut other] = pair(2, true);
    let (stream, at, from) = (one.stream().unwrap(), one.allocate(16).unwrap(), other.allocate(16).unwrap());
    let peer = other.peer();
    assert_eq!(one.reach(&peer), Ok(true));
    one.control().hold();
    assert_eq!(one.fetch(stream, (&peer, from), at, 16), Ok(true));
    other.free(from).unwrap();
    one.control().release();
    let lost = one.synchronize();
    assert!(matches!(&lost, Err(Fault::Lost(cause)) if cause.contains("memory that was given back")), "{lost:?}");
}

#[test]
fn a_stream_runs_in_its_order_and_a_signal_shows_all_before_it() {
    for seed in 0..20 {
        let mut driver = device(seed);
        let (stream, at) = (driver.stream().unwrap(), driver.allocate(1024).unwrap());
        let (mut up, down) = (driver.pinned(1024).unwrap(), driver.pinned(1024).unwrap());
        let word = driver.pinned(8).unwrap();
        // SAFETY: nothing is queued on it yet.
        unsafe { up.bytes_mut(0..1024) }.fill(7);
        driver.upload(stream, &up, 0, at, 1024).unwrap();
        driver.zero(stream, at.plus(512), 512).unwrap();
        fill(&mut driver, stream, at.plus(768), 64, 0x0909_0909).unwrap();
        driver.copy(stream, at, at.plus(512), 128).unwrap();
        driver.download(stream, at, &down, 0, 1024).unwrap();
        driver.signal(stream, &word, 0, seed + 1).unwrap();
        assert!(seen(&word, seed + 1));
        // SAFETY: the signal behind the download was seen.
        let got = unsafe { down.bytes(0..1024) };
        let want = [vec![7; 512], vec![7; 128], vec![0; 128], vec![9; 256]].concat();
        assert_eq!(got, want, "seed {seed}");
    }
}

/// The order in which two streams ran three fills each, while the device was held until all were queued.
fn interleaving(seed: u64) -> Vec<Stream> {
    let mut driver = device(seed);
    let control = driver.control();
    let streams = [driver.stream().unwrap(), driver.stream().unwrap()];
    let at = driver.allocate(4).unwrap();
    control.hold();
    for _ in 0..3 {
        for stream in streams {
            driver.zero(stream, at, 4).unwrap();
        }
    }
    assert_eq!(control.queued(), 6);
    control.release();
    driver.synchronize().unwrap();
    control.take_log().iter().map(|ran| ran.stream).collect()
}

#[test]
fn streams_overtake_one_another_in_an_order_that_the_seed_gives() {
    let orders: Vec<_> = (0..8).map(interleaving).collect();
    assert!(orders.iter().any(|order| *order != orders[0]), "{orders:?}");
    for (seed, order) in orders.iter().enumerate() {
        assert_eq!(interleaving(seed as u64), *order);
    }
}

#[test]
fn an_event_orders_streams_and_means_what_was_recorded_when_it_was_waited_for() {
    for seed in 0..20 {
        let mut driver = device(seed);
        let control = driver.control();
        let [first, second] = [driver.stream().unwrap(), driver.stream().unwrap()];
        let event = driver.event().unwrap();
        let at = driver.allocate(256).unwrap();
        control.hold();
        // Never recorded: nothing is waited for.
        driver.wait(second, event).unwrap();
        fill(&mut driver, first, at, 64, 1).unwrap();
        driver.record(event, first).unwrap();
        driver.wait(second, event).unwrap();
        fill(&mut driver, second, at, 64, 2).unwrap();
        // Recorded anew, on the stream that waited: whoever waited before does not wait for this.
        driver.record(event, second).unwrap();
        driver.wait(first, event).unwrap();
        fill(&mut driver, first, at, 32, 3).unwrap();
        control.release();
        driver.synchronize().unwrap();
        assert_eq!(words(&mut driver, first, at, 64), [vec![3; 32], vec![2; 32]].concat(), "seed {seed}");
    }
}

#[test]
fn a_pinned_buffer_that_is_filled_again_too_early_shows() {
    let mut driver = device(0);
    let control = driver.control();
    let (stream, at, mut up) = (driver.stream().unwrap(), driver.allocate(8).unwrap(), driver.pinned(8).unwrap());
    control.hold();
    driver.upload(stream, &up, 0, at, 8).unwrap();
    // SAFETY: it is not safe in the sense of a worker, which is what this shows; the device is held, so that nobody reads meanwhile.
    unsafe { up.bytes_mut(0..8) }.fill(1);
    control.release();
    assert_eq!(words(&mut driver, stream, at, 2), [0x0101_0101; 2]);
    // Dropped while it is queued, it stays until that has run.
    control.hold();
    driver.upload(stream, &up, 0, at, 4).unwrap();
    drop(up);
    control.release();
    assert_eq!(words(&mut driver, stream, at, 1), [0x0101_0101]);
}

#[test]
fn memory_holds_nan_when_it_is_allocated() {
    let mut driver = device(0);
    let (stream, at) = (driver.stream().unwrap(), driver.allocate(8).unwrap());
    assert!(words(&mut driver, stream, at, 2).iter().all(|word| f32::from_bits(*word).is_nan()));
}

#[test]
fn copies_and_fills_beyond_memory_are_refused() {
    let mut driver = device(0);
    let (stream, at, pinned) = (driver.stream().unwrap(), driver.allocate(100).unwrap(), driver.pinned(64).unwrap());
    let other = driver.allocate(100).unwrap();
    let refused = |done: Result<(), Fault>, why: &str| match done {
        Err(Fault::Refused(sentence)) => assert!(sentence.contains(why), "{sentence}"),
        other => panic!("{other:?}, not refused because {why}"),
    };
    refused(driver.upload(stream, &pinned, 0, at.plus(60), 41), "leaves the device's memory");
    refused(driver.upload(stream, &pinned, 32, at, 33), "not within 64 pinned bytes");
    refused(driver.download(stream, at.plus(100), &pinned, 0, 1), "leaves the device's memory");
    refused(driver.zero(stream, DeviceAddress(at.0 - 1), 4), "leaves the device's memory");
    refused(driver.copy(stream, at, other.plus(1), 100), "leaves the device's memory");
    refused(driver.copy(stream, at, at.plus(10), 20), "overlaps itself");
    refused(driver.signal(stream, &pinned, 4, 1), "no word lies at byte 4");
    refused(driver.free(at.plus(1)), "nothing was allocated");
    driver.zero(stream, at, 100).unwrap();
    driver.free(at).unwrap();
    refused(driver.zero(stream, at, 1), "leaves the device's memory");
    assert_eq!(driver.control().allocated_bytes(), 100);
}

/// A device on which so many fills are queued behind one another, then a signal; what a worker then sees.
fn faulted(injection: Injection, fills: u32) -> (Fault, u64, Vec<Ran>) {
    let mut driver = device(3);
    let control = driver.control();
    let (stream, at, word) = (driver.stream().unwrap(), driver.allocate(256).unwrap(), driver.pinned(8).unwrap());
    control.inject(injection);
    control.hold();
    for value in 0..fills {
        fill(&mut driver, stream, at, 64, value).unwrap();
    }
    driver.signal(stream, &word, 0, 1).unwrap();
    driver.check().expect("nothing has run yet");
    control.release();
    let fault = driver.synchronize().unwrap_err();
    assert_eq!(driver.check(), Err(fault.clone()), "a fault stays");
    assert_eq!(driver.allocate(1), Err(fault.clone()));
    assert_eq!(fill(&mut driver, stream, at, 1, 0), Err(fault.clone()));
    assert_eq!(control.queued(), 0, "what will never run is not kept");
    (fault, word.word(0).load(Ordering::Acquire), control.take_log())
}

#[test]
fn an_illegal_access_loses_the_device_and_what_is_queued_behind_it() {
    let (fault, word, log) = faulted(Injection::IllegalAccess { after_launches: 2 }, 4);
    assert!(matches!(&fault, Fault::Lost(cause) if cause.contains("illegal memory access") && cause.contains("`fill`")), "{fault:?}");
    assert!(fault.is_lost());
    assert_eq!((word, log.len()), (0, 2));
    assert!(log.iter().all(|ran| matches!(ran.what, What::Launch { kernel: "fill", .. })));
}

#[test]
fn a_device_may_fall_off_its_bus() {
    let (fault, word, log) = faulted(Injection::DeviceLost { after_work: 1 }, 4);
    assert!(matches!(&fault, Fault::Lost(cause) if cause.contains("fallen off the bus")), "{fault:?}");
    assert_eq!((word, log.len()), (0, 1));
}

#[test]
fn a_kernel_that_writes_beyond_its_memory_loses_the_device() {
    for (skip, side) in [(0, "behind"), (-8_i64, "in front of")] {
        let mut driver = device(0);
        let (stream, at) = (driver.stream().unwrap(), driver.allocate(256).unwrap());
        fill(&mut driver, stream, at, 64, 5).unwrap();
        driver.synchronize().unwrap();
        fill(&mut driver, stream, DeviceAddress(at.0.wrapping_add_signed(skip)), 65, 5).unwrap();
        let fault = driver.synchronize().unwrap_err();
        assert!(matches!(&fault, Fault::Lost(cause) if cause.contains(side) && cause.contains("`fill`")), "{fault:?}");
    }
}

#[test]
fn memory_runs_out_where_it_is_said_to_and_where_there_is_no_more() {
    let mut driver = Emulated::new(&Emulation { memory_bytes: 1000, ..Emulation::default() });
    driver.control().inject(Injection::OutOfMemory { after_allocations: 1 });
    let first = driver.allocate(600).unwrap();
    assert_eq!(driver.allocate(1), Err(Fault::OutOfMemory { needed: 1, free: 400 }));
    assert_eq!(driver.allocate(401), Err(Fault::OutOfMemory { needed: 401, free: 400 }));
    assert_eq!(driver.memory_free(), Ok(400));
    driver.free(first).unwrap();
    driver.allocate(1000).unwrap();
}

#[test]
fn time_passes_between_events_that_were_reached() {
    let mut driver = device(0);
    let control = driver.control();
    let (stream, at) = (driver.stream().unwrap(), driver.allocate(4).unwrap());
    let [from, to] = [driver.event().unwrap(), driver.event().unwrap()];
    control.hold();
    driver.record(from, stream).unwrap();
    fill(&mut driver, stream, at, 1, 1).unwrap();
    driver.record(to, stream).unwrap();
    assert!(matches!(driver.elapsed(from, to), Err(Fault::Refused(_))));
    control.release();
    driver.synchronize().unwrap();
    assert!(driver.elapsed(from, to).unwrap() > Duration::ZERO);
    // An event's time is that of its latest recording.
    driver.record(from, stream).unwrap();
    driver.synchronize().unwrap();
    assert_eq!(driver.elapsed(from, to), Ok(Duration::ZERO));
}

#[test]
fn handles_of_another_driver_are_refused() {
    let (mut one, mut other) = (device(0), device(0));
    let at = one.allocate(4).unwrap();
    let (stream, event) = (one.stream().unwrap(), one.event().unwrap());
    let kernel: Kernel = one.kernel("fill").unwrap();
    let launch = Launch { kernel, grid: [1, 1, 1], threads: 32, shared_bytes: 0, cooperative: false };
    assert!(matches!(other.zero(stream, at, 4), Err(Fault::Refused(_))));
    // SAFETY: refused before it runs.
    assert!(matches!(unsafe { other.launch(stream, &launch, &fill_arguments(at, 1, 0)) }, Err(Fault::Refused(_))));
    let own = other.stream().unwrap();
    assert!(matches!(other.record(event, own), Err(Fault::Refused(_))));
}

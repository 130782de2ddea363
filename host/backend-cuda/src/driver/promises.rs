//! What every driver must pass before a worker relies on it: the emulated one in every run of the tests, a real one on its own machine.
//!
//! Behind the feature `testing`. Each part panics with a sentence if the driver breaks its promise.

mod graphs;
mod peers;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub use peers::peers;

use super::{DeviceAddress, Done, Driver, Fault, Launch, Matrix, Pinned, Stream};

/// Makes a driver of the same device, each time anew.
pub type Make<'a> = dyn FnMut() -> Box<dyn Driver> + 'a;

/// How long a signal is waited for: a device that is shared may be busy.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of what is moved to and fro.
const BYTES: usize = 1 << 16;

/// All of them.
///
/// # Panics
/// If the driver breaks one.
pub fn run(make: &mut Make<'_>) {
    for (_, part) in PARTS {
        part(make);
    }
}

/// A part of the suite.
pub type Part = fn(&mut Make<'_>);

/// The parts, by name.
pub const PARTS: &[(&str, Part)] = &[
    ("order", order),
    ("signals", signals),
    ("events", events),
    ("pinned", pinned),
    ("memory", memory),
    ("launches", launches),
    ("matrices", matrices),
    ("graphs", graphs::graphs),
    ("cooperation", cooperation),
    ("times", times),
    ("threads", threads),
    ("given up", given_up),
];

/// Queues the filling of words with the kernel that is there for this.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// So many words lie there until it has run.
pub unsafe fn fill(driver: &mut dyn Driver, stream: Stream, words: DeviceAddress, count: u64, value: u32) -> Done {
    let launch = Launch { kernel: driver.kernel("fill")?, grid: [4, 1, 1], threads: 128, shared_bytes: 0, cooperative: false };
    let arguments = [words.0, count, u64::from(value)].map(u64::to_ne_bytes).concat();
    // SAFETY: these are the arguments of `fill`; the words are there (the caller's promise).
    unsafe { driver.launch(stream, &launch, &arguments) }
}

/// Whether a word comes to hold a value, polled as a worker does it.
///
/// # Errors
/// The device's fault, if it has one before that.
///
/// # Panics
/// If it does not within two minutes.
pub fn await_word(driver: &mut dyn Driver, word: &Pinned, offset: usize, value: u64) -> Done {
    let began = Instant::now();
    while word.word(offset).load(Ordering::Acquire) != value {
        driver.check()?;
        assert!(
            began.elapsed() < PATIENCE,
            "the signal {value} does not come: the word holds {}",
            word.word(offset).load(Ordering::Acquire)
        );
        std::thread::yield_now();
    }
    Ok(())
}

fn good<T>(done: Done<T>) -> T {
    done.unwrap_or_else(|fault| panic!("the driver refuses what it should do: {fault}"))
}

fn refused<T: std::fmt::Debug>(what: &str, done: Done<T>) {
    assert!(matches!(done, Err(Fault::Refused(_))), "{what} is not refused: {done:?}");
}

/// What is queued on a stream runs in that order, whatever it is.
fn order(make: &mut Make<'_>) {
    let mut driver = make();
    let driver = driver.as_mut();
    let (stream, at) = (good(driver.stream()), good(driver.allocate(BYTES)));
    let (mut up, down, word) = (good(driver.pinned(BYTES)), good(driver.pinned(BYTES)), good(driver.pinned(8)));
    // SAFETY: nothing is queued on it yet.
    unsafe { up.bytes_mut(0..BYTES) }.fill(7);
    let half = BYTES / 2;
    good(driver.upload(stream, &up, 0, at, BYTES));
    good(driver.zero(stream, at.plus(half), half));
    // SAFETY: within what was allocated.
    good(unsafe { fill(driver, stream, at.plus(half + half / 2), half as u64 / 8, 0x0909_0909) });
    good(driver.copy(stream, at, at.plus(half), half / 4));
    good(driver.download(stream, at, &down, 0, BYTES));
    good(driver.signal(stream, &word, 0, 1));
    good(await_word(driver, &word, 0, 1));
    let want = [vec![7; half], vec![7; half / 4], vec![0; half / 4], vec![9; half / 2]].concat();
    // SAFETY: the signal behind the download was seen.
    assert!(unsafe { down.bytes(0..BYTES) } == want, "a stream does not run in its order");
    let mut read = vec![0; BYTES];
    good(driver.read(stream, at, &mut read));
    assert!(read == want, "what is read is not what is there");
    good(driver.write(stream, at.plus(3), &[1, 2, 3]));
    good(driver.read(stream, at, &mut read[..8]));
    assert_eq!(read[..8], [7, 7, 7, 1, 2, 3, 7, 7], "what is written is not what is read");
}

/// Whoever sees a signal sees what ran before it, each time; and the word never shows anything else.
fn signals(make: &mut Make<'_>) {
    let mut driver = make();
    let driver = driver.as_mut();
    let (stream, at) = (good(driver.stream()), good(driver.allocate(BYTES)));
    let (down, words) = (good(driver.pinned(BYTES)), good(driver.pinned(4096)));
    for round in 1..=500_u64 {
        let (value, offset) = ((round as u32).wrapping_mul(0x0101_0101), (round as usize % 512) * 8);
        // SAFETY: within what was allocated.
        good(unsafe { fill(driver, stream, at, BYTES as u64 / 4, value) });
        good(driver.download(stream, at, &down, 0, BYTES));
        good(driver.signal(stream, &words, offset, round << 33 | round));
        good(await_word(driver, &words, offset, round << 33 | round));
        // SAFETY: the signal behind the download was seen.
        let got = unsafe { down.bytes(0..BYTES) };
        assert!(got.as_chunks().0.iter().all(|word| u32::from_ne_bytes(*word) == value), "round {round}: the signal came before the bytes");
    }
}

/// An event orders streams, and means what was recorded when it was waited for.
fn events(make: &mut Make<'_>) {
    let mut driver = make();
    let driver = driver.as_mut();
    let [first, second] = [good(driver.stream()), good(driver.stream())];
    let [event, other] = [good(driver.event()), good(driver.event())];
    let at = good(driver.allocate(BYTES));
    let count = BYTES as u64 / 4;
    // Never recorded: nothing is waited for.
    good(driver.wait(second, event));
    for round in 0..100_u32 {
        // SAFETY: within what was allocated.
        good(unsafe { fill(driver, first, at, count, 2 * round) });
        good(driver.record(event, first));
        good(driver.wait(second, event));
        // SAFETY: as above.
        good(unsafe { fill(driver, second, at, count / 2, 2 * round + 1) });
        good(driver.record(other, second));
        good(driver.wait(first, other));
    }
    let mut got = vec![0; BYTES];
    good(driver.read(first, at, &mut got));
    let got: Vec<u32> = got.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    let want = [vec![199; BYTES / 8], vec![198; BYTES / 8]].concat();
    assert!(got == want, "events do not order streams");
}

/// Pinned memory begins as zeros, and kernels reach it.
fn pinned(make: &mut Make<'_>) {
    let mut driver = make();
    let driver = driver.as_mut();
    let stream = good(driver.stream());
    let (pinned, word) = (good(driver.pinned(BYTES)), good(driver.pinned(8)));
    // SAFETY: nothing is queued on it yet.
    assert!(unsafe { pinned.bytes(0..BYTES) }.iter().all(|byte| *byte == 0), "pinned memory is not zeroed");
    assert!(pinned.as_ptr().addr().is_multiple_of(256) && pinned.address().0.is_multiple_of(256), "pinned memory is not aligned");
    // SAFETY: the kernel writes pinned memory, which stays until the signal is seen.
    good(unsafe { fill(driver, stream, pinned.address().plus(4), BYTES as u64 / 4 - 2, 0x0505_0505) });
    good(driver.signal(stream, &word, 0, 1));
    good(await_word(driver, &word, 0, 1));
    // SAFETY: the signal behind the kernel was seen.
    let got = unsafe { pinned.bytes(0..BYTES) };
    let want = [vec![0; 4], vec![5; BYTES - 8], vec![0; 4]].concat();
    assert!(got == want, "a kernel does not reach pinned memory");
    refused("an upload from beyond pinned memory", driver.upload(stream, &pinned, 1, DeviceAddress(256), BYTES));
    refused("a download to beyond pinned memory", driver.download(stream, DeviceAddress(256), &pinned, BYTES, 1));
    refused("a signal beyond pinned memory", driver.signal(stream, &word, 8, 1));
    refused("a signal to what is no word", driver.signal(stream, &pinned, 4, 1));
}

/// Memory is aligned, runs out with figures, and comes back.
fn memory(make: &mut Make<'_>) {
    let mut driver = make();
    let driver = driver.as_mut();
    let [one, two] = [good(driver.allocate(100)), good(driver.allocate(1))];
    assert!(one.0.is_multiple_of(256) && two.0.is_multiple_of(256), "memory is not aligned");
    let whole = usize::try_from(driver.facts().memory_bytes).unwrap_or(usize::MAX);
    match driver.allocate(whole.saturating_mul(2)) {
        Err(Fault::OutOfMemory { needed, free }) => assert!(needed > free, "{needed} bytes are needed, {free} are free"),
        other => panic!("twice the device's memory is given, or refused without figures: {other:?}"),
    }
    refused("no memory at all", driver.allocate(0));
    refused("what was not allocated", driver.free(one.plus(256)));
    good(driver.check());
    good(driver.free(one));
    refused("what was given back", driver.free(one));
    assert!(good(driver.memory_free()) <= whole as u64, "more is free than there is");
}

/// Matrices are described where there are kernels for them, wherever they lie, and those are refused that no kernel could read.
fn matrices(make: &mut Make<'_>) {
    let mut driver = make();
    if driver.facts().capability.0 < 9 {
        return;
    }
    let at = driver.allocate(BYTES).expect("memory");
    let matrix = Matrix { at, columns: 72, rows: 100, stride: 160 };
    let described = driver.tensor_map(&matrix).expect("a matrix");
    assert_ne!(described, [0; 16], "nothing is said of a matrix");
    for other in [
        Matrix { at: at.plus(16), ..matrix },
        Matrix { columns: 64, ..matrix },
        Matrix { rows: 99, ..matrix },
        Matrix { stride: 176, ..matrix },
    ] {
        assert_ne!(driver.tensor_map(&other).expect("another matrix"), described, "{other:?} is like {matrix:?}");
    }
    for bad in [
        Matrix { at: at.plus(8), ..matrix },
        Matrix { columns: 0, ..matrix },
        Matrix { rows: 0, ..matrix },
        Matrix { stride: 168, ..matrix },
        Matrix { columns: 96, ..matrix },
    ] {
        let refused = driver.tensor_map(&bad);
        assert!(matches!(refused, Err(Fault::Refused(_))), "{bad:?} gives {refused:?}");
    }
}

/// Launches that cannot run are refused, and harm nothing.
fn launches(make: &mut Make<'_>) {
    let mut driver = make();
    let driver = driver.as_mut();
    let (stream, at) = (good(driver.stream()), good(driver.allocate(4)));
    refused("a kernel that is not there", driver.kernel("no_such_kernel"));
    let kernel = good(driver.kernel("fill"));
    assert_eq!(good(driver.kernel("fill")), kernel, "a kernel's name is another kernel's");
    let launch = Launch { kernel, grid: [1, 1, 1], threads: 32, shared_bytes: 0, cooperative: false };
    let arguments = [at.0, 1, 3].map(u64::to_ne_bytes).concat();
    let wrong = [
        ("too few arguments", launch, 16),
        ("a grid without blocks", Launch { grid: [1, 0, 1], ..launch }, 24),
        ("too many blocks", Launch { grid: [1, 65_536, 1], ..launch }, 24),
        ("too many threads", Launch { threads: 1025, ..launch }, 24),
        ("too much shared memory", Launch { shared_bytes: 1 << 20, ..launch }, 24),
    ];
    for (what, launch, bytes) in wrong {
        // SAFETY: it is not to run; if it did, with these arguments it would do no harm.
        refused(what, unsafe { driver.launch(stream, &launch, &arguments[..bytes]) });
    }
    // As much as there is may be asked for.
    let most = Launch { shared_bytes: driver.facts().shared_bytes_max, ..launch };
    // SAFETY: one word was allocated.
    good(unsafe { driver.launch(stream, &most, &arguments) });
    let mut got = [0; 4];
    good(driver.read(stream, at, &mut got));
    assert_eq!(u32::from_ne_bytes(got), 3, "a launch after refused ones does not run");
}

/// As many blocks as run at once may be launched to wait for one another, and no more.
fn cooperation(make: &mut Make<'_>) {
    let mut driver = make();
    let driver = driver.as_mut();
    let (stream, at) = (good(driver.stream()), good(driver.allocate(4)));
    let kernel = good(driver.kernel("fill"));
    let shared_bytes = driver.facts().shared_bytes_max;
    let most = good(driver.resident_blocks(kernel, 256, shared_bytes));
    if most == 0 {
        let launch = Launch { kernel, grid: [1, 1, 1], threads: 256, shared_bytes: 0, cooperative: true };
        // SAFETY: one word was allocated, if it runs after all.
        return refused("a launch of which no block runs", unsafe {
            driver.launch(stream, &launch, &[at.0, 1, 3].map(u64::to_ne_bytes).concat())
        });
    }
    assert!(most >= 1 && most.is_multiple_of(driver.facts().multiprocessors), "{most} blocks run at once");
    assert!(good(driver.resident_blocks(kernel, 256, 0)) >= most, "blocks that need less are fewer");
    let launch = Launch { kernel, grid: [most, 1, 1], threads: 256, shared_bytes, cooperative: true };
    let arguments = [at.0, 1, 3].map(u64::to_ne_bytes).concat();
    // SAFETY: one word was allocated.
    good(unsafe { driver.launch(stream, &launch, &arguments) });
    let more = Launch { grid: [most + 1, 1, 1], ..launch };
    // SAFETY: it is not to run; if it did, it would do no harm.
    refused("more blocks than run at once", unsafe { driver.launch(stream, &more, &arguments) });
    let mut got = [0; 4];
    good(driver.read(stream, at, &mut got));
    assert_eq!(u32::from_ne_bytes(got), 3, "a cooperative launch does not run");
}

/// Time is that between two events that were reached.
fn times(make: &mut Make<'_>) {
    let mut driver = make();
    let driver = driver.as_mut();
    let (stream, at) = (good(driver.stream()), good(driver.allocate(BYTES)));
    let [from, to] = [good(driver.event()), good(driver.event())];
    refused("the time between events that were never recorded", driver.elapsed(from, to));
    let began = Instant::now();
    good(driver.record(from, stream));
    // SAFETY: within what was allocated.
    good(unsafe { fill(driver, stream, at, BYTES as u64 / 4, 1) });
    good(driver.record(to, stream));
    good(driver.synchronize());
    let (passed, measured) = (began.elapsed(), good(driver.elapsed(from, to)));
    assert!(measured > Duration::ZERO && measured <= passed, "{measured:?} on the device, {passed:?} in all");
}

/// A driver may be handed to another thread, and two may be used in turns.
fn threads(make: &mut Make<'_>) {
    let (mut one, mut two) = (make(), make());
    let (stream_one, stream_two) = (good(one.stream()), good(two.stream()));
    let (at_one, at_two) = (good(one.allocate(4)), good(two.allocate(4)));
    good(one.write(stream_one, at_one, &[1; 4]));
    good(two.write(stream_two, at_two, &[2; 4]));
    let word = good(one.pinned(8));
    let thread = std::thread::spawn(move || {
        // SAFETY: one word was allocated.
        good(unsafe { fill(one.as_mut(), stream_one, at_one, 1, 0x0303_0303) });
        let mut got = [0; 4];
        good(one.read(stream_one, at_one, &mut got));
        good(one.signal(stream_one, &word, 0, 9));
        good(await_word(one.as_mut(), &word, 0, 9));
        got
    });
    assert_eq!(thread.join().ok(), Some([3; 4]), "a driver does not work on another thread");
    let mut got = [0; 4];
    good(two.read(stream_two, at_two, &mut got));
    assert_eq!(got, [2; 4], "two drivers are in each other's way");
}

/// One that is given up says so from then on, to its peers too, and goes without a word.
fn given_up(make: &mut Make<'_>) {
    let mut driver = make();
    let stream = good(driver.stream());
    let peer = driver.peer();
    driver.give_up("nobody waits any more");
    let lost = Err(Fault::Lost("nobody waits any more".to_owned()));
    for done in [driver.check(), driver.synchronize(), driver.write(stream, DeviceAddress(256), &[1])] {
        assert_eq!(done, lost, "a device that was given up goes on");
    }
    assert!(driver.allocate(1).is_err_and(|fault| fault.is_lost()) && peer.is_lost(), "a device that was given up goes on");
    driver.give_up("it was before");
    assert_eq!(driver.check(), lost, "it is said why it was first");
}

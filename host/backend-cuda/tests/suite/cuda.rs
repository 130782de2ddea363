//! The driver of real devices, on a library that stands in for NVIDIA's: what is said where something is missing, and that its calls are those that
//! the library takes.
//!
//! Libraries are found by name, once in a process. So each test starts this program again, with a library of its own to find, and asks for one of the
//! tests that are marked as ignored here.
#![cfg(feature = "cuda")]
#![expect(unsafe_code, reason = "a kernel is launched as a worker does it")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod ending;
mod together;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use cellwright_backend::{Backend, CellTypeId, LoadError};
use cellwright_backend_cuda::driver::cuda::{Absent, CudaDriver, Form, Image, devices};
use cellwright_backend_cuda::driver::{Driver, Fault, GraphLaunch, Launch, promises};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::Datatype;
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::{ARENA_SLOTS, behaviour};

/// Stands for machine code: the library looks at the beginning alone.
const IMAGES: &[Image] = &[Image { capability: (9, 0), form: Form::Exact, bytes: b"\x7fELF\0" }];

/// Folders of the library as it is, and of one that lacks a function.
static LIBRARIES: LazyLock<(PathBuf, PathBuf)> = LazyLock::new(|| (library("whole", &[]), library("lacking", &["-DLACKING"])));

/// The same of the compiler's.
static COMPILERS: LazyLock<(PathBuf, PathBuf)> = LazyLock::new(|| (compiler("compiler", &[]), compiler("no-compiler", &["-DLACKING"])));

/// The emulation, compiled once for both libraries: it takes longer than all else here.
static EMULATION: LazyLock<PathBuf> = LazyLock::new(|| {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/emulation/emulation.cpp");
    compiled("emulation", "emulation.o", &[source], &["-c"]).join("emulation.o")
});

fn library(folder: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/libcuda.cpp");
    compiled(folder, "libcuda.so", &[source, EMULATION.clone()], &[&["-shared"], flags].concat())
}

fn compiler(folder: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/libnvrtc.cpp");
    compiled(folder, "libnvrtc.so", &[source], &[&["-shared"], flags].concat())
}

fn compiled(folder: &str, name: &str, sources: &[PathBuf], flags: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let built = Command::new(std::env::var_os("CXX").unwrap_or("c++".into()))
        .args(["-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-Wl,-Bsymbolic", "-o"])
        .arg(folder.join(name))
        .args(flags)
        .arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels"))
        .args(sources)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    folder
}

/// A folder of files by the library's names that are none, so that the one which this machine may have is not found behind it.
fn no_library() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("none");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(folder.join(name), "no library").unwrap();
    }
    folder
}

/// Runs one of the ignored tests in a process that finds the library in that folder, which has something wrong with it.
fn with(library: &Path, wrong: &str, test: &str) {
    with_all(&[library], wrong, test);
}

/// The same with several folders.
fn with_all(libraries: &[&Path], wrong: &str, test: &str) {
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", &format!("cuda::{test}")])
        .env("LD_LIBRARY_PATH", std::env::join_paths(libraries).unwrap())
        .env("FAKE_CUDA", wrong)
        .output()
        .unwrap();
    let told = [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(run.status.success() && told.contains("1 passed"), "{wrong}: {told}");
}

fn whole(wrong: &str, test: &str) {
    with(&LIBRARIES.0, wrong, test);
}

fn open() -> Box<dyn Driver> {
    Box::new(CudaDriver::open(devices().unwrap().remove(0), IMAGES).unwrap())
}

#[test]
fn what_is_missing_is_said() {
    with(&no_library(), "", "finds_no_driver");
    with(&LIBRARIES.1, "", "finds_a_driver_without_a_function");
    whole("no-device", "finds_no_device");
    whole("old", "finds_an_old_driver");
    whole("stub", "finds_a_stub");
    whole("no-stores", "finds_a_device_that_cannot_store");
    whole("turing", "finds_a_device_that_is_too_old");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn finds_no_driver() {
    assert_eq!(devices(), Err(Absent::NoDriver));
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn finds_a_driver_without_a_function() {
    assert_eq!(devices(), Err(Absent::Incomplete { function: "cuStreamWaitEvent" }));
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn finds_no_device() {
    assert_eq!(devices(), Err(Absent::NoDevice));
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn finds_an_old_driver() {
    assert_eq!(devices(), Err(Absent::TooOld { version: 12_040 }));
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn finds_a_stub() {
    assert_eq!(devices(), Err(Absent::Stub));
}

fn refused(sentence: &str) {
    match CudaDriver::open(devices().unwrap().remove(0), IMAGES) {
        Err(Fault::Refused(told)) => assert!(told.starts_with("Fake H200 ") && told.contains(sentence), "{told}"),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("opened"),
    }
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn finds_a_device_that_cannot_store() {
    refused("cannot store to the host's memory");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn finds_a_device_that_is_too_old() {
    refused("compute capability 7.5; 8.0 or newer is needed");
}

#[test]
fn it_keeps_what_every_driver_promises() {
    whole("", "keeps_promises");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn keeps_promises() {
    let found = devices().unwrap();
    let numbers: Vec<u32> = found.iter().map(|facts| facts.ordinal).collect();
    assert_eq!(numbers, [0, 1]);
    assert_eq!((found[0].name.as_str(), found[0].capability, found[0].driver_version), ("Fake H200", (9, 0), 13_000));
    assert_ne!(found[0].uuid, found[1].uuid);
    promises::run(&mut open);
    // Whatever was allocated went with its driver.
    let mut driver = open();
    assert_eq!(driver.memory_free(), Ok(found[0].memory_bytes));
}

fn open_second() -> Box<dyn Driver> {
    Box::new(CudaDriver::open(devices().unwrap().remove(1), IMAGES).unwrap())
}

#[test]
fn two_devices_keep_what_they_promise_each_other() {
    whole("", "keeps_promises_to_a_peer");
    whole("no-peers", "has_no_peer");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn keeps_promises_to_a_peer() {
    // Whoever comes next finds that access was allowed before.
    for _ in 0..2 {
        assert!(promises::peers(&mut open, &mut open_second));
    }
    assert!(!promises::peers(&mut open, &mut open), "a device reaches itself");
    // Whatever was left to a peer went with it.
    let mut driver = open();
    assert_eq!(driver.memory_free(), Ok(driver.facts().memory_bytes));
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn has_no_peer() {
    assert!(!promises::peers(&mut open, &mut open_second));
}

/// A device that is lost takes none with it that reads its memory, whether its own driver has found out or not.
#[test]
fn a_peer_that_is_lost_is_not_the_device_itself() {
    whole("illegal:1", "loses_its_peer");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn loses_its_peer() {
    let (mut one, mut other) = (open(), open_second());
    let (stream, at, peer) = (one.stream().unwrap(), one.allocate(16).unwrap(), other.peer());
    let (there, from) = (other.stream().unwrap(), other.allocate(16).unwrap());
    assert_eq!(one.reach(&peer), Ok(true));
    assert_eq!(one.fetch(stream, (&peer, from), at, 16), Ok(true));
    // SAFETY: so much was allocated; the library makes it fail.
    unsafe { promises::fill(other.as_mut(), there, from, 4, 1) }.unwrap();
    assert!(!peer.is_lost(), "its driver has not found out");
    assert_eq!(one.fetch(stream, (&peer, from), at, 16), Ok(false));
    assert!(peer.is_lost());
    assert_eq!((one.check(), one.fetch(stream, (&peer, from), at, 16)), (Ok(()), Ok(false)));
    assert!(other.check().is_err_and(|fault| fault.is_lost()));
}

#[test]
fn a_copy_that_is_refused_loses_neither_device() {
    whole("no-fetches", "is_refused_a_copy");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn is_refused_a_copy() {
    let (mut one, mut other) = (open(), open_second());
    let (stream, at, peer) = (one.stream().unwrap(), one.allocate(16).unwrap(), other.peer());
    other.stream().unwrap();
    let from = other.allocate(16).unwrap();
    assert_eq!(one.reach(&peer), Ok(true));
    let fault = one.fetch(stream, (&peer, from), at, 16).unwrap_err();
    assert!(matches!(fault, Fault::Refused(_)), "{fault:?}");
    assert_eq!((one.check(), other.check(), peer.is_lost()), (Ok(()), Ok(()), false));
}

#[test]
fn a_graph_that_is_refused_for_whatever_reason_loses_no_device() {
    whole("no-graphs", "is_refused_graphs");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn is_refused_graphs() {
    let mut driver = open();
    let driver = driver.as_mut();
    let (stream, at) = (driver.stream().unwrap(), driver.allocate(4).unwrap());
    let launch = Launch { kernel: driver.kernel("fill").unwrap(), grid: [1, 1, 1], threads: 32, shared_bytes: 0, cooperative: false };
    let arguments = [at.0, 1, 7].map(u64::to_ne_bytes).concat();
    let fault = driver.graph(stream, &[GraphLaunch { launch, arguments }]).unwrap_err();
    assert!(matches!(fault, Fault::Refused(_)), "{fault:?}");
    // SAFETY: one word was allocated.
    unsafe { promises::fill(driver, stream, at, 1, 7) }.unwrap();
    assert_eq!(driver.synchronize(), Ok(()));
}

/// Systems do so while a server runs, with an error that says nothing of memory (`CUDA_ERROR_OPERATING_SYSTEM`).
#[test]
fn a_system_that_pins_no_memory_loses_no_device() {
    whole("no-pages", "is_refused_pinned_memory");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn is_refused_pinned_memory() {
    // Of these rings nothing is refused: one of the first cell's rows fits them.
    let options = CudaOptions { arena_bytes: Some(1 << 20), frame_bytes: Some(8 << 20), ring_bytes: 1 << 16, ..CudaOptions::default() };
    let mut worker = CudaWorker::new(open(), options).unwrap();
    worker.load(CellTypeId(0), &cells::countdown(8).resolve()).unwrap();
    let wide = Draft::new("wide").input("x", Datatype::Fp32, &[1 << 18]).operator("Neg", &["x"], &["y"]);
    let error = worker.load(CellTypeId(1), &wide.output("y", Datatype::Fp32, &[1 << 18]).resolve()).unwrap_err();
    assert!(matches!(error, LoadError::Unsupported { .. }), "{error:?}");
    assert!(worker.time_batch(CellTypeId(0), 3).is_ok(), "{error}: the cell that is there runs on");
}

/// Its launches wait for one another whole.
#[test]
fn a_device_that_begins_no_launch_early_takes_graphs() {
    whole("ampere", "takes_graphs");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn takes_graphs() {
    let facts = devices().unwrap().remove(0);
    assert_eq!(facts.capability, (8, 0));
    let images = [Image { capability: (8, 0), form: Form::Exact, bytes: b"\x7fELF\0" }];
    let mut driver: Box<dyn Driver> = Box::new(CudaDriver::open(facts, &images).unwrap());
    let (stream, at) = (driver.stream().unwrap(), driver.allocate(4).unwrap());
    let launch = Launch { kernel: driver.kernel("fill").unwrap(), grid: [1, 1, 1], threads: 32, shared_bytes: 0, cooperative: false };
    let fill = |value: u64| GraphLaunch { launch, arguments: [at.0, 1, value].map(u64::to_ne_bytes).concat() };
    let graph = driver.graph(stream, &[fill(7), fill(8)]).unwrap();
    // SAFETY: one word was allocated.
    unsafe { driver.launch_graph(stream, graph) }.unwrap();
    let mut word = [0; 4];
    driver.read(stream, at, &mut word).unwrap();
    assert_eq!(u32::from_ne_bytes(word), 8, "the second comes behind the first");
}

#[test]
fn a_worker_runs_on_it() {
    whole("", "runs_a_worker");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn runs_a_worker() {
    let options = CudaOptions {
        arena_bytes: Some(u64::from(ARENA_SLOTS) * 64),
        frame_bytes: Some(8 << 20),
        ring_bytes: 1 << 20,
        ..CudaOptions::default()
    };
    behaviour::run(&mut || Box::new(CudaWorker::new(open(), options).unwrap()));
}

#[test]
fn an_illegal_access_loses_the_device() {
    whole("illegal:3", "loses_the_device");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn loses_the_device() {
    let mut driver = open();
    let driver = driver.as_mut();
    let (stream, word) = (driver.stream().unwrap(), driver.pinned(8).unwrap());
    let at = driver.allocate(4).unwrap();
    for value in 0..3 {
        // SAFETY: one word was allocated.
        unsafe { promises::fill(driver, stream, at, 1, value) }.unwrap();
    }
    let fault = promises::await_word(driver, &word, 0, 1).unwrap_err();
    assert!(
        matches!(&fault, Fault::Lost(cause) if cause.contains("an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)")),
        "{fault:?}"
    );
    assert_eq!(driver.allocate(1), Err(fault.clone()));
    assert_eq!(driver.signal(stream, &word, 0, 1), Err(fault));
}

#[test]
fn an_image_that_is_none_is_refused() {
    whole("", "refuses_an_image");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn refuses_an_image() {
    const BROKEN: &[Image] = &[Image { capability: (8, 0), form: Form::Portable, bytes: b"nothing\0" }];
    let facts = devices().unwrap().remove(1);
    match CudaDriver::open(facts, BROKEN) {
        Err(Fault::Refused(told)) => assert!(told.contains("Fake H200 does not take the kernels"), "{told}"),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn an_image_that_a_driver_does_not_take_is_followed_by_the_next() {
    whole("", "takes_the_next_image");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn takes_the_next_image() {
    let of = |form, bytes| Image { capability: (9, 0), form, bytes };
    let kernel = |second: Image, third: Image| {
        let images: &'static [Image] = vec![of(Form::Exact, b"\x7fELFrefused\0"), second, third].leak();
        let mut driver = CudaDriver::open(devices().unwrap().remove(0), images).unwrap();
        driver.kernel("fill").map(drop).map_err(|fault| fault.to_string())
    };
    let (whole, empty): (&[u8], &[u8]) = (b"\x7fELF\0", b"\x7fELFempty\0");
    assert_eq!(kernel(of(Form::Code, whole), of(Form::Portable, empty)), Ok(()), "the second is the one that was loaded");
    assert_eq!(kernel(of(Form::Code, empty), of(Form::Portable, whole)), Err("there is no kernel `fill`".to_owned()));
    assert_eq!(kernel(of(Form::Code, b"\x7fELFrefused\0"), of(Form::Portable, whole)), Ok(()), "and then the third");
}

#[test]
fn groups_are_compiled_where_the_library_is_and_interpreted_where_it_is_not() {
    whole("", "has_no_compiler");
    with_all(&[&LIBRARIES.0, &COMPILERS.1], "", "has_a_compiler_without_a_function");
    with_all(&[&LIBRARIES.0, &COMPILERS.0], "", "has_a_compiler");
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn has_no_compiler() {
    let mut driver = open();
    // Unless this machine has one.
    if driver.compiler().is_ok() {
        return;
    }
    assert!(driver.compiler().unwrap_err().contains("libnvrtc.so"));
    assert_eq!(driver.compiled("text"), Ok(None));
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn has_a_compiler_without_a_function() {
    let mut driver = open();
    let why = driver.compiler().unwrap_err();
    assert!(why.contains("has no function nvrtcGetCUBIN"), "{why}");
    assert_eq!(driver.compiled("text"), Ok(None));
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn has_a_compiler() {
    let mut driver = open();
    assert_eq!(driver.compiler().unwrap().name(), "NVRTC 13.0");
    assert_eq!(driver.compiled("this is refused"), Ok(None));
    let compiler = driver.compiler().unwrap();
    let elsewhere = std::thread::spawn(move || (compiler.takes("one"), compiler.takes("this is refused")));
    assert_eq!(elsewhere.join().unwrap(), (true, false));
    let stream = driver.stream().unwrap();
    let kernels = [driver.compiled("one").unwrap().unwrap(), driver.compiled("one").unwrap().unwrap()];
    assert_ne!(kernels[0], kernels[1], "each is given back alone");
    let launch = |kernel| Launch { kernel, grid: [1, 1, 1], threads: 32, shared_bytes: 0, cooperative: false };
    // SAFETY: the kernel of the library that stands in reads nothing.
    unsafe { driver.launch(stream, &launch(kernels[0]), &[0; 32]) }.unwrap();
    driver.release(kernels[0]).unwrap();
    assert!(driver.release(kernels[0]).is_err());
    // SAFETY: above.
    assert!(unsafe { driver.launch(stream, &launch(kernels[0]), &[0; 32]) }.is_err());
    // SAFETY: above.
    unsafe { driver.launch(stream, &launch(kernels[1]), &[0; 32]) }.unwrap();
    assert_eq!(driver.compiled("another").unwrap(), Some(kernels[0]), "its place is used again");
    assert!(driver.kernel("fill").is_ok());
    let mut driver = CudaDriver::open(devices().unwrap().remove(0), IMAGES).unwrap().interpreting();
    assert_eq!((driver.compiler().is_err(), driver.compiled("one")), (true, Ok(None)), "it leaves the compiler alone");
}

/// What the real compiler takes: with CELLWRIGHT_NVRTC the folder of its library.
#[test]
fn the_real_compiler_takes_what_is_generated() {
    match std::env::var_os("CELLWRIGHT_NVRTC") {
        Some(folder) => with_all(&[&LIBRARIES.0, Path::new(&folder)], "", "compiles_for_real"),
        None => println!("skipped: CELLWRIGHT_NVRTC does not say where NVRTC's library is"),
    }
}

#[test]
#[ignore = "run by others, with a library of its own"]
fn compiles_for_real() {
    let driver = CudaDriver::open(devices().unwrap().remove(0), IMAGES).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/generated");
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let code = driver.machine_code(&std::fs::read_to_string(&path).unwrap());
        assert!(code.as_ref().is_ok_and(|code| code.starts_with(b"\x7fELF")), "{}: {:?}", path.display(), code.err());
    }
    assert!(driver.machine_code("this is no kernel").unwrap_err().contains("error: "));
}

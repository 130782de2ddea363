//! The driver of real devices, on a library that stands in for NVIDIA's: what is said where something is missing, and that its calls are those that
//! the library takes.
//!
//! Libraries are found by name, once in a process. So each test starts this program again, with a library of its own to find, and asks for one of the
//! tests that are marked as ignored here.
#![cfg(feature = "cuda")]
#![expect(unsafe_code, reason = "a kernel is launched as a worker does it")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use cellwright_backend::conformance::{ARENA_SLOTS, behaviour};
use cellwright_backend_cuda::driver::cuda::{Absent, CudaDriver, Form, Image, devices};
use cellwright_backend_cuda::driver::{Driver, Fault, promises};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};

/// Stands for machine code: the library looks at the beginning alone.
const IMAGES: &[Image] = &[Image { capability: (9, 0), form: Form::Exact, bytes: b"\x7fELF" }];

/// Folders of the library as it is, and of one that lacks a function.
static LIBRARIES: LazyLock<(PathBuf, PathBuf)> = LazyLock::new(|| (library("whole", &[]), library("lacking", &["-DLACKING"])));

fn library(folder: &str, flags: &[&str]) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kernels = here.join("../../kernels");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let built = Command::new(std::env::var_os("CXX").unwrap_or("c++".into()))
        .args(["-std=c++20", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o"])
        .arg(folder.join("libcuda.so"))
        .args(flags)
        .arg("-I")
        .arg(&kernels)
        .args([here.join("tests/fake/libcuda.cpp"), kernels.join("emulation/emulation.cpp")])
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
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", test])
        .env("LD_LIBRARY_PATH", library)
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

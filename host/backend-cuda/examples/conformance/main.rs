//! Everything that a device and the worker on it must pass, for a machine that has a GPU and no Rust: `tests/gpu/run` carries this program there.
//!
//! `conformance --device 0 --list` names the parts, `conformance --device 0 PART` runs one of them and prints one line of JSON, `conformance --device 0
//! --facts` says what the device is. Each part wants a process of its own, because what is left of one that lost its device is of no use to the next.
//! With `--emulated` instead of a device they run on one that is made of threads. Exit status 1: the part failed; 3: there is no such device.
#![expect(unsafe_code, reason = "kernels are launched as a worker does it")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod ahead;
mod figures;
mod graphs;
mod groups;
mod guards;
mod launches;
mod parts;
mod peers;
mod steps;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cellwright_backend_cuda::driver::cuda::{CudaDriver, IMAGES, devices};
use cellwright_backend_cuda::driver::emulated::{Emulated, Emulation};
use cellwright_backend_cuda::driver::{Driver, Facts};
use serde_json::{Value, json};

/// Where the parts run.
#[derive(Clone, Copy)]
pub(crate) enum Where {
    /// A GPU, by its number.
    Device(u32),
    /// On threads.
    Emulated,
}

/// Who runs a cell's groups, where that is not left to what the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Groups {
    /// A compiler's kernels, where there is a compiler.
    Compiled,
    /// The program's own interpreter.
    Interpreted,
}

impl Where {
    /// A driver for it, as a worker has it. On threads nothing is compiled, which would take long.
    fn open(self) -> Result<Box<dyn Driver>, String> {
        self.open_with(if matches!(self, Self::Emulated) { Groups::Interpreted } else { Groups::Compiled })
    }

    /// A driver for it with or without a compiler.
    pub(crate) fn open_with(self, groups: Groups) -> Result<Box<dyn Driver>, String> {
        let compiles = groups == Groups::Compiled;
        match self {
            Self::Emulated => Ok(Box::new(Emulated::new(&Emulation { lag: Duration::from_micros(20), compiles, ..Emulation::default() }))),
            Self::Device(number) => {
                let facts = devices().map_err(|absent| absent.to_string())?.into_iter().find(|facts| facts.ordinal == number);
                let facts = facts.ok_or_else(|| format!("there is no GPU cuda:{number}"))?;
                let driver = CudaDriver::open(facts, IMAGES).map_err(|fault| fault.to_string())?;
                Ok(Box::new(if compiles { driver } else { driver.interpreting() }))
            }
        }
    }
}

fn told(facts: &Facts) -> Value {
    json!({
        "name": facts.name,
        "capability": format!("{}.{}", facts.capability.0, facts.capability.1),
        "memory_bytes": facts.memory_bytes,
        "multiprocessors": facts.multiprocessors,
        "uuid": facts.uuid,
        "cuda": format!("{}.{}", facts.driver_version / 1000, facts.driver_version % 1000 / 10),
    })
}

/// One line about a part.
fn run(part: &parts::Part, place: Where) -> (Value, bool) {
    let began = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| (part.run)(place)));
    let seconds = (began.elapsed().as_secs_f64() * 1e3).round() / 1e3;
    match outcome {
        Ok(figures) => (json!({ "part": part.name, "passed": true, "seconds": seconds, "figures": figures }), true),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
            (json!({ "part": part.name, "passed": false, "seconds": seconds, "said": said.unwrap_or_default() }), false)
        }
    }
}

const USAGE: &str = "usage: conformance (--device N | --emulated) (--list | --facts | PART)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (place, rest) = match words.as_slice() {
        ["--emulated", rest @ ..] => (Some(Where::Emulated), rest),
        ["--device", number, rest @ ..] => (number.parse().ok().map(Where::Device), rest),
        _ => (None, &[][..]),
    };
    let (Some(place), [asked]) = (place, rest) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if *asked == "--list" {
        parts::PARTS.iter().for_each(|part| println!("{}", part.name));
        return ExitCode::SUCCESS;
    }
    // Held until the end: a device that nobody holds forgets all that it made ready for this process, which takes it longer than most parts of a suite.
    let _held = match place.open() {
        Err(why) => {
            eprintln!("conformance: {why}");
            return ExitCode::from(3);
        }
        Ok(driver) if *asked == "--facts" => {
            println!("{}", told(driver.facts()));
            return ExitCode::SUCCESS;
        }
        Ok(driver) => driver,
    };
    let Some(part) = parts::PARTS.iter().find(|part| part.name == *asked) else {
        eprintln!("conformance: there is no part `{asked}`; `--list` names them");
        return ExitCode::from(2);
    };
    let (line, passed) = run(part, place);
    println!("{line}");
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

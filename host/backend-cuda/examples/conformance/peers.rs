//! Two devices that read each other's memory: what their drivers promise, and state that goes from one worker to the other. Left out with a sentence where
//! there is no second one, or where they do not reach each other.

use std::time::Duration;

use cellwright_backend::{Backend, SLOT_BYTES, Slot, Taken};
use cellwright_backend_cuda::driver::cuda::{CudaDriver, IMAGES, devices};
use cellwright_backend_cuda::driver::emulated::{Emulated, Emulation};
use cellwright_backend_cuda::driver::{Driver, promises};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use serde_json::{Value, json};

use super::Where;
use super::parts::{open, small};

/// Slots that move, as large as a request's state may be.
const COUNT: u32 = 1024;

/// A driver of another device than that, if there is one that can be used.
fn open_other(place: Where) -> Option<Box<dyn Driver>> {
    match place {
        Where::Emulated => {
            let lag = Duration::from_micros(20);
            Some(Box::new(Emulated::new(&Emulation { ordinal: 1, lag, ..Emulation::default() })))
        }
        Where::Device(number) => {
            let other = devices().ok()?.into_iter().find(|facts| facts.ordinal != number)?;
            Some(Box::new(CudaDriver::open(other, IMAGES).ok()?))
        }
    }
}

/// The part.
pub(crate) fn run(place: Where) -> Value {
    let left_out = |why: &str| {
        eprintln!("conformance: peers: left out, because {why}");
        json!({ "left_out": why })
    };
    let Some(other) = open_other(place) else {
        return left_out("this machine has no second GPU that can be used");
    };
    drop(other);
    let mut open_other = || open_other(place).unwrap_or_else(|| panic!("the other device is gone"));
    if !promises::peers(&mut || open(place), &mut open_other) {
        return left_out("the two GPUs do not read each other's memory");
    }
    for debug in [false, true] {
        let worker =
            |driver| CudaWorker::new(driver, CudaOptions { debug, ..small() }).unwrap_or_else(|fault| panic!("no worker: {fault}"));
        moves(&mut worker(open(place)), &mut worker(open_other()));
    }
    json!({})
}

/// State goes to and fro, each time changed.
fn moves(one: &mut CudaWorker, other: &mut CudaWorker) {
    let peers = [one.peer(), other.peer()].map(|peer| peer.unwrap_or_else(|| panic!("a worker shares nothing")));
    assert!(one.reach(1, &peers[1]) && other.reach(0, &peers[0]), "the driver reaches the other, the worker does not");
    for round in 0..20_u8 {
        let bytes: Vec<u8> = (0..COUNT as usize * SLOT_BYTES).map(|at| (at % 251) as u8 ^ round).collect();
        let (from, to) = (Slot(3 + u32::from(round)), Slot(7));
        wrote(one.write(from, &bytes));
        taken(other, 0, &[(from, to, COUNT / 2), (Slot(from.0 + COUNT / 2), Slot(to.0 + COUNT / 2), COUNT / 2)]);
        taken(one, 1, &[(to, Slot(2 * COUNT), COUNT)]);
        assert!(wrote(one.read(Slot(2 * COUNT), COUNT)) == bytes, "state that went to and fro is another, in round {round}");
    }
}

fn wrote<T>(done: Result<T, cellwright_backend::DeviceLost>) -> T {
    done.unwrap_or_else(|lost| panic!("{lost}"))
}

fn taken(worker: &mut CudaWorker, from: u32, runs: &[(Slot, Slot, u32)]) {
    wrote(worker.take(from, runs));
    loop {
        match wrote(worker.taken()) {
            Taken::Moved => return,
            Taken::NotMoved => panic!("state is not taken from a device that is there"),
            Taken::Soon | Taken::Later(_) => std::hint::spin_loop(),
        }
    }
}

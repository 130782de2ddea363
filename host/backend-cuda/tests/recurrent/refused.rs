//! Launches of several steps that the device does not take: the steps are launched one by one, and no bit of what they leave is another.

use cellwright_backend::Backend;
use cellwright_backend::conformance::cells;
use cellwright_backend::conformance::driver::Deliveries;
use cellwright_backend::conformance::hoisting::{self, Recurrent};
use cellwright_backend_cuda::CudaWorker;
use cellwright_backend_cuda::driver::emulated::{Emulated, Emulation, Injection};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;

use crate::{UNITS, count, gru, launched, lstm, lstm_of_tokens, options};

/// What tasks of several steps leave on such a device, and how many launches of all steps, and of one, it took.
fn run(recurrent: &Recurrent, cooperates: bool, refused: Option<u64>) -> (Deliveries, [usize; 2]) {
    let device = Emulated::new(&Emulation { seed: 3, cooperates, memory_bytes: 128 << 20, ..Emulation::default() });
    let control = device.control();
    let worker = CudaWorker::new(Box::new(device), options()).expect("a device made of threads");
    if let Some(after_launches) = refused {
        control.inject(Injection::NoCooperation { after_launches });
    }
    let mut worker: Option<Box<dyn Backend>> = Some(Box::new(worker));
    let make = &mut || worker.take().expect("one worker");
    let got = hoisting::deliveries(make, (recurrent, hoisting::REQUESTS), (24, 9), &mut Rng::new(5));
    let launched = launched(&control);
    let counts = ["resident", "step"].map(|kind| count(&launched, &format!("lstm_{kind}")) + count(&launched, &format!("gru_{kind}")));
    (got, counts)
}

#[test]
fn steps_whose_launch_is_refused_are_launched_one_by_one() {
    let gru = cells::gru("gru", 5, UNITS, &gru::weights(5, UNITS)).at(Precision::Bf16).resolve();
    let lstm_feedback = vec![(0, 1), (1, 2)];
    let cells = [(lstm(5, UNITS), lstm_feedback.clone()), (lstm_of_tokens(UNITS), lstm_feedback), (gru, vec![(0, 1)])];
    for (cell, feedback) in cells {
        let (recurrent, name) = (Recurrent { cell: cell.clone(), feedback }, &cell.name);
        let (expected, [together, alone]) = run(&recurrent, true, None);
        assert!(together > 2, "`{name}`: {together} launches of several steps, {alone} of one");
        for taken in [0, 2] {
            let (got, [together, more]) = run(&recurrent, true, Some(taken));
            assert!(got == expected, "`{name}`: {taken} launches were taken");
            assert!(
                together == taken as usize && more > alone,
                "`{name}`: {together} launches of several steps after {taken}, {more} of one"
            );
        }
        let (got, [together, more]) = run(&recurrent, false, None);
        assert!(
            got == expected && together == 0 && more > alone,
            "`{name}`: {together} launches of several steps on a device without them"
        );
    }
}

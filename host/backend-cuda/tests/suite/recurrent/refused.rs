//! Launches of several steps that the device does not take: the steps are launched one by one, and no bit of what they leave is another.

use cellwright_backend::Backend;
use cellwright_backend_cuda::driver::emulated::{Emulated, Emulation, Injection, What};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_conformance::cells;
use cellwright_conformance::driver::Deliveries;
use cellwright_conformance::hoisting::{self, Recurrent};

use crate::recurrent::{CELL, UNITS, count, driver_with, gru, launched, lstm, lstm_of_tokens, options, over_rows, place, staying};

/// What tasks of several steps leave on such a device, and how many launches of all steps, and of one, it took.
fn run(recurrent: &Recurrent, cooperates: bool, refused: Option<u64>) -> (Deliveries, [usize; 2]) {
    with(recurrent, (cooperates, staying()), refused.map(|after_launches| Injection::NoCooperation { after_launches }))
}

fn with(recurrent: &Recurrent, (cooperates, options): (bool, CudaOptions), refused: Option<Injection>) -> (Deliveries, [usize; 2]) {
    let device = Emulated::new(&Emulation { seed: 3, cooperates, memory_bytes: 128 << 20, ..Emulation::default() });
    let control = device.control();
    let worker = CudaWorker::new(Box::new(device), options).expect("a device made of threads");
    if let Some(refused) = refused {
        control.inject(refused);
    }
    let mut worker: Option<Box<dyn Backend>> = Some(Box::new(worker));
    let make = &mut || worker.take().expect("one worker");
    let got = hoisting::deliveries(make, (recurrent, hoisting::REQUESTS), (24, 9), &mut Rng::new(5));
    let launched = launched(&control);
    let counts = ["resident", "step"].map(|kind| count(&launched, &format!("lstm_{kind}")) + count(&launched, &format!("gru_{kind}")));
    (got, counts)
}

/// Cells that have such steps.
fn recurrents() -> [Recurrent; 3] {
    let gru = cells::gru("gru", 5, UNITS, &gru::weights(5, UNITS)).at(Precision::Bf16).resolve();
    let feedback = vec![(0, 1), (1, 2)];
    [(lstm(5, UNITS), feedback.clone()), (lstm_of_tokens(UNITS), feedback), (gru, vec![(0, 1)])]
        .map(|(cell, feedback)| Recurrent { cell, feedback })
}

/// Whichever graph of several steps the driver does not make, or not launch: what was written for it runs without it.
#[test]
fn steps_whose_graph_is_refused_leave_the_same() {
    for recurrent in recurrents() {
        let name = &recurrent.cell.name;
        let (expected, _) = run(&recurrent, true, None);
        for taken in [0, 1, 3] {
            for refused in [Injection::NoLaunchOfGraph { after_launches: taken }, Injection::NoGraph { after_graphs: taken }] {
                let (got, _) = with(&recurrent, (true, options()), Some(refused));
                assert!(got == expected, "`{name}`: {refused:?}");
            }
        }
    }
}

/// With few rows in the frame a task is several such batches. When one of them finds that its graph is not launched, the others are written already.
#[test]
fn a_graph_that_is_refused_was_counted_on_by_later_batches() {
    let run = |options: CudaOptions, refused: Option<Injection>| {
        let (mut driver, control) = driver_with(6, &[lstm(5, UNITS)], CudaOptions { rows_most: 12, ..options });
        let requests: Vec<_> = (0..4).map(|seed| place(&mut driver, over_rows(1, 9), seed)).collect();
        let rows: Vec<_> = requests.iter().map(|request| (request.lanes[0][0], 0)).collect();
        if let Some(refused) = refused {
            control.inject(refused);
        }
        let _ = control.take_log();
        driver.task(CELL, &rows, 9);
        let log = control.take_log();
        let graphs = log.iter().filter(|ran| matches!(ran.what, What::Graph { .. })).count();
        let steps = log.iter().filter(|ran| matches!(ran.what, What::Launch { kernel, .. } if kernel.starts_with("lstm_step"))).count();
        (driver.delivered, [graphs, steps])
    };
    let (expected, counts) = run(staying(), None);
    assert!(expected.len() == 4 * 9 * 2 && counts == [0, 0]);
    let of = |refused: Option<Injection>| {
        let (got, counts) = run(options(), refused);
        assert!(got == expected, "{refused:?}");
        counts
    };
    assert_eq!(of(None), [3, 9], "three batches of three steps");
    for taken in 0..3 {
        assert_eq!(
            of(Some(Injection::NoLaunchOfGraph { after_launches: taken as u64 })),
            [taken, 9],
            "what is given up is not tried again"
        );
    }
}

#[test]
fn steps_whose_launch_is_refused_are_launched_one_by_one() {
    for recurrent in recurrents() {
        let name = &recurrent.cell.name;
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

//! What batches take is measured as they will be run: beside the other workers of a domain.

use std::time::Duration;

use cellwright_cell_graph::generate;
use cellwright_scheduler::Config;
use cellwright_tests::devices::{Stopwatch, domain, worker};
use cellwright_tests::graphs::spec;

use super::engine;

#[test]
fn batches_are_measured_beside_workers_of_the_same_domain() {
    let [here, elsewhere] = [domain(16), domain(16)];
    let [fast, slow, other] = [10, 30, 100].map(|row_us| Stopwatch::saying(Duration::from_micros(row_us)));
    let backends = vec![fast.on(worker(&here)), slow.on(worker(&here)), other.on(worker(&elsewhere))];
    let engine = engine(Config::default(), 16, backends);
    let loaded = engine.load(&spec(&generate::model(7), 0, 8)).unwrap();
    for cell in &loaded.cells {
        let points = &cell.calibration.points;
        // The one that says less may have gone on for longer, alone.
        assert!(points.iter().all(|point| point.time == Duration::from_micros(30) * point.rows), "{points:?}");
        assert_eq!(cell.calibration.rows_max(), 32);
        // Few rows as one batch too, which is the first worker's with the threads of the other.
        let lent: Vec<_> = cell.calibration.lent.iter().map(|point| (point.rows, point.time)).collect();
        assert_eq!(lent, [2, 4, 8].map(|rows| (rows, Duration::from_micros(10) * rows)));
    }
    assert_eq!((fast.asked(), other.asked()), (slow.asked(), 0));
    assert!(fast.asked_lent() > 0);
    assert_eq!((slow.asked_lent(), other.asked_lent()), (0, 0));
}

//! What a meter makes of tasks whose times are known.

use cellwright_scheduler::{ModelId, Row, WorkerId};

use super::*;
use crate::device::Device;
use crate::random::Random;

#[test]
fn the_mean_of_each_batch_size_is_a_devices_table() {
    let mut meter = Meter::default();
    for (seq, (rows, busy_ns)) in [(4, 80_000), (4, 90_000), (4, 70_000), (4, 85_000), (4, 75_000), (8, 7)].into_iter().enumerate() {
        let (seq, worker) = (TaskSeq(seq as u64 + 1), WorkerId(1));
        let mut commands = Commands { rows: vec![Row { lane: Default::default(), step: 0 }; rows], ..Commands::default() };
        let (cell_type, model) = (CellTypeId(3), ModelId(0));
        commands.launches.push(Launch { worker, cell_type, model, seq, steps: 2, rows: 0..rows });
        // Each is alone: a microsecond and half passes beside it.
        let launched = 1_000_000 * seq.0;
        meter.told(Time(launched), &[]);
        meter.decided(&commands);
        let heard = Time(launched + 2 * busy_ns + 1500);
        meter.told(heard, &[Event::Done { worker, up_to: seq, busy_ns: 2 * busy_ns, stopped: Vec::new(), failed: Vec::new() }]);
    }
    let knots = meter.knots(CellTypeId(3));
    assert_eq!(knots, [Knot { rows: 4, nanoseconds: 80_000 }]);
    assert_eq!(meter.handovers_ns(false), [1500; 6]);
    let quiet = vec![Knot { rows: 1, nanoseconds: 30_000 }];
    let text = table("two \"cpus\"", &meter, &[CellTimes { name: "a.cell".to_owned(), busy: knots, quiet, fill_first: true }]);
    let device = Device::from_toml("x.toml", &text).unwrap_or_else(|error| panic!("{error} in {text}"));
    assert_eq!((device.name.as_str(), device.shares_memory), ("two \"cpus\"", true));
    assert_eq!((device.handover.draw(false, &mut Random::new(1)), device.between_ns), (1500, 0));
    for cell in ["a.cell", "any other"] {
        let costs = device.costs(cell).unwrap();
        // Beyond what was seen it is as much less as there.
        assert_eq!([false, true].map(|quiet| costs.compute_ns(4, quiet)), [80_000, 30_000]);
        assert!(costs.fill_first);
    }
}

/// A task of a millisecond for each of these is launched at that moment.
fn launch(meter: &mut Meter, at: u64, seqs: &[u64]) {
    let mut commands = Commands { rows: vec![Row { lane: Default::default(), step: 0 }], ..Commands::default() };
    let (worker, cell_type, model) = (WorkerId(0), CellTypeId(0), ModelId(0));
    let launches = seqs.iter().map(|seq| Launch { worker, cell_type, model, seq: TaskSeq(*seq), steps: 1, rows: 0..1 });
    commands.launches.extend(launches);
    meter.told(Time(at), &[]);
    meter.decided(&commands);
}

fn done(meter: &mut Meter, at: u64, up_to: u64, busy_ns: u64) {
    let up_to = TaskSeq(up_to);
    meter.told(Time(at), &[Event::Done { worker: WorkerId(0), up_to, busy_ns, stopped: Vec::new(), failed: Vec::new() }]);
}

#[test]
fn what_begins_while_no_other_worker_is_at_work_is_counted_apart() {
    let mut meter = Meter::default();
    let launch = |meter: &mut Meter, at, tasks: &[(u32, u64)]| {
        let mut commands = Commands { rows: vec![Row { lane: Default::default(), step: 0 }], ..Commands::default() };
        let (cell_type, model) = (CellTypeId(0), ModelId(0));
        let tasks = tasks.iter().map(|(worker, seq)| (WorkerId(*worker), TaskSeq(*seq)));
        commands.launches.extend(tasks.map(|(worker, seq)| Launch { worker, cell_type, model, seq, steps: 1, rows: 0..1 }));
        meter.told(Time(at), &[]);
        meter.decided(&commands);
    };
    let done = |meter: &mut Meter, at, (worker, up_to), busy_ns| {
        let (worker, up_to) = (WorkerId(worker), TaskSeq(up_to));
        meter.told(Time(at), &[Event::Done { worker, up_to, busy_ns, stopped: Vec::new(), failed: Vec::new() }]);
    };
    // Two at once, several times: neither begins alone, nor does the one that waited for the first, as the second worker's goes on.
    for number in 0..5 {
        let at = 10_000_000 * number;
        launch(&mut meter, at, &[(0, 4 * number + 1), (1, 2 * number + 1), (0, 4 * number + 2)]);
        done(&mut meter, at + 2_000_000, (0, 4 * number + 1), 2_000_000);
        meter.decided(&Commands::default());
        done(&mut meter, at + 4_000_000, (0, 4 * number + 2), 2_000_000);
        done(&mut meter, at + 5_000_000, (1, 2 * number + 1), 2_000_000);
        // The other has only just ended.
        launch(&mut meter, at + 5_000_000 + QUIET_NS - 1, &[(0, 4 * number + 3)]);
        done(&mut meter, at + 7_400_000, (0, 4 * number + 3), 2_000_000);
        // One alone; that another worker has something to do later makes no difference.
        launch(&mut meter, at + 7_400_000, &[(0, 4 * number + 4)]);
        launch(&mut meter, at + 7_500_000, &[(1, 2 * number + 2)]);
        done(&mut meter, at + 8_400_000, (0, 4 * number + 4), 1_000_000);
        done(&mut meter, at + 9_600_000, (1, 2 * number + 2), 2_000_000);
    }
    let knot = |nanoseconds| vec![Knot { rows: 1, nanoseconds }];
    assert_eq!((meter.knots(CellTypeId(0)), meter.quiet_knots(CellTypeId(0))), (knot(2_000_000), knot(1_000_000)));

    // A worker that is there and has never had a task has nothing to do either.
    let mut meter = Meter::default();
    let up = |worker| Event::WorkerUp { worker: WorkerId(worker), domain: Default::default(), class: Default::default(), arena_slots: 1 };
    meter.told(Time(0), &[up(0), up(1)]);
    for number in 0..5 {
        launch(&mut meter, 10_000 * number, &[(0, number + 1)]);
        done(&mut meter, 10_000 * number + 1_000, (0, number + 1), 1_000);
    }
    assert_eq!(meter.quiet_knots(CellTypeId(0)), knot(1_000));
}

#[test]
fn ends_of_tasks_that_wait_are_reckoned_from_the_first_of_them() {
    let mut meter = Meter::default();
    let heard = |meter: &Meter| [false, true].map(|busy| meter.handovers_ns(busy));
    launch(&mut meter, 0, &[1, 2]);
    done(&mut meter, 1_000_100, 1, 1_000_000);
    // It has been running since a million.
    launch(&mut meter, 1_000_100, &[3]);
    done(&mut meter, 2_000_300, 2, 1_000_000);
    // Two hundred passed between the two, which was seen.
    assert_eq!(heard(&meter), [vec![], vec![100, 100]]);
    // After some, what is not seen between them has added up: they are not asked any more, until the worker has had nothing to do.
    for seq in 3..20 {
        launch(&mut meter, seq * 2_000_000, &[seq + 1]);
        done(&mut meter, seq * 2_000_000, seq, 1_000_000);
    }
    let before = heard(&meter);
    done(&mut meter, 100_000_000, 20, 1_000_000);
    assert_eq!(heard(&meter), before);
    launch(&mut meter, 200_000_000, &[21]);
    done(&mut meter, 300_000_000, 21, 1_000_000);
    assert_eq!(heard(&meter).map(|times| times.len()), [1, 2]);
}

#[test]
fn of_ends_that_are_heard_of_together_the_first_was_waited_for() {
    let mut meter = Meter::default();
    let launch = |meter: &mut Meter, seqs: &[(u32, u64)]| {
        let mut commands = Commands { rows: vec![Row { lane: Default::default(), step: 0 }], ..Commands::default() };
        let (cell_type, model) = (CellTypeId(0), ModelId(0));
        let launches = seqs.iter().map(|(worker, seq)| (WorkerId(*worker), TaskSeq(*seq)));
        commands.launches.extend(launches.map(|(worker, seq)| Launch { worker, cell_type, model, seq, steps: 1, rows: 0..1 }));
        meter.decided(&commands);
    };
    let end = |(worker, seq), busy_ns| Event::Done {
        worker: WorkerId(worker),
        up_to: TaskSeq(seq),
        busy_ns,
        stopped: Vec::new(),
        failed: Vec::new(),
    };
    let heard = |meter: &Meter| [true, false].map(|busy| meter.handovers_ns(busy));
    // The second worker has another to run when its first ends, and the other is at it still: both were at work, if they are not any more.
    meter.told(Time(0), &[]);
    launch(&mut meter, &[(0, 1), (1, 1), (1, 2)]);
    meter.told(Time(1_000), &[end((0, 1), 900), end((1, 1), 300), end((1, 2), 500)]);
    assert_eq!(heard(&meter), [vec![700], vec![]]);
    // It has no other.
    launch(&mut meter, &[(0, 2), (1, 3)]);
    meter.told(Time(2_000), &[end((0, 2), 900), end((1, 3), 400)]);
    assert_eq!(heard(&meter), [vec![700], vec![600]]);
}

#[test]
fn what_passes_between_tasks_that_wait_is_their_time_on_the_worker_beyond_themselves() {
    let mut meter = Meter::default();
    launch(&mut meter, 0, &[1, 2]);
    done(&mut meter, 1_000_000, 1, 1_000_000);
    // Each ends a hundred microseconds later than if it had begun with the end of the one before; one end in two is heard of late.
    for seq in 2..=21 {
        launch(&mut meter, (seq - 1) * 1_100_000, &[seq + 1]);
        done(&mut meter, seq * 1_100_000 + (seq % 2) * 30_000 - 100_000, seq, 1_000_000);
    }
    assert_eq!(meter.between_ns(), (100_000 * 20 + 30_000) / 20);
    // The worker may have been waiting for this one.
    launch(&mut meter, 50_000_000, &[]);
    done(&mut meter, 50_000_000, 22, 1_000_000);
    assert!(meter.between_ns() > 1_000_000, "so far it was there in time");
    let before = meter.between_ns();
    launch(&mut meter, 60_000_000, &[23]);
    done(&mut meter, 62_000_000, 23, 1_000_000);
    assert_eq!(meter.between_ns(), before, "it was alone");
    launch(&mut meter, 70_000_000, &[24]);
    launch(&mut meter, 70_900_000, &[25]);
    done(&mut meter, 71_000_000, 24, 1_000_000);
    done(&mut meter, 73_000_000, 25, 1_000_000);
    assert_eq!(meter.between_ns(), before, "it came when the one before was about to end");
}

//! What a meter makes of tasks whose times are known.

use cellwright_scheduler::{ModelId, Row, Slice, Submission, WorkerId};

use super::*;
use crate::device::{Device, Durations};

#[test]
fn the_mean_of_each_batch_size_is_a_devices_table() {
    let mut meter = Meter::default();
    for (seq, (rows, busy_ns)) in [(4, 80_000), (4, 90_000), (4, 70_000), (4, 85_000), (4, 75_000), (8, 7)].into_iter().enumerate() {
        let (seq, worker) = (TaskSeq(seq as u64 + 1), WorkerId(1));
        let mut commands = Commands { rows: vec![Row { lane: Default::default(), step: 0 }; rows], ..Commands::default() };
        let (cell_type, model) = (CellTypeId(3), ModelId(0));
        commands.launches.push(Launch {
            worker,
            cell_type,
            model,
            sole: None,
            seq,
            steps: 2,
            ended: 0,
            rows: 0..rows,
            slice: Slice::Whole,
        });
        // Each is alone: a microsecond passes before it, and half of one after it.
        let launched = 1_000_000 * seq.0;
        meter.told(Time(launched), &[], &[]);
        meter.decided(&commands);
        let ended = launched + 1000 + 2 * busy_ns;
        let done = Event::Done { worker, up_to: seq, busy_ns: 2 * busy_ns, stopped: Vec::new(), failed: Vec::new() };
        meter.told(Time(ended + 500), &[done], &[Time(ended)]);
    }
    let knots = meter.knots(CellTypeId(3));
    assert_eq!(knots, [Knot { rows: 4, nanoseconds: 80_000 }]);
    let quiet = vec![Knot { rows: 1, nanoseconds: 30_000 }];
    let text = table(
        "two \"cpus\"",
        &meter.delays(),
        Some(2500),
        &[CellTimes { name: "a.cell".to_owned(), busy: knots, quiet, fill_first: true }],
    );
    let device = Device::from_toml("x.toml", &text).unwrap_or_else(|error| panic!("{error} in {text}"));
    assert_eq!((device.name.as_str(), device.shares_memory), ("two \"cpus\"", true));
    let times = |ns| Durations::new(vec![ns; 6]);
    assert_eq!(
        device.delays,
        Delays { handover: Handover { idle: times(500), busy: Durations::default() }, wake: times(1000), between_ns: 0 }
    );
    assert_eq!(device.request_ns, Some(2500));
    for cell in ["a.cell", "any other"] {
        let costs = device.costs(cell).unwrap();
        // Beyond what was seen it is as much less as there.
        assert_eq!([false, true].map(|quiet| costs.compute_ns(4, quiet)), [80_000, 30_000]);
        assert!(costs.fill_first);
    }
}

/// Tasks of one row, of these workers and numbers, are launched.
fn launches(tasks: impl IntoIterator<Item = (u32, u64)>) -> Commands {
    let mut commands = Commands { rows: vec![Row { lane: Default::default(), step: 0 }], ..Commands::default() };
    let (cell_type, model) = (CellTypeId(0), ModelId(0));
    let of_task = |(worker, seq)| {
        let (worker, seq) = (WorkerId(worker), TaskSeq(seq));
        Launch { worker, cell_type, model, sole: None, seq, steps: 1, ended: 0, rows: 0..1, slice: Slice::Whole }
    };
    commands.launches.extend(tasks.into_iter().map(of_task));
    commands
}

/// A task for each of these is launched at that moment.
fn launch(meter: &mut Meter, at: u64, seqs: &[u64]) {
    meter.told(Time(at), &[], &[]);
    meter.decided(&launches(seqs.iter().map(|seq| (0, *seq))));
}

/// A task of a worker is done.
fn end((worker, up_to): (u32, u64), busy_ns: u64) -> Event {
    Event::Done { worker: WorkerId(worker), up_to: TaskSeq(up_to), busy_ns, stopped: Vec::new(), failed: Vec::new() }
}

#[test]
fn what_begins_while_no_other_worker_is_at_work_is_counted_apart() {
    let mut meter = Meter::default();
    let launch = |meter: &mut Meter, at, tasks: &[(u32, u64)]| {
        meter.told(Time(at), &[], &[]);
        meter.decided(&launches(tasks.iter().copied()));
    };
    let done = |meter: &mut Meter, at, task, busy_ns| meter.told(Time(at), &[end(task, busy_ns)], &[Time(at)]);
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
    meter.told(Time(0), &[up(0), up(1)], &[]);
    for number in 0..5 {
        launch(&mut meter, 10_000 * number, &[(0, number + 1)]);
        done(&mut meter, 10_000 * number + 1_000, (0, number + 1), 1_000);
    }
    assert_eq!(meter.quiet_knots(CellTypeId(0)), knot(1_000));
}

/// Times that are equally likely: of hand-overs while a worker has nothing to do and while none has, and until one has woken up.
fn spread(meter: &Meter) -> [Vec<u64>; 3] {
    let [idle, busy] = meter.passed.handovers.each_ref();
    [idle, busy, &meter.passed.wakes].map(|sampled| sampled.durations().unwrap_or_default().nanoseconds().to_vec())
}

#[test]
fn what_passes_beside_tasks_is_told_apart() {
    let mut meter = Meter::default();
    let ended = |meter: &mut Meter, heard_ns, seq, ended_ns| meter.told(Time(heard_ns), &[end((0, seq), 1000)], &[Time(ended_ns)]);
    // It has had nothing to do, and begins fifty after it could; the second begins a hundred after the first has ended.
    launch(&mut meter, 0, &[1, 2]);
    ended(&mut meter, 1080, 1, 1050);
    ended(&mut meter, 2190, 2, 2150);
    assert_eq!((spread(&meter), meter.delays().between_ns), ([vec![40], vec![30], vec![50]], 100));
    // Launched as soon as the end of the last one is heard of: it is awake, and begins after ten.
    launch(&mut meter, 2190, &[3]);
    ended(&mut meter, 3205, 3, 3200);
    assert_eq!((spread(&meter), meter.delays().between_ns), ([vec![5, 40], vec![30], vec![50]], 55));
    // By now it has had nothing to do for a while.
    launch(&mut meter, 5000, &[4]);
    ended(&mut meter, 6070, 4, 6070);
    assert_eq!((spread(&meter), meter.delays().between_ns), ([vec![0, 5, 40], vec![30], vec![50, 70]], 55));
    let mut before = Delays { between_ns: 7, ..Delays::default() };
    meter.cut().update(&mut before);
    assert_eq!((before.between_ns, &before.wake), (55, &Durations::new(vec![50, 70])));
    // Of what was not seen since then nothing changes.
    let after = before.clone();
    meter.cut().update(&mut before);
    assert_eq!(before, after);
}

#[test]
fn of_ends_that_are_heard_of_together_the_first_was_waited_for() {
    let mut meter = Meter::default();
    let launch = |meter: &mut Meter, tasks: &[(u32, u64)]| meter.decided(&launches(tasks.iter().copied()));
    let handovers = |meter: &Meter| spread(meter)[..2].to_vec();
    // The second worker has another to run when its first ends, and the other is at it still: both were at work, if they are not any more.
    meter.told(Time(0), &[], &[]);
    launch(&mut meter, &[(0, 1), (1, 1), (1, 2)]);
    meter.told(Time(1_000), &[end((0, 1), 900), end((1, 1), 300), end((1, 2), 500)], &[900, 300, 800].map(Time));
    assert_eq!(handovers(&meter), [vec![], vec![700]]);
    // It has no other.
    launch(&mut meter, &[(0, 2), (1, 3)]);
    meter.told(Time(2_000), &[end((0, 2), 900), end((1, 3), 400)], &[1_900, 1_400].map(Time));
    assert_eq!(handovers(&meter), [vec![600], vec![700]]);
}

#[test]
fn requests_take_what_passes_from_when_they_are_heard_of_to_their_ends() {
    let mut meter = Meter::default();
    let growth = crate::replay::tests::growths().remove(0);
    let submit = |request| {
        Event::Submit(Submission { request: RequestId(request), model: ModelId(0), rank: 0, deadline: None, growth: growth.clone() })
    };
    meter.told(Time(100), &[submit(3)], &[]);
    meter.told(Time(200), &[submit(1)], &[]);
    meter.told(Time(500), &[], &[]);
    meter.decided(&Commands { finished: vec![RequestId(3), RequestId(1)], ..Commands::default() });
    assert_eq!((meter.cut_requests(), meter.cut_requests()), ((2, 350), (0, 0)));
}

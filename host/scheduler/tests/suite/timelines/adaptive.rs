//! Adaptive batching, small enough to be checked by eye: who catches up, who waits, and who is too late.

use super::*;

/// Four nodes in a line, each of a type of its own.
fn layers() -> Arc<UnfoldedGrowth> {
    let node = |node: u32| {
        let depends = node.checked_sub(1).map(|chain| Dependency::End { chain });
        chain(1, vec![stage(node, depends.as_slice())])
    };
    growth(0, (0..4).map(node).collect(), None)
}

/// The adaptive policy, for cells whose tasks take those times at one row and at four.
fn adaptively(single: u64, four: u64) -> Timeline {
    let config = Config { policy: PolicyKind::Adaptive, ..paper() };
    let mut timeline = Timeline::new(config, 4);
    let mut known = model(4);
    for cell in &mut known.cells {
        let knots = [Knot { rows: 1, nanoseconds: single }, Knot { rows: 4, nanoseconds: four }];
        cell.cost = CostTable::new(knots).expect("a table");
    }
    timeline.world = World::new(config, vec![known], &[(0, 0, 10_000)]);
    timeline
}

/// A batch costs what a row costs: who is one node behind catches up, who is three behind would cost the others more than it saves.
#[test]
fn nodes_catch_up_where_it_pays() {
    let mut timeline = adaptively(1, 1);
    timeline.arrive(&layers());
    timeline.act();
    timeline.arrive(&layers());
    timeline.tick();
    timeline.tick();
    timeline.tick();
    timeline.arrive(&layers());
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0]
    1 lstm: 1.0[0]
    2 leaf: 0.1[0] 1.1[0]
    3 inner: 0.2[0] 1.2[0]
    4 head: 0.3[0] 1.3[0]
    5 lstm: 2.0[0]
    5 request 0 leaves
    5 request 1 leaves
    6 leaf: 2.1[0]
    7 inner: 2.2[0]
    8 head: 2.3[0]
    9 request 2 leaves
    ");
}

/// Where another worker has a batch to fill, nodes that are left to it are not caught up with, however much that pays: there is nothing of them to run.
#[test]
fn who_leaves_nodes_to_others_does_not_wait_for_them() {
    let mut timeline = adaptively(1, 1);
    let mut known = cellwright_scheduler::ModelInfo::clone(&timeline.world.models[0]);
    known.cells[0].fill_first = true;
    timeline.world = World::new(timeline.world.config, vec![known], &[(0, 0, 10_000), (1, 0, 10_000)]);
    let mut step = |done: &[u32], come: usize| {
        timeline.world.now = Time(timeline.world.now.0 + 1);
        timeline.events.extend(done.iter().filter_map(|worker| timeline.world.complete(WorkerId(*worker), 1, 1, || false)));
        (0..come).for_each(|_| timeline.arrive(&layers()));
        timeline.act();
        timeline.world.commands.launches.iter().map(|launch| (launch.worker.0, launch.cell_type.0, launch.rows.len())).collect::<Vec<_>>()
    };
    assert_eq!(step(&[], 1), [(0, 0, 1)]);
    assert_eq!(step(&[0], 1), [(0, 0, 1), (1, 1, 1)]);
    assert_eq!(step(&[], 2), []);
    assert_eq!(step(&[1], 0), [(1, 2, 1)]);
    assert_eq!(step(&[0], 0), [(0, 0, 2)]);
}

/// Two layers that take turns. The first request is at the second layer when two more come: cellular batching would run it to its end before them.
/// Here it waits for them to come by, and all go on together.
#[test]
fn the_few_of_stacked_layers_wait_for_the_many() {
    let mut timeline = adaptively(1, 1);
    let stacked = |length| {
        let layers =
            vec![crate::suite::graphs::whole(0, &[Dependency::Previous { stage: 0 }]), stage(1, &[Dependency::Sibling { stage: 0 }])];
        growth(0, vec![chain(length, layers)], None)
    };
    timeline.arrive(&stacked(2));
    timeline.act();
    timeline.arrive(&stacked(2));
    timeline.arrive(&stacked(3));
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0]
    1 lstm: 0.0[1] 1.0[0] 2.0[0]
    2 leaf: 0.0[0] 0.0[1] 1.0[0] 2.0[0]
    3 lstm: 1.0[1] 2.0[1]
    3 request 0 leaves
    4 leaf: 1.0[1] 2.0[1]
    5 lstm: 2.0[2]
    5 request 1 leaves
    6 leaf: 2.0[2]
    7 request 2 leaves
    ");
}

/// Three requests go on at layers of their own, where one never comes by: it waits for a round of the four layers and runs, again and again, and is
/// done long before them.
#[test]
fn the_few_of_stacked_layers_wait_for_no_more_than_a_round() {
    let mut timeline = adaptively(1, 1);
    let stacked = |first, length| {
        let layers = vec![
            super::super::graphs::whole(first, &[Dependency::Previous { stage: 0 }]),
            stage(first + 1, &[Dependency::Sibling { stage: 0 }]),
        ];
        growth(0, vec![chain(length, layers)], None)
    };
    for _ in 0..3 {
        timeline.arrive(&stacked(0, 18));
    }
    timeline.arrive(&stacked(2, 2));
    let lines = timeline.run();
    let left = lines.lines().find(|line| line.ends_with("request 3 leaves")).and_then(|line| line.split_whitespace().next());
    let left: u32 = left.and_then(|time| time.parse().ok()).expect("it leaves");
    assert!((6..=25).contains(&left), "it left at {left}");
}

/// The second of two requests does not catch up with the first.
fn assert_in_turn(mut timeline: Timeline) {
    timeline.arrive(&layers());
    timeline.act();
    timeline.arrive(&layers());
    let ran = timeline.run();
    insta::allow_duplicates! {
        insta::assert_snapshot!(ran, @r"
    0 lstm: 0.0[0]
    1 leaf: 0.1[0]
    2 inner: 0.2[0]
    3 head: 0.3[0]
    4 lstm: 1.0[0]
    4 request 0 leaves
    5 leaf: 1.1[0]
    6 inner: 1.2[0]
    7 head: 1.3[0]
    8 request 1 leaves
    ");
    }
}

/// A batch of four costs four times what a row does: nothing is saved by waiting.
#[test]
fn nodes_do_not_wait_where_batches_save_nothing() {
    assert_in_turn(adaptively(1, 4));
}

/// Request 0 would be one too late if it let 1 catch up.
#[test]
fn nodes_do_not_wait_where_a_deadline_forbids_it() {
    let mut timeline = adaptively(1, 1);
    timeline.world.deadline = Some(Time(4));
    assert_in_turn(timeline);
}

/// A layer, and behind it a recurrent one of so many steps.
fn recurrent(steps: u32) -> Arc<UnfoldedGrowth> {
    let layer = chain(1, vec![stage(0, &[])]);
    let recurrent = chain(steps, vec![crate::suite::graphs::whole(1, &[Dependency::End { chain: 0 }, Dependency::Previous { stage: 0 }])]);
    growth(0, vec![layer, recurrent], None)
}

/// Request 0 has six steps of 10 before it, and could wait for 1 if it had 10 more, or one step less, which it has soon. How many steps requests have on
/// average does not matter to it.
#[test]
fn a_deadline_counts_with_all_steps_that_are_left() {
    let second_runs_at = |deadline| {
        let mut timeline = adaptively(10, 10);
        timeline.world.deadline = Some(Time(deadline));
        timeline.arrive(&recurrent(6));
        timeline.act();
        timeline.world.deadline = None;
        timeline.arrive(&recurrent(1));
        let lines = timeline.run();
        lines.lines().find(|line| line.ends_with("lstm: 1.0[0]")).and_then(|line| line.split_whitespace().next().map(str::to_owned))
    };
    assert_eq!(second_runs_at(71).as_deref(), Some("1"));
    assert_eq!(second_runs_at(70).as_deref(), Some("2"));
    assert_eq!(second_runs_at(61).as_deref(), Some("3"));
}

/// Five steps cannot be done by 7 if they have not begun by 2, which the batch of four before them does not allow. It is told so at once, and whoever
/// comes after it goes on; who has begun is given up when its time is over.
#[test]
fn what_cannot_be_in_time_is_given_up_before_it_runs() {
    let mut timeline = adaptively(1, 1);
    for _ in 0..4 {
        timeline.arrive(&growth(0, vec![lstm(4, &[])], None));
    }
    timeline.world.deadline = Some(Time(7));
    timeline.arrive(&growth(0, vec![lstm(5, &[])], None));
    timeline.world.deadline = Some(Time(6));
    timeline.arrive(&growth(0, vec![lstm(2, &[])], None));
    timeline.act();
    assert_eq!(timeline.world.commands.wake_at, Some(Time(3)));
    timeline.tick();
    timeline.tick();
    assert!(timeline.world.failed.is_empty());
    timeline.tick();
    assert_eq!(timeline.world.failed, [(RequestId(4), Failure::Late { alone_ns: 5 })]);
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0] 1.0[0] 2.0[0] 3.0[0]
    1 lstm: 0.0[1] 1.0[1] 2.0[1] 3.0[1]
    2 lstm: 0.0[2] 1.0[2] 2.0[2] 3.0[2]
    3 lstm: 0.0[3] 1.0[3] 2.0[3] 3.0[3]
    4 lstm: 5.0[0]
    4 request 0 leaves
    4 request 1 leaves
    4 request 2 leaves
    4 request 3 leaves
    5 lstm: 5.0[1]
    6 request 5 leaves
    ");
}

/// The least time in which four steps may be asked for beside a task, after requests of so much time each that begin and are late: given up at their time
/// by who asked, or found to be late after it.
fn least_time(late: &[(u64, bool)]) -> u64 {
    let refused = |time: u64| {
        let mut timeline = adaptively(1, 1);
        timeline.world.now = Time(1 << 30);
        let arrive = |timeline: &mut Timeline, time: Option<u64>, steps| {
            timeline.world.deadline = time.map(|time| Time(timeline.world.now.0 + time));
            timeline.arrive(&growth(0, vec![lstm(steps, &[])], None));
            let Some(Event::Submit(submission)) = timeline.events.last() else { panic!("it came last") };
            let request = submission.request;
            timeline.act();
            request
        };
        for (had, given_up) in late {
            let request = arrive(&mut timeline, Some(*had), 4);
            timeline.world.now = Time(timeline.world.now.0 + had + u64::from(!given_up));
            if *given_up {
                timeline.world.requests.get_mut(&request).expect("it runs").cancelled = true;
                timeline.events.push(Event::Cancel(request));
            }
            timeline.act();
            assert!(timeline.world.failed.pop().is_some_and(|(failed, _)| failed == request));
            timeline.complete();
            timeline.act();
        }
        arrive(&mut timeline, None, 9);
        let last = arrive(&mut timeline, Some(time), 4);
        timeline.world.failed.last().is_some_and(|(failed, failure)| *failed == last && matches!(failure, Failure::Late { .. }))
    };
    (1..1000).find(|time| !refused(*time)).expect("some time is enough")
}

#[test]
fn how_long_requests_take_beside_others_is_learnt_however_they_end() {
    // Of so little a 256th is nothing.
    let alone = least_time(&[(8, true)]);
    // A 256th of the time that it had.
    assert_eq!(least_time(&[(512, false)]), alone + 2);
    assert_eq!(least_time(&[(512, true)]), alone + 2);
    // Who had much time says little of those with less, and the other way about: half of a request's own time is the most that is kept from it.
    assert_eq!(least_time(&[(768, true), (4, true)]), alone + 3);
    assert_eq!(least_time(&[(1 << 20, true)]), 2 * alone - 1);
}

/// How many of so many requests of four steps are given up, of which each comes when the one before it is over, and has ten nanoseconds; a step takes one.
fn given_up_of(timeline: &mut Timeline, requests: usize) -> usize {
    timeline.world.now = Time(1 << 30);
    for _ in 0..requests {
        timeline.world.deadline = Some(Time(timeline.world.now.0 + 10));
        timeline.arrive(&growth(0, vec![lstm(4, &[])], None));
        timeline.act();
        (0..4).for_each(|_| timeline.tick());
    }
    timeline.world.failed.len()
}

/// A burst made tasks slow. When it is over, requests that had not been in time beside it are.
#[test]
fn what_takes_long_beside_others_is_not_too_late_alone() {
    let mut timeline = adaptively(1, 1);
    for _ in 0..4 {
        timeline.arrive(&growth(0, vec![lstm(9, &[])], None));
    }
    timeline.act();
    while let Some(done) = timeline.world.complete(WorkerId(0), 1, 100, || false) {
        timeline.events.push(done);
        timeline.act();
    }
    assert_eq!(given_up_of(&mut timeline, 1), 0);
}

/// The table says that nobody can be in time, and is wrong.
#[test]
fn who_is_let_begin_all_the_same_corrects_a_wrong_table() {
    let mut timeline = adaptively(100, 100);
    assert_eq!(given_up_of(&mut timeline, 1000), 63);
}

//! The other policies, small enough to be checked by eye: windows, merging, LazyBatching; and models that go with all of their requests.

use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::{Source, UnfoldedInput};
use cellwright_scheduler::{Lazy, Merge};

use super::*;

/// With a window of three, a batch waits for others that long, or until it is full.
#[test]
fn a_window_closes_when_its_time_or_its_batch_is_full() {
    let mut timeline = Timeline::new(Config { policy: PolicyKind::Graph(Graph { bucket_width: 1, window_ns: 3 }), ..paper() }, 2);
    let one = growth(0, vec![lstm(1, &[])], None);
    timeline.arrive(&one);
    timeline.act();
    for wake in [3, 3, 3] {
        timeline.act();
        assert_eq!(timeline.world.commands.wake_at, Some(Time(wake)));
        timeline.world.now = Time(timeline.world.now.0 + 1);
    }
    timeline.act();
    assert_eq!(timeline.world.commands.wake_at, None);
    timeline.arrive(&one);
    timeline.complete();
    timeline.act();
    timeline.arrive(&one);
    insta::assert_snapshot!(timeline.run(), @r"
    3 lstm: 0.0[0]
    4 request 0 leaves
    4 lstm: 1.0[0] 0.0[0]
    5 request 1 leaves
    5 request 0 leaves
    ");
}

/// Serial: first come, first served, whatever the graphs are.
#[test]
fn one_after_the_other() {
    let mut timeline = Timeline::new(Config { policy: PolicyKind::Serial, ..paper() }, 2);
    for length in [3, 1, 2] {
        timeline.arrive(&growth(0, vec![lstm(length, &[])], None));
    }
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0]
    1 lstm: 0.0[1]
    2 lstm: 0.0[2]
    3 lstm: 1.0[0]
    3 request 0 leaves
    4 lstm: 2.0[0]
    4 request 1 leaves
    5 lstm: 2.0[1]
    6 request 2 leaves
    ");
}

fn merging(requests: u32) -> Config {
    Config { policy: PolicyKind::Merge(Merge { requests }), ..paper() }
}

/// The requests of figure 5 in two sets: levels grow narrower, and a set is handed over when the longest of it is done.
#[test]
fn a_merged_set_runs_as_long_as_its_longest_without_padding() {
    let mut timeline = Timeline::new(merging(4), 4);
    for length in [2, 3, 3, 5, 5, 7, 3, 1] {
        timeline.arrive(&growth(0, vec![lstm(length, &[])], None));
    }
    insta::assert_snapshot!(timeline.run(), @r"
     0 lstm: 0.0[0] 1.0[0] 2.0[0] 3.0[0]
     1 lstm: 0.0[1] 1.0[1] 2.0[1] 3.0[1]
     2 lstm: 1.0[2] 2.0[2] 3.0[2]
     3 lstm: 3.0[3]
     4 lstm: 3.0[4]
     5 lstm: 4.0[0] 5.0[0] 6.0[0] 7.0[0]
     5 request 0 leaves
     5 request 1 leaves
     5 request 2 leaves
     5 request 3 leaves
     6 lstm: 4.0[1] 5.0[1] 6.0[1]
     7 lstm: 4.0[2] 5.0[2] 6.0[2]
     8 lstm: 4.0[3] 5.0[3]
     9 lstm: 4.0[4] 5.0[4]
    10 lstm: 5.0[5]
    11 lstm: 5.0[6]
    12 request 4 leaves
    12 request 5 leaves
    12 request 6 leaves
    12 request 7 leaves
    ");
}

/// BatchMaker's figure 4b: graphs of different shapes are one graph, whose nodes of one type and depth are one operator. Only the limit cuts it.
#[test]
fn trees_and_chains_are_merged_level_by_level() {
    let mut timeline = Timeline::new(merging(3), 8);
    timeline.arrive(&growth(0, balanced_tree(8), None));
    timeline.arrive(&growth(0, balanced_tree(4), None));
    timeline.arrive(&growth(0, vec![lstm(2, &[]), chain(2, vec![stage(2, &[Dependency::End { chain: 0 }])])], None));
    timeline.arrive(&growth(0, balanced_tree(2), None));
    insta::assert_snapshot!(timeline.run(), @r"
    0 leaf: 0.0[0] 0.0[1] 0.0[2] 0.0[3] 0.0[4] 0.0[5] 0.0[6] 0.0[7]
    1 leaf: 1.0[0] 1.0[1] 1.0[2] 1.0[3]
    2 lstm: 2.0[0]
    3 inner: 0.1[0] 0.1[1] 0.1[2] 0.1[3] 1.1[0] 1.1[1]
    4 lstm: 2.0[1]
    5 inner: 0.1[4] 0.1[5] 1.1[2] 2.1[0] 2.1[1]
    6 inner: 0.1[6]
    7 leaf: 3.0[0] 3.0[1]
    7 request 0 leaves
    7 request 1 leaves
    7 request 2 leaves
    8 inner: 3.1[0]
    9 request 3 leaves
    ");
}

/// Two models of one tenant share their cell types and a worker, not their policies: the serial one keeps to itself, device time is divided.
#[test]
fn models_of_different_policies_share_a_worker() {
    let mut timeline = Timeline::new(paper(), 4);
    let serial = ModelInfo { model: ModelId(1), policy: Some(PolicyKind::Serial), ..model(4) };
    timeline.world = World::new(paper(), vec![model(4), serial], &[(0, 0, 10_000)]);
    for model in [0, 1, 0, 1] {
        let (_, event) = timeline.world.request(ModelId(model), &growth(0, vec![lstm(2, &[])], None), Default::default());
        timeline.events.push(event);
    }
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0] 2.0[0]
    1 lstm: 1.0[0]
    2 lstm: 1.0[1]
    3 lstm: 0.0[1] 2.0[1]
    3 request 1 leaves
    4 lstm: 3.0[0]
    4 request 0 leaves
    4 request 2 leaves
    5 lstm: 3.0[1]
    6 request 3 leaves
    ");
}

/// As the paper's decisions, under LazyBatching with that objective; every node takes a unit of time.
fn lazily(objective_ns: u64) -> Timeline {
    let config = Config { policy: PolicyKind::Lazy(Lazy { objective_ns, percentile: 90 }), ..paper() };
    let mut timeline = Timeline::new(config, 4);
    let mut known = model(4);
    for cell in &mut known.cells {
        cell.cost = CostTable::new([Knot { rows: 1, nanoseconds: 1 }]).expect("a table");
    }
    timeline.world = World::new(config, vec![known], &[(0, 0, 10_000)]);
    timeline
}

/// Eight nodes in a line, A to H: chains of one step each.
fn line() -> Arc<UnfoldedGrowth> {
    let node = |node: u32| {
        let depends = node.checked_sub(1).map(|chain| Dependency::End { chain });
        chain(1, vec![stage(node % 4, depends.as_slice())])
    };
    growth(0, (0..8).map(node).collect(), None)
}

/// LazyBatching's figure 10: request 1 arrives while 0 executes B, 2 while 1 executes A. 2 catches up with 1 at B, both with 0 at C.
#[test]
fn newcomers_catch_up_and_merge() {
    let mut timeline = lazily(1000);
    timeline.arrive(&line());
    timeline.act();
    timeline.tick();
    timeline.arrive(&line());
    timeline.tick();
    timeline.arrive(&line());
    insta::assert_snapshot!(timeline.run(), @r"
     0 lstm: 0.0[0]
     1 leaf: 0.1[0]
     2 lstm: 1.0[0]
     3 lstm: 2.0[0]
     4 leaf: 1.1[0] 2.1[0]
     5 inner: 0.2[0] 1.2[0] 2.2[0]
     6 head: 0.3[0] 1.3[0] 2.3[0]
     7 lstm: 0.4[0] 1.4[0] 2.4[0]
     8 leaf: 0.5[0] 1.5[0] 2.5[0]
     9 inner: 0.6[0] 1.6[0] 2.6[0]
    10 head: 0.7[0] 1.7[0] 2.7[0]
    11 request 0 leaves
    11 request 1 leaves
    11 request 2 leaves
    ");
}

/// The same, but that 0 is cancelled between two of its nodes: nobody is left of its batch, and 1 begins.
#[test]
fn a_batch_that_was_given_up_keeps_nobody_waiting() {
    let mut timeline = lazily(10);
    timeline.arrive(&line());
    timeline.act();
    timeline.arrive(&line());
    timeline.tick();
    timeline.complete();
    timeline.world.requests.get_mut(&RequestId(0)).expect("it runs").cancelled = true;
    timeline.events.push(Event::Cancel(RequestId(0)));
    let lines = timeline.run();
    assert!(lines.starts_with(" 0 lstm: 0.0[0]\n 1 leaf: 0.1[0]\n 2 lstm: 1.0[0]\n") && lines.ends_with("request 1 leaves\n"), "{lines}");
}

/// Two that begin together have no slack for 2 when it comes. At 5 they would have (5 + 2·3 + 8 ≤ 20), but the batch completes uninterrupted.
#[test]
fn a_batch_that_refused_somebody_completes_first() {
    let mut timeline = lazily(20);
    timeline.arrive(&line());
    timeline.arrive(&line());
    timeline.act();
    timeline.arrive(&line());
    insta::assert_snapshot!(timeline.run(), @r"
     0 lstm: 0.0[0] 1.0[0]
     1 leaf: 0.1[0] 1.1[0]
     2 inner: 0.2[0] 1.2[0]
     3 head: 0.3[0] 1.3[0]
     4 lstm: 0.4[0] 1.4[0]
     5 leaf: 0.5[0] 1.5[0]
     6 inner: 0.6[0] 1.6[0]
     7 head: 0.7[0] 1.7[0]
     8 lstm: 2.0[0]
     8 request 0 leaves
     8 request 1 leaves
     9 leaf: 2.1[0]
    10 inner: 2.2[0]
    11 head: 2.3[0]
    12 lstm: 2.4[0]
    13 leaf: 2.5[0]
    14 inner: 2.6[0]
    15 head: 2.7[0]
    16 request 2 leaves
    ");
}

/// Request 0 has an objective of 10 and takes 8 alone. Equation 2 has no slack for others: they wait until 0 is done. Then all of them begin, whatever
/// equation 2 would say.
#[test]
fn without_slack_a_batch_goes_on_uninterrupted_and_the_next_begins_with_all() {
    let mut timeline = lazily(10);
    timeline.arrive(&line());
    timeline.act();
    timeline.arrive(&line());
    timeline.arrive(&line());
    insta::assert_snapshot!(timeline.run(), @r"
     0 lstm: 0.0[0]
     1 leaf: 0.1[0]
     2 inner: 0.2[0]
     3 head: 0.3[0]
     4 lstm: 0.4[0]
     5 leaf: 0.5[0]
     6 inner: 0.6[0]
     7 head: 0.7[0]
     8 lstm: 1.0[0] 2.0[0]
     8 request 0 leaves
     9 leaf: 1.1[0] 2.1[0]
    10 inner: 1.2[0] 2.2[0]
    11 head: 1.3[0] 2.3[0]
    12 lstm: 1.4[0] 2.4[0]
    13 leaf: 1.5[0] 2.5[0]
    14 inner: 1.6[0] 2.6[0]
    15 head: 1.7[0] 2.7[0]
    16 request 1 leaves
    16 request 2 leaves
    ");
}

/// Steps of a recurrent layer are one node: a newcomer joins at its first step whoever is at any other. Who has finished the layer waits for it.
#[test]
fn steps_of_a_layer_are_one_node() {
    let mut timeline = lazily(1000);
    let layered = |length| growth(0, vec![lstm(length, &[]), chain(1, vec![stage(3, &[Dependency::End { chain: 0 }])])], None);
    timeline.arrive(&layered(3));
    timeline.act();
    timeline.arrive(&layered(4));
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0]
    1 lstm: 0.0[1] 1.0[0]
    2 lstm: 0.0[2] 1.0[1]
    3 lstm: 1.0[2]
    4 lstm: 1.0[3]
    5 head: 0.1[0] 1.1[0]
    6 request 0 leaves
    6 request 1 leaves
    ");
}

/// All of a batch is given up between two of its tasks, and its model goes: the next task, of a model of another policy, asks nothing of what is gone.
#[test]
fn a_model_may_go_with_a_batch_that_was_given_up() {
    let graph = PolicyKind::Graph(Graph { bucket_width: 1, window_ns: 0 });
    let lazy = PolicyKind::Lazy(Lazy { objective_ns: 1_000, percentile: 50 });
    let policies = [PolicyKind::Cellular, PolicyKind::Adaptive, graph, PolicyKind::Serial, lazy, PolicyKind::Merge(Merge { requests: 2 })];
    for policy in policies {
        let config = Config { policy, low_water: 0, max_tasks_to_submit: 1, ..paper() };
        let mut timeline = Timeline::new(config, 4);
        let other = ModelInfo { model: ModelId(1), policy: Some(PolicyKind::Cellular), ..model(4) };
        timeline.world = World::new(config, vec![model(4), other], &[(0, 0, 10_000)]);
        let chain = growth(0, vec![lstm(3, &[])], None);
        timeline.arrive(&chain);
        timeline.arrive(&chain);
        timeline.act();
        timeline.complete();
        for request in [RequestId(0), RequestId(1)] {
            timeline.world.requests.get_mut(&request).expect("it runs").cancelled = true;
            timeline.events.push(Event::Cancel(request));
        }
        timeline.events.push(Event::ModelDown(ModelId(0)));
        let (_, event) = timeline.world.request(ModelId(1), &chain, Default::default());
        timeline.events.push(event);
        let lines = timeline.run();
        assert!(lines.ends_with("request 2 leaves\n"), "{policy:?}:\n{lines}");
    }
}

/// A request comes and is given up in one turn, and its model goes. The next one runs as if neither had been, also under the number of the one that went.
#[test]
fn a_model_may_go_in_the_turn_in_which_its_only_request_came() {
    for next in [ModelId(0), ModelId(1)] {
        let mut timeline = Timeline::new(paper(), 4);
        let other = ModelInfo { model: ModelId(1), ..model(4) };
        timeline.world = World::new(timeline.world.config, vec![model(4), other], &[(0, 0, 10_000)]);
        let chain = growth(0, vec![lstm(3, &[])], None);
        timeline.act();
        // What the second one counts has the first one counted, and what the first one counts next is counted when it is gone.
        for of in [ModelId(0), ModelId(1)] {
            let (_, event) = timeline.world.request(of, &chain, Default::default());
            timeline.events.push(event);
        }
        timeline.world.requests.get_mut(&RequestId(0)).expect("it came").cancelled = true;
        timeline.events.push(Event::Cancel(RequestId(0)));
        timeline.events.push(Event::ModelDown(ModelId(0)));
        if next == ModelId(0) {
            timeline.events.push(Event::ModelUp(model(4).into()));
        }
        let (_, event) = timeline.world.request(next, &chain, Default::default());
        timeline.events.push(event);
        let lines = timeline.run();
        assert!(lines.contains("request 1 leaves\n") && lines.contains("request 2 leaves\n"), "{lines}");
        assert!(!lines.contains("request 0 leaves"), "{lines}");
    }
}

/// A request grows by what names a step that was never executed, and is given up when a worker takes that: its model, which is to go, goes with it.
#[test]
fn a_model_may_go_with_what_a_worker_takes_of_it() {
    let policies = ["cellular", "adaptive", "graph:1", "serial", "lazy", "merge:4"].map(|name| name.parse::<PolicyKind>().unwrap());
    let mut stops = lstm(4, &[]);
    stops.stages[0].retention = Retention::All;
    let first = growth(0, vec![UnfoldedChain { stop: Some((0, 0)), ..stops }], watch(&[0]));
    let at = Affine { first: 3, stride: 0, from_end: false };
    let reads = UnfoldedInput { source: Source::Steps { chain: 0, stage: 0, output: 0, at }, feedback: None };
    let reader = UnfoldedStage { inputs: vec![reads], ..stage(LEAF, &[Dependency::End { chain: 0 }]) };
    let second = growth(1, vec![chain(1, vec![reader])], None);
    for policy in policies {
        let config = Config { policy, ..paper() };
        let mut timeline = Timeline::new(config, 4);
        let other = ModelInfo { model: ModelId(1), policy: Some(PolicyKind::Cellular), ..model(4) };
        timeline.world = World::new(config, vec![model(4), other], &[(0, 0, 10_000)]);
        timeline.arrive_stopping(&first, 0, 1);
        timeline.act();
        (0..6).for_each(|_| timeline.tick());
        timeline.events.push(Event::ModelDown(ModelId(0)));
        timeline.grow(&second);
        let (_, event) = timeline.world.request(ModelId(1), &growth(0, vec![lstm(3, &[])], None), Default::default());
        timeline.events.push(event);
        timeline.act();
        while !timeline.world.requests.is_empty() {
            assert!(timeline.world.now.0 < 100, "{policy}: nothing happens any more");
            timeline.tick();
        }
        assert_eq!(timeline.world.failed, [(RequestId(0), Failure::BeyondEnd { chain: 0 })], "{policy}");
        assert_eq!(timeline.world.finished, 1, "{policy}");
    }
}

/// A chain that may stop names a step of another for each of its own, and that other executes two of four. Who stops before the third is answered, whatever
/// batches it is in: no policy gives up a request for steps that its stop may come before.
#[test]
fn a_stop_may_come_before_what_was_never_executed() {
    let stopping = |also: &[Dependency]| {
        let mut chain = lstm(4, also);
        chain.stages[0].retention = Retention::All;
        UnfoldedChain { stop: Some((0, 0)), ..chain }
    };
    let graph = growth(0, vec![stopping(&[]), stopping(&[Dependency::Step { chain: 0, stage: 0, at: EVERY }])], None);
    let policies =
        ["cellular", "adaptive", "graph:1", "graph:0", "serial", "lazy", "merge:4"].map(|name| name.parse::<PolicyKind>().unwrap());
    for (policy, release) in policies.into_iter().flat_map(|policy| [(policy, Release::Node), (policy, Release::Subgraph)]) {
        for ahead in 1..4 {
            let mut timeline =
                Timeline::new(Config { policy, release, max_tasks_to_submit: ahead, low_water: ahead - 1, ..Config::default() }, 4);
            for executed in 1..=4 {
                let (_, event) = timeline.world.request(ModelId(0), &graph, [(0, 1), (1, executed - 1)].into());
                timeline.events.push(event);
            }
            timeline.act();
            while !timeline.world.requests.is_empty() {
                assert!(timeline.world.now.0 < 100, "{policy} {release:?}: nothing happens any more");
                timeline.tick();
            }
            let beyond = [2, 3].map(|request| (RequestId(request), Failure::BeyondEnd { chain: 0 }));
            let mut failed = timeline.world.failed.clone();
            failed.sort_by_key(|(id, _)| *id);
            assert_eq!((failed.as_slice(), timeline.world.finished), (beyond.as_slice(), 2), "{policy} {release:?} {ahead}");
        }
    }
}

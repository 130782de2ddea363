//! Batches that are formed by what they cost: of whole graphs under `length-aware` and `stages`, and by rows of spans.

use cellwright_scheduler::{Lazy, LengthAware, Merge, Stages};

use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::unfolded::{Run, RunOf, Source, UnfoldedInput};
use cellwright_scheduler::SpanLimit;

use super::*;

/// A policy whose tasks take so long for each number of rows, as the model's cells know.
fn with_costs(policy: PolicyKind, max: u32, cost: impl Fn(u32) -> u64) -> Timeline {
    let config = Config { policy, ..paper() };
    let mut timeline = Timeline::new(config, max);
    let mut known = model(max);
    for cell in &mut known.cells {
        cell.cost = CostTable::new((1..=max).map(|rows| Knot { rows, nanoseconds: cost(rows) })).expect("a table");
    }
    timeline.world = World::new(config, vec![known], &[(0, 0, 10_000)]);
    timeline
}

fn sequence(length: u32) -> Arc<UnfoldedGrowth> {
    growth(0, vec![lstm(length, &[])], None)
}

/// Lengths 4, 1, 4, 2 make batches of 1 and 2 and of 4 and 4: to pad all to 4 would take longer. Who comes meanwhile is not looked at before both have begun.
#[test]
fn similar_lengths_are_batched_the_shortest_first() {
    let policy = PolicyKind::LengthAware(LengthAware { timeout_ns: 0, objective_ns: 0 });
    let mut timeline = with_costs(policy, 4, |rows| 1 + u64::from(rows));
    [4, 1, 4, 2].into_iter().for_each(|length| timeline.arrive(&sequence(length)));
    timeline.act();
    timeline.arrive(&sequence(1));
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 1.0[0]
    1 lstm: 3.0[0]
    1 request 1 leaves
    2 lstm: 3.0[1]
    3 lstm: 0.0[0] 2.0[0]
    3 request 3 leaves
    4 lstm: 0.0[1] 2.0[1]
    5 lstm: 0.0[2] 2.0[2]
    6 lstm: 0.0[3] 2.0[3]
    7 lstm: 4.0[0]
    7 request 0 leaves
    7 request 2 leaves
    8 request 4 leaves
    ");
}

/// The first of those who wait waits 9; but half of its objective of 20 is over at 4, if a batch then takes 7.
#[test]
fn a_lazy_look_comes_with_its_time_or_with_half_the_objective() {
    let mut lines = String::new();
    for objective_ns in [0, 20] {
        let policy = PolicyKind::LengthAware(LengthAware { timeout_ns: 9, objective_ns });
        let mut timeline = with_costs(policy, 4, |_| 1);
        timeline.arrive(&sequence(7));
        timeline.act();
        timeline.world.now = Time(timeline.world.commands.wake_at.expect("it waits").0);
        lines += &timeline.run();
    }
    insta::assert_snapshot!(lines, @r"
     9 lstm: 0.0[0]
    10 lstm: 0.0[1]
    11 lstm: 0.0[2]
    12 lstm: 0.0[3]
    13 lstm: 0.0[4]
    14 lstm: 0.0[5]
    15 lstm: 0.0[6]
    16 request 0 leaves
     4 lstm: 0.0[0]
     5 lstm: 0.0[1]
     6 lstm: 0.0[2]
     7 lstm: 0.0[3]
     8 lstm: 0.0[4]
     9 lstm: 0.0[5]
    10 lstm: 0.0[6]
    11 request 0 leaves
    ");
}

fn in_stages(stretch_ns: u64, cost: impl Fn(u32) -> u64) -> Timeline {
    with_costs(PolicyKind::Stages(Stages { count: 4, stretch_ns: Some(stretch_ns) }), 8, cost)
}

/// 0 runs its first stage, 1 catches up, both go on together. 2 begins when they have submitted everything.
fn assert_two_run_together(lines: &str) {
    insta::allow_duplicates!(insta::assert_snapshot!(lines, @r"
     0 lstm: 0.0[0]
     1 lstm: 0.0[1]
     2 lstm: 1.0[0]
     3 lstm: 1.0[1]
     4 lstm: 0.0[2] 1.0[2]
     5 lstm: 0.0[3] 1.0[3]
     6 lstm: 0.0[4] 1.0[4]
     7 lstm: 0.0[5] 1.0[5]
     8 lstm: 0.0[6] 1.0[6]
     9 lstm: 0.0[7] 1.0[7]
    10 lstm: 2.0[0]
    10 request 0 leaves
    10 request 1 leaves
    11 lstm: 2.0[1]
    12 lstm: 2.0[2]
    13 lstm: 2.0[3]
    14 lstm: 2.0[4]
    15 lstm: 2.0[5]
    16 lstm: 2.0[6]
    17 lstm: 2.0[7]
    18 request 2 leaves
    "));
}

/// Stages of two steps. Request 1 comes during the first and joins. 2 comes too late for that.
#[test]
fn newcomers_join_where_a_stage_ends_and_only_for_a_while() {
    let mut timeline = in_stages(3, |_| 1);
    timeline.arrive(&sequence(8));
    timeline.act();
    timeline.arrive(&sequence(7));
    timeline.tick();
    (0..3).for_each(|_| timeline.tick());
    timeline.arrive(&sequence(8));
    assert_two_run_together(&timeline.run());
}

/// Two fill the device, of which three would take longer: 2 is not added to 0 and 1, though there is time and room.
#[test]
fn a_batch_that_fills_the_device_is_not_stretched() {
    let mut timeline = in_stages(99, |rows| u64::from(rows.max(2)));
    timeline.arrive(&sequence(8));
    timeline.act();
    timeline.arrive(&sequence(8));
    timeline.arrive(&sequence(8));
    assert_two_run_together(&timeline.run());
}

/// Two rows take twice as long as one: after its first stage a batch of four becomes two, and each of them two. Request 4 waits.
#[test]
fn a_full_batch_is_split_and_not_stretched_again() {
    let mut timeline = in_stages(99, u64::from);
    (0..4).for_each(|_| timeline.arrive(&sequence(8)));
    timeline.act();
    (0..3).for_each(|_| timeline.tick());
    timeline.arrive(&sequence(8));
    insta::assert_snapshot!(timeline.run(), @r"
     0 lstm: 0.0[0] 1.0[0] 2.0[0] 3.0[0]
     1 lstm: 0.0[1] 1.0[1] 2.0[1] 3.0[1]
     2 lstm: 0.0[2] 1.0[2]
     3 lstm: 0.0[3] 1.0[3]
     4 lstm: 0.0[4]
     5 lstm: 0.0[5]
     6 lstm: 0.0[6]
     7 lstm: 0.0[7]
     8 lstm: 1.0[4]
     8 request 0 leaves
     9 lstm: 1.0[5]
    10 lstm: 1.0[6]
    11 lstm: 1.0[7]
    12 lstm: 2.0[2] 3.0[2]
    12 request 1 leaves
    13 lstm: 2.0[3] 3.0[3]
    14 lstm: 2.0[4]
    15 lstm: 2.0[5]
    16 lstm: 2.0[6]
    17 lstm: 2.0[7]
    18 lstm: 3.0[4]
    18 request 2 leaves
    19 lstm: 3.0[5]
    20 lstm: 3.0[6]
    21 lstm: 3.0[7]
    22 lstm: 4.0[0]
    22 request 3 leaves
    23 lstm: 4.0[1]
    24 lstm: 4.0[2]
    25 lstm: 4.0[3]
    26 lstm: 4.0[4]
    27 lstm: 4.0[5]
    28 lstm: 4.0[6]
    29 lstm: 4.0[7]
    30 request 4 leaves
    ");
}

/// Requests whose lengths round up to another power of two are no part of a batch. The second begins when the first has submitted everything, before
/// that is done; for the third there is no room yet.
#[test]
fn two_batches_are_in_flight() {
    let mut timeline = in_stages(99, |_| 1);
    let config = Config { low_water: 3, ..timeline.world.config };
    let known = ModelInfo::clone(&timeline.world.models[0]);
    timeline.world = World::new(config, vec![known], &[(0, 0, 10_000)]);
    [2, 1, 5].into_iter().for_each(|length| timeline.arrive(&sequence(length)));
    timeline.act();
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0]
    0 lstm: 0.0[1]
    0 lstm: 1.0[0]
    2 lstm: 2.0[0]
    2 lstm: 2.0[1]
    2 lstm: 2.0[2]
    2 request 0 leaves
    3 lstm: 2.0[3]
    3 request 1 leaves
    4 lstm: 2.0[4]
    8 request 2 leaves
    ");
}

/// Tasks of so many requests whose step t sees t + 1 rows. A task may read eight.
fn heads(policy: PolicyKind, requests: u32) -> Vec<String> {
    let mut known = model(6);
    known.cells[HEAD as usize].spans = Some(SpanLimit { rows: 4, batch: 2 });
    let world = World::new(Config { policy, merge_steps: false, ..Config::default() }, vec![known], &[(0, 0, 10_000)]);
    let so_far = Affine { first: -99, stride: 1, from_end: false };
    let run = Run { of: RunOf::Chain { chain: 0, stage: 0, output: 0 }, at: so_far, every: 1, count: 100 };
    let read = UnfoldedStage { retention: Retention::All, ..stage(LEAF, &[]) };
    let waits = Dependency::Through { chain: 0, stage: 0, at: EVERY };
    let input = UnfoldedInput { source: Source::Span([run].into()), feedback: None };
    let sees = UnfoldedStage { inputs: vec![input], ..stage(HEAD, &[waits]) };
    let mut timeline = Timeline { world, events: Vec::new(), lines: String::new() };
    (0..requests).for_each(|_| timeline.arrive(&growth(0, vec![chain(6, vec![read.clone()]), chain(6, vec![sees.clone()])], None)));
    timeline.run().lines().filter_map(|line| Some(line.split_once("head: ")?.1.to_owned())).collect()
}

#[test]
fn a_task_reads_no_more_rows_of_spans_than_it_may() {
    for policy in [PolicyKind::Adaptive, PolicyKind::Merge(Merge { requests: 4 })] {
        assert_eq!(heads(policy, 1), ["0.1[0] 0.1[1] 0.1[2]", "0.1[3]", "0.1[4]", "0.1[5]"], "{policy:?}");
    }
}

/// The fifth steps see ten rows, so they are two tasks.
#[test]
fn a_batch_of_whole_graphs_goes_on_when_all_rows_of_a_step_were_submitted() {
    let (graph, lazy) = (Graph { bucket_width: 0, window_ns: 0 }, Lazy { objective_ns: 1_000_000, percentile: 90 });
    assert_eq!(heads(PolicyKind::Graph(graph), 2)[3..], ["0.1[3] 1.1[3]", "0.1[4]", "1.1[4]", "0.1[5]", "1.1[5]"]);
    // The steps of a chain are one node.
    assert_eq!(heads(PolicyKind::Lazy(lazy), 2)[3..], ["0.1[3] 1.1[3]", "0.1[4]", "0.1[5]", "1.1[4]", "1.1[5]"]);
}

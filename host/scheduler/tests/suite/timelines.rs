//! Small timelines, checked by eye: what runs with what, and when.

mod adaptive;
mod batches;
mod growths;
mod policies;

use std::sync::Arc;

use cellwright_cell_graph::UnfoldedGrowth;
use cellwright_cell_graph::unfolded::{Dependency, Length, Retention, UnfoldedChain, UnfoldedStage};
use cellwright_scheduler::{
    BatchSizes, CellInfo, CellTypeId, Config, CostTable, Event, Failure, Graph, Knot, ModelId, ModelInfo, NumericClass, PolicyKind,
    Release, RequestId, TenantId, Time, WorkerId,
};

use super::graphs::{EVERY, HEAD, LEAF, balanced_tree, chain, decoder, growth, lstm, stage, watch, whole};
use super::world::World;

/// One model whose cells are LSTM, leaf, inner and head, ranked in that order.
fn model(max: u32) -> ModelInfo {
    let cell = |cell: u32| CellInfo {
        cell_type: CellTypeId(cell),
        slots: 1,
        priority: cell as i32,
        batch: BatchSizes { min: 1, quantum: 1, max },
        cost: CostTable::unknown(),
        fill_first: false,
        steps_together: false,
        spans: None,
    };
    let cells = (0..4).map(cell).collect();
    ModelInfo { model: ModelId(0), tenant: TenantId(0), weight: 1, class: NumericClass(0), policy: None, cells, growth_slots: Some(64) }
}

struct Timeline {
    world: World,
    events: Vec<Event>,
    lines: String,
}

impl Timeline {
    fn new(config: Config, max: u32) -> Self {
        Self { world: World::new(config, vec![model(max)], &[(0, 0, 10_000)]), events: Vec::new(), lines: String::new() }
    }

    /// The first request goes on.
    fn grow(&mut self, growth: &Arc<UnfoldedGrowth>) {
        let request = self.world.requests.get_mut(&RequestId(0)).expect("it is open");
        request.open = growth.next.is_some();
        request.graph.growths.push(Arc::clone(growth));
        self.events.push(Event::Grow { request: RequestId(0), growth: Arc::clone(growth) });
    }

    fn arrive(&mut self, growth: &Arc<UnfoldedGrowth>) {
        let (_, event) = self.world.request(ModelId(0), growth, Default::default());
        self.events.push(event);
    }

    fn arrive_ranked(&mut self, rank: u32, growth: &Arc<UnfoldedGrowth>) {
        let (_, event) = self.world.ranked(rank, ModelId(0), growth, Default::default());
        self.events.push(event);
    }

    fn arrive_stopping(&mut self, growth: &Arc<UnfoldedGrowth>, chain: u32, step: u32) {
        let (_, event) = self.world.request(ModelId(0), growth, [(chain, step)].into());
        self.events.push(event);
    }

    /// Lets the scheduler act; a line for every task: `time type: request.chain[step] …`, and who left.
    fn act(&mut self) {
        self.world.handle(&mut self.events);
        let (now, commands) = (self.world.now.0, &self.world.commands);
        for launch in &commands.launches {
            let row = |row: &cellwright_scheduler::Row| {
                let lane = self.world.lanes[&row.lane];
                let last = row.step + launch.steps - 1;
                let steps = if launch.steps == 1 { format!("{last}") } else { format!("{}..={last}", row.step) };
                format!(" {}.{}[{steps}]", lane.request.0, lane.chain)
            };
            let rows: String = commands.rows[launch.rows.clone()].iter().map(row).collect();
            let name = ["lstm", "leaf", "inner", "head"][launch.cell_type.index()];
            self.lines.push_str(&format!("{now:2} {name}:{rows}\n"));
        }
        for id in &commands.finished {
            self.lines.push_str(&format!("{now:2} request {} leaves\n", id.0));
        }
    }

    /// A task takes a unit of time; the scheduler acts after each.
    fn run(mut self) -> String {
        self.act();
        while !self.world.requests.is_empty() {
            assert!(self.world.now.0 < 100, "nothing happens any more:\n{}", self.lines);
            self.tick();
        }
        self.lines
    }

    fn tick(&mut self) {
        self.complete();
        self.act();
    }

    /// A unit of time later these workers complete a task each, these requests come, and the scheduler acts.
    fn go_on(&mut self, done: &[u32], come: impl Iterator<Item = Arc<UnfoldedGrowth>>) {
        self.world.now = Time(self.world.now.0 + 1);
        self.events.extend(done.iter().filter_map(|worker| self.world.complete(WorkerId(*worker), 1, 1, || false)));
        come.for_each(|growth| self.arrive(&growth));
        self.act();
    }

    fn complete(&mut self) {
        self.world.now = Time(self.world.now.0 + 1);
        self.events.extend(self.world.complete(WorkerId(0), 1, 1, || false));
    }
}

/// The paper's decisions: asked when idle, one task at a time.
fn paper() -> Config {
    Config { max_tasks_to_submit: 1, low_water: 0, release: Release::Subgraph, ..Config::default() }
}

/// BatchMaker's figure 5: eight requests, batches of four; short ones leave and others join at every step.
#[test]
fn requests_join_and_leave_at_every_step() {
    let mut timeline = Timeline::new(paper(), 4);
    for length in [2, 3, 3, 5] {
        timeline.arrive(&growth(0, vec![lstm(length, &[])], None));
    }
    timeline.act();
    for length in [5, 7, 3, 1] {
        timeline.arrive(&growth(0, vec![lstm(length, &[])], None));
    }
    insta::assert_snapshot!(timeline.run(), @r"
     0 lstm: 0.0[0] 1.0[0] 2.0[0] 3.0[0]
     1 lstm: 0.0[1] 1.0[1] 2.0[1] 3.0[1]
     2 lstm: 1.0[2] 2.0[2] 3.0[2] 4.0[0]
     2 request 0 leaves
     3 lstm: 3.0[3] 4.0[1] 5.0[0] 6.0[0]
     3 request 1 leaves
     3 request 2 leaves
     4 lstm: 3.0[4] 4.0[2] 5.0[1] 6.0[1]
     5 lstm: 4.0[3] 5.0[2] 6.0[2] 7.0[0]
     5 request 3 leaves
     6 lstm: 4.0[4] 5.0[3]
     6 request 6 leaves
     6 request 7 leaves
     7 lstm: 5.0[4]
     7 request 4 leaves
     8 lstm: 5.0[5]
     9 lstm: 5.0[6]
    10 request 5 leaves
    ");
}

/// Who has a lower rank joins the running batch before those who came earlier, and takes a step of theirs.
#[test]
fn a_lower_rank_goes_before_who_came_earlier() {
    let mut timeline = Timeline::new(paper(), 2);
    for length in [4, 4, 2] {
        timeline.arrive_ranked(3, &growth(0, vec![lstm(length, &[])], None));
    }
    timeline.act();
    timeline.arrive_ranked(3, &growth(0, vec![lstm(1, &[])], None));
    timeline.arrive_ranked(1, &growth(0, vec![lstm(2, &[])], None));
    timeline.arrive_ranked(0, &growth(0, vec![lstm(1, &[])], None));
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0] 1.0[0]
    1 lstm: 5.0[0] 4.0[0]
    2 lstm: 4.0[1] 0.0[1]
    2 request 5 leaves
    3 lstm: 0.0[2] 1.0[1]
    3 request 4 leaves
    4 lstm: 0.0[3] 1.0[2]
    5 lstm: 1.0[3] 2.0[0]
    5 request 0 leaves
    6 lstm: 2.0[1] 3.0[0]
    6 request 1 leaves
    7 request 2 leaves
    7 request 3 leaves
    ");
}

/// Whole graphs: the same within a bucket.
#[test]
fn a_lower_rank_is_in_the_next_batch_of_its_bucket() {
    let mut timeline = Timeline::new(Config { policy: PolicyKind::Graph(Graph { bucket_width: 2, window_ns: 0 }), ..paper() }, 2);
    for rank in [1, 1, 1, 1, 0] {
        timeline.arrive_ranked(rank, &growth(0, vec![lstm(1, &[])], None));
    }
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 4.0[0] 0.0[0]
    1 lstm: 4.0[1] 0.0[1]
    2 lstm: 1.0[0] 2.0[0]
    2 request 4 leaves
    2 request 0 leaves
    3 lstm: 1.0[1] 2.0[1]
    4 lstm: 3.0[0]
    4 request 1 leaves
    4 request 2 leaves
    5 lstm: 3.0[1]
    6 request 3 leaves
    ");
}

/// Memory for two at a time: who has a lower rank gets the next place.
#[test]
fn a_lower_rank_gets_the_next_place_in_memory() {
    let mut timeline = Timeline::new(paper(), 4);
    timeline.world = World::new(paper(), vec![model(4)], &[(0, 0, 4)]);
    for rank in [2, 2, 2, 2, 1, 0] {
        timeline.arrive_ranked(rank, &growth(0, vec![lstm(2, &[])], None));
    }
    timeline.act();
    // Who leaves while it waits is out of the way.
    let mut left = None;
    timeline.world.requests.iter_mut().filter(|(_, request)| request.rank == 1).for_each(|(id, request)| {
        request.cancelled = true;
        left = Some(*id);
    });
    timeline.events.push(Event::Cancel(left.expect("one of rank 1")));
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0] 1.0[0]
    1 lstm: 0.0[1] 1.0[1]
    2 lstm: 5.0[0] 2.0[0]
    2 request 0 leaves
    2 request 1 leaves
    3 lstm: 5.0[1] 2.0[1]
    4 lstm: 3.0[0]
    4 request 5 leaves
    4 request 2 leaves
    5 lstm: 3.0[1]
    6 request 3 leaves
    ");
}

/// The same under whole-graph batching: the first four hold the others up until the longest of them is done.
#[test]
fn a_batch_of_whole_graphs_runs_as_long_as_its_longest() {
    let mut timeline = Timeline::new(Config { policy: PolicyKind::Graph(Graph { bucket_width: 5, window_ns: 0 }), ..paper() }, 4);
    for length in [2, 3, 3, 5, 5, 7, 3, 1] {
        timeline.arrive(&growth(0, vec![lstm(length, &[])], None));
    }
    insta::assert_snapshot!(timeline.run(), @r"
     0 lstm: 0.0[0] 1.0[0] 2.0[0] 3.0[0]
     1 lstm: 0.0[1] 1.0[1] 2.0[1] 3.0[1]
     2 lstm: 0.0[2] 1.0[2] 2.0[2] 3.0[2]
     3 lstm: 0.0[3] 1.0[3] 2.0[3] 3.0[3]
     4 lstm: 0.0[4] 1.0[4] 2.0[4] 3.0[4]
     5 lstm: 5.0[0]
     5 request 0 leaves
     5 request 1 leaves
     5 request 2 leaves
     5 request 3 leaves
     6 lstm: 5.0[1]
     7 lstm: 5.0[2]
     8 lstm: 5.0[3]
     9 lstm: 5.0[4]
    10 lstm: 5.0[5]
    11 lstm: 5.0[6]
    12 lstm: 5.0[7]
    13 lstm: 5.0[8]
    14 lstm: 5.0[9]
    15 lstm: 4.0[0] 6.0[0] 7.0[0]
    15 request 5 leaves
    16 lstm: 4.0[1] 6.0[1] 7.0[1]
    17 lstm: 4.0[2] 6.0[2] 7.0[2]
    18 lstm: 4.0[3] 6.0[3] 7.0[3]
    19 lstm: 4.0[4] 6.0[4] 7.0[4]
    20 request 4 leaves
    20 request 6 leaves
    20 request 7 leaves
    ");
}

/// A popular bucket has as many batches in its turn as those who were there fill; who comes later waits for its next.
#[test]
fn a_bucket_keeps_its_turn_while_those_who_were_there_fill_a_batch() {
    let mut timeline = Timeline::new(Config { policy: PolicyKind::Graph(Graph { bucket_width: 1, window_ns: 0 }), ..paper() }, 2);
    for length in [1, 2, 1, 1, 1, 1] {
        timeline.arrive(&growth(0, vec![lstm(length, &[])], None));
    }
    timeline.act();
    for _ in 0..2 {
        timeline.arrive(&growth(0, vec![lstm(1, &[])], None));
    }
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0] 2.0[0]
    1 lstm: 3.0[0] 4.0[0]
    1 request 0 leaves
    1 request 2 leaves
    2 lstm: 1.0[0]
    2 request 3 leaves
    2 request 4 leaves
    3 lstm: 1.0[1]
    4 lstm: 5.0[0] 6.0[0]
    4 request 1 leaves
    5 lstm: 7.0[0]
    5 request 5 leaves
    5 request 6 leaves
    6 request 7 leaves
    ");
}

/// BatchMaker's section 4.4: a complete tree of sixteen leaves; its internal nodes run level by level, beside another request's leaves.
#[test]
fn a_tree_runs_level_by_level() {
    let mut timeline = Timeline::new(paper(), 16);
    timeline.arrive(&growth(0, balanced_tree(16), None));
    timeline.act();
    timeline.arrive(&growth(0, balanced_tree(4), None));
    insta::assert_snapshot!(timeline.run(), @r"
    0 leaf: 0.0[0] 0.0[1] 0.0[2] 0.0[3] 0.0[4] 0.0[5] 0.0[6] 0.0[7] 0.0[8] 0.0[9] 0.0[10] 0.0[11] 0.0[12] 0.0[13] 0.0[14] 0.0[15]
    1 inner: 0.1[0] 0.1[1] 0.1[2] 0.1[3] 0.1[4] 0.1[5] 0.1[6] 0.1[7]
    2 inner: 0.1[8] 0.1[9] 0.1[10] 0.1[11]
    3 inner: 0.1[12] 0.1[13]
    4 inner: 0.1[14]
    5 leaf: 1.0[0] 1.0[1] 1.0[2] 1.0[3]
    5 request 0 leaves
    6 inner: 1.1[0] 1.1[1]
    7 inner: 1.1[2]
    8 request 1 leaves
    ");
}

/// Steps queued ahead of a stop are lost, and the chain's end comes with the completion that tells of it.
#[test]
fn a_decoder_stops_ahead_of_knowledge() {
    let mut timeline = Timeline::new(Config { max_tasks_to_submit: 3, low_water: 1, ..Config::default() }, 4);
    timeline.arrive_stopping(&growth(0, vec![lstm(2, &[]), decoder(9, 0)], None), 1, 2);
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0..=1]
    1 inner: 0.1[0]
    1 inner: 0.1[1]
    1 inner: 0.1[2]
    3 inner: 0.1[3]
    3 inner: 0.1[4]
    3 inner: 0.1[5]
    4 request 0 leaves
    ");
}

/// A batch that stays together is one launch of several steps.
#[test]
fn steps_of_a_steady_batch_are_one_launch() {
    let mut timeline = Timeline::new(Config { low_water: 0, ..Config::default() }, 4);
    timeline.arrive(&growth(0, vec![lstm(6, &[])], None));
    timeline.arrive(&growth(0, vec![lstm(6, &[]), chain(1, vec![stage(3, &[])])], None));
    insta::assert_snapshot!(timeline.run(), @r"
    0 head: 1.1[0]
    1 lstm: 0.0[0..=4] 1.0[0..=4]
    2 lstm: 0.0[5] 1.0[5]
    3 request 0 leaves
    3 request 1 leaves
    ");
}

/// Where steps are best run together, who has ended stays in the launch, as long as nobody could take its place.
#[test]
fn chains_may_end_before_their_launch() {
    let run = |steps_together: bool, lengths: &[u32]| {
        let mut known = model(4);
        known.cells.iter_mut().for_each(|cell| cell.steps_together = steps_together);
        let config = Config { low_water: 0, ..Config::default() };
        let world = World::new(config, vec![known], &[(0, 0, 10_000)]);
        let mut timeline = Timeline { world, events: Vec::new(), lines: String::new() };
        lengths.iter().for_each(|length| timeline.arrive(&growth(0, vec![lstm(*length, &[])], None)));
        timeline.run()
    };
    insta::assert_snapshot!(run(true, &[6, 1, 3]), @r"
    0 lstm: 0.0[0..=4] 1.0[0..=4] 2.0[0..=4]
    1 lstm: 0.0[5]
    1 request 1 leaves
    1 request 2 leaves
    2 request 0 leaves
    ");
    insta::assert_snapshot!(run(false, &[6, 1, 3]), @r"
    0 lstm: 0.0[0] 1.0[0] 2.0[0]
    0 lstm: 0.0[1..=2] 2.0[1..=2]
    0 lstm: 0.0[3..=4]
    1 request 1 leaves
    2 request 2 leaves
    3 lstm: 0.0[5]
    4 request 0 leaves
    ");
    // Somebody waits for the place of the second one.
    insta::assert_snapshot!(run(true, &[6, 2, 4, 6, 3]), @r"
    0 lstm: 0.0[0..=1] 1.0[0..=1] 2.0[0..=1] 3.0[0..=1]
    0 lstm: 0.0[2..=4] 2.0[2..=4] 3.0[2..=4] 4.0[0..=2]
    1 request 1 leaves
    2 lstm: 0.0[5] 3.0[5]
    2 request 2 leaves
    2 request 4 leaves
    3 request 0 leaves
    3 request 3 leaves
    ");
}

/// One that may have stopped before its last step has that in a launch of one step, though it is not missed in the next.
#[test]
fn a_chain_that_may_stop_ends_no_launch_of_several_steps() {
    for (stop, low_water) in (0..6).flat_map(|stop| [0, 1, 2].map(|low_water| (stop, low_water))) {
        let mut known = model(4);
        known.cells.iter_mut().for_each(|cell| cell.steps_together = true);
        let world = World::new(Config { low_water, ..Config::default() }, vec![known], &[(0, 0, 10_000)]);
        let mut timeline = Timeline { world, events: Vec::new(), lines: String::new() };
        let stopping = cellwright_cell_graph::unfolded::UnfoldedChain { stop: Some((0, 0)), ..lstm(6, &[]) };
        timeline.arrive_stopping(&growth(0, vec![stopping], None), 0, stop);
        timeline.arrive(&growth(0, vec![lstm(10, &[])], None));
        let lines = timeline.run();
        let launches_of_stopping = lines.lines().filter(|line| line.contains("0.0["));
        assert!(launches_of_stopping.clone().count() > 0 && launches_of_stopping.into_iter().all(|line| !line.contains("..=")), "{lines}");
    }
}

/// A worker that asks before it is idle has a launch of its own ahead meanwhile.
#[test]
fn a_worker_that_asks_early_has_a_launch_ahead() {
    let mut timeline = Timeline::new(Config { low_water: 2, ..Config::default() }, 4);
    timeline.arrive(&growth(0, vec![lstm(12, &[])], None));
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0..=2]
    0 lstm: 0.0[3..=4]
    1 lstm: 0.0[5..=7]
    1 lstm: 0.0[8..=9]
    3 lstm: 0.0[10..=11]
    5 request 0 leaves
    ");
    let mut timeline = Timeline::new(Config { low_water: 2, ..Config::default() }, 4);
    timeline.arrive(&growth(0, vec![lstm(4, &[])], None));
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0..=2]
    0 lstm: 0.0[3]
    2 request 0 leaves
    ");
}

/// Whose leader is cancelled executes what the leader did, and is handed over with it, though nothing is in flight.
#[test]
fn a_chain_follows_a_cancelled_one_to_its_end() {
    let mut timeline = Timeline::new(paper(), 4);
    let reads = Dependency::Step { chain: 0, stage: 0, at: EVERY };
    let leader = UnfoldedChain { stop: Some((0, 0)), ..lstm(5, &[]) };
    let follower = UnfoldedChain { length: Length { bound: 5, like: Some(0) }, ..lstm(5, &[reads]) };
    timeline.arrive(&growth(0, vec![leader, follower], watch(&[])));
    timeline.act();
    timeline.complete();
    let mut last = UnfoldedGrowth::clone(&growth(2, vec![lstm(1, &[])], None));
    last.cancel.push(0);
    timeline.grow(&Arc::new(last));
    timeline.act();
    insta::assert_snapshot!(timeline.run(), @r"
    0 lstm: 0.0[0]
    1 lstm: 0.1[0] 0.2[0]
    2 request 0 leaves
    ");
}

/// Whoever leaves the line gives up its place: a thousand that come and go behind one that waits do not make it longer.
#[test]
fn the_line_is_no_longer_than_who_waits_in_it() {
    let mut timeline = Timeline::new(Config::default(), 4);
    timeline.world = World::new(Config::default(), vec![model(4)], &[(0, 0, 64)]);
    // Each reserves all of the arena, because it may grow.
    let growing = growth(0, vec![lstm(2, &[])], watch(&[]));
    timeline.arrive(&growing);
    timeline.arrive(&growing);
    timeline.act();
    for round in 0..1000 {
        let (id, event) = timeline.world.request(ModelId(0), &growing, Default::default());
        timeline.events.push(event);
        timeline.act();
        assert_eq!(timeline.world.scheduler.requests_waiting(), 2);
        timeline.world.requests.get_mut(&id).expect("it waits").cancelled = true;
        timeline.events.push(Event::Cancel(id));
        timeline.act();
        assert_eq!(timeline.world.scheduler.requests_waiting(), 1);
        assert!(timeline.world.scheduler.requests_queued() <= 2, "{} after {round}", timeline.world.scheduler.requests_queued());
    }
}

/// Two workers of one memory, and a batch of four. The second leaves newcomers to the first while that one's batch is not full, though it could begin at once.
#[test]
fn batches_are_filled_first_where_that_is_wanted() {
    // Who completes a task, and how many come then.
    let steps: [(&[u32], usize); 5] = [(&[], 2), (&[], 2), (&[0, 1], 0), (&[], 2), (&[0, 1], 0)];
    let launched = |fill_first| {
        let mut known = model(4);
        known.cells.iter_mut().for_each(|cell| cell.fill_first = fill_first);
        let mut timeline = Timeline::new(paper(), 4);
        timeline.world = World::new(paper(), vec![known], &[(0, 0, 10_000), (1, 0, 10_000)]);
        let step = |(done, come): &(&[u32], usize)| {
            timeline.go_on(done, (0..*come).map(|_| growth(0, vec![lstm(9, &[])], None)));
            timeline.world.commands.launches.iter().map(|launch| (launch.worker.0, launch.rows.len())).collect::<Vec<_>>()
        };
        steps.iter().map(step).collect::<Vec<_>>()
    };
    assert_eq!(launched(true), [vec![(0, 2)], vec![], vec![(0, 4)], vec![(1, 2)], vec![(0, 4), (1, 2)]]);
    assert_eq!(launched(false), [vec![(0, 2)], vec![(1, 2)], vec![(0, 4)], vec![(1, 2)], vec![(0, 4), (1, 2)]]);
}

/// Two workers of one memory, and a model of two types. The second leaves newcomers to the first also while that one has batches of the other type, as long
/// as these are filled first as well.
#[test]
fn batches_of_all_types_that_are_filled_first_are_one_workers() {
    let launched = |filled: &[usize]| {
        let mut known = model(4);
        filled.iter().for_each(|cell| known.cells[*cell].fill_first = true);
        let mut timeline = Timeline::new(paper(), 4);
        timeline.world = World::new(paper(), vec![known], &[(0, 0, 10_000), (1, 0, 10_000)]);
        timeline.arrive(&growth(0, vec![lstm(9, &[])], None));
        timeline.act();
        timeline.arrive(&growth(0, vec![chain(1, vec![whole(LEAF, &[])])], None));
        timeline.act();
        let at_once: Vec<_> = timeline.world.commands.launches.iter().map(|launch| launch.worker.0).collect();
        timeline.complete();
        timeline.act();
        let then = timeline.world.commands.launches.iter().map(|launch| (launch.worker.0, launch.cell_type.0));
        (at_once, then.collect::<Vec<_>>())
    };
    let (lstm, leaf) = (0, 1);
    assert_eq!(launched(&[0, 1]), (vec![], vec![(0, leaf)]), "the higher ranked comes first");
    for some in [&[][..], &[0], &[1]] {
        assert_eq!(launched(some), (vec![1], vec![(0, lstm)]), "filled first: {some:?}");
    }
}

/// Two workers of one memory, and a batch of four. Beside a full batch the second begins with half a batch, and goes on with no less.
#[test]
fn less_than_half_a_batch_waits_for_a_place_in_a_full_one() {
    let mut known = model(4);
    known.cells.iter_mut().for_each(|cell| cell.fill_first = true);
    let mut timeline = Timeline::new(paper(), 4);
    timeline.world = World::new(paper(), vec![known], &[(0, 0, 10_000), (1, 0, 10_000)]);
    // Who completes a task, and of how many steps those are that come then.
    let mut step = |done: &[u32], come: &[u32]| {
        timeline.go_on(done, come.iter().map(|steps| growth(0, vec![lstm(*steps, &[])], None)));
        timeline.world.commands.launches.iter().map(|launch| (launch.worker.0, launch.rows.len())).collect::<Vec<_>>()
    };
    assert_eq!(step(&[], &[2, 9, 9, 9]), [(0, 4)]);
    assert_eq!(step(&[], &[9]), []);
    assert_eq!(step(&[], &[9]), [(1, 2)]);
    assert_eq!(step(&[1], &[]), [(1, 2)], "the first is still full");
    assert_eq!(step(&[0], &[]), [(0, 4)]);
    assert_eq!(step(&[0], &[]), [], "one has ended, and the other three are no full batch");
    assert_eq!(step(&[1], &[]), [(0, 4)], "one of five is too few");
    assert_eq!(step(&[], &[9]), [(1, 2)]);
    assert_eq!(step(&[1, 0], &[9, 9]), [(0, 4), (1, 4)]);
}

/// Two workers of one memory, and full batches of a type that ranks higher. What ranks lower is left to their worker until it has chosen twice, and nothing of it.
#[test]
fn what_is_passed_over_is_left_to_nobody() {
    let mut known = model(2);
    known.cells.iter_mut().for_each(|cell| cell.fill_first = true);
    let mut timeline = Timeline::new(paper(), 2);
    timeline.world = World::new(paper(), vec![known], &[(0, 0, 10_000), (1, 0, 10_000)]);
    let mut step = |done: &[u32], come: &[u32]| {
        let of = |cell: &u32| growth(0, vec![chain(9, vec![whole(*cell, &[Dependency::Previous { stage: 0 }])])], None);
        timeline.go_on(done, come.iter().map(of));
        timeline.world.commands.launches.iter().map(|launch| (launch.worker.0, launch.cell_type.0)).collect::<Vec<_>>()
    };
    assert_eq!(step(&[], &[HEAD, HEAD]), [(0, HEAD)]);
    assert_eq!(step(&[], &[LEAF]), []);
    assert_eq!(step(&[0], &[]), [(0, HEAD)]);
    assert_eq!(step(&[0], &[]), [(0, HEAD), (1, LEAF)]);
}

//! The scheduler and the oracle over random cases: the same launches, always.

use cellwright_cell_graph::generate::{more_seeds, seeds, try_each};
use cellwright_scheduler::{Launch, PolicyKind, Row};

use super::super::traffic::{Run, Scope};
use super::super::world::World;
use super::*;

/// The scheduler's launches, one step each.
fn expand(world: &World, launch: &Launch, rows: &[Row]) -> Vec<Launched> {
    let node = |row: &Row, index| {
        let info = world.lanes[&row.lane];
        (info.request, NodeId { chain: info.chain, stage: info.stage, step: row.step + index })
    };
    let steps = 0..launch.steps;
    // A row whose chain has ended is padding in steps that follow.
    let runs = |row: &&Row, index| index == 0 || row.step + index < world.bound(row.lane);
    let of_step = |index| rows.iter().filter(|row| runs(row, index)).map(|row| node(row, index)).collect();
    steps.map(|index| (launch.worker, launch.cell_type, launch.model, of_step(index))).collect()
}

fn compare(seed: u64, release: Release) {
    let scope = Scope {
        faults: seed.is_multiple_of(2),
        losses: false,
        growths: !seed.is_multiple_of(3),
        requests: if seed % 16 == 5 { 20 } else { 8 },
        domains: if seed % 3 == 1 { 2 } else { 1 },
        late: seed % 5 == 1,
        mixed: false,
        checked: seed % 8 == 7,
        reloads: false,
    };
    let mut run = Run::new(seed, scope, |config, models| {
        (config.policy, config.release) = (PolicyKind::Cellular, release);
        config.merge_steps = models == 1;
    });
    let workers: Vec<_> = run.world.workers.iter().map(|(id, worker)| (id.0, worker.domain.0, 0)).collect();
    let mut oracle = Oracle::new(run.world.config, &run.world.models, &workers);
    while let Some(events) = run.round() {
        let mut taken = events.clone();
        run.world.handle(&mut taken);
        let commands = &run.world.commands;
        oracle.handle(run.world.now, &events, commands);
        let launches = || commands.launches.iter().map(|launch| (launch, &commands.rows[launch.rows.clone()]));
        let expanded: Vec<Launched> = launches().flat_map(|(launch, rows)| expand(&run.world, launch, rows)).collect();
        assert_eq!(expanded, oracle.launched, "at {:?}, failed {:?}, by the oracle {:?}", run.world.now, commands.failed, oracle.failed);
        oracle.number(&launches().flat_map(|(launch, _)| (0..launch.steps).map(|_| (launch.worker, launch.seq))).collect::<Vec<_>>());
        // Of several reasons that come together either may be given.
        let ids = |failed: &[(RequestId, Failure)]| failed.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>();
        assert_eq!(ids(&commands.failed), ids(&oracle.failed), "at {:?}", run.world.now);
    }
}

#[test]
fn node_by_node_the_scheduler_decides_as_the_oracle() {
    try_each(seeds(2500), |seed| compare(seed, Release::Node));
}

#[test]
fn subgraph_by_subgraph_the_scheduler_decides_as_the_oracle() {
    try_each(seeds(2500), |seed| compare(seed, Release::Subgraph));
}

#[test]
#[ignore = "as long as one likes: CELLWRIGHT_SEEDS=1000000 cargo test --release -p cellwright-scheduler -- --ignored soak"]
fn soak() {
    try_each(more_seeds(100_000), |seed| compare(seed, if seed.is_multiple_of(2) { Release::Node } else { Release::Subgraph }));
}

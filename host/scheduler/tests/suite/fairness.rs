//! Models share device time by weight, however much one of them sends.

use cellwright_scheduler::{
    BatchSizes, CellInfo, CellTypeId, Config, ModelId, ModelInfo, NumericClass, PolicyKind, TenantId, Time, WorkerId,
};

use super::graphs::{growth, lstm};
use super::world::World;

fn model(model: u32, weight: u32) -> ModelInfo {
    let batch = BatchSizes { min: 1, quantum: 1, max: 4 };
    let cell = |cell: u32| CellInfo { cell_type: CellTypeId(model * 4 + cell), slots: 1, priority: 0, batch };
    let cells = (0..4).map(cell).collect();
    ModelInfo { model: ModelId(model), tenant: TenantId(model), weight, class: NumericClass(0), cells, growth_slots: None }
}

/// Device time that each model had, of a run in which each always has that many requests waiting.
fn shares(policy: PolicyKind, weights: [u32; 2], backlog: [u32; 2], task_ns: [u64; 2]) -> [u64; 2] {
    let config = Config { policy, low_water: 0, max_tasks_to_submit: 2, ..Config::default() };
    let models = weights.iter().enumerate().map(|(index, weight)| model(index as u32, *weight)).collect();
    let mut world = World::new(config, models, &[(0, 0, 100_000)]);
    let mut used = [0; 2];
    for _ in 0..3000 {
        let mut events = Vec::new();
        for index in 0..2 {
            let there = world.requests.values().filter(|request| request.model == ModelId(index)).count() as u32;
            for _ in there..backlog[index as usize] {
                let (_, event) = world.request(ModelId(index), &growth(0, vec![lstm(6, &[])], None), Default::default());
                events.push(event);
            }
        }
        let first = world.workers[&WorkerId(0)].tasks.front().map(|task| (world.lanes[&task.rows[0].0].request, task.steps));
        if let Some((id, steps)) = first {
            let model = world.requests[&id].model.index();
            let busy = task_ns[model] * u64::from(steps);
            used[model] += busy;
            events.extend(world.complete(WorkerId(0), 1, busy, || false));
        }
        world.now = Time(world.now.0 + 1);
        world.handle(&mut events);
    }
    used
}

#[test]
fn a_flood_does_not_take_another_models_share() {
    for policy in [PolicyKind::Cellular, PolicyKind::Graph { bucket_width: 10 }] {
        let [flood, other] = shares(policy, [1, 1], [200, 8], [1000, 1000]);
        let share = other as f64 / (flood + other) as f64;
        assert!((0.48..0.52).contains(&share), "{policy:?}: {share}");
    }
}

#[test]
fn shares_follow_weights_not_tasks() {
    for policy in [PolicyKind::Cellular, PolicyKind::Graph { bucket_width: 10 }] {
        let [light, heavy] = shares(policy, [1, 3], [50, 50], [5000, 1000]);
        let share = heavy as f64 / (light + heavy) as f64;
        assert!((0.73..0.77).contains(&share), "{policy:?}: {share}");
    }
}

/// A model that was idle does not save its share up.
#[test]
fn idleness_is_not_saved_up() {
    let config = Config { low_water: 0, max_tasks_to_submit: 1, ..Config::default() };
    let mut world = World::new(config, vec![model(0, 1), model(1, 1)], &[(0, 0, 100_000)]);
    let mut turns = Vec::new();
    for round in 0..240 {
        let mut events = Vec::new();
        for index in 0..2 {
            let there = world.requests.values().filter(|request| request.model == ModelId(index)).count();
            if there < 8 && (index == 0 || round >= 200) {
                let (_, event) = world.request(ModelId(index), &growth(0, vec![lstm(3, &[])], None), Default::default());
                events.push(event);
            }
        }
        events.extend(world.complete(WorkerId(0), 1, 1000, || false));
        world.now = Time(round + 1);
        world.handle(&mut events);
        turns.extend(world.commands.launches.iter().map(|launch| launch.model.0));
    }
    let late = &turns[turns.len() - 30..];
    let second = late.iter().filter(|model| **model == 1).count();
    assert!((13..=17).contains(&second), "{late:?}");
}
